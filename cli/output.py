"""What every command shares on its way out: exit codes, result files, progress, the console, interruption.

**JSON results** are one object. It begins with ``format`` (``kvspec/`` and the kind of result, such as
``kvspec/prove``), ``schema`` (`SCHEMA`; a number that goes up when a field changes its meaning or goes away),
``version`` (of kvspec), ``complete`` (false when the run was interrupted) and ``exit`` (what the process ends with, if
all files can be written: 130 when it was interrupted); the rest is up to the command.

**Result files** are checked when the command starts, not after minutes of work, and written in one piece at the end.
A file that is already there is replaced only if kvspec made it, if it is empty, or with ``--force``. Where the disk is
full by then, or the folder has gone, nothing else is lost by it: all is printed, the other files are written, and
only what would have ended with 0 ends with 2 (`noted_failures`).
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal, NamedTuple, NoReturn, Protocol

from kvspec.cli.errors import InputError, fail_input

if TYPE_CHECKING:
    from types import FrameType

    from rich.console import Console

SCHEMA: Final = 1


def version() -> str:
    """The version of the installed package; its only source is ``pyproject.toml``."""
    from importlib import metadata

    return metadata.version("kvspec")


# -- verdicts and exit codes ------------------------------------------------------------------------------------------


class Exit(IntEnum):
    """How a command ends (bad input is raised with `fail_input`)."""

    HOLDS = 0
    """Everything that was asked for was checked, and holds."""
    VIOLATED = 1
    """Something is refuted or violated."""
    BAD_INPUT = 2
    """Bad usage or bad input."""
    UNKNOWN = 3
    """Nothing is violated, but something is unknown, timed out or vacuous, or nothing was checked."""


INTERRUPTED: Final = 130
"""What a process ends with after Ctrl-C, whatever was seen before."""

Outcome = Literal["ok", "violated", "unknown", "known", "not observed"]

_OUTCOMES: Final[Mapping[str, Outcome]] = {
    "proved": "ok",
    "holds": "ok",
    "passed": "ok",
    "refuted": "violated",
    "violated": "violated",
    "failed": "violated",
    "unknown": "unknown",
    "timeout": "unknown",
    "vacuous": "unknown",
    "interrupted": "unknown",
    "known": "known",
    "not observed": "not observed",
}


def outcome(verdict: str) -> Outcome:
    """The class of a verdict.

    Raises:
        ValueError: the verdict is not one of the closed list; a word that nobody knows must not pass for success.
    """
    try:
        return _OUTCOMES[verdict]
    except KeyError:
        raise ValueError(f"verdict {verdict!r}, expected one of {', '.join(_OUTCOMES)}") from None


def exit_for(verdicts: Iterable[str]) -> Exit:
    """The exit code of these verdicts together. Without a single one that was observed it is `Exit.UNKNOWN`."""
    outcomes = {outcome(verdict) for verdict in verdicts}
    if "violated" in outcomes:
        return Exit.VIOLATED
    return Exit.HOLDS if "ok" in outcomes and "unknown" not in outcomes else Exit.UNKNOWN


def worst(exits: Iterable[Exit]) -> Exit:
    """The exit code of several parts together: violated before unknown before holds; no part at all is unknown."""
    return max(exits, key=(Exit.HOLDS, Exit.UNKNOWN, Exit.VIOLATED, Exit.BAD_INPUT).index, default=Exit.UNKNOWN)


# -- result files -----------------------------------------------------------------------------------------------------


class OutputFile:
    """A file that the user asked for; with no path every method does nothing.

    Args:
        path: where to write, or None if the file was not asked for.
        option: the option that asked for it, for error messages.
        force: replace whatever is there.
        ours: given the first 4 KiB of the file that is there, whether kvspec made it.

    Raises:
        InputError: the file cannot be written there, or would replace one that kvspec did not make.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        option: str,
        force: bool = False,
        ours: Callable[[bytes], bool] = lambda head: False,
    ) -> None:
        self.path = path
        self.option = option
        if path is None:
            return
        if str(path) in {"", ".", "-"} or path.is_dir():
            fail_input(f"'{path}' is no file name", where=option, expected="a file to write")
        if not path.parent.is_dir():
            fail_input(f"there is no folder '{path.parent}'", where=option, expected="a file in a folder that exists")
        if path.exists() and not path.is_file():
            return
        self._try_folder(path)
        if path.is_file() and not force:
            with path.open("rb") as file:
                head = file.read(4096)
            if head and not ours(head):
                fail_input(
                    f"'{path}' exists and was not made by kvspec", where=option, expected="a new file, or --force"
                )

    def _try_folder(self, path: Path) -> None:
        """Make a file beside it, as `_write` will; permissions alone do not say whether that can be done."""
        try:
            handle, name = _part(path.resolve())
        except OSError as error:
            what = f"the folder '{path.parent}' is not writable ({error.strerror or error})"
            fail_input(what, where=self.option, expected="a folder to write to")
        os.close(handle)
        os.unlink(name)

    def write_bytes(self, data: bytes) -> None:
        """Write the whole file at once: a reader sees what was there before or all of this, never a part.

        Raises:
            InputError: it cannot be written there, and is not noted (`noted_failures`).
        """
        self.write_from(io.BytesIO(data))

    def write_from(self, source: BinaryIO) -> bool:
        """As `write_bytes`, of what can be read from here on; whether it was written.

        Raises:
            InputError: it cannot be written there, and is not noted (`noted_failures`).
        """
        try:
            self._write(source)
        except OSError as error:
            what = f"'{self.path}' could not be written ({error.strerror or error})"
            failure = InputError(what, where=self.option, expected="a file to write")
            if (noted := _NOTED.get()) is None:
                raise failure from error
            noted.append(failure)
            return False
        return True

    def _write(self, source: BinaryIO) -> None:
        if self.path is None:
            return
        if self.path.exists() and not self.path.is_file():
            with self.path.open("wb") as file:  # a pipe or a terminal has nothing to lose and cannot be renamed over
                shutil.copyfileobj(source, file)
            return
        target = self.path.resolve()  # a link stays a link
        handle, name = _part(target)
        try:
            with open(handle, "wb") as file:
                shutil.copyfileobj(source, file)
            os.chmod(name, target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask())
            os.replace(name, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise


def _part(target: Path) -> tuple[int, str]:
    """A new file beside the target, open, and its name."""
    return tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)


