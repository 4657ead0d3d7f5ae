"""Small drivers that do something wrong: what a child process may do, planted where it answers."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from pathlib import Path

_DRIVER = """
import json, os, signal, subprocess, sys, time

def say(text):
    os.write(1, text.encode())

def answer(result):
    say(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}) + "\\n")

RESULTS = {
    "hello": {"protocol": 1, "name": "planted", "version": "2.5", "about": {"engine": "none"}},
    "make": {"capabilities": ["free_count", "free_ids", "events", "contents"], "hit_limit": "all"},
    "num_computed": 0, "block_table": [1], "read": [], "free_count": 3, "free_ids": [1, 2], "drain_events": [],
    "allocate": True,
}

open("pids", "a").write(f"{os.getpid()}\\n")
for line in iter(sys.stdin.readline, ""):
    request = json.loads(line)
    method, params = request["method"], request["params"]
    print(method, *params.values(), file=open("calls", "a"))
%s
    answer(RESULTS.get(method))
"""


def planted(folder: Path, plant: str = "pass") -> list[str]:
    """The command of a driver that runs some lines of Python at each request, before it answers; it may ``continue``.

    It keeps a list of processes in the file ``pids`` of the folder, and of calls in the file ``calls``.
    """
    script = folder / "planted.py"
    script.write_text(_DRIVER % textwrap.indent(textwrap.dedent(plant).strip(), "    "))
    return [sys.executable, "-c", f"import os; os.chdir({str(folder)!r}); exec(open('planted.py').read())"]


def pids(folder: Path) -> list[int]:
    """Processes that have been started."""
    file = folder / "pids"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def is_running(pid: int) -> bool:
    """Whether a process is there, and not only its exit code."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def all_ended(folder: Path) -> bool:
    """Whether every process has ended; one that was killed may take a moment."""
    for _ in range(200):
        if not any(map(is_running, pids(folder))):
            return True
        time.sleep(0.01)
    return False
