"""The manifest of a chapter, as it is stored: one JSON file beside this module, sorted by the order of the text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from kvspec.proofs.mutation.kill import Fate

FOLDER = Path(__file__).parent
SCHEMA = 1


class ObligationEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One obligation.

    Attributes:
        id: its stable name.
        verdict: proved, and nothing else in a manifest that is to be accepted.
        scope: unbounded, or the finite model that shows that something can happen.
        solvers: who proved it.
        effort: how hard that was, by the first solver's own count of steps: ``light`` (below 20,000 steps), ``medium``
            (below 200,000), ``heavy``; ``model`` if a finite model shows it. No clock is read, so it is the same on
            every machine.
        shape: the alternation of quantifiers in the goal, as the solver gets it negated.
    """

    id: str
    verdict: str
    scope: str
    solvers: tuple[str, ...] = ()
    effort: str = ""
    shape: str = ""


class Reached(msgspec.Struct, frozen=True):
    """Something that happens in a run from the start: in which scope, after how many steps."""

    scope: str
    steps: int


class Bound(msgspec.Struct, frozen=True, omit_defaults=True):
    """The smallest scope in which a mistake violates a statement: the mutant, the scope, and the shortest run to it."""

    mutant: str
    scope: str
    steps: int
    run: tuple[str, ...] = ()


class StatementEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """An invariant or theorem.

    Attributes:
        name: its stable name.
        content: the fingerprint of what it says.
        obligations: how many obligations speak of it.
        witness: where its premise becomes true in a run (None if it has no premise to become true: it says something
            of every state).
        killers: mutants that it turns red at, at most three; the first is confirmed if any is.
        bound: for an invariant, the smallest scope in which the violation is reached.
    """

    name: str
    content: str
    obligations: int
    witness: Reached | None = None
    killers: tuple[str, ...] = ()
    bound: Bound | None = None


class EventEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """An event: the fingerprint of what its verdicts rest on, and a run in which it happens and changes something."""

    name: str
    key: str
    witness: Reached | None = None


class WitnessEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A situation that has to be reached, and where it is."""

    name: str
    content: str
    witness: Reached | None = None


class ExplorationEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One exhaustive exploration and what it counted."""

    scope: str
    states: str
    distinct: int
    generated: int
    depth: int
    covers: str = ""


class Record(msgspec.Struct, frozen=True):
    """Everything that is written down of a chapter."""

    schema: int
    chapter: str
    hypotheses: str
    """The strongest alternation of quantifiers among axioms and invariants."""
    obligations: tuple[ObligationEntry, ...]
    invariants: tuple[StatementEntry, ...]
    theorems: tuple[StatementEntry, ...]
    events: tuple[EventEntry, ...]
    witnesses: tuple[WitnessEntry, ...]
    explorations: tuple[ExplorationEntry, ...]
    mutants: tuple[Fate, ...]


class ManifestError(Exception):
    """A manifest cannot be read: where, what, and what was expected."""


def path_of(chapter: str, folder: Path = FOLDER) -> Path:
    return folder / f"{chapter}.json"


def load_record(chapter: str, folder: Path = FOLDER) -> Record | None:
    """The manifest of a chapter; None if there is none.

    Raises:
        ManifestError: the file is no manifest of this schema.
    """
    path = path_of(chapter, folder)
    if not path.exists():
        return None
    try:
        record = msgspec.json.decode(path.read_bytes(), type=Record)
    except (OSError, msgspec.MsgspecError) as error:
        raise ManifestError(f"{path}: {error}, expected a manifest of a chapter") from error
    if record.schema != SCHEMA or record.chapter != chapter:
        raise ManifestError(f"{path}: schema {record.schema} of {record.chapter}, expected {SCHEMA} of {chapter}")
    return record


def write_record(record: Record, folder: Path = FOLDER) -> None:
    """Write the manifest of a chapter, in one piece."""
    path = path_of(record.chapter, folder)
    new = path.with_suffix(".new")
    new.write_text(text_of(record), encoding="utf-8")
    new.replace(path)


def text_of(record: Record) -> str:
    """The file: one entry in a line, so that a change is one line in a difference."""
    parts = msgspec.to_builtins(record)
    lines = ["{"]
    for n, (name, value) in enumerate(parts.items()):
        end = "," if n + 1 < len(parts) else ""
        lines += [f"{line}{end if last else ''}" for line, last in _part(name, value)]
    return "\n".join([*lines, "}"]) + "\n"


def _part(name: str, value: object) -> Iterator[tuple[str, bool]]:
    if isinstance(value, (list, tuple)) and value:
        yield f'  "{name}": [', False
        for i, item in enumerate(value):
            yield f"    {_line(item)}{',' if i + 1 < len(value) else ''}", False
        yield "  ]", True
    elif isinstance(value, dict) and value:
        yield f'  "{name}": {{', False
        for i, (key, item) in enumerate(value.items()):
            yield f"    {_line(key)}: {_line(item)}{',' if i + 1 < len(value) else ''}", False
        yield "  }", True
    else:
        yield f'  "{name}": {_line(value)}', True


def _line(item: object) -> str:
    return msgspec.json.format(msgspec.json.encode(item), indent=0).decode()
