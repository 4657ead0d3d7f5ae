"""What turns red when a mistake is made: the first answer comes from the proofs.

A mutant of an event is *killed* by an obligation of the event's row that has a counterexample (confirmed by the
concrete reading) or whose hypotheses no longer hold together. If everything is still proved, the solver is asked
whether the mistake makes any difference at all; where it makes none, the mutant is *equivalent*. A weakened invariant
is killed by an obligation that rested on it, or else by a mutant that it alone has killed and that now goes through.
What is left is *alive*: explorations and tests have their turn (`Fate.by`), and then a reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import msgspec

from kvspec.proofs.mutation.equal import implied, same_row
from kvspec.proofs.mutation.key import key, standing_on
from kvspec.proofs.mutation.mutants import STATED, Mutant, mutants
from kvspec.proofs.obligations import CAN_FAIL, DEFINED, ChapterObligations, Obligation
from kvspec.proofs.problems import Group, Shared, grouped, grouped_by
from kvspec.proofs.prove import Options, Prover
from kvspec.proofs.verdicts import Verdict
from kvspec.spec import load
from kvspec.spec.language.chapter import Chapter

OPTIONS = Options(runs=0)
PROOF, EXPLORATION, TEST = "proof", "exploration", "test"
KILLED, EQUIVALENT, ALIVE = "killed", "equivalent", "alive"


SAME = {False: "the same steps lead to the same states", True: "but for steps that change nothing, it is the same"}
IMPLIED = "the other invariants say the rest"
UNPROVED = "no longer proved, though not refuted"
ANY = "what is spared is any element, so of two elements both are spoken of, one by sparing the other"


class Fate(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of a mutant.

    Attributes:
        id: the mutant.
        key: the fingerprint of what the verdict rests on (`kvspec.proofs.mutation.key`).
        verdict: killed, equivalent or alive.
        by: who killed it: proof, exploration or test.
        killer: the obligation, statement or mutant that turned red.
        failing: obligations that the proofs no longer hold; more than the killer, which is confirmed. Of a mutant of an
            event all of them, of a weakened invariant those up to the killer.
        note: what is known of one that is alive.
    """

    id: str
    key: str
    verdict: str
    by: str = ""
    killer: str = ""
    failing: tuple[str, ...] = ()
    note: str = ""


def red_at(statement: str, fates: Iterable[Fate]) -> list[str]:
    """The killed mutants that a statement turns red at: first those that it was the first to kill."""
    dead = [f for f in fates if f.verdict == KILLED]
    first = [f.id for f in dead if f.killer.rpartition("/")[2] == statement]
    also = [f.id for f in dead if any(id.rpartition("/")[2] == statement for id in f.failing)]
    return list(dict.fromkeys([*first, *also]))


@lru_cache(maxsize=1)
def shared(name: str) -> Shared:
    """What all mutants of a chapter's events have in common."""
    return Shared(ChapterObligations(name, load(name)))


@lru_cache(maxsize=1)
def known(name: str) -> dict[str, Mutant]:
    return {m.id: m for m in mutants(name, load(name))}


def fate(mutant: Mutant, chapter: Chapter) -> Fate:
    """What the proofs say of a mutant of an event or of the start."""
    obligations = list(ChapterObligations(mutant.chapter, mutant.text).of(mutant.row))
    groups = grouped_by(shared(mutant.chapter).reading(mutant.text), obligations)
    failing, killer = judged(groups)
    rests_on = key(mutant)
    if killer is not None:
        return Fate(mutant.id, rests_on, KILLED, PROOF, killer, failing)
    if failing:
        return Fate(mutant.id, rests_on, ALIVE, failing=failing, note="some of it is no longer proved, but not refuted")
    for stutter in (False, True):
        if _follows(same_row(mutant.chapter, chapter, mutant, stutter), shared(mutant.chapter)):
            return Fate(mutant.id, rests_on, EQUIVALENT, note=SAME[stutter])
    return Fate(mutant.id, rests_on, ALIVE, note="everything is proved of it, too")


def _follows(obligation: Obligation, shared: Shared) -> bool:
    [group] = grouped_by(shared, [obligation])
    return Prover(group, OPTIONS).result(obligation).verdict is Verdict.PROVED


