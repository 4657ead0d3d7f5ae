"""The scenario language: what is read is what was written, and what cannot be read is said with its place."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from faulty.twins import build
from hypothesis import given
from hypothesis import strategies as st

from kvspec.cli.targets import load_target
from kvspec.impl.target import TorchTarget
from kvspec.model import operations as ops
from kvspec.model.conformance import Capability, Context, ManagerType, MisuseError, PoolConfig
from kvspec.model.operations import Operation
from kvspec.model.pools import Pools
from kvspec.model.reference import ModelPoolTarget, ModelTarget
from kvspec.model.reference.manager import OF_MANAGERS
from kvspec.model.scenario import (
    Scenario,
    ScenarioError,
    ScenarioResult,
    format_scenario,
    format_whole,
    parse_scenario,
    read_scenario,
    run_scenario,
)
from kvspec.model.scenario import language as la
from kvspec.model.scenario.parse import OF_FORMS

DOCS = (Path(__file__).parent.parent.parent / "docs" / "scenarios.md").read_text(encoding="utf-8")
KEYWORDS = ["start", "as", "end", "given", "expect", "event", "at", "pool", "salt", "version", "no-cache", "a-1", "x.y"]
NUMBER = la.MAX_NUMBER
POOLS = Pools()

# -- writing and reading ----------------------------------------------------------------------------------------------

names = st.sampled_from(KEYWORDS) | st.text(max_size=6)
numbers = st.integers(-NUMBER, NUMBER) | st.integers(-2, 40)
counts = st.integers(0, NUMBER) | st.integers(0, 9)
runs = st.tuples(st.integers(0, 50), st.integers(1, 9)).map(lambda r: tuple(range(r[0], r[0] + r[1])))
tokens = st.lists(numbers, max_size=5).map(tuple) | runs
contexts = st.builds(
    Context,
    adapter=st.none() | names,
    adapter_version=numbers,
    salt=st.none() | names,
    images=st.lists(names, max_size=3).map(tuple),
)
operations = st.one_of(
    st.builds(ops.Start, names, tokens, contexts),
    *(st.builds(kind, names) for kind in (ops.AllocateShared, ops.Cache, ops.Deallocate, ops.Preempt, ops.Abort)),
    *(st.builds(kind, names, numbers) for kind in (ops.Allocate, ops.Write, ops.Truncate)),
    st.builds(ops.Write, names, numbers, st.lists(st.tuples(names, numbers), max_size=2).map(tuple)),
    st.builds(ops.Append, names, tokens),
    st.builds(ops.Fork, names, names),
    st.builds(ops.Evict, numbers, counts),
    *(st.builds(kind, names) for kind in (ops.Save, ops.SaveStart, ops.Restore, ops.RestoreStart)),
    *(st.builds(kind, names, st.booleans()) for kind in (ops.SaveFinish, ops.RestoreFinish)),
    st.builds(ops.Hold, names, numbers, names),
    st.builds(ops.Release, names),
    st.builds(ops.Accept, names, numbers),
    st.builds(ops.TransferFinish, numbers, st.booleans()),
    st.builds(ops.BeginPrefetch, names, tokens, contexts, counts),
    *(st.builds(kind, names, numbers) for kind in (ops.PlanPrefetch, ops.FinishPrefetch)),
    st.builds(ops.Reclaim, numbers),
    st.builds(ops.FailMappings, st.lists(st.booleans(), max_size=3).map(tuple)),
    st.sampled_from([ops.Reset(), ops.StartTransfers(), ops.Sleep(), ops.Wake(), ops.Close()]),
)
checks = st.one_of(
    st.sampled_from([la.Granted(), la.Saved(), la.Refused(), la.Error(), la.Drained()]),
    *(st.builds(kind, counts, st.none() | counts) for kind in (la.Free, la.Used, la.Keys)),
    *(st.builds(kind, counts, st.none() | counts) for kind in (la.Singles, la.Slots, la.Checkpoints)),
    *(st.builds(kind, counts, st.none() | counts) for kind in (la.HostFree, la.HostKeys, la.Transfers)),
    st.builds(la.Loading, names),
    st.builds(la.Mapped, counts),
    st.builds(la.Evicted, counts),
    *(st.builds(kind, names, counts) for kind in (la.Hit, la.Blocks, la.Computed, la.State)),
    *(st.builds(kind, names, counts, st.none() | counts) for kind in (la.Blocks, la.Released)),
    *(st.builds(kind, counts, st.none(), counts) for kind in (la.Free, la.Used)),
    st.builds(la.References, names, counts, counts, counts),
    st.builds(la.OnRank, names, st.none() | counts),
    st.builds(la.Waiting, names),
    *(st.builds(kind, names, names, counts) for kind in (la.Shared, la.Apart)),
    st.builds(la.References, names, counts, counts),
)
configs = st.builds(
    PoolConfig,
    num_blocks=st.integers(2, 1000),
    block_size=st.integers(1, 100),
    enable_prefix_cache=st.booleans(),
    sanitizer=st.booleans(),
) | st.builds(
    PoolConfig,
    num_blocks=st.integers(2, 1000),
    block_size=st.integers(1, 100),
    enable_prefix_cache=st.booleans(),
    num_ranks=st.integers(1, 9),
    num_single_blocks=st.integers(2, 99),
    num_state_slots=st.sampled_from([0, 2, 5]),
    checkpoint_interval=st.sampled_from([0, 1, 7]),
    trim=st.sampled_from(["contiguous", "deepest"]),
)
sizes = {"num_blocks": st.integers(2, 1000), "block_size": st.integers(1, 100)}
variants = st.one_of(
    st.builds(PoolConfig, **sizes, num_single_blocks=st.just(3), num_host_blocks=st.integers(2, 99)),
    st.builds(PoolConfig, **sizes, num_pages=st.integers(1, 99), page_size=st.integers(1, 99)),
    st.builds(PoolConfig, **sizes, num_threads=st.integers(1, 9)),
    st.builds(
        PoolConfig,
        **sizes,
        enable_prefix_cache=st.just(False),
        manager_types=st.lists(
            st.builds(ManagerType, **sizes, window=st.none() | st.integers(1, 99)), min_size=1, max_size=3
        ).map(tuple),
    ),
)


def suits(item: Operation | la.Check, config: PoolConfig) -> bool:
    """Whether there is such an item in a scenario with this config."""
    return all(
        config.form in forms
        for kinds, forms, _ in OF_FORMS
        if isinstance(item, kinds)
        or (ops.Save in kinds and getattr(item, "rank", None))
        or (ops.Accept in kinds and getattr(item, "group", None) is not None)
    )


last = st.lists(st.sampled_from([la.Violated("usage"), la.Violated("key", "equal_content_equal_key")]), max_size=1)


@given(operations, st.lists(operations | checks, max_size=8), last, configs | variants, st.text(max_size=20))
def test_a_scenario_of_operations_reads_back(
    first: Operation,
    more: list[Operation | la.Check],
    expects: list[la.Check],
    config: PoolConfig,
    comment: str,
) -> None:
    comment = "".join(c for c in comment if c.isprintable())
    first = first if suits(first, config) else ops.Reset()
    more = [item for item in more if suits(item, config)]
    read = parse_scenario(format_scenario([first, *more], config, expects, comment))
    assert read.items == [first, *more, *expects]
    assert read.config == config
    assert parse_scenario(format_whole(read)) == Scenario(
        "scenario", config, tuple(la.Line(n, i) for n, i in enumerate(read.items, 2))
    )


atoms = st.recursive(
    st.one_of(
        counts,
        names,
        st.builds(la.Seated, names, counts),
        st.builds(la.Tokens, tokens),
        st.just(la.Mark.COMMA),
    ),
    lambda inner: st.builds(la.Group, st.lists(inner, max_size=3).map(tuple)),
    max_leaves=6,
)
rows = st.lists(atoms, max_size=4).map(tuple)
facts = st.builds(la.Fact, names, st.none() | rows, rows)
events = st.builds(la.EventLine, names, rows)


@given(names, st.none() | st.lists(facts, max_size=3), st.lists(events, min_size=1, max_size=4))
def test_a_scenario_of_events_reads_back(
    chapter: str, given_: list[la.Fact] | None, steps: list[la.EventLine]
) -> None:
    config = PoolConfig(num_blocks=3, block_size=2)
    start = None if given_ is None else tuple(la.Line(0, f) for f in given_)
    lines = tuple(la.Line(0, s) for s in [*steps, la.Forbidden(), la.BrokenInvariant("free_iff_unheld")])
    read = parse_scenario(format_whole(Scenario("scenario", config, lines, chapter, start)))
    assert read.items == [line.item for line in lines]
    assert read.chapter == chapter
    assert (read.given is None) == (given_ is None)
    assert [line.item for line in read.given or ()] == (given_ or [])


@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_line_ends_comments_and_blank_lines_do_not_matter(end: str) -> None:
    lines = ["", "# first", "pool 3 block 2   # here", "", "\tstart a 1  2 # x", "  # y", "allocate a 2", ""]
    text = (end or "\n").join(lines) + ("" if end else "   ")
    found = parse_scenario(text)
    assert found.items == [ops.Start("a", (1, 2)), ops.Allocate("a", 2)]
    assert [line.number for line in found.lines] == [5, 7]


# -- what cannot be read ----------------------------------------------------------------------------------------------

BROKEN = [
    ("", (1, 1), "the file ends", "'pool'"),
    ("pool 1 block 4", (1, 6), "a pool of 1 blocks", "at least 2"),
    ("pool 0 block 4", (1, 6), "a pool of 0 blocks", "at least 2"),
    ("pool 4 block 0", (1, 14), "blocks of 0 tokens", "at least 1"),
    ("pool -4 block 2", (1, 6), "-4", "0 or more"),
    ("pool 9999999 block 9999", (1, 6), "token cells", "at most 16777216"),
    ("pool 4 block 2 no-cache no-cache", (1, 25), "'no-cache' twice", "once"),
    ("pool 4 block 2 single 3 ranks 2 single 3", (1, 33), "'single' twice", "once"),
    ("pool 4 block 2 single", (1, 22), "the line ends", "a number"),
    ("pool 4 block 2 single 1", (1, 16), "'single' is 1", "at least 2"),
    ("pool 4 block 2 single 3 slots 1", (1, 25), "'slots' is 1", "at least 2"),
    ("pool 4 block 2 slots 3", (1, 16), "'single N' is missing", "at least 2 with ranks, state slots or a host tier"),
    ("pool 4 block 2 threads 2 ranks 3", (1, 26), "'single N' is missing", "at least 2 with ranks"),
    ("pool 4 block 2 host 3", (1, 16), "'single N' is missing", "at least 2 with ranks"),
    ("pool 4 block 2 single 0 host 3", (1, 16), "'single' is 0", "at least 2 with ranks"),
    ("pool 4 block 2 single 3 slots 3 host 3", (1, 33), "'host' is 3", "a prefix cache and without state slots"),
    ("pool 4 block 2 page 3", (1, 16), "'pages N' is missing", "both, or none"),
    ("pool 4 block 2 pages 3", (1, 16), "'pages' is 3 pages of 0 tokens", "both, or none"),
    ("pool 4 block 2 single 3 ranks 0", (1, 25), "'ranks' is 0", "at least 1"),
    ("pool 4 block 2 single 3 slots -3", (1, 31), "-3", "0 or more"),
    ("pool 4 block 2 single 3 deepest contiguous", (1, 33), "two policies", "contiguous or deepest"),
    ("pool 4 block 2 single 99999999999", (1, 1), "a pool of 100000000007 cells", "at most 16777216"),
    ("pool 4 block 2 single 3 slots 99999 ranks 1024 interval 8", (1, 1), "a pool of 102410240", "on all ranks"),
    ("pool 2 block 1 single 2 ranks 1025", (1, 25), "'ranks' is 1025", "at most 1024"),
    ("pool 2 block 1 threads 65", (1, 16), "'threads' is 65", "at most 64"),
    ("pool 2 block 3 pages 1 page 2", (1, 16), "'pages' is 1 pages of 2 tokens", "room for the padding block, of 3"),
    ("pool 2 block 1 pages 99999999 page 99", (1, 1), "a pool of 9899999903 cells", "at most 16777216 on all ranks"),
    ("pool 4 block 2 single 3\nstart a\nexpect rank a both", (3, 15), "rank 'both'", "a number, or none"),
    ("pool 4 block 2 single 3\nevict 1 rank x", (2, 14), "found 'x'", "a number"),
    ("pool 4 block 2\nstart a\nsave a", (3, 1), "'save a' where a manager", "'single N'"),
    ("pool 4 block 2\nevict 1 rank 1", (2, 1), "'evict 1 rank 1' where", "a pool"),
    ("pool 4 block 2\naccept a 1", (2, 1), "'accept a 1' where a manager", "a composite"),
    ("pool 4 block 2\nexpect free 1 group 0", (2, 1), "'expect free 1 group 0' where", "a composite"),
    ("pool 4 block 2 single 3\nexpect released a 0", (2, 1), "'expect released a 0' where", "a composite"),
    ("pool 4 block 2 no-cache group 4 block 2\nexpect free 1 group x", (2, 21), "found 'x'", "a number"),
    ("pool 4 block 2 no-cache group 4 block 2\nexpect free 1 rank 1", (2, 1), "'expect free 1 rank 1' where", "a pool"),
    ("pool 4 block 2 no-cache group 4 block 0", (1, 25), "'block_size' of a group is 0", "at least 1"),
    ("pool 4 block 2 group 4 block 2", (1, 16), "'group' is a composite", "no prefix cache"),
    ("pool 4 block 2\nexpect slots 2", (2, 1), "'expect slots 2' where", "a pool"),
    ("pool 4 block 2 single 3\nexpect saved", (2, 1), "a check of what was done", "before it"),
    ("pool 4 block 2\nalocate a 3", (2, 1), "found 'alocate'", "an operation (abort, accept, allocate"),
    ("pool 4 block 2\nallocatea 3", (2, 1), "found 'allocatea'", "an operation"),
    ("pool 4 block 2\nallocate a x", (2, 12), "found 'x'", "a number"),
    ("pool 4 block 2\n  allocate a", (2, 13), "the line ends", "a number"),
    ("pool 4 block 2\nallocate a 3 4", (2, 14), "found '4'", "the end of the line"),
    ("pool 4 block 2\nhold a 0 h", (2, 10), "found 'h'", "'as'"),
    ("pool 4 block 2\nstart a 1 salt=", (2, 16), "the line ends", "a name"),
    ("pool 4 block 2\nstart a salt=x salt=y", (2, 16), "'salt=' twice", "once"),
    ("pool 4 block 2\nstart a salt=x 5", (2, 16), "found '5'", "'version='"),
    ("pool 4 block 2\nstart a 5..2", (2, 9), "the range 5..2 is empty", "smaller number first"),
    ("pool 4 block 2\nstart a 0..99999999999", (2, 9), "too many tokens", "at most"),
    ("pool 4 block 2\nstart a 9223372036854775808", (2, 9), "out of range", str(NUMBER)),
    (f"pool 4 block 2\nstart a {'9' * 5000}", (2, 9), "out of range", str(NUMBER)),
    ('pool 4 block 2\nstart "a', (2, 7), "found '\"'", "a name"),
    ('pool 4 block 2\nstart "\\x"', (2, 7), '"\\x"', "JSON"),
    ("pool 4 block 2\nstart a 1\nexpect violation luck", (3, 18), "unknown family 'luck'", "one of partition"),
    ("pool 4 block 2\nexpect granted", (2, 1), "before anything was", "an operation or event"),
    ("pool 4 block 2\nstart a 1\nexpect violation usage\nreset", (4, 1), "behind a violation", "the end of the file"),
    ("pool 4 block 2\nevent take a 1\nreset", (3, 1), "an operation in a scenario of events", "one of the two"),
    ("pool 4 block 2\nreset\nexpect forbidden", (3, 1), "a check of events", "a check of operations"),
    ("pool 4 block 2\nevent take a 1\nexpect free 1", (3, 1), "a check of operations", "broken or forbidden"),
    ("pool 4 block 2\ngiven\n free 2\n", (4, 1), "the file ends", "'end' or a name"),
    ("pool 4 block 2\nreset\x00", (2, 6), "control character", "printable text"),
    ("pool 4 block 2\n" + "x" * 70_000, (2, 65537), "the line is too long", "at most 65536"),
    ("pool 4 block 2\n" + "\n" * 20_000, (20_001, 1), "too many lines", "at most 20000"),
]


@pytest.mark.parametrize(("text", "place", "what", "expected"), BROKEN, ids=lambda v: repr(v)[:30])
def test_a_broken_line_is_said_with_its_place(text: str, place: tuple[int, int], what: str, expected: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(text, "file.kv")
    error = caught.value
    assert (error.line, error.column) == place
    assert what in error.what and expected in error.expected
    assert str(error).startswith(f"file.kv:{place[0]}:{place[1]}: ")


crumbs = st.sampled_from(
    [*"ab 12\n#[]{}:,\"\\=.-_\t\u00e9", "start ", "expect ", "event ", "given\n", "end\n", "..", "salt="]
)


@given(st.lists(crumbs, max_size=30).map("".join) | st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ScenarioError):
        parse_scenario("pool 4 block 2\n" + text)


def test_a_file_is_read_with_limits(tmp_path: Path) -> None:
    path = tmp_path / "large.kv"
    path.write_bytes(b"#" * (la.MAX_BYTES + 1))
    with pytest.raises(ScenarioError, match="too long"):
        read_scenario(path)
    path.write_bytes(b"pool 4 block 2\nstart \xff")
    with pytest.raises(ScenarioError, match=r"large.kv:2:7: byte 0xff, expected UTF-8"):
        read_scenario(path)
    path.write_text("pool 4 block 2\nreset\n")
    assert read_scenario(path).name == str(path)


# -- running ----------------------------------------------------------------------------------------------------------

BEGIN = "pool 6 block 4\nstart a 0..5\nallocate a 6\nwrite a 6\n"


def run(text: str, make_target: type[TorchTarget] | type[ModelTarget] = TorchTarget) -> ScenarioResult:
    return run_scenario(parse_scenario(text), make_target)


@pytest.mark.parametrize(
    ("check", "found"),
    [
        ("expect hit a 4", "found no allocate_shared"),
        ("expect refused", "found done"),
        ("expect error", "found done"),
        ("expect free 4", "found 3"),
        ("expect used 1", "found 2"),
        ("expect keys 1", "found 0"),
        ("expect blocks a 3", "found 2"),
        ("expect blocks b 3", "found nothing to look at"),
        ("expect computed a 5", "found 6"),
        ("expect references a 0 2", "found 1"),
        ("expect references a 9 1", "found nothing to look at"),
        ("expect evicted 1", "found done"),
        ("expect violation usage", "nothing was violated"),
        ("fork a b\nexpect apart a b 1", "found both have block 2"),
        ("fork a b\nexpect shared a b 2", "found a has no block 2"),
        ("start b 1\nallocate b 1\nwrite b 1\nexpect shared a b 0", "found blocks 1 and 3"),
        ("write a 1", "error: "),
        ("start b 0..99\nallocate b 100\nexpect granted", "found refused"),
    ],
)
def test_a_check_that_fails_says_what_was_found(check: str, found: str) -> None:
    result = run(f"{BEGIN}{check}\n")
    assert result.verdict == "failed"
    assert result.last.outcome.startswith(found)
    assert result.last.before and result.last.after


UNKNOWN = """expect shared a b 0: b is unknown
expect apart b a 0: b is unknown
expect apart a a 5: a has no block 5
expect blocks b 1: nothing to look at (b is unknown)
expect computed b 1: nothing to look at (b is unknown)
expect references b 0 1: nothing to look at (b is unknown)
expect references a 5 1: nothing to look at (a has no block 5)
hold b 0 as h: error: b is unknown
hold a 5 as h: error: a has no block 5
hold a 0 as g: error: g holds a block already
release h: error: h holds no block"""
"""Lines about what is not there, each with what is said of it."""


@pytest.mark.parametrize("target", ["torch", "model"])
@pytest.mark.parametrize("pool", ["", " single 4"], ids=["manager", "pool"])
@pytest.mark.parametrize("line", UNKNOWN.splitlines())
def test_what_there_is_not_is_said_by_its_name_on_every_target(line: str, pool: str, target: str) -> None:
    begin = f"pool 6 block 4{pool}\nstart a 0..5\nallocate a 6\nhold a 0 as g\nstart b 0\nabort b\n"
    text, _, words = line.partition(": ")
    result = run_scenario(parse_scenario(f"{begin}{text}\n"), load_target(target), POOLS)
    assert result.verdict == "failed" and result.last.outcome.removeprefix("found ") == words


@pytest.mark.parametrize("target", ["torch", "model"])
def test_blocks_of_two_ranks_are_never_shared(target: str) -> None:
    text = "pool 6 block 4 ranks 2 single 3\n" + "".join(f"start {seq} 0\nallocate {seq} 1\n" for seq in "ab")
    assert run_scenario(parse_scenario(f"{text}expect apart a b 0\n"), load_target(target), POOLS).passed
    for check, found in (
        ("shared a b 0", "block 1 of rank 0 and block 1 of rank 1"),
        ("free 1 rank 7", "nothing to look at (there is no rank 7)"),
    ):
        result = run_scenario(parse_scenario(f"{text}expect {check}\n"), load_target(target), POOLS)
        assert (result.verdict, result.last.outcome) == ("failed", f"found {found}")


class Shuffled(ModelPoolTarget):
    """Shows its keys and checkpoints the wrong way round."""

    def cached(self, rank: int = 0) -> dict[bytes, int]:
        return dict(reversed(super().cached(rank).items()))

    def checkpoints(self, rank: int) -> dict[bytes, int]:
        return dict(reversed(super().checkpoints(rank).items()))


class Strange(ModelTarget):
    """Shows keys that nobody knows."""

    def cached(self) -> dict[bytes, int]:
        return {b"\2": 9, b"\1": 8}


def test_a_state_is_printed_in_the_order_of_the_model() -> None:
    text = "pool 6 block 1 single 3 slots 6\nstart a 5 4 3\nallocate a 3\n"
    text += "write a 1\nsave a\n" * 3 + "cache a\nexpect keys 9\n"
    last = run_scenario(parse_scenario(text), Shuffled).last
    for word in ("cached", "checkpoint"):
        known = [line for line in last.before if word in line]
        assert len(known) == 3 and [line for line in last.after if word in line] == known
    strange = run("pool 6 block 1\nstart a 5\n", Strange).last
    assert [line for line in strange.after if "key" in line] == ["cached key 01 at 8", "cached key 02 at 9"]


def test_a_violation_passes_where_it_is_expected() -> None:
    wrong = "deallocate a\nexpect violation {}\n"
    for expected, verdict in (("usage", "passed"), ("usage/used_count", "passed"), ("usage/other", "failed")):
        assert run(BEGIN + wrong.format(expected), build("B13")).verdict == verdict
    assert run(BEGIN + wrong.format("key"), build("B13")).last.outcome.startswith("found usage/used_count")
    unexpected = run(f"{BEGIN}deallocate a\nexpect used 0\n", build("B13"))
    assert unexpected.verdict == "violated" and (unexpected.family, unexpected.rule) == ("usage", "used_count")
    assert any(line == "used: 1 block" for line in unexpected.last.after)


class Drifts(ModelTarget):
    """Shows another count of used blocks when it is looked at once more after an error."""

    wrong_calls = 0

    def allocate(self, seq: str, num_tokens: int) -> bool:
        try:
            return super().allocate(seq, num_tokens)
        except MisuseError:
            self.wrong_calls = 1
            raise

    def used_count(self) -> int:
        self.wrong_calls *= 2
        return super().used_count() + (self.wrong_calls > 2)


def test_a_violation_that_a_last_look_finds_stands_behind_what_the_call_said() -> None:
    text = "pool 4 block 2\nstart a 1..2\nallocate a 9\n"
    ends = {
        "": "violated",
        "expect error\n": "violated",
        "expect violation usage/used_count\n": "passed",
        "expect error\nexpect violation usage/used_count\n": "passed",
        "expect granted\nexpect violation usage\n": "failed",
    }
    for end, verdict in ends.items():
        assert run_scenario(parse_scenario(text + end), Drifts).verdict == verdict, end


def test_a_drain_is_judged() -> None:
    assert run(f"{BEGIN}cache a\nhold a 0 as h\nfork a b\nexpect drained\nexpect free 5\n").passed
    leaks = "start c 0..3\nallocate c 4\nexpect drained\n"
    assert run(BEGIN + leaks, build("lost_id")).verdict == "violated"
    assert run(f"{BEGIN}{leaks}expect violation partition/free_ids\n", build("lost_id")).passed


def test_a_run_ends_at_the_first_line_that_does_not_pass() -> None:
    result = run(f"{BEGIN}expect free 4\nreset\nexpect free 3\n")
    assert (len(result.lines), result.skipped) == (4, 2)


def test_what_a_target_cannot_show_is_not_observed() -> None:
    blind = OF_MANAGERS - {Capability.USED_COUNT, Capability.FREE_IDS, Capability.FREE_COUNT}
    blind -= {Capability.CACHED_KEYS, Capability.REF_COUNTS}
    for check in ("used 2", "free 3", "keys 0", "references a 0 1"):
        text = f"{BEGIN}expect {check}\n"
        result = run_scenario(parse_scenario(text), lambda config: ModelTarget(config, capabilities=blind))
        assert result.verdict == "not observed", check
        assert "in the model" in result.last.outcome
        wrong = re.sub(r"\d$", "5", text.strip())
        assert run_scenario(parse_scenario(wrong), lambda c: ModelTarget(c, capabilities=blind)).verdict == "failed"


# -- the page that describes it ---------------------------------------------------------------------------------------

EXAMPLES = re.findall(r"^```kv *(\S*)\n(.*?)^```$", DOCS, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(("twin", "text"), EXAMPLES)
def test_the_examples_of_the_page_run(twin: str, text: str) -> None:
    result = run(text, build(twin) if twin else load_target("model" if "engine" in text else "torch"))
    assert result.passed, result.last


def test_the_page_speaks_of_every_word() -> None:
    assert len(EXAMPLES) >= 5
    words = [str(kind.__struct_config__.tag) for kind in (*Operation.__subclasses__(), *la.Check.__subclasses__())]
    for word in words:
        word = word.replace("_finish", "_done")
        assert re.search(rf"`(expect )?{word}\b", DOCS), word
    (python,) = re.findall(r"^```python\n(.*?)^```$", DOCS, flags=re.MULTILINE | re.DOTALL)
    exec(compile(python, "docs/scenarios.md", "exec"), {})
