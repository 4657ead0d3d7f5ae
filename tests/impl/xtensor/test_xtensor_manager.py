"""`XTensorBlockManagerImpl`: what chapter `xtensor` says of states is true of it after every call, also where mapping
fails, and a call is refused only for want of memory."""

from __future__ import annotations

import mmap
import random
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kvspec.impl.block import Block
from kvspec.impl.errors import ClosedError, HandleInUseError, InvalidRangeError
from kvspec.impl.xtensor.cpu_memory import CpuMemory
from kvspec.impl.xtensor.failing_memory import FailingMemory, never
from kvspec.impl.xtensor.page_pool import PagePool
from kvspec.impl.xtensor.virtual_pages import Stage
from kvspec.impl.xtensor.xtensor_block_manager_impl import PagesUnavailableError, XTensorBlockManagerImpl
from kvspec.model.concrete import State, Structure, Variant, evaluate
from kvspec.spec import load

PAGE = mmap.PAGESIZE
SIZE = 4
HALF = PAGE // 2
ACROSS = PAGE * 3 // 4
"""Of blocks with so many bytes, 1 and 2 lie across a border, and 0 and 3 do not."""

Always = Callable[[int], bool]


class Managers:
    """Managers over one pool of pages, whose mappings can be made to fail."""

    def __init__(self, num_pages: int, *block_bytes: int, num_blocks: int = 6, num_regions: int = 2) -> None:
        self.memory = FailingMemory(CpuMemory(num_pages))
        self.pool = PagePool(self.memory)
        self.all = [
            XTensorBlockManagerImpl(num_blocks, SIZE, self.pool, block_bytes=size, num_regions=num_regions)
            for size in block_bytes
        ]
        self.first = self.all[0]

    def fail(self, *pages: int, manager: int = 0, regions: tuple[int, ...] = (1,)) -> Always:
        """What fails if just these pages do, in these regions."""
        found = self.all[manager].pages_
        addresses = {found.address(page, region) for page in pages for region in regions}
        return lambda address: address in addresses

    def broken(self) -> list[str]:
        """Invariants of chapter `xtensor`, and of those that it uses, that are false of the managers as they are.

        The theorems follow from these.
        """
        chapter = load("xtensor")
        structure, state = self._structure(), self._state()
        said = [*chapter.lower_invariants, *chapter.invariants]
        return [s.name for s in said if not evaluate(s.term, structure, state)]

    def _structure(self) -> Structure:
        numbers = range(len(self.all))
        blocks, frames = range(self.first.num_total_blocks), range(self.memory.num_pages + 1)
        carriers = {
            "Manager": [*numbers],
            "Block": [*blocks],
            "Page": [*range(max(m.pages_.num_pages_ for m in self.all))],
            "Region": [*range(self.first.pages_.num_regions_)],
            "PhysicalPage": [*frames],
            "Holder": ["sequence"],
        }
        sizes = [m.block_bytes_ for m in self.all]
        statics: dict[tuple[str, ...], Any] = {
            ("managers", "padding"): 0,
            ("managers", "usable"): frozenset(blocks) - {0},
            ("memory", "ids", "padding"): 0,
            ("memory", "ids", "usable"): frozenset(frames) - {0},
            ("regions",): frozenset(carriers["Region"]),
            ("lies_on",): lambda m, b, v: b * sizes[m] < (v + 1) * PAGE and v * PAGE < (b + 1) * sizes[m],
        }
        return Structure(carriers, statics)

    def _state(self) -> State:
        state: State = {
            path: {} for path in (("managers", "free"), ("managers", "holders"), ("stage",), ("backed",), ("frame",))
        }
        owners: dict[int, set[Variant]] = {p: set() for p in range(self.memory.num_pages + 1)}
        most = max(m.pages_.num_pages_ for m in self.all)
        for number, manager in enumerate(self.all):
            pages = manager.pages_
            state["managers", "free"][number] = {*manager.free_ids()}
            for block in range(manager.num_total_blocks):
                held = block != 0 and manager.ref_count(block) > 0
                state["managers", "holders"][number, block] = {"sequence"} if held else set()
            for page in range(most):
                stage = pages.stages_[page] if page < pages.num_pages_ else Stage.UNMAPPED
                backing = pages._backing[page] if page < pages.num_pages_ else []
                state["stage",][number, page] = Variant(stage.name.lower(), ())
                state["backed",][number, page] = {r for r, physical in enumerate(backing) if physical is not None}
                for region, physical in enumerate(backing):
                    if physical is not None:
                        state["frame",][number, page, region] = physical.id
                        owners[physical.id].add(Variant("of", (number, page, region)))
        state["memory", "ids", "free"] = {*self.pool.pages_.free_ids()}
        state["memory", "ids", "holders"] = owners
        state["opened",] = {n for n, m in enumerate(self.all) if not m.closed_}
        state["calling",] = set()
        return state

    def stages(self, manager: int = 0) -> str:
        """The first letter of the stage of each page: Unmapped, Mapped, Quarantined."""
        return "".join(stage.name[0] for stage in self.all[manager].pages_.stages_)

    def drain(self) -> None:
        """Everything is reclaimed and closed, and nothing is left."""
        self.memory.map_fails = self.memory.unmap_fails = never
        for manager in self.all:
            manager.close()
        assert self.pool.num_free_pages == self.memory.num_pages
        self.pool.close()


