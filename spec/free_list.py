"""The stack of free ids (seed 4.1 and 4.2; class `BlockManagerImpl`: ``free_blocks_``, ``num_free_blocks_``).

An array of ids and a count: the ids below the count are free, what lies above is left over. Allocation takes the id on
top, the last handle of a block puts its id back on top. That is one way to choose among the free ids, which chapter
`blocks` leaves open; through `handles` this chapter implements it.

The array has room for every usable id. That it never overflows needs no counting: a ghost numbers all usable ids, the
free ones first, in the order of the stack.
"""

from __future__ import annotations

from collections.abc import Callable

from kvspec.spec.handles import Handle, Handles
from kvspec.spec.language import (
    Bool,
    Ghost,
    Machine,
    Map,
    Position,
    Static,
    axiom,
    choose,
    event,
    exists,
    forall,
    implies,
    inherit,
    init,
    invariant,
    old,
    require,
    theorem,
    use,
    when,
    witness,
)
from kvspec.spec.sorts import Block


class Place(Position):
    """A place in the array; also the number of ids below it."""


class FreeList(Machine):
    """The part of the array below the count lists exactly the free ids, each once."""

    handles = use(Handles)

    capacity: Static[Place]
    first_order: Static[Callable[[Place], Block]]
    first_place: Static[Callable[[Block], Place]]

    stack: Map[Place, Block]
    count: Place
    place: Ghost[Map[Block, Place]]

    @axiom("at the start the array lists the usable ids")
    def lists_usable(self) -> Bool:
        return forall(
            Place,
            lambda i: implies(
                i < self.capacity,
                self.handles.blocks.usable.has(self.first_order(i)) & (self.first_place(self.first_order(i)) == i),
            ),
        )

    @axiom("at the start every usable id has its place in the array")
    def places_usable(self) -> Bool:
        return forall(
            Block,
            lambda b: implies(
                self.handles.blocks.usable.has(b),
                (self.first_place(b) < self.capacity) & (self.first_order(self.first_place(b)) == b),
            ),
        )

    @init
    def start(self) -> None:
        self.stack.assign_all(lambda place: self.first_order(place))
        self.count = self.capacity
        self.place.assign_all(lambda block: self.first_place(block))

    @event
    def pop(self, handle: Handle) -> None:
        """The id on top of the stack gets its first handle (allocate)."""
        require(~self.count.is_zero())
        require(~self.handles.live.has(handle))
        top = self.count.prev()
        self.handles.create(handle, self.stack[top])
        self.count = top

    @event
    def copy(self, source: Handle, target: Handle) -> None:
        """A handle is copied."""
        inherit(self.handles.copy)(source, target)

    @event
    def release(self, handle: Handle) -> None:
        """A handle is destroyed; the last one of its block puts the id on top of the stack (free)."""
        block = self.handles.block_of[handle]
        last = self.handles.ref_count[block] == 1
        inherit(self.handles.release)(handle)
        with when(last):
            self.push(block)

    def push(self, block: Block) -> None:
        self.stack[self.count] = block
        end, left = self.count, self.place[block]
        self.count = end.next()
        self.place.assign_all(lambda b: choose(b == block, end, choose(self.place[b] == end, left, self.place[b])))

    def usable(self, block: Block) -> Bool:
        return self.handles.blocks.usable.has(block)

    @invariant("every usable id has a number below the capacity")
    def place_below(self) -> Bool:
        return forall(Block, lambda b: implies(self.usable(b), self.place[b] < self.capacity))

    @invariant("no two usable ids have the same number")
    def place_unique(self) -> Bool:
        return forall(
            Block,
            Block,
            lambda a, b: implies(self.usable(a) & self.usable(b) & (self.place[a] == self.place[b]), a == b),
        )

    @invariant("the free ids have the numbers below the count")
    def free_first(self) -> Bool:
        return forall(
            Block,
            lambda b: implies(self.usable(b), self.handles.blocks.free.has(b) == (self.place[b] < self.count)),
        )

    @invariant("the stack lists usable ids in the order of their numbers")
    def stack_in_order(self) -> Bool:
        return forall(
            Place,
            lambda i: implies(i < self.count, self.usable(self.stack[i]) & (self.place[self.stack[i]] == i)),
        )

    @invariant("the count stays within the array")
    def count_within(self) -> Bool:
        return self.count <= self.capacity

    @theorem("the stack lists only free ids")
    def listed_free(self) -> Bool:
        return forall(Place, lambda i: implies(i < self.count, self.handles.blocks.free.has(self.stack[i])))

    @theorem("the stack lists every free id")
    def free_listed(self) -> Bool:
        return forall(
            Block,
            lambda b: implies(
                self.handles.blocks.free.has(b),
                (self.place[b] < self.count) & (self.stack[self.place[b]] == b),
            ),
        )

    @theorem("the stack lists no id twice")
    def listed_once(self) -> Bool:
        return forall(
            Place,
            Place,
            lambda i, j: implies((i < self.count) & (j < self.count) & (self.stack[i] == self.stack[j]), i == j),
        )

    @theorem("an id that is handed out was on top of the stack, free and without handles", after=pop)
    def popped_was_free(self, handle: Handle) -> Bool:
        block = self.handles.block_of[handle]
        return old(self).handles.blocks.free.has(block) & (old(self).handles.ref_count[block] == 0)

    @theorem("a copied handle lives and names the same block", after=copy)
    def copied_lives(self, source: Handle, target: Handle) -> Bool:
        return self.handles.live.has(target) & (self.handles.block_of[target] == self.handles.block_of[source])

    @theorem("putting an id back never overflows the array", after=release)
    def push_fits(self) -> Bool:
        return implies(self.count != old(self).count, old(self).count < self.capacity)

    @theorem("the id that was put back last is handed out next", after=release)
    def last_in_first_out(self, handle: Handle) -> Bool:
        block = old(self).handles.block_of[handle]
        return implies(self.handles.blocks.free.has(block), self.stack[old(self).count] == block)

    @theorem("the padding block is never in the stack")
    def padding_not_listed(self) -> Bool:
        return forall(Place, lambda i: implies(i < self.count, self.stack[i] != self.handles.blocks.padding))

    @witness("the stack is empty")
    def exhausted(self) -> Bool:
        return self.count.is_zero() & exists(Block, lambda b: self.usable(b))
