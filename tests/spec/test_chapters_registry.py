"""The list of chapters: what is in it, in which order, and what asking for another name says."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import pytest

from kvspec import spec
from kvspec.spec import CHAPTERS, UnknownChapter, load
from kvspec.spec.language import Chapter, Machine


def test_every_chapter_is_listed_behind_those_that_it_uses() -> None:
    names = list(CHAPTERS)
    for name, (module, cls) in CHAPTERS.items():
        words = vars(getattr(importlib.import_module(module), cls)).values()
        used = [w.machine.__module__.rpartition(".")[2] for w in words if hasattr(w, "machine")]
        assert all(names.index(u) < names.index(name) for u in used), name


def test_every_machine_of_the_package_is_listed() -> None:
    found = set()
    for module in pkgutil.iter_modules(spec.__path__):
        for value in vars(importlib.import_module(f"kvspec.spec.{module.name}")).values():
            if isinstance(value, type) and issubclass(value, Machine) and value is not Machine:
                found.add((value.__module__, value.__name__))
    assert found == set(CHAPTERS.values())


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_is_read_once(name: str) -> None:
    assert isinstance(load(name), Chapter)
    assert load(name) is load(name)


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UnknownChapter, match=r"^no chapter 'sequence'; the chapters are keys, slots, .*, sequences, "):
        load("sequence")


def test_the_list_is_there_before_any_chapter_is_read() -> None:
    code = "import sys, kvspec.spec; print(*(m for m in sys.modules if m.startswith('kvspec.spec')))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["kvspec.spec"]
