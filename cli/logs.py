"""``--log FILE``: what happens in the pools that a command drives, as a log that ``kvspec trace`` reads."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from kvspec.cli.errors import fail_input
from kvspec.cli.output import OutputFile, counted
from kvspec.model.conformance import Form
from kvspec.model.tracing.record import CHAPTERS, NOTE, NotLoggedError, Recorder, chapter_of

LogOption = Annotated[
    Path | None,
    typer.Option(
        "--log",
        metavar="FILE",
        help="Write what happens to FILE, as a log for kvspec trace (docs/traces.md).",
        show_default=False,
    ),
]


class LogFile(OutputFile):
    """The file of ``--log FILE``; what there is of it stands in a temporary file until it is written in one piece.

    Attributes:
        recorder: writes what happens; None if no log was asked for.
    """

    def __init__(self, path: Path | None, context: typer.Context, *, force: bool = False) -> None:
        super().__init__(path, option="--log", force=force, ours=_is_log)
        self.recorder: Recorder | None = None
        if path is not None:
            self._raw = context.with_resource(tempfile.TemporaryFile())  # noqa: SIM115
            self._text = context.with_resource(io.TextIOWrapper(self._raw, encoding="utf-8", newline="\n"))
            self.recorder = Recorder(self._text)

    def check(self, *forms: Form) -> None:
        """Whether a log of pools of these forms can be written.

        Raises:
            InputError: it cannot.
        """
        try:
            if self.recorder is not None:
                chapter_of(*forms)
        except NotLoggedError as error:
            not_logged(error)

    def write(self) -> str:
        """Write the log; a line that says what is in it, or nothing if there is none.

        Raises:
            InputError: it cannot be written there.
        """
        if self.recorder is None:
            return ""
        self._text.flush()
        self._raw.seek(0)
        if not self.write_from(self._raw):
            return ""
        said = f"log: {self.path}, {counted(self.recorder.events, 'event')}"
        if self.recorder.violated:
            shows = "it shows" if self.recorder.shows_violation else "no line of it shows"
            said += f"; {shows} what was violated"
        return said


def not_logged(error: NotLoggedError, by: str = "") -> NoReturn:
    """Bad input: there can be no log of what is driven.

    Raises:
        InputError: always.
    """
    fail_input(str(error), where="--log", expected=f"one of {', '.join(CHAPTERS)}{by}")


def _is_log(head: bytes) -> bool:
    return f'"note":"{NOTE}"'.encode() in head.partition(b"\n")[0]
