"""The batched reading: every state a row of bits, every event and statement decided for whole batches of states.

`reading` says what a term means as statements about the bits of a state; `program` runs such statements on planes, 64
states to a word; `expansion` takes all steps of a batch; `seen` keeps states apart, exactly. `Explorer` goes through
all states of a chapter with them, `walk` at random into scopes that are too large for that.
"""

from kvspec.model.batched.blame import ReadingsDisagree
from kvspec.model.batched.explorer import Explorer
from kvspec.model.batched.layout import OutOfRange
from kvspec.model.batched.walks import Walks, walk

__all__ = ["Explorer", "OutOfRange", "ReadingsDisagree", "Walks", "walk"]
