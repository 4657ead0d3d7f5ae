"""Campaigns: what is known is not asked again, what has changed is; an interruption loses nothing that was known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from editions import edition, forget, register
from library import Book, Library

from kvspec.proofs.mutation import campaign
from kvspec.proofs.mutation.campaign import PIECE, Campaign, Notebook, Piece, by_verdict, is_invariant
from kvspec.proofs.mutation.key import key, standing_on
from kvspec.proofs.mutation.kill import Fate, known
from kvspec.proofs.mutation.mutants import AXIOM
from kvspec.spec import load
from kvspec.spec.language import Bool, Machine, event, forall, implies, invariant, nat, require


@pytest.fixture
def spec(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes a text known as chapter ``made``."""

    def write(machine: type[Machine]) -> None:
        register(monkeypatch, made=machine)

    write(Library)
    yield write
    forget()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The mutants that are judged, in order; no prover is asked, a mutant that drops something is killed."""
    found: list[str] = []

    def made_up(id: str, rests_on: str) -> Fate:
        dropped = "without" in id
        return Fate(id, rests_on, "killed", "proof", "made.x/y") if dropped else Fate(id, rests_on, "alive")

    def judge(piece: Piece) -> list[Fate]:
        found.extend(piece.ids)
        return [made_up(id, key(known(piece.chapter)[id])) for id in piece.ids]

    monkeypatch.setattr(campaign, "judge", judge)
    return found


def run(remembered: Sequence[Fate] = ()) -> Campaign:
    done = Campaign(["made"], remembered)
    done.run(1)
    return done


def test_every_mutant_is_judged_once_and_weakened_invariants_at_the_end(spec: Any, asked: list[str]) -> None:
    done = run()
    assert sorted(asked) == sorted(known("made")) and len(asked) == done.total
    weakened = [is_invariant(id) for id in asked]
    assert weakened == sorted(weakened) and any(weakened) and not all(weakened)
    assert [f.id for f in done.of("made")] == list(known("made"))


def test_weakened_invariants_are_judged_beside_the_fates_of_all_others(
    spec: Any, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces: list[Piece] = []
    judge = campaign.judge

    def note(piece: Piece) -> list[Fate]:
        pieces.append(piece)
        return judge(piece)

    monkeypatch.setattr(campaign, "judge", note)
    run()
    others = [id for id in known("made") if not is_invariant(id)]
    assert all(len(p.ids) <= PIECE for p in pieces)
    for p in pieces:
        assert [f.id for f in p.others] == (others if is_invariant(p.ids[0]) else [])


def test_what_is_known_is_not_asked_again(spec: Any, asked: list[str]) -> None:
    fates = list(run().fates.values())
    asked.clear()
    assert run(fates).of("made") == fates
    assert asked == []


def test_of_two_fates_the_one_counts_that_fits_the_text(spec: Any, asked: list[str]) -> None:
    fates = list(run().fates.values())
    old = [msgspec.structs.replace(f, key="of another text", verdict="alive") for f in fates]
    for remembered in ([*fates, *old], [*old, *fates]):
        asked.clear()
        assert run(remembered).of("made") == fates and asked == []


def lend_any(self: Library, book: Book) -> None:
    """A book is lent until tomorrow."""
    require(~self.lent.has(book))
    require(book != self.bible)
    self.lent.add(book)
    self.due[book] = self.today.next()
    self.count = self.count + 1


def ask_again(asked: list[str], before: Campaign, machine: type[Machine], spec: Any) -> set[str]:
    """The rows of which anything is asked again once the text is another."""
    spec(machine)
    asked.clear()
    run(list(before.fates.values()))
    return {id.split(":")[0].removeprefix("made.") for id in asked}


def test_a_change_of_an_event_makes_its_own_row_stale_and_the_invariants(spec: Any, asked: list[str]) -> None:
    before = run()
    assert ask_again(asked, before, edition(lend=event(renamed(lend_any, "lend"))), spec) == {"lend", "invariant"}
    assert [id for id in asked if id.startswith("made.lend")] == [
        id for id in known("made") if id.startswith("made.lend")
    ]


def test_a_new_event_makes_only_the_invariants_stale(spec: Any, asked: list[str]) -> None:
    before = run()
    assert ask_again(asked, before, edition(lend_any=event(lend_any)), spec) == {"lend_any", "invariant"}


def test_a_change_of_an_invariant_makes_all_rows_stale(spec: Any, asked: list[str]) -> None:
    def due_later(self: Library) -> Bool:
        return forall(Book, lambda b: implies(self.lent.has(b), self.due[b] >= self.today))

    before = run()
    stale = ask_again(asked, before, edition(due_later=invariant("due some day")(due_later)), spec)
    assert stale == {"init", "lend", "extend", "close", "rounded", "invariant"}


def test_words_and_names_change_nothing(spec: Any, asked: list[str]) -> None:
    def lend(self: Library, book: Book, day: Any) -> None:
        """Other words."""
        require(~self.lent.has(book))
        require((self.today < day) & (book != self.bible))
        self.lent.add(book)
        self.due[book] = day
        self.count = self.count + nat(1)

    lend.__annotations__ = dict(vars(Library)["lend"].body.__annotations__)
    before = run()
    assert ask_again(asked, before, edition(lend=event(lend)), spec) == set()


def renamed(body: Any, name: str) -> Any:
    def other(self: Library, book: Book) -> None:
        body(self, book)

    other.__name__, other.__doc__ = name, body.__doc__
    return other


# -- the notebook ------------------------------------------------------------------------------------------------------


def test_what_is_noted_is_read_again(tmp_path: Path) -> None:
    notes = Notebook(tmp_path / "deep" / "notes.jsonl")
    assert notes.fates() == []
    first = Fate("a.b: c", "0", "killed", "proof", "a.b/d", ("a.b/d", "a.b/e"))
    second = Fate("a.b: ∅ becomes ∀", "1", "alive", note="why")
    notes.add([first])
    notes.add([second])
    assert Notebook(notes.path).fates() == [first, second]
    assert len(notes.path.read_text(encoding="utf-8").strip().splitlines()) == 2


@pytest.mark.parametrize("cut", [1, 10, 30])
def test_a_line_that_was_cut_off_does_not_count(tmp_path: Path, cut: int) -> None:
    notes = Notebook(tmp_path / "notes.jsonl")
    fates = [Fate(f"a.b: {n}", "0", "killed", "proof", "a.b/c") for n in range(3)]
    notes.add(fates)
    notes.path.write_bytes(notes.path.read_bytes().rstrip(b"\n")[:-cut])
    assert notes.fates() == fates[:2]
    notes.add(fates[2:])
    assert notes.fates() == fates


NONSENSE = [
    ("banana", "", ""),
    ("killed", "", "a.b/c"),
    ("killed", "banana", "a.b/c"),
    ("killed", "proof", ""),
    ("alive", "proof", ""),
    ("equivalent", "test", "a.b/c"),
    ("", "", ""),
]
"""Verdicts, killers' kinds and killers that no judge gives."""


