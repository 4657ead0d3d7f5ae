"""Which texts of the spec the model runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from kvspec.spec.language import Chapter
from kvspec.spec.pool import Pool
from kvspec.spec.sequences import Sequences

_other_texts: list[Chapter] = []


def sequences() -> Chapter:
    """The chapter that the model of a manager runs."""
    return _other_texts[-1] if _other_texts else _sequences()


@cache
def _sequences() -> Chapter:
    return Chapter(Sequences)


@cache
def pool() -> Chapter:
    """The chapter that the model of a pool of ranks runs."""
    return Chapter(Pool)


@contextmanager
def following(text: Chapter) -> Iterator[None]:
    """Models of managers that are made inside follow another text of the chapter: what does a judge find who misreads
    it?"""
    _other_texts.append(text)
    try:
        yield
    finally:
        _other_texts.pop()
