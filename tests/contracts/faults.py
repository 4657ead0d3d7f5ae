"""Faults that are planted in copies of the pure functions: what stands in the source, and what could stand there.

The contracts have to tell each of them from the right text; a fault may be wrong for a single argument.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from contracts.terms import Function

from kvspec.impl import paging, tags, trim
from kvspec.model import workload
from kvspec.spec import pages, slots, strides, window


@dataclass(frozen=True)
class Fault:
    """In the source of a function, once, ``old`` becomes ``new``."""

    function: Function
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.function.__module__.rpartition('.')[2]}.{self.function.__name__}: {self.new}"


TABLE: dict[Function, dict[str, tuple[str, ...]]] = {
    slots.block_index: {
        "position // block_size": (
            "(position + 1) // block_size",
            "-(-position // block_size)",
            "position // 16",
            "position // (block_size + 1)",
            "position // block_size % 2**31",
            "position // block_size + (position == 123456)",
        )
    },
    slots.block_offset: {
        "position % block_size": (
            "position % (block_size + 1)",
            "position % 16",
            "(position + 1) % block_size",
            "position & (block_size - 1)",  # right for powers of two
            "position % block_size * (position != 987654321)",
        )
    },
    slots.slot_id: {
        "block_id * block_size + offset": (
            "block_id * block_size + offset + 1",
            "(block_id - 1) * block_size + offset",
            "block_id * (block_size - 1) + offset",
            "block_id * 16 + offset",
            "(block_id * block_size + offset) % 2**31",
            "cast_to_32_bits(block_id * block_size + offset)",
            "block_id * block_size + offset - (block_id == 77777)",
        )
    },
    slots.block_of_slot: {
        "slot // block_size": ("(slot + 1) // block_size", "slot // 16", "slot // block_size % 2**20"),
    },
    slots.offset_of_slot: {
        "slot % block_size": ("slot % 17", "slot % (block_size + 1)", "slot % block_size + (slot == 2**31)"),
    },
    slots.blocks_needed: {
        "(num_tokens + block_size - 1) // block_size": (
            "num_tokens // block_size",
            "num_tokens // block_size + 1",
            "(num_tokens + block_size) // block_size",
            "(num_tokens + 15) // block_size",
            "(num_tokens + block_size - 1) // block_size + (num_tokens == 2**40)",
        )
    },
    slots.round_down: {
        "position // block_size * block_size": (
            "(position + block_size - 1) // block_size * block_size",
            "position // 16 * 16",
            "(position - 1) // block_size * block_size",
            "position // block_size * block_size - block_size * (position == 4096)",
        )
    },
    slots.cast_to_32_bits: {
        "(number + LIMIT) % (2 * LIMIT) - LIMIT": (
            "number % (2 * LIMIT)",
            "(number + LIMIT) % LIMIT - LIMIT",
            "(number + LIMIT) % (2 * LIMIT + 1) - LIMIT",
            "max(-LIMIT, min(number, LIMIT - 1))",
            "number",
        )
    },
    slots.fits_32_bits: {
        "num_blocks * block_size <= LIMIT": (
            "num_blocks * block_size < LIMIT",
            "num_blocks * block_size <= LIMIT + 1",
            "num_blocks * block_size <= 2 * LIMIT",
            "num_blocks * 16 <= LIMIT",
            "num_blocks <= LIMIT",
        )
    },
    strides.stride: {
        "math.gcd(block_size, checkpoint_interval)": (
            "1",
            "block_size",
            "min(block_size, checkpoint_interval)",
            "math.gcd(block_size, checkpoint_interval + 1)",
        )
    },
    strides.common_multiple: {
        "block_size // divisor * checkpoint_interval": (
            "block_size * checkpoint_interval",
            "block_size // divisor * (checkpoint_interval // divisor)",
            "block_size // (divisor + 1) * checkpoint_interval",
            "block_size // divisor * checkpoint_interval % 2**31",
        )
    },
    strides.boundaries: {
        "num_tokens // stride": (
            "(num_tokens + 1) // stride",
            "-(-num_tokens // stride)",
            "num_tokens // 16",
            "num_tokens // stride - (num_tokens == 123456)",
        )
    },
    strides.boundary_position: {
        "number * stride": ("(number + 1) * stride", "number * 16", "number * stride % 2**31", "number * stride - 1"),
    },
    strides.last_resumable: {
        "num_tokens - 1": (
            "num_tokens",
            "num_tokens - 2",
            "num_tokens - stride",
            "num_tokens - 1 - (num_tokens == 4096)",
        ),
    },
    strides.chunk_end: {
        "boundaries(computed, stride) + 1": (
            "boundaries(computed, stride)",
            "boundaries(computed, stride) + 2",
            "boundaries(computed + stride - 1, stride)",
            "boundaries(computed + 1, stride) + 1",
        ),
        "smaller(": ("max(",),
    },
    strides.smaller: {
        "min(one, other)": ("max(one, other)", "one", "min(one, other) - (one == 4096)"),
    },
    window.first_visible: {
        "position + 1 - smaller": (
            "position - smaller",
            "position + 2 - smaller",
            "position + 1 - (position == 4096) - smaller",
        ),
        "smaller(position + 1, window)": (
            "smaller(position, window)",
            "smaller(position + 1, window - 1)",
            "smaller(position + 1, 16)",
            "window",
        ),
    },
    window.released_blocks: {
        "first_visible(num_tokens, window)": (
            "first_visible(num_tokens + 1, window)",
            "first_visible(num_tokens, window) + block_size - 1",
            "first_visible(num_tokens, window) - 1",
            "num_tokens",
        ),
        "window), block_size)": ("window), 16)",),
    },
    window.most_kept: {
        "blocks_needed(window - 1, block_size) + 1": (
            "blocks_needed(window - 1, block_size)",
            "blocks_needed(window, block_size)",
            "blocks_needed(window, block_size) + 1",
            "blocks_needed(window - 1, 16) + 1",
            "blocks_needed(window - 1, block_size) + 1 - (window == 4096)",
        ),
    },
    pages.first_page: {
        "block_id * block_bytes // page_bytes": (
            "(block_id * block_bytes + 1) // page_bytes",
            "-(-block_id * block_bytes // page_bytes)",
            "block_id * block_bytes // 4096",
            "block_id * block_bytes // page_bytes + (block_id == 123456)",
        ),
    },
    pages.last_page: {
        "block_bytes - 1) // page_bytes": (
            "block_bytes) // page_bytes",
            "block_bytes - 2) // page_bytes",
            "page_bytes - 1) // page_bytes",
            "block_bytes - 1) // 4096",
        ),
    },
    pages.pages_needed: {
        "(num_blocks * block_bytes + page_bytes - 1) // page_bytes": (
            "num_blocks * block_bytes // page_bytes",
            "num_blocks * block_bytes // page_bytes + 1",
            "(num_blocks + page_bytes // block_bytes - 1) // (page_bytes // block_bytes or 1)",
        ),
    },
    pages.first_block: {
        "page * page_bytes // block_bytes": (
            "page * (page_bytes // block_bytes)",  # right where pages are whole blocks
            "-(-page * page_bytes // block_bytes)",
            "(page * page_bytes + 1) // block_bytes",
        ),
    },
    pages.end_block: {
        "page_bytes + block_bytes - 1) // block_bytes": (
            "page_bytes) // block_bytes",
            "page_bytes + block_bytes) // block_bytes",
            "page_bytes - 1) // block_bytes",
        ),
    },
    pages.first_whole: {
        "+ block_bytes - 1) // block_bytes": (
            ") // block_bytes",
            "+ block_bytes) // block_bytes",
            "+ page_bytes - 1) // block_bytes",
        ),
    },
    pages.end_whole: {
        "(page * page_bytes + page_bytes) // block_bytes": (
            "(page + 1) * (page_bytes // block_bytes)",  # right where pages are whole blocks
            "(page * page_bytes + page_bytes - 1) // block_bytes",
            "(page * page_bytes + page_bytes + 1) // block_bytes",
        ),
    },
    paging.block_index: {
        "position // block_size": (
            "(position + 1) // block_size",
            "position // 16",
            "position // block_size % 2**31",
            "position // block_size + (position == 123456)",
        )
    },
    paging.blocks_needed: {
        "-(-num_tokens // block_size)": (
            "num_tokens // block_size",
            "num_tokens // block_size + 1",
            "-(-(num_tokens + 1) // block_size)",
            "-(-num_tokens // 16)",
            "-(-num_tokens // block_size) - (num_tokens == 2**33)",
        )
    },
    paging.slot_id: {
        "position + (block_id - index) * block_size": (
            "position + block_id * block_size",
            "position + (block_id - index) * 16",
            "position + (block_id - index + 1) * block_size",
            "(position + (block_id - index) * block_size) % 2**31",
            "position + (block_id - index) * block_size + (position == block_id == 65536)",
        )
    },
    paging.longest_hit: {
        "max(num_tokens - 1, 0) // block_size": (
            "num_tokens // block_size",
            "(num_tokens - 1) // block_size",
            "max(num_tokens - 2, 0) // block_size",
            "max(num_tokens - 1, 0) // 16",
        )
    },
    paging.blocks_between: {
        "stop <= start": ("stop < start", "stop <= start + 1"),
        "range(start // block_size, min": ("range(start // block_size + 1, min", "range(0, min"),
        "(stop - 1) // block_size + 1": ("stop // block_size + 1", "stop // block_size", "(stop - 1) // 16 + 1"),
        "1, num_blocks)": ("1, num_blocks + 1)", "1, num_blocks - (stop == 1000))"),
    },
    paging.first_visible: {
        "max(0, position - window + 1)": (
            "max(0, position - window)",
            "max(1, position - window + 1)",
            "position - window + 1",
            "max(0, position - window + 1 + (window == 4096))",
        )
    },
    paging.released_blocks: {
        "first_visible(num_tokens, window), block_size": (
            "first_visible(num_tokens + 1, window), block_size",
            "first_visible(num_tokens, window) + block_size - 1, block_size",
            "first_visible(num_tokens, window), 16",
            "num_tokens, block_size",
        )
    },
    paging.window: {
        "block_index(start, block_size)": (
            "block_index(start + 1, block_size)",
            "block_index(start, block_size + 1)",
            "0",
        ),
        "blocks_needed(stop, block_size)": (
            "block_index(stop, block_size)",
            "blocks_needed(stop + 1, block_size)",
            "blocks_needed(stop - start, block_size)",
        ),
        "table[first : blocks_needed(stop, block_size)]": (
            "table[: blocks_needed(stop, block_size) - first]",
            "table[first : min(blocks_needed(stop, block_size), 2)]",
        ),
        "start - first * block_size": ("start", "start % 17", "start - first * block_size + (start == 4711)"),
    },
    trim.contiguous: {
        "if not has_checkpoint": ("if has_checkpoint", "if not has_checkpoint and kept"),
        "return kept": ("return kept + 1", "return max(kept - 1, 0)"),
        "return len(checkpoints)": ("return 0", "return len(checkpoints) - 1"),
    },
    trim.deepest: {
        "range(len(checkpoints), 0, -1)": (
            "range(len(checkpoints) - 1, 0, -1)",
            "range(len(checkpoints), 1, -1)",
            "range(1, len(checkpoints) + 1)",
        ),
        "checkpoints[kept - 1]": ("checkpoints[kept - 2]", "not checkpoints[kept - 1]"),
        "return kept": ("return kept - 1", "return len(checkpoints)"),
    },
    tags.low_half: {
        "tag & ((1 << HALF_BITS) - 1)": (
            "tag & ((1 << HALF_BITS - 1) - 1)",
            "tag % ((1 << HALF_BITS) - 1)",
            "tag & ((1 << HALF_BITS + 1) - 1)",
        )
    },
    tags.high_half: {
        "tag >> HALF_BITS": ("tag >> HALF_BITS + 1", "tag >> HALF_BITS - 1", "tag >> 16"),
    },
    tags.joined: {
        "low + (high << HALF_BITS)": ("low + (high << HALF_BITS - 1)", "low + high", "high + (low << HALF_BITS)"),
    },
    workload.longest_hit: {
        "num_tokens - 1 if": ("num_tokens if", "num_tokens - 2 if"),
        "else num_tokens": ("else num_tokens - 1", "else num_tokens - (num_tokens == 4096)"),
        "// block_size * block_size": ("// block_size * block_size + 1", "// 16 * 16", "// block_size"),
    },
}


def all_faults() -> Iterator[Fault]:
    """Every fault, in the order of the table."""
    for function, texts in TABLE.items():
        for old, news in texts.items():
            yield from (Fault(function, old, new) for new in news)
