"""`ModelCompositeTarget`: the model of a composite behind the target protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import numpy as np

from kvspec.model.conformance import Capability, Form, MisuseError, PoolConfig, Tags
from kvspec.model.executable import GroupedPool, Part
from kvspec.model.reference.base import POOLS, Reference, expect_form
from kvspec.spec.slots import blocks_needed

OF_COMPOSITES: Final = frozenset(
    {
        Capability.FREE_IDS, Capability.FREE_COUNT, Capability.USED_COUNT, Capability.REF_COUNTS, Capability.CONTENTS,
        Capability.TRUNCATE, Capability.GROUPS,
    }
)  # fmt: skip


class ModelCompositeTarget(Reference[GroupedPool]):
    """A composite whose behaviour is the spec's.

    Args:
        config: sizes of the groups.
        seed: decide at random, by this seed; without one the lowest free block is taken, and a table slides when its
            sequence asks for room. With one a table slides at any time, but not later than it must.
        hit_limit: there are no hits.
        capabilities: what it shows; less than everything serves to test the acceptor.
        watch: re-evaluate the invariants of the spec after each event.

    Raises:
        ValueError: the config is that of another form.
    """

    def __init__(
        self,
        config: PoolConfig,
        *,
        seed: int | None = None,
        hit_limit: Literal["all", "all_but_one"] = "all_but_one",
        capabilities: frozenset[Capability] = OF_COMPOSITES,
        watch: bool = False,
    ) -> None:
        expect_form(config, Form.COMPOSITES)
        self._pools = POOLS[watch]
        pool = self._pools.take(config)
        super().__init__(config, pool, seed=seed, hit_limit=hit_limit, capabilities=capabilities)
        kinds = config.manager_types
        self._cells = [np.zeros((kind.num_blocks, kind.block_size), dtype=np.int64) for kind in kinds]
        self._groups = range(len(kinds))

    def __del__(self) -> None:
        if hasattr(self, "_pool"):
            self._pools.give(self._pool)

    # -- operations ----------------------------------------------------------------------------------------------

    def allocate_shared(self, seq: str) -> int:
        """Nothing is ever hit."""
        self._request(seq)
        if any(self._pool.size(seq, group) for group in self._groups):
            raise MisuseError(f"allocate_shared {seq}: it has blocks already")
        return 0

    def allocate(self, seq: str, num_tokens: int) -> bool:
        """Take the blocks that are missing, in all groups or in none; what is wanted for them slides out before."""
        self._check_room(seq, num_tokens)
        pool = self._pool
        if self._random is None or self._random.random() < 0.5:
            self._slide(seq, self._groups)
        self._slide(seq, pool.lacking(seq, num_tokens))
        lacking = pool.lacking(seq, num_tokens)
        if lacking:
            pool.refuse(seq, num_tokens, lacking[0])
            return False
        if num_tokens > pool.covered(seq):
            pool.begin(seq, num_tokens)
            for group, part in enumerate(pool.parts()):
                for _ in range(pool.missing(seq, num_tokens, group)):
                    pool.stage(group, self._lowest(part.free))
            pool.commit()
        return True

    def write(self, batch: Sequence[tuple[str, Tags]]) -> None:
        """The cells behind the computed tokens get their contents, in every group."""
        self._open()
        if len({seq for seq, _ in batch}) != len(batch):
            raise MisuseError("write: a sequence is named twice")
        for seq, tags in batch:
            self._check_write(seq, len(tags))
        for seq, tags in batch:
            start = self._pool.requests[seq].computed
            for group in self._groups:
                self._cells[group].reshape(-1)[self._slots(seq, start, start + len(tags), group)] = tags
            self._pool.write(seq, len(tags))
            self._may_slide(seq)

    def accept(self, seq: str, num_tokens: int) -> None:
        """Computed tokens are there to stay."""
        computed, accepted = self._request(seq).computed, self._pool.accepted(seq)
        if not accepted <= num_tokens <= computed:
            raise MisuseError(f"accept {seq}: {num_tokens} of {computed} computed tokens, {accepted} are accepted")
        self._pool.accept(seq, num_tokens)
        self._may_slide(seq)

    def truncate(self, seq: str, num_tokens: int) -> None:
        """Forget drafts at the end, and the blocks behind what is left; at random some of these stay."""
        self._check_room(seq, num_tokens)
        accepted = self._pool.accepted(seq)
        if num_tokens < accepted:
            raise MisuseError(f"truncate {seq}: {num_tokens} tokens, {accepted} are accepted")
        self._pool.truncate(seq, num_tokens)
        for group in self._groups:
            least = blocks_needed(num_tokens, self._pool.kinds[group].block_size)
            most = max(least, self._pool.size(seq, group))
            self._pool.give_back_to(seq, least if self._random is None else self._random.randint(least, most), group)

    def fork(self, parent: str, child: str) -> None:
        """Always an error."""
        raise MisuseError("there is no fork in a composite")

    def evict(self, num_blocks: int) -> int:
        """There is nothing to drop."""
        self._open()
        if num_blocks < 0:
            raise MisuseError(f"evict: {num_blocks} blocks")
        return 0

    def reset(self) -> bool:
        """There is nothing to drop."""
        self._open()
        return True

    # -- observations --------------------------------------------------------------------------------------------

    def released(self, seq: str, group: int = 0) -> int:
        """Leading places that have been given back."""
        self._request(seq)
        self._part(group)
        return self._pool.released(seq, group)

    def block_table(self, seq: str, group: int = 0) -> Sequence[int]:
        """Physical ids of the places that are held."""
        self._request(seq)
        self._part(group)
        return self._pool.table(seq, group)

    def read(self, seq: str, start: int, stop: int, group: int = 0) -> Tags:
        """The cells of computed tokens of a group, found through its block table."""
        computed, size = self._request(seq).computed, self._kind_size(group)
        if not 0 <= start <= stop <= computed or (start < stop and start // size < self._pool.released(seq, group)):
            raise MisuseError(f"read {seq}: [{start}, {stop}) of {computed} computed tokens, or they are released")
        found: Tags = self._cells[group].reshape(-1)[self._slots(seq, start, stop, group)]
        return found

    def free_ids(self, group: int = 0) -> set[int]:
        """Free ids."""
        return set(self._part(group).free)

    def free_count(self, group: int = 0) -> int:
        """How many are free."""
        return len(self._part(group).free)

    def used_count(self, group: int = 0) -> int:
        """How many are held by sequences."""
        return self._part(group).used

    def ref_count(self, block_id: int, group: int = 0) -> int:
        """1 if a sequence holds the block."""
        return len(self._part(group).holders.get(block_id, ()))

    # -- choices -------------------------------------------------------------------------------------------------

    def _slide(self, seq: str, groups: Sequence[int]) -> None:
        """What no query sees any more goes back, in these groups."""
        for group in groups:
            for _ in range(self._pool.unseen(seq, group)):
                self._pool.slide(seq, group)

    def _may_slide(self, seq: str) -> None:
        """At random something slides out as soon as it can, or later."""
        if self._random is None:
            return
        for group in self._groups:
            while self._pool.unseen(seq, group) and self._random.random() < 0.3:
                self._pool.slide(seq, group)

    def _slots(self, seq: str, start: int, stop: int, group: int) -> list[int]:
        """Where the tokens of a sequence lie."""
        size = self._kind_size(group)
        return [self._pool.block(seq, t // size, group) * size + t % size for t in range(start, stop)]

    def _kind_size(self, group: int) -> int:
        self._part(group)
        return self._pool.kinds[group].block_size

    def _part(self, group: int) -> Part:
        self._open()
        if group not in self._groups:
            raise MisuseError(f"there is no group {group}")
        return self._pool.parts()[group]

    def _memory(self, seq: str) -> Tags:
        return self._cells[0]

    def _note(self, seq: str, index: int) -> None:
        """Nothing is published."""
