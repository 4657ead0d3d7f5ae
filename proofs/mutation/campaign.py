"""All mutants of some chapters, in several processes; what is already known is not asked again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kvspec.proofs.mutation.key import key
from kvspec.proofs.mutation.kill import (
    ALIVE,
    EQUIVALENT,
    EXPLORATION,
    KILLED,
    PROOF,
    TEST,
    Fate,
    fate,
    fate_of_weakened,
    fate_without_axiom,
    known,
)
from kvspec.proofs.mutation.mutants import AXIOM, INVARIANT
from kvspec.proofs.processes import spread
from kvspec.spec import load

PIECE = 8
"""How many mutants a process takes at a time: what an interruption loses at most, for each process."""


@dataclass(frozen=True)
class Piece:
    """Some mutants of one chapter; weakened invariants are judged beside the fates of the chapter's other mutants."""

    chapter: str
    ids: tuple[str, ...]
    others: tuple[Fate, ...] = ()


def judge(piece: Piece) -> list[Fate]:
    mutants, chapter = known(piece.chapter), load(piece.chapter)
    return [
        fate_of_weakened(m, piece.others)
        if m.row == INVARIANT
        else fate_without_axiom(m)
        if m.row == AXIOM
        else fate(m, chapter)
        for m in (mutants[id] for id in piece.ids)
    ]


class Campaign:
    """The fates of all mutants of some chapters.

    Args:
        chapters: their names.
        remembered: fates from before; one counts if it makes sense, and as long as what it rests on is the same.
        on_fates: called with fates as they get known, in this process.
    """

    def __init__(
        self,
        chapters: Sequence[str],
        remembered: Iterable[Fate] = (),
        on_fates: Callable[[Sequence[Fate]], None] = lambda fates: None,
    ) -> None:
        self._on_fates = on_fates
        self.ids = {name: tuple(known(name)) for name in chapters}
        self.fates: dict[str, Fate] = {}
        before = list(filter(makes_sense, remembered))
        for name in chapters:
            mutants = known(name)
            self.fates |= {f.id: f for f in before if f.id in mutants and f.key == key(mutants[f.id], f.by)}

    @property
    def total(self) -> int:
        return sum(map(len, self.ids.values()))

    def run(self, jobs: int) -> None:
        """Judge what is not known: first the mutants of events, then the weakened invariants beside them."""
        self._judge(self._pieces(lambda id: not is_invariant(id)), jobs)
        self._judge(self._pieces(is_invariant), jobs)

    def _pieces(self, wanted: Callable[[str], bool]) -> list[Piece]:
        found = []
        for name, ids in self.ids.items():
            missing = [id for id in ids if wanted(id) and id not in self.fates]
            others = tuple(self.fates[id] for id in ids if id in self.fates and not is_invariant(id))
            for start in range(0, len(missing), PIECE):
                piece = tuple(missing[start : start + PIECE])
                found.append(Piece(name, piece, others if is_invariant(piece[0]) else ()))
        return found

    def _judge(self, pieces: Sequence[Piece], jobs: int) -> None:
        with closing(spread(judge, pieces, jobs)) as results:
            for _, fates in results:
                self.fates |= {f.id: f for f in fates}
                self._on_fates(fates)

    def of(self, chapter: str) -> list[Fate]:
        """What is known of a chapter's mutants, in the order of the text."""
        return [self.fates[id] for id in self.ids[chapter] if id in self.fates]


def is_invariant(id: str) -> bool:
    return id.partition(".")[2].partition(":")[0] == INVARIANT


def makes_sense(f: Fate) -> bool:
    """Whether a judge could have said so: what is killed has a killer, what is not has none."""
    if f.verdict == KILLED:
        return f.by in (PROOF, EXPLORATION, TEST) and f.killer != ""
    return f.verdict in (EQUIVALENT, ALIVE) and f.by == f.killer == ""


class Notebook:
    """A file of fates, one in a line, so that a campaign that was interrupted goes on where it was."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def prepare(self) -> None:
        """Make sure that it can be written, without changing what it says.

        Raises:
            OSError: it cannot.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab", buffering=0) as file:
            file.write(b"")  # some files of the system can be opened, and take nothing

    def fates(self) -> list[Fate]:
        """What is written down; a line that was cut off by an interruption, or makes no sense, does not count."""
        if not self.path.exists():
            return []
        found = []
        for line in self.path.read_bytes().splitlines():
            try:
                found.append(msgspec.json.decode(line, type=Fate))
            except (msgspec.MsgspecError, RecursionError):
                continue
        return list(filter(makes_sense, found))

    def add(self, fates: Sequence[Fate]) -> None:
        """Each begins a line of its own, behind whatever an interruption has left."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.writelines(b"\n" + msgspec.json.encode(f) for f in fates)


def by_verdict(fates: Iterable[Fate]) -> Mapping[str, int]:
    """How many are killed by proof, by exploration, by tests, equivalent, alive."""
    counts = dict.fromkeys((PROOF, EXPLORATION, TEST, EQUIVALENT, ALIVE), 0)
    for f in fates:
        counts[f.by or f.verdict] += 1
    return counts
