"""Findings that are known already: a file that says which, and what becomes of each in a run.

A known finding is a violation that somebody has looked at, has put in a sentence, and has a scenario of. A run goes on
behind it. Its scenario is run, too: a finding that it does not show any more is told, so that the file stays true.
``docs/conform.md`` describes the file.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_type_hints

import msgspec

from kvspec.model.conformance import MakeTarget, TargetError
from kvspec.model.pools import Pools
from kvspec.model.promises import Family, Violation, rules_of
from kvspec.model.scenario import ScenarioError, read_scenario, run_scenario

VERSION: Final = 1
"""Of the format."""


class KnownError(Exception):
    """A file of known findings that cannot be used.

    Attributes:
        where: the file, and the finding in it.
        what: what is wrong.
        expected: what would have been right.
    """

    def __init__(self, where: str, what: str, expected: str) -> None:
        self.where, self.what, self.expected = where, what, expected
        super().__init__(f"{where}: {what}, expected {expected}")


class Finding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One known finding.

    Attributes:
        id: its name.
        rule: what it breaks, as in ``content/content``.
        says: what is the matter, in one sentence.
        kind: ``violation``: the target is wrong; ``misuse accepted``: it answers calls that make no sense;
            ``surprising``: it is meant so, and the specification says otherwise.
        scenario: a file that shows it, from the folder of the list on.
        what: a regular expression, searched in what is said of a violation; None: any violation of the rule.
        target: the only target that has it: as the target is called, or says that its ``name`` is; None: any.
        link: where more is said of it.
        versions: of the target that have it.
    """

    id: str
    rule: str
    says: str
    kind: Literal["violation", "misuse accepted", "surprising"]
    scenario: str
    what: str | None = None
    target: str | None = None
    link: str | None = None
    versions: str | None = None

    @property
    def family(self) -> str:
        """The family of its rule."""
        return self.rule.partition("/")[0]

    def fits(self, family: str | None, rule: str | None, what: str) -> bool:
        """Whether this is what a violation is about."""
        return f"{family}/{rule}" == self.rule and (self.what is None or re.search(self.what, what) is not None)


class KnownFindings(msgspec.Struct, frozen=True):
    """A file of known findings.

    Attributes:
        file: where they stand.
        findings: in the order of the file.
    """

    file: str
    findings: tuple[Finding, ...]

    def of(self, names: Collection[str]) -> KnownFindings:
        """Those of a target that is called so."""
        return KnownFindings(self.file, tuple(f for f in self.findings if f.target is None or f.target in names))

    def fitting(self, violation: Violation) -> Finding | None:
        """The first that a violation is known as."""
        family, rule, what = violation.family.value, violation.rule, violation.what
        return next((f for f in self.findings if f.fits(family, rule, what)), None)


class KnownVerdict(msgspec.Struct, frozen=True):
    """What became of a known finding.

    Attributes:
        finding: the finding.
        state: ``known``: its scenario shows it; ``fixed``: it does not; ``changed``: nor does it, but the run did;
            ``unknown``: its scenario was not run.
        episodes: how many episodes of the run it ended.
        reason: what its scenario showed instead, or why it was not run.
    """

    finding: Finding
    state: Literal["known", "fixed", "changed", "unknown"]
    episodes: int
    reason: str = ""

    @property
    def verdict(self) -> str:
        """As that of a family: a list that is not true is as bad as a violation."""
        return "violated" if self.state in ("fixed", "changed") else self.state

    @property
    def open(self) -> bool:
        """It is still there."""
        return self.episodes > 0 or self.state == "known"


def run_known(
    known: KnownFindings, make_target: MakeTarget, ended: Counter[str], pools: Pools | None = None
) -> list[KnownVerdict]:
    """Run the scenario of each on a target.

    Args:
        known: the findings of this target.
        make_target: makes the target.
        ended: how many episodes each has ended.
        pools: models that are used again.
    """
    return [_verdict(known.file, finding, make_target, ended[finding.id], pools) for finding in known.findings]


