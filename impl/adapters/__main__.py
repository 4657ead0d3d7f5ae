"""``python -m kvspec.impl.adapters TARGET``: speaks for a manager of another project.

It runs in the environment of peers. ``--misuse`` leaves out the rules of use that an adapter keeps to. ``--patch
FILE.py:FUNCTION`` calls a function, which may change the package before anything of it is made: so faults are planted.
"""

from __future__ import annotations

import argparse
import importlib.util
import warnings
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from kvspec.impl.adapters.environment import TARGETS, module
from kvspec.model.remote.server import serve, take_streams


def main() -> None:
    """Serve a target until nobody asks any more."""
    parser = argparse.ArgumentParser(prog="python -m kvspec.impl.adapters", allow_abbrev=False)
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--misuse", action="store_true", help="leave out the rules of use")
    parser.add_argument("--patch", metavar="FILE.py:FUNCTION", help="call this before anything is made")
    given = parser.parse_args()
    streams = take_streams()
    warnings.simplefilter("ignore")  # what packages say about a machine without an accelerator
    adapter = import_module(module(given.target))
    if given.misuse:
        adapter.misuse()
    if given.patch is not None:
        _patch(given.patch)
    version = metadata.version(adapter.PACKAGE)
    serve(adapter.make, name=given.target, version=version, about=_about(adapter, given), streams=streams)


def _about(adapter: Any, given: argparse.Namespace) -> dict[str, str]:
    """What a report should say beside the version."""
    found = {"package": adapter.PACKAGE}
    if metadata.version(adapter.PACKAGE) != adapter.VERSION:
        found["adapter for"] = adapter.VERSION
    if given.misuse:
        found["rules of use"] = "left out"
    if given.patch is not None:
        found["patch"] = given.patch
    return found


def _patch(words: str) -> None:
    file, _, function = words.rpartition(":")
    spec = importlib.util.spec_from_file_location("patches", file)
    if spec is None or spec.loader is None or not Path(file).is_file():
        raise SystemExit(f"--patch: '{words}', expected FILE.py:FUNCTION")
    patches = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(patches)
    if not callable(patch := getattr(patches, function, None)):
        raise SystemExit(f"--patch: '{words}', expected a function of {file}")
    patch()


if __name__ == "__main__":
    main()
