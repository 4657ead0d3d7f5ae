"""Imports parts of other projects' packages without what they need on a machine that serves models."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Stub(MetaPathFinder, Loader):
    """Finds a package, every module below it, and every name in them: empty classes."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        inside = fullname.partition(".")[0] == self._package
        return ModuleSpec(fullname, self, is_package=True) if inside else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = ModuleType(spec.name)
        module.__getattr__ = _empty_class  # type: ignore[method-assign]
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


def _empty_class(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})


def stub(package: str) -> None:
    """From now on the package can be imported, and has every name, but does nothing."""
    sys.meta_path.insert(0, _Stub(package))


def shells(*packages: str) -> None:
    """Modules of these packages can be imported without what is in their ``__init__.py``.

    Raises:
        ModuleNotFoundError: one is not installed.
    """
    for name in packages:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.submodule_search_locations is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        shell = ModuleType(name)
        shell.__path__ = list(spec.submodule_search_locations)
        sys.modules[name] = shell


def prepare_sglang() -> None:
    """SGLang can be imported behind this.

    It imports torchvision, whose builds do not go with a PyTorch without CUDA. transformers looks whether torchvision
    is installed; it must not find the stub.
    """
    import transformers.utils.import_utils  # noqa: F401

    stub("torchvision")
