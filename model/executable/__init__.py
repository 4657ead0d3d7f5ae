"""The executable model: the state of a chapter, and for each operation the program of events that it is.

`Pool` stands for one manager (chapter `sequences`), `RankedPool` for a pool of ranks (chapter `pool`), `GroupedPool`
for a composite (chapter `composite`), and so on. Every free choice (which block, which victim, which rank) is the
caller's.
"""

from kvspec.model.executable.grouped import GroupedPool
from kvspec.model.executable.manager import Pool
from kvspec.model.executable.paged import PagedPool
from kvspec.model.executable.part import Part
from kvspec.model.executable.ranked import RankedPool, Way
from kvspec.model.executable.request import Request
from kvspec.model.executable.tables import Tables
from kvspec.model.executable.texts import following
from kvspec.model.executable.tiered import Copy, Prefetch, TieredPool

AnyPool = Pool | RankedPool | TieredPool | GroupedPool

__all__ = [
    "AnyPool", "Copy", "GroupedPool", "PagedPool", "Part", "Pool", "Prefetch", "RankedPool", "Request", "Tables",
    "TieredPool", "Way", "following",
]  # fmt: skip
