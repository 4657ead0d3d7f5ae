"""The manifest: what is written down is read again, fits the text, and whatever does not fit is found."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from kvspec.cli.exploring import explore_scopes
from kvspec.model.exploring.outcome import Outcome, States
from kvspec.proofs.campaign import prove_chapter
from kvspec.proofs.manifest.build import hypotheses_shape
from kvspec.proofs.manifest.check import Seen, findings
from kvspec.proofs.manifest.compare import (
    BARE,
    CHANGED,
    LIVING,
    STALE,
    Accepted,
    Finding,
    accepted,
    changes,
    of_itself,
    of_outcomes,
    of_reasons,
    of_results,
    of_text,
)
from kvspec.proofs.manifest.record import (
    FOLDER,
    Bound,
    EventEntry,
    ManifestError,
    Reached,
    Record,
    load_record,
    path_of,
    text_of,
    write_record,
)
from kvspec.proofs.manifest.scopes import SCOPES
from kvspec.proofs.mutation.kill import ALIVE, Fate
from kvspec.proofs.prove import Options
from kvspec.proofs.verdicts import Result, Verdict
from kvspec.spec import CHAPTERS, load


def record_of(name: str) -> Record:
    record = load_record(name)
    assert record is not None, f"no manifest of {name}"
    return record


@pytest.fixture
def blocks() -> Record:
    return record_of("blocks")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the repository's manifests."""
    copy = tmp_path / "manifest"
    shutil.copytree(FOLDER, copy, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    return copy


# -- the repository's own ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CHAPTERS)
def test_the_manifest_of_every_chapter_fits_its_text_and_itself(name: str) -> None:
    record = record_of(name)
    assert [str(f) for f in (*of_text(record), *of_itself(record, accepted()))] == []


@pytest.mark.parametrize("name", CHAPTERS)
def test_every_invariant_has_an_obligation_a_witness_and_a_killer(name: str) -> None:
    record = record_of(name)
    assert [s.name for s in record.invariants] == [s.name for s in load(name).invariants]
    assert [s.name for s in record.invariants if not (s.obligations and s.witness)] == []
    unkilled = [f"{name}.{s.name}" for s in record.invariants if not s.killers]
    assert [id for id in unkilled if id not in accepted().no_killer] == []
    known = {f.id for f in record.mutants if f.verdict == "killed"}
    assert {id for s in (*record.invariants, *record.theorems) for id in s.killers} <= known


def test_nearly_all_mutants_are_dead_and_the_others_are_explained() -> None:
    records = [record_of(name) for name in CHAPTERS]
    assert list(of_reasons(records, accepted())) == []
    fates = [f for r in records for f in r.mutants]
    alive = {f.id for f in fates if f.verdict == ALIVE}
    assert len(fates) > 500 and len(alive) <= 0.02 * len(fates)
    assert alive == accepted().alive.keys()
    assert all(len(reason) > 20 for reason in accepted().alive.values())


@pytest.mark.parametrize("name", CHAPTERS)
def test_everything_that_is_written_down_is_proved(name: str) -> None:
    record = record_of(name)
    assert {o.verdict for o in record.obligations} == {"proved"}
    assert all(o.solvers == ("z3", "cvc5") for o in record.obligations if o.scope == "unbounded")
    assert record.hypotheses == hypotheses_shape(name, load(name))


# -- the file ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_record_is_read_as_it_was_written(name: str, tmp_path: Path) -> None:
    record = record_of(name)
    assert text_of(record) == path_of(name).read_text(encoding="utf-8")
    write_record(record, tmp_path)
    assert load_record(name, tmp_path) == record
    assert [path.name for path in tmp_path.iterdir()] == [f"{name}.json"]


def test_one_entry_stands_in_one_line(blocks: Record) -> None:
    lines = text_of(blocks).splitlines()
    statements = (*blocks.invariants, *blocks.theorems)
    entries = (
        blocks.obligations, statements, blocks.events, blocks.witnesses, blocks.explorations, blocks.mutants,
    )  # fmt: skip
    assert sum(line.startswith('    {"') for line in lines) == sum(map(len, entries))
    first, *rest = blocks.mutants
    other = text_of(replace(blocks, mutants=(replace(first, note="another"), *rest))).splitlines()
    assert sum(a != b for a, b in zip(lines, other, strict=True)) == 1


def test_a_record_of_nothing_is_read_again(tmp_path: Path, blocks: Record) -> None:
    empty = Record(1, "blocks", "", (), (), (), (), (), (), ())
    write_record(empty, tmp_path)
    assert load_record("blocks", tmp_path) == empty


def test_a_chapter_without_a_manifest_has_none(tmp_path: Path) -> None:
    assert load_record("blocks", tmp_path) is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("}\n", "", "expected a manifest of a chapter"),
        ('"schema": 1,', '"schema": "one",', "expected a manifest of a chapter"),
        ('"schema": 1,', "", "missing required field `schema`"),
        ('"schema": 1,', '"schema": 7,', "schema 7 of blocks, expected 1 of blocks"),
        ('"chapter": "blocks",', '"chapter": "lru",', "schema 1 of lru, expected 1 of blocks"),
    ],
)
def test_a_file_that_is_no_manifest(folder: Path, old: str, new: str, message: str) -> None:
    path = path_of("blocks", folder)
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(new.join(text.rsplit(old, 1)), encoding="utf-8")
    with pytest.raises(ManifestError) as error:
        load_record("blocks", folder)
    assert str(error.value).startswith(f"{path}: ") and message in str(error.value)


