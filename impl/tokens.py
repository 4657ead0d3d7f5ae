"""Token ids: one representation (``array('q')``) for all parts of the implementation, checked where they come in."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable

import numpy as np

from kvspec.impl.errors import InvalidTokensError

TOKEN_BYTES = 8
"""Bytes of one token in a hash."""

_EXPECTED = "integers in [0, 2**63)"
_SHORT = 16


def as_tokens(token_ids: Iterable[int]) -> array[int]:
    """Token ids (list, tuple, numpy array, ...) as a new ``array('q')``.

    Raises:
        InvalidTokensError: an id is negative, no integer, or does not fit in 63 bits.
    """
    if isinstance(token_ids, np.ndarray):
        tokens = _from_numpy(token_ids)
    elif isinstance(token_ids, array) and token_ids.typecode == "q":
        tokens = token_ids[:]
    else:
        try:
            tokens = array("q", token_ids)
        except (TypeError, OverflowError) as error:
            raise InvalidTokensError("as_tokens", str(error), _EXPECTED) from error
    if tokens:
        # The builtin is quicker for a decode step, numpy for a prompt.
        lowest = min(tokens) if len(tokens) < _SHORT else int(np.frombuffer(tokens, dtype=np.int64).min())
        if lowest < 0:
            raise InvalidTokensError("as_tokens", f"token id {lowest}", _EXPECTED)
    return tokens


def _from_numpy(token_ids: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> array[int]:
    """Tokens of a one-dimensional integer array of any width."""
    if token_ids.ndim != 1 or token_ids.dtype.kind not in "iu":
        what = f"an array of shape {token_ids.shape} and dtype {token_ids.dtype}"
        raise InvalidTokensError("as_tokens", what, f"one dimension of {_EXPECTED}")
    if token_ids.dtype == np.uint64 and token_ids.size and int(token_ids.max()) >= 2**63:
        raise InvalidTokensError("as_tokens", f"token id {int(token_ids.max())}", _EXPECTED)
    tokens = array("q")
    tokens.frombytes(token_ids.astype(np.int64, copy=False).tobytes())
    return tokens


def token_bytes(tokens: array[int]) -> bytes:
    """The bytes that are hashed: 8 per token, little-endian on every host, so that keys agree between hosts."""
    if sys.byteorder == "big":
        tokens = tokens[:]
        tokens.byteswap()
    return tokens.tobytes()
