"""Several managers behind one (seed 9.2; class `CompositeBlockManager`).

A model may have layers of different kinds: of full attention, and of one window or another. Each kind is a *group* with
a manager, a pool of ids and a block table of its own for every sequence (composite_blocks_); what one manager does is
chapter `sliding_window`. Nothing is published or matched here: no block is ever shared.

A *call* (allocate_for_sequence) grows the tables of one sequence in all groups, or, as soon as a group has nothing to
give, in none. What has left a window may go back during a call, and has to before a call is refused for want of it.

A step computes one group after the other. Only when all have computed a token can it be *accepted*: what is behind the
accepted tokens may still be taken back, also in one group after the other. What is accepted is there to stay: a
sequence that is to go on before it has to leave, and begins anew.
"""

from __future__ import annotations

from kvspec.spec.language import (
    Bool,
    Ghost,
    Id,
    Machine,
    Map,
    Set,
    event,
    exists,
    false,
    forall,
    implies,
    inherit,
    init,
    invariant,
    old,
    possible,
    require,
    theorem,
    true,
    use_each,
    when,
    witness,
)
from kvspec.spec.sliding_window import Entry, SlidingWindow, Token
from kvspec.spec.sorts import Block, Index, Seq


class Group(Id):
    """Layers that have a manager in common."""