Doubt = tuple[Prover, Obligation]
"""An obligation that is not proved at once, and who can say more of it."""


def _doubted(groups: Iterable[Group]) -> Iterator[Doubt]:
    for group in groups:
        prover = Prover(group, OPTIONS)
        yield from ((prover, o) for o in group.obligations if not prover.holds_at_once(o))


def judged(groups: Iterable[Group]) -> tuple[tuple[str, ...], str | None]:
    """All obligations that are not proved at once, and the first of them that is really broken."""
    doubted = list(_doubted(groups))
    seen, killer = first_broken(doubted)
    behind = [o.id for _, o in doubted]
    return (*seen, *(behind[behind.index(killer) + 1 :] if killer else ())), killer


def first_broken(doubted: Iterable[Doubt]) -> tuple[tuple[str, ...], str | None]:
    """The first obligation that is really broken, with those before it that cannot be proved."""
    failing: list[str] = []
    for prover, o in doubted:
        verdict = prover.result(o).verdict
        if verdict is not Verdict.PROVED:  # even with more effort
            failing.append(o.id)
        if verdict in (Verdict.REFUTED, Verdict.VACUOUS):
            return tuple(failing), o.id
    return tuple(failing), None


def fate_of_weakened(mutant: Mutant, others: Sequence[Fate]) -> Fate:
    """What becomes of a weakened invariant; ``others`` are the fates of the mutants of events of the chapter."""
    rests_on = key(mutant)
    obligations = ChapterObligations(mutant.chapter, mutant.text)
    # That it says nothing is seen at once, but does not show what it was good for; what was possible still is.
    others_say = [o for o in obligations if o.row not in (CAN_FAIL, DEFINED) and o.kind != "possible"]
    failing, killer = first_broken(_doubted(grouped_by(Shared(obligations), others_say)))
    if killer is not None:
        return Fate(mutant.id, rests_on, KILLED, PROOF, killer, failing)
    if failing:
        return Fate(mutant.id, rests_on, KILLED, PROOF, failing[0], failing, UNPROVED)
    if _follows(implied(obligations, mutant), Shared(obligations)):
        return Fate(mutant.id, rests_on, EQUIVALENT, note=IMPLIED)
    for other in (f for f in others if known(mutant.chapter)[f.id].row not in STATED):
        if other.killer.endswith(f"/{mutant.invariant}") and _goes_through(mutant, other):
            return Fate(mutant.id, rests_on, KILLED, PROOF, other.id, failing)
    if mutant.operator == "restrict" and mutant.text.statics.keys() != load(mutant.chapter).statics.keys():
        return Fate(mutant.id, rests_on, EQUIVALENT, note=ANY)
    return Fate(mutant.id, rests_on, ALIVE, note="nothing rests on it, and no mistake needs it to be found")


def fate_without_axiom(mutant: Mutant) -> Fate:
    """What becomes of the chapter, and of those that stand on it, where an axiom is not assumed: something is no longer
    proved, or it is not needed."""
    for name, axiom in standing_on(mutant).items():
        failing, killer = judged(grouped(ChapterObligations(name, load(name).without_axiom(axiom))))
        if failing:
            note = "" if killer else UNPROVED
            return Fate(mutant.id, key(mutant), KILLED, PROOF, killer or failing[0], failing, note)
    return Fate(mutant.id, key(mutant), ALIVE, note="nothing rests on it")


def _goes_through(weakened: Mutant, other: Fate) -> bool:
    """Whether the weaker text no longer finds a mistake that was killed by the invariant alone."""
    columns = {id.rpartition("/")[2] for id in other.failing}
    if columns != {weakened.invariant}:
        return False
    mistake = known(weakened.chapter)[other.id]
    text = mistake.text.with_invariant(
        weakened.invariant, next(s.term for s in weakened.text.invariants if s.name == weakened.invariant),
        *(weakened.text.statics[p] for p in weakened.text.statics.keys() - mistake.text.statics.keys()),
    )  # fmt: skip
    obligations = ChapterObligations(weakened.chapter, text)
    failing, _ = judged(grouped_by(Shared(obligations), obligations.of(mistake.row)))
    return not failing
