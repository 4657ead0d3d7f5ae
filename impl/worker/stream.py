"""What an engine is given, and what it leaves: requests, options, disturbances, counts, logits."""

from __future__ import annotations

from typing import Literal

import msgspec
from torch import Tensor

from kvspec.model.conformance import PoolConfig


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request.

    Attributes:
        prompt: its tokens; at least one.
        num_outputs: tokens that it generates; at least one.
        outputs: the tokens that it is to generate whatever the model says (their logits are kept all the same), so
            that runs can be compared though logits are nearly equal; None: always the most expected one.
        arrival: number of the step in which it comes.

    Raises:
        ValueError: no prompt, no output, or not as many outputs as are wanted.
    """

    prompt: tuple[int, ...]
    num_outputs: int
    outputs: tuple[int, ...] | None = None
    arrival: int = 0

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ValueError("prompt: no token, expected at least 1")
        if self.num_outputs < 1:
            raise ValueError(f"num_outputs: {self.num_outputs}, expected at least 1")
        if self.outputs is not None and len(self.outputs) != self.num_outputs:
            raise ValueError(f"outputs: {len(self.outputs)} tokens, expected {self.num_outputs}")

    @property
    def num_computed(self) -> int:
        """Tokens that go through the model: all but the last output."""
        return len(self.prompt) + self.num_outputs - 1


DisturbanceKind = Literal["preempt", "evict_blocks", "evict_states", "fail_saves", "fail_restores", "draft"]


class Disturbance(msgspec.Struct, frozen=True):
    """Something that a correct manager bears in any step, and that changes no output.

    Attributes:
        step: number of the step in which it happens.
        kind: ``preempt``: the running request with this number, from the one admitted first, gives way;
            ``evict_blocks``, ``evict_states``: so many idle blocks, idle checkpoints, of each rank are evicted, after
            requests were admitted and before their states are restored;
            ``fail_saves``, ``fail_restores``: the first so many copies of the step fail, after they have spoilt
            their target; ``draft``: a request that decodes goes over so many more tokens, which are then rejected.
        number: see there; 0 or more.
    """

    step: int
    kind: DisturbanceKind
    number: int


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an engine runs.

    Attributes:
        pool: the pool and its options; with `PoolConfig.sanitizer` freed blocks and slots are filled with NaN.
        chunk: tokens of one request in one step, at most.
        max_running: requests that run at once, at most.
        checkpoints: save states where steps end; without them no prefix is reused by a model with linear layers.
        window_blocks, window_block_size: blocks of each rank for layers with a window, padding included, and tokens
            per block; 0 for a model that has none. The pool has no prefix cache then (seed 9.2).

    Raises:
        ValueError: a number is out of range, or the pool has no ranks.
    """

    pool: PoolConfig
    chunk: int = 64
    max_running: int = 16
    checkpoints: bool = True
    window_blocks: int = 0
    window_block_size: int = 0

    def __post_init__(self) -> None:
        if self.chunk < 1 or self.max_running < 1:
            raise ValueError(f"chunk: {self.chunk}, max_running: {self.max_running}, expected at least 1")
        if not self.pool.is_pool:
            raise ValueError("pool: no single blocks, expected a pool with at least 2 (one is padding)")
        if self.window_blocks or self.window_block_size:
            self._check_windows()

    def _check_windows(self) -> None:
        if self.window_blocks < 2 or self.window_block_size < 1:
            what = f"window_blocks: {self.window_blocks}, window_block_size: {self.window_block_size}"
            raise ValueError(f"{what}, expected 0 and 0, or at least 2 (block 0 is padding) and 1")
        if self.pool.enable_prefix_cache:
            raise ValueError("window_blocks: with a prefix cache, expected a pool without")


class Counts(msgspec.Struct):
    """What happened in a run.

    Attributes:
        steps: forward steps.
        computed_tokens, output_tokens: tokens that went through the model; tokens that were generated.
        hit_tokens: tokens that did not have to be computed, at admissions and after preemptions.
        trimmed_blocks: matched blocks that were given back because no state could be restored behind them.
        saves, restores: copies of states that were made and succeeded.
        failed_copies: copies that failed.
        rejected_tokens: guessed tokens that were computed and rejected.
        refusals: refused allocations.
        preemptions: requests that gave way, forced ones included.
        evicted_blocks, evicted_states: entries that left the caches.
        misuse: handles that were lost or given back twice, writes to padding; only seen by a sanitizer.
    """

    steps: int = 0
    computed_tokens: int = 0
    output_tokens: int = 0
    hit_tokens: int = 0
    trimmed_blocks: int = 0
    saves: int = 0
    restores: int = 0
    failed_copies: int = 0
    rejected_tokens: int = 0
    refusals: int = 0
    preemptions: int = 0
    evicted_blocks: int = 0
    evicted_states: int = 0
    misuse: int = 0


class Outcome(msgspec.Struct):
    """What a run leaves.

    Attributes:
        logits: for each request ``[num_outputs, vocabulary]``, on the host: what was expected in the place of each
            output.
        outputs: for each request, the tokens that it has generated.
        counts: what happened.
    """

    logits: list[Tensor]
    outputs: list[list[int]]
    counts: Counts
