"""``python -m kvspec.model.remote package.module:Class``: a driver for targets of a class in this environment."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from kvspec.model.remote.server import serve, take_streams


def main(arguments: list[str]) -> int:
    """Serve what is named; a module in the current folder is found, too."""
    if len(arguments) != 1 or not all(arguments[0].partition(":")):
        print("usage: python -m kvspec.model.remote package.module:Class", file=sys.stderr)
        return 2
    streams = take_streams()
    module, _, attribute = arguments[0].partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    found: Any = import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    serve(found, name=arguments[0], streams=streams)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
