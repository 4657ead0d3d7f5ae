"""Lives of the torch manager and of the model that Hypothesis leads and shortens, with every observation on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import pytest
from differential.lives import LARGE, DrawnSource, Lives, MakeTarget
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from kvspec.impl.sequence import Sequence as TorchSequence
from kvspec.impl.target import TorchTarget
from kvspec.model.conformance import PoolConfig
from kvspec.model.generator import Kind, pool_config
from kvspec.model.promises import Violation
from kvspec.model.reference import ModelTarget

OPERATIONS_A_STEP = 3
PHASES = tuple(Phase) if settings.get_current_profile_name() == "deep" else (Phase.explicit, Phase.generate)
"""A life that fails is shortened (for minutes) only where somebody looks for one."""


class Machine(RuleBasedStateMachine):
    """One pool."""

    kind: ClassVar[Kind] = Kind.MIXED
    makers: ClassVar[Sequence[MakeTarget]] = (TorchTarget,)
    alike: ClassVar[bool] = False
    """Whether the targets must answer and show the same."""

    def __init__(self) -> None:
        super().__init__()
        self.lives: Lives | None = None

    def config(self, source: DrawnSource) -> PoolConfig:
        """A pool that is too small."""
        return pool_config(source, sanitizer=source.chance(0.3), larger=False)

    @initialize(data=st.data())
    def make(self, data: st.DataObject) -> None:
        self.source = source = DrawnSource(data)
        self.lives = Lives(source, self.config(source), self.kind, self.makers, self.alike)

    @rule(data=st.data())
    def operate(self, data: st.DataObject) -> None:
        assert self.lives is not None
        self.source.data = data
        for _ in range(OPERATIONS_A_STEP):
            self.lives.step()

    def teardown(self) -> None:
        """What was taken is given back; after a violation nobody knows what was taken."""
        if self.lives is not None:
            self.lives.end()


class Together(Machine):
    """The torch manager and the model, in pools where neither has to choose: nothing is evicted."""

    kind = Kind.MIXED
    makers = (TorchTarget, ModelTarget)
    alike = True

    def config(self, source: DrawnSource) -> PoolConfig:
        if source.chance(0.5):
            blocks, size = source.integer(2, 10), source.integer(1, 4)
            return PoolConfig(num_blocks=blocks, block_size=size, enable_prefix_cache=False)
        return PoolConfig(num_blocks=LARGE, block_size=source.integer(1, 4))


class Wild(Machine):
    """Mostly calls that make no sense."""

    kind = Kind.WILD


class Valid(Machine):
    """Calls of a scheduler."""

    kind = Kind.VALID


class Model(Machine):
    """The model itself, deciding at random."""

    makers = (lambda config: ModelTarget(config, seed=0, watch=True),)


@pytest.mark.parametrize("machine", [Machine, Valid, Wild, Together, Model], ids=lambda m: m.__name__)
def test_every_life_is_allowed_by_the_spec(machine: type[Machine]) -> None:
    run_state_machine_as_test(machine, settings=settings(phases=PHASES))


def nothing_is_given_back(self: TorchSequence, num_tokens: int) -> list[object]:
    """A fault: rejected tokens keep their blocks, and the manager forgets them."""
    blocks = original_truncate(self, num_tokens)
    return blocks[1:]


original_truncate = TorchSequence.truncate


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("owner", "method", "fault"),
    [
        (TorchSequence, "truncate", nothing_is_given_back),
        (TorchTarget, "_copy_on_write", lambda self, seq, places, blocks: seq.replace_shared(places, blocks)),
    ],
)
def test_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch, owner: type, method: str, fault: object) -> None:
    monkeypatch.setattr(owner, method, fault)
    with pytest.raises(Violation):
        run_state_machine_as_test(Valid, settings=settings(phases=[Phase.generate], report_multiple_bugs=False))
