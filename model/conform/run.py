"""The run: episode after episode, until the end or the first violation."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from kvspec.model.acceptor import AnyAcceptor, judge_of
from kvspec.model.conform.options import ConformOptions
from kvspec.model.conform.replayer import SHORT_PATIENCE, Replayer, shows
from kvspec.model.conform.report import ConformReport, FamilyVerdict, FoundViolation
from kvspec.model.conformance import (
    Capability,
    Form,
    MakeTarget,
    MisuseError,
    PoolConfig,
    Target,
    TargetError,
    UnusableError,
    checked_target,
)
from kvspec.model.forms import FORMS, OF_FORMS, AnyGenerator, abilities_of, with_fixed
from kvspec.model.generator import RandomSource
from kvspec.model.operations import AnyOperation
from kvspec.model.pools import Pools
from kvspec.model.promises import Family, Violation
from kvspec.model.reporting.evidence import COUNTERS, DONE, EVIDENCE, Wanted, about_of, minimum_of
from kvspec.model.reporting.known import KnownFindings, KnownVerdict, run_known
from kvspec.model.reporting.versions import versions
from kvspec.model.scenario.write import format_item
from kvspec.model.shrink import Case, Shrinker
from kvspec.model.tracing.record import Recorder, chapter_of

_SIZES: Final = ("num_blocks", "block_size", "num_threads")
_LENGTHS: Final = (20, 300)
_LONG_LENGTHS: Final = (300, 2000)
_LONG_RATE: Final = 0.05


def conform(
    make_target: MakeTarget,
    options: ConformOptions | None = None,
    *,
    name: str | None = None,
    on_progress: Callable[[int, str], None] = lambda operations, note: None,
    pools: Pools | None = None,
    recorder: Recorder | None = None,
) -> ConformReport:
    """Drive a target and judge it.

    Args:
        make_target: makes a target for a pool.
        options: what to do.
        name: what the target is called, for findings that are known of it alone.
        on_progress: called after each episode with the operations done in it, and a note.
        pools: models that are used again, where there are many short runs.
        recorder: writes down what happens, pool after pool.

    Raises:
        TargetError: the target cannot be driven.
        NotLoggedError: it is of a form that cannot be recorded, or of several that have not the same events.
    """
    return Conformance(make_target, options or ConformOptions(), on_progress, pools, name, recorder).run()


class Conformance:
    """One run."""

    def __init__(
        self,
        make_target: MakeTarget,
        options: ConformOptions,
        on_progress: Callable[[int, str], None],
        pools: Pools | None = None,
        name: str | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.options = options
        self.pools = pools or Pools()
        self.replayer = Replayer(make_target, self.pools)
        self.episodes = 0
        self.capabilities: frozenset[Capability] = frozenset()
        self._shown: dict[Form, frozenset[Capability]] = {}
        self._samples: dict[Form, Target] = {}
        self._variants: tuple[str, ...] = ()
        self._of_variants: Counter[str] = Counter()
        self._counted: defaultdict[Form, Counter[str]] = defaultdict(Counter)
        self._make_target = make_target
        self._on_progress = on_progress
        self._started = 0.0
        self._seconds = 0.0
        self._most_blocks = self._longest_block = self._longest_episode = 0
        self._found: tuple[Violation, Case, tuple[bool, ...]] | None = None
        self._forms: list[Form] = []
        self._name = name
        self._recorder = recorder
        self._about: dict[str, str] = {}
        self._minimum: dict[str, int] = {}
        self._known = KnownFindings("", ())
        self._ended: Counter[str] = Counter()

    def run(self) -> ConformReport:
        """Episode after episode, until the end or the first violation."""
        interrupted = False
        violation = None
        known: list[KnownVerdict] = []
        self._forms = self._find_forms()
        if self._recorder is not None:
            chapter_of(*self._forms)
        self.capabilities = frozenset().union(*self._shown.values())
        if self.options.known is not None:
            self._known = self.options.known.of({self._name or "", self._about.get("name", "")})
        self._started = time.perf_counter()
        try:
            while self._found is None and not self._over():
                self._episode()
            self._seconds = time.perf_counter() - self._started
            violation = self._explained()
            known = run_known(self._known, self._make_target, self._ended, self.pools)
        except KeyboardInterrupt:
            interrupted = True
            self._seconds = self._seconds or time.perf_counter() - self._started
            violation = violation or self._as_found()
            known = [KnownVerdict(f, "unknown", self._ended[f.id], "interrupted") for f in self._known.findings]
        forms = frozenset(self._forms)
        return ConformReport(
            versions(),
            self._about,
            self.options,
            self.counts["operations"],
            self.episodes,
            self._seconds,
            self._most_blocks,
            self._longest_block,
            self._longest_episode,
            {name: self._of_variants[name] for name in self._variants},
            sorted(c.value for c in self.capabilities),
            dict(sorted(self.counts.items())),
            [self._verdict(f, violation, known) for f in Family if not OF_FORMS.get(f, forms).isdisjoint(forms)],
            [Wanted(counter, least, self.counts[counter]) for counter, least in self._wanted()],
            known,
            violation,
            interrupted,
        )

    @property
    def counts(self) -> Counter[str]:
        """How often what happened, in all forms together."""
        return sum(self._counted.values(), Counter())

    def _wanted(self) -> Iterable[tuple[str, int]]:
        """What must have been seen, in the order of the counters."""
        asked = self._minimum | self.options.minimum
        return [(counter, asked[counter]) for counter in COUNTERS if counter in asked]

    def _over(self) -> bool:
        limit, seconds = self.options.operations, self.options.seconds
        if limit is not None and self.counts["operations"] >= limit:
            return True
        return seconds is not None and time.perf_counter() - self._started >= seconds

    def _episode(self) -> None:
        """One pool from its making to its end."""
        options = self.options
        source = RandomSource(f"{options.seed}/{self.episodes + 1}")
        config = self._config(source, self._forms[self.episodes % len(self._forms)])
        self.episodes += 1
        target = checked_target(self._make_target, config)
        self._same_capabilities(config, target.capabilities)
        judge = judge_of(target, config, every=options.every, pool=self.pools.take(config), patience=options.patience)
        make_generator = FORMS[config.form].generator
        generator = make_generator(source, config, judge.pool, judge.capabilities, options.kind)
        done: list[tuple[AnyOperation, bool]] = []
        # What is long comes once every other form and variant had its turn, so that short runs drive them all.
        is_long = source.chance(_LONG_RATE) and self.episodes >= len(self._forms) * max(1, len(self._variants))
        length = source.integer(*(_LONG_LENGTHS if is_long else _LENGTHS))
        if self._recorder is not None:
            self._recorder.begin(judge)
        try:
            self._operate(judge, generator, length, done)
        except Violation as violation:
            if self._recorder is not None:
                self._recorder.found(violation, judge)
            violation.number = violation.number or judge.number
            if (finding := self._known.fitting(violation)) is not None:
                self._ended[finding.id] += 1
            else:
                self._found = violation, Case(config, tuple(o for o, _ in done)), tuple(error for _, error in done)
        finally:
            if self._recorder is not None:
                self._recorder.end()
            counts = self._counted[config.form]
            counts += judge.counts
            counts["operations"] += judge.number
            if config.engine is not None:
                self._of_variants[config.engine.variant] += judge.number
            self._most_blocks = max(self._most_blocks, config.num_blocks)
            self._longest_block = max(self._longest_block, config.block_size)
            self._longest_episode = max(self._longest_episode, judge.number)
            judge.leave()
            self.pools.give(judge.pool)
        counts = self.counts
        self._on_progress(judge.number, f"{counts['evictions']} evictions, {counts['hits']} hits")

    def _same_capabilities(self, config: PoolConfig, shown: frozenset[Capability]) -> None:
        """What a target can show must not depend on the pool: the verdicts are about all pools together."""
        known = self._shown.setdefault(config.form, frozenset(shown))
        if shown != known:
            differing = ", ".join(sorted(shown ^ known))
            raise TargetError(f"has other capabilities in pool {self.episodes} than in those before: {differing}")
        self.capabilities |= shown

    # -- what is driven ------------------------------------------------------------------------------------------

    def _find_forms(self) -> list[Form]:
        """What is driven: of what is asked for, that which the target can be."""
        form = self.options.form
        why_not = {f: self._why_not(f) for f in (FORMS if form is None else (form,))}
        if form is not None and form is not Form.MANAGERS and why_not[form]:
            raise TargetError(f"cannot be driven as {form.words}: it {why_not[form]}")
        return [f for f, reason in why_not.items() if reason is None] or [Form.MANAGERS]

    def _why_not(self, form: Form) -> str | None:
        """Why it cannot be made so with all that is fixed, or what it lacks to be so."""
        need = FORMS[form].need
        try:
            target = checked_target(self._make_target, self._fixed(FORMS[form].smallest))
        except UnusableError:
            raise
        except (TargetError, ValueError) as error:
            return str(error)
        if need is not None and need not in target.capabilities:
            return f"lacks the capability {need}"
        self._shown[form] = frozenset(target.capabilities)
        self._samples[form] = target
        if form is Form.ENGINES:
            abilities = abilities_of(target)
            if not self.options.prefix_cache and not abilities.uncached:
                raise UnusableError("has no manager without a prefix cache")
            self._variants = self._wanted_variants(abilities.variants)
        self._about |= about_of(target)
        # What is to be seen of all variants is not to be seen of one.
        minimum = minimum_of(target) if self.options.variant is None else {}
        for counter, least in minimum.items():
            self._minimum[counter] = max(least, self._minimum.get(counter, 0))
        return None

    def _wanted_variants(self, there: tuple[str, ...]) -> tuple[str, ...]:
        """The managers of an engine that are driven."""
        asked = self.options.variant
        if asked is not None and asked not in there:
            raise UnusableError(f"has no variant '{asked}', expected one of {', '.join(there)}")
        return there if asked is None else (asked,)

    def _config(self, source: RandomSource, form: Form) -> PoolConfig:
        shown = self._shown.get(form, frozenset(Capability))
        config = FORMS[form].draw(source, shown, self._samples.get(form))
        if config.engine is not None:
            turn = self.episodes // len(self._forms) % len(self._variants)
            engine = msgspec.structs.replace(config.engine, variant=self._variants[turn])
            config = msgspec.structs.replace(config, engine=engine)
        return self._fixed(config)

    def _fixed(self, config: PoolConfig) -> PoolConfig:
        """The config with what the options fix."""
        options = self.options
        fixed = {name: value for name in _SIZES if (value := getattr(options, name)) is not None}
        fixed |= options.fixed_of(config.form)
        keys = options.prefix_cache and config.enable_prefix_cache
        return with_fixed(config, fixed | {"enable_prefix_cache": keys, "sanitizer": options.sanitizer})

    def _operate(
        self, judge: AnyAcceptor, generator: AnyGenerator, length: int, done: list[tuple[AnyOperation, bool]]
    ) -> None:
        """All operations of an episode; each is done, and whether with an error."""
        counts, limit = self._counted[judge.config.form], self.options.operations
        if limit is not None:
            length = min(length, max(1, limit - self.counts["operations"]))

        def do(operations: Iterable[AnyOperation]) -> None:
            for operation in operations:
                done.append((operation, False))
                result = None
                try:
                    result = judge.do(operation)
                except MisuseError:
                    done[-1] = operation, True
                else:
                    counts[DONE.get(type(operation), "others")] += 1
                generator.saw(result)

        do(_generated(generator, length))
        judge.sweep()
        do(generator.ending())
        judge.sweep()
        judge.drained()
        counts["drains"] += 1
        do(generator.closing())

    # -- the violation -------------------------------------------------------------------------------------------

    def _explained(self) -> FoundViolation | None:
        """The violation with the smallest run that shows it."""
        if self._found is None:
            return None
        try:
            return self._made_small(self._found[1])
        except TargetError:  # what was found stays found, whatever becomes of the target
            return self._as_found()

    def _made_small(self, case: Case) -> FoundViolation | None:
        first = self.replayer.run(case, patience=SHORT_PATIENCE).violation
        if first is None or self._known.fitting(first):
            return self._as_found()
        case = Case(case.config, case.operations[: first.number])
        shrinker = Shrinker(case, self.replayer.fails_like(first, self._known), self.options.shrink_seconds)
        shrinker.run()
        again = self.replayer.run(shrinker.best, describe=True, patience=self.options.patience)
        if again.violation is None or not shows(shrinker.best, again.violation, first):
            return self._as_found()
        return self._report(again.violation, shrinker.best, again.errors, shrinker.complete, True)

    def _as_found(self) -> FoundViolation | None:
        if self._found is None:
            return None
        violation, case, errors = self._found
        return self._report(violation, case, errors, False, False)

    def _report(
        self, violation: Violation, case: Case, errors: tuple[bool, ...], shrunk: bool, reproduced: bool
    ) -> FoundViolation:
        assert self._found is not None
        called = violation.operation
        if called and not violation.swept:
            called = format_item(case.operations[violation.number - 1])
        return FoundViolation(
            violation.family.value,
            violation.rule,
            violation.what,
            violation.number,
            called,
            case.config,
            case.operations,
            errors,
            violation.before,
            violation.after,
            self.episodes,
            self._found[0].number,
            shrunk,
            reproduced,
        )

    # -- verdicts ------------------------------------------------------------------------------------------------

    def _verdict(
        self, family: Family, violation: FoundViolation | None, known: Iterable[KnownVerdict]
    ) -> FamilyVerdict:
        evidence = EVIDENCE[family]
        # What happens in other forms is no evidence: nothing there could break the family.
        seen = {
            counter: sum(self._counted[form][counter] for form in OF_FORMS.get(family, FORMS))
            for counter in (*evidence.counters, *evidence.beside)
        }
        count = sum(seen[counter] for counter in evidence.counters)

        def verdict(word: str, reason: str = "") -> FamilyVerdict:
            judged = 0 if word == "not observed" else count
            return FamilyVerdict(family.value, word, judged, evidence.unit, reason, seen)

        if violation is not None and violation.family == family:
            return verdict("violated", violation.what)
        if ids := [k.finding.id for k in known if k.open and k.finding.family == family]:
            return verdict("known", ", ".join(ids))
        if evidence.needs and not self.capabilities & set(evidence.needs):
            lacked = [c for c in evidence.needs if c is not Capability.ENGINE]  # to be an engine is no way to show it
            return verdict("not observed", f"the target lacks {' and '.join(lacked)}")
        return verdict("holds") if count else verdict("not observed", f"no {evidence.unit}")


def _generated(generator: AnyGenerator, count: int) -> Iterator[AnyOperation]:
    for _ in range(count):
        yield generator.next()
