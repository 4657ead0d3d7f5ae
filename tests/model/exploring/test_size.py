"""What a scope takes to be made ready is known before anything is made ready."""

from __future__ import annotations

import pytest

from kvspec.model.batched import Explorer, walk
from kvspec.model.concrete import Structure
from kvspec.model.exploring.instances import count_instances, instances
from kvspec.model.exploring.outcome import States
from kvspec.model.exploring.quotient import Quotient
from kvspec.model.exploring.scopes import DEFAULTS, Scope, ScopeError
from kvspec.model.exploring.size import MOST_PARTS, TooLarge, check_exchanges, check_formulas, check_statements
from kvspec.proofs.manifest.scopes import DEEP, SCOPES
from kvspec.spec import load
from kvspec.spec.language import terms as T
from kvspec.spec.language.terms import Sort


@pytest.mark.parametrize(("name", "text"), [(n, t) for table in (SCOPES, DEEP) for n in table for t in table[n]])
def test_every_scope_that_is_explored_is_small_enough(name: str, text: str) -> None:
    scope = Scope.parse(text, name)
    check_formulas(load(name), scope.structure)
    check_exchanges(Quotient(load(name), scope.structure, States.CANONICAL))


@pytest.mark.parametrize("name", DEFAULTS)
def test_instances_are_counted_without_being_made(name: str) -> None:
    structure = Scope.parse("", name).structure
    assert count_instances(load(name), structure) == len(instances(load(name), structure))


@pytest.mark.parametrize(
    ("name", "text"),
    [("sequences", "blocks=20,seqs=6,len=6"), ("handles", "blocks=64,handles=64"), ("keys", "seqs=64,len=64")],
)
def test_a_scope_that_would_not_get_ready_is_an_error_at_once(name: str, text: str) -> None:
    chapter, structure = load(name), Scope.parse(text, name).structure
    with pytest.raises(TooLarge, match=rf"too large a scope: [\d,]+ parts of formulas, .*; at most {MOST_PARTS:,}"):
        Explorer(chapter, structure).explore()
    with pytest.raises(TooLarge):
        walk(chapter, structure, 64, 1, 0)


def test_exchanges_are_counted_for_states_that_are_renamed_only() -> None:
    chapter, structure = load("handles"), Scope.parse("blocks=40,handles=24", "handles").structure
    check_formulas(chapter, structure)
    check_exchanges(Quotient(chapter, structure, States.LIVE))
    with pytest.raises(TooLarge, match="exchanges of cells"):
        check_exchanges(Quotient(chapter, structure, States.RENAMED))


def test_walks_that_have_too_much_to_choose_from_are_an_error() -> None:
    structure = Scope.parse("blocks=20,handles=20", "handles").structure
    with pytest.raises(TooLarge, match="choices at each step, of 100,000,000 walks"):
        walk(load("handles"), structure, 100_000_000, 1, 0)


def test_more_variables_are_more_parts() -> None:
    thing, structure = Sort("Thing", "id"), Structure({"Thing": list(range(200))})
    one, two, three, four = (T.variable("x", thing) for _ in range(4))
    same = T.conj([T.eq(one, two), T.eq(two, three), T.eq(three, four)])
    check_statements([T.quantify("forall", (one, two), same)], structure)
    with pytest.raises(TooLarge, match="parts of axioms"):
        check_statements([T.quantify("forall", (one, two, three, four), same)], structure)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("versions=64,len=8,tokens=1.2.3.4.5.6.7.8", "too large a scope: over 1,000 chains of one length"),
        ("versions=20,len=2,tokens=1.2", "too large a scope: 57,968,994 parts of axioms"),
    ],
)
def test_what_a_scope_says_itself_is_counted_too(text: str, message: str) -> None:
    with pytest.raises(ScopeError, match=message):
        Scope.parse(text, "keys")
