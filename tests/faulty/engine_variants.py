"""Legal engines, which do otherwise what may be done otherwise; each must hold."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import msgspec

from kvspec.model.engines.protocol import AnyRecord, Layout, Pin, Store
from kvspec.model.engines.recorder import Seen
from kvspec.model.engines.reference import Key, Manager, ModelEngineTarget, Plan, Request

from .engine_faults import look_blindly, look_telling
from .engine_twins import BLIND

Engine = ModelEngineTarget


# -- which block is handed out, and when it comes back -----------------------------------------------------------------


def take_newest(self: Manager) -> int:
    self.queue.reverse()
    block = Manager.take(self)
    self.queue.reverse()
    return block


def take_any(self: Manager) -> int:
    self.random.shuffle(self.queue)
    return Manager.take(self)


def take_without_key(self: Manager) -> int:
    """Blocks that nobody can find go first."""
    self.queue.sort(key=lambda block: block in self.key_of)
    return Manager.take(self)


def slide_nothing(self: Manager, request: Request) -> None:
    """Nothing goes before the end."""


def slide_half(self: Manager, request: Request) -> None:
    if self.random.random() < 0.5:
        Manager.slide(self, request)


def free_forwards(self: Manager, request: Request) -> None:
    """The first blocks are given back first."""
    for table in request.tables:
        for block in table:
            if block is not None:
                self.drop(block)
    request.tables = [[] for _ in self.groups]


# -- keys --------------------------------------------------------------------------------------------------------------


def drop_forgets(self: Manager, block: int) -> None:
    """Some keys are forgotten when the last holder goes."""
    Manager.drop(self, block)
    if not self.refs[block] and self.random.random() < 0.3:
        self.key_of.pop(block, None)


def step_forgets(self: Engine) -> list[AnyRecord]:
    """Keys of blocks in use are forgotten, too."""
    for block in [block for block in self.manager.key_of if self.manager.random.random() < 0.1]:
        del self.manager.key_of[block]
    self.recorder.call("forget")
    return Engine.step(self)


def publish_nothing(self: Manager, request: Request, start: int, stop: int) -> None:
    """Nothing is published before its request gives it back."""


def free_publishes(self: Manager, request: Request) -> None:
    """What a request gives back is published in the same call."""
    table, size = list(request.tables[0]), self.groups[0].block_size
    Manager.free(self, request)
    for at, block in enumerate(table[: request.computed // size]):
        if block is not None and self.groups[0].kind == "attention":
            self.key_of[block] = self.key(request, 0, (at + 1) * size)


def free_transfers(self: Manager, request: Request) -> None:
    """Of what is given back some is still read by a transfer, which holds it for a while."""
    moving = self.__dict__.setdefault("moving", {})
    for table in request.tables:
        for block in table:
            if block is not None and self.random.random() < 0.3:
                self.touch(block)
                moving[len(moving)] = block
    Manager.free(self, request)


def look_transfers(self: Engine) -> Seen:
    """Who does the transfer changes from call to call."""
    seen, moving = Engine.look(self), self.manager.__dict__.get("moving", {})
    turn = self.__dict__["turn"] = 1 - self.__dict__.get("turn", 0)
    return seen._replace(pins=[*seen.pins, *(Pin(f"transfer {turn} {number}", 0, moving[number]) for number in moving)])


def end_transfers(self: Engine) -> list[AnyRecord]:
    for block in self.manager.__dict__.pop("moving", {}).values():
        self.manager.drop(block)
    self.recorder.call("end_transfers")
    return self.recorder.taken()


def step_transfers(self: Engine) -> list[AnyRecord]:
    return [*Engine.step(self), *end_transfers(self)]


def abort_transfers(self: Engine, seq: str) -> list[AnyRecord]:
    return [*Engine.abort(self, seq), *end_transfers(self)]


def publish_once(self: Manager, request: Request, start: int, stop: int) -> None:
    """A key has one block: others with the same content have none."""
    known = set(self.key_of.values())
    Manager.publish(self, request, start, stop)
    for block in [block for block in self.coming if self.key_of.get(block) in known]:
        if list(self.key_of.values()).count(self.key_of[block]) > 1:
            del self.key_of[block]


def publish_swaps(self: Manager, request: Request, start: int, stop: int) -> None:
    """In the place of a block that will have the content of another one, that one is written again."""
    size, table = self.groups[0].block_size, request.tables[0]
    ready = {key: block for block, key in self.key_of.items() if block not in self.coming}
    for at in range(start // size, stop // size) if self.groups[0].kind == "attention" else ():
        block, other = table[at], ready.get(self.key(request, 0, (at + 1) * size))
        if block is not None and other is not None and block != other and block not in self.key_of:
            self.touch(other)
            self.drop(block)
            table[at] = other
    Manager.publish(self, request, start, stop)


def key_by_number(self: Manager, request: Request, group: int, stop: int) -> Key:
    """Keys may be anything that tells contents apart."""
    key = Manager.key(self, request, group, stop)
    return key._replace(tokens=tuple(token + 1 for token in key.tokens))


def preempt_planned(self: Engine) -> list[Plan]:
    """Who was planned first gives way; what it was to write is taken back."""
    plans = Engine._plan(self)
    if len(plans) > 1 and not self.manager.queue and not self.manager.copies and self._is_alone(plans[0].request):
        request = plans.pop(0).request
        for block in self.manager.coming & {block for table in request.tables for block in table if block is not None}:
            del self.manager.key_of[block]
            self.manager.coming.discard(block)
        self._preempt(request)
    return plans


def is_alone(self: Engine, request: Request) -> bool:
    """Nobody has come to share its blocks."""
    return all(self.manager.refs[block] == 1 for table in request.tables for block in table if block is not None)


def reset_running(self: Engine) -> list[AnyRecord]:
    """Keys are dropped whoever runs."""
    self._open()
    self.manager.reset()
    self.recorder.call("reset")
    return self.recorder.taken()


# -- hits --------------------------------------------------------------------------------------------------------------


def look_up_some(self: Manager, request: Request, limit: int) -> int:
    """Any hit will do."""
    return Manager.look_up(self, request, self.random.randint(0, limit))


def layout_any_hit(self: Engine) -> Layout:
    return msgspec.structs.replace(Engine.layout(self), longest_hit=False)


# -- what is shown -----------------------------------------------------------------------------------------------------


def layout_unkeyed(self: Engine) -> Layout:
    """Free is what the cache does not have, either."""
    return _with_store(self, free="unkeyed")


def look_unkeyed(self: Engine) -> Seen:
    manager = self.manager
    return Engine.look(self)._replace(free=[sum(block not in manager.key_of for block in manager.queue)])


def layout_cache_counts(self: Engine) -> Layout:
    """The cache is one of the holders that are counted."""
    return _with_store(self, cache_counts=True)


def look_cache_counts(self: Engine) -> Seen:
    manager = self.manager
    refs = {block: count + (block in manager.key_of) for block, count in manager.refs.items()}
    return Engine.look(self)._replace(refs=[refs])


def _with_store(engine: Engine, **fields: Any) -> Layout:
    layout = Engine.layout(engine)
    stores: tuple[Store, ...] = tuple(msgspec.structs.replace(store, **fields) for store in layout.stores)
    return msgspec.structs.replace(layout, stores=stores)


# -- the engine --------------------------------------------------------------------------------------------------------


def allocate_spares(self: Manager, request: Request, stop: int, hit: int | None = None) -> bool:
    """A block is kept free when a request comes while others run."""
    spare = len(self.queue) - 1 - len(list(self._wanted(request, hit or 0, stop)))
    if hit is not None and spare < 0 and len(self.queue) < len(self.ids):
        return False
    return Manager.allocate(self, request, stop, hit)


def allocate_told(self: Engine, request: Request, stop: int, hit: int | None = None) -> bool:
    granted = self.manager.allocate(request, stop, hit)
    outcome = {"refused": not granted, "room": stop, "hit": hit if granted else None, "spare": () if granted else (1,)}
    self.recorder.call("allocate", request.seq, **outcome)
    return granted


def done_at_known(self: Engine, request: Request, stop: int) -> None:
    """The last token is not computed: nobody asks what comes behind it."""
    request.computed = stop
    if stop == request.known == len(request.tokens) - 1:
        self._end(request)
    else:
        Engine._done(self, request, stop)


def allocate_ahead(self: Manager, request: Request, stop: int, hit: int | None = None) -> bool:
    """Where there is room, a block more than is asked for; a refusal changes the order of free blocks."""
    granted = Manager.allocate(self, request, stop, hit)
    if granted and len(self.queue) > 3:
        for group, kind in enumerate(self.groups):
            if kind.kind == "attention":
                self._put(request, group, len(request.tables[group]), self.take())
    elif self.queue:
        self.queue.append(self.queue.pop(0))
    return granted


def evict_all(self: Manager, num_blocks: int) -> None:
    """More goes than was to go, in use or not."""
    self.key_of.clear()


VARIANTS: Final[dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "take_newest": ({"take": take_newest}, {}),
    "take_any": ({"take": take_any}, {}),
    "take_without_key": ({"take": take_without_key}, {}),
    "slide_nothing": ({"slide": slide_nothing}, {}),
    "slide_half": ({"slide": slide_half}, {}),
    "free_forwards": ({"free": free_forwards}, {}),
    "drop_forgets": ({"drop": drop_forgets}, {}),
    "step_forgets": ({}, {"step": step_forgets}),
    "free_transfers": (
        {"free": free_transfers}, {"look": look_transfers, "step": step_transfers, "abort": abort_transfers},
    ),
    "free_publishes": ({"publish": publish_nothing, "free": free_publishes}, {}),
    "publish_once": ({"publish": publish_once}, {}),
    "publish_swaps": ({"publish": publish_swaps}, {}),
    "key_by_number": ({"key": key_by_number}, {}),
    "look_telling": ({}, {"look": look_telling}),
    "preempt_planned": ({}, {"_plan": preempt_planned, "_is_alone": is_alone}),
    "reset_running": ({}, {"reset": reset_running}),
    "look_up_some": ({"look_up": look_up_some}, {"layout": layout_any_hit}),
    "look_blindly": ({}, {"look": look_blindly, "capabilities": BLIND}),
    "free_unkeyed": ({}, {"look": look_unkeyed, "layout": layout_unkeyed}),
    "look_cache_counts": ({}, {"look": look_cache_counts, "layout": layout_cache_counts}),
    "allocate_spares": ({"allocate": allocate_spares}, {"_allocate": allocate_told}),
    "allocate_ahead": ({"allocate": allocate_ahead}, {}),
    "evict_all": ({"evict": evict_all}, {}),
    "done_at_known": ({}, {"_done": done_at_known}),
}  # fmt: skip
"""By name, what replaces methods of the manager, and of the engine."""


@cache
def build(name: str) -> type[ModelEngineTarget]:
    """The engine of that name.

    Raises:
        KeyError: there is none.
    """
    manager, engine = VARIANTS[name]
    return type(name, (ModelEngineTarget,), {"kind": type(name, (Manager,), manager), **engine})


def __getattr__(name: str) -> type[ModelEngineTarget]:
    if name in VARIANTS:
        return build(name)
    raise AttributeError(name)


__all__ = ["VARIANTS", "build"]
