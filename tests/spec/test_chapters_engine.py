"""Chapter `engine` by hand: what managers of the field do that others do not, what none of them may do, and which
statement notices where a line of the text is forgotten."""

from __future__ import annotations

import pytest
from chapter_runs import Run, Step, without

from kvspec.model.concrete import Structure, evaluate
from kvspec.spec import load
from kvspec.spec.language.chapter import Chapter

PADDING, ONE, TWO, THREE = range(4)
NOTHING, PART, TEXT, OTHER, LONGER, STATE, NEXT = "", "t", "te", "to", "tex", "#1", "#2"
CHAPTER = load("engine")


CHAINS = (NOTHING, PART, TEXT, OTHER, LONGER, STATE, NEXT)
STATES = (STATE, NEXT)
COVERED = {(c, d) for c in CHAINS for d in CHAINS if c == d or d == NOTHING or (d not in STATES and c.startswith(d))}

STRUCTURE = Structure(
    {
        "Block": [PADDING, ONE, TWO, THREE],
        "Seq": ["a", "b", "c"],
        "Index": [0, 1],
        "Pin": ["p"],
        "Chain": [*CHAINS],
    },
    {
        ("blocks", "padding"): PADDING,
        ("blocks", "usable"): frozenset({ONE, TWO, THREE}),
        ("nothing",): NOTHING,
        ("covers",): lambda chain, part: (chain, part) in COVERED,
        ("layered",): lambda chain: chain not in STATES,
    },
)


def run(*steps: Step, chapter: Chapter = CHAPTER) -> Run:
    return Run(chapter, STRUCTURE).do(*steps)


def written(seq: str, block: int, chain: str = TEXT) -> list[Step]:
    return [("take", block, seq, 0), ("write", block, seq, 0, chain)]


PUBLISHED = [*written("a", ONE), ("publish", ONE, TEXT)]
AHEAD: list[Step] = [("begin_step",), ("take", ONE, "a", 0), ("publish_ahead", ONE, TEXT)]
LEFT = [*written("c", TWO), ("release", TWO, "c", 0)]
FORKED = [*written("a", ONE, PART), ("share", ONE, "a", 0, "b", 0)]


def test_what_is_assumed_is_true_in_the_example() -> None:
    assert [a.name for a in CHAPTER.axioms if not evaluate(a.term, STRUCTURE, {})] == []


# -- blocks ------------------------------------------------------------------------------------------------------------


def test_a_block_is_free_again_when_the_last_who_needs_it_lets_go() -> None:
    there = run(*PUBLISHED, ("match", ONE, "b", 0), ("hold", ONE, "p"), ("release", ONE, "a", 0), ("forget", ONE))
    there.do(("release", ONE, "b", 0))
    assert ONE not in there["blocks.free"]
    assert there.do(("unhold", ONE, "p")).broken == set()
    assert there["blocks.free"] == {ONE, TWO, THREE}


@pytest.mark.parametrize("last", [[], [("release", ONE, "a", 0)]], ids=["in use", "only with a key"])
def test_what_somebody_needs_or_has_a_key_is_not_handed_out(last: list[Step]) -> None:
    assert not run(*PUBLISHED, *last).can("take", ONE, "b", 0)


def test_padding_is_never_handed_out() -> None:
    assert not run().can("take", PADDING, "a", 0)


def test_a_block_that_is_handed_out_again_has_neither_content_nor_key() -> None:
    there = run(*PUBLISHED, ("release", ONE, "a", 0), ("forget", ONE), ("take", ONE, "b", 1))
    assert there["content"][ONE] == NOTHING and there["keyed"] == set() and there.broken == set()


@pytest.mark.parametrize(
    "step",
    [
        ("release", ONE, "b", 0),
        ("release", ONE, "a", 1),
        ("share", ONE, "b", 0, "c", 0),
        ("share", ONE, "a", 0, "a", 0),
        ("hold", TWO, "p"),
        ("unhold", ONE, "p"),
        ("write", ONE, "b", 0, TEXT),
        ("write", TWO, "a", 0, TEXT),
    ],
)
def test_nobody_gives_back_lends_or_writes_what_it_does_not_hold(step: Step) -> None:
    assert not run(*written("a", ONE)).can(*step)


def test_a_request_may_have_a_block_at_two_places_but_not_twice_at_one() -> None:
    there = run(*PUBLISHED, ("match", ONE, "a", 1))
    assert not there.can("match", ONE, "a", 1)
    there.do(("release", ONE, "a", 0), ("release", ONE, "a", 1))
    assert there.broken == set() and ONE not in there["blocks.free"]


