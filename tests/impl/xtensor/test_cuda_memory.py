"""Device memory: a clear error where it is not to be had, and on a device the same as on the host."""

from __future__ import annotations

import sys

import pytest
import torch

from kvspec.impl.xtensor.cuda_memory import CudaMemory
from kvspec.impl.xtensor.memory import MemoryUnavailableError


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    with pytest.raises(MemoryUnavailableError, match=r"no package cuda-bindings .* expected the extra 'cuda'"):
        CudaMemory(1)


def test_the_package_is_not_imported_before_it_is_needed() -> None:
    assert not [name for name in vars(sys.modules["kvspec.impl.xtensor.cuda_memory"]) if name.startswith("cuda")]


@pytest.mark.gpu
def test_content_goes_with_the_physical_page() -> None:
    memory = CudaMemory(2)
    one, other = memory.reserve(1), memory.reserve(1)
    memory.map(one, 1)
    memory.tensor(one, memory.page_bytes).fill_(7)
    memory.unmap(one)
    memory.map(other, 1)
    assert bool((memory.tensor(other, memory.page_bytes) == 7).all())
    memory.unmap(other)
    memory.release(one, 1)
    memory.release(other, 1)
    torch.cuda.synchronize()
    memory.close()
