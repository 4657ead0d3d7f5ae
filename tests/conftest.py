"""What holds for every test: the Hypothesis profile, and where tests marked `gpu`, `peer` or `needs_file` run.

``HYPOTHESIS_PROFILE=ci`` (the default) generates the same examples on every run; ``deep`` looks for new ones, for
longer, and remembers what failed.
"""

from __future__ import annotations

import gc
import os
import shutil
from collections import Counter
from collections.abc import Iterator

import hypothesis
import pytest

from kvspec.impl.adapters import environment

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
gc.set_threshold(20_000, 20, 20)  # terms and chapters live long: a tenth of the time went into looking at them again
SLOW_PEERS = ("vllm", "sglang")
"""Their tests run where they are asked for by their folder or file."""
SOME_FAULTS = {"transformers": 2, "lmdeploy": 2}
"""So many of the faults that are planted in them are enough for every run; each takes a new process of seconds."""
OF_THE_CALLER = ("CI", "BUILD_NUMBER", "FORCE_COLOR", "NO_COLOR", "PY_COLORS", "COLUMNS", "LINES", "PYTEST_ADDOPTS")
"""What of the caller's environment changes how programs write; a test sets those that it is about."""
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "ci")
hypothesis.settings.load_profile(PROFILE)


def pytest_report_header() -> str:
    return f"hypothesis profile: {PROFILE}"


@pytest.fixture(scope="session", autouse=True)
def same_environment() -> Iterator[None]:
    """What is printed is the same on a terminal, on a server for tests (``CI``) and in a narrow window."""
    with pytest.MonkeyPatch.context() as patch:
        for name in OF_THE_CALLER:
            patch.delenv(name, raising=False)
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The only place where a test is skipped, so that the list of reasons stays short and visible."""
    gpu: bool | None = None
    faults: Counter[str] = Counter()
    for item in items:
        if item.get_closest_marker("gpu"):
            if gpu is None:
                import torch

                gpu = torch.cuda.is_available()
            if not gpu:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
        for marker in item.iter_markers("peer"):
            peer = marker.args[0]
            if not environment.has(peer):
                item.add_marker(pytest.mark.skip(reason=f"needs {peer} in .peers (make peer-{peer})"))
            elif any("peers" in argument for argument in item.config.args):
                continue
            elif peer in SLOW_PEERS:
                item.add_marker(pytest.mark.skip(reason=f"{peer} takes long (make test-peers)"))
            elif "fault" in getattr(getattr(item, "callspec", None), "params", {}):
                faults[peer] += 1
                if faults[peer] > SOME_FAULTS.get(peer, faults[peer]):
                    item.add_marker(pytest.mark.skip(reason=f"other faults of {peer} take long (make test-peers)"))
        for marker in item.iter_markers("needs_file"):
            if not os.path.exists(marker.args[0]):
                item.add_marker(pytest.mark.skip(reason=f"needs the file {os.path.basename(marker.args[0])}"))
        for marker in item.iter_markers("needs_program"):
            if shutil.which(marker.args[0]) is None:
                item.add_marker(pytest.mark.skip(reason=f"needs the program {marker.args[0]}"))