def ids(blocks: list[Block] | None) -> list[int] | None:
    return None if blocks is None else [block.id for block in blocks]


def taken(manager: XTensorBlockManagerImpl, number: int) -> list[Block]:
    blocks = manager.allocate(number)
    assert blocks is not None
    return blocks


# -- one manager -----------------------------------------------------------------------------------------------------


def test_pages_are_mapped_when_their_blocks_are_wanted() -> None:
    all_ = Managers(20, HALF)
    assert (all_.stages(), all_.pool.num_free_pages) == ("MUU", 18)
    assert ids(all_.first.allocate(1)) == [1]
    assert (all_.stages(), all_.pool.num_free_pages) == ("MUU", 18)
    assert ids(all_.first.allocate(3)) == [2, 3, 4]
    assert (all_.stages(), all_.pool.num_free_pages, all_.first.num_free_blocks) == ("MMM", 14, 1)
    assert all_.broken() == []
    all_.drain()


def test_a_block_across_a_border_needs_both_pages() -> None:
    all_ = Managers(20, ACROSS)
    assert ids(all_.first.allocate(1)) == [1]
    assert all_.stages() == "MMUUUU"
    assert ids(all_.first.allocate(1)) == [2]
    assert all_.stages() == "MMMUUU"
    assert all_.broken() == []
    all_.drain()


def test_a_call_is_refused_when_no_page_can_be_mapped_and_then_changes_nothing() -> None:
    all_ = Managers(5, HALF)
    assert all_.first.num_available_blocks == 3
    assert all_.first.allocate(4) is None
    assert (all_.stages(), all_.first.num_used_blocks, all_.first.num_free_blocks) == ("MUU", 0, 5)
    assert ids(all_.first.allocate(3)) == [1, 2, 3]
    assert all_.first.allocate(1) is None
    assert all_.broken() == []
    all_.drain()


def test_idle_pages_are_reclaimed_and_that_of_the_padding_block_stays() -> None:
    all_ = Managers(20, ACROSS)
    blocks = taken(all_.first, 5)
    kept = blocks.pop(1)
    all_.first.release_blocks(blocks)
    assert all_.first.reclaim() == 4
    assert all_.stages() == "MMMUUU"
    assert all_.broken() == []
    all_.first.release_blocks([kept])
    assert all_.first.num_reclaimable() == 4
    assert all_.first.reclaim(1) == 2
    assert all_.first.reclaim() == 2
    assert (all_.stages(), all_.first.num_ready_blocks_) == ("MUUUUU", 0)
    assert ids(all_.first.allocate(1)) == [1]
    all_.drain()


def test_a_cached_block_is_evicted_only_for_what_cannot_be_mapped() -> None:
    all_ = Managers(5, HALF)
    blocks = taken(all_.first, 2)
    tokens = array("q", range(2 * SIZE))
    all_.first.cache(tokens, blocks)
    all_.first.release_blocks(blocks)
    assert all_.first.num_available_blocks == 3
    assert all_.first.reclaim() == 0
    third = taken(all_.first, 1)
    assert (ids(third), all_.first.num_available_blocks) == ([3], 2)
    hit = all_.first.allocate_shared(tokens)
    assert (ids(hit), all_.first.allocate(1)) == ([1, 2], None)
    all_.first.release_blocks(hit)
    assert all_.first.allocate(3) is None
    assert sorted(ids(all_.first.allocate(2)) or []) == [1, 2]
    assert all_.broken() == []
    all_.drain()


# -- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("region", [0, 1])
def test_a_page_that_fails_in_one_region_is_mapped_in_none_and_another_is_tried(region: int) -> None:
    all_ = Managers(20, HALF)
    all_.memory.map_fails = all_.fail(1, regions=(region,))
    assert ids(all_.first.allocate(3)) == [1, 4, 5]
    assert (all_.stages(), all_.pool.num_free_pages) == ("MUM", 16)
    assert all_.broken() == []
    assert all_.first.allocate(1) is None
    all_.memory.map_fails = never
    assert ids(all_.first.allocate(1)) == [2]
    all_.drain()


def test_what_could_not_be_undone_is_set_aside_until_it_can_be() -> None:
    all_ = Managers(20, HALF)
    all_.memory.map_fails, all_.memory.unmap_fails = all_.fail(1), all_.fail(1, regions=(0,))
    assert ids(all_.first.allocate(2)) == [1, 4]
    assert (all_.stages(), all_.pool.num_free_pages) == ("MQM", 15)
    assert all_.broken() == []
    all_.memory.map_fails = never
    assert ids(all_.first.allocate(1)) == [5]
    assert all_.first.allocate(1) is None
    assert all_.stages() == "MQM"
    all_.memory.unmap_fails = never
    assert ids(all_.first.allocate(1)) == [2]
    assert all_.broken() == []
    all_.drain()


