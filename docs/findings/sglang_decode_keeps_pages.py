"""SGLang 0.5.23: a decode that is refused for the lack of window pages keeps the pages of full attention that it took.

`SWATokenToKVPoolAllocator.alloc_decode` asks both of its allocators, and returns None if one of them has nothing. What
the other one gave is in nobody's hands then, and is never free again. `alloc_extend`, beside it, asks for room first.

Needs SGLang 0.5.23 alone; run it with ``python sglang_decode_keeps_pages.py``.
"""

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

import torch


class Torchvision(MetaPathFinder, Loader):
    """SGLang imports it, and nothing here needs it."""

    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] == "torchvision" else None

    def create_module(self, spec):
        module = ModuleType(spec.name)
        module.__getattr__ = lambda name: type(name, (), {}) if not name.startswith("__") else None
        return module

    def exec_module(self, module):
        pass


if find_spec("torchvision") is None:
    import transformers.utils.import_utils  # noqa: F401  # before the stub, which it must not find

    sys.meta_path.insert(0, Torchvision())

from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.base_swa_memory_pool import BaseSWAKVPool

PAGE = 4


class NoMemory(BaseSWAKVPool):
    """Stands for the memory, which nobody reads."""

    def __init__(self):
        self.full_to_swa_index_mapping = None

    def register_mapping(self, mapping):
        self.full_to_swa_index_mapping = mapping

    def translate_loc_from_full_to_swa(self, indices):
        return self.full_to_swa_index_mapping[indices]

    def get_state_buf_infos(self):
        raise NotImplementedError

    get_key_buffer = get_value_buffer = get_kv_buffer = set_kv_buffer = get_state_buf_infos


def numbers(*values):
    return torch.tensor(values, dtype=torch.int64)


def main():
    allocator = SWATokenToKVPoolAllocator(6 * PAGE, 2 * PAGE, PAGE, torch.float32, "cpu", NoMemory(), False)
    begin, end = numbers(0), numbers(2 * PAGE)
    slots = allocator.alloc_extend(begin, begin, end, end, numbers(-1), 2 * PAGE)
    print(f"a request of {2 * PAGE} tokens has slots {slots.tolist()}")
    free = allocator.full_available_size(), allocator.swa_available_size()
    print(f"free: {free[0]} tokens of full attention, {free[1]} of windows")
    length = numbers(2 * PAGE + 1)
    found = allocator.alloc_decode(length, length, slots[-1:])
    print(f"alloc_decode for one token more: {found}; free: {allocator.full_available_size()} of full attention")
    allocator.free(slots)
    lost = 6 * PAGE - allocator.full_available_size()
    print(f"the request has given everything back; {lost} tokens of full attention are lost")
    return 0 if found is None and lost == PAGE else 1


if __name__ == "__main__":
    sys.exit(main())
