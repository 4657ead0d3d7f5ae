"""The states before and after an operation: both tell the same facts, in the same words."""

from __future__ import annotations

import contextlib
from collections import Counter

import pytest

from kvspec.model.acceptor import judge_of
from kvspec.model.conformance import Capability, Form, MisuseError
from kvspec.model.forms import FORMS
from kvspec.model.generator import Kind, RandomSource
from kvspec.model.pools import Pools
from kvspec.model.reference import model_target
from kvspec.model.scenario import show

POOLS = Pools(watch=False)
TOLD = {
    Form.MANAGERS: ("free ", "cached ", "tokens computed", "held "),
    Form.POOLS: ("free single blocks", "free slots", "checkpoint ", ", slot ", ", waits", ", is restored", "held "),
    Form.PAGES: ("mapped pages", "free physical pages: ", "held "),
    Form.TIERS: ("load from", "offload from", "fetch from", ", not begun", "the device sleeps", "host 0: cached ["),
    Form.COMPOSITES: (" released", " accepted"),
    Form.ENGINES: ("free ", "cached ", " known tokens computed"),
}
"""What has to be told at some time of each form."""


ONLY_SHOWN = ("used: ", "last ")
"""What a target counts, and what it has sent."""


def states(form: Form, seed: int) -> list[tuple[list[str], list[str]]]:
    """What is told behind every operation of a run: of the model, and of a target that shows all that can be shown."""
    source = RandomSource(f"{seed}/shown")
    sample = model_target(FORMS[form].smallest)
    config = FORMS[form].draw(source, frozenset(Capability), sample)
    judge = judge_of(model_target(config), config, pool=POOLS.take(config))
    generator = FORMS[form].generator(source, config, judge.pool, judge.capabilities, Kind.VALID)
    found = []
    for _ in range(120):
        result = None
        with contextlib.suppress(MisuseError):
            result = judge.do(generator.next())
        generator.saw(result)
        found.append((show.model_state(judge), show.target_state(judge)))
    POOLS.give(judge.pool)
    return found


@pytest.mark.parametrize("form", Form)
def test_what_is_told_before_is_told_after(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show, "_LIMIT", 1000)
    told: Counter[str] = Counter()
    for seed in range(12):
        for before, after in states(form, seed):
            kept = [line for line in after if not line.startswith(ONLY_SHOWN)]
            assert [line.replace(show._KNOWN, "") for line in kept] == before
            told.update(words for words in TOLD[form] for line in before if words in line)
    assert set(told) == set(TOLD[form])


def test_what_no_target_shows_is_marked() -> None:
    forms = (Form.TIERS, Form.PAGES, Form.COMPOSITES)
    told = [line for form in forms for _, after in states(form, 1) for line in after]
    marked = [line for line in told if show._KNOWN in line]
    for words in ("load from", "free physical pages: ", " accepted"):
        assert any(words in line for line in marked)
        assert all(line in marked for line in told if words in line)


def test_one_block_is_told_in_the_singular() -> None:
    told = {line for seed in range(6) for _, after in states(Form.MANAGERS, seed) for line in after}
    assert "used: 1 block" in told and "used: 2 blocks" in told and "used: 1 blocks" not in told
