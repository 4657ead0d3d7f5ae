"""What can be driven: single managers, pools of ranks, and their variants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from kvspec.model.conformance import Capability, EngineConfig, Form, ManagerType, PoolConfig, TargetError
from kvspec.model.engines.generator import EngineGenerator, engine_config
from kvspec.model.engines.protocol import Abilities
from kvspec.model.generator import SHOW_EVICTION, Generator, Source, pool_config, ranked_config
from kvspec.model.generator_grouped import CompositeGenerator, composite_config, largest
from kvspec.model.generator_paged import PagedGenerator, paged_config
from kvspec.model.generator_tiered import TieredGenerator, tiered_config
from kvspec.model.promises import Family

Capabilities = frozenset[Capability]
AnyGenerator = Generator | EngineGenerator


class Trait(NamedTuple):
    """What there is to know of a form.

    Attributes:
        smallest: a config to find out whether a target can be made so.
        draw: a config for an episode, for a target that shows and takes so much; the last argument is one of them.
        options: what can be fixed of it, beside blocks and their size.
        need: the capability that a target of this form has.
        generator: what makes operations for it.
    """

    smallest: PoolConfig
    draw: Callable[[Source, Capabilities, Any], PoolConfig]
    options: tuple[str, ...] = ()
    need: Capability | None = None
    generator: Callable[..., AnyGenerator] = Generator


def _pool_of_ranks(source: Source, shown: Capabilities, sample: Any) -> PoolConfig:
    return ranked_config(source, linear=Capability.LINEAR_STATE in shown, keys=bool(shown & SHOW_EVICTION))


def _engine(source: Source, shown: Capabilities, sample: Any) -> PoolConfig:
    return engine_config(source, abilities_of(sample))


def abilities_of(target: Any) -> Abilities:
    """What an engine can be made as.

    Raises:
        TargetError: it does not say so.
    """
    abilities = target.abilities
    if not isinstance(abilities, Abilities):
        raise TargetError(f"has abilities {abilities!r}, expected Abilities")
    return abilities


FORMS: Final[Mapping[Form, Trait]] = {
    Form.POOLS: Trait(
        PoolConfig(num_blocks=4, block_size=2, num_single_blocks=2),
        _pool_of_ranks,
        ("num_ranks", "num_single_blocks", "num_state_slots", "checkpoint_interval", "trim"),
        Capability.POOL,
    ),
    Form.PAGES: Trait(
        PoolConfig(num_blocks=4, block_size=2, num_pages=3, page_size=4),
        lambda source, shown, sample: paged_config(source),
        ("num_pages", "page_size"),
        Capability.PAGES,
        PagedGenerator,
    ),
    Form.TIERS: Trait(
        PoolConfig(num_blocks=4, block_size=2, num_single_blocks=3, num_host_blocks=4),
        lambda source, shown, sample: tiered_config(source),
        ("num_ranks", "num_single_blocks", "num_host_blocks"),
        Capability.HOST,
        TieredGenerator,
    ),
    Form.COMPOSITES: Trait(
        PoolConfig(
            num_blocks=4,
            block_size=2,
            enable_prefix_cache=False,
            manager_types=(ManagerType(num_blocks=4, block_size=2),),
        ),
        lambda source, shown, sample: composite_config(source),
        ("manager_types",),
        Capability.GROUPS,
        CompositeGenerator,
    ),
    Form.ENGINES: Trait(
        PoolConfig(num_blocks=16, block_size=2, engine=EngineConfig(variant="")),
        _engine,
        ("variant", "max_batch_tokens", "max_running", "window"),
        Capability.ENGINE,
        EngineGenerator,
    ),
    Form.MANAGERS: Trait(PoolConfig(num_blocks=4, block_size=2), lambda source, shown, sample: pool_config(source)),
}
"""Those that can be driven, in the order of their turns."""


def with_fixed(config: PoolConfig, fixed: Mapping[str, Any]) -> PoolConfig:
    """The config with what is fixed; what is not fixed gives way where both do not go together."""
    fields = msgspec.structs.asdict(config) | dict(fixed)
    if config.engine is not None:
        of_engine = {name: fields.pop(name) for name in FORMS[Form.ENGINES].options if name in fields}
        of_engine.pop("variant", None)  # managers have their turns
        fields["engine"] = msgspec.structs.replace(config.engine, **of_engine)
    if config.form is Form.PAGES and fields["num_pages"] * fields["page_size"] < fields["block_size"]:
        if "num_pages" not in fixed:
            fields["num_pages"] = -(-fields["block_size"] // fields["page_size"])
        elif "page_size" not in fixed:
            fields["page_size"] = -(-fields["block_size"] // fields["num_pages"])
        elif "block_size" not in fixed:
            fields["block_size"] = fields["num_pages"] * fields["page_size"]
    if config.form is Form.COMPOSITES:
        sizes = {name: fixed[name] for name in ("num_blocks", "block_size") if name in fixed}
        if "manager_types" not in fixed:
            fields["manager_types"] = tuple(msgspec.structs.replace(kind, **sizes) for kind in config.manager_types)
        fields["num_blocks"], fields["block_size"] = largest(fields["manager_types"])
    return PoolConfig(**fields)


_KEYED: Final = frozenset(Form) - {Form.COMPOSITES}
_RANKED: Final = frozenset({Form.POOLS, Form.TIERS})

OF_FORMS: Final[Mapping[Family, frozenset[Form]]] = {
    Family.PUBLISH_AFTER_WRITE: _KEYED,
    Family.EXCLUSIVE_WRITER: _KEYED - {Form.TIERS},
    Family.KEY: _KEYED,
    Family.STATE_POSITION: frozenset({Form.POOLS, Form.ENGINES}),
    Family.RANK: _RANKED,
    Family.UNITS: _RANKED | {Form.COMPOSITES, Form.ENGINES},
    Family.USAGE: frozenset(Form) - {Form.ENGINES},
    Family.WINDOW: frozenset({Form.COMPOSITES, Form.ENGINES}),
    Family.TIERS: frozenset({Form.TIERS}),
    Family.PAGES: frozenset({Form.PAGES}),
}
"""What can break a family; any of them, if it is not here. Of a family that nothing could break that a target can be,
nothing is said."""
