"""Commands as an author would write them, one for each way to end."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from kvspec.cli.errors import fail_input, place
from kvspec.cli.main import Command
from kvspec.cli.options import ForceOption, JsonOption
from kvspec.cli.output import Exit, JsonFile, on_interrupt
from kvspec.proofs.processes import spread


def end(
    code: Annotated[int, typer.Argument(help="The exit code.")], json: JsonOption = None, force: ForceOption = False
) -> Exit:
    """End with a code."""
    file = JsonFile(json, force=force)
    file.write("end", {"code": code}, exit=Exit(code))
    return Exit(code)


def complain(path: Path) -> Exit:
    """Refuse a file."""
    fail_input("3 blocks\n too\x1b[31m many", where=place(path, 7), expected="at most 2")


def read(path: Path) -> Exit:
    """Read a file."""
    return Exit(json.loads(path.read_text())["code"])


def stop() -> Exit:
    """Be interrupted."""
    with on_interrupt(lambda: print("2 of 5 done")):
        raise KeyboardInterrupt
    return Exit.HOLDS


def crash() -> Exit:
    """Fail."""
    raise RuntimeError("lost")


def forget() -> None:
    """Return nothing."""


def talk() -> Exit:
    """Print for ever."""
    while True:
        print("still here")


def wait() -> Exit:
    """Wait for ever."""
    print("waiting", flush=True)
    sys.stdin.read()
    return Exit.HOLDS


def spread_out(count: int) -> Exit:
    """Let so many processes work for ever."""
    with on_interrupt(lambda: print("reported", flush=True)):
        print("spreading", flush=True)
        list(spread(for_ever, range(count), count))
    return Exit.HOLDS


def for_ever(number: int) -> None:
    os.write(1, b"at work\n")  # in one piece, as others write there, too
    time.sleep(600)


def dying(*args: object, **options: object) -> None:
    """What a process does that is killed for the memory it takes."""
    os._exit(0)


def lose() -> Exit:
    """Lose a process."""
    list(spread(dying, [0, 0], 2))
    return Exit.HOLDS


COMMANDS = [
    Command(function.__name__, (function.__doc__ or "").partition("\n")[0], __name__)
    for function in (end, complain, read, stop, crash, forget, talk, wait, spread_out, lose)
] + [Command("absent", "Cannot be imported.", "no_such_module")]
