"""Block tables that lose their front (seed 9.3; class `SlidingWindowBlockManager`).

In a layer with a window, a block goes back once no query that can still come sees a token of it. The table *slides*:
its first kept place moves on, and every other block stays at its place, so that a token's place never changes. A
manager has a *type*: how many tokens a block has, and from which token on a query sees (from the first one on, in a
manager of full attention). Of this arithmetic the axioms say what is needed here; chapters `slots` and `window` prove
it.

Draft tokens are computed before anybody knows whether they stay. If they are rejected, the position goes back, and
later queries see what earlier ones saw. So a table slides by what is *confirmed*, behind which no position goes back.
"""

from __future__ import annotations

from collections.abc import Callable

from kvspec.spec.blocks import Blocks
from kvspec.spec.language import (
    Bool,
    Ghost,
    Id,
    Machine,
    Map,
    Position,
    Set,
    Static,
    Variants,
    axiom,
    case,
    event,
    exists,
    forall,
    implies,
    init,
    invariant,
    old,
    possible,
    require,
    set_where,
    theorem,
    use,
    witness,
)
from kvspec.spec.sorts import Block, Index, Seq


class Token(Position):
    """A token of a sequence, by its position; as a number of tokens, the position of the next one."""


class Entry(Variants):
    """Who holds a block: one place of one sequence's table."""

    entry_of = case(Seq, Index)


class ManagerType(Id):
    """What a manager's blocks are for: the layers of one window, or of full attention (manager_types)."""