_NOTED: Final = ContextVar[list[InputError] | None]("_NOTED", default=None)


@contextlib.contextmanager
def noted_failures() -> Iterator[list[InputError]]:
    """In this block a result file that cannot be written at the end is noted in the list, and raises nothing: a verdict
    and what is still to be printed or written are worth more."""
    noted: list[InputError] = []
    token = _NOTED.set(noted)
    try:
        yield noted
    finally:
        _NOTED.reset(token)


def all_different(*files: OutputFile) -> None:
    """Each file is written whole, so two of them in one place would leave only the last; a device takes several.

    Raises:
        InputError: two options name the same file.
    """
    seen: dict[Path, OutputFile] = {}
    for file in files:
        if file.path is None or (file.path.exists() and not file.path.is_file()):
            continue
        first = seen.setdefault(file.path.resolve(), file)
        if first is not file:
            fail_input(f"'{file.path}' is the file of {first.option}, too", where=file.option, expected="another file")


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


class JsonFile(OutputFile):
    """The file of ``--json FILE``; see the head of this module for what it holds."""

    def __init__(self, path: Path | None, *, force: bool = False) -> None:
        super().__init__(path, option="--json", force=force, ours=_is_result)

    def write(self, kind: str, body: Mapping[str, object], *, exit: Exit, complete: bool = True) -> None:
        """Write the result.

        Args:
            kind: the command, such as ``"prove"``.
            body: the fields of this kind of result; anything that msgspec can encode, structs included.
            exit: what the command will return, unless it is interrupted.
            complete: False if the run was interrupted and this is what there is.
        """
        if self.path is None:
            return
        import msgspec

        head = {
            "format": f"kvspec/{kind}",
            "schema": SCHEMA,
            "version": version(),
            "complete": complete,
            "exit": int(exit) if complete else INTERRUPTED,
        }
        if taken := head.keys() & body.keys():
            raise ValueError(f"fields {sorted(taken)} belong to the head of a result")
        self.write_bytes(msgspec.json.format(msgspec.json.encode({**head, **body}), indent=2) + b"\n")


