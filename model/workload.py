"""Request traces: the Mooncake format, the tokens behind its hash ids, and what those prefixes share.

One line of a trace is one request, a JSON object with exactly these fields:

- ``timestamp``: arrival, in milliseconds, never decreasing from line to line;
- ``input_length``, ``output_length``: tokens of the prompt (at least 1) and of the answer (0 or more);
- ``hash_ids``: one id per 512 tokens of the prompt, the last one for what remains.

Source of the format: the traces published with Mooncake (FAST'25), ``mooncake_conversation.jsonl`` and
``mooncake_synthetic.jsonl``. Everything here is computed from the ids alone; no cache implementation is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Annotated, BinaryIO, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int64]
HitLimit = Literal["all", "all_but_one"]

GRANULE = 512
"""Tokens that one hash id stands for (the last id of a request stands for what remains)."""

MAX_LINE_BYTES = 1 << 20
MAX_INPUT_TOKENS = 1 << 22
MAX_OUTPUT_TOKENS = 1 << 20
MAX_HASH_ID = (1 << 38) - 1
MAX_REQUESTS = 1 << 30
MAX_TIMESTAMP_MS = 1 << 48

_OUTPUT_BASE = (MAX_HASH_ID + 1) * GRANULE
"""Token ids below are prompt tokens, from here on output tokens; all of them are below 2**53, exact in a double."""


class WorkloadError(Exception):
    """A trace that cannot be used: where (file and line, 0 for the whole file), what was found, what was expected."""

    def __init__(self, file: str, line: int, what: str, expected: str) -> None:
        """Remember the four parts; `str` of the error is the one line to show."""
        place = f"{file}:{line}" if line else file
        super().__init__(f"{place}: {what}; expected {expected}")
        self.file, self.line, self.what, self.expected = file, line, what, expected


_Timestamp = Annotated[int, msgspec.Meta(ge=0, le=MAX_TIMESTAMP_MS)]
_InputLength = Annotated[int, msgspec.Meta(ge=1, le=MAX_INPUT_TOKENS)]
_OutputLength = Annotated[int, msgspec.Meta(ge=0, le=MAX_OUTPUT_TOKENS)]
_HashId = Annotated[int, msgspec.Meta(ge=0, le=MAX_HASH_ID)]


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One request of a trace.

    Attributes:
        timestamp: arrival in milliseconds.
        input_length: tokens of the prompt.
        output_length: tokens of the answer.
        hash_ids: one id per `GRANULE` tokens of the prompt, the last for the remainder.
    """

    timestamp: _Timestamp
    input_length: _InputLength
    output_length: _OutputLength
    hash_ids: tuple[_HashId, ...]

    @property
    def total_length(self) -> int:
        """Tokens of prompt and answer together."""
        return self.input_length + self.output_length


# -- reading and writing ----------------------------------------------------------------------------------------------

_FIELDS = "an object with timestamp, input_length, output_length and hash_ids, all integers within their limits"


