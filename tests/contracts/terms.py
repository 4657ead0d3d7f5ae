"""How a contract is written, and which functions it is about.

A contract is a function of asserts. Those that it starts with say for which arguments something is promised; all others
are the promise. Calling it with numbers checks one case; CrossHair runs it on symbols and thereby checks all of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

Function = Callable[..., Any]
F = TypeVar("F", bound=Function)


@dataclass(frozen=True)
class Terms:
    """What stands beside a contract.

    Attributes:
        functions: what it is about.
        theorems: those of the specification that prove the same, for all numbers or for hits of any length.
        bound: how far CrossHair confirms it; empty if for all arguments. Theorems then prove the rest.
    """

    functions: tuple[Function, ...]
    theorems: tuple[str, ...] = ()
    bound: str = ""


def contract(*functions: Function, theorems: tuple[str, ...] = (), bound: str = "") -> Callable[[F], F]:
    """Say what a contract is about (see `Terms`)."""

    def mark(check: F) -> F:
        check.terms = Terms(functions, theorems, bound)  # type: ignore[attr-defined]
        return check

    return mark


def contracts_of(module: ModuleType) -> dict[str, Terms]:
    """The contracts that a module holds, by name."""
    return {name: value.terms for name, value in vars(module).items() if hasattr(value, "terms")}


def functions_of(module: ModuleType) -> list[Function]:
    """The functions that a module defines."""
    return [f for f in vars(module).values() if inspect.isfunction(f) and f.__module__ == module.__name__]


def qualified(function: Function) -> str:
    """Module and name of a function."""
    return f"{function.__module__}.{function.__name__}"