@pytest.mark.parametrize("text", [None, "[alive", "[living]\n", '[alive]\n"a" = 1\n'])
def test_reasons_that_cannot_be_read(folder: Path, text: str | None) -> None:
    path = folder / "reasons.toml"
    path.unlink() if text is None else path.write_text(text, encoding="utf-8")
    with pytest.raises(ManifestError) as error:
        accepted(folder)
    assert str(error.value).startswith(f"{path}: ")


# -- against the text --------------------------------------------------------------------------------------------------


def told(found: Iterable[Finding]) -> list[str]:
    return [str(f) for f in found]


@pytest.mark.parametrize(("section", "kind"), [("invariants", "invariant"), ("theorems", "theorem")])
def test_statements_that_the_manifest_does_not_know_are_stale(blocks: Record, section: str, kind: str) -> None:
    first, *rest = getattr(blocks, section)
    stale = f"stale: blocks.{first.name}"
    assert told(of_text(replace(blocks, **{section: tuple(rest)}))) == [f"{stale}: a new {kind}"]
    other = (replace(first, content="otherwise"), *rest)
    assert told(of_text(replace(blocks, **{section: other}))) == [f"{stale}: it says something else now"]
    more = (first, *rest, replace(first, name="old"))
    assert told(of_text(replace(blocks, **{section: more}))) == [f"stale: blocks.old: this {kind} is gone"]


def test_events_that_the_manifest_does_not_know_are_stale(blocks: Record) -> None:
    take, *rest = blocks.events
    assert told(of_text(replace(blocks, events=tuple(rest)))) == ["stale: blocks.take: a new event"]
    other = (replace(take, key="otherwise"), *rest)
    changed = ["stale: blocks.take: what it rests on has changed"]
    assert told(of_text(replace(blocks, events=other))) == changed
    more = (take, *rest, EventEntry("give", "0"))
    assert told(of_text(replace(blocks, events=more))) == ["stale: blocks.give: this event is gone"]


def test_mutants_that_were_not_judged_on_this_text_are_stale(blocks: Record) -> None:
    first, second, *rest = blocks.mutants
    total = len(blocks.mutants)
    for mutants, words in (
        ((first, *rest), f"1 of {total} mutants not judged on this text ("),
        ((first, replace(second, key="otherwise"), *rest), f"1 of {total} mutants not judged on this text ("),
        ((*rest, replace(second, id="blocks.x: y")), f"2 of {total} mutants not judged on this text, 1 gone ("),
        ((*blocks.mutants, replace(second, id="blocks.x: y")), f"0 of {total} mutants not judged on this text, 1 gone"),
    ):
        (finding,) = of_text(replace(blocks, mutants=tuple(mutants)))
        assert finding.kind == STALE and finding.what.startswith(f"mutants: {words}")


# -- against what ran --------------------------------------------------------------------------------------------------


def results_of(record: Record) -> list[Result]:
    """What a run would say that comes out as it is written down."""
    return [
        Result(o.id, record.chapter, "", "", "", "", "", Verdict(o.verdict), o.scope, {}, 0.0)
        for o in record.obligations
    ]


def test_a_run_that_comes_out_as_it_is_written_down_fits(blocks: Record) -> None:
    assert list(of_results(blocks, results_of(blocks))) == []


