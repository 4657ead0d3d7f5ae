"""Cases of the field (B...), told as runs of chapter `linear_state`: what is allowed, what is forbidden, and what is
broken where a line of the text is forgotten."""

from __future__ import annotations

import linecache
from typing import Any

import pytest

from kvspec.model.concrete import NotEnabled, State, Structure, Variant, evaluate, fire, initial
from kvspec.spec import load
from kvspec.spec.language.chapter import Chapter
from kvspec.spec.language.terms import Term
from kvspec.spec.language.traced import Site

PADDING, ONE, TWO, THREE = range(4)
NONE, FOUR, EIGHT, TEN = ("".join("abcdefghij"[:n]) for n in (0, 4, 8, 10))
"""States are those of these tokens."""

CHAPTER = load("linear_state")


def pool() -> Structure:
    statics: dict[tuple[str, ...], Any] = {
        ("slots", "ids", "padding"): PADDING,
        ("slots", "ids", "usable"): frozenset({ONE, TWO, THREE}),
        ("nothing",): NONE,
        ("longer",): lambda c, d: c != d and c.startswith(d),
    }
    carriers: dict[str, list[Any]] = {
        "StateSlot": [PADDING, ONE, TWO, THREE],
        "Seq": ["a", "b"],
        "Chain": [NONE, FOUR, EIGHT, TEN],
    }
    return Structure(carriers, statics)


class Run:
    """A run in a small pool; after each step it is noted which statements are false."""

    def __init__(self, chapter: Chapter = CHAPTER) -> None:
        self.chapter, self.structure = chapter, pool()
        self.state: State = initial(chapter, self.structure)
        self.broken: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        path = tuple(name.split("."))
        return self.state.get(path, frozenset())

    @property
    def free(self) -> frozenset[int]:
        return frozenset(self["slots.ids.free"])

    def owners(self, slot: int) -> set[Variant]:
        return set(self["slots.ids.holders"][slot])

    def can(self, name: str, *args: Any) -> bool:
        try:
            fire(self.chapter.event(name), self.structure, self.state, args)
        except NotEnabled:
            return False
        return True

    def do(self, *steps: tuple[Any, ...]) -> Run:
        for name, *args in steps:
            event = self.chapter.event(name)
            before, values = self.state, dict(zip(event.parameters, args, strict=True))
            self.state = fire(event, self.structure, before, tuple(args))
            self.look(name, before, values)
        return self

    def look(self, name: str, before: State, values: dict[Term, Any]) -> None:
        for statement in self.chapter.invariants:
            if not evaluate(statement.term, self.structure, self.state):
                self.broken.add(statement.name)
        for theorem in self.chapter.theorems:
            told = [self.state, {}] if theorem.after is None else [before, values]
            if theorem.after in (None, name) and not evaluate(theorem.term, self.structure, *told):
                self.broken.add(theorem.name)


def without(event: str, *lines: str) -> Chapter:
    """The chapter whose event forgets these lines, also where they stand in a helper."""
    left_out = {s.number for s in CHAPTER.event(event).sites if line_of(s) in lines}
    assert {line_of(s) for s in CHAPTER.event(event).sites} >= set(lines)
    return CHAPTER.with_event(event, lambda site: None if site.number in left_out else site.terms)


def line_of(site: Site) -> str:
    return linecache.getline(site.where.file, site.where.line).strip()


def saved(seq: str, slot: int, key: str) -> list[tuple[Any, ...]]:
    """A checkpoint from its reservation to its commit."""
    return [("reserve", seq, slot, key), ("copy_started", seq, slot), ("copy_done", seq, slot), ("commit", seq, slot)]


RESTORED = [("restore_started", "b"), ("restore_done", "b")]
CHECKPOINT = [("acquire", "a", ONE), ("step", "a", FOUR), *saved("a", TWO, FOUR), ("release", "a")]
"""Slot 2 holds the state of four tokens; slots 1 and 3 are free, and 1 has been used."""

MATCHED = [*CHECKPOINT, ("acquire", "b", ONE), ("match", "b", FOUR)]


def test_a_run_from_a_checkpoint() -> None:
    run = Run().do(*MATCHED, *RESTORED, ("step", "b", EIGHT), *saved("b", THREE, EIGHT))
    assert run["content"][ONE] == EIGHT and {ONE, TWO, THREE} <= run["clean"]
    assert run["entry"] == {FOUR: TWO, EIGHT: THREE}
    run.do(("release", "b"), ("evict_oldest", FOUR), ("evict", EIGHT))
    assert run.free == {ONE, TWO, THREE}
    assert run.broken == set()


