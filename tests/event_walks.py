"""Random runs of a chapter, as logs that a correct manager could have written."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from kvspec.model.compiled import Compiled, StepError
from kvspec.model.scenario.events import chapter_names, load_chapter
from kvspec.model.scenario.language import ScenarioError
from kvspec.model.tracing.header import Header, arguments
from kvspec.model.tracing.log import Row
from kvspec.model.tracing.show import Step
from kvspec.model.tracing.trace import machine, plain
from kvspec.spec.language.terms import AnySort, SetSort

SIZES = {"num_blocks": 5, "block_size": 2, "num_single_blocks": 4, "num_state_slots": 4, "num_ranks": 2}
NAMES = {
    "Manager": ["m"],
    "Seq": ["a", "b"],
    "Pin": ["h"],
    "Holder": ["x", "y"],
    "Handle": ["u", "v"],
    "Owner": ["a", "b"],
}
WORDS: dict[str, dict[str, Any]] = {
    "engine": {"layered": True},
    "usage": {"is_sequence": ["x"]},
    "admission": {"is_sequence": True, "needs": {"a": 1, "b": 2}},
    "xtensor": {
        "memory.ids.padding": "p0",
        "memory.ids.usable": ["p1", "p2"],
        "regions": ["r"],
        "lies_on": True,
        "Manager": ["m"],
    },
}
"""What static words of some chapters mean, for which nothing is usual."""
CHAINS = [[7], [7, 8], [7, 8, 9], [7, 8, 9, 10], [1, 2], [1]]


def header(chapter: str, **fields: Any) -> Header:
    """The header of a log of a chapter."""
    data = {"kvspec": "events", "version": 1, "chapter": chapter, **SIZES, **WORDS.get(chapter, {}), **fields}
    return Header(Row("log", 1, data))


def chapters() -> list[str]:
    """Chapters with events whose static words have a meaning here."""
    found = []
    for name in chapter_names():
        try:
            if load_chapter(name).event_names:
                header(name)
                found.append(name)
        except (KeyError, ScenarioError):
            continue
    return found


class Walk:
    """A random run from the start; `plain` values, and the same as JSON."""

    def __init__(self, chapter: str, seed: int) -> None:
        self.header = header(chapter)
        self.chapter = self.header.chapter
        self.random = random.Random(seed)
        self.compiled: Compiled = machine(self.header)
        self.compiled.restart(self.header.structure.statics)

    def json(self, sort: AnySort) -> Any:
        """A random value of a sort, as a log has it."""
        pick = self.random.choice
        if isinstance(sort, SetSort):
            number = self.random.randrange(3)
            return [self.json(sort.elements[0]) for _ in range(number)] if len(sort.elements) == 1 else []
        if sort.kind == "bool":
            return pick([True, False])
        if sort.kind == "variant":
            case, fields = pick(sort.cases)
            return [case, *map(self.json, fields)]
        if sort.kind in ("nat", "position"):
            return self.random.randrange(3)
        if sort.name == "Chain":
            return pick(CHAINS)
        size = {"Block": "num_blocks", "StateSlot": "num_state_slots", "Rank": "num_ranks"}.get(sort.name)
        if sort.name in ("Single", "Unit"):
            size = "num_single_blocks"
        return self.random.randrange(SIZES[size]) if size else pick(NAMES.get(sort.name, ["a", "b"]))

    def tries(self, attempts: int) -> Iterator[tuple[dict[str, Any], Step, bool]]:
        """Random events, whether or not they are possible: the line of a log, the event, and whether it happened."""
        for _ in range(attempts):
            name = self.random.choice(self.chapter.event_names)
            parameters = self.chapter.event(name).parameters
            data = {"event": name} | {p.data[0]: self.json(p.sort) for p in parameters}
            values = arguments(Row("log", 2, data), self.header.words, self.chapter)
            step = Step(name, tuple(map(plain, values)))
            try:
                self.compiled.events[name](*step.arguments)
            except StepError:
                yield data, step, False
            else:
                yield data, step, True

    def run(self, length: int, attempts: int = 40_000) -> list[tuple[dict[str, Any], Step]]:
        """Possible events only, so many of them at most."""
        found = []
        for data, step, happened in self.tries(attempts):
            if happened:
                found.append((data, step))
            if len(found) == length:
                break
        return found