def _is_result(head: bytes) -> bool:
    return re.match(rb'\s*\{\s*"format"\s*:\s*"kvspec/', head) is not None


class Case(NamedTuple):
    """One line of a JUnit report."""

    suite: str
    name: str
    seconds: float
    verdict: str
    message: str = ""
    """Shown for whatever is not fine; its first line is the headline."""


class JunitFile(OutputFile):
    """The file of ``--junit FILE``: violated is a failure, unknown an error, known and not observed are skipped."""

    def __init__(self, path: Path | None, *, force: bool = False) -> None:
        super().__init__(path, option="--junit", force=force, ours=_is_junit)

    def write(self, cases: Iterable[Case], properties: Mapping[str, str] | None = None) -> None:
        """Write the report, one suite after the other in the order in which they first occur, each with the
        properties."""
        if self.path is None:
            return
        self.write_bytes(junit(cases, properties))


def _is_junit(head: bytes) -> bool:
    return re.match(rb'<\?xml[^>]*\?>\s*<testsuites name="kvspec"', head) is not None


def junit(cases: Iterable[Case], properties: Mapping[str, str] | None = None) -> bytes:
    """The JUnit XML of these cases."""
    from xml.etree import ElementTree as Xml

    tags = {"violated": "failure", "unknown": "error", "known": "skipped", "not observed": "skipped"}
    suites: dict[str, list[Case]] = {}
    for case in cases:
        suites.setdefault(case.suite, []).append(case)
    root = Xml.Element("testsuites", name="kvspec")
    for name, members in suites.items():
        counts = dict.fromkeys(tags.values(), 0)
        suite = Xml.SubElement(root, "testsuite", name=_xml_text(name), tests=str(len(members)))
        if properties:
            listed = Xml.SubElement(suite, "properties")
            for what, value in properties.items():
                Xml.SubElement(listed, "property", name=_xml_text(what), value=_xml_text(value))
        for case in members:
            element = Xml.SubElement(
                suite,
                "testcase",
                classname=_xml_text(case.suite),
                name=_xml_text(case.name),
                time=f"{case.seconds:.3f}",
            )
            kind = outcome(case.verdict)
            if kind == "ok":
                continue
            counts[tags[kind]] += 1
            headline = case.message.partition("\n")[0]
            detail = Xml.SubElement(element, tags[kind], message=_xml_text(headline or case.verdict))
            if tags[kind] != "skipped":
                detail.set("type", case.verdict)
            detail.text = _xml_text(case.message)
        suite.set("failures", str(counts["failure"]))
        suite.set("errors", str(counts["error"]))
        suite.set("skipped", str(counts["skipped"]))
        suite.set("time", f"{sum(case.seconds for case in members):.3f}")
    Xml.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{Xml.tostring(root, encoding="unicode")}\n'.encode()


