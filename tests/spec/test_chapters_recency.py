"""Chapter `recency` is an ordered dictionary seen from outside: the line after any run is what the dictionary says."""

from __future__ import annotations

import random

import pytest

from kvspec.model.concrete import NotEnabled, Structure, fire, initial
from kvspec.spec import load

CHAPTER = load("recency")
ITEMS = ["a", "b", "c", "d"]
LINE = Structure({"Item": ITEMS})


@pytest.mark.parametrize("seed", range(5))
def test_the_line_is_that_of_an_ordered_dictionary(seed: int) -> None:
    choice = random.Random(seed)
    state, line = initial(CHAPTER, LINE), dict[str, None]()
    for _ in range(60):
        name, item = choice.choice(["use", "use", "leave", "clear"]), choice.choice(ITEMS)
        if name == "leave" and item not in line:
            continue
        state = fire(CHAPTER.event(name), LINE, state, () if name == "clear" else (item,))
        if name == "clear":
            line.clear()
        else:
            line.pop(item, None)
        if name == "use":
            line[item] = None
        assert state[("members",)] == set(line)
        order = list(line)
        assert state[("older",)] == {(a, b) for n, a in enumerate(order) for b in order[n + 1 :]}


def test_who_does_not_stand_in_line_cannot_leave() -> None:
    state = fire(CHAPTER.event("use"), LINE, initial(CHAPTER, LINE), ("a",))
    with pytest.raises(NotEnabled):
        fire(CHAPTER.event("leave"), LINE, state, ("b",))
