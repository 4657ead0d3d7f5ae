"""Programs of three threads with three operations each, in which handles of the same blocks come and go."""

from typing import Final

PROGRAMS: Final = {
    "one block, three holders": """blocks 3
setup: a = allocate 1; b = copy a; c = copy a
thread: d = copy a; release d; finish a
thread: e = copy b; release b; release e
thread: f = allocate 1; release c; finish f""",
    "the cache is the last holder": """blocks 3
setup: a = allocate 1; publish a 7; b = copy a
thread: finish a; c = allocate 2; finish c
thread: d = match 7 1; release b; finish d
thread: evict 1; count; e = match 7 1""",
    "two publish one key": """blocks 4
setup: a = allocate 1; b = allocate 1
thread: publish a 7; finish a; c = match 7 1
thread: publish b 7; finish b; d = allocate 1
thread: e = match 7 1; evict 1; finish e""",
    "room for one": """blocks 4
setup: z = allocate 1; publish z 7; finish z
thread: a = allocate 2; b = copy a; finish a
thread: c = allocate 2; finish c; d = allocate 1
thread: e = match 7 1; f = share e; finish e""",
    "one handle, three threads": """blocks 3
setup: a = allocate 1; b = copy a
thread: release b; c = copy b; finish c
thread: d = copy b; release b; release d
thread: release b; finish a; e = allocate 2""",
    "chains of two": """blocks 5
setup: a = allocate 2; publish a 7; b = share a
thread: finish a; c = match 7 2; finish c
thread: finish b; evict 1; d = allocate 2
thread: e = match 7 2; f = copy e; release f""",
}
"""By what happens in them."""