class SlidingWindow(Machine):
    """What a query that can still come sees lies where it was computed, in a block that its sequence holds alone."""

    blocks = use(Blocks, Holder=Entry)

    place_in: Static[Callable[[ManagerType, Token], Index]]
    first_seen: Static[Callable[[ManagerType, Token], Token]]

    manager_type: ManagerType
    size: Map[Seq, Index]
    released: Map[Seq, Index]
    table: Map[tuple[Seq, Index], Block]
    computed: Map[Seq, Token]
    confirmed: Map[Seq, Token]
    contents: Ghost[Set[tuple[Block, Seq, Token]]]

    @axiom("the first token lies in the first block")
    def first_place(self) -> Bool:
        return forall(ManagerType, lambda m: self.place_in(m, Token.zero()).is_zero())

    @axiom("a later token lies in the same block or a later one")
    def places_ascend(self) -> Bool:
        return forall(
            ManagerType, Token, Token, lambda m, t, u: implies(t <= u, self.place_in(m, t) <= self.place_in(m, u))
        )

    @axiom("from one token to the next no block is passed over")
    def no_place_skipped(self) -> Bool:
        return forall(
            ManagerType,
            Token,
            Index,
            lambda m, t, i: implies(~t.is_zero() & (self.place_in(m, t.prev()) < i), self.place_in(m, t) <= i),
        )

    @axiom("a query sees its own token")
    def sees_itself(self) -> Bool:
        return forall(ManagerType, Token, lambda m, q: self.first_seen(m, q) <= q)

    @axiom("a later query sees no earlier token")
    def sees_on(self) -> Bool:
        return forall(
            ManagerType,
            Token,
            Token,
            lambda m, q, r: implies(q <= r, self.first_seen(m, q) <= self.first_seen(m, r)),
        )

    @init
    def start(self) -> None:
        self.size.assign_all(lambda seq: Index.zero())
        self.released.assign_all(lambda seq: Index.zero())
        self.computed.assign_all(lambda seq: Token.zero())
        self.confirmed.assign_all(lambda seq: Token.zero())

    # -- room ----------------------------------------------------------------------------------------------------

    @event
    def grow(self, seq: Seq, block: Block) -> None:
        """The table grows by a free block, which has nothing in it (allocate_for_sequence; one block of it)."""
        require(self.blocks.free.has(block))
        self.blocks.take(block, Entry.entry_of(seq, self.size[seq]))
        self.table[seq, self.size[seq]] = block
        self.size[seq] = self.size[seq].next()
        self.contents.assign_where(lambda b, s, t: self.contents.has((b, s, t)) & (b != block))

    @event
    def slide(self, seq: Seq) -> None:
        """The first block of the table goes back, since no query that can still come sees a token of it."""
        require(self.can_slide(seq))
        index = self.released[seq]
        self.blocks.drop_last(self.table[seq, index], Entry.entry_of(seq, index))
        self.released[seq] = index.next()

    @event
    def drop(self, seq: Seq) -> None:
        """The last block of the table goes back, since no token is computed in it (deallocate; one block of it)."""
        require(self.released[seq] < self.size[seq])
        index = self.size[seq].prev()
        require(self.computed[seq].is_zero() | (self.place(self.computed[seq].prev()) < index))
        self.blocks.drop_last(self.table[seq, index], Entry.entry_of(seq, index))
        self.size[seq] = index

    @event
    def finish(self, seq: Seq) -> None:
        """A sequence has ended, or gives way to others: all its blocks go back (deallocate_sequence)."""
        self.blocks.drop_all(set_where(Entry, lambda entry: entry.field(Entry.entry_of, 0) == seq))
        self.size[seq] = Index.zero()
        self.released[seq] = Index.zero()
        self.computed[seq] = Token.zero()
        self.confirmed[seq] = Token.zero()

    # -- tokens --------------------------------------------------------------------------------------------------

    @event
    def compute(self, seq: Seq, upto: Token) -> None:
        """A step computes the tokens before a position, all of which have room."""
        require(self.computed[seq] < upto)
        require(self.has_room(seq, upto.prev()))
        done = self.computed[seq]
        self.contents.assign_where(
            lambda b, s, t: (
                self.contents.has((b, s, t))
                | ((s == seq) & (done <= t) & (t < upto) & (b == self.table[seq, self.place(t)]))
            )
        )
        self.computed[seq] = upto

    @event
    def confirm(self, seq: Seq, upto: Token) -> None:
        """Computed tokens before a position are there to stay: they are accepted."""
        require(self.confirmed[seq] < upto)
        require(upto <= self.computed[seq])
        self.confirmed[seq] = upto

    @event
    def take_back(self, seq: Seq, upto: Token) -> None:
        """Tokens that are not confirmed are taken back, from a position on (rejected draft tokens)."""
        require(self.confirmed[seq] <= upto)
        require(upto < self.computed[seq])
        self.computed[seq] = upto

    # -- words ---------------------------------------------------------------------------------------------------

    def place(self, token: Token) -> Index:
        """Where in the table the token's block stands."""
        return self.place_in(self.manager_type, token)

    def seen_from(self, query: Token) -> Token:
        """The first token that the query sees."""
        return self.first_seen(self.manager_type, query)

    def has_room(self, seq: Seq, token: Token) -> Bool:
        return self.place(token) < self.size[seq]

    def can_slide(self, seq: Seq) -> Bool:
        """The first token that the next query may see lies behind the first kept block."""
        return self.released[seq] < self.place(self.seen_from(self.confirmed[seq]))

    def kept(self, seq: Seq, index: Index) -> Bool:
        return (self.released[seq] <= index) & (index < self.size[seq])

    def stands(self, block: Block, seq: Seq, index: Index) -> Bool:
        """The block stands at this kept place of the sequence's table."""
        return self.kept(seq, index) & (self.table[seq, index] == block)

    def may_see(self, seq: Seq, token: Token) -> Bool:
        """Some query that can still come sees the token."""
        return exists(Token, lambda q: (self.confirmed[seq] <= q) & (self.seen_from(q) <= token) & (token <= q))

    # -- invariants ----------------------------------------------------------------------------------------------

    @invariant("a block is held for the kept places where it stands")
    def kept_held(self) -> Bool:
        return forall(
            Seq,
            Index,
            lambda s, i: implies(self.kept(s, i), self.blocks.holders[self.table[s, i]].has(Entry.entry_of(s, i))),
        )

    @invariant("a block is held only for kept places where it stands")
    def held_kept(self) -> Bool:
        return forall(
            Block,
            Seq,
            Index,
            lambda b, s, i: implies(self.blocks.holders[b].has(Entry.entry_of(s, i)), self.stands(b, s, i)),
        )

    @invariant("nothing is shared: a block has one holder at most")
    def one_holder(self) -> Bool:
        return forall(
            Block,
            Entry,
            Entry,
            lambda b, e, f: implies(self.blocks.holders[b].has(e) & self.blocks.holders[b].has(f), e == f),
        )

    @invariant("a computed token has its place in the table")
    def computed_has_room(self) -> Bool:
        return forall(Seq, Token, lambda s, t: implies(t < self.computed[s], self.has_room(s, t)))

    @invariant("only what is computed is confirmed")
    def confirmed_computed(self) -> Bool:
        return forall(Seq, lambda s: self.confirmed[s] <= self.computed[s])

    @invariant("no block has gone that the next query may see")
    def released_unseen(self) -> Bool:
        return forall(Seq, lambda s: self.released[s] <= self.place(self.seen_from(self.confirmed[s])))

    @invariant("a computed token lies in the block at its place, as long as that is kept")
    def computed_in_place(self) -> Bool:
        return forall(
            Seq,
            Token,
            lambda s, t: implies(
                (t < self.computed[s]) & (self.released[s] <= self.place(t)),
                self.contents.has((self.table[s, self.place(t)], s, t)),
            ),
        )

    @invariant("in a kept block there is nothing but tokens of its sequence and its place")
    def nothing_foreign(self) -> Bool:
        return forall(
            Block,
            Seq,
            Index,
            Seq,
            Token,
            lambda b, s, i, r, t: implies(
                self.stands(b, s, i) & self.contents.has((b, r, t)), (r == s) & (self.place(t) == i)
            ),
        )

    # -- theorems ------------------------------------------------------------------------------------------------

    @theorem("what a query that can still come sees has its place in a block that the sequence holds alone")
    def seen_is_held(self) -> Bool:
        return forall(
            Seq,
            Token,
            lambda s, t: implies(
                self.may_see(s, t) & self.has_room(s, t),
                self.blocks.holders[self.table[s, self.place(t)]].is_only(Entry.entry_of(s, self.place(t))),
            ),
        )

    @theorem("what a query that can still come sees lies where it was computed")
    def seen_is_there(self) -> Bool:
        return forall(
            Seq,
            Token,
            lambda s, t: implies(
                self.may_see(s, t) & (t < self.computed[s]),
                self.contents.has((self.table[s, self.place(t)], s, t)),
            ),
        )

    @theorem("no two sequences, and no two places of one, have written a kept block")
    def one_writer(self) -> Bool:
        return forall(
            Block,
            Seq,
            Token,
            Seq,
            Token,
            lambda b, r, t, s, u: implies(
                exists(Seq, Index, lambda q, i: self.stands(b, q, i))
                & self.contents.has((b, r, t))
                & self.contents.has((b, s, u)),
                (r == s) & (self.place(t) == self.place(u)),
            ),
        )

    @theorem("no more stays than must: a block that no query that can still come sees can go")
    def unseen_can_go(self) -> Bool:
        return forall(
            Seq,
            lambda s: implies(
                forall(Token, lambda t: implies(self.may_see(s, t), self.place(t) != self.released[s])),
                possible(self.slide)(s),
            ),
        )

    @theorem("with full attention no block goes before the end")
    def full_keeps_all(self) -> Bool:
        return forall(
            Seq,
            lambda s: implies(forall(Token, lambda q: self.seen_from(q).is_zero()), self.released[s].is_zero()),
        )

    @theorem("the first kept place is not behind the end of the table")
    def released_in_table(self) -> Bool:
        return forall(Seq, lambda s: self.released[s] <= self.size[s])

    @theorem("a released place is never one where a block is held")
    def released_is_absent(self) -> Bool:
        return forall(
            Block,
            Seq,
            Index,
            lambda b, s, i: implies(i < self.released[s], ~self.blocks.holders[b].has(Entry.entry_of(s, i))),
        )

    @theorem("every block of the pool is free or stands in a table, never both")
    def free_or_kept(self) -> Bool:
        return forall(
            Block,
            lambda b: implies(
                self.blocks.usable.has(b),
                self.blocks.free.has(b) == ~exists(Seq, Index, lambda s, i: self.stands(b, s, i)),
            ),
        )

    @theorem("when no sequence keeps a block, every block is free")
    def drained(self) -> Bool:
        return implies(
            forall(Seq, lambda s: self.released[s] == self.size[s]),
            forall(Block, lambda b: implies(self.blocks.usable.has(b), self.blocks.free.has(b))),
        )

    @theorem("as many tokens can be computed as have room")
    def room_can_be_used(self) -> Bool:
        return forall(
            Seq,
            Token,
            lambda s, t: implies(
                (self.computed[s] < t) & forall(Token, lambda u: implies(u < t, self.has_room(s, u))),
                possible(self.compute)(s, t),
            ),
        )

    @theorem("a block without a computed token can go from the end")
    def spare_can_go(self) -> Bool:
        return forall(
            Seq,
            lambda s: implies(
                ~self.size[s].is_zero()
                & self.kept(s, self.size[s].prev())
                & forall(Token, lambda t: implies(t < self.computed[s], self.place(t) != self.size[s].prev())),
                possible(self.drop)(s),
            ),
        )

    @theorem("all that is computed can be confirmed, or else be taken back, up to any token")
    def drafts_can_stay_or_go(self) -> Bool:
        return forall(
            Seq,
            Token,
            lambda s, t: (
                implies(
                    (self.confirmed[s] < t) & (t <= self.computed[s]),
                    possible(self.confirm)(s, t),
                )
                & implies((self.confirmed[s] <= t) & (t < self.computed[s]), possible(self.take_back)(s, t))
            ),
        )

    @theorem("at the start no table has a block and no token is computed", after=start)
    def starts_empty(self) -> Bool:
        return forall(
            Seq,
            lambda s: self.size[s].is_zero() & self.released[s].is_zero() & self.computed[s].is_zero(),
        )

    @theorem("a table grows at its end by a block that was free and that nobody has written", after=grow)
    def grown_by_one(self, seq: Seq, block: Block) -> Bool:
        return (
            old(self).blocks.free.has(block)
            & self.stands(block, seq, old(self).size[seq])
            & (old(self).size[seq] < self.size[seq])
            & forall(Seq, Token, lambda s, t: ~self.contents.has((block, s, t)))
        )

    @theorem("a table that grows keeps what it has, where it was, and so do all others", after=grow)
    def grow_moves_nothing(self, seq: Seq) -> Bool:
        return forall(
            Block,
            Seq,
            Index,
            lambda b, s, i: implies(
                (s != seq) | (i != old(self).size[seq]), self.stands(b, s, i) == old(self).stands(b, s, i)
            ),
        )

    @theorem("the block that slides out is free, and no query that can still come sees a token of it", after=slide)
    def slid_is_unseen(self, seq: Seq) -> Bool:
        index = old(self).released[seq]
        return self.blocks.free.has(old(self).table[seq, index]) & forall(
            Token, lambda t: implies(self.may_see(seq, t), self.place(t) > index)
        )

    @theorem("a table that slides loses its first block only; every other one stays where it was", after=slide)
    def slide_moves_nothing(self, seq: Seq) -> Bool:
        return forall(
            Block,
            Seq,
            Index,
            lambda b, s, i: (
                self.stands(b, s, i) == (old(self).stands(b, s, i) & ~((s == seq) & (i == old(self).released[seq])))
            ),
        )

    @theorem("the block that is dropped is free, and had no computed token", after=drop)
    def dropped_is_spare(self, seq: Seq) -> Bool:
        index = self.size[seq]
        return self.blocks.free.has(old(self).table[seq, index]) & forall(
            Token, lambda t: implies(t < self.computed[seq], self.place(t) < index)
        )

    @theorem("a table loses its last block only; every other one stays where it was", after=drop)
    def drop_moves_nothing(self, seq: Seq) -> Bool:
        return forall(
            Block,
            Seq,
            Index,
            lambda b, s, i: self.stands(b, s, i) == (old(self).stands(b, s, i) & ~((s == seq) & (i == self.size[seq]))),
        )

    @theorem("who has finished keeps no block and no token; other tables stay as they were", after=finish)
    def finished_has_nothing(self, seq: Seq) -> Bool:
        return (
            self.size[seq].is_zero()
            & self.computed[seq].is_zero()
            & forall(
                Block,
                Seq,
                Index,
                lambda b, s, i: self.stands(b, s, i) == (old(self).stands(b, s, i) & (s != seq)),
            )
        )

    @theorem("tokens that are taken back are not computed any more, and all before them are", after=take_back)
    def taken_back_to(self, seq: Seq, upto: Token) -> Bool:
        return (
            (self.computed[seq] == upto)
            & (upto < old(self).computed[seq])
            & (self.confirmed[seq] == old(self).confirmed[seq])
        )

    @theorem("a step goes on to the position, and confirms nothing by itself", after=compute)
    def computed_upto(self, seq: Seq, upto: Token) -> Bool:
        return (
            (old(self).computed[seq] < self.computed[seq])
            & (self.computed[seq] == upto)
            & (self.confirmed[seq] == old(self).confirmed[seq])
        )

    @theorem("what is confirmed stays confirmed", after=confirm)
    def confirmed_upto(self, seq: Seq, upto: Token) -> Bool:
        return (self.confirmed[seq] == upto) & (old(self).confirmed[seq] < upto)

    @witness("a sequence has lost its first block and keeps others, with tokens that may be taken back")
    def slid_and_drafting(self) -> Bool:
        return exists(
            Seq,
            lambda s: (
                ~self.released[s].is_zero() & (self.released[s] < self.size[s]) & (self.confirmed[s] < self.computed[s])
            ),
        )