def read_requests(path: str | Path, limit: int | None = None) -> Iterator[Request]:
    """Requests of a trace file, one line at a time; at most `limit` of them.

    Args:
        path: the file. Only the lines that are asked for are read.
        limit: how many requests are wanted; `None` for all.

    Raises:
        WorkloadError: while iterating, at the first line that is not what the format says, or for an empty file.
        ValueError: at once, if `limit` is below 1.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit: {limit}, expected at least 1")
    return _iterate(Path(path), MAX_REQUESTS if limit is None else limit)


def _iterate(path: Path, limit: int) -> Iterator[Request]:
    name = str(path)
    try:
        with path.open("rb") as file:
            yield from _requests_of(file, name, limit)
    except OSError as error:
        raise WorkloadError(name, 0, f"cannot be read ({error.strerror or error})", "a readable trace file") from error


def _requests_of(file: BinaryIO, name: str, limit: int) -> Iterator[Request]:
    decoder = msgspec.json.Decoder(Request)
    previous, line = 0, 0
    while line < limit and (raw := file.readline(MAX_LINE_BYTES + 1)):
        line += 1
        request = _decode(decoder, raw, name, line)
        _check(request, previous, name, line)
        previous = request.timestamp
        yield request
    if line == 0:
        raise WorkloadError(name, 0, "the file is empty", "one JSON object per line")
    if line == MAX_REQUESTS and file.read(1):
        raise WorkloadError(name, line, "more requests follow", f"at most {MAX_REQUESTS} requests")


def _decode(decoder: msgspec.json.Decoder[Request], raw: bytes, name: str, line: int) -> Request:
    if len(raw) > MAX_LINE_BYTES:
        raise WorkloadError(name, line, "the line is too long", f"at most {MAX_LINE_BYTES} bytes")
    if not raw.strip():
        raise WorkloadError(name, line, "the line is blank", _FIELDS)
    try:
        raw.decode("utf-8")
        return decoder.decode(raw)
    except UnicodeDecodeError as error:
        what = f"byte {error.start + 1} is not UTF-8"
        raise WorkloadError(name, line, what, "UTF-8 text") from error
    except msgspec.ValidationError as error:
        raise WorkloadError(name, line, f"a field is wrong ({error})", _FIELDS) from error
    except msgspec.DecodeError as error:
        what = "the line is not JSON" if raw.endswith(b"\n") else "the last line is cut off"
        raise WorkloadError(name, line, f"{what} ({error})", _FIELDS) from error


def _check(request: Request, previous: int, name: str, line: int) -> None:
    needed = -(-request.input_length // GRANULE)
    if len(request.hash_ids) != needed:
        what = f"{len(request.hash_ids)} hash_ids for input_length {request.input_length}"
        raise WorkloadError(name, line, what, f"{needed} (one per {GRANULE} tokens)")
    if request.timestamp < previous:
        what = f"timestamp {request.timestamp} after {previous}"
        raise WorkloadError(name, line, what, "timestamps that never decrease")


def write_jsonl(requests: Iterable[Request], path: str | Path, *, overwrite: bool = False) -> int:
    """Write a trace file; the number of requests written.

    Raises:
        WorkloadError: the file exists and `overwrite` is false, or it cannot be written.
    """
    encoder = msgspec.json.Encoder()
    count = 0
    try:
        with Path(path).open("wb" if overwrite else "xb") as file:
            for count, request in enumerate(requests, start=1):  # noqa: B007
                file.write(encoder.encode(request) + b"\n")
    except FileExistsError as error:
        raise WorkloadError(str(path), 0, "the file exists", "a new name, or overwriting asked for") from error
    except OSError as error:
        what = f"cannot be written ({error.strerror or error})"
        raise WorkloadError(str(path), 0, what, "a writable place") from error
    return count


# -- tokens and contents ----------------------------------------------------------------------------------------------


def prompt_tokens(request: Request) -> Tokens:
    """Tokens of the prompt: token j of id h is ``h * 512 + j``, so different ids never share a token."""
    ids = np.asarray(request.hash_ids, dtype=np.int64)
    grid = ids[:, np.newaxis] * GRANULE + np.arange(GRANULE, dtype=np.int64)
    return grid.reshape(-1)[: request.input_length]


def output_tokens(index: int, length: int) -> Tokens:
    """The first `length` output tokens of the request with number `index` in the trace.

    Each (index, position) has its own id, and none is the id of a prompt token: an answer is never a cache hit.

    Raises:
        ValueError: `index` or `length` is out of range.
    """
    if not 0 <= index < MAX_REQUESTS:
        raise ValueError(f"index: {index}, expected 0 to {MAX_REQUESTS - 1}")
    if not 0 <= length <= MAX_OUTPUT_TOKENS:
        raise ValueError(f"length: {length}, expected 0 to {MAX_OUTPUT_TOKENS}")
    start = _OUTPUT_BASE + index * MAX_OUTPUT_TOKENS
    return np.arange(start, start + length, dtype=np.int64)


def request_tokens(index: int, request: Request) -> Tokens:
    """All tokens of a request, prompt then answer."""
    return np.concatenate([prompt_tokens(request), output_tokens(index, request.output_length)])


class ChainState(NamedTuple):
    """Where a chain of tags stands: the running 64-bit sum, and how many tokens it covers."""

    total: int
    position: int


CHAIN_START = ChainState(0, 0)

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_TAG_SHIFT = np.uint64(16)


def _mix(words: npt.NDArray[np.uint64]) -> None:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014), in place; a bijection of 64-bit words."""
    words ^= words >> np.uint64(30)
    words *= _MIX_1
    words ^= words >> np.uint64(27)
    words *= _MIX_2
    words ^= words >> np.uint64(31)


