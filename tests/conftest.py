"""What holds for every test: the Hypothesis profile, and where tests marked `gpu` run.

``HYPOTHESIS_PROFILE=ci`` (the default) generates the same examples on every run; ``deep`` looks for new ones, for
longer, and remembers what failed.
"""

from __future__ import annotations

import os

import hypothesis
import pytest

hypothesis.settings.register_profile(
    "ci",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=60,
    stateful_step_count=40,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile(
    "deep",
    deadline=None,
    max_examples=2000,
    stateful_step_count=120,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "ci")
hypothesis.settings.load_profile(PROFILE)


def pytest_report_header() -> str:
    return f"hypothesis profile: {PROFILE}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not on_gpu:
        return
    import torch

    if not torch.cuda.is_available():
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
