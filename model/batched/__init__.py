"""The batched reading: every state a row of bits, every event and statement decided for whole batches of states.

`reading` says what a term means as statements about the bits of a state; `program` runs such statements on planes, 64
states to a word; `expansion` takes all steps of a batch; `seen` keeps states apart, exactly. `Explorer` goes through
all states of a chapter with them, `walk` at random into scopes that are too large for that.

torch is loaded when one of the names is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvspec.model.batched.blame import ReadingsDisagree
    from kvspec.model.batched.explorer import Explorer
    from kvspec.model.batched.layout import OutOfRange
    from kvspec.model.batched.rates import Measured, measure
    from kvspec.model.batched.walks import Walks, walk

__all__ = ["Explorer", "Measured", "OutOfRange", "ReadingsDisagree", "Walks", "measure", "walk"]

_MODULES = {
    "Explorer": "explorer",
    "Measured": "rates",
    "OutOfRange": "layout",
    "ReadingsDisagree": "blame",
    "Walks": "walks",
    "measure": "rates",
    "walk": "walks",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