def test_a_page_that_cannot_be_unmapped_keeps_its_memory_from_everybody() -> None:
    all_ = Managers(8, HALF, HALF)
    all_.first.release_blocks(taken(all_.first, 5))
    all_.memory.unmap_fails = all_.fail(2, regions=(1,))
    assert (all_.pool.num_free_pages, all_.first.num_reclaimable()) == (0, 4)
    assert ids(all_.all[1].allocate(4)) is None
    assert ids(all_.all[1].allocate(3)) == [1, 2, 3]
    assert all_.stages() in ("MUQ", "MMQ")
    assert all_.broken() == []
    all_.memory.unmap_fails = never
    all_.first.reclaim()
    assert all_.stages() == "MUU"
    assert all_.broken() == []
    all_.drain()


def test_a_manager_without_memory_for_its_padding_block_does_not_begin() -> None:
    all_ = Managers(4, HALF)
    taken(all_.first, 2)
    with pytest.raises(PagesUnavailableError, match=r"0 physical pages are free; expected 1 in each of 2 regions"):
        XTensorBlockManagerImpl(4, SIZE, all_.pool, block_bytes=HALF)
    assert all_.broken() == []
    all_.drain()


# -- several managers ------------------------------------------------------------------------------------------------


def test_what_one_manager_does_without_another_gets() -> None:
    all_ = Managers(8, HALF, ACROSS)
    blocks = taken(all_.first, 5)
    assert all_.all[1].allocate(1) is None
    all_.first.release_blocks(blocks[-2:])
    assert ids(all_.all[1].allocate(1)) == [1]
    assert (all_.stages(0), all_.stages(1)) == ("MMU", "MMUUUU")
    assert all_.broken() == []
    all_.first.release_blocks(blocks[:-2])
    all_.drain()


def test_a_pool_with_pages_in_use_is_not_closed() -> None:
    all_ = Managers(8, HALF)
    with pytest.raises(HandleInUseError, match="2 physical pages are mapped; expected every manager closed before"):
        all_.pool.close()
    all_.drain()
    with pytest.raises(ClosedError):
        all_.first.allocate(1)
    with pytest.raises(ClosedError):
        all_.pool.take()


@pytest.mark.parametrize(("size", "regions"), [(0, 2), (1, 0)])
def test_a_layout_without_bytes_is_refused(size: int, regions: int) -> None:
    all_ = Managers(4, HALF)
    with pytest.raises(InvalidRangeError, match="expected at least 1 region and 1 byte"):
        XTensorBlockManagerImpl(4, SIZE, all_.pool, block_bytes=size, num_regions=regions)
    all_.drain()


# -- random lives ----------------------------------------------------------------------------------------------------


def lives(seed: int) -> Iterator[str]:
    """What happens in the random life of two managers with too little memory for both, step by step."""
    source = random.Random(seed)
    all_ = Managers(8, HALF, ACROSS, num_blocks=4)
    held: list[list[Block]] = [[], []]
    for _ in range(40):
        number = source.randrange(2)
        manager, mine = all_.all[number], held[number]
        rate = source.choice((0.0, 0.0, 0.3))
        all_.memory.map_fails = lambda address, r=rate: source.random() < r  # type: ignore[misc]
        all_.memory.unmap_fails = lambda address, r=rate: source.random() < r  # type: ignore[misc]
        match source.choice(("allocate", "allocate", "release", "reclaim")):
            case "allocate":
                wanted, ready = source.randint(1, 2), manager.num_ready_blocks_
                before = manager.num_free_blocks, manager.num_used_blocks
                blocks = manager.allocate(wanted)
                if blocks is None:
                    assert (manager.num_free_blocks, manager.num_used_blocks) == before
                    yield "refused" if rate == 0.0 else "failed"
                else:
                    mine += blocks
                    yield "mapped" if wanted > ready else "taken"
                assert blocks is not None or ready < wanted
            case "release" if mine:
                manager.release_blocks([mine.pop(source.randrange(len(mine)))])
            case "reclaim":
                yield "reclaimed" if manager.reclaim() else "kept"
        assert all_.broken() == []
        assert manager.num_ready_blocks_ == sum(manager.is_ready(b) for b in manager.free_ids())
        if "Q" in all_.stages(number):
            yield "quarantined"
    for manager, blocks in zip(all_.all, held, strict=True):
        manager.release_blocks(blocks)
    all_.drain()


def test_the_chapter_is_true_of_random_lives() -> None:
    seen = Counter(what for seed in range(5) for what in lives(seed))
    wanted = {"refused", "failed", "mapped", "taken", "reclaimed", "kept", "quarantined"}
    assert wanted <= {*seen}, seen


def test_a_state_of_which_the_chapter_is_false_is_told() -> None:
    all_ = Managers(8, HALF)
    taken(all_.first, 3)
    all_.first.pages_.stages_[1] = Stage.UNMAPPED
    assert {"held_is_mapped", "unmapped_nowhere"} <= {*all_.broken()}
    all_.drain()