class Composite(Machine):
    """A sequence has room for the same tokens in all groups, and a call that fails leaves no trace in any."""

    groups = use_each(Group, SlidingWindow)

    running: Set[Seq]
    leaving: Set[Seq]
    covered: Map[Seq, Token]
    accepted: Map[Seq, Token]

    busy: Bool
    rolling: Bool
    grower: Seq
    need: Token
    size_before: Map[Group, Index]
    table_before: Ghost[Map[tuple[Group, Index], Block]]
    free_before: Ghost[Map[Group, Set[Block]]]

    @init
    def start(self) -> None:
        self.running.clear()
        self.leaving.clear()
        self.covered.assign_all(lambda seq: Token.zero())
        self.accepted.assign_all(lambda seq: Token.zero())
        self.end_call()

    # -- allocate: the stages of a call --------------------------------------------------------------------------

    @event
    def begin(self, seq: Seq, need: Token) -> None:
        """A call begins: a sequence is to have room for more tokens (allocate_for_sequence)."""
        require(~self.busy)
        require(~self.leaving.has(seq))
        require(self.covered[seq] < need)
        self.busy = true()
        self.grower = seq
        self.need = need
        self.size_before.assign_all(lambda group: self.groups[group].size[seq])
        self.table_before.assign_all(lambda group, index: self.groups[group].table[seq, index])
        self.free_before.assign_all(lambda group: self.groups[group].blocks.free)

    @event
    def stage(self, group: Group, block: Block) -> None:
        """A group gives a block, unless it has given enough (allocate of a sub-manager; one block of it)."""
        require(self.staging())
        require(~self.has_enough(group))
        inherit(self.groups[group].grow)(self.grower, block)

    @event
    def commit(self) -> None:
        """All groups have given enough: the call succeeds."""
        require(self.staging())
        require(forall(Group, lambda g: self.has_enough(g)))
        self.running.add(self.grower)
        self.covered[self.grower] = self.need
        self.end_call()

    @event
    def refuse(self, group: Group) -> None:
        """A group has nothing to give, and the sequence has nothing there that no query sees: the call fails."""
        require(self.staging())
        require(~self.has_enough(group))
        require(self.groups[group].blocks.free.is_empty())
        require(~self.can_slide(self.grower, group))
        self.rolling = true()

    @event
    def unstage(self, group: Group) -> None:
        """A block that the call has taken goes back."""
        require(self.rolling)
        require(self.size_before[group] < self.groups[group].size[self.grower])
        self.groups[group].drop(self.grower)

    @event
    def refused(self) -> None:
        """Nothing is left of what the call has taken: it returns without success."""
        require(self.rolling)
        require(forall(Group, lambda g: self.groups[g].size[self.grower] == self.size_before[g]))
        self.end_call()

    @event
    def slide(self, seq: Seq, group: Group) -> None:
        """The first block of a table has left the window of every query that can still come, and goes back."""
        require(~self.leaving.has(seq))
        require(self.can_slide(seq, group))
        manager = self.groups[group]
        block = manager.table[seq, manager.released[seq]]
        with when(manager.confirmed[seq] < self.accepted[seq]):
            manager.confirm(seq, self.accepted[seq])
        manager.slide(seq)
        self.free_before[group].add(block)

    # -- steps ---------------------------------------------------------------------------------------------------

    @event
    def compute(self, seq: Seq, group: Group, upto: Token) -> None:
        """The layers of a group compute the tokens before a position, within those that have room."""
        require(~self.leaving.has(seq))
        require(upto <= self.covered[seq])
        require(self.groups[group].computed[seq] < upto)
        self.groups[group].compute(seq, upto)

    @event
    def accept(self, seq: Seq, upto: Token) -> None:
        """Tokens that all groups have computed are there to stay."""
        require(self.accepted[seq] < upto)
        require(forall(Group, lambda g: upto <= self.groups[g].computed[seq]))
        self.accepted[seq] = upto

    @event
    def take_back(self, seq: Seq, group: Group, upto: Token) -> None:
        """Tokens that are not accepted are taken back in a group, from a position on (rejected draft tokens)."""
        require(self.accepted[seq] <= upto)
        require(upto < self.groups[group].computed[seq])
        self.groups[group].take_back(seq, upto)

    @event
    def shorten(self, seq: Seq, upto: Token) -> None:
        """Only tokens before a position are to have room; behind it none is computed (truncate)."""
        require(upto < self.covered[seq])
        require(forall(Group, lambda g: self.groups[g].computed[seq] <= upto))
        self.covered[seq] = upto

    @event
    def give_back(self, seq: Seq, group: Group) -> None:
        """The last block of a table goes back, since no token in it is to have room (truncate)."""
        require(~self.busy)
        manager = self.groups[group]
        require(manager.released[seq] < manager.size[seq])
        require(self.covered[seq].is_zero() | (manager.place(self.covered[seq].prev()) < manager.size[seq].prev()))
        manager.drop(seq)

    # -- deallocate ----------------------------------------------------------------------------------------------

    @event
    def leave(self, seq: Seq) -> None:
        """A sequence ends, or gives way to others (deallocate_sequence)."""
        require(~self.busy)
        require(self.running.has(seq))
        self.leaving.add(seq)

    @event
    def leave_group(self, seq: Seq, group: Group) -> None:
        """All its blocks in a group go back."""
        require(~self.busy)
        require(self.leaving.has(seq))
        self.groups[group].finish(seq)

    @event
    def left(self, seq: Seq) -> None:
        """It has nothing any more in any group."""
        require(self.leaving.has(seq))
        require(forall(Group, lambda g: self.groups[g].size[seq].is_zero()))
        self.running.discard(seq)
        self.leaving.discard(seq)
        self.covered[seq] = Token.zero()
        self.accepted[seq] = Token.zero()

    # -- words ---------------------------------------------------------------------------------------------------

    def end_call(self) -> None:
        self.busy = false()
        self.rolling = false()

    def staging(self) -> Bool:
        return self.busy & ~self.rolling

    def has_room(self, seq: Seq, group: Group, upto: Token) -> Bool:
        """The sequence has room in the group for the last token before a position, and so for all before it."""
        return upto.is_zero() | self.groups[group].has_room(seq, upto.prev())

    def has_enough(self, group: Group) -> Bool:
        return self.has_room(self.grower, group, self.need)

    def can_slide(self, seq: Seq, group: Group) -> Bool:
        """The first token that the next query may see lies behind the first kept block."""
        manager = self.groups[group]
        return manager.released[seq] < manager.place(manager.seen_from(self.accepted[seq]))

    def may_see(self, seq: Seq, group: Group, token: Token) -> Bool:
        """Some query that can still come sees the token in this group."""
        manager = self.groups[group]
        return exists(Token, lambda q: (self.accepted[seq] <= q) & (manager.seen_from(q) <= token) & (token <= q))

    def staged(self, group: Group, block: Block) -> Bool:
        """The call has taken the block."""
        return exists(
            Index, lambda i: (self.size_before[group] <= i) & self.groups[group].stands(block, self.grower, i)
        )

    # -- invariants ----------------------------------------------------------------------------------------------

    @invariant("who is not running has no block, but what a call takes for him")
    def outside_has_nothing(self) -> Bool:
        return forall(
            Seq,
            Group,
            lambda s, g: implies(
                ~self.running.has(s) & ~(self.busy & (self.grower == s)), self.groups[g].size[s].is_zero()
            ),
        )

    @invariant("who is not running has room for no token")
    def outside_covers_nothing(self) -> Bool:
        return forall(Seq, lambda s: implies(~self.running.has(s), self.covered[s].is_zero()))

    @invariant("only who is running can leave")
    def leaving_running(self) -> Bool:
        return forall(Seq, lambda s: implies(self.leaving.has(s), self.running.has(s)))

    @invariant("a sequence has room for the same tokens in all groups")
    def covered_has_room(self) -> Bool:
        return forall(
            Seq,
            Group,
            Token,
            lambda s, g, t: implies(~self.leaving.has(s) & (t < self.covered[s]), self.groups[g].has_room(s, t)),
        )

    @invariant("no group confirms more than is accepted")
    def confirmed_accepted(self) -> Bool:
        return forall(Seq, Group, lambda s, g: self.groups[g].confirmed[s] <= self.accepted[s])

    @invariant("what is accepted is computed in all groups")
    def accepted_computed(self) -> Bool:
        return forall(
            Seq,
            Group,
            lambda s, g: implies(~self.leaving.has(s), self.accepted[s] <= self.groups[g].computed[s]),
        )

    @invariant("what is computed has room in all groups")
    def computed_covered(self) -> Bool:
        return forall(Seq, Group, lambda s, g: self.groups[g].computed[s] <= self.covered[s])

    @invariant("a call is undone only while it goes on")
    def rolling_busy(self) -> Bool:
        return implies(self.rolling, self.busy)

    @invariant("no call goes on for a sequence that leaves")
    def grower_stays(self) -> Bool:
        return implies(self.busy, ~self.leaving.has(self.grower))

    @invariant("a call is for more tokens than are covered")
    def need_is_more(self) -> Bool:
        return implies(self.busy, self.covered[self.grower] < self.need)

    @invariant("who was not running before a call had no block")
    def newcomer_had_nothing(self) -> Bool:
        return forall(
            Group,
            lambda g: implies(self.busy & ~self.running.has(self.grower), self.size_before[g].is_zero()),
        )

    @invariant("before a call there was room for the tokens that are covered")
    def covered_before(self) -> Bool:
        return forall(
            Group,
            Token,
            lambda g, t: implies(
                self.busy & (t < self.covered[self.grower]), self.groups[g].place(t) < self.size_before[g]
            ),
        )

    @invariant("a call takes nothing away from the end of a table")
    def none_dropped(self) -> Bool:
        return forall(Group, lambda g: implies(self.busy, self.size_before[g] <= self.groups[g].size[self.grower]))

    @invariant("a call leaves every block where it was")
    def none_moved(self) -> Bool:
        return forall(
            Group,
            Index,
            lambda g, i: implies(
                self.busy & (i < self.size_before[g]),
                self.groups[g].table[self.grower, i] == self.table_before[g, i],
            ),
        )

    @invariant("what was free before a call, or has slid out since, is free or taken by the call; and nothing else")
    def free_or_staged(self) -> Bool:
        return forall(
            Group,
            Block,
            lambda g, b: implies(
                self.busy,
                self.free_before[g].has(b) == (self.groups[g].blocks.free.has(b) | self.staged(g, b)),
            ),
        )

    # -- theorems ------------------------------------------------------------------------------------------------

    @theorem("what a query that can still come sees lies where it was computed, in a block that is not shared")
    def seen_is_there(self) -> Bool:
        return forall(
            Seq,
            Group,
            Token,
            lambda s, g, t: implies(
                ~self.leaving.has(s) & self.may_see(s, g, t) & (t < self.groups[g].computed[s]),
                self.groups[g].contents.has((self.groups[g].table[s, self.groups[g].place(t)], s, t))
                & self.groups[g]
                .blocks.holders[self.groups[g].table[s, self.groups[g].place(t)]]
                .is_only(Entry.entry_of(s, self.groups[g].place(t))),
            ),
        )

    @theorem("when no sequence runs and no call goes on, every manager has all its blocks back")
    def drained(self) -> Bool:
        return forall(
            Group,
            Block,
            lambda g, b: implies(
                ~self.busy & forall(Seq, lambda s: ~self.running.has(s)) & self.groups[g].blocks.usable.has(b),
                self.groups[g].blocks.free.has(b),
            ),
        )

    @theorem("no more stays than must, whatever call goes on: a block that no query sees any more can go")
    def unseen_can_go(self) -> Bool:
        return forall(
            Seq,
            Group,
            lambda s, g: implies(
                ~self.leaving.has(s)
                & forall(
                    Token,
                    lambda t: implies(self.may_see(s, g, t), self.groups[g].place(t) != self.groups[g].released[s]),
                ),
                possible(self.slide)(s, g),
            ),
        )

    @theorem("no call is refused while a group has a free block, or the sequence one there that no query sees")
    def refused_for_want_only(self) -> Bool:
        return forall(
            Group,
            lambda g: implies(
                ~self.groups[g].blocks.free.is_empty() | possible(self.slide)(self.grower, g),
                ~possible(self.refuse)(g),
            ),
        )

    @theorem("a call can always go on: by a block, by sliding or by refusal, and at last by success")
    def call_goes_on(self) -> Bool:
        return implies(
            self.staging(),
            possible(self.commit)()
            | exists(
                Group,
                lambda g: (
                    possible(self.slide)(self.grower, g)
                    | possible(self.refuse)(g)
                    | exists(Block, lambda b: possible(self.stage)(g, b))
                ),
            ),
        )

    @theorem("a call that fails can always be undone")
    def undoing_goes_on(self) -> Bool:
        return implies(self.rolling, possible(self.refused)() | exists(Group, lambda g: possible(self.unstage)(g)))

    @theorem("between calls a sequence can ask for more room, unless it leaves")
    def more_can_be_asked(self) -> Bool:
        return forall(
            Seq,
            Token,
            lambda s, n: implies(~self.busy & ~self.leaving.has(s) & (self.covered[s] < n), possible(self.begin)(s, n)),
        )

    @theorem("all that every group has computed can be accepted, or else be taken back, up to any token")
    def drafts_can_stay_or_go(self) -> Bool:
        return forall(
            Seq,
            Group,
            Token,
            lambda s, g, t: (
                implies(
                    (self.accepted[s] < t) & forall(Group, lambda h: t <= self.groups[h].computed[s]),
                    possible(self.accept)(s, t),
                )
                & implies(
                    (self.accepted[s] <= t) & (t < self.groups[g].computed[s]),
                    possible(self.take_back)(s, g, t),
                )
            ),
        )

    @theorem("what is covered can be computed")
    def covered_can_be_computed(self) -> Bool:
        return forall(
            Seq,
            Group,
            Token,
            lambda s, g, t: implies(
                ~self.leaving.has(s) & (self.groups[g].computed[s] < t) & (t <= self.covered[s]),
                possible(self.compute)(s, g, t),
            ),
        )

    @theorem("between calls a block goes from the end of a table when no token in it is to have room")
    def spare_can_go(self) -> Bool:
        return forall(
            Seq,
            Group,
            lambda s, g: implies(
                ~self.busy
                & ~self.leaving.has(s)
                & (self.groups[g].released[s] < self.groups[g].size[s])
                & forall(
                    Token,
                    lambda t: implies(t < self.covered[s], self.groups[g].place(t) != self.groups[g].size[s].prev()),
                ),
                possible(self.give_back)(s, g),
            ),
        )

    @theorem("between calls a sequence can leave")
    def can_leave(self) -> Bool:
        return forall(Seq, lambda s: implies(~self.busy & self.running.has(s), possible(self.leave)(s)))

    @theorem("who leaves gets rid, between calls, of all that he has")
    def leaving_goes_on(self) -> Bool:
        return forall(
            Seq,
            lambda s: implies(
                ~self.busy & self.leaving.has(s),
                possible(self.left)(s)
                | exists(Group, lambda g: ~self.groups[g].size[s].is_zero() & possible(self.leave_group)(s, g)),
            ),
        )

    @theorem("at the start nothing runs and no call goes on", after=start)
    def starts_empty(self) -> Bool:
        return (
            ~self.busy
            & ~self.rolling
            & forall(Seq, lambda s: ~self.running.has(s) & self.covered[s].is_zero() & self.accepted[s].is_zero())
        )

    @theorem("a call begins with nothing taken", after=begin)
    def begun(self, seq: Seq, need: Token) -> Bool:
        return (
            self.staging()
            & (self.grower == seq)
            & (self.need == need)
            & forall(
                Group,
                Block,
                lambda g, b: (
                    ~self.staged(g, b) & (self.free_before[g].has(b) == old(self).groups[g].blocks.free.has(b))
                ),
            )
        )

    @theorem("a call takes no more than it needs, and what it takes was free", after=stage)
    def staged_is_needed(self, group: Group, block: Block) -> Bool:
        return (
            old(self).staging()
            & ~old(self).has_enough(group)
            & old(self).groups[group].blocks.free.has(block)
            & self.staged(group, block)
        )

    @theorem("the growth of one sequence leaves all others alone, and every block of its own", after=stage)
    def stage_moves_nothing(self, group: Group) -> Bool:
        return forall(
            Group,
            Block,
            Seq,
            Index,
            lambda g, b, s, i: implies(
                (g != group) | (s != self.grower) | (i < old(self).groups[g].size[s]),
                self.groups[g].stands(b, s, i) == old(self).groups[g].stands(b, s, i),
            ),
        )

    @theorem("after a call that succeeds all groups have room for what was asked", after=commit)
    def committed_has_room(self) -> Bool:
        seq = old(self).grower
        return (
            old(self).staging()
            & ~self.busy
            & (self.covered[seq] == old(self).need)
            & forall(Group, Token, lambda g, t: implies(t < old(self).need, self.groups[g].has_room(seq, t)))
        )

    @theorem("a call is refused only if a group without enough has nothing, free or to slide out", after=refuse)
    def refused_for_want(self, group: Group) -> Bool:
        return (
            old(self).staging()
            & self.rolling
            & self.groups[group].blocks.free.is_empty()
            & ~self.has_enough(group)
            & ~self.can_slide(self.grower, group)
        )

    @theorem("what is undone was taken by the call, and is free again", after=unstage)
    def undone_was_staged(self, group: Group) -> Bool:
        manager = old(self).groups[group]
        block = manager.table[self.grower, manager.size[self.grower].prev()]
        return old(self).rolling & old(self).staged(group, block) & self.groups[group].blocks.free.has(block)

    @theorem(
        "all or nothing: after a call that fails every group has free what it had, and what slid out", after=refused
    )
    def refused_leaves_nothing(self) -> Bool:
        return (
            old(self).rolling
            & ~self.busy
            & forall(Group, lambda g: self.groups[g].blocks.free.equals(self.free_before[g]))
        )

    @theorem("all or nothing: after a call that fails the sequence's tables are what they were", after=refused)
    def refused_restores_tables(self) -> Bool:
        return (self.covered[self.grower] == old(self).covered[self.grower]) & forall(
            Group,
            Index,
            lambda g, i: (
                (self.groups[g].size[self.grower] == self.size_before[g])
                & implies(
                    self.groups[g].kept(self.grower, i),
                    self.groups[g].table[self.grower, i] == self.table_before[g, i],
                )
            ),
        )

    @theorem("what slides out is free, and no query that can still come sees a token of it", after=slide)
    def slid_is_unseen(self, seq: Seq, group: Group) -> Bool:
        manager = old(self).groups[group]
        index = manager.released[seq]
        return self.groups[group].blocks.free.has(manager.table[seq, index]) & forall(
            Token, lambda t: implies(self.may_see(seq, group, t), manager.place(t) > index)
        )

    @theorem("only what all groups have computed is accepted", after=accept)
    def accepted_everywhere(self, seq: Seq, upto: Token) -> Bool:
        return (
            (self.accepted[seq] == upto)
            & (old(self).accepted[seq] < upto)
            & forall(Group, lambda g: upto <= self.groups[g].computed[seq])
        )

    @theorem("a step goes on in its group, and accepts nothing by itself", after=compute)
    def computed_upto(self, seq: Seq, group: Group, upto: Token) -> Bool:
        return (self.groups[group].computed[seq] == upto) & (self.accepted[seq] == old(self).accepted[seq])

    @theorem("tokens that are taken back in a group are not computed there any more", after=take_back)
    def taken_back_to(self, seq: Seq, group: Group, upto: Token) -> Bool:
        return self.groups[group].computed[seq] == upto

    @theorem("room that is not wanted any more has no computed token", after=shorten)
    def shortened_to(self, seq: Seq, upto: Token) -> Bool:
        return (
            (self.covered[seq] == upto)
            & (upto < old(self).covered[seq])
            & forall(Group, lambda g: self.groups[g].computed[seq] <= upto)
        )

    @theorem("the block that is given back is free, and every token that is covered has room", after=give_back)
    def given_back_is_spare(self, seq: Seq, group: Group) -> Bool:
        manager = old(self).groups[group]
        block = manager.table[seq, manager.size[seq].prev()]
        return self.groups[group].blocks.free.has(block) & self.has_room(seq, group, self.covered[seq])

    @theorem("no call begins for a sequence that leaves", after=leave)
    def leaves_between_calls(self, seq: Seq) -> Bool:
        return ~self.busy & self.leaving.has(seq)

    @theorem(
        "who leaves a group has nothing there; other sequences keep what they have, where it is", after=leave_group
    )
    def group_is_left(self, seq: Seq, group: Group) -> Bool:
        return forall(
            Block,
            Seq,
            Index,
            lambda b, s, i: (
                self.groups[group].stands(b, s, i) == (old(self).groups[group].stands(b, s, i) & (s != seq))
            ),
        )

    @theorem("who has left has nothing anywhere, and can come back as one that never was there", after=left)
    def left_has_nothing(self, seq: Seq) -> Bool:
        return (
            old(self).leaving.has(seq)
            & ~self.running.has(seq)
            & ~self.leaving.has(seq)
            & forall(
                Group,
                Block,
                Index,
                lambda g, b, i: ~self.groups[g].blocks.holders[b].has(Entry.entry_of(seq, i)),
            )
        )

    @witness("a call is undone after a block of its sequence has slid out in one group, and none in another")
    def slid_and_refused(self) -> Bool:
        return self.rolling & exists(
            Group,
            Group,
            lambda g, h: (
                ~self.groups[g].released[self.grower].is_zero()
                & self.groups[h].released[self.grower].is_zero()
                & ~self.groups[h].size[self.grower].is_zero()
            ),
        )
