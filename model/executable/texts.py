"""Which texts of the spec the model runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from kvspec.spec.composite import Composite
from kvspec.spec.engine import Engine
from kvspec.spec.hierarchy import Hierarchy
from kvspec.spec.language import Chapter
from kvspec.spec.language.machine import Machine
from kvspec.spec.pool import Pool
from kvspec.spec.sequences import Sequences
from kvspec.spec.xtensor import XTensor

_other_texts: list[Chapter] = []


def sequences() -> Chapter:
    """The chapter that the model of a manager runs."""
    return _followed(Sequences)


def pool() -> Chapter:
    """The chapter that the model of a pool of ranks runs."""
    return _followed(Pool)


def hierarchy() -> Chapter:
    """The chapter that the model of the tiers of a rank runs."""
    return _followed(Hierarchy)


def xtensor() -> Chapter:
    """The chapter that the model of pages on demand runs."""
    return _followed(XTensor)


def composite() -> Chapter:
    """The chapter that the model of a composite runs."""
    return _followed(Composite)


def engine() -> Chapter:
    """The chapter that the model of an engine's memory runs."""
    return _followed(Engine)


def _followed(cls: type[Machine]) -> Chapter:
    return next((text for text in reversed(_other_texts) if text.cls is cls), None) or _as_it_stands(cls)


@cache
def _as_it_stands(cls: type[Machine]) -> Chapter:
    return Chapter(cls)


@contextmanager
def following(text: Chapter) -> Iterator[None]:
    """Models that are made inside follow another text of their chapter: what does a judge find who misreads it?"""
    _other_texts.append(text)
    try:
        yield
    finally:
        _other_texts.pop()