def test_a_verdict_that_has_changed(blocks: Record) -> None:
    first, *rest = blocks.obligations
    was = replace(blocks, obligations=(replace(first, verdict="refuted", scope="2 blocks"), *rest))
    (finding,) = of_results(was, results_of(blocks))
    assert finding.kind == CHANGED
    assert finding.what == f"init/can_start: proved ({first.scope}), was refuted (2 blocks)"
    (scope_only,) = of_results(replace(blocks, obligations=(replace(first, scope="other"), *rest)), results_of(blocks))
    assert scope_only.kind == CHANGED


def test_obligations_that_are_new_or_gone(blocks: Record) -> None:
    results = results_of(blocks)
    fewer = replace(blocks, obligations=blocks.obligations[1:])
    assert told(of_results(fewer, results)) == ["stale: blocks.init/can_start: a new obligation"]
    assert told(of_results(blocks, results[1:])) == ["stale: blocks.init/can_start: this obligation is gone"]


def outcomes_of(record: Record) -> list[Outcome]:
    return [
        Outcome(e.scope, States(e.states), e.distinct, e.generated, e.depth, (), True, covers=e.covers or None)
        for e in record.explorations
    ]


def test_an_exploration_that_counts_otherwise(blocks: Record) -> None:
    assert list(of_outcomes(blocks, outcomes_of(blocks))) == []
    first, *rest = blocks.explorations
    for change in ({"distinct": 99}, {"generated": 99}, {"depth": 99}, {"covers": "everything"}):
        was = replace(blocks, explorations=(replace(first, **change), *rest))
        (finding,) = of_outcomes(was, outcomes_of(blocks))
        assert finding.kind == CHANGED and finding.what.startswith(f"exploration of {first.scope}: {first.distinct} s")
    unknown = replace(blocks, explorations=tuple(rest))
    assert told(of_outcomes(unknown, outcomes_of(blocks))) == [
        f"stale: blocks.exploration of {first.scope}: not in the manifest"
    ]


# -- against itself ----------------------------------------------------------------------------------------------------

NOTHING = Accepted()


def bare(record: Record, reasons: Accepted = NOTHING) -> list[str]:
    found = list(of_itself(record, reasons))
    assert {f.kind for f in found} <= {BARE}
    return [f.what for f in found]


@pytest.mark.parametrize("section", ["invariants", "theorems"])
@pytest.mark.parametrize(
    ("change", "lacks"),
    [
        ({"obligations": 0}, "no obligation"),
        ({"witness": None}, "no witness"),
        ({"killers": ()}, "no killer"),
        ({"witness": None, "killers": ()}, "no witness, no killer"),
    ],
)
def test_a_statement_that_nothing_speaks_for_is_bare(
    blocks: Record, section: str, change: dict[str, object], lacks: str
) -> None:
    first, *rest = getattr(blocks, section)
    assert bare(blocks) == []
    assert bare(replace(blocks, **{section: (replace(first, **change), *rest)})) == [f"{first.name}: {lacks}"]


@pytest.mark.parametrize("section", ["invariants", "theorems"])
def test_a_statement_may_have_no_killer_for_a_reason(blocks: Record, section: str) -> None:
    first, *rest = getattr(blocks, section)
    reasons = Accepted(no_killer={f"blocks.{first.name}": "it says it all"})
    unkilled = replace(blocks, **{section: (replace(first, killers=()), *rest)})
    assert bare(unkilled, reasons) == [] and bare(unkilled) == [f"{first.name}: no killer"]
    stale = Finding(STALE, "blocks", f"{first.name}: a reason for a statement that has a killer")
    assert list(of_itself(blocks, reasons)) == [stale]


def test_an_invariant_is_seen_broken_in_a_scope_that_is_explored(blocks: Record) -> None:
    first, *rest = blocks.invariants
    unseen = replace(blocks, invariants=(replace(first, bound=None), *rest))
    reasons = Accepted(no_bound={f"blocks.{first.name}": "nobody knows how"})
    assert bare(unseen) == [f"{first.name}: no exploration sees a mistake break it"]
    assert bare(unseen, reasons) == []
    assert first.bound is not None
    far = replace(blocks, invariants=(replace(first, bound=replace(first.bound, scope="blocks=99")), *rest))
    assert bare(far) == [f"{first.name}: blocks=99 is not explored, and only there it shows"]
    stale = Finding(STALE, "blocks", f"{first.name}: a reason for an invariant that has a bound")
    assert list(of_itself(blocks, reasons)) == [stale]


