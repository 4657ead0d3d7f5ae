"""The smaller chapters run on small pools: every event happens, every witness is reached, what is proved is seen."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from kvspec.model.concrete import NotEnabled, State, Structure, Variant, evaluate, fire, initial
from kvspec.spec import load
from kvspec.spec.language.chapter import Chapter
from kvspec.spec.language.terms import Path

BLOCKS: Mapping[Path, Any] = {("padding",): 0, ("usable",): {1, 2}}


def inside(*path: str) -> dict[Path, Any]:
    """The statics of a pool of two blocks, for an instance at this path."""
    return {(*path, *p): value for p, value in BLOCKS.items()}


def handles() -> Structure:
    return Structure({"Block": [0, 1, 2], "Handle": ["f", "g", "h"]}, inside("blocks"))


def free_list() -> Structure:
    order = {0: 1, 1: 2, 2: 0, 3: 0}
    statics = {
        ("capacity",): 2,
        ("first_order",): order,
        ("first_place",): {block: place for place, block in reversed(order.items())},
        **inside("handles", "blocks"),
    }
    return Structure({"Block": [0, 1, 2], "Handle": ["f", "g", "h"], "Place": [0, 1, 2, 3]}, statics)


def usage() -> Structure:
    statics = {("is_sequence",): lambda holder: holder in ("s", "t"), **inside("blocks")}
    return Structure({"Block": [0, 1, 2], "Holder": ["s", "t", "key a", "key b"]}, statics)


def lru() -> Structure:
    chains = ["", "a", "b"]
    statics = {
        ("cache", "nothing"): "",
        ("cache", "covers"): lambda c, d: d in ("", c),
        ("cache", "full"): lambda c: c != "",
        **inside("cache", "blocks"),
    }
    return Structure({"Block": [0, 1, 2], "Chain": chains, "Seq": ["s"], "Index": [0], "Pin": ["p"]}, statics)


def keys() -> Structure:
    """Sequences r, s and t apply adapter x, t also shows an image, u has the salt x; there is only one digest."""
    adapters = [frozenset({Variant("adapter", ("x", version))}) for version in (1, 2)]
    contexts = [*adapters, *(a | {Variant("image", ("x",))} for a in adapters), frozenset({Variant("salt", ("x",))})]
    nothing = ("nothing", "", frozenset())
    first = [(nothing, "a", context) for context in contexts]
    chains: list[Any] = [nothing, *first, *((k, "a", context) for k in first for context in contexts)]

    def depth(key: Any) -> int:
        return 1 if key in chains and key[0] in first else 0

    statics = {
        ("nothing",): nothing,
        ("parent",): lambda key: nothing if key == nothing else key[0],
        ("tokens",): lambda key: key[1],
        ("parts",): lambda key: key[2],
        ("depth",): depth,
        ("upto",): lambda key, index: key if index >= depth(key) else key[0],
        ("digest",): lambda key: 0,
        ("says",): lambda seq, index: "a",
        ("shows",): lambda seq, index, name: (seq, index) == ("t", 0),
        ("applies",): lambda seq, name: seq in ("r", "s", "t"),
        ("salted",): lambda seq, name: seq == "u",
    }
    carriers = {
        "Chain": chains,
        "Seq": ["r", "s", "t", "u"],
        "Index": [0, 1, 2],
        "Name": ["x"],
        "Version": [1, 2, 3],
        "Tokens": ["a"],
        "Digest": [0],
    }
    return Structure(carriers, statics)


STRUCTURES = {"handles": handles, "free_list": free_list, "usage": usage, "lru": lru, "keys": keys}
STEPS = {"keys": 9}
"""A run of chapter `keys` ends when its few sequences have their two blocks."""


class Walk:
    """Random runs from the start, looked at after each step."""

    def __init__(self, name: str, seed: int) -> None:
        self.chapter: Chapter = load(name)
        self.structure = STRUCTURES[name]()
        self.random = random.Random(seed)
        self.events = [self.chapter.event(e) for e in self.chapter.event_names]
        # An event without parameters can nearly always happen; the rest needs a lucky choice of them.
        self.weights = [1.0 if e.parameters else 0.05 for e in self.events]
        self.theorems = self.chapter.theorems
        self.always = [*self.chapter.invariants, *(t for t in self.theorems if t.after is None)]
        self.happened: set[str] = set()
        self.reached: set[str] = set()

    def run(self, steps: int) -> None:
        state = initial(self.chapter, self.structure)
        if ("version",) in self.chapter.variables:
            state[("version",)] = {"x": 1}
        self.look(state)
        for _ in range(steps):
            state = self.step(state)
            self.look(state)

    def step(self, state: State) -> State:
        for _ in range(2000):
            (event,) = self.random.choices(self.events, self.weights)
            arguments = tuple(self.random.choice(list(self.structure.elements(p.sort))) for p in event.parameters)
            try:
                after = fire(event, self.structure, state, arguments)
            except NotEnabled:
                continue
            self.happened.add(event.name)
            values = dict(zip(event.parameters, arguments, strict=True))
            for theorem in self.theorems:
                if theorem.after == event.name:
                    assert evaluate(theorem.term, self.structure, state, values), (theorem.name, arguments)
            return after
        return state

    def look(self, state: State) -> None:
        for statement in self.always:
            assert evaluate(statement.term, self.structure, state), statement.name
        for witness in self.chapter.witnesses:
            if witness.name not in self.reached and evaluate(witness.term, self.structure, state):
                self.reached.add(witness.name)


@pytest.mark.parametrize("name", STRUCTURES)
def test_what_is_assumed_of_statics_is_true_in_the_examples(name: str) -> None:
    structure = STRUCTURES[name]()
    assert [a.name for a in load(name).axioms if not evaluate(a.term, structure, {})] == []


@pytest.mark.parametrize("name", STRUCTURES)
def test_every_event_happens_and_every_witness_is_reached(name: str) -> None:
    walk = Walk(name, seed=0)
    events, witnesses = set(walk.chapter.event_names), {w.name for w in walk.chapter.witnesses}
    for run in range(200):
        walk.run(STEPS.get(name, 40))
        if run >= 5 and (walk.happened, walk.reached) == (events, witnesses):
            break
    assert walk.happened == events
    assert walk.reached == witnesses
