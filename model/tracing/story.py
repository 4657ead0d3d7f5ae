"""A scenario that shows what is wrong with a log: the events before the finding that matter for it, and no others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kvspec.model.compiled import Compiled, InvariantError, StepError
from kvspec.model.concrete import Structure
from kvspec.model.conformance import Context
from kvspec.model.scenario.events import MAX_BLOCKS, NUMBERED, run_events, write_event_scenario
from kvspec.model.scenario.language import Forbidden, ScenarioError
from kvspec.model.scenario.parse import parse_scenario
from kvspec.model.tracing.show import Element, Focus, Step
from kvspec.model.world import Chain, context_of
from kvspec.spec.language.terms import AnySort, Path, SetSort, Sort

MAX_STEPS: Final = 96
"""Events of a scenario, at most: more tell nobody anything."""
_ROUNDS: Final = 4
"""How far what events speak of is followed: a key to its block, the block to who held it, and so on."""


class Story:
    """Runs some of the events of a log from the start, and tells whether the last one is forbidden in the same way.

    Args:
        compiled: the chapter, which is run again and again.
        statics: what its static words mean.
        focus: what the last event speaks of.
        step: the last event.
        says: what it is to fail by.
    """

    def __init__(self, compiled: Compiled, statics: Mapping[Path, Any], focus: Focus, step: Step, says: str) -> None:
        self.compiled, self.statics, self.focus, self.step, self.says = compiled, statics, focus, step, says

    def seen(self, steps: Sequence[Step]) -> Any:
        """The state that the last event sees and how it fails; None if an event before it does, or if it does not."""
        self.compiled.restart(self.statics)
        try:
            for step in steps:
                self.compiled.events[step.name](*step.arguments)
        except (StepError, InvariantError):
            return None
        state = {p: v[0] if isinstance(v, list) else v for p, v in self.compiled.state.items()}
        part = {p: v.copy() if isinstance(v, (dict, set)) else v for p, v in self.focus.restrict(state).items()}
        part = {p: {k: _frozen(x) for k, x in v.items()} if isinstance(v, dict) else v for p, v in part.items()}
        try:
            self.compiled.events[self.step.name](*self.step.arguments)
        except StepError as error:
            return part, str(error.requirement.where)
        except InvariantError:
            pass
        return None


def _frozen(value: Any) -> Any:
    return frozenset(value) if isinstance(value, set) else value


def tell_story(header: Any, compiled: Compiled, history: Sequence[Step], step: Step, whole: bool, where: str) -> str:
    """The text of a scenario; empty if none was found that shows the same.

    Args:
        header: of the log.
        compiled: its chapter, to run.
        history: the events before, from the start of what is known.
        step: the event that is not allowed.
        whole: whether the history begins with the start state.
        where: the requirement that does not hold.
    """
    focus = Focus(header.chapter, step)
    story = Story(compiled, header.structure.statics, focus, step, where)
    wanted = story.seen(history) if whole and len(history) <= 20_000 else None
    for rounds in range(_ROUNDS):
        chosen = _about(focus, history, rounds)
        if len(chosen) > MAX_STEPS:
            return ""
        seen = story.seen(chosen)
        if seen is not None and seen[1] == where and (wanted is None or seen == wanted):
            return _text(header, _shrunk(story, chosen, seen), step)
    return ""


def _about(focus: Focus, history: Sequence[Step], rounds: int) -> list[Step]:
    """Events that speak of the same things; and of what those speak of, so many times over."""
    around: set[Element] = set(focus.elements or ())
    spoken = [frozenset(focus.of(s)) for s in history[-20_000:]]
    for _ in range(rounds):
        around |= {e for elements in spoken if elements & around for e in elements}
    return [s for s, elements in zip(history[-20_000:], spoken, strict=True) if elements & around or not elements]


def _shrunk(story: Story, steps: list[Step], wanted: Any) -> list[Step]:
    """Without the events that change nothing of what the last one sees."""
    at = 0
    while at < len(steps):
        fewer = steps[:at] + steps[at + 1 :]
        if story.seen(fewer) == wanted:
            steps = fewer
        else:
            at += 1
    return steps


# -- writing it -------------------------------------------------------------------------------------------------------


def _text(header: Any, steps: Sequence[Step], last: Step) -> str:
    """The scenario, if it runs and shows what it should: blocks and the like get small numbers."""
    if any(isinstance(x, Chain) and context_of(x) != Context() for x in header.words.chains):
        return ""  # a scenario of events has no contexts
    numbers = _Numbers()
    told = [(s.name, numbers.arguments(header.chapter, s)) for s in (*steps, last)]
    carriers = {sort: list(range(max(known.values()) + 1)) for sort, known in numbers.known.items()}
    if any(len(known) > MAX_BLOCKS for known in carriers.values()):
        return ""
    structure = Structure({**header.structure.carriers, **_least(header.structure.carriers), **carriers}, {})
    try:
        text = write_event_scenario(
            header.name, header.chapter, structure, None, told, [Forbidden()], block_size=header.words.config.block_size
        )
        return text if run_events(parse_scenario(text)).passed else ""
    except ScenarioError:
        return ""


def _least(carriers: Mapping[str, list[Any]]) -> dict[str, list[int]]:
    """Sorts that are numbered and not spoken of have two elements."""
    return {sort: [0, 1] for sort in NUMBERED if sort in carriers}


class _Numbers:
    """Small numbers for all that is numbered, in the order in which it is spoken of; 0 stays what it is."""

    def __init__(self) -> None:
        self.known: dict[str, dict[Any, int]] = {}

    def arguments(self, chapter: Any, step: Step) -> list[Any]:
        """The arguments of an event, renumbered."""
        sorts = [p.sort for p in chapter.event(step.name).parameters]
        return [self.value(v, s) for v, s in zip(step.arguments, sorts, strict=True)]

    def value(self, value: Any, sort: AnySort) -> Any:
        if isinstance(sort, SetSort):
            return frozenset(self._row(row, sort.elements) for row in value)
        assert isinstance(sort, Sort)
        if sort.kind == "variant":
            return (value[0], *(self.value(v, f) for v, f in zip(value[1:], sort.fields(value[0]), strict=True)))
        if sort.name not in NUMBERED:
            return value
        known = self.known.setdefault(sort.name, {0: 0})
        return known.setdefault(value, len(known))

    def _row(self, row: Any, sorts: tuple[Sort, ...]) -> Any:
        if len(sorts) == 1:
            return self.value(row, sorts[0])
        return tuple(self.value(v, s) for v, s in zip(row, sorts, strict=True))
