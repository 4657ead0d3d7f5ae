"""Small composites under programs of calls: a memory that forgets what is freed, and what must hold after every call.

What a query sees is said token by token here, without the arithmetic of the implementation.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence as Items
from itertools import product
from typing import Any, Literal, NamedTuple

from hypothesis import strategies as st

from kvspec.impl.composite_block_manager import CompositeBlockManager
from kvspec.impl.sequence import NO_BLOCK, GroupTable, Sequence
from kvspec.model.conformance import ManagerType

KNOWN = 24
"""Tokens that every sequence knows."""


Kind = Literal["run", "grow", "compute", "reject", "slide", "end"]


class Step(NamedTuple):
    """One call for a sequence, or two.

    ``grow``: places for so many tokens behind the computed ones. ``compute``: so many tokens, as far as there are
    places, the last of which are drafts. ``run``: both. ``reject``: so many of the computed tokens. ``slide``, ``end``.
    """

    kind: Kind
    seq: int = 0
    number: int = 0
    drafts: int = 0


KINDS: tuple[Kind, ...] = ("run", "run", "run", "run", "grow", "compute", "reject", "slide", "end")
CHOICES = [Step(*parts) for parts in product(KINDS, range(2), range(7), (0, 0, 1, 2))]
STEPS = st.integers(0, len(CHOICES) - 1).map(CHOICES.__getitem__)
"""Any step; one number is quicker to draw than four."""


class Program(NamedTuple):
    """What the groups are, and what is called."""

    types: tuple[ManagerType, ...]
    steps: list[Step]


class Fault(AssertionError):
    """Something does not hold; the word says what."""

    def __init__(self, word: str, said: str) -> None:
        super().__init__(f"{word}: {said}")
        self.word = word


GROUP_TYPES = st.builds(
    ManagerType, st.integers(2, 12), st.integers(1, 4), st.sampled_from([None, 1, 2, 3, 4, 5, 7])
)
"""Groups of all tokens or of a window, with hardly any room."""


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Up to thirty calls for two sequences, on one to three groups."""
    types = draw(st.lists(GROUP_TYPES, min_size=1, max_size=3).map(tuple))
    size = draw(st.integers(0, 30))  # lists of a size up to this one would mostly be short
    return Program(types, draw(st.lists(STEPS, min_size=size, max_size=size)))


def need(word: str, holds: bool, said: object = "") -> None:
    """Raises `Fault` unless it holds."""
    if not holds:
        raise Fault(word, str(said))


def new_sequence(tokens: int = KNOWN) -> Sequence:
    """One that knows so many tokens."""
    return Sequence(array("q", range(tokens)), 1)


