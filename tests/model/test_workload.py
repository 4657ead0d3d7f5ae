"""The trace format, the tokens and tags behind it, the built-in workload, and the independent count."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvspec.model.generate_workload import Shape, generate_requests
from kvspec.model.workload import (
    GRANULE,
    MAX_HASH_ID,
    MAX_LINE_BYTES,
    MAX_OUTPUT_TOKENS,
    MAX_REQUESTS,
    HitLimit,
    Request,
    WorkloadError,
    chain_tags,
    longest_hit,
    output_tokens,
    prompt_tokens,
    read_requests,
    request_tokens,
    shared_prefixes,
    write_jsonl,
)

TRACE = Path(__file__).resolve().parents[3] / "shared" / "traces" / "mooncake_conversation.jsonl"
GOOD = b'{"timestamp": 5, "input_length": 513, "output_length": 2, "hash_ids": [0, 1]}\n'


def line(**changes: object) -> bytes:
    """A good line with some fields changed."""
    return msgspec.json.encode({**msgspec.json.decode(GOOD), **changes}) + b"\n"


def without(field: str) -> bytes:
    """A good line that lacks a field."""
    return msgspec.json.encode({k: v for k, v in msgspec.json.decode(GOOD).items() if k != field}) + b"\n"


BAD_LINES = {
    "not JSON": (b"{timestamp: 5}\n", "not JSON"),
    "cut off": (GOOD[:40], "cut off"),
    "cut off within a word": (GOOD[:-3], "cut off"),
    "blank": (b"  \n", "blank"),
    "not UTF-8": (GOOD.replace(b"timestamp", b"time\xffstamp"), "not UTF-8"),
    "too long": (b'{"timestamp": ' + b" " * MAX_LINE_BYTES + b"5}\n", "too long"),
    "a list": (b"[1, 2]\n", "field is wrong"),
    "two objects": (GOOD[:-1] + GOOD, "not JSON"),
    "unknown field": (line(model="x"), "unknown field `model`"),
    "missing field": (without("output_length"), "output_length"),
    "text for a number": (line(timestamp="5"), "$.timestamp"),
    "fraction": (line(input_length=513.5), "$.input_length"),
    "true for a number": (line(output_length=True), "$.output_length"),
    "null": (line(hash_ids=None), "$.hash_ids"),
    "negative timestamp": (line(timestamp=-1), "$.timestamp"),
    "no prompt": (line(input_length=0, hash_ids=[]), "$.input_length"),
    "negative output": (line(output_length=-2), "$.output_length"),
    "negative id": (line(hash_ids=[0, -1]), "$.hash_ids"),
    "id too large": (line(hash_ids=[0, MAX_HASH_ID + 1]), "$.hash_ids"),
    "number beyond 64 bits": (line(input_length=int("9" * 30)), "$.input_length"),
    "too few ids": (line(hash_ids=[0]), "1 hash_ids for input_length 513; expected 2"),
    "too many ids": (line(hash_ids=[0, 1, 2]), "3 hash_ids"),
    "time runs back": (line(timestamp=4), "timestamp 4 after 5"),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_a_bad_line_is_named_with_file_and_number(tmp_path: Path, name: str) -> None:
    bad, words = BAD_LINES[name]
    path = tmp_path / "trace.jsonl"
    path.write_bytes(GOOD + bad)
    reader = read_requests(path)
    assert next(reader).hash_ids == (0, 1)
    with pytest.raises(WorkloadError) as caught:
        next(reader)
    assert (caught.value.file, caught.value.line) == (str(path), 2)
    assert words in str(caught.value) and "expected" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    for path, words in ((empty, "empty"), (tmp_path / "absent.jsonl", "No such file"), (tmp_path, "directory")):
        with pytest.raises(WorkloadError, match=words) as caught:
            list(read_requests(path))
        assert caught.value.line == 0


def test_the_limit_is_lazy_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(GOOD + b"broken\n")
    assert len(list(read_requests(path, limit=1))) == 1
    for limit in (0, -1):
        with pytest.raises(ValueError, match="limit"):
            read_requests(path, limit=limit)


def test_a_complete_last_line_needs_no_newline(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(GOOD + GOOD.rstrip())
    assert len(list(read_requests(path))) == 2


def test_written_requests_are_read_back_and_nothing_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "made.jsonl"
    made = list(generate_requests(50, seed=3))
    assert write_jsonl(made, path) == 50
    assert list(read_requests(path)) == made
    with pytest.raises(WorkloadError, match="exists"):
        write_jsonl(made[:1], path)
    assert len(list(read_requests(path))) == 50
    assert write_jsonl(made[:1], path, overwrite=True) == 1
    with pytest.raises(WorkloadError, match="cannot be written"):
        write_jsonl(made, tmp_path / "absent" / "x.jsonl")


# -- tokens -----------------------------------------------------------------------------------------------------------

ids = st.integers(0, MAX_HASH_ID)


@st.composite
def requests(draw: st.DrawFn, alphabet: st.SearchStrategy[int] = ids) -> Request:
    """One request with any ids and any remainder."""
    hash_ids = tuple(draw(st.lists(alphabet, min_size=1, max_size=4)))
    rest = draw(st.integers(1, GRANULE))
    length = (len(hash_ids) - 1) * GRANULE + rest
    return Request(draw(st.integers(0, 200)), length, draw(st.integers(0, 5)), hash_ids)


@given(requests())
def test_prompt_tokens_name_their_id_and_place(request: Request) -> None:
    tokens = prompt_tokens(request)
    assert tokens.dtype == np.int64 and len(tokens) == request.input_length
    where = np.arange(len(tokens))
    assert (tokens // GRANULE == np.asarray(request.hash_ids)[where // GRANULE]).all()
    assert (tokens % GRANULE == where % GRANULE).all()


@given(ids, ids, st.integers(1, GRANULE), st.integers(1, GRANULE))
def test_tokens_are_shared_exactly_as_ids_are(one: int, other: int, a: int, b: int) -> None:
    left, right = prompt_tokens(Request(0, a, 0, (one,))), prompt_tokens(Request(0, b, 0, (other,)))
    common = set(left.tolist()) & set(right.tolist())
    assert len(common) == (min(a, b) if one == other else 0)


@given(st.integers(0, MAX_REQUESTS - 2), st.integers(0, 50), st.integers(0, 50))
def test_output_tokens_are_fresh(index: int, a: int, b: int) -> None:
    one, next_one = output_tokens(index, a), output_tokens(index + 1, b)
    assert len(set(one.tolist()) | set(next_one.tolist())) == a + b
    assert (one > prompt_tokens(Request(0, GRANULE, 0, (MAX_HASH_ID,)))[-1]).all()


def test_the_largest_ids_are_exact_in_a_double() -> None:
    last = int(output_tokens(MAX_REQUESTS - 1, MAX_OUTPUT_TOKENS)[-1])
    assert last < 2**53
    for index, length in ((-1, 0), (MAX_REQUESTS, 0), (0, -1), (0, MAX_OUTPUT_TOKENS + 1)):
        with pytest.raises(ValueError, match="expected"):
            output_tokens(index, length)


# -- tags -------------------------------------------------------------------------------------------------------------

token_lists = st.lists(st.integers(0, 2**53), max_size=40)


def array(tokens: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Tokens as the functions want them."""
    return np.asarray(tokens, dtype=np.int64)


