"""Conformance of a target as tests of pytest: a class to inherit, with a test for each family of promises.

``docs/pytest.md`` has an example. Beside kvspec this needs pytest, and nothing of kvspec's extras. The options
``--kvspec-...`` are those of the plugin that pytest finds where kvspec is installed.
"""

from __future__ import annotations

import inspect
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, NoReturn

import msgspec
import pytest

from kvspec.model.conform import DEFAULT_OPERATIONS, ConformOptions, ConformReport, FoundViolation, conform
from kvspec.model.conformance import Form, PoolConfig, Target, TargetError
from kvspec.model.forms import OF_FORMS
from kvspec.model.generator import Kind
from kvspec.model.promises import Family
from kvspec.model.reporting.evidence import EVIDENCE
from kvspec.model.reporting.known import Finding, KnownError, KnownFindings, KnownVerdict, read_known
from kvspec.model.reporting.saving import save_text
from kvspec.model.reporting.text import (
    known_words,
    scenario_lines,
    scenario_text,
    verdict_line,
    versions_line,
    violation_lines,
)
from kvspec.model.scenario import ScenarioError, ScenarioResult, read_scenario, run_scenario

FAILURES: Final = "conform-failures"
"""Where failing scenarios go, from the folder on that pytest calls its root."""
_OF_A_RUN: Final = ("test_family", "test_enough_was_seen", "test_known")
_REPORTS: Final = pytest.StashKey[dict[type, "ConformReport | Exception"]]()


