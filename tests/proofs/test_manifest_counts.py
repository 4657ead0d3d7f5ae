"""The counts that are written down are those of the reference explorer, which goes state by state."""

from __future__ import annotations

import pytest

from kvspec.model.exploring.outcome import States
from kvspec.model.exploring.plain import explore
from kvspec.model.exploring.scopes import Scope
from kvspec.proofs.manifest.build import exploration_entry
from kvspec.proofs.manifest.record import ExplorationEntry, load_record
from kvspec.proofs.manifest.scopes import SCOPES
from kvspec.spec import load

MOST = 300
"""States that the reference explorer goes through in a second or two; a chapter's smallest scope may have more."""

ELSEWHERE = {"pool"}
"""Compared in test_batched_explorer, in smaller scopes."""


def entries(name: str) -> list[ExplorationEntry]:
    record = load_record(name)
    assert record is not None
    return [e for e in record.explorations if e.distinct <= MOST] or list(record.explorations[:1])


PINNED = [(name, entry) for name in SCOPES if name not in ELSEWHERE for entry in entries(name)]


def test_every_chapter_with_state_has_a_count_to_compare() -> None:
    assert {name for name, _ in PINNED} == set(SCOPES) - ELSEWHERE


@pytest.mark.parametrize(("name", "entry"), PINNED, ids=[f"{name} {e.scope}" for name, e in PINNED])
def test_the_reference_explorer_counts_the_same(name: str, entry: ExplorationEntry) -> None:
    scope = Scope.parse(entry.scope, name)
    found = explore(load(name), scope.structure, States(entry.states), given=scope.given, scope=scope.text)
    assert found.complete and found.violation is None
    assert exploration_entry(found) == entry
