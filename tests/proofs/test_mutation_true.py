"""An invariant whose body becomes true is a statement about nothing, and the proofs say so."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kvspec.proofs.campaign import prove_chapter
from kvspec.proofs.obligations import ChapterObligations, Obligation
from kvspec.proofs.problems import Shared, grouped_by
from kvspec.proofs.prove import Options, Prover
from kvspec.proofs.verdicts import Result, Verdict
from kvspec.spec import CHAPTERS, load
from kvspec.spec.language import Chapter
from kvspec.spec.language import terms as T

ROOT = Path(__file__).parents[2]
INVARIANTS = [
    (name, s.name)
    for name in CHAPTERS
    for s in load(name).invariants
    if s.name not in {n.name for n in load(name).naturals}  # those have no body; their sort says it
]
NOTHING = "it holds in every state, whatever happens: it says nothing"


def can_fail(name: str, chapter: Chapter, invariant: str) -> Result:
    """The verdict on that one obligation."""
    obligations = ChapterObligations(name, chapter)
    wanted: Obligation = next(o for o in obligations if o.id == f"{name}.can_fail/{invariant}")
    [group] = grouped_by(Shared(obligations), [wanted])
    return Prover(group, Options()).result(wanted)


@pytest.mark.parametrize(("name", "invariant"), INVARIANTS)
def test_an_invariant_that_becomes_true_is_vacuous(name: str, invariant: str) -> None:
    result = can_fail(name, load(name).with_invariant(invariant, T.TRUE), invariant)
    assert (result.verdict, result.note) == (Verdict.VACUOUS, NOTHING)


@pytest.mark.parametrize(("name", "invariant"), [i for i in INVARIANTS if i[0] in ("blocks", "free_list", "usage")])
def test_as_it_stands_it_says_something(name: str, invariant: str) -> None:
    assert can_fail(name, load(name), invariant).verdict is Verdict.PROVED


def test_the_whole_chapter_is_red_for_that_reason() -> None:
    results = prove_chapter("blocks", load("blocks").with_invariant("held_usable", T.TRUE))
    vacuous = [r.id for r in results if r.verdict is Verdict.VACUOUS]
    assert "blocks.can_fail/held_usable" in vacuous
    assert any(r.verdict is Verdict.REFUTED for r in results)  # something has rested on it


def test_the_command_says_what_became_vacuous(tmp_path: Path) -> None:
    """In a copy of the sources the body of an invariant becomes ``return true()``."""
    for package in ("model", "impl", "proofs", "cli"):
        (tmp_path / "kvspec").mkdir(exist_ok=True)
        (tmp_path / "kvspec" / package).symlink_to(ROOT / package)
    shutil.copytree(ROOT / "spec", tmp_path / "kvspec" / "spec", ignore=shutil.ignore_patterns("__pycache__"))
    chapter = tmp_path / "kvspec" / "spec" / "blocks.py"
    text, changed = re.subn(
        r"(    def held_usable\(self\) -> Bool:\n)        return .*\n",
        r"\1        return true()\n",
        chapter.read_text(encoding="utf-8").replace("    theorem,\n", "    theorem,\n    true,\n"),
    )
    assert changed == 1
    chapter.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "kvspec.cli", "prove", "--chapter", "blocks"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "can_fail / held_usable   VACUOUS" in done.stdout and NOTHING in done.stdout
    assert "vacuous: blocks.can_fail/held_usable" in done.stdout.splitlines()[-1]
