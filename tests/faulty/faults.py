"""What is wrong with each faulty manager: functions that stand in for one method of the good one.

Each takes what the good method takes. Most do what it does and then a little more, or a little less.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Items
from typing import Any

import numpy as np
from torch import Tensor
from xxhash import xxh3_128_digest

from kvspec.impl.block import Block, BlockRecord
from kvspec.impl.block_manager_impl import BlockManagerImpl
from kvspec.impl.buffers import KVBuffers
from kvspec.impl.prefix_cache import CacheEntry, PrefixCache, PrefixKeys, encode_context
from kvspec.impl.sequence import Sequence
from kvspec.impl.target import TorchTarget
from kvspec.impl.tokens import TOKEN_BYTES, token_bytes
from kvspec.model.conformance import CacheEvent, Context, Tags

# -- the free list ----------------------------------------------------------------------------------------------------


def push(manager: BlockManagerImpl, block_id: int) -> None:
    """Put an id into the free list, whatever the list holds."""
    manager.free_blocks_.insert(manager.num_free_blocks_, block_id)
    manager.num_free_blocks_ += 1


def free_twice(self: BlockManagerImpl, block_id: int) -> None:
    BlockManagerImpl.free(self, block_id)
    push(self, block_id)


def free_not(self: BlockManagerImpl, block_id: int) -> None:
    """Every fourth id is lost: taken back, and never entered in the list."""
    BlockManagerImpl.free(self, block_id)
    if block_id % 4 == 3:
        self.num_free_blocks_ -= 1


def release_twice_in_list(self: TorchTarget, handle: int) -> None:
    record = self._holds[handle].record_ if handle in self._holds else None
    TorchTarget.release(self, handle)
    if record is not None and not record.live_:
        push(self.manager_, record.id_)


def deallocate_releases_reserved_again(self: TorchTarget, seq: str) -> None:
    sequence = self._sequences.get(seq)
    reserved = [] if sequence is None else sequence.kv_state_.blocks_[sequence.blocks_for(sequence.computed_) :]
    records = [b.record_ for b in reserved]
    TorchTarget.deallocate(self, seq)
    for record in records:
        if record is not None and not record.live_:
            push(self.manager_, record.id_)


def pop_padding_too(self: BlockManagerImpl, num_blocks: int, counted: bool) -> list[Block]:
    """Block 0 is set aside and stays in the list; the last block is what the manager takes for padding."""
    blocks = BlockManagerImpl._pop_blocks(self, num_blocks, counted)
    if not counted:
        self.free_blocks_[0], self.free_blocks_[self.num_free_blocks_] = 0, self.free_blocks_[0]
    return blocks


def allocate_padding(self: BlockManagerImpl, num_blocks: int) -> list[Block] | None:
    """One block short, the padding block fills in."""
    blocks = BlockManagerImpl.allocate(self, num_blocks)
    if blocks is None and num_blocks:
        blocks = BlockManagerImpl.allocate(self, num_blocks - 1)
        if blocks is not None:
            blocks += self._count([self.padding_block_.copy()])
    return blocks


# -- counts and handles -----------------------------------------------------------------------------------------------


def share_counts_twice(self: BlockManagerImpl, blocks: Items[Block]) -> list[Block]:
    for block in blocks[:1]:
        if block.record_ is not None:
            block.record_.add_reference()
    return BlockManagerImpl.share(self, blocks)


def share_counts_nothing(self: BlockManagerImpl, blocks: Items[Block]) -> list[Block]:
    handles = BlockManagerImpl.share(self, blocks)
    for block in handles:
        assert block.record_ is not None
        block.record_.ref_count_ -= 1
    return handles


def match_counts_nothing(self: PrefixCache, tokens: array[int], keys: PrefixKeys, max_blocks: int) -> list[Block]:
    blocks = PrefixCache.match(self, tokens, keys, max_blocks)
    for block in blocks:
        assert block.record_ is not None
        block.record_.ref_count_ -= 1
    return blocks


def used_falls_for_last_holder_only(self: BlockManagerImpl, blocks: Items[Block]) -> None:
    """The cache's own handle counts as a user."""
    kept = sum(1 for b in blocks if b.record_ is not None and b.record_.holders_ == 1 and b.record_.ref_count_ > 1)
    BlockManagerImpl.deallocate(self, blocks)
    self.num_used_blocks_ += kept


