"""Many threads, one recursive lock (seed 9.1; class `ConcurrentBlockManagerImpl`).

Every call of the manager runs under one lock. Counting does not: a handle is copied or destroyed on any thread, at any
time, by one atomic step of its block's counter. Whoever counts to zero calls `free`, which takes the lock and puts the
id back. Eviction destroys a handle of the cache while its thread has the lock already: so `free` takes the lock once
more, which is why the lock has to be recursive.

The chapter implements `handles`, where everything happens at once: each step of a thread either makes one step of
that serial machine happen or none, so what all threads do together is what one could have done in that order. An
allocation counts when its handle is made, a copy at its step of the counter, and so does a destruction that does not
count to zero. One that does counts when the id is put back: until then nobody can get the id, and a manager that
refuses meanwhile is right, since nothing is free.

Which key leads to a block does not matter here: a block stands for its own key. What the cache could give up is not
asked at one moment, because counters move while the manager looks; a refusal only says that no id was free.
"""

from __future__ import annotations

from kvspec.spec.handles import Handle, Handles
from kvspec.spec.language import (
    Bool,
    Id,
    Machine,
    Map,
    Nat,
    Set,
    Variants,
    case,
    choose,
    event,
    exists,
    forall,
    implies,
    init,
    invariant,
    nat,
    old,
    possible,
    refines,
    require,
    theorem,
    when,
    witness,
)
from kvspec.spec.sorts import Block


class Thread(Id):
    """A thread of the program."""


class Doing(Variants):
    """Where a thread is."""

    idle = case()
    calling = case()
    inside = case()
    popped = case()
    checked = case()
    freeing = case()
    pushing = case()
    served = case()


