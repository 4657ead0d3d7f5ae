"""The judge of one manager."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvspec.model.acceptor.operating import Operating
from kvspec.model.compiled import StepError
from kvspec.model.conformance import Capability, PoolConfig, Target
from kvspec.model.executable import Pool
from kvspec.model.promises import CHAPTER, STEP_FAMILIES, Family, Violation
from kvspec.model.world import Chain


class Acceptor(Operating[Pool]):
    """A manager together with its judge; its operations are those of `Target`.

    Args:
        target: an instance of the target.
        config: the pool that it was made with.
        every: compare all observations after every n-th operation (0: only when `sweep` is called).
        watch: re-evaluate the spec's invariants after each event.
        pool: a new model of the manager to use, where making one each time would take too long.

    Raises (by the operations):
        Violation: the target did something that the spec does not allow.
        MisuseError: the call was an error, as expected, and the target said so and kept its state.
    """

    chapter = CHAPTER
    step_families = STEP_FAMILIES

    def __init__(
        self, target: Target, config: PoolConfig, *, every: int = 1, watch: bool = True, pool: Pool | None = None
    ) -> None:
        super().__init__(target, config, pool or Pool(config, watch), every, [target])

    # -- operations ----------------------------------------------------------------------------------------------

    def allocate_shared(self, seq: str) -> int:
        misuse = self._unknown(seq) or (f"{seq} has blocks already" if self.pool.size(seq) else None)

        def explain(hit: int) -> None:
            self._events()
            size, known = self.config.block_size, len(self.pool.requests[seq].tokens)
            limit = known if self.hit_limit == "all" else max(0, known - 1)
            best = self.pool.hits(seq, limit, self.pool) if self.config.enable_prefix_cache else 0
            if hit % size or hit > limit or hit < 0:
                raise Violation(Family.MAP_TRUTH, "hit_length", f"a hit of {hit} tokens, expected at most {limit}")
            if hit // size > best:
                what = f"a hit of {hit // size} blocks; only {best} blocks of this prefix are published"
                raise Violation(Family.MAP_TRUTH, "hit_unpublished", what)
            if hit // size < best and not (self._hides and self._gone(seq, hit // size)):
                found = f"a hit of {hit // size} blocks; {best} blocks of this prefix are matchable"
                what = "; ".join([found, *self._supposed()])
                raise Violation(Family.MAP_TRUTH, "hit_longest", what)
            self.pool.mount(seq, hit // size)
            self._same_table(seq)
            self.counts["hits"] += hit > 0
            self._read(seq, 0, hit)

        return int(self._judge("allocate_shared", (seq,), lambda: self.target.allocate_shared(seq), explain, misuse))

    def allocate(self, seq: str, num_tokens: int) -> bool:
        misuse = self._unknown(seq) or self._out_of_known(seq, num_tokens)

        def explain(granted: bool) -> None:
            if granted:
                self._granted(seq, num_tokens)
            else:
                self.counts["refusals"] += 1
                self._unchanged("refusal_changes_nothing")
                self._same_table(seq)
                self._refused_more(seq, num_tokens)

        call = lambda: self.target.allocate(seq, num_tokens)  # noqa: E731
        return bool(self._judge("allocate", (seq, num_tokens), call, explain, misuse))

    def _granted(self, seq: str, num_tokens: int) -> None:
        self._events()
        table = self.target.block_table(seq)
        self._roomy(seq, num_tokens, table)
        self._copied(seq, table)
        self._taken(seq, table[self.pool.size(seq) :])
        self._writable(seq, num_tokens)

    def fork(self, parent: str, child: str) -> None:
        self.needs(Capability.FORK)
        misuse = self._unknown(parent) or (f"{child} exists already" if child in self.pool.requests else None)

        def explain(_: Any) -> None:
            self._events()
            self.pool.fork(parent, child)
            self._tags[child] = self._tags[parent]
            self._new_holders(parent)
            self._same_table(child)
            self._same_table(parent)

        self._judge("fork", (parent, child), lambda: self.target.fork(parent, child), explain, misuse)

    def truncate(self, seq: str, num_tokens: int) -> None:
        self.needs(Capability.TRUNCATE)
        misuse = self._unknown(seq) or self._out_of_known(seq, num_tokens)

        def explain(_: Any) -> None:
            self._events()
            self.pool.truncate(seq, num_tokens)
            self._new_holders(seq)
            self.pool.drop_to(seq, max(self.pool.blocks_for(num_tokens), len(self.target.block_table(seq))))
            self._let_go()
            self._cut(seq, num_tokens)
            self._same_table(seq)

        call = lambda: self.target.truncate(seq, num_tokens)  # noqa: E731
        self._judge("truncate", (seq, num_tokens), call, explain, misuse)

    # -- events --------------------------------------------------------------------------------------------------

    def _evict(self, rank: int, chain: Chain) -> None:
        self.pool.evict(chain)

    def _take(self, seq: str, block: int) -> None:
        self.pool.take(seq, block)

    def _hold(self, rank: int, block: int, name: str) -> None:
        self.pool.hold(block, name)

    def _unhold(self, rank: int, block: int, name: str) -> None:
        self.pool.unhold(block, name)

    def _gone(self, seq: str, index: int) -> bool:
        """Whether a key that was not matched may have been evicted unseen; it has been, then."""
        chain = self.pool.key(seq, index)
        if len(self.pool.holders[self.pool.entry[chain]]) > 1:
            return False
        self._evicted(0, chain)
        return True

    def _step_words(self, error: StepError) -> Sequence[str]:
        words = [f"block {block} is {self.holders(block)}" for block in self._blocks_of(error)]
        if error.event.name == "take":
            words += self._hit_words(*error.arguments)
        return [*words, *self._supposed()] if any("the cache of" in text for text in words) else words

    def _supposed(self) -> Sequence[str]:
        """What is said of the cache is not seen where no key is shown."""
        if self.sees(Capability.EVENTS) or self.sees(Capability.CACHED_KEYS):
            return []
        taken = "the target shows no keys, so what it was told to cache is taken for published"
        return [f"{taken}; has it no prefix cache, it is driven with --no-cache"]

    def _hit_words(self, seq: str, block: int) -> Sequence[str]:
        """A block that was not to be taken may have been found."""
        place, known = self.pool.size(seq), len(self.pool.requests[seq].tokens)
        if self.pool.hits(seq, known, self.pool) <= place or self.pool.entry[self.pool.key(seq, place)] != block:
            return []
        found = f"the cache has it for the tokens of {seq}[{place}]"
        return [f"{found}, and only allocate_shared hits what the cache has: allocate hands out free blocks"]

    def _blocks_of(self, error: StepError) -> list[int]:
        """The blocks that an event is about."""
        pool, first, rest = self.pool, error.arguments[0] if error.arguments else None, error.arguments[1:]
        match error.event.name:
            case "take":
                return [rest[0]]
            case "copy_on_write":
                return [pool.block(str(first), rest[0]), rest[1]]
            case "publish":
                return [pool.block(str(first), rest[0])]
            case "write" if first in pool.requests:
                index = pool.requests[str(first)].computed // self.config.block_size
                return [pool.block(str(first), index)] if index < pool.size(str(first)) else []
            case "mount" | "evict":
                block = pool.entry.get(error.arguments[-1])
                return [] if block is None else [block]
            case "hold" | "unhold" if isinstance(first, int):
                return [first]
        return []
