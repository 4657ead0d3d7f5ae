"""The manifests of all chapters against the text and against one run of the main job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvspec.model.exploring.outcome import Outcome
from kvspec.proofs.manifest.build import Evidence, build
from kvspec.proofs.manifest.compare import (
    STALE,
    Finding,
    accepted,
    of_itself,
    of_outcomes,
    of_reasons,
    of_rebuilt,
    of_results,
    of_text,
)
from kvspec.proofs.manifest.record import FOLDER, Record, load_record
from kvspec.proofs.manifest.scopes import SCOPES
from kvspec.proofs.verdicts import Result
from kvspec.spec import CHAPTERS


@dataclass(frozen=True)
class Seen:
    """What ran of one chapter."""

    results: Sequence[Result]
    outcomes: Sequence[Outcome] = ()


def read_all(folder: Path = FOLDER) -> dict[str, Record]:
    """The manifests that there are, by chapter.

    Raises:
        ManifestError: one of them, or the reasons, cannot be read.
    """
    accepted(folder)
    return {name: record for name in CHAPTERS if (record := load_record(name, folder)) is not None}


def findings(seen: Mapping[str, Seen], folder: Path = FOLDER) -> list[Finding]:
    """Everything that does not fit, chapter by chapter; nothing if all does.

    Raises:
        ManifestError: a manifest or the reasons cannot be read.
    """
    reasons = accepted(folder)
    records: list[Record] = []
    found: list[Finding] = []
    for name in (n for n in seen if n in CHAPTERS):
        record = load_record(name, folder)
        if record is None:
            found.append(Finding(STALE, name, "manifest: there is none (kvspec manifest --update)"))
            continue
        records.append(record)
        found += of_results(record, seen[name].results)
        found += of_text(record)
        # Larger scopes than those of the manifest are explored on request; they are nobody's promise.
        outcomes = seen[name].outcomes[: len(SCOPES.get(name, ()))]
        found += of_outcomes(record, outcomes)
        bounds = {s.name: s.bound for s in record.invariants if s.bound is not None}
        rebuilt = build(name, Evidence(seen[name].results, record.mutants, outcomes, bounds))
        found += of_rebuilt(record, rebuilt)
        found += of_itself(rebuilt, reasons)
    return found + list(of_reasons(records, reasons))
