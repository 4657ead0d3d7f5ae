"""Scenarios of events: they run on the spec, from any state, and counterexamples are written as such."""

from __future__ import annotations

import re

import pytest

from kvspec.impl.target import TorchTarget
from kvspec.model.concrete import Structure, Variant
from kvspec.model.scenario import (
    BrokenInvariant,
    Forbidden,
    ScenarioError,
    ScenarioResult,
    chapter_names,
    parse_scenario,
    run_scenario,
    write_event_scenario,
)
from kvspec.model.scenario.events import load_chapter
from kvspec.proofs.campaign import Options, groups, prove_group
from kvspec.proofs.verdicts import Verdict
from kvspec.spec.blocks import Blocks, Holder
from kvspec.spec.language import Bool, Chapter, Machine, Map, Set, event, forall, implies, init, invariant, theorem, use
from kvspec.spec.lifecycle import Lifecycle
from kvspec.spec.sorts import Block, Pin

HELD = """pool 3 block 2
given
  free 2
  holders 1: a[0], cache [7 8]
  cached [7 8] at 1
  content 1: [7 8]
  size a: 1
  table a 0: 1
  text a 0: [7 8]
  taker 1: a
end
"""


def run(text: str) -> ScenarioResult:
    def no_target(config: object) -> TorchTarget:
        raise AssertionError("events need no target")

    return run_scenario(parse_scenario(text), no_target)


def test_events_run_from_the_start_of_a_chapter() -> None:
    text = "pool 3 block 2\nevent take a 1\nevent write a [7]\nevent write a [7 8]\nevent publish a 0\n"
    assert run(text).passed
    assert run(f"{text}event evict [7 8]\nexpect forbidden\nevent drop a\nevent evict [7 8]\nevent take b 1\n").passed
    wrong = run(f"{text}event take b 1\n")
    assert wrong.verdict == "violated" and wrong.last.outcome.startswith("forbidden: ")
    assert any("holders 1: a[0], cache [7 8]" in fact for fact in wrong.last.before)


def test_events_run_from_a_given_state() -> None:
    assert run(f"{HELD}event evict [7 8]\nexpect forbidden\nevent take b 2\nevent mount c [7 8]\n").passed
    assert run(f"{HELD}event hold 1 h\nevent unhold 1 h\nevent drop a\nevent evict [7 8]\n").passed


def test_a_given_state_must_be_one_that_proofs_start_from() -> None:
    result = run(HELD.replace("free 2", "free 1 2") + "event take b 2\n")
    assert result.verdict == "failed" and result.skipped == 1
    assert re.match(r"breaks (cache\.blocks\.|blocks\.)?free_iff_unheld: every usable id", result.last.outcome)


def test_other_chapters_have_other_arguments() -> None:
    blocks = "pool 3 block 1\nchapter blocks\nevent take 1 x\nevent share 1 y\nevent drop_all {x, y}\nevent take 1 z\n"
    assert run(blocks).passed
    cache = "pool 3 block 2\nchapter prefix_cache\nevent allocate 1 a[0]\nevent write 1 [7 8]\nevent publish [7 8] 1\n"
    assert run(f"{cache}event match [7 8] b[0]\nevent share 1 pin h\nevent evict [7 8]\nexpect forbidden\n").passed


def test_chains_may_be_names_that_are_told_about() -> None:
    text = """pool 2 block 2
chapter prefix_cache
given
  nothing n
  covers n n, k n, k k
  full k
  free
  holders 1: a[0]
  content 1: k
end
event publish k 1
event write 1 n
"""
    assert run(text).passed
    lesser = run(text.replace("covers n n, k n, k k", "covers n n, k k"))
    assert lesser.verdict == "failed" and "nothing_is_least" in lesser.last.outcome


