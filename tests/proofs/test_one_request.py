"""One request over its three resources, what it may be refused, and the ranks around it: every obligation is proved."""

from __future__ import annotations

import pytest

from kvspec.proofs.campaign import prove_chapter
from kvspec.proofs.verdicts import Verdict
from kvspec.spec.admission import Admission
from kvspec.spec.language import Chapter
from kvspec.spec.language.machine import Machine
from kvspec.spec.lifecycle import Lifecycle
from kvspec.spec.pool import Pool


@pytest.mark.parametrize("cls", [Admission, Lifecycle, Pool])
def test_every_obligation_is_proved(cls: type[Machine]) -> None:
    results = prove_chapter(cls.__name__.lower(), Chapter(cls))
    assert len(results) > 50
    assert [r.id for r in results if r.verdict is not Verdict.PROVED] == []
