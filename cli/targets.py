"""Targets by name: ``torch``, ``model``, managers of other projects such as ``vllm``, or ``package.module:attribute``
for any class that follows the protocol."""

from __future__ import annotations

import contextlib
import inspect
import shlex
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from kvspec.cli.errors import fail_input
from kvspec.impl.adapters import environment
from kvspec.model.conformance import Form, MakeTarget, PoolConfig, Target, TargetError, missing_parts
from kvspec.model.plain import printable, shortened

if TYPE_CHECKING:
    from kvspec.model.remote.client import RemoteTargets

OWN: Final = {
    "torch": "kvspec.impl.target:TorchTarget",
    "pool": "kvspec.impl.pool_target:TorchPoolTarget",
    "concurrent": "kvspec.impl.concurrent_target:TorchConcurrentTarget",
    "xtensor": "kvspec.impl.xtensor.target:TorchXTensorTarget",
    "hierarchy": "kvspec.impl.hierarchy_target:TorchHierarchyTarget",
    "composite": "kvspec.impl.composite_target:TorchCompositeTarget",
    "model": "kvspec.model.reference:model_target",
}
DEFAULT: Final = "torch"
"""What scenarios and traces run on where nothing else is asked for."""
TARGET_HELP: Final = f"{', '.join(OWN)}, or package.module:attribute."
"""What is said of an option or argument that takes a target."""
JUDGED_HELP: Final = f"{', '.join((*OWN, *environment.TARGETS))}, or package.module:attribute."
"""What is said where it may be a manager of another project."""

OF_FORMS: Final[Mapping[str, Mapping[Form, str]]] = {
    "torch": {
        Form.POOLS: "pool",
        Form.PAGES: "xtensor",
        Form.TIERS: "hierarchy",
        Form.COMPOSITES: "composite",
    },
}
"""Who takes configs of other forms in the place of a target of managers."""


def load_target(name: str) -> MakeTarget:
    """The constructor of the target of that name; a module in the current folder is found too.

    Raises:
        InputError: there is no such module or attribute, or it does not follow the protocol.
    """
    others = OF_FORMS.get(name)
    return _load(name) if others is None else _by_form(_load(name), others)


def _by_form(manager: MakeTarget, others: Mapping[Form, str]) -> MakeTarget:
    """Other targets are loaded when they are made: what one of them needs is not asked for by the others."""

    def make(config: PoolConfig) -> Target:
        return (_load(others[config.form]) if config.form in others else manager)(config)

    return make


def _load(name: str) -> MakeTarget:
    path = OWN.get(name, name)
    return _checked(load_attribute(path, where="TARGET", names=", ".join([*OWN, *environment.TARGETS])), name)


def load_attribute(path: str, *, where: str, names: str) -> Any:
    """What ``package.module:attribute`` stands for; a module in the current folder is found too.

    Args:
        where: the option or argument that the path was given for.
        names: what could have been given instead of a path.

    Raises:
        InputError: there is no such module or attribute.
    """
    module, colon, attribute = path.partition(":")
    if not (module and colon and attribute):
        fail_input(f"'{path}' is no target", where=where, expected=f"{names} or package.module:attribute")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = import_module(module)
    except Exception as error:
        fail_input(f"cannot import {module}: {type(error).__name__}: {error}", where=where)
    for part in attribute.split("."):
        if not hasattr(found, part):
            fail_input(f"{module} has no {attribute}", where=where, expected="the name of a class")
        found = getattr(found, part)
    return found


def _checked(found: Any, name: str) -> MakeTarget:
    if not callable(found):
        fail_input(f"{name} cannot be called", where="TARGET", expected="a class made with a PoolConfig")
    # Attributes may be set when an instance is made; methods cannot be missing from the class.
    missing = [part for part in missing_parts(found) if part.endswith("()")] if inspect.isclass(found) else []
    if missing:
        fail_input(f"{name} lacks {', '.join(missing)}", where="TARGET", expected="the parts of the target protocol")
    return cast(MakeTarget, found)