@pytest.mark.parametrize(
    ("text", "line", "what", "expected"),
    [
        ("pool 3 block 2\nchapter nothing\nevent take a 1\n", 0, "unknown chapter 'nothing'", " blocks, "),
        ("pool 99 block 2\nevent take a 1\n", 0, "a pool of 99 blocks for events", "at most 64"),
        ("pool 3 block 2\nevent leap a 1\n", 2, "unknown event 'leap'", "one of take, mount"),
        ("pool 3 block 2\nevent take a\n", 2, "too few arguments of 'take'", "a number"),
        ("pool 3 block 2\nevent take a 1 2\n", 2, "2 behind 'take'", "2 arguments"),
        ("pool 3 block 2\nevent take 1 1\n", 2, "1 for 'take'", "a name (Seq)"),
        ("pool 3 block 2\nevent take a b\n", 2, "b for 'take'", "a number up to 64"),
        ("pool 3 block 2\nevent take a 1\nexpect broken luck\n", 3, "unknown statement 'luck'", "one of "),
        ("pool 3 block 2\nchapter blocks\nevent drop_all x\n", 3, "x for 'drop_all'", "a set such as"),
        ("pool 3 block 2\ngiven\nluck 1\nend\nreset\n", 5, "an operation", "one of the two"),
        ("pool 3 block 2\ngiven\nluck 1\nend\nevent take a 1\n", 3, "'luck' is no word", "one of cache"),
        ("pool 3 block 2\ngiven\nfree 1: 2\nend\nevent take a 1\n", 3, "a line for 'free'", "NAME VALUES"),
        ("pool 3 block 2\ngiven\nholders 1\nend\nevent take a 1\n", 3, "a line for 'holders'", "NAME KEY: VALUES"),
        ("pool 3 block 2\ngiven\nholders 1: b\nend\nevent take a 1\n", 3, "b for 'holders'", "a[0] or cache"),
        ("pool 3 block 2\ngiven\nsize a: 1\nsize a: 2\nend\nevent take a 1\n", 4, "the same key twice", "one line"),
    ],
)
def test_what_the_chapter_does_not_know_is_said(text: str, line: int, what: str, expected: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        run(text)
    assert caught.value.line == line
    assert what in caught.value.what and expected in caught.value.expected


# -- pools of ranks ---------------------------------------------------------------------------------------------------

ONE_RANK = """pool 4 block 2 single 3 slots 3
chapter lifecycle
event begin a 1 [1 2 3]
event take_single a 1
event take_slot a 2
event keep_none_contiguous a
event trimmed a
event grow a 1
event admit a
event write a [1 2]
event end_step a
event reserve a 1 [1 2]
event copy_started a 1
event evict_state [1 2]
expect forbidden
event copy_done a 1
event commit a 1
event publish a 0
event leave a
event leave_single a
expect forbidden
event leave_block a
event leave_slot a
event leave_single a
event left a
"""
TWO_RANKS = """pool 4 block 2 single 3 slots 3 ranks 2
chapter pool
event choose_rank a 0
event begin a 1 [1 2 3]
event take_single a 1
event choose_rank b 1
event begin b 0 [1]
event take_single b 2
event take_slot b 1
event take_slot a 2
event keep_none_contiguous a
event trimmed a
event grow a 1
event admit a
event choose_rank c 0
expect forbidden
event choose_rank c 1
"""
GIVEN_OWNERS = """pool 4 block 2 single 2 slots 4
chapter linear_state
given
  free 3
  holders 1: live a
  holders 2: committed [7 8]
  running a
  live a: 1
  at a: []
  members [7 8]
  cached [7 8] at 2
  content 1: []
  content 2: [7 8]
  clean 1, 2
end
event match a [7 8]
event evict [7 8]
expect forbidden
event restore_started a
event restore_done a
event evict [7 8]
"""


@pytest.mark.parametrize("text", [ONE_RANK, TWO_RANKS, GIVEN_OWNERS], ids=["lifecycle", "pool", "linear_state"])
def test_single_blocks_slots_and_ranks_are_numbers(text: str) -> None:
    result = run(text)
    assert result.passed, result.last


def test_a_counterexample_over_slots_and_phases_runs() -> None:
    text = Chapter(Lifecycle)
    guard = text.event("take_single").sites[2]
    careless = text.with_event("take_single", lambda site: None if site.number == guard.number else site.terms)
    group = next(g for g in groups("lifecycle", careless) if any(".take_single->" in o.id for o in g.obligations))
    refuted = [r for r in prove_group(group, Options()) if r.verdict is Verdict.REFUTED]
    assert refuted and refuted[0].counterexample is not None and refuted[0].counterexample.scenario is not None
    scenario = parse_scenario(refuted[0].counterexample.scenario)
    assert scenario.chapter == "lifecycle" and scenario.config.is_pool
    result = run(refuted[0].counterexample.scenario)
    assert result.verdict == "violated" and result.last.outcome.startswith("forbidden"), result.last


# -- writing ----------------------------------------------------------------------------------------------------------


class Careless(Machine):
    """Blocks, and an event that forgets to look."""

    free: Set[Block]
    holders: Map[Block, Set[Holder]]

    @init
    def start(self) -> None:
        self.free.clear()

    @event
    def give_back(self, block: Block) -> None:
        """A block becomes free, whoever holds it."""
        self.free.add(block)

    @invariant("a free block has no holder")
    def free_unheld(self) -> Bool:
        return forall(Block, lambda b: implies(self.free.has(b), self.holders[b].is_empty()))


@pytest.fixture
def careless(monkeypatch: pytest.MonkeyPatch) -> Chapter:
    """A chapter that is not inductive, known by the name of blocks."""
    from kvspec.model.scenario import events

    chapter = Chapter(Careless)
    monkeypatch.setattr(events, "load_chapter", lambda name: chapter)
    return chapter


def test_a_counterexample_is_written_and_runs(careless: Chapter) -> None:
    structure = Structure(
        {"Block": ["block 1", "block 2"], "Holder": ["holder 1"]}
    )
    state = {
        ("free",): frozenset({"block 2"}),
        ("holders",): {"block 1": frozenset({"holder 1"}), "block 2": frozenset()},
    }
    text = write_event_scenario(
        "blocks", careless, structure, state, [("give_back", ["block 1"])], [BrokenInvariant("free_unheld")],
        comment="give_back / free_unheld",
    )  # fmt: skip
    assert text == (
        "# give_back / free_unheld\npool 3 block 2\nchapter blocks\ngiven\n  free 2\n  holders 1: holder_1\nend\n"
        "event give_back 1\nexpect broken free_unheld\n"
    )
    result = run(text)
    assert result.passed, result.last
    assert result.lines[1].after == ["free 1, 2"]


def test_opaque_chains_are_written_with_what_is_known_of_them() -> None:
    chapter = load_chapter("sequences")
    chains = ["nothing", "chain 1"]
    covers = {(c, d): c == d or d == "nothing" for c in chains for d in chains}
    structure = Structure(
        {"Block": [0, 1, 2], "Chain": chains, "Seq": ["seq 1"], "Index": [0, 1], "Pin": ["pin 1"]},
        {
            ("cache", "blocks", "padding"): 0,
            ("cache", "blocks", "usable"): frozenset({1}),
            ("cache", "nothing"): "nothing",
            ("cache", "covers"): covers,
            ("cache", "full"): {"nothing": False, "chain 1": True},
            ("parent",): dict.fromkeys(chains, "nothing"),
            ("depth",): dict.fromkeys(chains, 0),
        },
    )
    sitting = Variant("seq_at", ("seq 1", 0))
    held = frozenset({sitting, Variant("cache_of", ("chain 1",)), Variant("pin_of", ("pin 1",))})
    state = {
        ("cache", "blocks", "holders"): {1: held},
        ("cache", "cached"): frozenset({"chain 1"}),
        ("cache", "entry"): {"chain 1": 1},
        ("cache", "content"): {1: "chain 1"},
        ("size",): {"seq 1": 1},
        ("table",): {("seq 1", 0): 1},
        ("text",): {("seq 1", 0): "chain 1"},
        ("taker",): {1: "seq 1"},
    }
    text = write_event_scenario(
        "sequences", chapter, structure, state, [("evict", ["chain 1"])], [Forbidden()]
    )
    assert "  usable 1\n" in text and "  full chain_1\n" in text and "  parent chain_1: nothing\n" in text
    assert "  holders 1: cache chain_1, pin pin_1, seq_1[0]\n" in text
    result = run(text)
    assert result.passed, result.last


def test_every_chapter_with_events_can_be_named() -> None:
    names = chapter_names()
    assert {"blocks", "prefix_cache", "sequences"} <= set(names)
    with pytest.raises(KeyError):
        load_chapter("sorts")
    for name in ("blocks", "prefix_cache", "sequences"):
        assert load_chapter(name).event_names


class Caller(Machine):
    """Uses blocks without looking: what it owes to them, and what it promises, is broken by one event."""

    blocks = use(Blocks, Holder=Pin)

    @init
    def start(self) -> None:
        """Nothing of its own."""

    @event
    def take(self, block: Block, pin: Pin) -> None:
        """A block is taken, free or not."""
        self.blocks.take(block, pin)

    @theorem("only one holder after a take", after=take)
    def alone(self, block: Block, pin: Pin) -> Bool:
        return self.blocks.holders[block].is_only(pin)

    @theorem("nothing is ever used up")
    def some_free(self) -> Bool:
        return ~self.blocks.free.is_empty()


def test_owed_requirements_and_theorems_can_be_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvspec.model.scenario import events

    monkeypatch.setattr(events, "load_chapter", lambda name: Chapter(Caller))
    begin = "pool 3 block 1\nchapter blocks\nevent take 1 p\n"
    assert run(begin).passed
    for name in ("blocks.take/pre.1", "alone"):
        assert run(f"{begin}event take 1 q\nexpect broken {name}\n").passed
    assert run(f"{begin}event take 2 q\nexpect broken some_free\n").passed
    unexpected = run(f"{begin}event take 1 q\n")
    assert unexpected.verdict == "violated" and unexpected.last.outcome == "broken: blocks.take/pre.1, alone"
    used_up = "pool 2 block 1\nchapter blocks\ngiven\n  holders 1: p\nend\n"
    assert run(used_up + "expect broken some_free\n").passed
    assert run(used_up + "event take 1 q\n").verdict == "violated"


def test_static_words_without_members_are_written() -> None:
    structure = Structure({"Block": ["padding"], "Holder": ["h"]}, {("padding",): "padding", ("usable",): frozenset()})
    state: dict[tuple[str, ...], object] = {("free",): frozenset(), ("holders",): {}}
    steps = [("take", ["padding", "h"])]
    text = write_event_scenario("blocks", load_chapter("blocks"), structure, state, steps, [Forbidden()])
    assert "\n  usable\n" in text
    assert run(text).passed
