"""The plugin of pytest: options for `kvspec.model.testing.ConformanceTests`.

pytest imports it at every start where kvspec is installed, so nothing else of kvspec is imported here.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of all classes of conformance tests together."""
    group = parser.getgroup("kvspec", "conformance of KV-cache managers (kvspec)")
    group.addoption("--kvspec-seed", type=int, metavar="N", help="The same seed gives the same operations.")
    group.addoption("--kvspec-operations", type=int, metavar="N", help="How many operations.")
    group.addoption("--kvspec-seconds", type=float, metavar="SECONDS", help="For how long.")
    group.addoption("--kvspec-replay", metavar="FILE", help="Run this scenario instead, on the target of each class.")


def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: object) -> list[Any] | None:
    """Leave out tests of a class for which it has nothing, such as scenarios."""
    if isinstance(collector, pytest.Class):
        collects = getattr(collector.obj, "kvspec_collects", None)
        if collects is not None and not collects(name, collector.config):
            return []
    return None
