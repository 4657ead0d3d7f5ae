"""Triton kernels against the plain torch ones, and both against the slot formula of the seed (9.5).

On a machine without a GPU, Triton's interpreter runs the kernels and its compiler still translates them for CUDA.
"""

from __future__ import annotations

import math
import mmap
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvspec.impl import kernels
from kvspec.impl.errors import InvalidRangeError, KernelUnavailableError
from kvspec.impl.kernels import Backend, backend, backend_for
from kvspec.impl.pool_target import TorchPoolTarget
from kvspec.impl.target import TorchTarget
from kvspec.model.conformance import Context, PoolConfig, advance

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BOTH = pytest.mark.parametrize("name", ["torch", "triton"])

SIZES = st.sampled_from([1, 2, 3, 7, 16])
WIDTHS = st.sampled_from([1, 2, 5, 64, 1030])
COUNTS = st.sampled_from([0, 1, 2, 127, 128, 129, 300])


def integers(generator: torch.Generator, low: int, high: int, count: int) -> Tensor:
    return torch.randint(low, high, (count,), generator=generator).to(DEVICE)


def batch(seed: int, block_size: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tables of five sequences, and tokens of them, some without a position."""
    generator = torch.Generator().manual_seed(seed)
    tables = integers(generator, 1, 12, 5 * 3)
    starts = 3 * integers(generator, 0, 5, count)
    positions = integers(generator, 0, 3 * block_size, count)
    positions[integers(generator, 0, 4, count) == 0] = -1
    return tables, starts, positions


def pool(seed: int, block_size: int, width: int, planes: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(planes, 12 * block_size, width, generator=generator).to(DEVICE)


@settings(max_examples=25)
@given(st.integers(0, 99), SIZES, COUNTS)
def test_slot_ids_agree_and_follow_the_formula(seed: int, block_size: int, count: int) -> None:
    tables, starts, positions = batch(seed, block_size, count)
    found = [backend(name).slot_ids(tables, starts, positions, block_size) for name in ("torch", "triton")]
    assert torch.equal(*found)
    assert found[0].dtype == torch.int64
    expected = [
        -1 if i < 0 else int(tables[start + i // block_size]) * block_size + i % block_size
        for start, i in zip(starts.tolist(), positions.tolist(), strict=True)
    ]
    assert found[0].tolist() == expected


@settings(max_examples=25)
@given(st.integers(0, 99), SIZES, WIDTHS, COUNTS)
def test_writes_agree_and_skip_padding(seed: int, block_size: int, width: int, count: int) -> None:
    before = pool(seed, block_size, width)
    generator = torch.Generator().manual_seed(seed)
    slots = torch.randperm(12 * block_size, generator=generator)[:count].to(DEVICE)
    slots[::5] = -1
    values = torch.rand(2, len(slots), width, generator=generator).to(DEVICE)
    found = [before.clone(), before.clone()]
    for name, cells in zip(("torch", "triton"), found, strict=True):
        backend(name).write_slots(cells, slots, values, block_size)
    assert torch.equal(*found)
    expected = before.clone()
    for index, slot in enumerate(slots.tolist()):
        if slot >= block_size:
            expected[:, slot] = values[:, index]
    assert torch.equal(found[0], expected)
    assert torch.equal(found[0][:, :block_size], before[:, :block_size])


@settings(max_examples=25)
@given(st.integers(0, 99), SIZES, WIDTHS, COUNTS)
def test_gathers_agree(seed: int, block_size: int, width: int, count: int) -> None:
    cells = pool(seed, block_size, width)
    tables, starts, positions = batch(seed, block_size, count)
    found = [backend(name).gather(cells, tables, starts, positions, block_size) for name in ("torch", "triton")]
    assert torch.equal(*found)
    slots = backend("torch").slot_ids(tables, starts, positions, block_size)
    expected = torch.where((slots >= 0)[None, :, None], cells[:, slots.clamp(min=0)], 0)
    assert torch.equal(found[0], expected)


@settings(max_examples=25)
@given(st.integers(0, 99), SIZES, WIDTHS, st.integers(0, 5))
def test_block_copies_agree(seed: int, block_size: int, width: int, count: int) -> None:
    before = pool(seed, block_size, width, planes=3)
    order = torch.randperm(11, generator=torch.Generator().manual_seed(seed)).to(DEVICE) + 1
    sources, targets = order[:count], order[count : 2 * count]
    found = [before.clone(), before.clone()]
    for name, cells in zip(("torch", "triton"), found, strict=True):
        backend(name).copy_blocks(cells, sources, targets, block_size)
    assert torch.equal(*found)
    expected = before.view(3, 12, block_size, width).clone()
    expected[:, targets] = expected[:, sources]
    assert torch.equal(found[0].view(3, 12, block_size, width), expected)


@settings(max_examples=25)
@given(st.integers(0, 99), WIDTHS, st.integers(0, 14), st.sampled_from([0.0, 2.5, math.nan]))
def test_fills_agree_and_skip_padding(seed: int, width: int, count: int, value: float) -> None:
    before = pool(seed, 1, width, planes=3)
    slots = integers(torch.Generator().manual_seed(seed), -1, 12, count)
    found = [before.clone(), before.clone()]
    for name, cells in zip(("torch", "triton"), found, strict=True):
        backend(name).fill_slots(cells, slots, value)
    expected = before.clone()
    expected[:, [slot for slot in slots.tolist() if slot > 0]] = value
    for cells in found:
        assert torch.equal(cells.nan_to_num(-5.0), expected.nan_to_num(-5.0))
        assert torch.equal(cells[:, 0], before[:, 0])


@BOTH
def test_empty_batches(name: str) -> None:
    kernel, nothing = backend(name), torch.empty(0, dtype=torch.int64, device=DEVICE)
    cells = pool(0, 4, 3)
    before = cells.clone()
    assert kernel.slot_ids(nothing, nothing, nothing, 4).shape == (0,)
    assert kernel.gather(cells, nothing, nothing, nothing, 4).shape == (2, 0, 3)
    kernel.write_slots(cells, nothing, torch.empty(2, 0, 3, device=DEVICE), 4)
    kernel.copy_blocks(cells, nothing, nothing, 4)
    kernel.fill_slots(cells, nothing, 1.0)
    assert torch.equal(cells, before)


@BOTH
def test_tokens_without_a_position_need_no_table(name: str) -> None:
    kernel, none = backend(name), torch.full((3,), -1, device=DEVICE)
    empty = torch.empty(0, dtype=torch.int64, device=DEVICE)
    assert kernel.slot_ids(empty, torch.full((3,), 77, device=DEVICE), none, 4).tolist() == [-1, -1, -1]


# -- large pools -----------------------------------------------------------------------------------------------------
class SparsePool:
    """One-byte cells in memory that is only reserved: more than 2**31 cells, of which a test touches a few."""

    def __init__(self, block_size: int, width: int) -> None:
        self.num_blocks = 2**31 // (block_size * width) + 3
        self.size = self.num_blocks * block_size * width
        # Private, so that the system maps a page only when it is written.
        self.memory = mmap.mmap(-1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.cells = torch.frombuffer(self.memory, dtype=torch.uint8).view(1, -1, width)

    def touched(self) -> dict[int, int]:
        """Index and content of every cell that is not 0; pages that were never touched hold zeros."""
        found: dict[int, int] = {}
        cells = np.frombuffer(self.memory, dtype=np.uint8)
        for page in self._mapped_pages():
            part = cells[page * mmap.PAGESIZE : (page + 1) * mmap.PAGESIZE]
            found.update({page * mmap.PAGESIZE + int(index): int(part[index]) for index in np.flatnonzero(part)})
        return found

    def _mapped_pages(self) -> list[int]:
        """Pages of the pool that the system has given memory (present or swapped out)."""
        count = -(-self.size // mmap.PAGESIZE)
        with open("/proc/self/pagemap", "rb") as pagemap:
            pagemap.seek(self.cells.data_ptr() // mmap.PAGESIZE * 8)
            flags = np.frombuffer(pagemap.read(8 * count), dtype=np.uint64)
        assert len(flags) == count
        return [int(page) for page in np.flatnonzero(flags >> np.uint64(62))]


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * mmap.PAGESIZE


CPU_BOTH = BOTH if DEVICE.type == "cpu" else pytest.mark.parametrize("name", ["torch"])


@pytest.mark.needs_file("/proc/self/pagemap")
@CPU_BOTH
@pytest.mark.parametrize(("block_size", "width"), [(16, 1), (16, 8)], ids=["slot", "slot times width"])
def test_the_last_block_of_a_pool_above_2_to_31_cells(name: str, block_size: int, width: int) -> None:
    """[B61] Products of block id and stride are taken in 64 bits: the last block is written, nothing else."""
    before = resident_bytes()
    large, kernel = SparsePool(block_size, width), backend(name)
    last = large.num_blocks - 1
    table, start = torch.tensor([1, last]), torch.zeros(2, dtype=torch.int64)
    positions = torch.tensor([0, 2 * block_size - 1])
    slots = kernel.slot_ids(table, start, positions, block_size)
    assert slots.tolist() == [block_size, large.num_blocks * block_size - 1]
    values = torch.arange(1, 2 * width + 1, dtype=torch.uint8).view(1, 2, width)
    kernel.write_slots(large.cells, slots, values, block_size)
    first = block_size * width
    expected = {first + i: 1 + i for i in range(width)}
    expected |= {large.size - width + i: 1 + width + i for i in range(width)}
    assert large.touched() == expected
    assert torch.equal(kernel.gather(large.cells, table, start, positions, block_size), values)
    kernel.copy_blocks(large.cells, torch.tensor([last]), torch.tensor([last - 1]), block_size)
    stride = block_size * width
    expected |= {index - stride: cell for index, cell in expected.items() if index > 2**31 - 1}
    assert large.touched() == expected
    kernel.fill_slots(large.cells, torch.tensor([large.num_blocks * block_size - 1]), 9)
    expected |= {large.size - width + i: 9 for i in range(width)}
    assert large.touched() == expected
    assert resident_bytes() - before < 64 << 20


@BOTH
def test_the_block_size_that_builds_a_slot_decodes_it(name: str) -> None:
    """[B62] Slots are built with 16 tokens per block; a storage that is packed by 4 must not change the row."""
    logical, packed, num_blocks = 16, 4, 6
    storage = torch.zeros(1, num_blocks * logical // packed, packed, 2, device=DEVICE)
    cells, kernel = storage.view(1, -1, 2), backend(name)
    table = torch.tensor([4, 2], device=DEVICE)
    positions = torch.arange(2 * logical, device=DEVICE)
    start = torch.zeros_like(positions)
    slots = kernel.slot_ids(table, start, positions, logical)
    assert (slots // logical).tolist() == [4] * logical + [2] * logical
    values = torch.rand(1, 2 * logical, 2, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    kernel.write_slots(cells, slots, values, logical)
    rows = storage.view(num_blocks, logical, 2)
    assert torch.equal(rows[[4, 2]].reshape(-1, 2), values[0])
    assert not rows[[0, 1, 3, 5]].any()
    assert torch.equal(kernel.gather(cells, table, start, positions, logical), values)


# -- choice of a backend -----------------------------------------------------------------------------------------------
def test_the_device_chooses_the_backend() -> None:
    assert backend_for(torch.device("cpu")).__name__.endswith("reference")  # type: ignore[attr-defined]
    assert backend_for(torch.device("cuda")).__name__.endswith("triton_kernels")  # type: ignore[attr-defined]


def test_without_triton_the_host_works_and_the_message_is_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "kvspec.impl.kernels.triton_kernels", raising=False)
    monkeypatch.delattr(kernels, "triton_kernels", raising=False)
    with pytest.raises(KernelUnavailableError, match="pip install triton"):
        backend("triton")
    TorchTarget(PoolConfig(num_blocks=4, block_size=2)).close()


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(KernelUnavailableError, match="torch or triton"):
        backend("numpy")


def test_cells_that_are_not_contiguous_are_refused() -> None:
    cells = torch.zeros(2, 3, 8, device=DEVICE).transpose(1, 2)
    with pytest.raises(InvalidRangeError, match="contiguous"):
        backend("triton").write_slots(cells, torch.tensor([4], device=DEVICE), torch.zeros(2, 1, 3, device=DEVICE), 2)


def test_host_tensors_are_refused_outside_the_interpreter() -> None:
    script = """
        import torch
        from kvspec.impl.kernels import backend
        one = torch.ones(1, dtype=torch.int64)
        try:
            backend("triton").slot_ids(one, one, one, 4)
        except Exception as error:
            print(type(error).__name__, error)
    """
    assert "KernelUnavailableError" in run_compiled(script)


def test_every_kernel_compiles_for_cuda() -> None:
    """For general sizes and for sizes of 1, which Triton turns into constants."""
    script = """
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource
        from kvspec.impl.kernels import triton_kernels as k

        index, number = "*i64", "i32"
        kernels = {
            k._slot_ids_kernel: (dict(tables=index, starts=index, positions=index, slots=index, num_tokens=number,
                                      block_size=number), dict(TOKENS=128)),
            k._write_kernel: (dict(cells="*fp32", slots=index, values="*fp32", num_tokens=number, num_slots=number,
                                   width=number, block_size=number), dict(ROWS=16, COLUMNS=64)),
            k._gather_kernel: (dict(cells="*fp32", tables=index, starts=index, positions=index, out="*fp32",
                                    num_tokens=number, num_slots="i64", width=number, block_size=number),
                               dict(ROWS=16, COLUMNS=64)),
            k._copy_kernel: (dict(cells="*fp32", sources=index, targets=index, plane_size="i64", block_cells=number),
                             dict(TILE=1024)),
            k._fill_kernel: (dict(cells="*fp32", slots=index, value="fp32", num_slots="i64", width=number),
                             dict(TILE=1024)),
        }
        for kernel, (signature, constants) in kernels.items():
            for ones in (False, True):
                known = dict(constants)
                if ones:
                    known |= {name: 1 for name, kind in signature.items() if kind == number}
                types = signature | {name: "constexpr" for name in known}
                ordered = {name: types[name] for name in kernel.arg_names}
                source = ASTSource(fn=kernel, signature=ordered, constexprs=known)
                binary = triton.compile(source, target=GPUTarget("cuda", 90, 32))
                assert ".visible .entry" in binary.asm["ptx"]
        print("compiled")
    """
    assert "compiled" in run_compiled(script)


def run_compiled(script: str) -> str:
    """Output of a script in a process where Triton compiles, as it does in production."""
    prelude = "import os, warnings; os.environ.pop('TRITON_INTERPRET', None); warnings.simplefilter('ignore')\n"
    command = [sys.executable, "-c", prelude + textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.gpu
def test_the_target_runs_on_a_gpu() -> None:
    target = TorchTarget(PoolConfig(num_blocks=8, block_size=4), device="cuda")
    tags = np.arange(10, dtype=np.int64) + 2**40
    target.start("a", list(range(10)), Context())
    assert target.allocate("a", 10)
    target.write([("a", tags)])
    target.fork("a", "b")
    target.append("b", [7])
    assert target.allocate("b", 11)
    assert target.read("b", 0, 10).tolist() == tags.tolist()


@pytest.mark.gpu
def test_the_target_of_a_pool_runs_on_a_gpu() -> None:
    config = PoolConfig(num_blocks=8, block_size=4, num_single_blocks=4, num_state_slots=4, sanitizer=True)
    target = TorchPoolTarget(config, layers=2, device="cuda")
    tags = np.arange(10, dtype=np.int64) + 2**40
    for name in ("a", "b"):
        target.start(name, list(range(10)), Context())
        assert target.allocate(name, 8)
        if name == "b":
            target.restore_start(name)
            target.restore_finish(name, True)
        target.write([(name, tags[target.num_computed(name) : 8])])
        assert target.state(name) == advance(0, tags[:8])
        assert target.save_start(name) == (name == "a")
        if name == "a":
            target.save_finish(name, True)
        assert target.allocate(name, 10)
        target.write([(name, tags[8:])])
        assert target.state(name) == advance(0, tags)
        assert target.read(name, 0, 10).tolist() == tags.tolist()
        target.deallocate(name)
    target.close()
    assert all(sanitizer.is_clean for sanitizer in target.sanitizers())


def test_both_backends_have_the_protocol() -> None:
    names = {name for name in vars(Backend) if not name.startswith("_")}
    assert names == {"slot_ids", "write_slots", "gather", "copy_blocks", "fill_slots"}
    for name in ("torch", "triton"):
        assert all(callable(getattr(backend(name), kernel)) for kernel in names)