class ConformanceTests:
    """Drives the target that `make_target` makes, once for all tests of a class, and judges it.

    A violation that is not known fails the test of its family, a known one is an expected failure, and a family that
    was not observed is skipped, unless what must be seen was not. The same seed gives the same run.

    Attributes:
        seed, operations, seconds, kind, form, minimum: as in `kvspec.model.conform.ConformOptions`.
        options: what else there is in it, such as ``{"num_blocks": 5}``.
        known: a file of known findings, from the folder of the test on.
        scenarios: a folder, from there on, each ``.kv`` file of which is run as a test.
    """

    __test__ = False

    seed: ClassVar[int] = 0
    operations: ClassVar[int | None] = None
    seconds: ClassVar[float | None] = None
    kind: ClassVar[str] = Kind.MIXED
    form: ClassVar[str | None] = None
    minimum: ClassVar[Mapping[str, int]] = {}
    options: ClassVar[Mapping[str, Any]] = {}
    known: ClassVar[str | None] = None
    scenarios: ClassVar[str | None] = None

    def make_target(self, config: PoolConfig) -> Target:
        """A new target for a pool."""
        raise NotImplementedError(f"{type(self).__name__} has no make_target(self, config)")

    # -- what is collected ---------------------------------------------------------------------------------------

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "__test__" not in vars(cls):
            cls.__test__ = True

    @classmethod
    def kvspec_collects(cls, name: str, config: pytest.Config) -> bool:
        """Whether there is anything to do for a test; asked by the plugin."""
        replayed = _option(config, "replay") is not None
        if name == "test_scenario":
            return replayed or cls.scenarios is not None
        return not (replayed and name in _OF_A_RUN) and (name != "test_known" or cls.known is not None)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """A test for each family, each known finding and each scenario."""
        self._options(metafunc.config)  # fails here if they make no sense
        collected = metafunc.definition.getparent(pytest.Class)
        if metafunc.config.pluginmanager.hasplugin("xdist") and collected is not None:
            collected.add_marker(pytest.mark.xdist_group(collected.nodeid))  # so that one worker can have all of them
        if "family" in metafunc.fixturenames:
            metafunc.parametrize("family", [f.value for f in Family if self.form in (None, *_forms_of(f))])
        if "finding" in metafunc.fixturenames:
            findings = self._known().findings
            metafunc.parametrize("finding", findings, ids=[f.id for f in findings])
        if "scenario" in metafunc.fixturenames:
            files = self._scenarios(_option(metafunc.config, "replay"))
            metafunc.parametrize("scenario", files, ids=[file.stem for file in files])

    # -- tests ---------------------------------------------------------------------------------------------------

    def test_family(self, family: str, request: pytest.FixtureRequest) -> None:
        """Nothing that was seen breaks the family."""
        report = self._report(request)
        found = next((f for f in report.families if f.family == family), None)
        if found is None:
            self._not_observed(report, family, "nothing that was driven could break it")
        elif found.verdict == "violated" and report.violation is not None:
            _fail(*violation_lines(report.violation), "", *self._again(request, report, report.violation))
        elif found.verdict == "known":
            open_ = [known for known in report.known if known.finding.id in found.reason.split(", ")]
            _expected("; ".join(f"{known.finding.id}: {known.finding.says}" for known in open_))
        elif found.verdict == "not observed":
            self._not_observed(report, family, found.reason)

    def test_enough_was_seen(self, request: pytest.FixtureRequest) -> None:
        """Something was observed, and what must be seen was."""
        report = self._report(request)
        if report.unmet or all(f.verdict == "not observed" for f in report.families):
            if report.violation is not None:
                pytest.skip(f"a violation ended the run: {verdict_line(report)}")
            _fail(verdict_line(report), *self._made_by(request, report))

    def test_known(self, finding: Finding, request: pytest.FixtureRequest) -> None:
        """What is known is still there; otherwise the list of it is to be changed."""
        known = next((k for k in self._report(request).known if k.finding.id == finding.id), None)
        if known is None:
            pytest.skip(f"{finding.id} is known of {finding.target} only")
        elif known.state == "known":
            _expected(_known_line(known))
        else:
            _fail(_known_line(known))

    def test_scenario(self, scenario: Path, request: pytest.FixtureRequest) -> None:
        """A scenario holds on the target."""
        name = type(self).__name__
        try:
            read = read_scenario(scenario)
        except (ScenarioError, OSError) as error:
            _fail(str(error))
        if read.chapter is not None:
            _fail(f"{scenario}: this scenario runs on the spec, not on a target, expected kvspec run")
        try:
            found = run_scenario(read, self.make_target)
        except TargetError as error:
            _fail(f"{scenario}: {name} {error}")
        if found.verdict == "not observed":
            pytest.skip(f"{scenario} holds as far as {name} shows it")
        if not found.passed:
            self._failed(found, "\n".join(scenario_lines(name, scenario, found)))

    # -- inside --------------------------------------------------------------------------------------------------

    def _report(self, request: pytest.FixtureRequest) -> ConformReport:
        """The run of this class: that which was made already, if there is one."""
        reports = request.config.stash.setdefault(_REPORTS, {})
        cls = type(self)
        if cls not in reports:
            options = self._options(request.config)
            try:
                reports[cls] = conform(self.make_target, options, name=cls.__name__)
            except TargetError as error:
                reports[cls] = error
                raise
        report = reports[cls]
        if isinstance(report, Exception):
            _fail(f"{cls.__name__} {report}")
        if report.interrupted:
            raise KeyboardInterrupt
        made = {"seed": report.options.seed, **report.versions, **{f"target {k}": v for k, v in report.about.items()}}
        request.node.user_properties += [(f"kvspec: {what}", value) for what, value in made.items()]
        return report

    def _options(self, config: pytest.Config) -> ConformOptions:
        """What to do, by the class and by the command line."""
        seed, operations, seconds = (_option(config, name) for name in ("seed", "operations", "seconds"))
        if operations is None and seconds is None:
            operations, seconds = self.operations, self.seconds
        try:
            given = dict(
                seed=self.seed if seed is None else seed,
                operations=DEFAULT_OPERATIONS if operations is None and seconds is None else operations,
                seconds=seconds,
                kind=self.kind,
                form=self.form,
                minimum=self.minimum,
                known=self._known(),
                **self.options,
            )
            return msgspec.convert(given, ConformOptions)
        except (ValueError, TypeError) as error:
            what, _, where = str(error).partition(" - at `$.")
            _fail(": ".join([type(self).__name__, *([where.rstrip("`")] if where else []), what]))

    def _not_observed(self, report: ConformReport, family: str, reason: str) -> None:
        needed = EVIDENCE[Family(family)].counters
        if report.violation is None and any(wanted.counter in needed for wanted in report.unmet):
            _fail(f"not observed: {reason}", verdict_line(report))
        pytest.skip(f"not observed: {reason}")

    def _failed(self, found: ScenarioResult, words: str) -> NoReturn:
        """A scenario does not hold; what is known of it is expected."""
        known = next((f for f in self._known().findings if f.fits(found.family, found.rule, found.what)), None)
        if known is not None:
            _expected(f"{known.id}: {known.says}", words)
        _fail(words)

    def _again(self, request: pytest.FixtureRequest, report: ConformReport, found: FoundViolation) -> list[str]:
        """Save the run that fails; how to run it again."""
        name, made_by = type(self).__name__, self._made_by(request, report)
        comment = "\n".join([f"{name}: {found.family}/{found.rule} at the last operation", found.what, made_by[0]])
        stem = f"{name}.{found.family}.{found.rule}"
        try:
            saved = _shown(save_text(request.config.rootpath / FAILURES, stem, ".kv", scenario_text(found, comment)))
        except OSError as error:  # it is told all the same
            return [f"  not saved: {error}", *(f"  {line}" for line in made_by)]
        again = shlex.join(["pytest", request.node.nodeid.rpartition("::")[0], "--kvspec-replay", saved])
        return [f"  saved as {saved}", f"  run it again: {again}", *(f"  {line}" for line in made_by)]

    def _made_by(self, request: pytest.FixtureRequest, report: ConformReport) -> list[str]:
        """How the run was made."""
        options = report.options
        words = ["pytest", request.node.nodeid.rpartition("::")[0], "--kvspec-seed", str(options.seed)]
        if options.operations is not None:
            words += ["--kvspec-operations", str(options.operations)]
        if options.seconds is not None:
            words += ["--kvspec-seconds", str(options.seconds)]
        return [f"found by {shlex.join(words)}", versions_line(type(self).__name__, report)]

    def _known(self) -> KnownFindings:
        if self.known is None:
            return KnownFindings("", ())
        try:
            return read_known(Path(_shown(self._folder() / self.known)))
        except KnownError as error:
            _fail(str(error))

    def _scenarios(self, replayed: str | None) -> list[Path]:
        if replayed is not None:
            return [Path(replayed)]
        if self.scenarios is None:
            return []
        if not isinstance(self.scenarios, str | os.PathLike):
            _fail(f"{type(self).__name__}.scenarios: {self.scenarios!r}, expected a folder")
        folder = self._folder() / self.scenarios
        files = [Path(_shown(file)) for file in sorted(folder.glob("*.kv"))]
        if not files:
            _fail(f"{type(self).__name__}.scenarios: no file in '{_shown(folder)}' ends in .kv, expected a scenario")
        return files

    def _folder(self) -> Path:
        return Path(inspect.getfile(type(self))).parent


def _option(config: pytest.Config, name: str) -> Any:
    return config.getoption(f"kvspec_{name}", None)


def _forms_of(family: Family) -> tuple[str, ...]:
    return tuple(form.value for form in OF_FORMS.get(family, Form))


def _shown(path: Path) -> str:
    """The path from the current folder on."""
    return os.path.relpath(path)


def _known_line(known: KnownVerdict) -> str:
    return f"{known.finding.id}: {known_words(known)}"


def _expected(reason: str, words: str = "") -> NoReturn:
    """A failure that is known; where pytest is told to run such tests as others (`--runxfail`), it is one."""
    pytest.xfail(reason)
    _fail(words or reason)


def _fail(*lines: str) -> NoReturn:
    raise pytest.fail.Exception("\n".join(lines), pytrace=False) from None  # the lines say it all