@given(token_lists, st.integers(0, 40))
def test_tags_continue_where_they_stopped(tokens: list[int], cut: int) -> None:
    whole, end = chain_tags(array(tokens))
    first, state = chain_tags(array(tokens[:cut]))
    second, state = chain_tags(array(tokens[cut:]), state)
    assert np.concatenate([first, second]).tolist() == whole.tolist()
    assert state == end and end.position == len(tokens)
    assert ((whole >= 0) & (whole < 2**48)).all() and whole.dtype == np.int64


@given(token_lists, token_lists)
def test_tags_differ_exactly_from_the_first_different_token(one: list[int], other: list[int]) -> None:
    equal = chain_tags(array(one))[0][: len(other)] == chain_tags(array(other))[0][: len(one)]
    same = [one[: i + 1] == other[: i + 1] for i in range(min(len(one), len(other)))]
    assert equal.tolist() == same


@given(st.lists(st.integers(0, 9), min_size=2, max_size=20))
def test_tags_see_the_order(tokens: list[int]) -> None:
    mixed = list(reversed(tokens))
    assert (chain_tags(array(tokens))[0][-1] == chain_tags(array(mixed))[0][-1]) == (tokens == mixed)


def test_tags_do_not_change_the_tokens_and_stay_as_they_are() -> None:
    tokens = array([7, 8, 9])
    tags, _ = chain_tags(tokens)
    assert tokens.tolist() == [7, 8, 9]
    assert tags.tolist() == [python_tag([7, 8, 9][: i + 1]) for i in range(3)]


