"""The scopes that are explored of each chapter, from the smallest on.

They are large enough for every event, premise and witness to be met, and reach at least as far as the smallest
scope in which each invariant is violated by some mistake (`bounds`); the manifest says which that is. An empty text is
the chapter's default scope.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

SCOPES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "keys": ("seqs=1", "", "seqs=1,len=2,tokens=1.2", "seqs=4"),
        "blocks": ("blocks=2,holders=1", "blocks=2,holders=2", ""),
        "handles": ("blocks=2,handles=1", "blocks=2,handles=2", ""),
        "free_list": ("blocks=2,handles=1", "blocks=3,handles=2", ""),
        "usage": ("blocks=2,holders=1", "blocks=2,holders=2", "blocks=3,holders=2", "blocks=4,holders=3,keys=2"),
        "prefix_cache": ("blocks=2,tokens=1", "blocks=2,tokens=1/2", "blocks=2,block_size=2,tokens=1.2", ""),
        "recency": ("items=2", "", "items=4"),
        "lru": ("blocks=2,tokens=1", "blocks=3,tokens=1/2", "blocks=4,tokens=1/2/3"),
        "sequences": (
            "blocks=2,seqs=1,tokens=1",
            "blocks=2,seqs=2,tokens=1",
            "blocks=3,seqs=1,len=2,tokens=1.2",
            "blocks=2,seqs=2,block_size=2,tokens=1.2",
            "",
        ),
        "single_block": ("units=3,owners=2", ""),
        "linear_state": ("slots=3,seqs=1,tokens=1", "slots=4,seqs=1,tokens=1.2", "slots=4,tokens=1.2", ""),
        "trim": ("len=1,stride=1", "len=2,stride=1", "len=3,stride=2", ""),
        "admission": ("blocks=2,holders=1", "blocks=3,requests=3"),
        "lifecycle": (
            "slots=1,seqs=2",
            "slots=1,pins=1,blocks=3",
            "slots=3,len=2,tokens=1.2,stride=2",
            "slots=3,len=2,tokens=1.2",
            "slots=3,seqs=2,units=3",
        ),
        "pool": (
            "ranks=1,slots=1,pins=1,blocks=3",
            "ranks=1,slots=3,len=2,tokens=1.2",
            "slots=2,pins=1",
            "slots=1,seqs=2",
        ),
        "sliding_window": ("blocks=2,seqs=1,len=1", "seqs=1,window=3", "seqs=1,block_size=2,window=2", ""),
        "composite": ("groups=1,len=1", "len=1", ""),
        "xtensor": (
            "physical=3,regions=1,holders=2",
            "",
            "managers=2,block_bytes=2",
            "managers=2,regions=1,page_bytes=3,physical=4",
        ),
        "prefetch": ("blocks=2,len=1,tokens=1,pins=0", "blocks=3,len=1,tokens=1", ""),
        "concurrent": ("threads=1", "", "blocks=3"),
        "hierarchy": ("blocks=2,pins=1", "blocks=2,seqs=2,pins=1", "blocks=3,len=2,pins=0", ""),
        "engine": (
            "blocks=2,seqs=1",
            "blocks=2,seqs=1,tokens=1/2",
            "blocks=2,block_size=2,tokens=1.2/3",
            "",
        ),
    }
)
"""What ``kvspec check`` explores."""

DEEP: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "keys": ("seqs=4,len=2,digests=2,tokens=1.2",),
        "blocks": ("blocks=6,holders=4",),
        "handles": ("blocks=6,handles=5",),
        "free_list": ("blocks=5,handles=4",),
        "usage": ("blocks=5,holders=3,keys=3",),
        "prefix_cache": ("blocks=4,tokens=1/2/3",),
        "sequences": ("blocks=4,seqs=2", "blocks=3,seqs=2,len=2,tokens=1.2"),
        "recency": ("items=5",),
        "single_block": ("units=6,owners=4",),
        "linear_state": ("slots=6,tokens=1.2", "slots=5,seqs=3,tokens=1.2"),
        "trim": ("len=6,stride=2",),
        "concurrent": ("blocks=3,handles=3",),
        "engine": ("blocks=3,tokens=1/2,pins=0", "blocks=2,seqs=3,block_size=2,tokens=1.2/3"),
    }
)
"""What ``kvspec check --deep`` explores beside them."""
