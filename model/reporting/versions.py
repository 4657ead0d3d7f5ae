"""What a result was made with."""

from __future__ import annotations

import platform
from importlib import metadata


def versions() -> dict[str, str]:
    """Of kvspec and Python; the version of kvspec has its only source in ``pyproject.toml``."""
    return {"kvspec": metadata.version("kvspec"), "Python": platform.python_version()}
