"""Pages of host memory are real: content goes with the physical page, and where none is mapped there is nothing."""

from __future__ import annotations

import mmap
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from kvspec.impl.errors import InvalidRangeError
from kvspec.impl.xtensor.cpu_memory import CpuMemory
from kvspec.impl.xtensor.memory import MappingError

PAGE = mmap.PAGESIZE


@pytest.fixture
def memory() -> Iterator[CpuMemory]:
    memory = CpuMemory(3)
    yield memory
    memory.close()


def test_content_goes_with_the_physical_page(memory: CpuMemory) -> None:
    one, other = memory.reserve(2), memory.reserve(2)
    memory.map(one, 2)
    memory.tensor(one, PAGE).fill_(7)
    memory.unmap(one)
    memory.map(other + PAGE, 2)
    memory.map(one, 1)
    assert memory.tensor(other + PAGE, PAGE).tolist() == [7] * PAGE
    assert memory.tensor(one, PAGE).tolist() == [0] * PAGE
    memory.unmap(one)
    memory.unmap(other + PAGE)
    memory.release(one, 2)
    memory.release(other, 2)


def test_a_tensor_goes_over_several_pages_in_any_order(memory: CpuMemory) -> None:
    start = memory.reserve(3)
    for page, frame in enumerate((2, 0, 1)):
        memory.map(start + page * PAGE, frame)
    whole = memory.tensor(start, 3 * PAGE)
    whole[PAGE - 1 : PAGE + 1] = 9
    assert int(memory.tensor(start + PAGE, 1)[0]) == 9
    assert int(whole.sum()) == 18
    memory.release(start, 3)


ACCESS = """
from kvspec.impl.xtensor.cpu_memory import CpuMemory
memory = CpuMemory(2)
start = memory.reserve(2)
memory.map(start, 0)
memory.tensor(start, memory.page_bytes).fill_(1)
{before}
print("reached", flush=True)
memory.tensor(start, 2 * memory.page_bytes)[{access}
print("passed", flush=True)
"""


@pytest.mark.parametrize(
    ("before", "access"),
    [("", "memory.page_bytes].fill_(1)"), ("memory.unmap(start)", "0].item()")],
    ids=["never mapped", "unmapped"],
)
def test_an_access_without_memory_ends_the_process(before: str, access: str) -> None:
    code = ACCESS.format(before=before, access=access)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["reached"], done.stderr
    assert done.returncode == -signal.SIGSEGV


def test_what_the_system_refuses_is_an_error(memory: CpuMemory) -> None:
    start = memory.reserve(1)
    with pytest.raises(MappingError, match=r"CpuMemory.map: Invalid argument"):
        memory.map(start + 1, 0)
    with pytest.raises(MappingError, match=r"CpuMemory.reserve: Cannot allocate memory"):
        memory.reserve(2**47 // PAGE)
    memory.release(start, 1)


@pytest.mark.parametrize(("num_pages", "page_bytes"), [(0, PAGE), (1, 0), (1, PAGE + 1), (1, PAGE // 2)])
def test_sizes_that_the_system_cannot_map(num_pages: int, page_bytes: int) -> None:
    with pytest.raises(InvalidRangeError, match=f"expected at least 1 page of a multiple of {PAGE} bytes"):
        CpuMemory(num_pages, page_bytes)
