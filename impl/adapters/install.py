"""Makes the environment of peers, or adds to it: ``python -m kvspec.impl.adapters.install [PEER ...]`` (all).

What is there already is not made again, and what was interrupted is: each part leaves its stamp at its end, and a stamp
holds what the part was made of. Only the standard library is needed here.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from kvspec.impl.adapters.environment import PEERS, folder, stamp

HERE: Final = Path(__file__).resolve().parent
KVSPEC: Final = HERE.parent.parent
"""What has the sub-packages of kvspec: the repository, or the installed package."""

LINKED: Final = ("spec", "model", "impl")
"""Sub-packages that an adapter may import."""


class InstallError(Exception):
    """Something could not be installed."""


def install(peers: Sequence[str], where: Path) -> None:
    """Put peers into the environment, which is made if there is none.

    Raises:
        InstallError: something could not be installed; the next run goes on there.
    """
    recipe = tomllib.loads((HERE / "peers.toml").read_text(encoding="utf-8"))
    _make(where, "python", [sys.version], partial(_create, where))
    _link(where)
    for peer in peers:
        entry = recipe["peers"][peer]
        needs = {name: recipe["lists"].get(name, []) for name in entry["lists"]}
        for name, packages in needs.items():
            _make(where, f"list-{name}", packages, partial(_install_list, where, name, packages))
        _make(where, peer, [entry, needs], partial(_install_peer, where, entry))


@contextlib.contextmanager
def _alone(where: Path) -> Iterator[None]:
    """Nobody else installs beside it meanwhile; who comes second waits."""
    beside = os.open(where.absolute().parent, os.O_RDONLY)
    try:
        fcntl.flock(beside, fcntl.LOCK_EX)
        yield
    finally:
        os.close(beside)


def _make(where: Path, part: str, made_of: Any, make: Callable[[], object]) -> None:
    """Make a part unless its stamp says that it is there."""
    mark, text = stamp(where, part), json.dumps(made_of)
    if mark.is_file() and mark.read_text(encoding="utf-8") == text:
        return
    print(f"{where}: {part}", flush=True)
    mark.unlink(missing_ok=True)
    make()
    mark.write_text(text, encoding="utf-8")


def _create(where: Path) -> None:
    venv.create(where, clear=True, symlinks=True, with_pip=True)


def _packages(where: Path) -> Path:
    """The environment's site-packages."""
    return where / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def _link(where: Path) -> None:
    """kvspec is there as it is here, without what it needs elsewhere."""
    package = _packages(where) / "kvspec"
    package.mkdir(exist_ok=True)
    for name in LINKED:
        link = package / name
        link.unlink(missing_ok=True)
        link.symlink_to(KVSPEC / name)


def _install_list(where: Path, name: str, packages: Sequence[str]) -> None:
    if name == "torch":  # a build with CUDA cannot be imported without what it brings along
        _pip(where, "install", "--no-compile", *_torch())
    else:
        _pip(where, "install", "--no-compile", "--no-deps", *packages)


def _torch() -> Iterator[str]:
    constraints = KVSPEC / "constraints.txt"
    if constraints.is_file():
        yield from ("-c", str(constraints))
    yield "torch"


def _install_peer(where: Path, entry: dict[str, Any]) -> None:
    if "package" in entry:
        _pip(where, "install", "--no-compile", "--no-deps", entry["package"])
    if "sources" in entry:
        with tempfile.TemporaryDirectory(dir=where) as scratch:
            _pip(where, "download", "--no-deps", "--only-binary", ":all:", "--dest", scratch, entry["sources"])
            [wheel] = Path(scratch).glob("*.whl")
            _unpack(wheel, _packages(where))


def _unpack(wheel: Path, where: Path) -> None:
    """Take the Python files, and what says which version it is, out of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if n.endswith(".py") or ".dist-info/" in n]
        archive.extractall(where, names)


def _pip(where: Path, *words: str) -> None:
    run = subprocess.run(
        [where / "bin" / "python", "-m", "pip", "--quiet", "--disable-pip-version-check", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if run.returncode:
        last = (run.stderr.strip() or run.stdout.strip() or "it said nothing").splitlines()[-1]
        raise InstallError(f"pip {' '.join(words[:1])} ended with {run.returncode}: {last}")


def main(words: Sequence[str]) -> int:
    unknown = [word for word in words if word not in PEERS]
    if unknown:
        print(f"install: error: unknown peer '{unknown[0]}', expected one of {', '.join(PEERS)}", file=sys.stderr)
        return 2
    try:
        with _alone(folder()):
            install(words or PEERS, folder())
    except (InstallError, OSError) as error:
        print(f"install: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
