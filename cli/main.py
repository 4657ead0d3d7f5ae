"""The command ``kvspec``.

A command is one row of `COMMANDS` and one module ``kvspec.cli.NAME_command`` with a function ``NAME``: an ordinary
typer function (annotated parameters; the first line of its docstring is the row's help) that returns an
`kvspec.cli.output.Exit`. Its module is imported only when that command is called or its own help is asked for, so
``kvspec --help`` costs neither torch nor a solver.

Exit codes are those of `Exit`, and beside them 70 (a fault of kvspec itself: traceback; or a process
that it started died), 130 (interrupted) and 141 (the reader of a pipe went away). None of these can be taken for a
verdict.
"""

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

if TYPE_CHECKING:
    import typer

from kvspec.cli.errors import InputError
from kvspec.cli.output import INTERRUPTED, Exit, catchable_interrupts, noted_failures, version
from kvspec.model.plain import one_line

INTERNAL_ERROR: Final = 70
BROKEN_PIPE: Final = 141

_CANNOT_WRITE: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}
"""What an output says that takes no more; such an error names no file."""


class Command(NamedTuple):
    """One row of the command table."""

    name: str
    help: str
    module: str


def _own(name: str, help_line: str) -> Command:
    return Command(name, help_line, f"kvspec.cli.{name}_command")


COMMANDS: Final = (
    _own("check", "Prove and explore the spec, and judge the managers of kvspec."),
    _own("prove", "Prove every obligation of the spec, for pools of any size."),
    _own("mutate", "Make one mistake at a time in the spec; see what turns red."),
    _own("explore", "Go through all states of a chapter in a small scope."),
    _own("manifest", "Prove, mutate, explore, and compare with what is written down."),
    _own("conform", "Drive a KV-cache manager and judge it by the spec."),
    _own("interleave", "Run threads that call a manager in every order that differs."),
    _own("run", "Run a scenario file."),
    _own("replay", "Replay a request trace on a manager, every invariant watched."),
    _own("trace", "Find the first event of a log that no correct manager makes."),
    _own("explain", "Say in words what the spec demands, and why."),
)


def build_app(selected: str | None, commands: Sequence[Command] = COMMANDS) -> "typer.Typer":
    """The typer application; only the selected command is the real one, the others are names with a help line."""
    import typer  # the annotations below are evaluated here, so this module has none of the lazy kind

    app = typer.Typer(name="kvspec", add_completion=False, rich_markup_mode=None)

    def show_version(wanted: bool) -> None:
        if wanted:
            typer.echo(f"kvspec {version()}")
            raise typer.Exit

    @app.callback()
    def kvspec(
        version: Annotated[
            bool, typer.Option("--version", help="Show the version and exit.", callback=show_version, is_eager=True)
        ] = False,
    ) -> None:
        """A formally checked specification, and an executable reference, of the KV-cache manager of an LLM engine."""

    for command in commands:
        if command.name == selected:
            app.command(command.name)(getattr(import_module(command.module), command.name))
        else:
            app.command(command.name, help=command.help)(_not_selected)
    return app


def _not_selected() -> None:
    raise AssertionError("a command was called whose module was not imported")


def run(args: Sequence[str] | None = None, commands: Sequence[Command] = COMMANDS) -> int:
    """Run one command line and return the exit code; never raises, whatever the command does."""
    with noted_failures() as unwritten:
        code = _run(args, commands)
    for failure in unwritten:
        _complain(f"error: {failure}", Exit.BAD_INPUT)
    return Exit.BAD_INPUT if unwritten and code == Exit.HOLDS else code


def _run(args: Sequence[str] | None, commands: Sequence[Command]) -> int:
    if sys.stderr is None:  # started with it closed: what is said there is lost, and must not go to stdout
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        return _complain("error: standard output is closed, expected somewhere to write to", Exit.BAD_INPUT)
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="backslashreplace")
    try:
        with catchable_interrupts():
            code = _dispatch(list(sys.argv[1:] if args is None else args), commands)
            sys.stdout.flush()
    except InputError as error:
        code = _complain(f"error: {error}", Exit.BAD_INPUT)
    except KeyboardInterrupt:
        code = _complain("interrupted", INTERRUPTED)
    except BrokenPipeError:
        _forget_output()
        code = BROKEN_PIPE
    except Exception as error:
        if isinstance(error, OSError) and error.filename is None and error.errno in _CANNOT_WRITE:
            _forget_output()
            return _complain(f"error: the output could not be written: {error.strerror}", Exit.BAD_INPUT)
        if (said := _said_of_a_chapter(error)) is not None:
            return _complain(f"error: {said}", Exit.BAD_INPUT)
        if _is_dead_worker(error):
            return _complain("error: a worker process died (out of memory?), so there is no verdict", INTERNAL_ERROR)
        traceback.print_exc()
        code = _complain(f"this is a fault of kvspec {version()}, not a verdict", INTERNAL_ERROR)
    return int(code)


def _is_dead_worker(error: Exception) -> bool:
    from concurrent.futures import BrokenExecutor

    return isinstance(error, BrokenExecutor)


def _said_of_a_chapter(error: Exception) -> str | None:
    """What is wrong with the text of a chapter, if that is where the error comes from: file, line, what."""
    from kvspec import spec
    from kvspec.spec.language.errors import SpecError

    if isinstance(error, SpecError):
        return one_line(str(error))
    folder = os.path.dirname(spec.__file__ or "")
    if isinstance(error, SyntaxError):
        file, line = error.filename or "", error.lineno
    else:
        last = traceback.extract_tb(error.__traceback__)[-1]
        file, line = last.filename, last.lineno
    if os.path.dirname(file) != folder:
        return None
    what = f"{type(error).__name__}: {getattr(error, 'msg', None) or error}"
    return one_line(f"{os.path.basename(file)}:{line}: {what}; expected the text of a chapter")


def _forget_output() -> None:
    """What is still buffered can go nowhere; without this the interpreter would complain at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _dispatch(args: list[str], commands: Sequence[Command]) -> int:
    import typer
    from typer.main import get_command

    selected = next((arg for arg in args if not arg.startswith("-")), None)
    command = get_command(build_app(selected, commands))
    try:
        # Not `command.main`: it turns a broken pipe into exit code 1, which here means that something is refuted.
        with command.make_context("kvspec", list(args) or ["--help"]) as context:
            result = command.invoke(context)
    except typer.Exit as end:
        return end.exit_code if args else Exit.BAD_INPUT
    except typer.Abort:
        raise KeyboardInterrupt from None
    except typer.TyperException as error:
        raise InputError(_usage(error)) from error
    except OSError as error:
        if error.filename is None or isinstance(error, BrokenPipeError):
            raise
        raise InputError(error.strerror or str(error), where=str(error.filename)) from error
    if not isinstance(result, Exit):
        raise TypeError(f"{selected}: returned {result!r}, expected an Exit")
    return result


def _usage(error: Any) -> str:
    """The message of a usage error, with the command that it is about and where its help is."""
    message = one_line(error.format_message()).rstrip(".")
    context = getattr(error, "ctx", None)
    path = "kvspec" if context is None else context.command_path
    command = path.removeprefix("kvspec").strip()
    return f"{command}: {message} (see '{path} --help')" if command else f"{message} (see '{path} --help')"


def _complain(line: str, code: int) -> int:
    print(f"kvspec: {line}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(run())
