"""The reading with a third truth value: it reports nothing that could have been, and is exact where all is known."""

from __future__ import annotations

from typing import Any

import pytest
from event_walks import Walk, chapters, header

from kvspec.model.tracing.header import arguments
from kvspec.model.tracing.known import UNKNOWN, Known, Members, NotPossible
from kvspec.model.tracing.log import Row
from kvspec.model.tracing.trace import initially, plain, whole
from kvspec.spec.language.terms import MapSort, SetSort

SLOW = {"pool": 100, "lifecycle": 150, "hierarchy": 150, "concurrent": 300}
"""Events that are tried, of chapters whose states are large."""


@pytest.mark.parametrize("chapter", chapters())
def test_nothing_is_reported_of_a_run_that_is_joined_anywhere(chapter: str) -> None:
    walk = Walk(chapter, 1)
    run = walk.run(80, 2000)
    assert len(run) > 10
    for begin in (0, len(run) // 3, len(run) // 2):
        known = Known(walk.chapter, walk.header.structure)
        for _, step in run[begin:]:
            known.fire(walk.chapter.event(step.name), step.arguments)


def differences(known: Known, walk: Walk) -> list[str]:
    """Where what is known is not the state; what is not known is no difference."""
    found = []
    for path, variable in walk.chapter.variables.items():
        state, sort = walk.compiled.state[path], variable.sort
        if variable.ghost:
            continue
        if not isinstance(sort, MapSort):
            cells = {None: (known.state[path], state if isinstance(sort, SetSort) else state[0])}
        else:
            rest = set() if isinstance(sort.value, SetSort) else initially(walk.header, path, sort)
            keys = state.keys() | known.state[path].cells.keys()
            cells = {key: (known.cell(path, key), state.get(key, rest)) for key in keys}
        for key, (mine, real) in cells.items():
            if isinstance(mine, Members):
                wrong = mine.yes - real or mine.no & real or (not mine.open and real - mine.yes - mine.maybe)
            else:
                wrong = mine is not UNKNOWN and mine != real
            found += [f"{'.'.join(path)} {key}: {mine}, but {real}"] * bool(wrong)
    return found


@pytest.mark.parametrize("chapter", chapters())
def test_what_is_known_whole_is_read_like_the_state_itself(chapter: str) -> None:
    walk = Walk(chapter, 5)
    known = whole(walk.header, walk.compiled)
    happened = decided = tried = 0
    for _, step, possible in walk.tries(SLOW.get(chapter, 300)):
        tried += 1
        event = walk.chapter.event(step.name)
        env = dict(zip(event.parameters, step.arguments, strict=True))
        held = [known.value(r.term, env) for r in event.requires]
        if any(value is False for value in held):
            assert not possible, step
            decided += 1
        elif all(value is True for value in held):
            assert possible, step
            decided += 1
        if possible:
            happened += 1
            known.fire(event, step.arguments)
            assert not differences(known, walk), step
            known.state = whole(walk.header, walk.compiled).state
    assert happened > 1 and decided >= 0.9 * tried


def follow(lines: list[dict[str, Any]], chapter: str = "prefix_cache") -> int | None:
    """The number of the first event that what is known forbids."""
    head = header(chapter)
    known = Known(head.chapter, head.structure)
    for number, data in enumerate(lines, 1):
        values = tuple(map(plain, arguments(Row("log", number, data), head.words, head.chapter)))
        try:
            known.fire(head.chapter.event(data["event"]), values)
        except NotPossible:
            return number
    return None


def do(name: str, **arguments: Any) -> dict[str, Any]:
    return {"event": name, **arguments}


WRONG = {
    "a block is handed out twice": [
        do("allocate", block=1, seat="a[0]"),
        do("allocate", block=1, seat="b[0]"),
    ],
    "a block that somebody shares is handed out": [
        do("share", block=1, seat="a[0]"),
        do("allocate", block=1, seat="b[0]"),
    ],
    "a handle is given back twice": [
        do("release", block=1, seat="a[0]"),
        do("release", block=1, seat="a[0]"),
    ],
    "a block is handed out whose key was matched": [
        do("allocate", block=1, seat="a[0]"),
        do("write", block=1, chain=[7, 8]),
        do("publish", key=[7, 8], block=1),
        do("release", block=1, seat="a[0]"),
        do("match", key=[7, 8], seat="b[0]"),
        do("evict", key=[7, 8]),
    ],
    "a block is given back twice, beside a key of which nobody knows where it leads": [
        do("allocate", block=1, seat="a[0]"),
        do("match", key=[7, 8], seat="b[0]"),
        do("evict", key=[1, 2]),
        do("release", block=1, seat="a[0]"),
        do("release", block=1, seat="a[0]"),
    ],
    "a block that was given back is free, beside a key of which nobody knows where it leads": [
        do("allocate", block=1, seat="a[0]"),
        do("match", key=[7, 8], seat="b[0]"),
        do("release", block=1, seat="a[0]"),
        do("share", block=1, seat="c[0]"),
    ],
    "a key is evicted twice": [
        do("evict", key=[7, 8]),
        do("evict", key=[7, 8]),
    ],
    "a key is published before all is written": [
        do("write", block=1, chain=[7, 8]),
        do("allocate", block=2, seat="a[0]"),
        do("write", block=2, chain=[7]),
        do("publish", key=[7, 8], block=2),
    ],
    "a key is matched that was evicted": [
        do("evict", key=[7, 8]),
        do("match", key=[7, 8], seat="a[0]"),
    ],
    "a key is matched after a reset": [
        do("reset"),
        do("match", key=[1, 2], seat="a[0]"),
    ],
    "a block with a key takes other tokens": [
        do("allocate", block=1, seat="a[0]"),
        do("write", block=1, chain=[7, 8]),
        do("publish", key=[7, 8], block=1),
        do("write", block=1, chain=[1, 2]),
    ],
    "the padding block is handed out": [do("allocate", block=0, seat="a[0]")],
}  # fmt: skip
RIGHT = {
    "a key that nobody saw stored is matched and evicted": [
        do("match", key=[7, 8], seat="a[0]"),
        do("release", block=2, seat="a[0]"),
        do("evict", key=[7, 8]),
    ],
    "a block may have holders that nobody saw": [
        do("share", block=1, seat="a[0]"),
        do("release", block=1, seat="a[0]"),
        do("release", block=1, seat="b[0]"),
        do("release", block=1, seat="c[0]"),
        do("allocate", block=1, seat="a[0]"),
    ],
    "a key may have been published before": [do("settle", key=[7, 8]), do("end_step"), do("evict", key=[1, 2])],
}  # fmt: skip


@pytest.mark.parametrize("lines", WRONG.values(), ids=WRONG)
def test_what_is_known_forbids_it(lines: list[dict[str, Any]]) -> None:
    assert follow(lines) == len(lines)


@pytest.mark.parametrize("lines", RIGHT.values(), ids=RIGHT)
def test_something_unknown_may_allow_it(lines: list[dict[str, Any]]) -> None:
    assert follow(lines) is None
