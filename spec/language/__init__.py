"""The vocabulary of the specification: sorts, sets, maps, statements, events and invariants."""

from kvspec.spec.language.chapter import Chapter
from kvspec.spec.language.errors import SourceLine, SpecError
from kvspec.spec.language.machine import (
    Ghost,
    Loop,
    Machine,
    Static,
    axiom,
    event,
    init,
    invariant,
    loop,
    refines,
    theorem,
    use,
    use_each,
    witness,
)
from kvspec.spec.language.tracing import inherit, old, possible, require, when
from kvspec.spec.language.values import (
    Bool,
    Id,
    Map,
    Nat,
    Position,
    Set,
    Variants,
    case,
    choose,
    empty_set,
    exists,
    false,
    forall,
    iff,
    implies,
    nat,
    set_where,
    true,
)

__all__ = [
    "Bool", "Chapter", "Ghost", "Id", "Loop", "Machine", "Map", "Nat", "Position", "Set", "SourceLine", "SpecError",
    "Static", "Variants", "axiom", "case", "choose", "empty_set", "event", "exists", "false", "forall", "iff",
    "implies", "inherit", "init", "invariant", "loop", "nat", "old", "possible", "refines", "require", "set_where",
    "theorem", "true", "use", "use_each", "when", "witness",
]  # fmt: skip