# -- B07: a request is cancelled between match and admission -----------------------------------------------------------
# A request that is cancelled between match and admission leaves the slot that it had taken to nobody.


def test_who_matches_has_a_slot_of_its_own_before() -> None:
    run = Run().do(*CHECKPOINT)
    assert not run.can("match", "b", FOUR)
    run.do(("acquire", "b", ONE), ("match", "b", FOUR))
    assert run.owners(ONE) == {Variant("live", ("b",))}


@pytest.mark.parametrize("copy", [[], [("restore_started", "b"), ("restore_failed", "b")], RESTORED])
def test_an_abort_at_any_stage_gives_the_slot_back(copy: list[tuple[str, ...]]) -> None:
    run = Run().do(*MATCHED, *copy, ("release", "b"))
    assert run.free == {ONE, THREE} and run["waiting"] == set()
    assert run.can("evict", FOUR) and run.broken == set()


def test_while_a_copy_runs_it_has_to_fail_first() -> None:
    run = Run().do(*MATCHED, ("restore_started", "b"))
    assert not run.can("release", "b") and not run.can("start_over", "b")
    assert run.can("restore_failed", "b")


def test_a_release_that_keeps_the_slot_is_noticed() -> None:
    faulty = without("release", "self.slots.deallocate(self.live[seq], StateOwner.live(seq))")
    run = Run(faulty).do(*CHECKPOINT)
    assert {"live_running", "released_is_free"} <= run.broken


def test_a_match_without_a_slot_is_noticed() -> None:
    run = Run(without("match", "require(self.running.has(seq))")).do(*CHECKPOINT, ("match", "b", FOUR))
    assert "waiting_pinned" in run.broken


# -- B08: admission refuses behind the match ---------------------------------------------------------------------------
# A request that is matched and then refused is as if it had not come, however often it does.


def test_a_refusal_leaves_nothing_behind() -> None:
    run = Run().do(*CHECKPOINT)
    before = {name: run[name] for name in ("slots.ids.free", "running", "waiting", "cached", "entry", "clean")}
    for _ in range(3):
        run.do(("acquire", "b", ONE), ("match", "b", FOUR), ("release", "b"))
        assert {name: run[name] for name in before} == before
        assert not any(run["pins"].values())
    assert run.broken == set()


def test_a_pin_that_stays_is_noticed() -> None:
    faulty = without("release", "self.pins[self.entry[self.at[seq]]].discard(seq)")
    run = Run(faulty).do(*MATCHED, ("release", "b"))
    assert not run.can("evict", FOUR)
    assert {"pinned_waiting", "idle_can_go"} <= run.broken


def test_a_sequence_that_still_waits_is_noticed() -> None:
    run = Run(without("release", "self.waiting.discard(seq)")).do(*MATCHED, ("release", "b"))
    assert {"waiting_pinned", "released_is_free"} <= run.broken


# -- B26: what is pinned is evicted ------------------------------------------------------------------------------------
# A checkpoint goes only if nobody waits for it, and no copy to it or from it is under way.


def test_what_is_waited_for_stays_until_it_has_been_restored() -> None:
    run = Run().do(*MATCHED)
    assert not run.can("evict", FOUR)
    run.do(("restore_started", "b"))
    assert not run.can("evict", FOUR) and not run.can("evict_oldest", FOUR)
    run.do(("restore_done", "b"))
    assert run.can("evict", FOUR) and run.broken == set()


def test_what_is_being_saved_is_nothing_that_could_be_evicted() -> None:
    run = Run().do(("acquire", "a", ONE), ("step", "a", FOUR))
    for step in saved("a", TWO, FOUR):
        assert not run.can("evict", FOUR)
        run.do(step)
    assert run.can("evict", FOUR)


def test_another_checkpoint_goes_instead() -> None:
    run = Run().do(("acquire", "a", ONE), ("step", "a", FOUR), *saved("a", TWO, FOUR))
    run.do(("step", "a", EIGHT), *saved("a", THREE, EIGHT), ("match", "a", FOUR))
    run.do(("restore_started", "a"), ("restore_done", "a"), ("match", "a", FOUR))
    assert not run.can("evict_oldest", FOUR)
    assert run.do(("evict_oldest", EIGHT)).broken == set()


@pytest.mark.parametrize("event", ["evict", "evict_oldest"])
def test_an_eviction_that_ignores_pins_is_noticed(event: str) -> None:
    cached_and_unpinned = "require(self.evictable(key))"

    def only_cached(site: Site) -> tuple[Term, ...]:
        return (site.terms[0].args[0],) if line_of(site) == cached_and_unpinned else site.terms

    run = Run(CHAPTER.with_event(event, only_cached)).do(*MATCHED, (event, FOUR))
    assert "waiting_pinned" in run.broken


