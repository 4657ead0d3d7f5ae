"""The environment that other projects' managers live in: what can be in it, where it is, how one is started there.

It is the folder ``.peers`` in the current folder, or the one that ``KVSPEC_PEERS`` names;
`kvspec.impl.adapters.install` makes it. Only the standard library is needed here, since that runs first.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

PEERS: Final = ("transformers", "lmdeploy", "nano-vllm", "vllm", "sglang")
"""What can be installed, the cheap ones first."""

TARGETS: Final = {
    "transformers": "transformers",
    "lmdeploy": "lmdeploy",
    "nano-vllm": "nano-vllm",
    "vllm": "vllm",
    "sglang": "sglang",
    "sglang-unified": "sglang",
    "sglang-unified-rust": "sglang",
}
"""Targets, and the peer that each of them needs."""


_VARIABLES: Final = (
    "-u", "PYTHONPATH", "-u", "PYTHONHOME",
    "PYTHONHASHSEED=0", "VLLM_LOGGING_LEVEL=ERROR", "HF_HUB_OFFLINE=1", "CUDA_VISIBLE_DEVICES=",
)  # fmt: skip


class AbsentError(Exception):
    """There is no environment, or it does not have the peer. The text says what makes it."""


def folder() -> Path:
    """Where the environment is, or would be."""
    return Path(os.environ.get("KVSPEC_PEERS") or ".peers")


def stamp(where: Path, part: str) -> Path:
    """The file that says that a part is completely there."""
    return where / f".{part}"


def has(peer: str) -> bool:
    """Whether the peer is completely there, and an interpreter for it."""
    return stamp(folder(), peer).is_file() and (folder() / "bin" / "python").is_file()


def command(target: str, *options: str) -> list[str]:
    """What starts the child process of one of `TARGETS`; what it does hangs neither on the machine nor on the run.

    Args:
        options: of `kvspec.impl.adapters.__main__`.

    Raises:
        AbsentError: the environment lacks what it needs.
    """
    peer = TARGETS[target]
    if not has(peer):
        made_by = f"make peer-{peer}, or python -m kvspec.impl.adapters.install {peer}"
        where = f"{folder()} (or in the folder that KVSPEC_PEERS names)"
        raise AbsentError(f"needs {peer} in {where}, expected what this makes: {made_by}")
    python = str(folder() / "bin" / "python")
    return ["env", *_VARIABLES, python, "-m", "kvspec.impl.adapters", target, *options]


def module(target: str) -> str:
    """The name of the adapter's module."""
    return f"kvspec.impl.adapters.{target.replace('-', '_')}"


def known(target: str) -> Path | None:
    """The list of what is known of a target, if there is one."""
    file = Path(__file__).parent / "known" / f"{target}.toml"
    return file if file.is_file() else None