class Judge:
    """Makes the calls of programs, and looks at all there is after each.

    Attributes:
        memory: for each group, what is written in which cell of which block: a sequence and a position.
        seen: how often what happened.
    """

    def __init__(self, types: Items[ManagerType], kind: type[CompositeBlockManager] = CompositeBlockManager) -> None:
        self.types = types
        self.manager = kind(types)
        self.sequences = [new_sequence(), new_sequence()]
        self.memory: list[dict[tuple[int, int], tuple[int, int]]] = [{} for _ in types]
        self.seen: Counter[str] = Counter()

    def play(self, steps: Items[Step]) -> Counter[str]:
        """Make all calls, then end all sequences; what happened. Raises `Fault`."""
        for step in [*steps, Step("end", 0), Step("end", 1)]:
            before = [self.ids(n) for n in range(2)]
            getattr(self, step.kind)(step)
            self.forget()
            self.look(before, step)
        for manager in self.manager.sub_managers_:
            need("drain", manager.num_free_blocks == manager.num_total_blocks - 1, "a block is lost")
        return self.seen

    def ids(self, seq: int) -> list[list[int]]:
        """The tables of a sequence; as empty ones where it has none."""
        return [table.ids_.tolist() for table in self.tables(seq)]

    def tables(self, seq: int) -> list[GroupTable]:
        """The tables of a sequence; empty ones where it has none."""
        return self.sequences[seq].kv_state_.groups_ or [GroupTable(m) for m in self.manager.sub_managers_]

    # -- calls -------------------------------------------------------------------------------------------------------
    def run(self, step: Step) -> None:
        """Places for so many tokens, and these tokens."""
        self.grow(step)
        self.compute(step)

    def grow(self, step: Step) -> None:
        """Granted for all groups; or refused, for want in one of them, with everything as it was but what slid."""
        sequence, before = self.sequences[step.seq], self.ids(step.seq)
        free = [set(manager.free_ids()) for manager in self.manager.sub_managers_]
        wanted = min(sequence.computed_ + step.number, KNOWN)
        granted = self.manager.allocate_for_sequence(sequence, wanted)
        self.seen["grown" if granted else "refused"] += 1
        if granted:
            pairs = zip(before, self.types, strict=True)
            places = [max(len(ids), -(-wanted // kind.block_size)) for ids, kind in pairs]
            need("growth", [len(ids) for ids in self.ids(step.seq)] == places, "not all groups have grown")
            return
        slid = [{*old} - {*new} for old, new in zip(before, self.ids(step.seq), strict=True)]
        now = [set(manager.free_ids()) for manager in self.manager.sub_managers_]
        need("all or nothing", now == [old | gone for old, gone in zip(free, slid, strict=True)], "blocks are gone")
        need("all or nothing", [len(ids) for ids in self.ids(step.seq)] == [len(ids) for ids in before], "some grew")
        wants = [self.is_in_want(step.seq, n, wanted) for n in range(len(self.types))]
        need("refusal", any(wants), "no group is in want")

    def is_in_want(self, seq: int, group: int, wanted: int) -> bool:
        """Whether the group has too few free blocks, and the sequence none that is out of its window."""
        table, kind, sequence = self.tables(seq)[group], self.types[group], self.sequences[seq]
        free = self.manager.sub_managers_[group].num_free_blocks
        if -(-wanted // kind.block_size) - len(table.ids_) <= free:
            return False
        return not any(
            block_id != NO_BLOCK
            and not any(
                is_needed(kind, sequence.confirmed_, position)
                for position in range(place * kind.block_size, (place + 1) * kind.block_size)
            )
            for place, block_id in enumerate(table.ids_)
        )

    def compute(self, step: Step) -> None:
        """Every token sees its window, in every group; then it is there itself."""
        sequence, start = self.sequences[step.seq], self.sequences[step.seq].computed_
        stop = min(start + step.number, sequence.room)
        for query in range(start, stop):
            for group, kind in enumerate(self.types):
                self.memory[group][self.cell(step.seq, group, query)] = (step.seq, query)
                for position in (p for p in range(query + 1) if sees(kind, query, p)):
                    found = self.memory[group].get(self.cell(step.seq, group, position))
                    need("window", found == (step.seq, position), f"{query} finds {found} for {position} in {group}")
        drafts = min(step.drafts, stop - start)
        self.seen["drafts"] += drafts
        sequence.advance(stop, max(sequence.confirmed_, stop - drafts))

    def cell(self, seq: int, group: int, position: int) -> tuple[int, int]:
        """Where a table says that a token is."""
        size = self.types[group].block_size
        return self.tables(seq)[group].ids_[position // size], position % size

    def reject(self, step: Step) -> None:
        """The confirmed tokens stay; if they do not, the sequence goes on where its window is, or from the start."""
        sequence = self.sequences[step.seq]
        kept, confirmed = max(sequence.computed_ - step.number, 0), sequence.confirmed_
        computed = self.manager.resumable(sequence, kept)
        self.manager.truncate_sequence(sequence, kept, computed)
        sequence.tokens_.extend(range(kept, KNOWN))
        self.seen["rejected"] += step.number > 0
        self.seen["started over"] += computed < kept
        need("rejection", sequence.computed_ == (kept if kept >= confirmed else computed), "confirmed tokens are gone")
        need("rejection", computed in (0, kept), f"{computed} of {kept} stay")

    def slide(self, step: Step) -> None:
        """As many blocks go as places lose theirs."""
        before = sum(ids.count(NO_BLOCK) for ids in self.ids(step.seq))
        count = self.manager.slide(self.sequences[step.seq])
        need("slide", count == sum(ids.count(NO_BLOCK) for ids in self.ids(step.seq)) - before, count)

    def end(self, step: Step) -> None:
        """The sequence has nothing more, and may come again."""
        self.manager.deallocate_sequence(self.sequences[step.seq])

    # -- what holds --------------------------------------------------------------------------------------------------
    def forget(self) -> None:
        """What is in a free block cannot be read."""
        for memory, manager in zip(self.memory, self.manager.sub_managers_, strict=True):
            free = set(manager.free_ids())
            for cell in [cell for cell in memory if cell[0] in free]:
                del memory[cell]

    def look(self, before: Items[list[list[int]]], step: Step) -> None:
        """Raises `Fault` where something does not hold that holds after every call."""
        for group, (kind, manager) in enumerate(zip(self.types, self.manager.sub_managers_, strict=True)):
            held = [i for n in range(2) for i in self.ids(n)[group] if i != NO_BLOCK]
            ids = sorted([*held, *manager.free_ids()])
            need("partition", ids == list(range(1, kind.num_blocks)), f"group {group} has {ids}")
            need("used", manager.num_used_blocks == len(held), f"{manager.num_used_blocks} for {len(held)}")
            for seq in range(2):
                self.look_at_table(seq, group)
                old, new = before[seq][group], self.ids(seq)[group]
                self.seen["released"] += max(new.count(NO_BLOCK) - old.count(NO_BLOCK), 0)
                if step.kind not in ("end", "reject") or step.seq != seq:
                    pairs = zip(old, new, strict=False)
                    need("stable", len(new) >= len(old) and all(n in (o, NO_BLOCK) for o, n in pairs), (old, new))

    def look_at_table(self, seq: int, group: int) -> None:
        """Its places are those of its handles; what is computed has places, and what can be seen yet has blocks."""
        table, kind, sequence = self.tables(seq)[group], self.types[group], self.sequences[seq]
        ids = [NO_BLOCK if block is None else block.id for block in table.blocks_]
        need("table", table.ids_.tolist() == ids, (table.ids_, ids))
        need("table", ids[: table.released_] == [NO_BLOCK] * table.released_, (ids, table.released_))
        need("covered", len(ids) * kind.block_size >= sequence.computed_, (ids, sequence.computed_))
        for position in range(len(ids) * kind.block_size):
            there = ids[position // kind.block_size] != NO_BLOCK
            needed = is_needed(kind, sequence.confirmed_, position)
            need("window", there or not needed, f"{position} in {ids} of group {group}")


def sees(kind: ManagerType, query: int, position: int) -> bool:
    """Whether a query of a group looks at a position."""
    behind = query - position
    return behind >= 0 and (kind.window is None or behind < kind.window)


def is_needed(kind: ManagerType, confirmed: int, position: int) -> bool:
    """Whether a query that can still come looks at a position: the first one of them that may, or none."""
    return sees(kind, max(confirmed, position), position)


def judged(kind: type[CompositeBlockManager], program: Program) -> Counter[str]:
    """Run a program on such a manager; what happened. Raises `Fault`."""
    return Judge(program.types, kind).play(program.steps)


def word_of(kind: type[CompositeBlockManager], program: Program) -> str | None:
    """What does not hold when the program runs on such a manager; None if all does. Another error is one, too."""
    try:
        judged(kind, program)
    except Fault as fault:
        return fault.word
    except Exception as error:
        return type(error).__name__
    return None


def of_composite(manager: CompositeBlockManager, *sequences: Sequence) -> tuple[Any, ...]:
    """Everything that a call could have changed, the orders of free lists included."""
    groups = [
        (part.free_ids(), part.num_used_blocks, [(r.ref_count_, r.holders_) if r else (0, 0) for r in part._records])
        for part in manager.sub_managers_
    ]
    tables = [[(t.ids_.tolist(), t.released_) for t in sequence.kv_state_.groups_] for sequence in sequences]
    counts = [(s.tokens_.tolist(), s.computed_, s.confirmed_, s.kv_state_.ids_.tolist()) for s in sequences]
    return groups, tables, counts