def used_counts_handles(self: BlockManagerImpl, blocks: list[Block]) -> list[Block]:
    before = self.num_used_blocks_
    BlockManagerImpl._count(self, blocks)
    self.num_used_blocks_ = before + len(blocks)
    return blocks


def release_again(self: TorchTarget, handle: int) -> None:
    """The handle stays known; given back again, it takes a reference that is somebody else's."""
    known = self.__dict__.setdefault("given_back", {})
    record = known.get(handle)
    if record is not None and record.ref_count_:
        Block(record).release()
        return
    known[handle] = self._holds[handle].record_ if handle in self._holds else None
    TorchTarget.release(self, handle)


def abort_before_admission_forgets(self: TorchTarget, seq: str) -> None:
    sequence = self._get(seq, "abort")
    if sequence.kv_state_.blocks_ and not any(sequence.kv_state_.taken_):
        del self._sequences[seq]
    else:
        TorchTarget.abort(self, seq)


def deallocate_only_written(self: TorchTarget, seq: str) -> None:
    sequence = self._get(seq, "deallocate")
    sequence.kv_state_.take_from(sequence.blocks_for(sequence.computed_))
    TorchTarget.deallocate(self, seq)


def preempt_keeps_last(self: TorchTarget, seq: str) -> None:
    sequence = self._get(seq, "preempt")
    blocks = sequence.kv_state_.blocks_
    sequence.kv_state_.take_from(max(0, len(blocks) - 1))
    TorchTarget.preempt(self, seq)


def preempt_keeps_computed(self: TorchTarget, seq: str) -> None:
    computed = self._get(seq, "preempt").computed_
    TorchTarget.preempt(self, seq)
    self._sequences[seq].computed_ = computed


def hold_of_any_block(self: BlockManagerImpl, block_id: int) -> Block:
    """Whether somebody has the block is not asked."""
    record = self._record(block_id, "hold")
    if record is None:
        return BlockManagerImpl.hold(self, block_id)
    record.add_reference()
    return self.handle_type_(record)


def hold_not_counted(self: TorchTarget, block_id: int) -> int:
    handle = TorchTarget.hold(self, block_id)
    record = self._holds[handle].record_
    assert record is not None
    record.ref_count_ -= 1
    return handle


def nothing_forbidden(self: Sequence, stop: int) -> list[int]:
    """A block that others hold is written, whether it was copied or not."""
    return []


def written_behind_others(self: Sequence, stop: int) -> list[int]:
    """Who came to a block by a hit or a fork writes it, too, behind what was written then."""
    return [i for i in self.shared_indices(stop) if max(self.computed_, i * self.block_size) < self.written_]


# -- refusals ---------------------------------------------------------------------------------------------------------


def refused_drops_match(self: TorchTarget, seq: str, num_tokens: int) -> bool:
    granted = TorchTarget.allocate(self, seq, num_tokens)
    if not granted:
        self._sequences[seq].reset()
    return granted


def refused_raises_counts(self: TorchTarget, seq: str, num_tokens: int) -> bool:
    granted = TorchTarget.allocate(self, seq, num_tokens)
    if not granted:
        for block in self._sequences[seq].kv_state_.blocks_:
            assert block.record_ is not None
            block.record_.add_reference()
    return granted


def refused_keeps_taken(self: BlockManagerImpl, num_blocks: int) -> list[Block] | None:
    blocks = BlockManagerImpl.allocate(self, num_blocks)
    if blocks is None:
        self._pop_blocks(self.num_free_blocks_, counted=True)
    return blocks


def refused_evicts(self: BlockManagerImpl, num_blocks: int) -> bool:
    short = num_blocks - self.num_free_blocks_
    if short > 0 and self.prefix_cache_ is not None:
        self.prefix_cache_.evict(short)
    return self.num_free_blocks_ >= num_blocks


def never_evicts(self: BlockManagerImpl, num_blocks: int) -> bool:
    return num_blocks <= self.num_free_blocks_


def granted_without_room(self: TorchTarget, seq: str, num_tokens: int) -> bool:
    """What can never fit is put off and never refused."""
    granted = TorchTarget.allocate(self, seq, num_tokens)
    return granted or self._sequences[seq].blocks_for(num_tokens) >= self.config.num_blocks