@pytest.mark.parametrize(("verdict", "by", "killer"), NONSENSE)
def test_a_fate_that_makes_no_sense_does_not_count(
    spec: Any, asked: list[str], tmp_path: Path, verdict: str, by: str, killer: str
) -> None:
    notes, fates = Notebook(tmp_path / "notes.jsonl"), list(run().fates.values())
    wrong = msgspec.structs.replace(fates[0], verdict=verdict, by=by, killer=killer)
    notes.add([wrong, *fates[1:]])
    assert notes.fates() == fates[1:]
    for remembered in ([wrong, *fates], [*fates, wrong]):
        asked.clear()
        assert run(remembered).of("made") == fates and asked == []
    assert run([wrong, *fates[1:]]).of("made") == fates and asked == [wrong.id]


@pytest.mark.parametrize("line", [b"\xff", b"[" * 100_000, b'{"x": ' + b"[" * 100_000, b"\0" * 9, b"null", b'"a"'])
def test_a_line_that_is_no_fate_does_not_count(tmp_path: Path, line: bytes) -> None:
    notes, fates = Notebook(tmp_path / "notes.jsonl"), [Fate("a.b: c", "0", "alive")]
    notes.path.write_bytes(line)
    notes.add(fates)
    assert notes.fates() == fates


@pytest.mark.needs_file("/proc/version")
@pytest.mark.parametrize("name", ["/proc/version", "/proc/no/such", "file/notes", ".", "/dev/null/notes"])
def test_a_notebook_that_takes_nothing_says_so(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OSError, match=r"\w"):
        Notebook(Path(name)).prepare()


