"""Scopes are words that anybody can type; what makes no sense is said in one line."""

from __future__ import annotations

import pytest

from kvspec.model.concrete import evaluate
from kvspec.model.exploring.instances import instances
from kvspec.model.exploring.outcome import States
from kvspec.model.exploring.plain import explore
from kvspec.model.exploring.scopes import DEFAULTS, Scope, ScopeError
from kvspec.model.world import NOTHING
from kvspec.spec import CHAPTERS, UnknownChapter, load


def test_every_chapter_with_state_has_words() -> None:
    assert set(DEFAULTS) == {name for name in CHAPTERS if load(name).variables}


@pytest.mark.parametrize("name", DEFAULTS)
def test_the_defaults_of_a_chapter_are_a_scope(name: str) -> None:
    scope = Scope.parse("", name)
    chapter = load(name)
    assert set(scope.structure.carriers) == {s.name for s in chapter.sorts.values() if s.kind in ("id", "position")}
    assert all(found for sort, found in scope.structure.carriers.items() if sort != "Pin")
    assert set(scope.structure.statics) == set(chapter.statics)
    assert all(evaluate(a.term, scope.structure, {}) for a in chapter.axioms)
    assert instances(chapter, scope.structure)
    assert Scope.parse(scope.text, name).text == scope.text


@pytest.mark.parametrize("name", ["keys", "blocks", "handles", "free_list", "usage"])
def test_everything_happens_in_the_default_scope(name: str) -> None:
    scope = Scope.parse("", name)
    found = explore(load(name), scope.structure, States.CANONICAL, given=scope.given)
    assert found.complete and found.violation is None
    assert set(found.fired) == set(load(name).event_names)
    assert {w.name for w in load(name).witnesses} <= set(found.reached)


def test_words_count_what_they_name() -> None:
    carriers = Scope.parse("blocks=5, seqs=3, len=2, pins=2", "sequences").structure.carriers
    assert {name: len(found) for name, found in carriers.items()} == {
        "Block": 5, "Seq": 3, "Index": 3, "Chain": 4, "Pin": 2,
    }  # fmt: skip


def test_chains_are_the_prefixes_of_the_tokens() -> None:
    scope = Scope.parse("len=2,block_size=2,tokens=1.2.3/1.2.4.5", "sequences")
    chains = scope.structure.carriers["Chain"]
    assert sorted(map(repr, chains)) == sorted(["[]", "[1]", "[1 2]", "[1 2 3]", "[1 2 4]", "[1 2 4 5]"])
    by_text = {repr(c): c for c in chains}
    covers, full, depth, parent = (
        scope.structure.statics[path] for path in [("cache", "covers"), ("cache", "full"), ("depth",), ("parent",)]
    )
    assert covers(by_text["[1 2]"], by_text["[1]"]) and not covers(by_text["[1 2 3]"], by_text["[1 2]"])
    assert [text for text, c in by_text.items() if full(c)] == ["[1 2]", "[1 2 4 5]"]
    assert (depth(by_text["[1]"]), depth(by_text["[1 2 3]"])) == (0, 1)
    assert parent(by_text["[1 2 3]"]) is by_text["[1 2]"] and parent(NOTHING) is NOTHING


def test_a_pool_with_one_state_slot_has_no_recurrent_state() -> None:
    linear = ("ranks", "linear")
    assert Scope.parse("slots=1", "pool").structure.statics[linear] is False
    pool = Scope.parse("slots=2,ranks=3,units=4,len=4,tokens=1.2.3.4,stride=2", "pool").structure
    assert pool.statics[linear] is True
    assert [len(pool.carriers[sort]) for sort in ("Rank", "Single", "StateSlot")] == [3, 4, 2]
    resumable = pool.statics["ranks", "resumable"]
    assert [repr(c) for c in pool.carriers["Chain"] if resumable(c)] == ["[1 2]", "[1 2 3 4]"]


def test_callers_need_different_numbers_of_blocks() -> None:
    needs = Scope.parse("requests=3", "admission").structure.statics["needs",]
    assert [needs(f"request{n}") for n in range(3)] == [1, 2, 3]


def test_two_chains_share_their_first_block_by_default() -> None:
    assert Scope.parse("len=3", "sequences").text.count("tokens=1.2.3/1.5.6") == 1
    assert "tokens=1/2" in Scope.parse("len=1", "sequences").text


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("blocks=4", "slots", "slots: the chapter has no state: there is nothing to explore"),
        ("blocs=4", "sequences", "scope: unknown word 'blocs', expected one of blocks, seqs"),
        ("handles=4", "sequences", "scope: chapter sequences has no handles, expected one of blocks"),
        ("blocks", "sequences", "scope: 'blocks', expected word=value"),
        ("blocks=0", "sequences", "scope: blocks=0, expected a number of blocks, one of them padding, from 2 to"),
        ("blocks=1", "blocks", "scope: blocks=1, expected a number of blocks, one of them padding, from 2 to"),
        ("seqs=0", "sequences", "scope: seqs=0, expected a number from 1 to"),
        ("seqs=-1", "sequences", "scope: seqs=-1, expected a number from 1 to"),
        ("seqs=two", "sequences", "scope: seqs=two, expected a number from 1 to"),
        ("blocks=1000000", "sequences", "scope: blocks=1000000, expected"),
        ("blocks=3,blocks=4", "sequences", "scope: 'blocks' is given twice, expected each word once"),
        ("tokens=1.x", "sequences", "scope: tokens=1.x, expected numbers with dots between them, such as 1.2/1.3"),
        ("tokens=", "sequences", "scope: tokens=, expected numbers"),
        ("len=1,tokens=1.2", "sequences", "scope: tokens=1.2: 2 tokens in one sequence, expected at most 1"),
    ],
)
def test_what_makes_no_sense_is_said_in_one_line(text: str, name: str, message: str) -> None:
    with pytest.raises(ScopeError) as caught:
        Scope.parse(text, name)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_an_axiom_that_is_false_in_the_scope_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvspec.model.exploring import scopes

    monkeypatch.setitem(scopes._MEANINGS, "full", lambda world, chain: chain is NOTHING)  # type: ignore[attr-defined]
    with pytest.raises(ScopeError, match="axiom full_is_maximal is false"):
        Scope.parse("", "prefix_cache")


def test_other_token_sequences_of_engines_than_the_first_are_states() -> None:
    scope = Scope.parse("block_size=2,tokens=1.2/3", "engine")
    layered = scope.structure.statics["layered",]
    chains = scope.structure.carriers["Chain"]
    assert [repr(c) for c in chains if layered(c)] == ["[]", "[1]", "[1 2]"]
    assert [repr(c) for c in chains if not layered(c)] == ["[3]"]


def test_states_of_engines_have_no_parts() -> None:
    with pytest.raises(ScopeError, match="axiom states_are_whole is false"):
        Scope.parse("block_size=2,tokens=1.2/3.4", "engine")


def test_an_unknown_chapter_is_one() -> None:
    with pytest.raises(UnknownChapter):
        Scope.parse("", "sequence")
