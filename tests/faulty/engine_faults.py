"""What replaces a method of the reference engine, or of its manager, in a faulty one."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from kvspec.model.engines.protocol import AnyRecord, Ended, Forward, KeyEvent, Known, Move, Pin, Run
from kvspec.model.engines.recorder import Seen
from kvspec.model.engines.reference import Key, Manager, ModelEngineTarget, Plan, Request

Engine = ModelEngineTarget


# -- reference counts, and the list of free blocks ---------------------------------------------------------------------


def forget_first(request: Request) -> None:
    """The first block of a request is in no table any more, and was given back by nobody."""
    for table in request.tables:
        for at, block in enumerate(table):
            if block is not None:
                table[at] = None
                return


def preempt_leaks(self: Engine, request: Request) -> None:
    forget_first(request)
    Engine._preempt(self, request)


def abort_leaks(self: Engine, seq: str) -> list[AnyRecord]:
    for request in self.running:
        if request.seq == seq:
            forget_first(request)
    return Engine.abort(self, seq)


def abort_waiting_only(self: Engine, seq: str) -> list[AnyRecord]:
    """Who runs is taken from the queue, and keeps its blocks."""
    request = next((r for r in self.running if r.seq == seq), None)
    if request is None:
        return Engine.abort(self, seq)
    self.running.remove(request)
    self.recorder.add(Ended(seq))
    return self.recorder.taken()


def end_keeps_blocks(self: Engine, request: Request) -> None:
    self.recorder.add(Ended(request.seq))
    for queue in (self.waiting, self.running):
        if request in queue:
            queue.remove(request)


def touch_before_check(self: Manager, request: Request, stop: int, hit: int | None = None) -> bool:
    """What was hit is held before it is known whether there is room for the rest."""
    before = [] if hit is None else list(self._hits(request, hit).values())
    if Manager.allocate(self, request, stop, hit):
        return True
    for block in before:
        self.touch(block)
    return False


def mount_before_check(self: Manager, request: Request, stop: int, hit: int | None = None) -> bool:
    if Manager.allocate(self, request, stop, hit):
        return True
    for (group, at), block in ({} if hit is None else self._hits(request, hit)).items():
        self.touch(block)
        self._put(request, group, at, block)
    return False


def take_before_check(self: Manager, request: Request, stop: int, hit: int | None = None) -> bool:
    """A running request that is refused keeps what there was."""
    if Manager.allocate(self, request, stop, hit):
        return True
    for group, at in self._wanted(request, request.computed, stop) if hit is None else ():
        if self.queue:
            self._put(request, group, at, self.take())
    return False


def drop_twice(self: Manager, block: int) -> None:
    Manager.drop(self, block)
    if self.refs[block]:
        Manager.drop(self, block)


def queue_twice(self: Manager, block: int) -> None:
    """A block that nobody holds any more is put into the list of free blocks twice."""
    Manager.drop(self, block)
    if not self.refs[block]:
        self.queue.append(block)


def drop_frees(self: Manager, block: int) -> None:
    """A block is free as soon as one of its holders goes."""
    self.refs[block] -= 1
    if block not in self.queue:
        self.queue.append(block)


def touch_counts_only(self: Manager, block: int) -> None:
    """A hit counts as a holder, and its block can still be handed out."""
    self.refs[block] += 1


def touch_nothing(self: Manager, block: int) -> None:
    """A hit is not counted at all."""


def free_first_group(self: Manager, request: Request) -> None:
    """Only the blocks of the first group are given back."""
    request.tables[1:] = [[] for _ in request.tables[1:]]
    Manager.free(self, request)


def look_too_many(self: Engine) -> Seen:
    seen = Engine.look(self)
    return seen._replace(free=[seen.free[0] + bool(self.manager.key_of)])


def look_blindly(self: Engine) -> Seen:
    """There is nothing to be seen but tables and keys."""
    return Engine.look(self)._replace(free=[], refs=None)


def look_unkeyed(self: Engine) -> Seen:
    """Blocks that only the cache has do not count as free, though it says so."""
    manager = self.manager
    return Engine.look(self)._replace(free=[sum(block not in manager.key_of for block in manager.queue)])


def look_telling(self: Engine) -> Seen:
    """What becomes of keys is told, too: an event for each block."""
    seen, before = Engine.look(self), self.__dict__.get("told", {})
    after = self.__dict__["told"] = dict(seen.keys[0])
    changed = [block for block in {**before, **after} if before.get(block) != after.get(block)]
    events = [KeyEvent("removed", before[block]) for block in changed if block in before]
    if before and not after:
        events = [KeyEvent("cleared")]
    return seen._replace(events=[*events, *(_told(self, block) for block in changed if block in after)])


def _told(self: Engine, block: int) -> KeyEvent:
    """That a block has a key, and what it stands for."""
    key = self.manager.key_of[block]
    before = (len(key.tokens) - 1) // self.size * self.size
    parent = str(key._replace(tokens=key.tokens[:before])) if before else None
    return KeyEvent("stored", str(key), key.tokens[before:], parent)


def stored_told_without_parent(self: Engine) -> Seen:
    """Each block is told of as if it were the first."""
    seen = look_telling(self)
    return seen._replace(events=[msgspec.structs.replace(event, parent=None) for event in seen.events or ()])


def stored_told_of_other_tokens(self: Engine) -> Seen:
    """What is told to be in a block lacks its first token."""
    seen = look_telling(self)
    return seen._replace(
        events=[e if e.tokens is None else msgspec.structs.replace(e, tokens=e.tokens[1:]) for e in seen.events or ()]
    )


def removals_told_once(self: Engine) -> Seen:
    """Of two blocks with one key that lose it, one is not told of."""
    seen = look_telling(self)
    removed = [event for event in seen.events or () if event.kind == "removed"]
    return seen._replace(events=[e for e in seen.events or () if e.kind != "removed" or e is removed[0]])


def removals_told_of_keys(self: Engine) -> Seen:
    """When one block of a key loses it, the key is told to be gone, for all who have it."""
    seen = look_telling(self)
    left = Counter(seen.keys[0].values())
    return seen._replace(
        events=[e for e in seen.events or () for _ in range(1 + (left[e.key] if e.kind == "removed" else 0))]
    )


def stored_told_again(self: Engine) -> Seen:
    """A key of a second block is told of as the first was, and once more."""
    seen = look_telling(self)
    copies = Counter(seen.keys[0].values())
    return seen._replace(events=[e for e in seen.events or () for _ in range(1 + (copies[e.key] == 2))])


# -- blocks that are handed out ----------------------------------------------------------------------------------------


def take_keeps_key(self: Manager) -> int:
    block = self.queue.pop(0)
    self.refs[block] = 1
    return block


def take_held(self: Manager) -> int:
    """With one free block left, the block that has most holders is handed out, too."""
    if len(self.queue) > 1:
        return Manager.take(self)
    block = max(self.ids, key=lambda block: (self.refs[block], block))
    if not self.refs[block]:
        return Manager.take(self)
    self.key_of.pop(block, None)
    self.refs[block] += 1
    return block


def take_again(self: Manager) -> int:
    """A block that was given back last is also handed out before it was."""
    block = Manager.take(self)
    self.queue.append(block)
    return block


def take_padding(self: Manager) -> int:
    """The padding block fills in when the pool is empty but for one."""
    if len(self.queue) > 1:
        return Manager.take(self)
    self.refs.setdefault(0, 0)
    self.refs[0] += 1
    return 0


def allocate_one_less(self: Manager, request: Request, start: int, stop: int) -> Any:
    """Room for one place less than there will be tokens."""
    return list(Manager._wanted(self, request, start, stop))[: -1 if stop - start > 1 else None]


def hits_swapped(self: Manager, request: Request, hit: int) -> dict[tuple[int, int], int]:
    """The blocks of a hit are mounted in the wrong order."""
    found = Manager._hits(self, request, hit)
    return dict(zip(found, reversed(found.values()), strict=True))


def put_in_the_first_gap(self: Manager, request: Request, group: int, at: int, block: int) -> None:
    """Places move up where a table has a gap."""
    table = request.tables[group]
    if None in table[:at] and self.groups[group].kind == "attention":
        table[table.index(None)] = block
    else:
        Manager._put(self, request, group, at, block)


# -- keys --------------------------------------------------------------------------------------------------------------


def key_of_block(self: Manager, request: Request, group: int, stop: int) -> Key:
    """A key says nothing of the blocks before."""
    size = self.groups[group].block_size
    return Key(group, request.context, request.tokens[stop - size : stop])


def key_without_context(self: Manager, request: Request, group: int, stop: int) -> Key:
    return Key(group, type(request.context)(), request.tokens[:stop])


def key_without_version(self: Manager, request: Request, group: int, stop: int) -> Key:
    return Key(group, msgspec.structs.replace(request.context, adapter_version=0), request.tokens[:stop])


def key_without_group(self: Manager, request: Request, group: int, stop: int) -> Key:
    return Key(0, request.context, request.tokens[:stop])


def key_with_name(self: Manager, request: Request, group: int, stop: int) -> Key:
    """The key of a request is its own."""
    return Key(group, msgspec.structs.replace(request.context, salt=request.seq), request.tokens[:stop])


def key_unordered(self: Manager, request: Request, group: int, stop: int) -> Key:
    """A key says which tokens there are, not in which order."""
    return Key(group, request.context, tuple(sorted(request.tokens[:stop])))


def publish_begun(self: Manager, request: Request, start: int, stop: int) -> None:
    """A block that is begun is published like one that is full."""
    size = self.groups[0].block_size
    Manager.publish(self, request, start, min(-(-stop // size) * size, len(request.tokens) // size * size))


def publish_all_room(self: Manager, request: Request, start: int, stop: int) -> None:
    """A state that is inside a block is published as that of its end."""
    for group, kind in enumerate(self.groups):
        at, size = (stop - 1) // kind.block_size, kind.block_size
        block = request.tables[group][at]
        is_new = kind.kind == "state" and block is not None and block not in self.key_of
        if is_new and (at + 1) * size <= len(request.tokens):
            self.key_of[block] = self.key(request, group, (at + 1) * size)
    Manager.publish(self, request, start, stop)


def publish_drops_copies(self: Manager, request: Request, start: int, stop: int) -> None:
    """A block that will have the content of another one is given back, and stays in the table."""
    known = set(self.key_of.values())
    Manager.publish(self, request, start, stop)
    for block in request.tables[0]:
        if block in self.coming and self.refs[block] and self.key_of[block] in known:
            self.drop(block)


def reset_keeps_keys(self: Manager) -> None:
    """A reset does nothing."""


def reset_keeps_one(self: Manager) -> None:
    kept = dict(list(self.key_of.items())[:1])
    self.key_of.clear()
    if len(self.queue) == len(self.ids):
        self.key_of.update(kept)


def reset_lists_padding(self: Manager) -> None:
    """A reset makes the list of free blocks anew, and begins it with the padding block."""
    Manager.reset(self)
    if len(self.queue) == len(self.ids):
        self.queue[0] = 0


def reset_refused(self: Engine) -> list[AnyRecord]:
    self._open()
    self.recorder.call("reset", refused=True, late=True)
    return self.recorder.taken()


def evict_moves(self: Manager, num_blocks: int) -> None:
    """An evicted key goes to another free block, whatever is in it."""
    keyed = [block for block in self.queue if block in self.key_of][:num_blocks]
    empty = [block for block in self.queue if block not in self.key_of]
    for block, other in zip(keyed, empty, strict=False):
        self.key_of[other] = self.key_of.pop(block)


def evict_held(self: Manager, num_blocks: int) -> None:
    """Evicted blocks are free, also if somebody holds them."""
    for block in list(self.key_of)[:num_blocks]:
        del self.key_of[block]
        if self.refs[block]:
            self.refs[block] = 0
            self.queue.append(block)


def evict_nothing(self: Manager, num_blocks: int) -> None:
    """What is to be evicted stays."""


def free_unpinned(self: Manager, request: Request) -> None:
    """What a transfer still reads may be handed out."""
    self.__dict__["moving"] = {number: block for number, block in enumerate(request.tables[0]) if block is not None}
    Manager.free(self, request)


def step_unpinned(self: Engine) -> list[AnyRecord]:
    """The transfers of a step before are over."""
    self.manager.__dict__["moving"] = {}
    self.recorder.call("end_transfers")
    return Engine.step(self)


def look_moving(self: Engine) -> Seen:
    moving = self.manager.__dict__.get("moving", {})
    return look_blindly(self)._replace(pins=[Pin(f"transfer {at}", 0, moving[at]) for at in moving])


# -- hits --------------------------------------------------------------------------------------------------------------


def look_up_short(self: Manager, request: Request, limit: int) -> int:
    return max(0, Manager.look_up(self, request, limit) - self.groups[0].block_size)


def look_up_as_ordered(self: Manager, request: Request, limit: int) -> int:
    """A hit is found only up to the first block that was given back last."""
    hit = Manager.look_up(self, request, limit)
    size = self.groups[0].block_size
    last = self.queue[-1] if self.queue else None
    return min(hit, size) if hit > size and last in self.key_of else hit


def look_up_off_grid(self: Manager, request: Request, limit: int) -> int:
    """All but the last token of a hit that there is."""
    hit = Manager.look_up(self, request, limit)
    return hit - 1 if hit > 1 and self.groups[0].block_size > 1 and not self.partial else hit


def admitted_whole(self: Engine, request: Request, budget: int) -> Plan | None:
    """A whole prompt can be hit."""
    hit = self.manager.look_up(request, request.known)
    if hit < request.known:
        return Engine._admitted(self, request, budget)
    self._allocate(request, request.known, hit)
    return None


def is_there_in_first(self: Manager, request: Request, hit: int, keys: set[Key]) -> bool:
    """Only the first group is asked whether a hit is there."""
    size = self.groups[0].block_size
    return all(self.key(request, 0, (place + 1) * size) in keys for place in self.places(0, hit, hit))


def is_there_at_the_end(self: Manager, request: Request, hit: int, keys: set[Key]) -> bool:
    """Of a hit only the last block is asked for, where all are needed."""
    if any(kind.window for kind in self.groups):
        return Manager._is_there(self, request, hit, keys)
    size = self.groups[0].block_size
    return all(self.key(request, group, hit // size * size) in keys for group in range(len(self.groups)))


def found_or_any(self: Manager, key: Key) -> int:
    """What is not there is taken for any other block with a key."""
    there = [block for block, known in self.key_of.items() if known == key and self.is_ready(block)]
    return there[0] if there else next(iter(self.key_of))


def is_always_ready(self: Manager, block: int) -> bool:
    """States that are still to be written can be hit, like keys and values."""
    return True


def copy_nothing(self: Engine) -> None:
    """Copies are forgotten."""
    if self.manager.copies:
        self.manager.end_copies()
        self.recorder.call("end_copies")


def allocate_unpinned(self: Manager, request: Request, stop: int, hit: int | None = None) -> bool:
    """What is still to be copied is not held, and may be handed out to the next request of the step."""
    copies, self.copies = self.copies, []
    granted = Manager.allocate(self, request, stop, hit)
    for source, _ in self.copies:
        self.drop(source)
        if not self.refs[source]:
            self.queue.insert(0, self.queue.pop())
    self.copies = copies + self.copies
    return granted


def end_copies_unpinned(self: Manager) -> None:
    self.copies = []


def look_unpinned(self: Engine) -> Seen:
    return Engine.look(self)._replace(pins=[])


# -- windows -----------------------------------------------------------------------------------------------------------


def places_short(self: Manager, group: int, query: int, stop: int) -> range:
    """The window is a token too short."""
    found, kind = Manager.places(self, group, query, stop), self.groups[group]
    if kind.window is None:
        return found
    return range(max(0, query - kind.window + 2) // kind.block_size, found.stop)


def places_by_last_block(self: Manager, group: int, query: int, stop: int) -> range:
    """Of a window only its last block counts."""
    found = Manager.places(self, group, query, stop)
    return found if self.groups[group].window is None else range(max(found.start, found.stop - 1), found.stop)


def slide_ahead(self: Manager, request: Request) -> None:
    """The window slides by what will be computed, not by what is."""
    computed = request.computed
    if all(kind.kind == "attention" for kind in self.groups):
        request.computed = min(request.known, computed + 2)
    Manager.slide(self, request)
    request.computed = computed


def slide_keeps_places(self: Manager, request: Request) -> None:
    """What has left the window is given back, and stays in the table."""
    for group, table in enumerate(request.tables):
        kept = self.places(group, request.computed, max(request.computed, 1))
        for block in table[: kept.start]:
            if block is not None and self.refs[block]:
                self.drop(block)


def slide_full_attention(self: Manager, request: Request) -> None:
    """Full attention slides by the window of another group."""
    windows = [kind.window for kind in self.groups if kind.window]
    groups, self.groups = self.groups, tuple(
        msgspec.structs.replace(kind, window=kind.window or min(windows, default=None)) for kind in self.groups
    )  # fmt: skip
    Manager.slide(self, request)
    self.groups = groups


# -- states ------------------------------------------------------------------------------------------------------------


def run_from(self: Engine, plan: Plan, source: Any) -> Run:
    """A run whose states are read from where `source` says: of the move, the table and the place in it."""
    run = Engine._run(self, plan)
    at = (plan.request.computed - 1) // self.size
    moves = [source(move, plan.request.tables[move.group], at) for move in run.moves]
    return msgspec.structs.replace(run, moves=moves)


def state_from_before(self: Engine, plan: Plan) -> Run:
    """The state of the block before is gone on from."""
    return run_from(self, plan, lambda m, table, at: Move(m.group, table[at - 1] if at > 0 else m.source, m.target))


def state_from_target(self: Engine, plan: Plan) -> Run:
    """The state that is in the new slot is gone on from: it was not copied there."""
    return run_from(self, plan, lambda m, table, at: Move(m.group, m.target, m.target))


def state_from_nothing(self: Engine, plan: Plan) -> Run:
    """A request that was hit begins with an empty state."""
    return run_from(self, plan, lambda m, table, at: Move(m.group, None, m.target))


def state_to_source(self: Engine, plan: Plan) -> Run:
    """The next state is written where the last one is."""
    return run_from(self, plan, lambda m, table, at: Move(m.group, m.source, m.source or m.target))


def state_not_told(self: Engine, plan: Plan) -> Run:
    """A step that only goes on in its block does not say where its state is."""
    return msgspec.structs.replace(Engine._run(self, plan), moves=[])


def stop_anywhere(self: Engine, request: Request, start: int, budget: int) -> int:
    """Steps do not end at the ends of blocks, where states are published."""
    return min(request.known, start + budget)


# -- the engine --------------------------------------------------------------------------------------------------------


def allocate_reserves(self: Manager, request: Request, stop: int, hit: int | None = None) -> bool:
    """A block is kept free for bad times, and nobody is told."""
    size = self.groups[0].block_size
    many = -(-(stop - (request.computed if hit is None else hit)) // size) * len(self.groups)
    if hit is not None and many < len(self.queue) <= many + 1:
        return False
    return Manager.allocate(self, request, stop, hit)


def plan_nothing(self: Engine) -> list[Plan]:
    """Two requests that wait each let the other go first."""
    return [] if len(self.waiting) > 1 else Engine._plan(self)


def preempt_first(self: Engine) -> list[Plan]:
    """Who was planned first gives way, and what it was to write keeps its keys."""
    plans = Engine._plan(self)
    if len(plans) > 1 and not self.manager.queue:
        self._preempt(plans.pop(0).request)
    return plans


def done_gives_way(self: Engine, request: Request, stop: int) -> None:
    """Two who run give way to each other, time and again."""
    if len(self.running) < 2:
        Engine._done(self, request, stop)
    else:
        for other in tuple(self.running):
            self._preempt(other)


def done_skips(self: Engine, request: Request, stop: int) -> None:
    """After a chunk of a prompt a token is taken for computed that is not."""
    Engine._done(self, request, stop)
    if request.computed + 1 < request.known:
        request.computed += 1


def done_too_much(self: Engine, request: Request, stop: int) -> None:
    """Two tokens are known where one was computed."""
    Engine._done(self, request, stop)
    if request in self.running and request.known < len(request.tokens):
        self.recorder.add(Known(request.seq, request.known + 1))


def done_early(self: Engine, request: Request, stop: int) -> None:
    """The last two tokens of an output are not waited for."""
    request.computed = stop
    if request.known + 2 >= len(request.tokens):
        self._end(request)
    else:
        Engine._done(self, request, stop)


def abort_refuses(self: Engine, seq: str) -> list[AnyRecord]:
    """Who runs cannot be ended."""
    return Engine.abort(self, seq if any(r.seq == seq for r in self.waiting) else "")


def step_fails(self: Engine) -> list[AnyRecord]:
    """A third request is too much."""
    if len(self.names) > 2 and len(self.running) > 1:
        raise RuntimeError("too many requests")
    return Engine.step(self)


def forward_nothing(self: Engine) -> list[AnyRecord]:
    """Steps are empty once nothing is free."""
    if self.manager.queue or len(self.running) < 2:
        return Engine.step(self)
    return [Forward([])]


def abort_silently(self: Engine, seq: str) -> list[AnyRecord]:
    """What an abort gives back is not told of before the next call."""
    Engine.abort(self, seq)
    return []