def _verdict(file: str, finding: Finding, make_target: MakeTarget, ended: int, pools: Pools | None) -> KnownVerdict:
    try:
        found = run_scenario(read_scenario(Path(file).parent / finding.scenario), make_target, pools)
    except (TargetError, ScenarioError, OSError) as error:
        return KnownVerdict(finding, "unknown", ended, f"its scenario could not be run: {error}")
    if finding.fits(found.family, found.rule, found.what):
        return KnownVerdict(finding, "known", ended)
    instead = f" (it breaks {found.family}/{found.rule}: {found.what})" if found.family else ""
    if ended:
        reason = f"seen in the run, but no longer in its scenario{instead}: it needs another one in {file}"
        return KnownVerdict(finding, "changed", ended, reason)
    reason = f"no longer seen in its scenario{instead}: take it out of {file}"
    return KnownVerdict(finding, "fixed", ended, reason)


# -- the file ---------------------------------------------------------------------------------------------------------


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    finding: tuple[dict[str, Any], ...] = ()


def read_known(path: Path) -> KnownFindings:
    """Read a file of known findings; every scenario that it names can be read, too.

    Raises:
        KnownError: it cannot be used.
    """
    file = str(path)
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise KnownError(file, error.strerror or str(error), "a file of known findings") from error
    except (ValueError, RecursionError) as error:  # no UTF-8, no TOML, or nested too deeply
        raise KnownError(file, str(error), "TOML") from error
    if (version := raw.get("version")) != VERSION:
        raise KnownError(file, f"version: {version!r}", f"version = {VERSION}")
    try:
        read = msgspec.convert(raw, _File)
    except msgspec.ValidationError as error:
        raise KnownError(file, _words(error), "version and tables [[finding]]") from error
    findings: dict[str, Finding] = {}
    for number, table in enumerate(read.finding, 1):
        finding = _finding(f"{file}: finding {number}", table)
        if finding.id in findings:
            raise KnownError(f"{file}: finding {number}", f"there is a finding '{finding.id}' already", "another id")
        findings[finding.id] = finding
        _check(f"{file}: {finding.id}", finding, path.parent)
    return KnownFindings(file, tuple(findings.values()))


def _finding(where: str, table: dict[str, Any]) -> Finding:
    try:
        return msgspec.convert(table, Finding)
    except msgspec.ValidationError as error:
        kinds = ", ".join(get_args(get_type_hints(Finding)["kind"]))
        expected = f"fields {', '.join(Finding.__struct_fields__)}; kind is one of {kinds}"
        raise KnownError(where, _words(error), expected) from error


def _check(where: str, finding: Finding, folder: Path) -> None:
    """The rule exists, the regular expression is one, the scenario can be read and is about a target."""
    family, _, rule = finding.rule.partition("/")
    if family not in frozenset(Family):
        raise KnownError(where, f"rule '{finding.rule}'", f"FAMILY/RULE with one of {', '.join(Family)}")
    if not rule or (family != Family.INVARIANT and rule not in rules_of(Family(family))):
        raise KnownError(where, f"rule '{finding.rule}'", f"a rule that kvspec explain {family} lists")
    try:
        re.compile(finding.what or "")
    except re.error as error:
        raise KnownError(where, f"what '{finding.what}' ({error})", "a regular expression") from error
    if not re.fullmatch(r"[\w.:-]+", finding.id):
        raise KnownError(where, f"id '{finding.id}'", "letters, digits, and . : - _ only")
    if not finding.says.strip():
        raise KnownError(where, "nothing in says", "a sentence")
    try:
        scenario = read_scenario(folder / finding.scenario)
    except ScenarioError as error:
        at = ":".join(str(part) for part in (finding.scenario, error.line, error.column) if part)
        raise KnownError(where, f"scenario {at}: {error.what}", error.expected) from error
    except (OSError, ValueError) as error:  # a name with a null character is no name
        what = getattr(error, "strerror", None) or error
        raise KnownError(where, f"scenario {finding.scenario}: {what}", "a file") from error
    if scenario.chapter is not None:
        raise KnownError(where, f"scenario {finding.scenario} runs on the spec", "a scenario of operations")


def _words(error: msgspec.ValidationError) -> str:
    """What is wrong, and with which field."""
    what, _, at = str(error).partition(" - at ")
    field = re.sub(r"^`\$\.?(.*)`$", r"\1", at)
    return f"{field}: {what}" if field else what