def test_an_event_that_never_happens_and_a_witness_that_nobody_reaches_are_bare(blocks: Record) -> None:
    take, *rest = blocks.events
    assert bare(replace(blocks, events=(replace(take, witness=None), *rest))) == [
        "take: no run in which it happens and changes something"
    ]
    *others, last = blocks.witnesses
    assert bare(replace(blocks, witnesses=(*others, replace(last, witness=None)))) == ["exhausted: no run reaches it"]


def test_a_mutant_that_is_alive_needs_a_reason(blocks: Record) -> None:
    first, *rest = blocks.mutants
    lives = replace(blocks, mutants=(replace(first, verdict=ALIVE, by="", killer=""), *rest))
    kinds = {(f.kind, f.what) for f in of_itself(lives, NOTHING)}
    assert (LIVING, first.id.removeprefix("blocks.")) in kinds
    assert LIVING not in {f.kind for f in of_itself(lives, Accepted(alive={first.id: "so it is"}))}


# -- reasons -----------------------------------------------------------------------------------------------------------


def mutants(alive: int, dead: int) -> tuple[Fate, ...]:
    return tuple(Fate(f"blocks.x: {n}", "", ALIVE if n < alive else "killed") for n in range(alive + dead))


def test_a_reason_for_nothing_is_stale(blocks: Record) -> None:
    reasons = Accepted(alive={"blocks.x: 7": "why", "lru.x: 1": "of a chapter that was not looked at"})
    record = replace(blocks, mutants=mutants(0, 10))
    assert told(of_reasons([record], reasons)) == ["stale: blocks.x: 7: a reason for a mutant that is not alive"]


@pytest.mark.parametrize(("alive", "dead", "too_many"), [(2, 98, False), (3, 97, True), (1, 49, False), (1, 48, True)])
def test_at_most_two_in_a_hundred_mutants_may_live(blocks: Record, alive: int, dead: int, too_many: bool) -> None:
    record = replace(blocks, mutants=mutants(alive, dead))
    reasons = Accepted(alive={f.id: "why" for f in record.mutants if f.verdict == ALIVE})
    found = told(of_reasons([record], reasons))
    assert found == ([f"alive: all.{alive} of {alive + dead} mutants, at most 2 in 100 may be"] if too_many else [])


# -- differences -------------------------------------------------------------------------------------------------------


def test_a_difference_is_a_line_for_each_entry(blocks: Record) -> None:
    assert list(changes(blocks, blocks)) == []
    first, *rest = blocks.obligations
    _, *events = blocks.events
    small, *scopes = blocks.explorations
    shared, *others = blocks.witnesses
    assert shared.witness is not None
    new = replace(
        blocks,
        hypotheses="∀∃",
        obligations=(replace(first, scope="shown with 9 blocks"), *rest),
        events=(*events, EventEntry("give", "0")),
        explorations=(replace(small, distinct=99), *scopes),
        witnesses=(replace(shared, witness=None), *others),
    )
    assert set(changes(blocks, new)) == {
        "~ hypotheses blocks: shape ∀ -> ∀∃",
        f"~ obligation {first.id}: scope {first.scope} -> shown with 9 blocks",
        "+ event give",
        "- event take",
        f"~ exploration blocks {small.scope} {small.states}: distinct {small.distinct} -> 99",
        f"~ witness {shared.name}: witness {msgspec.to_builtins(shared.witness)} -> nothing",
    }


def test_what_has_gone_from_a_list_and_what_has_come_to_it(blocks: Record) -> None:
    first, *rest = blocks.invariants
    killers = (*first.killers[1:], "blocks.x: y")
    new = replace(blocks, invariants=(replace(first, bound=None, killers=killers), *rest))
    (line,) = changes(blocks, new)
    assert line.startswith(f"~ invariant {first.name}: ")
    assert f"killers -[{first.killers[0]}] +[blocks.x: y]" in line and "bound {" in line and "} -> nothing" in line


def test_what_was_judged_again_and_came_out_as_before_is_counted(blocks: Record) -> None:
    first, *rest = blocks.invariants
    take, *events = blocks.events
    new = replace(
        blocks,
        invariants=(replace(first, content="otherwise"), *rest),
        events=(replace(take, key="otherwise"), *events),
    )
    assert list(changes(blocks, new)) == ["~ 2 of blocks judged again, as before"]