# -- keys --------------------------------------------------------------------------------------------------------------


def test_two_blocks_may_have_one_key() -> None:
    there = run(*PUBLISHED, *written("b", TWO), ("publish", TWO, TEXT))
    assert there["keyed"] == {ONE, TWO} and there["key"][ONE] == there["key"][TWO] == TEXT
    there.do(("match", TWO, "c", 0), ("forget", ONE))
    assert there["keyed"] == {TWO} and there.broken == set()


@pytest.mark.parametrize(
    ("block", "key"),
    [(ONE, PART), (TWO, TEXT), (THREE, TEXT), (THREE, LONGER), (THREE, OTHER)],
    ids=["has a key", "nobody holds it", "written in part", "written in part, longer", "something else"],
)
def test_only_what_is_held_and_there_gets_a_key_and_only_one(block: int, key: str) -> None:
    there = run(*PUBLISHED, *written("b", THREE, PART), *LEFT)
    assert not there.can("publish", block, key)


def test_a_hit_may_end_inside_a_block_and_go_on_there() -> None:
    there = run(*written("a", ONE, PART), ("publish", ONE, PART), ("release", ONE, "a", 0), ("match", ONE, "b", 0))
    there.do(("write", ONE, "b", 0, TEXT), ("forget", ONE), ("publish", ONE, TEXT))
    assert there["key"][ONE] == TEXT and there.broken == set()


def test_a_part_of_what_a_block_has_may_be_its_key() -> None:
    there = run(*written("a", ONE), ("publish", ONE, PART), ("match", ONE, "b", 0))
    assert there["relies"][ONE, "b", 0] == PART
    assert not there.can("write", ONE, "b", 0, OTHER)


def test_what_is_gone_on_with_agrees_with_the_key() -> None:
    there = run(*AHEAD)
    assert not there.can("write", ONE, "a", 0, OTHER)
    assert there.can("write", ONE, "a", 0, PART) and there.can("write", ONE, "a", 0, LONGER)


def test_a_key_may_be_forgotten_while_its_block_is_in_use() -> None:
    there = run(*PUBLISHED, ("match", ONE, "b", 0), ("forget", ONE))
    assert not there.can("match", ONE, "c", 0) and not there.can("forget", ONE)
    there.do(("release", ONE, "a", 0), ("write", ONE, "b", 0, OTHER))
    assert there.broken == set()


# -- steps -------------------------------------------------------------------------------------------------------------


def test_who_matches_in_the_same_step_finds_the_block_written_when_it_ends() -> None:
    there = run(*AHEAD, ("match", ONE, "b", 0))
    assert not there.can("end_step") and there["relies"][ONE, "b", 0] == TEXT
    there.do(("write", ONE, "a", 0, PART))
    assert there["ahead"] == {ONE} and not there.can("end_step")
    there.do(("write", ONE, "a", 0, TEXT), ("end_step",))
    assert there["ahead"] == set() and there.broken == set()


def test_who_matches_ahead_may_write_the_same() -> None:
    there = run(*AHEAD, ("match", ONE, "b", 0), ("write", ONE, "b", 0, TEXT), ("write", ONE, "a", 0, TEXT))
    assert there.do(("end_step",)).broken == set()


def test_who_rewrites_a_part_goes_on_relying_on_all() -> None:
    there = run(*AHEAD, ("match", ONE, "b", 0), ("write", ONE, "b", 0, PART))
    assert there["relies"][ONE, "b", 0] == TEXT and not there.can("forget", ONE)


def test_a_key_is_published_ahead_only_inside_a_step() -> None:
    there = run(("take", ONE, "a", 0))
    assert not there.can("publish_ahead", ONE, TEXT) and not there.can("publish", ONE, TEXT)
    there.do(("begin_step",))
    assert there.can("publish_ahead", ONE, TEXT) and not there.can("begin_step")
    there.do(("end_step",))
    assert not there.can("end_step")


def test_a_block_that_nobody_holds_or_that_has_a_key_is_not_published_ahead() -> None:
    there = run(*AHEAD, *LEFT)
    assert not there.can("publish_ahead", ONE, TEXT) and not there.can("publish_ahead", TWO, TEXT)


def test_what_is_published_ahead_may_take_the_place_of_what_is_there() -> None:
    there = run(("begin_step",), *written("a", ONE, OTHER), ("publish_ahead", ONE, TEXT), ("match", ONE, "b", 0))
    assert not there.can("write", ONE, "a", 0, STATE) and not there.can("end_step")
    there.do(("write", ONE, "a", 0, TEXT), ("end_step",))
    assert there["content"][ONE] == TEXT and there.broken == set()