# -- B46: a boundary where no step ended is saved ----------------------------------------------------------------------
# A checkpoint is there only for a position where a step ended: what was passed cannot be saved any more.

PASSED = (("acquire", "a", ONE), ("step", "a", FOUR), ("reserve", "a", TWO, EIGHT), ("step", "a", TEN))


def test_what_a_step_has_passed_is_never_copied() -> None:
    run = Run().do(*PASSED)
    assert not run.can("copy_started", "a", TWO) and not run.can("commit", "a", TWO)
    assert not run.can("reserve", "a", THREE, EIGHT)
    assert run.can("reserve", "a", THREE, TEN)
    run.do(("abort", "a", TWO))
    assert TWO in run.free and run.broken == set()


def test_a_hit_ends_at_the_boundary_that_has_a_state() -> None:
    run = Run().do(("acquire", "a", ONE), ("step", "a", FOUR), *saved("a", TWO, FOUR), ("step", "a", TEN))
    run.do(("acquire", "b", THREE))
    assert [key for key in (FOUR, EIGHT, TEN) if run.can("match", "b", key)] == [FOUR]


def test_a_copy_of_another_position_is_noticed() -> None:
    run = Run(without("copy_started", "require(self.key[slot] == self.at[seq])")).do(*PASSED)
    run.do(("copy_started", "a", TWO))
    assert run.broken == {"copying_source"}
    run.do(("copy_done", "a", TWO), ("commit", "a", TWO))
    assert {"copied_truth", "copy_is_exact", "checkpoint_truth"} <= run.broken


def test_a_step_while_the_state_is_copied_is_noticed() -> None:
    copying = [("acquire", "a", ONE), ("step", "a", FOUR), *saved("a", TWO, FOUR)[:2]]
    assert not Run().do(*copying).can("step", "a", EIGHT)
    faulty = without("step", "require(~self.being_saved(seq))")
    run = Run(faulty).do(*copying, ("step", "a", EIGHT), ("copy_done", "a", TWO))
    assert {"copying_source", "copied_truth"} <= run.broken


def test_a_commit_before_the_copy_is_noticed() -> None:
    run = Run(without("commit", "require(self.copied.has(slot))"))
    run.do(*PASSED[:3], ("commit", "a", TWO))
    assert "checkpoint_truth" in run.broken


# -- B47: the first step comes before the restore ----------------------------------------------------------------------
# The slot that a request gets holds the state of somebody else, until it is zeroed or restored.


def test_a_step_is_possible_only_behind_the_restore() -> None:
    run = Run().do(*MATCHED)
    assert not run.can("step", "b", EIGHT)
    run.do(("restore_started", "b"))
    assert not run.can("step", "b", EIGHT) and ONE not in run["clean"]
    run.do(("restore_done", "b"))
    assert run["content"][ONE] == FOUR and ONE in run["clean"]
    assert run.do(("step", "b", EIGHT)).broken == set()


def test_behind_a_restore_that_failed_there_is_none_either() -> None:
    run = Run().do(*MATCHED, ("restore_started", "b"), ("restore_failed", "b"))
    assert not run.can("step", "b", EIGHT)
    assert run.do(*RESTORED).can("step", "b", EIGHT)


def test_no_token_is_gone_over_twice() -> None:
    run = Run().do(*MATCHED, *RESTORED)
    assert [c for c in (NONE, FOUR, EIGHT, TEN) if run.can("step", "b", c)] == [EIGHT, TEN]


def test_who_gives_the_match_up_starts_from_nothing() -> None:
    run = Run().do(*MATCHED, ("start_over", "b"), ("step", "b", TEN))
    assert run["content"][ONE] == TEN and run.can("evict", FOUR) and run.broken == set()


@pytest.mark.parametrize(
    ("event", "line", "broken"),
    [
        ("step", "require(~self.waiting.has(seq))", {"waiting_pinned", "stepped_is_exact"}),
        ("match", "self.waiting.add(seq)", {"live_truth", "pinned_waiting", "matched_is_exact"}),
        ("restore_done", "self.content[target] = self.content[source]", {"live_truth", "restored_is_exact"}),
        ("acquire", "self.content[slot] = self.nothing", {"live_truth", "acquired_is_zero"}),
    ],
)
def test_a_state_that_is_not_restored_is_noticed(event: str, line: str, broken: set[str]) -> None:
    run = Run(without(event, line)).do(*MATCHED)
    for step in [("step", "b", EIGHT), *RESTORED]:
        if run.can(*step):
            run.do(step)
    assert broken <= run.broken