def _xml_text(text: str) -> str:
    """XML 1.0 has no way to write most control characters, nor half of a surrogate pair."""
    return re.sub("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)


# -- the terminal -----------------------------------------------------------------------------------------------------


def counted(number: int, noun: str) -> str:
    """``1 block``, ``2 blocks``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def padded(chapter: str) -> str:
    """Its name in a column that has room for the name of every chapter."""
    from kvspec.spec import CHAPTERS

    return f"{chapter:<{max(map(len, CHAPTERS))}}  "


def console(*, stderr: bool = False) -> Console:
    """A rich console that prints what it is given: brackets are no markup, and nothing is wrapped or coloured by guess.

    Where the output is not a terminal it is plain text; tables then get the width they need, up to 160 columns.
    """
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would exit with 1, which here means that something is refuted

    made = Plain(stderr=stderr, markup=False, emoji=False, highlight=False, soft_wrap=True)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = 160
    return made


class Progress(Protocol):
    """How far some long work is."""

    def advance(self, steps: int = 1, note: str = "") -> None:
        """So many steps more are done; the note says at what."""


class _Line:
    """Progress where there is no terminal: now and then a line."""

    def __init__(self, title: str, total: int | None, every: float, clock: Callable[[], float]) -> None:
        self.title, self.total, self.every, self.clock = title, total, every, clock
        self.done = 0
        self.next = clock() + every

    def advance(self, steps: int = 1, note: str = "") -> None:
        self.done += steps
        now = self.clock()
        if now >= self.next:
            self.next = now + self.every
            share = f"/{self.total} ({100 * self.done // self.total} %)" if self.total else ""
            print(f"{self.title}: {self.done}{share} {note}".rstrip(), file=sys.stderr, flush=True)


@contextlib.contextmanager
def progress(
    title: str, total: int | None = None, *, every: float = 10.0, clock: Callable[[], float] = time.monotonic
) -> Iterator[Progress]:
    """Show progress on stderr while the block runs: a bar on a terminal, elsewhere a line every `every` seconds.

    Args:
        title: what is being done, in one or two words.
        total: the number of steps, if known.
        every: seconds between plain lines.
        clock: where the time comes from.
    """
    if not sys.stderr.isatty():
        yield _Line(title, total, every, clock)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    bar = Bar(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        console=console(stderr=True),
        transient=True,
        # Or else what a command prints would go to stderr with the bar, even where stdout is a file.
        redirect_stdout=sys.stdout.isatty(),
    )
    task = bar.add_task(title, total=total, note="")

    class OnTerminal:
        def advance(self, steps: int = 1, note: str = "") -> None:
            bar.update(task, advance=steps, note=note)

    with bar:
        yield OnTerminal()


@contextlib.contextmanager
def on_interrupt(report: Callable[[], None]) -> Iterator[None]:
    """Where the block is interrupted (Ctrl-C), report what there is; the command then ends with 130.

    A second Ctrl-C stops the report too.
    """
    try:
        yield
    except KeyboardInterrupt:
        report()
        raise


@contextlib.contextmanager
def catchable_interrupts() -> Iterator[None]:
    """Ctrl-C in the block, or a polite request to end (SIGTERM), is a KeyboardInterrupt that arrives.

    Python drops an exception in a ``__del__``, ctypes makes another error of it, and an extension whose import was cut
    off cannot be imported again. So there it is raised as soon as they are left, unless Ctrl-C is pressed again.
    """
    usual: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    caught = [s for s, handler in usual.items() if signal.getsignal(s) == handler]  # or ignored, or somebody else's
    interrupt = _Interrupt()
    for number in caught:
        signal.signal(number, interrupt.pressed)
    try:
        yield
    finally:
        if caught:
            sys.setprofile(None)
        for number in caught:
            signal.signal(number, usual[number])


_FRAGILE: Final = frozenset({"z3", "ctypes", "torch", "numpy", "weakref", "_weakrefset"})
"""Packages that do not stand an exception from nowhere."""


class _Interrupt:
    """A Ctrl-C on its way to where it can be raised."""

    def __init__(self) -> None:
        self._waits_for: FrameType | None = None

    def pressed(self, number: int, frame: FrameType | None) -> None:
        fragile = None if self._waits_for is not None else _outermost_fragile(frame)
        if fragile is None:
            self._raise()
        self._waits_for = fragile
        sys.setprofile(self._watch)  # is told of every call and return

    def _watch(self, frame: FrameType, event: str, argument: object) -> None:
        if self._waits_for is not None:
            if frame is self._waits_for and event == "return":
                self._waits_for = None
            return
        self._waits_for = _outermost_fragile(frame)
        if self._waits_for is None:
            self._raise()

    def _raise(self) -> NoReturn:
        sys.setprofile(None)
        self._waits_for = None
        raise KeyboardInterrupt


def _outermost_fragile(frame: FrameType | None) -> FrameType | None:
    found = None
    while frame is not None:
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        if package in _FRAGILE or frame.f_code.co_name == "__del__":
            found = frame
        frame = frame.f_back
    return found
