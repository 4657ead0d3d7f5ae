"""After the end of its life every call of a manager, a pool or a target is an error, whatever method it is."""

from __future__ import annotations

import inspect
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from small_pools import of_sequence, pool_of, request, run

from kvspec.impl.block import Block
from kvspec.impl.block_manager_impl import BlockManagerImpl
from kvspec.impl.block_manager_pool import BlockManagerPool
from kvspec.impl.errors import ClosedError
from kvspec.impl.linear_state import LinearStatePrefixCache
from kvspec.impl.pool_target import TorchPoolTarget
from kvspec.impl.single_block_manager import SingleBlockManager
from kvspec.impl.target import TorchTarget
from kvspec.model.conformance import Context, MisuseError, PoolConfig

BY_HANDLES = {"block_idle", "block_shared"}
"""Called by handles only, which refuse to be used themselves."""
REPORTS = {"sanitizers"}
"""What was reported can be read afterwards."""


def methods(owner: type) -> list[str]:
    """The public methods of a class, those that it inherits among them."""
    found = inspect.getmembers(owner, inspect.isfunction)
    return [name for name, _ in found if not name.startswith("_") and name not in BY_HANDLES | REPORTS]


def call(target: object, method: str, values: dict[str, object]) -> object:
    """The method with a value for each parameter that needs one."""
    bound = getattr(target, method)
    needed = [p.name for p in inspect.signature(bound).parameters.values() if p.default is p.empty]
    return bound(*(values[name] for name in needed))


def managers() -> dict[str, Callable[[], Any]]:
    return {
        "BlockManagerImpl": lambda: BlockManagerImpl(6, 2),
        "SingleBlockManager": lambda: SingleBlockManager(6),
    }


@pytest.mark.parametrize(
    ("owner", "method"),
    [(owner, method) for owner in (BlockManagerImpl, SingleBlockManager) for method in methods(owner)],
)
def test_a_closed_manager_answers_nothing(owner: type, method: str) -> None:
    manager = managers()[owner.__name__]()
    blocks = manager.allocate(2)
    counts = manager.num_free_blocks, manager.num_used_blocks
    manager.close()
    values = {"num_blocks": 1, "blocks": blocks, "block_id": 1, "token_ids": array("q", range(4))}
    with pytest.raises(ClosedError, match=rf"{owner.__name__}\."):
        call(manager, method, values)
    assert (manager.num_free_blocks, manager.num_used_blocks) == counts
    assert all(block.counted_ and block.ref_count == 1 for block in blocks)


@pytest.mark.parametrize("use", [Block.copy, Block.release], ids=["copy", "release"])
def test_handles_of_a_closed_manager_are_of_no_use(use: Callable[[Block], object]) -> None:
    manager = BlockManagerImpl(6, 2)
    (block,) = manager.allocate(1) or []
    manager.deallocate([block])
    manager.close()
    with pytest.raises(ClosedError, match=r"Block\."):
        use(block)
    assert (block.is_released, block.ref_count) == (False, 1)


@pytest.mark.parametrize("method", methods(LinearStatePrefixCache))
def test_a_closed_cache_of_states_answers_nothing(method: str) -> None:
    cache = LinearStatePrefixCache(6)
    slot, done, pending = cache.acquire_live_slot(), cache.reserve(b"done"), cache.reserve(b"pending")
    assert done is not None
    cache.commit(done)
    cache.close()
    free = cache.num_free_slots
    values = {"slot": slot, "key": b"done", "pending": pending, "entry": done, "order": 0, "num_slots": 1}
    with pytest.raises(ClosedError, match=rf"LinearStatePrefixCache\.{method}: "):
        call(cache, method, values)
    assert cache.num_free_slots == free


@pytest.mark.parametrize("used", [False, True], ids=["new", "used"])
@pytest.mark.parametrize("method", methods(BlockManagerPool))
def test_a_closed_pool_answers_nothing(method: str, used: bool) -> None:
    pool = pool_of()
    sequence = request(pool, range(6))
    if used:
        run(pool, sequence, stop=4)
    pool.close()
    before = of_sequence(sequence)
    values = {"sequence": sequence, "num_tokens": 6, "rank": 0, "ok": True, "where": "here"}
    with pytest.raises(ClosedError, match=rf"BlockManagerPool\.{method}: "):
        call(pool, method, values)
    assert of_sequence(sequence) == before


@pytest.mark.parametrize(
    ("owner", "method"), [(owner, method) for owner in (TorchTarget, TorchPoolTarget) for method in methods(owner)]
)
def test_a_closed_target_answers_nothing(owner: type[TorchTarget | TorchPoolTarget], method: str) -> None:
    pool = {"num_single_blocks": 3, "num_state_slots": 4} if owner is TorchPoolTarget else {}
    target = owner(PoolConfig(num_blocks=6, block_size=2, **pool))
    target.start("a", [1, 2, 3], Context())
    assert target.allocate("a", 3)
    target.close()
    values = {
        "seq": "a", "parent": "a", "child": "b", "tokens": [1], "context": Context(), "num_tokens": 3, "start": 0,
        "stop": 0, "batch": [("a", np.array([7]))], "num_blocks": 1, "block_id": 1, "handle": 1, "rank": 0, "ok": True,
    }  # fmt: skip
    with pytest.raises(MisuseError, match=rf"{owner.__name__}\.{method}: the target is closed"):
        call(target, method, values)
