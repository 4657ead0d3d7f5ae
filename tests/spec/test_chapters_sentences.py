"""What every chapter says of itself; that all of it is proved and needed is in tests/proofs and in the manifests."""

from __future__ import annotations

import pytest

from kvspec.spec import CHAPTERS, load


@pytest.mark.parametrize("name", CHAPTERS)
def test_every_chapter_has_a_witness_and_sentences(name: str) -> None:
    chapter = load(name)
    assert chapter.witnesses
    statements = [*chapter.axioms, *chapter.invariants, *chapter.theorems, *chapter.witnesses]
    assert all(s.sentence and s.sentence[0].islower() for s in statements)
    assert all(chapter.event(e).sentence.endswith(".") for e in chapter.event_names)
