"""Faults that managers had, planted in the text of a chapter: each has a counterexample where it is expected."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvspec.proofs.campaign import groups, prove_group
from kvspec.proofs.prove import Options
from kvspec.proofs.verdicts import Verdict
from kvspec.spec import CHAPTERS
from kvspec.spec.language import Chapter

FAULTS = {
    "the used number falls only where the cache has no handle": (
        "usage",
        "with when(last):\n            self.num_used = self.num_used - 1\n",
        "with when(last & ~kept):\n            self.num_used = self.num_used - 1\n        with when(last):\n",
        "usage.deallocate/num_used_is_size",
    ),
    "a hit on an idle block is not counted as used": (
        "usage",
        "self.idle.discard(block)\n        self.count_in(block, holder)",
        "self.idle.discard(block)\n        self.refs[block] = self.refs[block] + 1",
        "usage.share/used_counted",
    ),
    "an eviction is counted for a block in use": (
        "usage",
        "require(self.refs[block] == 0)\n        self.blocks.drop_last",
        "self.blocks.drop_last",
        "usage.evict->blocks.drop_last/pre.1",
    ),
    "a copied handle is not counted": (
        "handles",
        "self.ref_count[block] = self.ref_count[block] + 1\n        self.live.add(target)",
        "self.live.add(target)",
        "handles.copy/count_is_size",
    ),
    "the id is freed while one handle is left": (
        "handles",
        "last = self.ref_count[block] == 1",
        "last = self.ref_count[block] <= 2",
        "handles.release->blocks.drop_last/pre.1",
    ),
    "the stack is read one place too high": (
        "free_list",
        "self.handles.create(handle, self.stack[top])",
        "self.handles.create(handle, self.stack[self.count])",
        "free_list.pop->handles.create/pre.1",
    ),
    "a hit does not count as a use": (
        "lru",
        "inherit(self.cache.match)(key, seat)\n        self.line.use(key)",
        "inherit(self.cache.match)(key, seat)",
        "lru.match/matched_is_newest",
    ),
    "a key that is taken back stays in line": (
        "lru",
        "inherit(self.cache.withdraw)(key)\n        self.line.leave(key)",
        "inherit(self.cache.withdraw)(key)",
        "lru.withdraw/in_line_cached",
    ),
    "the weights of a reloaded adapter keep their version": (
        "keys",
        "self.past.add((adapter, self.version[adapter]))\n        self.version[adapter] = version",
        "self.past.add((adapter, self.version[adapter]))",
        "keys.reload/version_new",
    ),
    "what is stored is replaced under a digest, but not the note of its weights": (
        "keys",
        "choose(d == digest, self.version[name], self.made_with[d, name])",
        "self.made_with[d, name]",
        "keys.compute/record_truth",
    ),
    "rounding up counts a block too many": (
        "slots",
        "return (num_tokens + block_size - 1) // block_size",
        "return num_tokens // block_size + 1",
        "slots.theorem/needed_is_least",
    ),
    "offsets are those of a shorter block": (
        "slots",
        "return block_id * block_size + offset",
        "return block_id * (block_size - 1) + offset",
        "slots.theorem/slots_distinct",
    ),
}


@pytest.fixture
def changed(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[str, Chapter, str]]:
    """A chapter read from a changed text, and the obligation that has to fail."""
    name, correct, faulty, broken = FAULTS[request.param]
    module, cls = CHAPTERS[name]
    text = inspect.getsource(importlib.import_module(module))
    assert text.count(correct) == 1
    path = tmp_path / f"faulty_{name}.py"
    path.write_text(text.replace(correct, faulty), encoding="utf-8")
    loading = importlib.util.spec_from_file_location(path.stem, path)
    assert loading is not None and loading.loader is not None
    sys.modules[path.stem] = loaded = importlib.util.module_from_spec(loading)
    try:
        loading.loader.exec_module(loaded)
        yield name, Chapter(getattr(loaded, cls)), broken
    finally:
        del sys.modules[path.stem]


@pytest.mark.parametrize("changed", FAULTS, indirect=True)
def test_a_planted_fault_is_refuted(changed: tuple[str, Chapter, str]) -> None:
    name, chapter, broken = changed
    (group,) = (g for g in groups(name, chapter) if broken in {o.id for o in g.obligations})
    (result,) = prove_group(group, Options(), frozenset({broken}))
    assert result.verdict is Verdict.REFUTED, result.note