def python_tag(tokens: list[int]) -> int:
    """The documented formula in plain integers."""

    def mix(word: int) -> int:
        word ^= word >> 30
        word = word * 0xBF58476D1CE4E5B9 % 2**64
        word ^= word >> 27
        word = word * 0x94D049BB133111EB % 2**64
        return word ^ word >> 31

    total = sum(mix((mix(t) + (i + 1) * 0x9E3779B97F4A7C15) % 2**64) for i, t in enumerate(tokens))
    return mix(total % 2**64) >> 16


# -- the built-in workload --------------------------------------------------------------------------------------------


def digest(made: list[Request]) -> str:
    """A short name for a list of requests."""
    return hashlib.sha256(msgspec.json.encode(made)).hexdigest()[:16]


def test_the_generator_is_deterministic() -> None:
    first = list(generate_requests(300, seed=1))
    assert digest(first) == digest(list(generate_requests(300, seed=1)))
    assert first[:100] == list(generate_requests(100, seed=1))
    assert digest(first) != digest(list(generate_requests(300, seed=2)))


@pytest.mark.parametrize("seed", range(4))
def test_the_generator_has_the_shape_of_a_chat_service(tmp_path: Path, seed: int) -> None:
    made = list(generate_requests(600, seed=seed))
    write_jsonl(made, tmp_path / "made.jsonl")
    assert list(read_requests(tmp_path / "made.jsonl")) == made
    used = [i for request in made for i in dict.fromkeys(request.hash_ids)]
    assert len(used) > 2 * len(set(used)), "prompts share ids"
    assert 1 <= sum(request.input_length >= 16_000 for request in made) <= 100, "a few are very long"
    assert sum(len(request.hash_ids) == 1 for request in made) < len(made)
    gaps = np.diff([request.timestamp for request in made])
    assert gaps.min() >= 0 and len(set(gaps.tolist())) > 50
    extended = sum(extends(a, b) for a, b in pairwise(made))
    hits = shared_prefixes(made, 16, hit_limit="all_but_one", step_ms=30)
    assert 0.4 < hits.hit_rate < 0.95 and extended < len(made)
    assert any(a.hash_ids == b.hash_ids for i, a in enumerate(made) for b in made[:i]), "some are sent twice"


def extends(first: Request, second: Request) -> bool:
    """Whether the second prompt begins with all full ids of the first."""
    kept = first.input_length // GRANULE
    return second.hash_ids[:kept] == first.hash_ids[:kept]


def test_the_generator_refuses_impossible_shapes() -> None:
    with pytest.raises(ValueError, match="number"):
        generate_requests(0)
    for bounds in ((0, 5), (9, 8)):
        with pytest.raises(ValueError, match="message_tokens"):
            generate_requests(1, shape=Shape(message_tokens=bounds))
    assert len(list(generate_requests(5, shape=Shape(system_prompts=0)))) == 5