def test_a_notebook_that_is_prepared_says_what_it_said(tmp_path: Path) -> None:
    notes, fates = Notebook(tmp_path / "deep" / "notes.jsonl"), [Fate("a.b: c", "0", "alive")]
    notes.prepare()
    notes.add(fates)
    before = notes.path.read_bytes()
    notes.prepare()
    assert notes.path.read_bytes() == before and notes.fates() == fates


def test_a_campaign_that_was_interrupted_goes_on_where_it_was(
    spec: Any, asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes, judge = Notebook(tmp_path / "notes.jsonl"), campaign.judge

    def stop(piece: Piece) -> list[Fate]:
        if len(asked) >= 2 * PIECE:
            raise KeyboardInterrupt
        return judge(piece)

    monkeypatch.setattr(campaign, "judge", stop)
    first = Campaign(["made"], on_fates=notes.add)
    with pytest.raises(KeyboardInterrupt):
        first.run(1)
    assert len(notes.fates()) == len(first.fates) == 2 * PIECE
    monkeypatch.setattr(campaign, "judge", judge)
    Campaign(["made"], notes.fates(), notes.add).run(1)
    assert sorted(asked) == sorted(known("made"))
    assert len(notes.fates()) == len(known("made"))


# -- real judges -------------------------------------------------------------------------------------------------------


def test_one_process_and_two_come_to_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "known", lambda name: dict(list(known(name).items())[:12]))
    fates = []
    for jobs in (1, 2):
        done = Campaign(["handles"])
        done.run(jobs)
        fates.append(done.of("handles"))
    assert fates[0] == fates[1] and len(fates[0]) == 12
    assert {f.verdict for f in fates[0]} >= {"killed"}


def test_fates_are_counted_by_who_killed_them() -> None:
    said = [("killed", "proof"), ("killed", "test"), ("killed", "proof"), ("killed", "exploration")]
    said += [("alive", ""), ("equivalent", "")]
    fates = [Fate(str(n), "", verdict, by) for n, (verdict, by) in enumerate(said)]
    counts = {"proof": 2, "exploration": 1, "test": 1, "equivalent": 1, "alive": 1}
    assert by_verdict(fates) == counts and by_verdict([]) == dict.fromkeys(counts, 0)


def test_a_forgotten_axiom_rests_on_the_chapters_that_have_it() -> None:
    (mutant,) = (m for m in known("blocks").values() if m.row == AXIOM)
    found = standing_on(mutant)
    assert found["blocks"] == "padding_unusable" and found["prefix_cache"] == "blocks.padding_unusable"
    assert "sequences" in found and not {"keys", "trim", "recency"} & set(found)


def test_keys_of_the_specification_are_those_of_the_text_alone() -> None:
    chapter = load("handles")
    before = {id: key(m) for id, m in known("handles").items()}
    forget()
    assert {id: key(m) for id, m in known("handles").items()} == before
    assert len(set(before.values())) == len(before) and chapter is load("handles")
