"""SGLang's scheduler around one of its caches, without a model: a target of the form ``engines``.

Requests (`Req`), batches (`ScheduleBatch`), their admission (`PrefillAdder`) and order (`SchedulePolicy`), and the
cache are the package's own. What is here is the loop of `sglang.srt.managers.scheduler.Scheduler`
(``get_next_batch_to_run``, ``_get_new_batch_prefill_raw``, ``update_running_batch``) and of
`SchedulerBatchResultProcessor`, as far as they call the cache. Rules of use are marked as such.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from math import ceil
from typing import Any, Final

from kvspec.impl.adapters.sglang_cache import STATES, TreeCache, space_of
from kvspec.impl.adapters.sglang_idle import IdleChecks
from kvspec.impl.adapters.sglang_package import (
    FINISH_ABORT,
    AddReqResult,
    NewTokenRatioTracker,
    PrefillAdder,
    Req,
    SamplingParams,
    ScheduleBatch,
    SchedulePolicy,
    SpeculativeAlgorithm,
    checkpoint_kv_cache,
    model_config,
    release_kv_cache,
    runtime_context,
)
from kvspec.impl.adapters.sglang_published import Published
from kvspec.model.conformance import Capability, Context, EngineConfig, MisuseError
from kvspec.model.engines.protocol import (
    Abilities,
    AnyRecord,
    Copy,
    Ended,
    Forward,
    Known,
    Layout,
    Move,
    Preempted,
    Run,
)
from kvspec.model.engines.recorder import Recorder, Seen


class SglangEngine:
    """The loop of the scheduler.

    Args:
        cache: what it schedules for.
        config: how.
        abilities: what else it could have been made as.
        minimum: what a run of all of them must have seen.

    Attributes:
        published: the events that were published.
    """

    flushes_in_use = keeps_matches = False
    """Rules of use that are left out."""
    capabilities = frozenset({Capability.ENGINE, Capability.FREE_COUNT, Capability.CACHED_KEYS})
    hit_limit: Final = "all_but_one"

    def __init__(
        self, cache: TreeCache, config: EngineConfig, abilities: Abilities, minimum: Mapping[str, int]
    ) -> None:
        self.abilities, self.minimum = abilities, minimum
        self._cache, self._config = cache, config
        self._model = model_config()
        runtime_context.get_context().override("kvspec", retraction_policy="priority" if config.priority else "length")
        self._policy = SchedulePolicy("fcfs", cache.tree, False, config.priority, True)
        self._ratio = NewTokenRatioTracker.from_config()
        self._chunk = ceil(config.max_batch_tokens / cache.page_size) * cache.page_size if config.chunked else None
        self._recorder, self.published = Recorder(self._look), Published(cache.page_size)
        self._idle_checks = IdleChecks(cache)
        self._reqs: dict[str, Req] = {}
        self._output: dict[str, Sequence[int]] = {}
        self._waiting: list[Req] = []
        self._start()
        cache.watch_copies(self._copied)
        for name in ("evict", "evict_for_alloc"):
            setattr(cache.tree, name, self._watched(getattr(cache.tree, name)))

    def _start(self) -> None:
        self._running = ScheduleBatch(reqs=[])
        self._last: ScheduleBatch | None = None
        self._chunked: Req | None = None

    # -- what it is asked for ------------------------------------------------------------------------------------

    def layout(self) -> Layout:
        cache = self._cache
        return Layout(
            tuple(cache.stores()), tuple(cache.groups()), cache.page_size, cache.longest_request(), evicts=True
        )

    def submit(
        self, seq: str, tokens: Sequence[int], output: Sequence[int], context: Context, priority: int
    ) -> list[AnyRecord]:
        if seq in self._output:
            raise MisuseError(f"{seq} was used before")
        params = SamplingParams(max_new_tokens=len(output))
        params.normalize(None)
        space = space_of(context)
        req = Req(
            seq, "", array("q", tokens), params,
            priority=priority, extra_key=space.extra_key, cache_salt=space.cache_salt,
        )  # fmt: skip
        self._cache.expect(space, [*tokens, *output])
        self._reqs[seq], self._output[seq] = req, output
        self._queue(req)
        return self._taken()

    def step(self) -> list[AnyRecord]:
        batch = self._plan()
        if batch is not None:
            self._forward(batch)
            for req in batch.reqs:
                self._advance(req, batch)
        elif self.is_idle:
            self._idle_checks.run()
        self._last = batch
        return self._taken()

    def abort(self, seq: str) -> list[AnyRecord]:
        """Between steps nothing of a request is on the device, so that it can end at once, as
        `Scheduler.process_pending_chunked_abort` does it."""
        if seq not in self._reqs:
            raise MisuseError(f"{seq} is not there")
        req = self._reqs[seq]
        if req in self._waiting:
            self._waiting.remove(req)
        else:
            req.to_finish = FINISH_ABORT()
            req.update_finish_state()
            release_kv_cache(req, self._cache.tree, checkpoint=False)
            self._call("release_kv_cache", req)
            self._chunked = None if self._chunked is req else self._chunked
        self._end(req)
        return self._taken()

    def evict(self, num_blocks: int) -> list[AnyRecord]:
        self._cache.evict(num_blocks)
        return self._taken()

    def reset(self) -> list[AnyRecord]:
        # Rule: nothing runs (`Scheduler.is_fully_idle`; in an engine that is paused, requests may wait).
        if len(self._reqs) > len(self._waiting) and not self.flushes_in_use:
            self._recorder.call("flush_cache", refused=True, late=True)
        else:
            self._start()
            self._cache.flush()
            self._recorder.call("flush_cache")
        return self._taken()

    def close(self) -> None:
        self._reqs.clear()

    @property
    def is_idle(self) -> bool:
        """There is no request."""
        return not self._reqs

    def _taken(self) -> list[AnyRecord]:
        """The records since the last time. Events are published once for all of them, as after a step of the scheduler:
        the recorder of events joins what comes one behind the other."""
        self.published.compare(self._cache.tree.take_events(), list(self._cache.paths()))
        return self._recorder.taken()

    # -- what there is -------------------------------------------------------------------------------------------

    def _look(self) -> Seen:
        cache = self._cache
        paths = list(cache.paths())
        cache.check(paths)
        tables = {seq: cache.tables(req) for seq, req in self._reqs.items()}
        return Seen({s: t for s, t in tables.items() if any(t)}, cache.keys(paths), cache.free())

    def _call(self, name: str, req: Req, **outcome: Any) -> None:
        self._recorder.call(name, req.rid, **outcome)

    def _watched(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Calls that the package's own code makes inside others, and that others see the effect of."""

        @wraps(method)
        def watched(*args: Any, **kwargs: Any) -> Any:
            found = method(*args, **kwargs)
            self._recorder.call(method.__name__)
            return found

        return watched

    def _copied(self, source: int, target: int) -> None:
        """A request's state is copied, for the tree to have it (`MambaComponent.prepare_for_caching_req`)."""
        req = next(r for r in self._reqs.values() if r.kv.holds_mamba and int(r.kv.mamba_pool_idx) == source)
        self._cache.copied(req, target)
        self._call("mamba_allocator.alloc", req)
        self._recorder.add(Copy(STATES, source, target))

    # -- planning a step -----------------------------------------------------------------------------------------

    def _plan(self) -> ScheduleBatch | None:
        """`Scheduler.get_next_batch_to_run`."""
        if self._chunked is not None and self._chunked.extend_end > self._chunked.prefix_len:
            self._checkpoint(self._chunked)
        self._merge()
        batch = self._prefill()
        if batch is None and not self._running.is_empty():
            batch = self._decode()
        return batch

    def _merge(self) -> None:
        """Requests whose prompt is computed go on with the others."""
        if self._last is not None and self._last.forward_mode.is_extend():
            chunked = {self._chunked, self._last.chunked_req} - {None}
            self._last.filter_batch(reqs_to_exclude=list(chunked))
            if self._last.is_empty():
                pass
            elif self._running.is_empty():
                self._running = self._last
            else:
                self._running.merge_batch(self._last)
        self._running.filter_batch()
        self._running.batch_is_full = False

    def _prefill(self) -> ScheduleBatch | None:
        """`Scheduler._get_new_batch_prefill_raw`."""
        adder = self._adder()
        if self._chunked is not None:
            self._chunked.init_next_round_input()
            self._chunked = adder.add_chunked_req(self._chunked)
        self._policy.calc_priority(self._waiting, self._running)
        for req in list(self._waiting):
            if adder.budget_state() == AddReqResult.OTHER or not self._has_place(req, adder):
                break
            if not self._admit(req, adder):
                break
        self._preempted(adder.preempt_list)
        if not adder.can_run_list:
            return None
        self._waiting = [req for req in self._waiting if req not in adder.can_run_list]
        if adder.new_chunked_req is not None:
            self._chunked = adder.new_chunked_req
        if self._chunked is not None:
            self._chunked.inflight_middle_chunks += 1
        return self._extend(adder.can_run_list)

    def _adder(self) -> PrefillAdder:
        cache, config = self._cache, self._config
        return PrefillAdder(
            cache.page_size, cache.tree, cache.allocator, self._running, self._ratio.current, config.max_batch_tokens,
            self._chunk, max_running_requests=config.max_running, waiting_queue_len=len(self._waiting),
        )  # fmt: skip

    def _has_place(self, req: Req, adder: PrefillAdder) -> bool:
        """A row for it; somebody of less priority may have to give one."""
        if self._cache.rows.available_size() > sum(not other.kv.holds_kv for other in adder.can_run_list):
            return True
        if not self._config.priority:
            return False
        had = bool(adder.preempt_to_schedule(req))
        self._recorder.call("preempt_to_schedule")
        return had

    def _admit(self, req: Req, adder: PrefillAdder) -> bool:
        """Match, and take the request in if there is room; whether to go on with the next one."""
        # Rule: `Req.init_next_round_input` cuts the key, since the last token has to be computed.
        req.init_next_round_input(self._cache.tree)
        self._call("match_prefix", req)
        room = len(req.full_untruncated_fill_ids) + req.sampling_params.max_new_tokens - len(req.output_ids)
        spare = self._cache.spare(self._cache.reserved(adder.memory_budget))
        result = adder.add_one_req(req, has_chunked_req=self._chunked is not None, truncation_align_size=None)
        if req in adder.can_run_list:
            self._call("add_one_req", req, hit=req.prefix_len)
            return bool(result == AddReqResult.CONTINUE)
        self._call("add_one_req", req, refused=True, room=room, spare=spare, late=result != AddReqResult.NO_TOKEN)
        self._undo_match(req)
        return False

    def _undo_match(self, req: Req) -> None:
        """Rule: a match has given the request a slot, and a state to copy to it (``_get_new_batch_prefill_raw``)."""
        if self.keeps_matches or not req.kv.holds_mamba:
            return
        req.kv.mamba_cow_src_index = None
        req.kv.mamba_needs_clear = False
        self._cache.rows.mamba_allocator.free(req.kv.mamba_pool_idx.unsqueeze(-1))
        req.kv.mamba_pool_idx = None
        self._call("mamba_allocator.free", req)

    def _extend(self, reqs: list[Req]) -> ScheduleBatch:
        cache = self._cache
        batch = ScheduleBatch.init_new(
            reqs, cache.rows, cache.allocator, cache.tree, self._model, False, SpeculativeAlgorithm.NONE,
            chunked_req=self._chunked,
        )  # fmt: skip
        batch.prepare_for_extend()
        self._recorder.call("alloc_for_extend")
        return batch

    def _decode(self) -> ScheduleBatch | None:
        """`Scheduler.update_running_batch`."""
        batch = self._running
        if batch.check_decode_mem():
            self._recorder.call("check_decode_capacity")
            self._ratio.decay_step()
        else:
            self._retract(batch)
        if batch.is_empty():
            return None
        batch.prepare_for_decode()
        self._recorder.call("alloc_for_decode")
        return batch

    def _retract(self, batch: ScheduleBatch) -> None:
        """Some requests give everything back, so that the others can go on."""
        first = batch.reqs[batch._get_decode_retraction_order(batch.reqs)[-1]]
        page = self._cache.page_size
        others = sum(1 for req in batch.reqs if req is not first and req.kv.kv_committed_len % page == 0)
        spare = self._cache.spare(others)
        self._call("check_decode_capacity", first, refused=True, room=first.kv.kv_committed_len + 1, spare=spare)
        retracted, self._ratio.current, aborted = batch.retract_decode()
        self._recorder.call("retract_decode")
        self._preempted(retracted)
        for req in aborted:
            self._end(req)

    def _preempted(self, reqs: Sequence[Req]) -> None:
        for req in reqs:
            self._recorder.add(Preempted(req.rid))
            self._queue(req)

    def _queue(self, req: Req) -> None:
        req.time_stats.set_wait_queue_entry_time()
        self._waiting.append(req)

    # -- the device, and what the host does behind it --------------------------------------------------------------

    def _forward(self, batch: ScheduleBatch) -> None:
        """States that were matched are copied when the batch runs (``_collect_deferred_mamba_cow_and_clear``)."""
        if batch.mamba_cow_src_indices is not None:
            pairs = zip(batch.mamba_cow_src_indices.tolist(), batch.mamba_cow_dst_indices.tolist(), strict=True)
            for source, target in pairs:
                self._recorder.add(Copy(STATES, source, target))
        self._recorder.add(Forward([self._run(req, batch) for req in batch.reqs]))

    def _run(self, req: Req, batch: ScheduleBatch) -> Run:
        if batch.forward_mode.is_extend():
            start, stop = req.prefix_len, req.extend_end
        else:
            start, stop = req.kv.kv_committed_len - 1, req.kv.kv_committed_len
        moves = []
        if req.kv.holds_mamba:
            slot = int(req.kv.mamba_pool_idx)
            moves = [Move(STATES, slot if start else None, slot)]
        return Run(req.rid, start, stop, moves)

    def _advance(self, req: Req, batch: ScheduleBatch) -> None:
        """`SchedulerBatchResultProcessor.process_batch_result_prefill` and ``..._decode``."""
        if req.inflight_middle_chunks > 0:
            req.inflight_middle_chunks -= 1
            return
        req.output_ids.append(self._output[req.rid][len(req.output_ids)])
        self._recorder.add(Known(req.rid, req.seqlen))
        req.update_finish_state()
        if req.finished():
            release_kv_cache(req, self._cache.tree, checkpoint=True)
            self._call("release_kv_cache", req)
            self._end(req)
        elif batch.forward_mode.is_extend():
            self._checkpoint(req)

    def _checkpoint(self, req: Req) -> None:
        checkpoint_kv_cache(req, self._cache.tree)
        self._cache.settle(req)
        self._call("checkpoint_kv_cache", req)

    def _end(self, req: Req) -> None:
        del self._reqs[req.rid]
        self._recorder.add(Ended(req.rid))
