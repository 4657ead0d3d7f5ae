"""Ctrl-C arrives, also where Python or a package that is used would lose it."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import z3

from kvspec.cli.main import INTERRUPTED, run
from kvspec.cli.output import catchable_interrupts
from kvspec.proofs.campaign import prove_chapter
from kvspec.proofs.mutation.kill import fate, known
from kvspec.spec import load


@contextmanager
def pressed_in(code: CodeType, call: int = 1) -> Iterator[None]:
    """Ctrl-C is pressed when a function is called for the so-manieth time."""
    left = call

    def trace(frame: FrameType, event: str, argument: object) -> None:
        nonlocal left
        if frame.f_code is code:
            left -= 1
            if left == 0:
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


PLACES = [
    z3.AstRef.__del__,
    z3.AstRef.__init__,
    z3.ContextObj.from_param,  # called by ctypes
    z3.Ast.from_param,
    z3.Context.__init__,
    z3.Solver.check,
    z3.Solver.push,
]


@pytest.mark.parametrize("call", [1, 5])
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__qualname__)
def test_an_interruption_inside_of_z3_is_not_lost(
    place: Callable[..., Any], call: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "r.json"
    with pressed_in(place.__code__, call):
        assert run(["prove", "--chapter", "blocks", "--json", str(file)]) == INTERRUPTED
    out, err = capsys.readouterr()
    assert "interrupted; what follows is what was done until then" in out and err == "kvspec: interrupted\n"
    result = json.loads(file.read_text())
    assert (result["complete"], result["exit"]) == (False, INTERRUPTED)


class Dropped:
    def __init__(self, deep: Callable[[], object]) -> None:
        self.deep = deep

    def __del__(self) -> None:
        self.deep()


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def drop(times: int) -> list[str]:
    """Goes on until it is interrupted; says how far it came."""
    seen = ["before"]
    try:
        for _ in range(times):
            Dropped(press)
            seen.append("after")
        len(seen)
        seen.append("end")
    except KeyboardInterrupt:
        seen.append("interrupted")
    return seen


def test_an_interruption_in_a_finalizer_is_raised_right_behind_it() -> None:
    with catchable_interrupts():
        assert drop(1) == ["before", "interrupted"]
    assert sys.getprofile() is None


def test_of_many_finalizers_it_waits_for_the_last() -> None:
    done: list[int] = []
    many = [Dropped(lambda: done.append(1)) for _ in range(100)]
    many.append(Dropped(press))  # a list is emptied from its end

    def empty() -> None:
        many.clear()
        len(many)

    with catchable_interrupts(), pytest.raises(KeyboardInterrupt):
        empty()
    assert sum(done) == 100


def test_who_presses_again_does_not_wait() -> None:
    seen: list[str] = []

    def twice() -> None:
        press()
        seen.append("waited")
        try:
            press()
        except KeyboardInterrupt:
            seen.append("again")

    with catchable_interrupts():
        Dropped(twice)
    assert seen == ["waited", "again"]


def test_elsewhere_it_is_raised_at_once_and_each_time() -> None:
    with catchable_interrupts():
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                press()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_ignores_it_still_does(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with catchable_interrupts():
            signal.raise_signal(number)
        assert signal.getsignal(number) == signal.SIG_IGN
    finally:
        signal.signal(number, before)


def test_a_request_to_end_is_an_interruption_in_the_block_only() -> None:
    with catchable_interrupts(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_no_solver_catches_it_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[bool] = []
    plain_set, plain_check = z3.Solver.set, z3.Solver.check

    def note(self: z3.Solver, **chosen: object) -> None:
        vars(self).setdefault("chosen", {}).update(chosen)
        plain_set(self, **chosen)

    def check(self: z3.Solver) -> z3.CheckSatResult:
        checked.append(vars(self)["chosen"].get("ctrl_c") is False)
        return plain_check(self)

    monkeypatch.setattr(z3.Solver, "set", note)
    monkeypatch.setattr(z3.Solver, "check", check)
    prove_chapter("blocks", load("blocks"))
    fate(next(m for m in known("blocks").values() if "without require" in m.id), load("blocks"))
    assert len(checked) > 50 and all(checked)
