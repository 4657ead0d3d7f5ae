"""What is wrong with a state or a step that a batch was told to be wrong: asked again in the concrete reading."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from kvspec.model.batched.layout import Layout
from kvspec.model.concrete import State, Structure
from kvspec.model.exploring.instances import Instance
from kvspec.model.exploring.outcome import Step
from kvspec.model.exploring.plain import Judge, Stepper, Taken, Wrong
from kvspec.spec.language.chapter import Chapter


class ReadingsDisagree(AssertionError):
    """The batched reading found something wrong that the concrete one does not: an error of kvspec itself."""


class _Steps(Stepper):
    """Steps of a specification that may have a fault: where something cannot be evaluated, it is not what was found."""

    unknown = (AttributeError, KeyError, TypeError)


class Blame:
    """Names what is wrong.

    Every method raises `ReadingsDisagree` if nothing is.
    """

    def __init__(self, chapter: Chapter, structure: Structure, layout: Layout) -> None:
        self.stepper, self.judge, self.layout = _Steps(chapter, structure), Judge(chapter, structure), layout

    def decoded(self, row: Tensor) -> State:
        return self.layout.decode(row.unsqueeze(0))[0]

    def start(self, state: State) -> Wrong:
        """The theorem that is false of the start."""
        wrong = self.judge.start(state)
        if wrong is None:
            raise ReadingsDisagree("every theorem about the start holds")
        return wrong

    def state(self, row: Tensor) -> Wrong:
        """The statement that is false in a state."""
        wrong = self.judge.state(self.decoded(row))
        if wrong is None:
            raise ReadingsDisagree("every statement holds in the state")
        return wrong

    def call(self, row: Tensor) -> tuple[Wrong, Instance]:
        """The call that is not allowed in a state, and who makes it."""
        for taken in self.stepper.enabled(self.decoded(row)):
            wrong = self.judge.call(taken)
            if wrong is not None:
                return wrong, taken.instance
        raise ReadingsDisagree("every call is allowed in the state")

    def taken(self, row: Tensor, instance: Instance) -> Taken:
        """The step of an instance from a state."""
        for taken in self.stepper.enabled(self.decoded(row)):
            if taken.instance == instance:
                return taken
        raise ReadingsDisagree(f"{instance.event.name} is not enabled in the state")

    def step(self, row: Tensor, instance: Instance) -> Wrong:
        """The theorem about steps that is false of this one.

        Raises:
            OutOfRange: a cell cannot hold what the step stores.
        """
        taken = self.taken(row, instance)
        wrong = self.judge.step(taken)
        if wrong is None:
            self.layout.row(self.layout.cells.pack(taken.after))
            raise ReadingsDisagree(f"every theorem about {instance.event.name} holds of the step")
        return wrong

    def last(self, state: State, wrong: Wrong, event: str) -> Step:
        """A step of this event that is wrong in this way."""
        asked = self.judge.call if wrong.kind == "call" else self.judge.step
        return _step(t for t in self.stepper.enabled(state) if t.event.name == event and asked(t) == wrong)


def _step(found: Iterable[Taken]) -> Step:
    taken = next(iter(found))
    return Step(taken.event.name, taken.instance.args)