def test_what_is_published_ahead_takes_nothing_from_others() -> None:
    there = run(
        ("begin_step",), *written("a", ONE, OTHER), ("share", ONE, "a", 0, "b", 0), ("publish_ahead", ONE, TEXT)
    )
    assert not there.can("write", ONE, "a", 0, TEXT) and not there.can("end_step")
    assert there.do(("release", ONE, "b", 0), ("write", ONE, "a", 0, TEXT), ("end_step",)).broken == set()


def test_a_copy_of_more_than_was_hit_is_filled_with_what_its_key_says() -> None:
    there = run(*written("a", ONE, OTHER), ("publish", ONE, OTHER), ("begin_step",), ("take", TWO, "b", 0))
    there.do(("publish_ahead", TWO, TEXT), ("match", TWO, "c", 0), ("copy", ONE, TWO, "b", 0))
    assert not there.can("end_step")
    there.do(("write", TWO, "b", 0, TEXT), ("end_step",))
    assert there["content"][ONE] == OTHER and there["content"][TWO] == TEXT and there.broken == set()


def test_a_copy_of_what_the_key_says_settles_it() -> None:
    there = run(*PUBLISHED, ("begin_step",), ("take", TWO, "b", 0), ("publish_ahead", TWO, TEXT))
    assert there.do(("copy", ONE, TWO, "b", 0), ("end_step",)).broken == set()


def test_nothing_is_copied_to_where_a_key_is_already_true() -> None:
    there = run(*PUBLISHED, *written("b", TWO, OTHER), ("publish", TWO, OTHER))
    assert not there.can("copy", ONE, TWO, "b", 0)


def test_what_is_there_already_is_not_ahead() -> None:
    there = run(("begin_step",), *written("a", ONE), ("publish_ahead", ONE, TEXT))
    assert there["keyed"] == {ONE} and there["ahead"] == set()
    assert there.do(("end_step",)).broken == set()


def test_a_key_that_somebody_counts_on_is_not_taken_back_before_it_is_there() -> None:
    there = run(*AHEAD, ("match", ONE, "b", 0))
    assert not there.can("forget", ONE)
    there.do(("release", ONE, "b", 0), ("forget", ONE), ("end_step",))
    assert there["ahead"] == set() and there.broken == set()


def test_the_key_of_a_request_that_ended_before_it_wrote_has_to_go() -> None:
    there = run(*AHEAD, ("release", ONE, "a", 0))
    assert not there.can("end_step")
    there.do(("forget", ONE), ("end_step",))
    assert there["blocks.free"] == {ONE, TWO, THREE} and there.broken == set()


def test_a_fork_of_who_matched_ahead_counts_on_the_key_too() -> None:
    there = run(*AHEAD, ("match", ONE, "b", 0), ("share", ONE, "b", 0, "c", 0), ("release", ONE, "b", 0))
    assert not there.can("forget", ONE)
    assert there.do(("write", ONE, "a", 0, TEXT), ("end_step",)).broken == set()


# -- states ------------------------------------------------------------------------------------------------------------


def test_a_state_is_replaced_in_its_place_by_whoever_is_alone() -> None:
    there = run(*written("a", ONE, STATE), ("write", ONE, "a", 0, NEXT))
    assert there["content"][ONE] == NEXT and there.broken == set()


@pytest.mark.parametrize(
    "other", [("share", ONE, "a", 0, "b", 0), ("publish", ONE, STATE), ("hold", ONE, "p")], ids=lambda step: step[0]
)
def test_a_state_that_somebody_else_needs_is_not_replaced(other: Step) -> None:
    assert not run(*written("a", ONE, STATE), other).can("write", ONE, "a", 0, NEXT)


def test_a_state_that_is_published_ahead_takes_the_place_of_the_one_before() -> None:
    there = run(*written("a", ONE, STATE), ("begin_step",), ("publish_ahead", ONE, NEXT))
    assert not there.can("write", ONE, "a", 0, TEXT)
    there.do(("write", ONE, "a", 0, NEXT), ("end_step",), ("match", ONE, "b", 0))
    assert there.broken == set() and not there.can("write", ONE, "a", 0, STATE)


def test_a_state_is_matched_only_when_it_is_there() -> None:
    there = run(("begin_step",), ("take", ONE, "a", 0), ("publish_ahead", ONE, STATE))
    assert not there.can("match", ONE, "b", 0)
    there.do(("write", ONE, "a", 0, STATE), ("match", ONE, "b", 0))
    assert there.broken == set()


