"""CrossHair on every pure function: each contract is confirmed, each fault in a copy is found.

Nothing here is sampled: *confirmed* means that CrossHair has been through all paths, each for all arguments at once.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from contracts import pairs
from contracts.copies import CONTRACTS, Job, Planted, ask, jobs_about, outcome, plant
from contracts.faults import Fault, all_faults
from contracts.terms import Function, Terms, contracts_of, functions_of, qualified

from kvspec.impl import paging, tags, trim
from kvspec.model import workload
from kvspec.spec import load, pages, slots, strides, window

ROOT = Path(__file__).parent.parent.parent
OF_SPEC: list[Function] = [*functions_of(slots), *functions_of(strides), *functions_of(window), *functions_of(pages)]
OF_IMPL: list[Function] = [*functions_of(paging), *functions_of(tags), *functions_of(trim)]
PURE: list[Function] = [*OF_SPEC, *OF_IMPL, workload.longest_hit]
THEOREMS = {t.name for chapter in ("slots", "strides", "window", "pages", "trim") for t in load(chapter).theorems}
FAULTS = list(all_faults())
QUESTIONS: list[Job] = [["contract", m.__name__, name] for m in CONTRACTS for name in contracts_of(m)]
QUESTIONS += [["pair", pairs.__name__, *names] for names in pairs.PAIRS.values()]
TERMS: list[tuple[str, Terms]] = [item for module in CONTRACTS for item in contracts_of(module).items()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("copies")


@pytest.fixture(scope="module")
def planted(folder: Path) -> dict[Fault, Planted]:
    return {fault: plant(fault, number, folder) for number, fault in enumerate(FAULTS)}


@pytest.fixture(scope="module")
def verdicts(planted: dict[Fault, Planted], folder: Path) -> dict[tuple[str, ...], dict[str, Any]]:
    """All verdicts, from one process: to start it takes longer than to judge a contract."""
    jobs = QUESTIONS + [job for copy in planted.values() for job in copy.jobs]
    return {tuple(job): verdict for job, verdict in zip(jobs, ask(jobs, folder), strict=True)}


# -- right texts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("job", QUESTIONS, ids="-".join)
def test_a_contract_is_confirmed_and_a_pair_does_not_differ(job: Job, verdicts: dict[tuple[str, ...], Any]) -> None:
    assert verdicts[tuple(job)]["says"] == "confirmed", verdicts[tuple(job)]


# -- faults ---------------------------------------------------------------------------------------------------------


def of_the_right_text(fault: Fault, job: Job) -> Job:
    """The question that a question about a copy was made of."""
    kind, _, *names = job
    (right,) = (other for _, other in jobs_about(fault.function) if other[0] == kind and other[2:] == names)
    return right


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_planted_fault_is_found_with_arguments_that_show_it(
    fault: Fault,
    planted: dict[Fault, Planted],
    verdicts: dict[tuple[str, ...], Any],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(folder)
    found = [(job, verdicts[tuple(job)]) for job in planted[fault].jobs if verdicts[tuple(job)]["says"] == "refuted"]
    assert found
    for job, verdict in found:
        assert not outcome(job, verdict["arguments"]), verdict
        assert outcome(of_the_right_text(fault, job), verdict["arguments"]), verdict


# CrossHair confirms a contract whose leading asserts let nothing through; that it finds a fault shows that they do.
@pytest.mark.parametrize("job", QUESTIONS, ids="-".join)
def test_a_contract_or_pair_finds_some_fault(
    job: Job, planted: dict[Fault, Planted], verdicts: dict[tuple[str, ...], Any]
) -> None:
    asked = [j for fault, copy in planted.items() for j in copy.jobs if of_the_right_text(fault, j) == job]
    assert any(verdicts[tuple(j)]["says"] == "refuted" for j in asked)


# -- nothing is left out --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", PURE, ids=qualified)
def test_a_pure_function_has_a_contract_or_a_counterpart_and_faults(function: Function) -> None:
    assert list(jobs_about(function))
    assert sum(fault.function is function for fault in FAULTS) >= 3


@pytest.mark.parametrize("terms", [terms for _, terms in TERMS], ids=[name for name, _ in TERMS])
def test_a_contract_names_theorems_of_the_specification(terms: Terms) -> None:
    assert set(terms.theorems) <= THEOREMS
    if terms.bound or any(function in OF_SPEC for function in terms.functions):
        assert terms.theorems


def divisions(source: str) -> list[int]:
    """Lines in which something is divided, other than in half."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.BinOp | ast.AugAssign)
        and isinstance(node.op, ast.FloorDiv | ast.Mod)
        and not (isinstance(node, ast.BinOp) and isinstance(node.right, ast.Constant) and node.right.value == 2)
    ]


def test_the_implementation_divides_nowhere_else() -> None:
    """So that its arithmetic is that which has contracts. Kernels in Triton cannot call a function of Python, and
    programs of threads have nothing to do with positions and blocks; adapters count in the units of other projects."""
    apart = ("interleaving", "adapters")
    paths = [path for path in (ROOT / "impl").rglob("*.py") if path.parent.name not in apart]
    found = {path.name: divisions(path.read_text(encoding="utf-8")) for path in paths}
    assert {name for name, lines in found.items() if lines} == {"paging.py", "triton_kernels.py"}


def test_the_page_about_pure_functions_names_them_and_every_bound() -> None:
    page = (ROOT / "docs" / "pure-functions.md").read_text(encoding="utf-8")
    assert [f.__name__ for f in PURE if f"`{f.__name__}`" not in page] == []
    assert [name for name, terms in TERMS if terms.bound not in page] == []
