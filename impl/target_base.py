"""What targets on torch buffers share: sequences and outside holders by name, and errors of the protocol."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from functools import wraps
from typing import Concatenate, Literal, ParamSpec, TypeVar

from kvspec.impl.block import Block
from kvspec.impl.buffers import KVBuffers
from kvspec.impl.errors import InvalidRangeError, KVCacheError, UnknownSequenceError
from kvspec.impl.paging import window
from kvspec.impl.prefix_cache import encode_context
from kvspec.impl.sequence import Sequence
from kvspec.impl.tokens import as_tokens
from kvspec.model.conformance import Context, Form, MisuseError, PoolConfig, Tags

_T = TypeVar("_T", bound="BaseTarget")
_P = ParamSpec("_P")
_R = TypeVar("_R")


def operation(method: Callable[Concatenate[_T, _P], _R]) -> Callable[Concatenate[_T, _P], _R]:
    """Refuse after `close`, and turn the implementation's errors into those of the protocol."""

    @wraps(method)
    def call(self: _T, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        if self.closed_:
            raise MisuseError(f"{self._where(method.__name__)}: the target is closed; expected a call before close")
        try:
            return method(self, *args, **kwargs)
        except KVCacheError as error:
            raise MisuseError(str(error)) from error

    return call


def encoded(context: Context) -> bytes:
    """A context as its keys need it."""
    return encode_context(context.adapter, context.adapter_version, context.salt, context.images)


class BaseTarget(ABC):
    """Sequences by name, over K and V in torch tensors.

    Args:
        config: sizes and options.
    Raises:
        InvalidRangeError: the config is that of another form.
    """

    hit_limit: Literal["all", "all_but_one"] = "all_but_one"
    name_: str
    """What errors call the class."""
    form_: Form
    """What it is."""

    def __init__(self, config: PoolConfig) -> None:
        if config.form is not self.form_:
            raise InvalidRangeError(self.name_, f"a config of {config.form.words}", f"one of {self.form_.words}")
        self.config = config
        self.closed_ = False
        self._block_size = config.block_size
        self._sequences: dict[str, Sequence] = {}
        self._holds: dict[int, Block] = {}
        self._next_hold = 1

    # -- operations --------------------------------------------------------------------------------------------------
    @operation
    def start(self, seq: str, tokens: Iterable[int], context: Context) -> None:
        """Create a sequence with its first tokens. Error if the name is in use or a token is negative."""
        self._check_new(seq, "start")
        self._sequences[seq] = Sequence(as_tokens(tokens), self._block_size, encoded(context))

    @operation
    def append(self, seq: str, tokens: Iterable[int]) -> None:
        """More known tokens. Error if one is negative."""
        self._get(seq, "append").tokens_.extend(as_tokens(tokens))

    @operation
    def read(self, seq: str, start: int, stop: int) -> Tags:
        """Contents of the computed tokens [start, stop). Error if the range is not computed."""
        sequence = self._get(seq, "read")
        if not 0 <= start <= stop <= sequence.computed_:
            expected = f"a range within the {sequence.computed_} computed tokens of {seq!r}"
            raise InvalidRangeError(self._where("read"), f"[{start}, {stop})", expected)
        table, first = window(sequence.kv_state_.ids_, start, stop, self._block_size)
        return self._settled(sequence).read_tags(table, first, first + stop - start)

    @operation
    def release(self, handle: int) -> None:
        """Give the handle of an outside holder back. Error if it is unknown or was given back before."""
        block = self._holds.pop(handle, None)
        if block is None:
            raise UnknownSequenceError(self._where("release"), f"handle {handle}", "a handle of hold, once")
        block.release()

    # -- observations ------------------------------------------------------------------------------------------------
    @operation
    def block_table(self, seq: str) -> Items[int]:
        """Physical ids of the table, logical order; a copy, as an array, since a judge compares long tables often."""
        return self._get(seq, "block_table").kv_state_.ids_[:]

    @operation
    def num_computed(self, seq: str) -> int:
        """Computed tokens of the sequence."""
        return self._get(seq, "num_computed").computed_

    # -- parts -------------------------------------------------------------------------------------------------------
    @abstractmethod
    def _settled(self, sequence: Sequence) -> KVBuffers:
        """The buffers of the sequence's blocks, after all that has to be done before they are accessed."""

    def _where(self, method: str) -> str:
        return f"{self.name_}.{method}"

    def _get(self, seq: str, where: str) -> Sequence:
        sequence = self._sequences.get(seq)
        if sequence is None:
            raise UnknownSequenceError(self._where(where), f"no sequence {seq!r}", "one that was started")
        return sequence

    def _check_new(self, seq: str, where: str) -> None:
        if seq in self._sequences:
            raise UnknownSequenceError(self._where(where), f"sequence {seq!r} exists", "a new name")

    def _keep(self, block: Block) -> int:
        """Enter an outside holder's handle; its number."""
        handle = self._next_hold
        self._holds[handle] = block
        self._next_hold += 1
        return handle