# -- the independent count --------------------------------------------------------------------------------------------


def naive_hits(made: list[Request], block_size: int, hit_limit: HitLimit, step_ms: int | None) -> list[int]:
    """The same count with a set of token prefixes, token by token."""
    published: set[tuple[int, ...]] = set()
    waiting: list[tuple[int, ...]] = []
    hits, step = [], -1
    for index, request in enumerate(made):
        now = index if step_ms is None else -(-request.timestamp // step_ms)
        if now != step:
            published.update(waiting)
            waiting, step = [], now
        prompt = tuple(request_tokens(index, request)[: request.input_length].tolist())
        ends = range(block_size, len(prompt) + 1, block_size)
        usable = len(prompt) - (hit_limit == "all_but_one")
        found = 0
        while found + block_size <= usable and prompt[: found + block_size] in published:
            found += block_size
        hits.append(found)
        waiting += [prompt[:end] for end in ends]
    return hits


small_workloads = st.lists(requests(st.integers(0, 2)), max_size=6).map(lambda r: sorted(r, key=lambda q: q.timestamp))


@given(
    small_workloads,
    st.sampled_from([64, 128, 512]),
    st.sampled_from(["all", "all_but_one"]),
    st.sampled_from([None, 1, 50]),
)
def test_the_count_agrees_with_a_naive_one(
    made: list[Request], block_size: int, hit_limit: HitLimit, step_ms: int | None
) -> None:
    count = shared_prefixes(made, block_size, hit_limit=hit_limit, step_ms=step_ms)
    assert list(count.hits) == naive_hits(made, block_size, hit_limit, step_ms)
    assert count.prompt_tokens == sum(request.input_length for request in made)


def test_a_partial_last_id_shares_its_full_blocks() -> None:
    short, long = Request(0, 512 + 100, 0, (4, 5)), Request(1, 1024, 0, (4, 5))
    for order, expected in (((short, long), 512 + 96), ((long, short), 512 + 96)):
        count = shared_prefixes(order, 16, hit_limit="all_but_one", step_ms=None)
        assert count.hits == (0, expected)
    same_step = shared_prefixes([short, long], 16, hit_limit="all", step_ms=30)
    assert same_step.hits == (0, 608), "0 ms is the end of the step before"
    assert shared_prefixes([long, long], 16, hit_limit="all", step_ms=None).hits == (0, 1024)
    assert shared_prefixes([long, long], 16, hit_limit="all_but_one", step_ms=None).hits == (0, 1008)


def test_the_count_refuses_bad_sizes() -> None:
    for block_size in (0, -1, 3, 1024):
        with pytest.raises(ValueError, match="block size"):
            shared_prefixes([], block_size, hit_limit="all", step_ms=None)
    with pytest.raises(ValueError, match="step_ms"):
        shared_prefixes([], 16, hit_limit="all", step_ms=0)
    assert shared_prefixes([], 16, hit_limit="all", step_ms=None).hit_rate == 0
    assert longest_hit(0, 16, "all_but_one") == 0


@pytest.mark.needs_file(TRACE)
def test_the_real_trace_is_read_and_counted() -> None:
    made = list(read_requests(TRACE, limit=2000))
    assert sum(request.input_length for request in made) == 27_441_774
    count = shared_prefixes(made, 512, hit_limit="all", step_ms=None)
    assert list(count.hits) == hits_by_sets(made)


def hits_by_sets(made: list[Request]) -> list[int]:
    """Whole ids only: the longest prefix of full ids that an earlier prompt had, by a set of prefixes of ids."""
    seen: set[int] = set()
    hits = []
    for request in made:
        chain, prefixes = 0, []
        for hash_id in request.hash_ids[: request.input_length // GRANULE]:
            chain = hash((chain, hash_id))
            prefixes.append(chain)
        known = [chain in seen for chain in prefixes] + [False]
        hits.append(known.index(False) * GRANULE)
        seen.update(prefixes)
    return hits
