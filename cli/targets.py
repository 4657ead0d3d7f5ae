"""Targets by name: ``torch``, ``model``, or ``package.module:attribute`` for any class that follows the protocol."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, cast

from kvspec.cli.errors import fail_input
from kvspec.model.conformance import Capability, PoolConfig, Target

MakeTarget = Callable[[PoolConfig], Target]

OWN: Final = {"torch": "kvspec.impl.target:TorchTarget", "model": "kvspec.model.reference:ModelTarget"}


def load_target(name: str) -> MakeTarget:
    """The constructor of the target of that name; a module in the current folder is found too.

    Raises:
        InputError: there is no such module or attribute, or it does not follow the protocol.
    """
    path = OWN.get(name, name)
    module, colon, attribute = path.partition(":")
    if not (module and colon and attribute):
        fail_input(f"'{name}' is no target", where="TARGET", expected="torch, model or package.module:attribute")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = import_module(module)
    except Exception as error:
        fail_input(f"cannot import {module}: {type(error).__name__}: {error}", where="TARGET")
    for part in attribute.split("."):
        if not hasattr(found, part):
            fail_input(f"{module} has no {attribute}", where="TARGET", expected="the name of a class")
        found = getattr(found, part)
    return _checked(found, name)


def _checked(found: Any, name: str) -> MakeTarget:
    if not callable(found):
        fail_input(f"{name} cannot be called", where="TARGET", expected="a class made with a PoolConfig")
    needed = [n for n, _ in inspect.getmembers(Target, inspect.isfunction) if not n.startswith("_")]
    optional = _of_capabilities(getattr(found, "capabilities", frozenset(Capability)))
    missing = [n for n in needed if not hasattr(found, n) and n not in optional]
    if missing and inspect.isclass(found):
        fail_input(f"{name} lacks {', '.join(missing)}", where="TARGET", expected="the methods of the target protocol")
    return cast(MakeTarget, found)


_METHODS: Final = {
    Capability.FREE_IDS: ("free_ids",),
    Capability.FREE_COUNT: ("free_count",),
    Capability.USED_COUNT: ("used_count",),
    Capability.REF_COUNTS: ("ref_count",),
    Capability.CACHED_KEYS: ("cached",),
    Capability.EVENTS: ("drain_events",),
    Capability.CONTENTS: ("read",),
    Capability.FORK: ("fork",),
    Capability.TRUNCATE: ("truncate",),
    Capability.HOLD: ("hold", "release"),
}


def _of_capabilities(shown: frozenset[Capability]) -> set[str]:
    """Methods that a target without the capability need not have."""
    return {m for capability, methods in _METHODS.items() if capability not in shown for m in methods}
