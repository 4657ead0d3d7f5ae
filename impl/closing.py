"""`while_open`: methods that are an error after the end of life of their object."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from kvspec.impl.errors import ClosedError


class Closable(Protocol):
    """Something with an end of life."""

    @property
    def closed_(self) -> bool:
        """Whether it was reached."""


_T = TypeVar("_T", bound=Closable)
_P = ParamSpec("_P")
_R = TypeVar("_R")


def closed_error(where: str) -> ClosedError:
    """The error for a use after `close`."""
    return ClosedError(where, "the manager is closed", "a call before close")


def while_open(method: Callable[Concatenate[_T, _P], _R]) -> Callable[Concatenate[_T, _P], _R]:
    """The method raises `ClosedError`, with nothing changed, after `close`."""

    @wraps(method)
    def call(self: _T, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        if self.closed_:
            raise closed_error(f"{type(self).__name__}.{method.__name__}")
        return method(self, *args, **kwargs)

    return call