def chain_tags(tokens: Tokens, state: ChainState = CHAIN_START) -> tuple[Tokens, ChainState]:
    """A tag for each token that stands for the whole prefix up to it, and the state to go on from.

    The tag of position t is the upper 48 bits of ``mix(sum over i <= t of mix(mix(token_i) + (i + 1) * golden))``
    modulo 2**64: vectorised, and O(new tokens) when it is continued. Tags lie in [0, 2**48).

    Collisions, with `mix` taken as a random function: two given different prefixes get the same tag with probability
    about 2**-48, so a cell of wrong content passes one comparison with that probability; a wrong hit of h tokens passes
    all h with 2**-(48 * h), or if the sums collide, which among n prefixes happens with at most n**2 / 2**65 (2e-5
    for n = 28 million). It is no defence against an adversary.
    """
    words = tokens.astype(np.uint64)
    if not words.size:
        return words.view(np.int64), state
    _mix(words)
    stop = state.position + words.size
    words += np.arange(state.position + 1, stop + 1, dtype=np.uint64) * _GOLDEN
    _mix(words)
    np.cumsum(words, out=words)
    words += np.uint64(state.total)
    total = int(words[-1])
    _mix(words)
    words >>= _TAG_SHIFT
    return words.view(np.int64), ChainState(total, stop)


# -- the independent count of shared prefixes -------------------------------------------------------------------------


class SharedPrefixes(msgspec.Struct, frozen=True):
    """What a cache without limits would hit: `hits[i]` tokens of request i, out of `prompt_tokens` in all."""

    hits: tuple[int, ...]
    prompt_tokens: int

    @property
    def hit_tokens(self) -> int:
        """Tokens hit, over all requests."""
        return sum(self.hits)

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens that are hits; 0 for no tokens."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


class _Node:
    """One id after one path of ids: how many of its first tokens lie in published full blocks."""

    __slots__ = ("children", "covered")

    def __init__(self) -> None:
        self.covered = 0
        self.children: dict[int, _Node] = {}


def check_block_size(block_size: int) -> None:
    """Raise ValueError unless `block_size` is at least 1 and divides 512."""
    if block_size < 1 or GRANULE % block_size:
        raise ValueError(f"block size {block_size}, expected a divisor of {GRANULE}")


def longest_hit(num_tokens: int, block_size: int, hit_limit: HitLimit) -> int:
    """The longest permitted hit for a prompt of `num_tokens` tokens: whole blocks of all, or of all but the last."""
    usable = num_tokens - 1 if hit_limit == "all_but_one" else num_tokens
    return max(usable, 0) // block_size * block_size


def shared_prefixes(
    requests: Iterable[Request], block_size: int, *, hit_limit: HitLimit, step_ms: int | None
) -> SharedPrefixes:
    """Tokens that each request must hit in a pool without limits, computed from the hash ids by a trie.

    Policy: all full blocks of a prompt are published when the step in which the request arrived ends. A step covers
    the arrivals in (k - 1) * step_ms < t <= k * step_ms, and requests of the same step do not see each other. With
    `step_ms` None every request is published before the next one arrives. Hits are whole blocks, at most all tokens
    or all but the last (`hit_limit`). A partial last id stands for the first tokens of that id. Output tokens are
    fresh ids and are never hit.

    Raises:
        ValueError: the block size does not divide 512, or `step_ms` is below 1.
    """
    check_block_size(block_size)
    if step_ms is not None and step_ms < 1:
        raise ValueError(f"step_ms: {step_ms}, expected at least 1")
    root, hits, total = _Node(), list[int](), 0
    for group in _groups(requests, step_ms):
        hits += [_hit(root, request, block_size, hit_limit) for request in group]
        for request in group:
            _publish(root, request, block_size)
            total += request.input_length
    return SharedPrefixes(tuple(hits), total)


def _groups(requests: Iterable[Request], step_ms: int | None) -> Iterator[list[Request]]:
    if step_ms is None:
        yield from ([request] for request in requests)
        return
    for _, group in groupby(requests, lambda request: -(-request.timestamp // step_ms)):
        yield list(group)


def _hit(root: _Node, request: Request, block_size: int, hit_limit: HitLimit) -> int:
    found, node = 0, root
    for hash_id in request.hash_ids:
        child = node.children.get(hash_id)
        if child is None:
            break
        node = child
        found += node.covered
        if node.covered < GRANULE:
            break
    return min(found, longest_hit(request.input_length, block_size, hit_limit))


def _publish(root: _Node, request: Request, block_size: int) -> None:
    left, node = request.input_length // block_size * block_size, root
    for hash_id in request.hash_ids:
        if left <= 0:
            break
        node = node.children.setdefault(hash_id, _Node())
        node.covered = max(node.covered, min(left, GRANULE))
        left -= GRANULE