# -- writers -----------------------------------------------------------------------------------------------------------


def test_of_two_forks_the_first_may_go_on_and_the_second_needs_a_copy() -> None:
    there = run(*FORKED, ("write", ONE, "a", 0, TEXT))
    assert not there.can("write", ONE, "b", 0, OTHER)
    there.do(("take", TWO, "b", 0), ("copy", ONE, TWO, "b", 0), ("release", ONE, "b", 0))
    assert there["content"][TWO] == TEXT and there["content"][ONE] == TEXT
    there.do(("write", TWO, "b", 0, OTHER))
    assert there["content"][ONE] == TEXT and there.broken == set()


def test_shared_cells_may_be_written_again_with_the_same_content() -> None:
    there = run(*PUBLISHED, ("match", ONE, "b", 0), ("write", ONE, "b", 0, TEXT), ("write", ONE, "a", 0, PART))
    assert there["content"][ONE] == TEXT and there.broken == set()
    assert not there.can("write", ONE, "b", 0, OTHER)


def test_what_nobody_relies_on_may_be_replaced_behind_a_key() -> None:
    there = run(*PUBLISHED, ("forget", ONE), ("publish", ONE, PART), ("match", ONE, "b", 0))
    assert not there.can("write", ONE, "b", 0, OTHER)
    there.do(("release", ONE, "a", 0), ("write", ONE, "b", 0, OTHER))
    assert there["content"][ONE] == OTHER and there.broken == set()


def test_while_something_outside_needs_a_block_it_is_at_most_gone_on_with() -> None:
    there = run(*written("a", ONE, PART), ("hold", ONE, "p"))
    assert there.can("write", ONE, "a", 0, TEXT) and not there.can("write", ONE, "a", 0, STATE)
    assert there.do(("unhold", ONE, "p")).can("write", ONE, "a", 0, STATE)


@pytest.mark.parametrize(
    ("source", "target"),
    [(TWO, TWO), (THREE, TWO), (TWO, ONE), (ONE, THREE)],
    ids=["itself", "from what nobody holds", "to what others hold", "to what nobody holds"],
)
def test_a_copy_is_from_what_is_held_to_what_its_taker_alone_holds(source: int, target: int) -> None:
    there = run(*FORKED, ("take", TWO, "b", 0))
    assert not there.can("copy", source, target, "b", 0)
    assert there.can("copy", ONE, TWO, "b", 0) and not there.can("copy", ONE, TWO, "a", 0)


# -- lines that are forgotten ------------------------------------------------------------------------------------------


def forgetting(event: str, line: str, *steps: Step) -> set[str]:
    return run(*steps, chapter=without(CHAPTER, event, line)).broken


def test_a_key_that_stays_while_nobody_has_written_is_noticed() -> None:
    broken = forgetting("end_step", "require(self.ahead.is_empty())", *AHEAD, ("match", ONE, "b", 0), ("end_step",))
    assert {"ahead_in_step", "nothing_is_lost", "written_between_steps"} <= broken


def test_a_hit_on_a_state_that_is_not_there_is_noticed() -> None:
    line = "require(implies(self.ahead.has(block), self.layered(self.key[block])))"
    steps: list[Step] = [("begin_step",), ("take", ONE, "a", 0), ("publish_ahead", ONE, STATE), ("match", ONE, "b", 0)]
    assert "states_are_there" in forgetting("match", line, *steps)


def test_a_key_that_outlives_its_block_is_noticed() -> None:
    steps: list[Step] = [*PUBLISHED, ("release", ONE, "a", 0), ("forget", ONE), ("take", ONE, "b", 0)]
    assert {"keyed_held", "handed_out_without_key"} <= forgetting("forget", "self.keyed.discard(block)", *steps)


def test_a_publication_of_what_is_not_there_is_noticed() -> None:
    steps: list[Step] = [("take", ONE, "a", 0), ("publish", ONE, TEXT)]
    assert {"entry_truth", "written_between_steps"} <= forgetting(
        "publish", "require(self.covers(self.content[block], key))", *steps
    )


def test_a_block_whose_old_content_counts_when_it_is_handed_out_is_noticed() -> None:
    steps: list[Step] = [*written("a", ONE), ("release", ONE, "a", 0), ("take", ONE, "b", 0)]
    assert "handed_out_empty" in forgetting("take", "self.content[block] = self.nothing", *steps)