def one_block_too_many(self: Sequence, num_tokens: int) -> int:
    return num_tokens // self.block_size + 1


def one_block_too_few(self: Sequence, num_tokens: int) -> int:
    return max(num_tokens // self.block_size, 1) if num_tokens else 0


# -- the prefix cache -------------------------------------------------------------------------------------------------


def idle_counted_by_key(self: PrefixCache, record: BlockRecord) -> None:
    PrefixCache.became_idle(self, record)
    self.num_idle_ += 1


def drop_keeps_key(self: PrefixCache, entry: CacheEntry) -> None:
    record = entry.record_
    PrefixCache._drop(self, entry)
    entry.record_ = record
    self.entries_[entry.key] = entry


def drop_keeps_block(self: PrefixCache, entry: CacheEntry) -> None:
    assert entry.record_ is not None
    entry.record_.ref_count_ += 1
    PrefixCache._drop(self, entry)


def evict_anybody(self: PrefixCache, num_blocks: int) -> int:
    return drop_first(self, num_blocks, list(self.entries_.values()))


def evict_unless_in_a_table(self: PrefixCache, num_blocks: int) -> int:
    return drop_first(self, num_blocks, [e for e in self.entries_.values() if not e.record_.holders_])  # type: ignore[union-attr]


def drop_first(cache: PrefixCache, num_blocks: int, entries: list[CacheEntry]) -> int:
    """Drop the first entries, whoever holds their blocks."""
    for entry in entries[:num_blocks]:
        if cache._idle.pop(entry.key, None) is not None:
            cache.num_idle_ -= 1
        cache._drop(entry)
    return min(num_blocks, len(entries))


def evict_takes_parents(self: PrefixCache, num_blocks: int) -> int:
    before = dict(self.entries_)
    freed = PrefixCache.evict(self, num_blocks)
    for key in [k for k in before if k not in self.entries_]:
        parent = self.entries_.get(before[key].parent)
        if parent is not None:
            drop_first(self, 1, [parent])
    return freed


def evict_counts_skipped(self: PrefixCache, num_blocks: int) -> int:
    """The least recently used come first; those in use are skipped, and counted."""
    oldest = sorted(self.entries_.values(), key=lambda e: e.order)[:num_blocks]
    idle = [e for e in oldest if e.record_ is not None and e.record_.ref_count_ == 1]
    return drop_first(self, len(idle), idle)


def reset_discards_content_only(self: TorchTarget) -> bool:
    self.buffers_.storage_.zero_()
    return True


def reset_only_idle(self: TorchTarget) -> bool:
    self.evict(self.config.num_blocks)
    return True


def reset_frees_used(self: PrefixCache) -> None:
    records = [e.record_ for e in self.entries_.values()]
    PrefixCache.reset(self)
    for record in records:
        if record is not None and record.live_:
            push(record.manager_, record.id_)  # type: ignore[arg-type]


def allocate_publishes(self: TorchTarget, seq: str, num_tokens: int) -> bool:
    """Keys are entered for everything that there is room for."""
    granted = TorchTarget.allocate(self, seq, num_tokens)
    if granted:
        publish_up_to(self, seq, num_tokens)
    return granted


def publish_up_to(target: TorchTarget, seq: str, num_tokens: int) -> None:
    """Publish blocks as if that many tokens were computed."""
    sequence = target._sequences[seq]
    computed = sequence.computed_
    sequence.computed_ = max(computed, num_tokens)
    target._publish(sequence)
    sequence.computed_ = computed


def give_back_withdraws(self: TorchTarget, sequence: Sequence) -> None:
    """The keys of blocks that were not written go with the sequence."""
    cache = self.manager_.prefix_cache_
    written = sequence.num_full_blocks
    unwritten = {b.id for b in sequence.kv_state_.blocks_[written:]}
    if cache is not None:
        for entry in [e for e in cache.entries_.values() if e.id in unwritten]:
            drop_first(cache, 1, [entry])
    sequence.published_ = min(sequence.published_, written)
    TorchTarget._give_back(self, sequence)


def abort_publishes(self: TorchTarget, seq: str) -> None:
    sequence = self._get(seq, "abort")
    publish_up_to(self, seq, sequence.room if sequence.room <= len(sequence.tokens_) else sequence.computed_)
    TorchTarget.abort(self, seq)


def deallocate_does_not_publish(self: TorchTarget, seq: str) -> None:
    TorchTarget.abort(self, seq)


def publish_frees_duplicates(self: TorchTarget, sequence: Sequence) -> None:
    """A block that is in the cache already is given back; the table still names it."""
    TorchTarget._publish(self, sequence)
    cache = self.manager_.prefix_cache_
    for key, block in zip(sequence.keys_.chain[: sequence.num_full_blocks], sequence.kv_state_.blocks_, strict=False):
        entry = cache.entries_.get(key) if cache is not None else None
        if entry is not None and entry.id != block.id and block.ref_count == 1:
            block.record_.live_ = False  # type: ignore[union-attr]
            push(self.manager_, block.id)


def duplicates_report_removal(self: TorchTarget, sequence: Sequence) -> None:
    cache = self.manager_.prefix_cache_
    if cache is not None:
        chain, blocks = sequence.keys_.chain, sequence.kv_state_.blocks_
        for key, block in zip(chain[: sequence.num_full_blocks], blocks, strict=False):
            if key in cache.entries_ and cache.entries_[key].id != block.id:
                cache._events.append(CacheEvent("removed", key, block.id))
    TorchTarget._give_back(self, sequence)


def hit_of_everything(self: TorchTarget, seq: str) -> int:
    """The last token is matched too."""
    sequence = self._get(seq, "allocate_shared")
    if sequence.kv_state_.blocks_:
        return TorchTarget.allocate_shared(self, seq)
    limit = len(sequence.tokens_) // self.config.block_size
    sequence.mount(self.manager_.allocate_shared(sequence.tokens_, sequence.keys_, limit))
    return sequence.computed_


def hit_of_one_block(self: PrefixCache, tokens: array[int], keys: PrefixKeys, max_blocks: int) -> list[Block]:
    return PrefixCache.match(self, tokens, keys, min(1, max_blocks))


# -- keys -------------------------------------------------------------------------------------------------------------


def context_of(target: TorchTarget, seq: str, tokens: Items[int], context: Context, encoded: bytes) -> None:
    """Start a sequence with keys of another context."""
    TorchTarget.start(target, seq, tokens, context)
    target._sequences[seq].keys_ = type(target._sequences[seq].keys_)(target.config.block_size, encoded)


def start_untagged(self: TorchTarget, seq: str, tokens: Items[int], context: Context) -> None:
    parts = [context.adapter, context.salt, *context.images]
    encoded = f"{context.adapter_version}" + "".join(f"|{p}" for p in parts if p is not None)
    context_of(self, seq, tokens, context, encoded.encode())


def start_without_version(self: TorchTarget, seq: str, tokens: Items[int], context: Context) -> None:
    context_of(self, seq, tokens, context, encode_context(context.adapter, 0, context.salt, context.images))


def start_with_tokens_only(self: TorchTarget, seq: str, tokens: Items[int], context: Context) -> None:
    context_of(self, seq, tokens, context, b"")


def start_without_salt(self: TorchTarget, seq: str, tokens: Items[int], context: Context) -> None:
    encoded = encode_context(context.adapter, context.adapter_version, None, context.images)
    context_of(self, seq, tokens, context, encoded)


def start_joins_images(self: TorchTarget, seq: str, tokens: Items[int], context: Context) -> None:
    images = ("".join(context.images),) if context.images else ()
    encoded = encode_context(context.adapter, context.adapter_version, context.salt, images)
    context_of(self, seq, tokens, context, encoded)


def start_with_sorted_images(self: TorchTarget, seq: str, tokens: Items[int], context: Context) -> None:
    images = tuple(sorted(context.images))
    encoded = encode_context(context.adapter, context.adapter_version, context.salt, images)
    context_of(self, seq, tokens, context, encoded)


def start_with_empty_as_none(self: TorchTarget, seq: str, tokens: Items[int], context: Context) -> None:
    encoded = encode_context(context.adapter or None, context.adapter_version, context.salt or None, context.images)
    context_of(self, seq, tokens, context, encoded)


def start_with_version_of_adapter(self: TorchTarget, seq: str, tokens: Items[int], context: Context) -> None:
    version = 0 if context.adapter is None else context.adapter_version
    encoded = encode_context(context.adapter, version, context.salt, context.images)
    context_of(self, seq, tokens, context, encoded)


def start_with_version_of_8_bits(self: TorchTarget, seq: str, tokens: Items[int], context: Context) -> None:
    encoded = encode_context(context.adapter, context.adapter_version % 2**8, context.salt, context.images)
    context_of(self, seq, tokens, context, encoded)


def start_with_version_of_32_bits(self: TorchTarget, seq: str, tokens: Items[int], context: Context) -> None:
    encoded = encode_context(context.adapter, context.adapter_version % 2**32, context.salt, context.images)
    context_of(self, seq, tokens, context, encoded)


def start_with_short_salt(self: TorchTarget, seq: str, tokens: Items[int], context: Context) -> None:
    salt = None if context.salt is None else context.salt[:8]
    context_of(
        self, seq, tokens, context, encode_context(context.adapter, context.adapter_version, salt, context.images)
    )


def start_with_lower_salt(self: TorchTarget, seq: str, tokens: Items[int], context: Context) -> None:
    salt = None if context.salt is None else context.salt.lower()
    context_of(
        self, seq, tokens, context, encode_context(context.adapter, context.adapter_version, salt, context.images)
    )


def extend_without_parent(self: PrefixKeys, tokens: array[int], num_blocks: int) -> None:
    width = self.block_size * TOKEN_BYTES
    data = token_bytes(tokens[: num_blocks * self.block_size])
    for start in range(len(self.chain) * width, len(data), width):
        self.chain.append(xxh3_128_digest(self.root + data[start : start + width]))


def find_without_parent(
    self: PrefixCache, tokens: array[int], keys: PrefixKeys, max_blocks: int
) -> list[CacheEntry]:
    extend_without_parent(keys, tokens, min(max_blocks, len(tokens) // self.block_size_))
    return found_run(self, keys, max_blocks)


def extend_with_32_bits(self: PrefixKeys, tokens: array[int], num_blocks: int) -> None:
    """Token ids are cut to 32 bits before they are hashed."""
    PrefixKeys.extend(self, array("q", (t & 0xFFFFFFFF for t in tokens)), num_blocks)


def find_with_32_bits(self: PrefixCache, tokens: array[int], keys: PrefixKeys, max_blocks: int) -> list[CacheEntry]:
    extend_with_32_bits(keys, tokens, min(max_blocks, len(tokens) // self.block_size_))
    return found_run(self, keys, max_blocks)


def extend_with_48_bits(self: PrefixKeys, tokens: array[int], num_blocks: int) -> None:
    PrefixKeys.extend(self, array("q", (t % 2**48 for t in tokens)), num_blocks)


def find_with_48_bits(self: PrefixCache, tokens: array[int], keys: PrefixKeys, max_blocks: int) -> list[CacheEntry]:
    extend_with_48_bits(keys, tokens, min(max_blocks, len(tokens) // self.block_size_))
    return found_run(self, keys, max_blocks)


def found_run(cache: PrefixCache, keys: PrefixKeys, max_blocks: int) -> list[CacheEntry]:
    """Entries of the leading keys; the hash alone is trusted."""
    found: list[CacheEntry] = []
    for key in keys.chain[:max_blocks]:
        entry = cache.entries_.get(key)
        if entry is None:
            break
        found.append(entry)
    return found


def truncate_keeps_keys(self: Sequence, num_tokens: int) -> list[Block]:
    chain = self.keys_.chain[:]
    taken = Sequence.truncate(self, num_tokens)
    self.keys_.chain[:] = chain
    return taken


# -- copies and content -----------------------------------------------------------------------------------------------


def nothing_is_shared(self: Sequence, stop: int) -> list[int]:
    return []


def allocate_copies_nothing(self: KVBuffers, pairs: Items[tuple[int, int]]) -> None:
    return None


def copies_from_neighbour(self: KVBuffers, pairs: Items[tuple[int, int]]) -> None:
    last = self.storage_.shape[2] - 1
    KVBuffers.copy_blocks(self, [(source % last + 1, target) for source, target in pairs])


def fork_shares_table(self: Sequence, blocks: Items[Block]) -> Sequence:
    """The child works on the list of its parent."""
    child = Sequence.fork(self, blocks)
    child.kv_state_ = self.kv_state_
    return child


def truncate_keeps_computed(self: Sequence, num_tokens: int) -> list[Block]:
    computed = self.computed_
    taken = Sequence.truncate(self, num_tokens)
    self.computed_ = computed
    return taken


def truncate_rounds_down(self: Sequence, num_tokens: int) -> list[Block]:
    taken = Sequence.truncate(self, num_tokens)
    return self.kv_state_.take_from(num_tokens // self.block_size) + taken


def truncate_keeps_blocks(self: Sequence, num_tokens: int) -> list[Block]:
    """What is behind the kept tokens leaves the table and is not given back."""
    Sequence.truncate(self, num_tokens)
    return []


def one_token_goes_to_padding(self: KVBuffers, tables: array[int], starts: Tags, positions: Tags) -> Tensor:
    slots = KVBuffers.slot_ids(self, tables, starts, positions)
    return slots * 0 if len(positions) == 1 else slots


def slots_in_four_bits(self: KVBuffers, tables: array[int], starts: Tags, positions: Tags) -> Tensor:
    """As with 32 bits in a pool that is large enough: the product wraps."""
    return KVBuffers.slot_ids(self, tables, starts, positions) % 16


def slots_of_smaller_blocks(self: KVBuffers, tables: array[int], starts: Tags, positions: Tags) -> Tensor:
    slots = KVBuffers.slot_ids(self, tables, starts, positions)
    return slots - slots // self.block_size_ * (self.block_size_ > 1)


def write_forgets_to_advance(self: Sequence, stop: int) -> None:
    Sequence.advance(self, stop - (stop - self.computed_ > 2))


def write_shifts_by_one(self: KVBuffers, slots: Tensor, tags: Tags) -> None:
    KVBuffers.write_tags(self, slots, np.roll(tags, 1))


def write_mixes_batch(self: TorchTarget, batch: Items[tuple[str, Tags]]) -> None:
    """Two sequences of a step that have equally many tokens get each other's contents."""
    mixed = [*batch]
    for i in range(len(mixed) - 1):
        (one, a), (other, b) = mixed[i], mixed[i + 1]
        if len(a) == len(b):
            mixed[i], mixed[i + 1] = (one, b), (other, a)
    TorchTarget.write(self, mixed)


def write_batch_in_parts(self: TorchTarget, batch: Items[tuple[str, Tags]]) -> None:
    """A step with an impossible part is done up to that part."""
    for one in batch:
        TorchTarget.write(self, [one])


def read_from_block_start(self: TorchTarget, seq: str, start: int, stop: int) -> Tags:
    """What is read begins at the beginning of a block."""
    first = start - start % self.config.block_size
    return TorchTarget.read(self, seq, first, first + stop - start)


def slots_of_sixteen_blocks(self: KVBuffers, tables: array[int], starts: Tags, positions: Tags) -> Tensor:
    return KVBuffers.slot_ids(self, tables, starts, positions) % (16 * self.block_size_)


def slots_of_eight_tokens(self: KVBuffers, tables: array[int], starts: Tags, positions: Tags) -> Tensor:
    """Places in a block are counted in three bits."""
    slots = KVBuffers.slot_ids(self, tables, starts, positions)
    return slots - slots % self.block_size_ // 8 * 8


# -- misuse -----------------------------------------------------------------------------------------------------------


def start_again(self: TorchTarget, seq: str, tokens: Items[int], context: Context) -> None:
    """A name in use is taken over; what its sequence held is lost."""
    self._sequences.pop(seq, None)
    TorchTarget.start(self, seq, tokens, context)


def truncate_clamps(self: TorchTarget, seq: str, num_tokens: int) -> None:
    """A length that makes no sense is taken for the nearest that does."""
    known = len(self._get(seq, "truncate").tokens_)
    TorchTarget.truncate(self, seq, min(max(num_tokens, 0), known))


def close_leaves_open(self: TorchTarget) -> None:
    self.closed_ = False


def silent(self: PrefixCache) -> list[CacheEvent]:
    """Removals are not reported."""
    return [e for e in PrefixCache.drain_events(self) if e.kind == "stored"]


Replacement = Any
