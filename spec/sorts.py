"""The things that the chapters speak of."""

from __future__ import annotations

from kvspec.spec.language import Id, Position, Variants, case


class Block(Id):
    """A physical block id (seed 3). Nothing is said of ids but that they differ."""


class Seq(Id):
    """A running request's sequence (seed 2.1)."""


class Index(Position):
    """A place in a block table: the number of the logical block (seed 9.5)."""


class Chain(Id):
    """All tokens up to some token of a block, with their context (chapter `keys`): what a key names, and what the
    cells of one block contain."""


class Pin(Id):
    """Somebody outside who needs a block for a while: a pending store, a transfer."""


class Seat(Variants):
    """Who can hold a block."""

    seq_at = case(Seq, Index)
    cache_of = case(Chain)
    pin_of = case(Pin)


class Rank(Id):
    """A data-parallel rank, with resources of its own (seed 5.1, dp_rank)."""


class Single(Id):
    """A single block: one id of size 1 for a sequence (seed 6)."""


class StateSlot(Id):
    """A place for one recurrent state (seed 7)."""


class StateOwner(Variants):
    """What a state slot is for (seed 7.1)."""

    live = case(Seq)
    pending = case(Seq)
    committed = case(Chain)