@contextlib.contextmanager
def drivable(name: str, where: str = "TARGET") -> Iterator[None]:
    """What only shows when a target is made is bad input, too."""
    try:
        yield
    except TargetError as error:
        fail_input(f"{name} {error}", where=where)


class Asked(NamedTuple):
    """A target, as a command was asked for it.

    Attributes:
        name: what reports call it.
        words: how to ask for it on a command line.
        make: makes one.
        patience: seconds within which a call of it has to return, if it sees to that itself.
        remote: the process that makes it, if that is another one.
    """

    name: str
    words: tuple[str, ...]
    make: MakeTarget
    patience: float | None = None
    remote: RemoteTargets | None = None

    @property
    def last_words(self) -> list[str]:
        """What was last heard from a process that has failed."""
        said = [] if self.remote is None else self.remote.last_words
        return [shortened(printable(line.expandtabs())) for line in said]


def check_threads(command: str | None, threads: int | None) -> None:
    """Several threads are not asked for with a process, which gets its calls one after the other.

    Raises:
        InputError: they are.
    """
    if command is not None and threads not in (None, 1):
        fail_input("given with --exec", where="--threads", expected="one of them: a process is called from one thread")


@contextlib.contextmanager
def asked_for(
    target: str | None, command: str | None, call_seconds: float | None, default: str | None = None
) -> Iterator[Asked]:
    """The target of that name, or the one for which a command speaks; what turns out to be no target is bad input.

    Args:
        target: the name, if one is given.
        command: the command, if one is given.
        call_seconds: within which each call of the command's process has to return, if that is given.
        default: the name where neither is given; None: one of them has to be.

    Raises:
        InputError: both or neither are given, or it cannot be driven.
    """
    if command is None:
        if call_seconds is not None:
            fail_input("given without --exec", where="--call-seconds", expected="beside it")
        target = target or default
        if target is None:
            fail_input("missing", where="TARGET", expected=f"{JUDGED_HELP.removesuffix('.')}, or --exec CMD")
        with drivable(target), _peer(target) if target in environment.TARGETS else _ours(target) as asked:
            yield asked
        return
    if target is not None:
        fail_input(f"given with the target {target}", where="--exec", expected="one of them")
    with _started(command, call_seconds) as asked, drivable(asked.name, where="--exec"):
        yield asked


@contextlib.contextmanager
def _ours(target: str) -> Iterator[Asked]:
    """A target that is made here."""
    yield Asked(target, (target,), load_target(target))


@contextlib.contextmanager
def _peer(target: str) -> Iterator[Asked]:
    """A manager of another project, which lives in the environment of peers."""
    from kvspec.model.remote.client import CALL_SECONDS, RemoteTargets

    try:
        argv = environment.command(target)
    except environment.AbsentError as error:
        fail_input(f"{target} {error}", where="TARGET")
    with RemoteTargets(argv) as targets:
        yield Asked(target, (target,), targets, CALL_SECONDS, targets)


@contextlib.contextmanager
def _started(command: str, call_seconds: float | None) -> Iterator[Asked]:
    """The target for which a command speaks, for as long as its process is there."""
    from kvspec.model.remote.client import CALL_SECONDS, RemoteTargets

    try:
        argv = shlex.split(command)
    except ValueError as error:
        fail_input(f"{command!r} cannot be split ({error})", where="--exec", expected="a command line")
    if not argv:
        fail_input("nothing", where="--exec", expected="a command line")
    if call_seconds is not None and not call_seconds > 0:
        fail_input(f"{call_seconds}", where="--call-seconds", expected="more than 0")
    seconds = call_seconds or CALL_SECONDS
    words = ("--exec", command, *(("--call-seconds", f"{seconds:g}") if call_seconds is not None else ()))
    with RemoteTargets(argv, call_seconds=seconds) as targets:
        with drivable(f"'{command}'", where="--exec"):
            name = targets.introduction.name
        yield Asked(name, words, targets, seconds, targets)