def test_a_new_manifest_is_all_new(blocks: Record) -> None:
    lines = list(changes(None, blocks))
    assert all(line.startswith("+ ") for line in lines)
    sections = (blocks.obligations, blocks.invariants, blocks.theorems, blocks.events, blocks.mutants)
    assert len(lines) == 1 + sum(map(len, (*sections, blocks.explorations, blocks.witnesses)))


# -- all together ------------------------------------------------------------------------------------------------------


@cache
def ran() -> Seen:
    """What comes out of the chapter."""
    results = prove_chapter("blocks", load("blocks"), Options())
    return Seen(results, explore_scopes("blocks", [SCOPES], lambda outcome: None))


def found(folder: Path, seen: Seen | None = None) -> list[Finding]:
    return findings({"blocks": seen or ran()}, folder)


def test_what_is_found_of_a_chapter(blocks: Record, folder: Path) -> None:
    assert found(folder) == []
    take, *rest = blocks.events
    write_record(replace(blocks, events=(replace(take, key="otherwise", witness=None), *rest)), folder)
    assert {f.kind for f in found(folder)} == {STALE, CHANGED}
    path_of("blocks", folder).unlink()
    assert told(found(folder)) == ["stale: blocks.manifest: there is none (kvspec manifest --update)"]


def first(**changes: Any) -> Callable[[Any], Any]:
    """The first entry of a section, written otherwise."""
    return lambda entries: (replace(entries[0], **changes), *entries[1:])


@pytest.mark.parametrize(
    ("section", "change"),
    [
        ("invariants", first(killers=("blocks.take: nothing at all",))),
        ("invariants", first(killers=())),
        ("invariants", first(obligations=99)),
        ("invariants", first(witness=Reached("moon", -5))),
        ("invariants", first(bound=Bound("nobody", "blocks=2,holders=1", 0))),
        ("theorems", first(witness=None)),
        ("events", first(witness=Reached("blocks=2,holders=1", 17))),
        ("witnesses", first(witness=Reached("blocks=2,holders=1", 17))),
        ("obligations", first(solvers=("oracle",))),
        ("obligations", first(scope="unbounded, of course")),
        ("obligations", first(shape="∀∃∀")),
        ("explorations", first(distinct=99)),
        ("explorations", lambda entries: (*entries, replace(entries[0], scope="blocks=99"))),
        ("mutants", first(verdict="banana")),
        ("mutants", first(killer="blocks.take/nothing_of_the_kind")),
        ("mutants", first(by="oracle")),
        ("mutants", first(verdict="equivalent")),
        ("mutants", lambda entries: (*entries, *entries[:3])),
    ],
)
def test_what_is_written_by_hand_is_found(
    section: str, change: Callable[[Any], Any], blocks: Record, folder: Path
) -> None:
    write_record(replace(blocks, **{section: change(getattr(blocks, section))}), folder)
    assert CHANGED in {f.kind for f in found(folder)} or STALE in {f.kind for f in found(folder)}


def test_a_scope_that_is_explored_no_more_is_found(folder: Path) -> None:
    fewer = Seen(ran().results, ran().outcomes[1:])
    assert {f.kind for f in found(folder, fewer)} >= {STALE, BARE}
    nothing = Seen(ran().results, [])
    assert {f.kind for f in found(folder, nothing)} >= {STALE, BARE}


@pytest.mark.parametrize("table", ["no_bound", "no_killer"])
@pytest.mark.parametrize("name", ["blocks.gone", "nochapter.foo"])
def test_a_reason_for_what_is_not_there_is_found(table: str, name: str, blocks: Record) -> None:
    reasons = Accepted(**{table: {name: "it was there once"}})
    assert [f.what for f in of_reasons([blocks], reasons)] == [
        f"{name.partition('.')[2]}: a reason for a statement that is not there"
    ]


def test_larger_scopes_than_those_of_the_manifest_are_nobodys_promise(blocks: Record, folder: Path) -> None:
    results, outcomes = ran().results, ran().outcomes
    assert len(outcomes) == len(SCOPES["blocks"])
    larger = Outcome("blocks=9", States.CANONICAL, 1, 1, 1, (), True)
    assert found(folder, Seen(results, [*outcomes, larger])) == []
    assert found(folder, Seen(results, [larger, *outcomes[1:]])) != []
