"""What is tested of each target that is cheap enough for every run of the tests."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from peers.planted import ROOT, known_of

from kvspec.impl.adapters import environment
from kvspec.model.conform import ConformOptions, ConformReport, conform
from kvspec.model.conformance import Form, PoolConfig, Target
from kvspec.model.remote.client import RemoteTargets


@contextmanager
def process(target: str, *options: str) -> Iterator[RemoteTargets]:
    """The process of a target."""
    with RemoteTargets(environment.command(target, *options)) as targets:
        yield targets


def only(targets: RemoteTargets, variant: str) -> Callable[[PoolConfig], Target]:
    """Makes targets that can be only of one variant."""

    def make(config: PoolConfig) -> Target:
        target: Any = targets(config)
        target.abilities = msgspec.structs.replace(target.abilities, variants=(variant,))
        made: Target = target
        return made

    return make


def driven(targets: RemoteTargets, target: str, variant: str, operations: int) -> ConformReport:
    """A run of one variant, with what is known of the target."""
    options = ConformOptions(form=Form.ENGINES, operations=operations, known=known_of(target))
    return conform(only(targets, variant), options, name=target)


def shows(script: Path, target: str) -> None:
    """The script of a finding shows it, with nothing but the package."""
    argv = environment.command(target)
    run = subprocess.run(
        [*argv[: argv.index("-m")], str(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr


def scripts(prefix: str) -> list[Path]:
    """The scripts of the findings of a target."""
    return sorted((ROOT / "docs" / "findings").glob(f"{prefix}_*.py"))
