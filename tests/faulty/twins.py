"""Faulty managers, one row each: the good one with exactly one method (or one fault in two places) replaced.

``build(name)`` gives a class that follows the target protocol; so does the attribute of that name, so that
``kvspec conform tests.faulty.twins:B13`` works.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final, NamedTuple

from kvspec.impl.block_manager_impl import BlockManagerImpl as Manager
from kvspec.impl.buffers import KVBuffers as Buffers
from kvspec.impl.prefix_cache import PrefixCache as Cache
from kvspec.impl.prefix_cache import PrefixKeys as Keys
from kvspec.impl.sequence import Sequence
from kvspec.impl.target import TorchTarget
from kvspec.model.conformance import PoolConfig

from . import faults as f

Patch = tuple[type, str, f.Replacement]


class Fault(NamedTuple):
    """A row of the table.

    Attributes:
        name: of the twin; that of its field scenario where it has one.
        what: the fault, in a few words.
        family: what its field scenario is found to break (for a twin without one: what is usually found).
        patches: class, method and what replaces it.
    """

    name: str
    what: str
    family: str
    patches: tuple[Patch, ...]


def _row(name: str, what: str, family: str, *patches: Patch) -> Fault:
    return Fault(name, what, family, patches)


FAULTS: Final = (
    # -- one for each field scenario
    _row("B01", "a release names a block twice", "partition", (TorchTarget, "release", f.release_twice_in_list)),
    _row("B02", "fork counts one holder too many", "holders", (Manager, "share", f.share_counts_twice)),
    _row(
        "B03", "two paths give reserved blocks back", "partition",
        (TorchTarget, "deallocate", f.deallocate_releases_reserved_again),
    ),
    _row("B05", "truncate rounds down to blocks", "map_truth", (Sequence, "truncate", f.truncate_rounds_down)),
    _row("B06", "a handle can be given back twice", "misuse", (TorchTarget, "release", f.release_again)),
    _row(
        "B07", "abort before admission forgets the match", "holders",
        (TorchTarget, "abort", f.abort_before_admission_forgets),
    ),
    _row(
        "B08", "a refused request loses its match", "atomic_failure",
        (TorchTarget, "allocate", f.refused_drops_match),
    ),
    _row(
        "B10", "finishing gives back written blocks only", "partition",
        (TorchTarget, "deallocate", f.deallocate_only_written),
    ),
    _row(
        "B13", "used falls only without the cache", "usage",
        (Manager, "deallocate", f.used_falls_for_last_holder_only),
    ),
    _row(
        "B15", "idle blocks are counted by another length", "atomic_failure",
        (Cache, "became_idle", f.idle_counted_by_key),
    ),
    _row("B16", "single tokens go to the padding block", "content", (Buffers, "slot_ids", f.one_token_goes_to_padding)),
    _row("B18", "padding is another block than 0", "reserved", (Manager, "_pop_blocks", f.pop_padding_too)),
    _row("B19", "an evicted block keeps its key", "map_truth", (Cache, "_drop", f.drop_keeps_key)),
    _row(
        "B21", "published before it is written", "publish_after_write",
        (TorchTarget, "allocate", f.allocate_publishes),
    ),
    _row(
        "B22", "published for the same step", "publish_after_write",
        (TorchTarget, "allocate", f.allocate_publishes), (TorchTarget, "_give_back", f.give_back_withdraws),
    ),
    _row(
        "B24", "reset drops content and keeps keys", "map_truth",
        (TorchTarget, "reset", f.reset_discards_content_only),
    ),
    _row("B25", "reset does not reach blocks in use", "map_truth", (TorchTarget, "reset", f.reset_only_idle)),
    _row("B26", "evict ignores holders", "no_reuse_while_used", (Cache, "evict", f.evict_anybody)),
    _row("B27", "evict ignores outside holders", "no_reuse_while_used", (Cache, "evict", f.evict_unless_in_a_table)),
    _row("B29", "evict takes parents along", "no_reuse_while_used", (Cache, "evict", f.evict_takes_parents)),
    _row(
        "B30", "duplicates are freed under a table", "partition",
        (TorchTarget, "_publish", f.publish_frees_duplicates),
    ),
    _row(
        "B32", "no copy-on-write", "exclusive_writer",
        (Sequence, "shared_indices", f.nothing_is_shared),
    ),
    _row("B33", "a refusal leaves counts raised", "atomic_failure", (TorchTarget, "allocate", f.refused_raises_counts)),
    _row("B34", "a refusal loses what was taken", "atomic_failure", (Manager, "allocate", f.refused_keeps_taken)),
    _row("B36", "an evicted block does not come back", "partition", (Cache, "_drop", f.drop_keeps_block)),
    _row("B41", "evict counts what it skips", "progress", (Cache, "evict", f.evict_counts_skipped)),
    _row("B44", "keys of rejected drafts stay", "map_truth", (Sequence, "truncate", f.truncate_keeps_keys)),
    _row("B59", "allocate does not evict", "progress", (Manager, "has_enough_blocks", f.never_evicts)),
    _row("B60", "what can never fit is granted", "progress", (TorchTarget, "allocate", f.granted_without_room)),
    _row("B61", "slots are computed in few bits", "content", (Buffers, "slot_ids", f.slots_in_four_bits)),
    _row("B62", "slots are made with another block size", "content", (Buffers, "slot_ids", f.slots_of_smaller_blocks)),
    _row(
        "B65", "a removal is reported for a copy", "map_truth",
        (TorchTarget, "_give_back", f.duplicates_report_removal),
    ),
    _row("B67", "parts of the context are not told apart", "map_truth", (TorchTarget, "start", f.start_untagged)),
    _row(
        "B68", "the adapter's version is not in the key", "map_truth",
        (TorchTarget, "start", f.start_without_version),
    ),
    _row("B69", "the context is not in the key", "map_truth", (TorchTarget, "start", f.start_with_tokens_only)),
    # -- others that every reviewer has seen
    _row("double_append", "an id is entered twice in the free list", "partition", (Manager, "free", f.free_twice)),
    _row("lost_id", "some ids are not entered in the free list", "partition", (Manager, "free", f.free_not)),
    _row("padding_handed_out", "the padding block fills in", "reserved", (Manager, "allocate", f.allocate_padding)),
    _row("fork_not_counted", "fork does not raise counts", "holders", (Manager, "share", f.share_counts_nothing)),
    _row("hit_not_counted", "a hit does not raise counts", "holders", (Cache, "match", f.match_counts_nothing)),
    _row("hold_of_any_block", "a free block can be held", "misuse", (Manager, "hold", f.hold_of_any_block)),
    _row("hold_not_counted", "an outside handle is not counted", "holders", (TorchTarget, "hold", f.hold_not_counted)),
    _row(
        "nothing_forbidden", "what others hold is written without a copy", "exclusive_writer",
        (Sequence, "forbidden_indices", f.nothing_forbidden),
    ),
    _row(
        "written_behind_others", "two that share a block write the same cells", "exclusive_writer",
        (Sequence, "forbidden_indices", f.written_behind_others),
    ),
    _row("used_counts_handles", "used counts handles", "usage", (Manager, "_count", f.used_counts_handles)),
    _row(
        "preempt_leaks_last", "preempt loses the last block", "partition",
        (TorchTarget, "preempt", f.preempt_keeps_last),
    ),
    _row(
        "preempt_keeps_computed", "preempt keeps the computed count", "content",
        (TorchTarget, "preempt", f.preempt_keeps_computed),
    ),
    _row(
        "refused_evicts", "a refused allocation evicts", "atomic_failure",
        (Manager, "has_enough_blocks", f.refused_evicts),
    ),
    _row("one_block_too_many", "full blocks need one more", "progress", (Sequence, "blocks_for", f.one_block_too_many)),
    _row("one_block_too_few", "a partial block needs none", "progress", (Sequence, "blocks_for", f.one_block_too_few)),
    _row("reset_frees_used", "reset frees blocks in use", "partition", (Cache, "reset", f.reset_frees_used)),
    _row(
        "abort_publishes", "abort publishes what it has room for", "publish_after_write",
        (TorchTarget, "abort", f.abort_publishes),
    ),
    _row(
        "finish_does_not_publish", "deallocate does not publish", "map_truth",
        (TorchTarget, "deallocate", f.deallocate_does_not_publish),
    ),
    _row(
        "hit_of_everything", "a hit takes the last token", "map_truth",
        (TorchTarget, "allocate_shared", f.hit_of_everything),
    ),
    _row("short_hit", "a hit ends after one block", "map_truth", (Cache, "match", f.hit_of_one_block)),
    _row("salt_forgotten", "the salt is not in the key", "key", (TorchTarget, "start", f.start_without_salt)),
    _row(
        "images_joined", "images are put together in the key", "map_truth",
        (TorchTarget, "start", f.start_joins_images),
    ),
    _row(
        "images_sorted", "images have no order in the key", "key",
        (TorchTarget, "start", f.start_with_sorted_images),
    ),
    _row(
        "empty_is_none", "an empty part of the context is none", "key",
        (TorchTarget, "start", f.start_with_empty_as_none),
    ),
    _row(
        "version_of_adapter", "a version counts only with an adapter", "key",
        (TorchTarget, "start", f.start_with_version_of_adapter),
    ),
    _row(
        "version_of_8_bits", "keys know 8 bits of the version", "key",
        (TorchTarget, "start", f.start_with_version_of_8_bits),
    ),
    _row(
        "version_of_32_bits", "keys know 32 bits of the version", "key",
        (TorchTarget, "start", f.start_with_version_of_32_bits),
    ),
    _row("short_salt", "keys know 8 letters of the salt", "key", (TorchTarget, "start", f.start_with_short_salt)),
    _row(
        "lower_salt", "upper and lower case salts are the same", "key",
        (TorchTarget, "start", f.start_with_lower_salt),
    ),
    _row(
        "hash_of_48_bits", "keys know 48 bits of a token", "key",
        (Keys, "extend", f.extend_with_48_bits), (Cache, "_find", f.find_with_48_bits),
    ),
    _row(
        "hash_without_parent", "keys know one block only", "map_truth",
        (Keys, "extend", f.extend_without_parent), (Cache, "_find", f.find_without_parent),
    ),
    _row(
        "hash_of_32_bits", "keys know 32 bits of a token", "key",
        (Keys, "extend", f.extend_with_32_bits), (Cache, "_find", f.find_with_32_bits),
    ),
    _row(
        "copy_is_empty", "copy-on-write copies nothing", "content",
        (Buffers, "copy_blocks", f.allocate_copies_nothing),
    ),
    _row(
        "copy_of_neighbour", "copy-on-write copies another block", "content",
        (Buffers, "copy_blocks", f.copies_from_neighbour),
    ),
    _row("fork_shares_table", "parent and child have one table", "misuse", (Sequence, "fork", f.fork_shares_table)),
    _row(
        "truncate_keeps_computed", "rejected tokens stay computed", "content",
        (Sequence, "truncate", f.truncate_keeps_computed),
    ),
    _row("truncate_leaks", "truncate loses blocks", "partition", (Sequence, "truncate", f.truncate_keeps_blocks)),
    _row(
        "write_advances_short", "a long write counts one less", "content",
        (Sequence, "advance", f.write_forgets_to_advance),
    ),
    _row(
        "write_shifted", "a step writes tokens in other places", "content",
        (Buffers, "write_tags", f.write_shifts_by_one),
    ),
    _row("batch_mixed", "sequences of a step are mixed up", "content", (TorchTarget, "write", f.write_mixes_batch)),
    _row(
        "batch_in_parts", "half of an impossible step is done", "atomic_failure",
        (TorchTarget, "write", f.write_batch_in_parts),
    ),
    _row(
        "partial_read", "a read begins at the beginning of a block", "content",
        (TorchTarget, "read", f.read_from_block_start),
    ),
    _row(
        "many_blocks", "blocks from 16 on are taken for others", "content",
        (Buffers, "slot_ids", f.slots_of_sixteen_blocks),
    ),
    _row(
        "long_block", "places in a block have three bits", "content",
        (Buffers, "slot_ids", f.slots_of_eight_tokens),
    ),
    _row("start_again", "a name in use is taken over", "misuse", (TorchTarget, "start", f.start_again)),
    _row("truncate_clamps", "impossible lengths are accepted", "misuse", (TorchTarget, "truncate", f.truncate_clamps)),
    _row("open_after_close", "operations go on after close", "misuse", (TorchTarget, "close", f.close_leaves_open)),
    _row("removals_unreported", "removals are not reported", "partition", (Cache, "drain_events", f.silent)),
)  # fmt: skip
"""All faulty managers; those of the field scenarios come first."""

BY_NAME: Final = {fault.name: fault for fault in FAULTS}


class Twin(TorchTarget):
    """A good target whose parts are of the classes in `parts`, as far as they are named there."""

    parts: dict[type, type]

    def __init__(self, config: PoolConfig, **options: Any) -> None:
        super().__init__(config, **options)
        self._change(self.buffers_)
        if self.manager_.prefix_cache_ is not None:
            self._change(self.manager_.prefix_cache_)

    def _make_manager(self, record_events: bool) -> Manager:
        kind = self.parts.get(Manager, Manager)
        config = self.config
        made: Manager = kind(
            config.num_blocks,
            config.block_size,
            enable_prefix_cache=config.enable_prefix_cache,
            sanitizer=self.sanitizer_,
            record_events=record_events,
        )
        return made

    def _change(self, part: Any) -> None:
        for known, changed in self.parts.items():
            if type(part) is known:
                part.__class__ = changed

    def _get(self, seq: str, where: str) -> Sequence:
        sequence = super()._get(seq, where)
        self._change(sequence)
        self._change(sequence.keys_)
        return sequence


@cache
def build(name: str) -> type[Twin]:
    """The faulty manager of that name.

    Raises:
        KeyError: there is none.
    """
    methods: dict[type, dict[str, Any]] = {}
    for owner, method, replacement in BY_NAME[name].patches:
        assert hasattr(owner, method), f"{owner.__name__} has no {method}"
        methods.setdefault(owner, {})[method] = replacement
    own = methods.pop(TorchTarget, {})
    parts = {o: type(f"Faulty{o.__name__}", (o,), {"__slots__": (), **new}) for o, new in methods.items()}
    return type(name, (Twin,), {"parts": parts, "__doc__": BY_NAME[name].what, **own})


def __getattr__(name: str) -> type[Twin]:
    if name in BY_NAME:
        return build(name)
    raise AttributeError(name)