class Concurrent(Machine):
    """Under a recursive lock, with atomic counters, whatever threads do is what one thread could have done."""

    handles = refines(Handles)

    doing: Map[Thread, Doing]
    block: Map[Thread, Block]
    handle: Map[Thread, Handle]
    owner: Thread
    depth: Nat
    free: Set[Block]
    ref_count: Map[Block, Nat]
    live: Set[Handle]
    dying: Set[Handle]
    block_of: Map[Handle, Block]
    cached: Set[Block]
    entry: Map[Block, Handle]

    @init
    def start(self) -> None:
        self.doing.assign_all(lambda thread: Doing.idle())
        self.depth = nat(0)
        self.free.assign(self.handles.blocks.usable)
        self.ref_count.assign_all(lambda block: nat(0))
        self.live.clear()
        self.dying.clear()
        self.cached.clear()

    # -- the lock ------------------------------------------------------------------------------------------------

    @event
    def call(self, thread: Thread) -> None:
        """A thread calls the manager and wants the lock."""
        require(self.at(thread, Doing.idle()))
        self.doing[thread] = Doing.calling()

    @event
    def enter(self, thread: Thread) -> None:
        """A thread that wants the lock gets it: nobody has it, or the thread itself does (lock)."""
        require(self.waits(thread))
        with when(self.owner != thread):
            require(self.depth == 0)
        self.owner = thread
        self.depth = self.depth + 1
        self.doing[thread] = choose(self.at(thread, Doing.calling()), Doing.inside(), Doing.pushing())

    @event
    def leave(self, thread: Thread) -> None:
        """A thread leaves the lock once; if it has it still, it goes on with the call that it is in (unlock)."""
        require(self.at(thread, Doing.served()))
        self.doing[thread] = choose(self.depth == 1, Doing.idle(), Doing.inside())
        self.depth = self.depth - 1

    # -- calls, under the lock -----------------------------------------------------------------------------------

    @event
    def pop(self, thread: Thread, block: Block) -> None:
        """A free id is taken off the list (allocate)."""
        require(self.at(thread, Doing.inside()))
        require(self.free.has(block))
        self.free.discard(block)
        self.block[thread] = block
        self.doing[thread] = Doing.popped()

    @event
    def make(self, thread: Thread, handle: Handle) -> None:
        """The id that was taken gets its first handle (allocate)."""
        block = self.block[thread]
        require(self.at(thread, Doing.popped()))
        require(~self.live.has(handle))
        self.count_up(handle, block)
        self.doing[thread] = Doing.served()
        self.handles.create(handle, block)

    @event
    def refuse(self, thread: Thread) -> None:
        """No id is free: the call gets nothing (allocate)."""
        require(self.at(thread, Doing.inside()))
        require(self.free.is_empty())
        self.doing[thread] = Doing.served()

    @event
    def match(self, thread: Thread, block: Block, handle: Handle) -> None:
        """The caller gets a copy of a handle of the cache (allocate_shared)."""
        require(self.at(thread, Doing.inside()))
        require(self.cached.has(block))
        require(~self.live.has(handle))
        self.count_up(handle, block)
        self.doing[thread] = Doing.served()
        self.handles.copy(self.entry[block], handle)

    @event
    def publish(self, thread: Thread, source: Handle, target: Handle) -> None:
        """The cache gets a copy of the caller's handle (cache)."""
        block = self.block_of[source]
        require(self.at(thread, Doing.inside()))
        require(self.is_own(source))
        require(~self.cached.has(block))
        require(~self.live.has(target))
        self.count_up(target, block)
        self.cached.add(block)
        self.entry[block] = target
        self.doing[thread] = Doing.served()
        self.handles.copy(source, target)

    @event
    def look(self, thread: Thread, block: Block) -> None:
        """A block that only the cache holds is found, by its counter (evict)."""
        require(self.at(thread, Doing.inside()))
        require(self.cached.has(block))
        require(self.ref_count[block] == 1)
        self.block[thread] = block
        self.doing[thread] = Doing.checked()

    @event
    def evict(self, thread: Thread) -> None:
        """The cache's handle of the block that was found is destroyed, under the lock (evict)."""
        block = self.block[thread]
        require(self.at(thread, Doing.checked()))
        self.cached.discard(block)
        self.count_down(thread, self.entry[block])

    @event
    def push(self, thread: Thread) -> None:
        """Who counted to zero puts the id back (free)."""
        handle = self.handle[thread]
        require(self.at(thread, Doing.pushing()))
        self.free.add(self.block_of[handle])
        self.live.discard(handle)
        self.dying.discard(handle)
        self.doing[thread] = Doing.served()
        self.handles.release(handle)

    # -- handles, without the lock -------------------------------------------------------------------------------

    @event
    def copy(self, source: Handle, target: Handle) -> None:
        """Some thread copies a handle."""
        require(self.is_own(source))
        require(~self.live.has(target))
        self.count_up(target, self.block_of[source])
        self.handles.copy(source, target)

    @event
    def release(self, thread: Thread, handle: Handle) -> None:
        """A thread destroys a handle; if it counts to zero, it wants the lock (~Block)."""
        require(self.at(thread, Doing.idle()))
        require(self.is_own(handle))
        self.count_down(thread, handle)

    # -- words ---------------------------------------------------------------------------------------------------

    def count_up(self, handle: Handle, block: Block) -> None:
        self.ref_count[block] = self.ref_count[block] + 1
        self.live.add(handle)
        self.block_of[handle] = block

    def count_down(self, thread: Thread, handle: Handle) -> None:
        block = self.block_of[handle]
        last = self.ref_count[block] == 1
        self.ref_count[block] = self.ref_count[block] - 1
        with when(last):
            self.dying.add(handle)
            self.handle[thread] = handle
            self.doing[thread] = Doing.freeing()
        with when(~last):
            self.live.discard(handle)
            self.handles.release(handle)

    def at(self, thread: Thread, step: Doing) -> Bool:
        return self.doing[thread] == step

    def waits(self, thread: Thread) -> Bool:
        """The thread wants the lock: for a call, or to put an id back."""
        return self.at(thread, Doing.calling()) | self.at(thread, Doing.freeing())

    def owns(self, thread: Thread) -> Bool:
        """The thread has the lock."""
        return (self.depth != 0) & (self.owner == thread)

    def under_lock(self, thread: Thread) -> Bool:
        """The thread does what only one may do at a time."""
        return ~self.at(thread, Doing.idle()) & ~self.waits(thread)

    def destroys(self, thread: Thread) -> Bool:
        """The thread has counted to zero, and the id is not back."""
        return self.at(thread, Doing.freeing()) | self.at(thread, Doing.pushing())

    def in_hand(self, thread: Thread, block: Block) -> Bool:
        """The id is on its way, from the list or back to it, with this thread."""
        return (self.at(thread, Doing.popped()) & (self.block[thread] == block)) | (
            self.destroys(thread) & (self.block_of[self.handle[thread]] == block)
        )

    def is_entry(self, handle: Handle) -> Bool:
        """The handle is one of the cache's."""
        return self.cached.has(self.block_of[handle]) & (self.entry[self.block_of[handle]] == handle)

    def is_alone(self, handle: Handle) -> Bool:
        """In the serial machine the handle is the only one of its block."""
        return self.handles.blocks.holders[self.block_of[handle]].is_only(handle)

    def names(self, handle: Handle, block: Block) -> Bool:
        """A handle that can be used, of the cache or the program, names the block."""
        return self.live.has(handle) & ~self.dying.has(handle) & (self.block_of[handle] == block)

    def is_own(self, handle: Handle) -> Bool:
        """A handle that somebody in the program may copy or destroy."""
        return self.names(handle, self.block_of[handle]) & ~self.is_entry(handle)

    # -- invariants: the lock ------------------------------------------------------------------------------------

    @invariant("only the owner of the lock is under it")
    def under_owned(self) -> Bool:
        return forall(Thread, lambda t: implies(self.under_lock(t), self.owns(t)))

    @invariant("the owner of the lock is under it, or wants it once more to put an id back")
    def owner_under(self) -> Bool:
        return forall(Thread, lambda t: implies(self.owns(t), self.under_lock(t) | self.at(t, Doing.freeing())))

    @invariant("nobody has the lock more than twice, and twice only who puts an id back")
    def twice_to_free(self) -> Bool:
        return (self.depth <= 2) & forall(
            Thread,
            lambda t: implies(
                self.owns(t) & (self.depth == 2), self.at(t, Doing.pushing()) | self.at(t, Doing.served())
            ),
        )

    # -- invariants: the serial machine --------------------------------------------------------------------------

    @invariant("the handle objects are those of the serial machine")
    def live_serial(self) -> Bool:
        return forall(Handle, lambda h: self.live.has(h) == self.handles.live.has(h))

    @invariant("a handle names the block that it names in the serial machine")
    def named_serial(self) -> Bool:
        return forall(Handle, lambda h: implies(self.live.has(h), self.block_of[h] == self.handles.block_of[h]))

    @invariant("a handle that is being destroyed is the last one of its block, and is not counted any more")
    def dying_last(self) -> Bool:
        return forall(
            Handle,
            lambda h: implies(
                self.dying.has(h),
                self.live.has(h)
                & (self.ref_count[self.block_of[h]] == 0)
                & (self.handles.ref_count[self.block_of[h]] == 1)
                & self.is_alone(h),
            ),
        )

    @invariant("a counter is the serial one, or its last handle is being destroyed")
    def count_serial(self) -> Bool:
        return forall(
            Block,
            lambda b: (
                (self.ref_count[b] == self.handles.ref_count[b])
                | exists(Handle, lambda h: self.dying.has(h) & (self.block_of[h] == b))
            ),
        )

    @invariant("what the list has is free in the serial machine")
    def listed_serial(self) -> Bool:
        return forall(Block, lambda b: implies(self.free.has(b), self.handles.blocks.free.has(b)))

    @invariant("what is free in the serial machine is in the list, or was just taken off it")
    def serial_listed(self) -> Bool:
        return forall(
            Block,
            lambda b: implies(
                self.handles.blocks.free.has(b),
                self.free.has(b)
                | exists(Thread, lambda t: self.at(t, Doing.popped()) & (self.block[t] == b)),
            ),
        )

    @invariant("an id that was taken off the list is free in the serial machine")
    def popped_serial(self) -> Bool:
        return forall(
            Thread,
            lambda t: implies(
                self.at(t, Doing.popped()),
                self.handles.blocks.free.has(self.block[t]) & ~self.free.has(self.block[t]),
            ),
        )

    # -- invariants: who destroys, what is cached ----------------------------------------------------------------

    @invariant("who has counted to zero destroys a handle")
    def destroyer_has_it(self) -> Bool:
        return forall(Thread, lambda t: implies(self.destroys(t), self.dying.has(self.handle[t])))

    @invariant("a handle that is being destroyed is in some thread's hand")
    def dying_in_hand(self) -> Bool:
        return forall(
            Handle,
            lambda h: implies(
                self.dying.has(h), exists(Thread, lambda t: self.destroys(t) & (self.handle[t] == h))
            ),
        )

    @invariant("no two threads destroy one handle")
    def destroyed_once(self) -> Bool:
        return forall(
            Thread,
            Thread,
            lambda t, u: implies(
                self.destroys(t) & self.destroys(u) & (self.handle[t] == self.handle[u]), t == u
            ),
        )

    @invariant("a cached block has its handle in the cache")
    def cached_live(self) -> Bool:
        return forall(
            Block,
            lambda b: implies(
                self.cached.has(b),
                self.live.has(self.entry[b]) & ~self.dying.has(self.entry[b]) & (self.block_of[self.entry[b]] == b),
            ),
        )

    @invariant("from the look at the counter on, nobody but the cache holds the victim")
    def victim_alone(self) -> Bool:
        return forall(
            Thread,
            lambda t: implies(
                self.at(t, Doing.checked()),
                self.cached.has(self.block[t])
                & (self.ref_count[self.block[t]] == 1)
                & self.is_alone(self.entry[self.block[t]]),
            ),
        )

    # -- theorems ------------------------------------------------------------------------------------------------

    @theorem("mutual exclusion: two threads are never under the lock at a time")
    def one_at_a_time(self) -> Bool:
        return forall(Thread, Thread, lambda t, u: implies(self.under_lock(t) & self.under_lock(u), t == u))

    @theorem("no deadlock: of the threads that are under way one does not wait for the lock, or can have it")
    def no_deadlock(self) -> Bool:
        return implies(
            exists(Thread, lambda t: ~self.at(t, Doing.idle())),
            exists(Thread, lambda t: self.under_lock(t) | possible(self.enter)(t)),
        )

    @theorem("a thread under the lock can always go on, if a new handle is at hand where it makes one")
    def goes_on(self) -> Bool:
        return forall(
            Thread,
            Handle,
            lambda t, h: implies(
                self.under_lock(t) & ~self.live.has(h),
                exists(Block, lambda b: possible(self.pop)(t, b))
                | possible(self.refuse)(t)
                | possible(self.make)(t, h)
                | possible(self.evict)(t)
                | possible(self.push)(t)
                | possible(self.leave)(t),
            ),
        )

    @theorem("no lost id: a usable id is in the list or in some thread's hand, or has a handle that can be used")
    def no_lost_id(self) -> Bool:
        return forall(
            Block,
            lambda b: implies(
                self.handles.blocks.usable.has(b),
                self.free.has(b)
                | exists(Thread, lambda t: self.in_hand(t, b))
                | exists(Handle, lambda h: self.names(h, b)),
            ),
        )

    @theorem("an id in a thread's hand is in no other's, is not in the list and not counted")
    def in_one_hand(self) -> Bool:
        return forall(
            Thread,
            Thread,
            Block,
            lambda t, u, b: implies(
                self.in_hand(t, b),
                implies(self.in_hand(u, b), t == u) & ~self.free.has(b) & (self.ref_count[b] == 0),
            ),
        )

    @theorem("no use after free: the block of a handle is not in the list")
    def live_not_free(self) -> Bool:
        return forall(Handle, lambda h: implies(self.live.has(h), ~self.free.has(self.block_of[h])))

    @theorem("the block of a handle that can be used is counted and in nobody's hand")
    def named_is_counted(self) -> Bool:
        return forall(
            Handle,
            Thread,
            Block,
            lambda h, t, b: implies(self.names(h, b), (self.ref_count[b] > 0) & ~self.in_hand(t, b)),
        )

    @theorem("the padding block is never in the list, in a thread's hand or in a handle")
    def padding_reserved(self) -> Bool:
        padding = self.handles.blocks.padding
        return (
            ~self.free.has(padding)
            & forall(Thread, lambda t: ~self.in_hand(t, padding))
            & forall(Handle, lambda h: implies(self.live.has(h), self.block_of[h] != padding))
        )

    @theorem("drain: when all threads are idle and no handle is left, every usable id is in the list")
    def drained(self) -> Bool:
        return implies(
            forall(Thread, lambda t: self.at(t, Doing.idle())) & self.live.is_empty(),
            forall(Block, lambda b: implies(self.handles.blocks.usable.has(b), self.free.has(b))),
        )

    @theorem("while nobody has the lock the list is what is free in the serial machine")
    def unlocked_serial(self) -> Bool:
        return implies(self.depth == 0, self.free.equals(self.handles.blocks.free))

    @theorem("a call of the manager begins with the wish for the lock", after=call)
    def called_waits(self, thread: Thread) -> Bool:
        return self.waits(thread)

    @theorem("a call is refused only when nothing is free in the serial machine, and leaves then", after=refuse)
    def refused_rightly(self, thread: Thread) -> Bool:
        return old(self).handles.blocks.free.is_empty() & self.at(thread, Doing.served())

    @theorem("the id that a new handle names had no handle before", after=make)
    def made_of_unused(self, handle: Handle) -> Bool:
        return self.is_own(handle) & forall(
            Handle, lambda h: implies(old(self).live.has(h), old(self).block_of[h] != self.block_of[handle])
        )

    @theorem("a caller that matches a block gets a handle of its own", after=match)
    def matched_is_own(self, thread: Thread, block: Block, handle: Handle) -> Bool:
        return self.is_own(handle) & (self.block_of[handle] == block) & self.at(thread, Doing.served())

    @theorem("a block is cached once, under another handle than the caller's, who keeps it", after=publish)
    def published_once(self, thread: Thread, source: Handle, target: Handle) -> Bool:
        return (
            ~old(self).cached.has(self.block_of[source])
            & self.is_own(source)
            & self.is_entry(target)
            & (self.block_of[target] == self.block_of[source])
            & self.at(thread, Doing.served())
        )

    @theorem("who has found a victim evicts it next", after=look)
    def found_goes(self, thread: Thread, block: Block) -> Bool:
        return self.at(thread, Doing.checked()) & (self.block[thread] == block)

    @theorem("the victim was cached, and its id is on its way back", after=evict)
    def evicted_goes(self, thread: Thread) -> Bool:
        block = self.block[thread]
        return old(self).cached.has(block) & ~self.cached.has(block) & self.in_hand(thread, block)

    @theorem("an id that is put back is in the list, free in the serial machine, and no more in the hand", after=push)
    def pushed_is_free(self, thread: Thread) -> Bool:
        block = self.block_of[self.handle[thread]]
        return (
            ~old(self).free.has(block)
            & self.free.has(block)
            & self.handles.blocks.free.has(block)
            & ~self.in_hand(thread, block)
        )

    @theorem("a copy is a new handle of the same block, and can be used like the other", after=copy)
    def copied_is_own(self, source: Handle, target: Handle) -> Bool:
        return (
            ~old(self).live.has(target)
            & self.is_own(source)
            & self.is_own(target)
            & (self.block_of[target] == self.block_of[source])
        )

    @theorem("a destroyed handle cannot be used, and the last one leaves its id in the thread's hand", after=release)
    def released_goes(self, thread: Thread, handle: Handle) -> Bool:
        block = old(self).block_of[handle]
        return (
            old(self).is_own(handle)
            & ~self.is_own(handle)
            & (self.in_hand(thread, block) == (self.ref_count[block] == 0))
        )

    @witness("a thread has the lock twice")
    def locked_twice(self) -> Bool:
        return self.depth == 2

    @witness("a thread that has counted to zero waits, while another one is under the lock")
    def waits_with_an_id(self) -> Bool:
        return exists(
            Thread, Thread, lambda t, u: self.at(t, Doing.freeing()) & self.under_lock(u) & (t != u)
        )

    @witness("nothing is in the list, and an id is on its way back to it")
    def nearly_free(self) -> Bool:
        return self.free.is_empty() & exists(Thread, lambda t: self.destroys(t))
