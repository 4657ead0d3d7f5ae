"""Judges a stream of KV events: finds what no correct manager could say of the keys that can be matched.

Keys are counted for each rank, group and medium: vLLM keeps several blocks under one key, with an event for each;
SGLang has each key once. Where a stream does not begin with the start of its engine, what was stored before is unknown,
and what could be explained by it is counted and not reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from kvspec.model.plain import printable
from kvspec.model.scenario.language import ScenarioError
from kvspec.model.tracing.feed import DEVICE, Batch, Cleared, Engine, Event, Hash, Removed, Stored, read_batches
from kvspec.model.tracing.log import Cut

RULES: Final[Mapping[str, str]] = {
    "sequence_gap": "messages of one publisher have consecutive numbers: none is missing",
    "sequence_back": "messages of one publisher have rising numbers: none comes twice or late",
    "removed_was_stored": "a key is removed at most as often as it was stored",
    "parent_stored": "a block of full attention gets its key while the block before it has one",
    "tokens_per_key": "so many tokens are stored as fit into the blocks that got keys",
    "one_content": "a key stands for one content: the same tokens behind the same key, in the same context",
    "stored_once": "a key that is there is not stored again (SGLang)",
    "fits_pool": "no more blocks have keys than there are (with --blocks)",
    "cleared_first": "the first event of an engine says that all keys are gone (SGLang)",
    "final_keys": "the keys at the end are those that were stored and not removed",
}
"""What no correct manager breaks, by name."""
NOTES: Final[Mapping[str, str]] = {
    "other_key_same_content": "the same tokens behind the same key got another key: the contexts may differ unseen",
    "parent_unknown": "the block before has no key, in a group or medium of which nothing says that it must have one",
    "not_in_dump": "it was stored more often than it is there, but may have been announced only (vLLM)",
}
"""What is worth a look, and no fault for certain."""
FULL: Final = frozenset({"full", "full_attention", "mla_attention", "sink_full_attention"})
STATE: Final = frozenset({"state", "mamba"})
KINDS: Final = ("full", "window", "state")
"""What ``--groups`` can say of a group."""
MAX_FINDINGS: Final = 1000


class StreamFinding(msgspec.Struct, frozen=True):
    """What is wrong with an event, or worth a note.

    Attributes:
        rule: one of `RULES` or `NOTES`.
        says: the rule in words.
        what: the event says.
        file, line: where; in a recording of frames, the number of the message.
        event: its number in the stream, from 1; of the next one for a message, of the last one for the end.
    """

    rule: str
    says: str
    what: str
    file: str
    line: int
    event: int


class StreamReport(msgspec.Struct, kw_only=True):
    """What a stream was found to be.

    Attributes:
        engine: whose it is.
        started: ``start`` if it begins with the start of its engine, otherwise ``unknown``.
        messages, events, stored, removed, cleared: how many there were; keys for ``stored`` and ``removed``.
        unknown: removals and parents of keys that may have been stored before the stream begins.
        keys: how many keys can be matched at the end, and copies of them, for each place.
        cuts: places where a file ends too early.
        findings: what no correct manager could have sent, in the order of the stream.
        notes: what is surprising, the first of each kind; and how often, in ``note_counts``.
    """

    engine: str
    started: str = "unknown"
    messages: int = 0
    events: int = 0
    stored: int = 0
    removed: int = 0
    cleared: int = 0
    unknown: int = 0
    keys: list[dict[str, Any]] = msgspec.field(default_factory=list)
    cuts: list[str] = msgspec.field(default_factory=list)
    findings: list[StreamFinding] = msgspec.field(default_factory=list)
    notes: list[StreamFinding] = msgspec.field(default_factory=list)
    note_counts: dict[str, int] = msgspec.field(default_factory=dict)


class _Place:
    """The keys of one rank, group and medium."""

    def __init__(self, complete: bool) -> None:
        self.complete = complete
        """Keys that were not seen are not there."""
        self.copies: Counter[Hash] = Counter()
        self.seen: set[Hash] = set()
        self.again: set[Hash] = set()
        """Keys that may have been announced only: as part of a whole prefix that was there."""
        self.full: bool | None = None
        """Whether it is of full attention, if anything tells."""
        self.one_size = True
        """Each key was one of a whole block, so far."""
        self.block_size = 0
        """The largest that was seen: keys of parts of a block stand behind keys that no block has."""

    def clear(self, complete: bool) -> None:
        """All keys are gone, or nothing is known of them any more."""
        self.complete = complete
        self.copies.clear()
        self.seen.clear()
        self.again.clear()


def judge_stream(
    paths: Sequence[Path],
    engine: Engine,
    *,
    from_start: bool = False,
    groups: Sequence[str] = (),
    blocks: int | None = None,
    final: Sequence[FinalKey] | None = None,
    progress: Callable[[int], None] | None = None,
) -> StreamReport:
    """Follow a stream.

    Args:
        paths: its files, the oldest first.
        engine: whose it is.
        from_start: it begins with the start of the engine, whatever its numbers say.
        groups: the kinds of the groups, in order; `KINDS`.
        blocks: how many blocks each rank has on the device for keys, without padding; not checked if it is None.
        final: the keys at the end.
        progress: told how many events there were, now and then.

    Raises:
        ScenarioError: a message cannot be read.
        OSError: a file cannot be read.
    """
    judge = _Judge(engine, from_start, groups, blocks)
    for message in read_batches(paths):
        if isinstance(message, Cut):
            judge.report.cuts.append(f"{message.file}:{message.number}")
        else:
            judge.batch(message)
            if progress is not None:
                progress(judge.report.events)
    if final is not None:
        judge.compare(final)
    return judge.end()


class _Judge:
    def __init__(self, engine: Engine, from_start: bool, groups: Sequence[str], blocks: int | None) -> None:
        self.engine, self.from_start, self.groups, self.blocks = engine, from_start, groups, blocks
        self.full_ranks: set[int] = set()
        """Ranks that were found to have too many keys, and were not cleared since."""
        self.report = StreamReport(engine=engine)
        self.places: dict[tuple[int, int, str], _Place] = {}
        self.numbers: dict[tuple[str, int], int] = {}
        self.started: dict[int, bool] = {}
        self.cleared: set[int] = set()
        self.greeted: set[int] = set()
        self.contents: dict[tuple[int, int, int, Hash], Any] = {}
        self.keys_of: dict[Any, Hash] = {}
        self.at: Batch | None = None

    # -- what is found -----------------------------------------------------------------------------------------------

    def _found(self, rule: str, what: str, ahead: int = 0) -> None:
        assert self.at is not None
        if len(self.report.findings) < MAX_FINDINGS:
            place = (self.at.file, self.at.line, self.report.events + ahead)
            self.report.findings.append(StreamFinding(rule, RULES[rule], what, *place))

    def _note(self, rule: str, what: str) -> None:
        assert self.at is not None
        counts = self.report.note_counts
        counts[rule] = counts.get(rule, 0) + 1
        if counts[rule] == 1:
            place = (self.at.file, self.at.line, self.report.events)
            self.report.notes.append(StreamFinding(rule, NOTES[rule], what, *place))

    # -- messages ----------------------------------------------------------------------------------------------------

    def batch(self, batch: Batch) -> None:
        """One message with its events."""
        self.at = batch
        self.report.messages += 1
        if batch.rank not in self.started:
            self.started[batch.rank] = self.from_start or batch.number == 0
            self.report.started = "start" if all(self.started.values()) else "unknown"
        self._sequence(batch)
        for event in batch.events:
            self.report.events += 1
            self._event(batch.rank, event)

    def _sequence(self, batch: Batch) -> None:
        if batch.number is None:
            return
        last = self.numbers.get(batch.source)
        self.numbers[batch.source] = batch.number
        if last is None:
            if self.from_start and batch.number != 0:
                self._gap(batch, f"the first message has number {batch.number}, not 0")
        elif batch.number > last + 1:
            self._gap(batch, f"number {batch.number} comes behind {last}; missing: {batch.number - last - 1}")
        elif batch.number <= last:
            self._found("sequence_back", f"number {batch.number} comes behind {last}", ahead=1)

    def _gap(self, batch: Batch, what: str) -> None:
        """Events are missing: nothing is certain any more of what their rank has."""
        self._found("sequence_gap", what, ahead=1)
        self.started[batch.rank] = False
        self.cleared.discard(batch.rank)
        for (rank, _, _), place in self.places.items():
            if rank == batch.rank:
                place.clear(complete=False)

    # -- events ------------------------------------------------------------------------------------------------------

    def _event(self, rank: int, event: Event) -> None:
        if self.engine == "sglang" and rank not in self.greeted and self.started[rank] and event != Cleared():
            self._found("cleared_first", f"the first event of rank {rank} is a {type(event).__name__.lower()} block")
        self.greeted.add(rank)
        if isinstance(event, Cleared):
            self.report.cleared += 1
            self._clear(rank)
        elif isinstance(event, Removed):
            self._removed(self._place(rank, event), event)
        else:
            self._stored(rank, self._place(rank, event), event)

    def _place(self, rank: int, event: Stored | Removed) -> _Place:
        at = (rank, event.group, event.medium)
        if at not in self.places:
            known = self.started[rank] or (rank in self.cleared and self._is_cleared(event.medium))
            self.places[at] = _Place(known)
            told = self.groups[event.group] if event.group < len(self.groups) else None
            self.places[at].full = None if told is None else told == "full"
            if self.engine == "sglang" and event.medium == DEVICE:
                self.places[at].full = True
        return self.places[at]

    def _clear(self, rank: int) -> None:
        """Nothing can be matched on the device. SGLang forgets all tiers; vLLM does not say which of them it means."""
        self.cleared.add(rank)
        self.full_ranks.discard(rank)
        for (of, _, medium), place in self.places.items():
            if of == rank:
                place.clear(complete=self._is_cleared(medium))

    def _is_cleared(self, medium: str) -> bool:
        return self.engine == "sglang" or medium == DEVICE

    def _removed(self, place: _Place, event: Removed) -> None:
        for key in event.hashes:
            self.report.removed += 1
            if place.copies[key] > 0:
                place.copies[key] -= 1
            elif place.complete or (self.engine == "sglang" and key in place.seen):
                before = "is no longer there" if key in place.seen else "was never stored"
                self._found("removed_was_stored", f"{_name(key)} is removed and {before}{_where(event)}")
            else:
                self.report.unknown += 1
            place.seen.add(key)

    def _stored(self, rank: int, place: _Place, event: Stored) -> None:
        self._learn_kind(place, event)
        counted = self._tokens(place, event)
        self._parent(place, event)
        if counted:
            self._contents(rank, event)
        if event.parent is None and all(place.copies[key] > 0 for key in event.hashes):
            place.again.update(event.hashes)
        for key in event.hashes:
            self.report.stored += 1
            if place.copies[key] > 0 and self.engine == "sglang":
                self._found("stored_once", f"{_name(key)} is stored and is there already{_where(event)}")
                continue
            place.copies[key] += 1
            place.seen.add(key)
        if self.blocks is not None and event.medium == DEVICE and rank not in self.full_ranks:
            self._fit(rank, self.blocks)

    def _fit(self, rank: int, blocks: int) -> None:
        """As many blocks have keys as there are, at most; only where each key was stored with a block of its own."""
        places = [p for (of, _, medium), p in self.places.items() if of == rank and medium == DEVICE]
        copies = sum(p.copies.total() for p in places)
        if copies > blocks and all(p.one_size and not p.again for p in places):
            self.full_ranks.add(rank)
            self._found("fits_pool", f"{copies} blocks of rank {rank} have keys, of {blocks}")

    def _learn_kind(self, place: _Place, event: Stored) -> None:
        place.one_size = place.one_size and place.block_size in (0, event.block_size)
        place.block_size = max(place.block_size, event.block_size)
        if event.kind is not None and event.kind != "unknown":
            place.full = event.kind in FULL

    def _tokens(self, place: _Place, event: Stored) -> bool:
        """Whether the tokens are those of the blocks, one after the other."""
        if self._is_state(event) or (not event.tokens and event.medium != DEVICE):
            return False
        have, need = len(event.tokens), len(event.hashes) * event.block_size
        if have == need:
            return True
        strict = self.engine == "sglang" or place.full
        if strict or have < need or have % event.block_size:
            what = f"{len(event.hashes)} keys of blocks of {event.block_size} tokens, with {have} tokens{_where(event)}"
            self._found("tokens_per_key", what)
        elif place.full is None:
            place.full = False  # blocks are left out that no hit needs, so it is of no full attention
        return False

    def _is_state(self, event: Stored) -> bool:
        told = self.groups[event.group] if event.group < len(self.groups) else event.kind
        return told in STATE

    def _parent(self, place: _Place, event: Stored) -> None:
        parent = event.parent
        if parent is None or place.copies[parent] > 0:
            return
        if not place.complete and parent not in place.seen:
            self.report.unknown += 1
            return
        gone = "was removed" if parent in place.seen else "was never stored"
        what = f"{_name(event.hashes[0]) if event.hashes else 'nothing'} stands behind {_name(parent)}, which {gone}"
        certain = place.complete or self.engine == "sglang"
        whole = event.block_size == place.block_size or self.engine == "sglang"
        if place.full and certain and whole and event.medium == DEVICE:
            self._found("parent_stored", what + _where(event))
        elif event.hashes:
            self._note("parent_unknown", what + _where(event))

    def _contents(self, rank: int, event: Stored) -> None:
        parent, size = event.parent, event.block_size
        for at, key in enumerate(event.hashes):
            extra = event.extra[at] if at < len(event.extra) else None
            content = (parent, event.tokens[at * size : (at + 1) * size], extra, event.shared)
            place = (rank, event.group, size)
            known = self.contents.setdefault((*place, key), content)
            if known != content:
                self._found("one_content", f"{_name(key)} stands for {_differ(known, content)}{_where(event)}")
            elif self.keys_of.setdefault((*place, content), key) != key:
                other = self.keys_of[(*place, content)]
                self._note("other_key_same_content", f"{_name(key)} and {_name(other)}{_where(event)}")
            parent = key

    # -- the end -----------------------------------------------------------------------------------------------------

    def compare(self, final: Sequence[FinalKey]) -> None:
        """Compare what is there with a dump of the keys at the end."""
        if self.at is None:
            return
        dumped = {(k.rank, k.group, k.medium, k.hash): k.copies for k in final}
        for (rank, group, medium, key), copies in dumped.items():
            place = self.places.get((rank, group, medium))
            have = place.copies[key] if place is not None else 0
            complete = place.complete if place is not None else self.started.get(rank, self.from_start)
            where = _where(Removed(hashes=(), group=group, medium=medium))
            if have < (copies or 1) and (complete or (self.engine == "sglang" and have > 0)):
                self._found("final_keys", f"{_name(key)} is in the dump and {have} times stored{where}")
            elif have < (copies or 1):
                self.report.unknown += 1
            elif copies is not None and have > copies:
                self._surplus(place, key, f"{_name(key)} is stored {have} times and {copies} times in the dump{where}")
        for (rank, group, medium), place in self.places.items():
            for key, copies in place.copies.items():
                if copies and (rank, group, medium, key) not in dumped:
                    where = _where(Removed(hashes=(), group=group, medium=medium))
                    self._surplus(place, key, f"{_name(key)} is stored and not in the dump{where}")

    def _surplus(self, place: _Place | None, key: Hash, what: str) -> None:
        if self.engine == "vllm" and place is not None and key in place.again:
            self._note("not_in_dump", what)
        else:
            self._found("final_keys", what)

    def end(self) -> StreamReport:
        """The report."""
        for (rank, group, medium), place in sorted(self.places.items()):
            there = [n for n in place.copies.values() if n > 0]
            where = {"rank": rank, "group": group, "medium": medium}
            self.report.keys.append({**where, "keys": len(there), "copies": sum(there)})
        return self.report


def _name(key: Hash) -> str:
    text = printable(str(key))
    return text if len(text) <= 20 else f"{text[:16]}..."


def _where(event: Stored | Removed) -> str:
    group = f" of group {event.group}" if event.group else ""
    return group + (f" on {printable(event.medium)}" if event.medium != DEVICE else "")


def _differ(known: Any, content: Any) -> str:
    parts = zip(
        ("another key before it", "other tokens", "another context", "another context"), known, content, strict=True
    )
    return next(what for what, one, other in parts if one != other)


# -- a dump of keys ---------------------------------------------------------------------------------------------------


_Count = Annotated[int, msgspec.Meta(ge=0)]


class FinalKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key that can be matched at the end.

    Attributes:
        hash: the key, as the stream has it; bytes as hex digits.
        copies: blocks that have it; None: one or more.
    """

    hash: int | str
    copies: _Count | None = None
    group: int = 0
    medium: str = DEVICE
    rank: int = 0


def read_final(path: Path) -> list[FinalKey]:
    """The keys of a dump: a JSON list of keys or of objects, or an object of keys and how often they are there.

    Raises:
        ScenarioError: it is none.
    """
    expected = 'a list of keys, or of objects such as {"hash": 1, "copies": 1, "group": 0, "medium": "GPU", "rank": 0}'
    try:
        data = msgspec.json.decode(path.read_bytes(), type=dict[str, _Count] | list[FinalKey | int | str])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ScenarioError(str(path), 0, 0, f"no dump of keys ({error})", expected) from None
    if isinstance(data, dict):
        return [FinalKey(hash=_key_of(key), copies=copies) for key, copies in data.items()]
    return [key if isinstance(key, FinalKey) else FinalKey(hash=key) for key in data]


def _key_of(text: str) -> int | str:
    """A key of a JSON object, which is text even where keys are numbers."""
    short = text.lstrip("-").isdecimal() and len(text) <= 20
    return int(text) if short else text


def listed(findings: Iterable[StreamFinding]) -> list[str]:
    """The findings as lines: where, the rule, what."""
    return [f"{f.file}:{f.line}: event {f.event}: {f.rule}: {f.what}" for f in findings]
