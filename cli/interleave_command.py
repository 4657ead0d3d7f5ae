"""``kvspec interleave``: the orders in which threads call a block manager, each run judged by a serial one."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, cast

import typer

from kvspec.cli.errors import InputError, fail_input, place
from kvspec.cli.interleaving import Job, Orders, Random, Schedule, Soak
from kvspec.cli.options import ForceOption, JsonOption
from kvspec.cli.output import Exit, JsonFile, console, exit_for, on_interrupt
from kvspec.cli.targets import load_attribute
from kvspec.impl.block_manager_impl import BlockManagerImpl
from kvspec.impl.concurrent_block_manager_impl import ConcurrentBlockManagerImpl
from kvspec.impl.interleaving.builtin import PROGRAMS
from kvspec.impl.interleaving.explore import MOST_RUNS, Failure, read_script
from kvspec.impl.interleaving.programs import MOST_NUMBER, MOST_THREADS, ProgramError, parse
from kvspec.impl.interleaving.scheduler import UndecidedError
from kvspec.impl.interleaving.steps import Factory, Stepper, concurrent, watched
from kvspec.model.plain import one_line
from kvspec.model.reporting.saving import saved_or_why

BUILT_IN: Final = "builtin"
OWN: Final = "concurrent"
FAILURES: Final = Path("interleave-failures")
MOST_BYTES: Final = 1 << 20
MOST_OPERATIONS: Final = 400
"""Of all threads of a random program."""
_SIZES: Final = {
    "PROGRAM": ("--max-runs",),
    "--random": ("--threads", "--operations", "--blocks", "--seed"),
    "--soak": ("--threads", "--blocks", "--seed"),
}


def interleave(
    program: Annotated[
        str | None,
        typer.Argument(
            metavar="PROGRAM",
            help="A file (docs/threads.md); builtin: six programs of three threads, also if nothing is named.",
            show_default=False,
        ),
    ] = None,
    random: Annotated[
        int | None,
        typer.Option("--random", min=1, metavar="N", help="So many random programs instead.", show_default=False),
    ] = None,
    soaked: Annotated[
        int | None,
        typer.Option(
            "--soak", min=1, metavar="N", help="So many operations of threads that really run.", show_default=False
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(min=2, max=MOST_THREADS, help="By default 3, and 8 that really run.", show_default=False),
    ] = None,
    operations: Annotated[
        int | None, typer.Option(min=1, help="Of each thread of a random program; 10 by default.", show_default=False)
    ] = None,
    blocks: Annotated[
        int | None,
        typer.Option(
            min=2,
            max=MOST_NUMBER,
            help="With 0 (padding); by default 8, and 20 where threads really run.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="The same seed, the same programs; 0 by default.", show_default=False)
    ] = None,
    target: Annotated[str, typer.Option(help="concurrent, or package.module:attribute.")] = OWN,
    max_runs: Annotated[
        int | None,
        typer.Option(min=1, help=f"Give a program up after so many runs; {MOST_RUNS} by default.", show_default=False),
    ] = None,
    save: Annotated[Path, typer.Option(metavar="DIR", help="Where a failing program goes.")] = FAILURES,
    json: JsonOption = None,
    force: ForceOption = False,
) -> Exit:
    """Run threads that call a manager in every order that differs."""
    file = JsonFile(json, force=force)
    if save.exists() and not save.is_dir():
        fail_input(f"'{save}' is a file", where="--save", expected="a folder")
    sizes = {
        "--threads": threads,
        "--operations": operations,
        "--blocks": blocks,
        "--seed": seed,
        "--max-runs": max_runs,
    }
    _check_options({"PROGRAM": program, "--random": random, "--soak": soaked}, sizes)
    factory = load_factory(target)
    job: Job
    if random is not None:
        job = Random(factory, random, threads or 3, operations or 10, blocks or 8, seed or 0)
        if job.threads * job.operations > MOST_OPERATIONS:
            many = f"{job.threads * job.operations} operations"
            fail_input(many, where="--operations", expected=f"at most {MOST_OPERATIONS} of all threads together")
    elif soaked is not None:
        job = Soak(factory, soaked, threads or 8, blocks or 20, seed or 0)
    elif program in (None, BUILT_IN):
        job = Orders(factory, {name: parse(text) for name, text in PROGRAMS.items()}, max_runs or MOST_RUNS)
    else:
        job = _of_file(factory, Path(str(program)), max_runs or MOST_RUNS)
    return _Work(target, job, save, file).run()


def _check_options(modes: Mapping[str, object], sizes: Mapping[str, object]) -> None:
    """One thing at a time is done, and what is said of its size has a meaning."""
    given = [name for name, value in modes.items() if value is not None]
    if len(given) > 1:
        fail_input("given together", where=", ".join(given), expected="one of them")
    mode = given[0] if given else "PROGRAM"
    for name, value in sizes.items():
        if value is not None and name not in _SIZES[mode]:
            meant = " or ".join(other for other, options in _SIZES.items() if name in options)
            fail_input("it says nothing here", where=name, expected=f"it with {meant}")


def _of_file(factory: Factory, path: Path, max_runs: int) -> Job:
    """Every order of the program in a file, or the one of its schedule."""
    try:
        with path.open("rb") as opened:
            data = opened.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            fail_input("the file is too large", where=str(path), expected=f"at most {MOST_BYTES} bytes")
        script = read_script(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        fail_input(f"byte {error.start} is no UTF-8", where=str(path), expected="a program of threads, or builtin")
    except ProgramError as error:
        fail_input(error.what, where=place(path, error.line), expected=error.expected)
    if script.schedule is None:
        return Orders(factory, {str(path): script.program}, max_runs)
    return Schedule(factory, path, script)


def load_factory(name: str) -> Factory:
    """The manager of that name: a class with the constructor of `ConcurrentBlockManagerImpl`, or a `Factory`.

    Raises:
        InputError: there is no such thing; the factory raises it where it cannot make a manager.
    """
    if name == OWN:
        return concurrent
    found = load_attribute(name, where="--target", names=OWN)
    wanted = "a class with the constructor of ConcurrentBlockManagerImpl, or a Factory"
    if not callable(found) or (inspect.isclass(found) and not issubclass(found, BlockManagerImpl)):
        fail_input(f"{name} is no manager", where="--target", expected=wanted)

    def make(stepper: Stepper, num_blocks: int, block_size: int) -> Any:
        try:
            if inspect.isclass(found):
                kind = cast(type[ConcurrentBlockManagerImpl], found)
                return watched(kind, stepper, num_blocks, block_size, stepper.lock())
            made = found(stepper, num_blocks, block_size)
        except Exception as error:
            what = f"{name} cannot be made: {type(error).__name__}: {error}"
            raise InputError(what, where="--target", expected=wanted) from error
        if not isinstance(made, BlockManagerImpl):
            fail_input(f"{name} made a {type(made).__name__}", where="--target", expected=wanted)
        return made

    return make


# -- the terminal -----------------------------------------------------------------------------------------------------
class _Work:
    """One call of the command."""

    def __init__(self, target: str, job: Job, save: Path, file: JsonFile) -> None:
        self.target, self.job, self.save, self.file, self.out = target, job, save, file, console()

    def run(self) -> Exit:
        job = self.job
        with on_interrupt(self._interrupted):
            try:
                job.run()
                if job.failure is not None:
                    job.found(job.smaller(job.failure))
            except UndecidedError as error:
                job.reason = str(error)
        return self._finish()

    def _interrupted(self) -> None:
        self.job.reason = "interrupted, and nothing is said of the rest"
        self._finish(complete=False)

    def _finish(self, complete: bool = True) -> Exit:
        """Print, save and write everything."""
        job = self.job
        for line in job.covered():
            self.out.print(line)
        saved = None if job.failure is None else self._show(job.failure)
        self.out.print(_last_line(job))
        code = exit_for([job.verdict])
        body = {
            "target": self.target,
            **job.json(),
            "verdict": job.verdict,
            "reason": job.reason,
            "violation": job.violation,
            "script": None if job.failure is None else job.failure.script,
            "log": [] if job.failure is None else job.failure.log,
            "saved": None if saved is None else str(saved),
        }
        self.file.write("interleave", body, exit=code, complete=complete)
        return code

    def _show(self, failure: Failure) -> Path | None:
        """Print a failing run, and where it was saved; one that was read from a file is there already."""
        out, shown = self.out, "    {}".format
        out.print()
        out.print(one_line(f"VIOLATED {failure.violation}"))
        out.print("  a program that shows it, and who takes each step:")
        for line in failure.script.splitlines():
            out.print(shown(line))
        out.print("  step by step:")
        for line in failure.log:
            out.print(shown(line))
        saved, unsaved = (None, "") if isinstance(self.job, Schedule) else self._save(failure)
        if unsaved:
            out.print(f"  not saved: {unsaved}")
        if saved is not None:
            option = "" if self.target == OWN else f" --target {self.target}"
            out.print(f"  saved as {saved}")
            out.print(f"  run it again: kvspec interleave {saved}{option}")
        out.print()
        return saved

    def _save(self, failure: Failure) -> tuple[Path | None, str]:
        """Where a failing run is, in a new file of the folder, or why it could not be saved."""
        lines = [f"{self.target}: {failure.violation}", "found by kvspec interleave", *failure.log]
        text = "".join(f"# {one_line(line)}\n" for line in lines)
        return saved_or_why(self.save, f"{self.target}.{failure.kind}", ".threads", f"{text}{failure.script}\n")


def _last_line(job: Job) -> str:
    """The verdict, and what it is about."""
    said = {
        "violated": one_line(job.violation),
        "unknown": job.reason,
        "vacuous": "no thread has taken a step",
        "holds": job.holds(),
    }
    return f"{job.verdict}: {said[job.verdict]}"
