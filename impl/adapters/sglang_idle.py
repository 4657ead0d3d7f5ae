"""SGLang's own checks of its memory, which a scheduler without work makes (`Scheduler.on_idle`)."""

from __future__ import annotations

from typing import Any

from kvspec.impl.adapters.sglang_cache import InconsistentError, TreeCache
from kvspec.impl.adapters.sglang_package import (
    DisaggregationMode,
    ScheduleBatch,
    SchedulerInvariantChecker,
    SchedulerPoolStatsObserver,
)


class IdleChecks:
    """The checks of one cache; those of the package raise ValueError."""

    def __init__(self, cache: TreeCache) -> None:
        self._tree = cache.tree
        allocator, windows = cache.allocator, cache.tree.supports_swa()
        shared: dict[str, Any] = {
            "is_hybrid_swa": windows,
            "is_hybrid_ssm": cache.tree.supports_mamba(),
            "full_tokens_per_layer": allocator.size_full,
            "swa_tokens_per_layer": allocator.size_swa if windows else None,
            "max_total_num_tokens": allocator.size_full,
            "tree_cache": cache.tree,
            "token_to_kv_pool_allocator": allocator,
            "req_to_token_pool": cache.rows,
        }
        self._observer = SchedulerPoolStatsObserver(
            session_controller=None, hisparse_coordinator=None, enable_hisparse=False, **shared
        )
        self._checker = SchedulerInvariantChecker(
            disaggregation_mode=DisaggregationMode.NULL, page_size=cache.page_size, pool_stats_observer=self._observer,
            get_last_batch=lambda: None, get_running_batch=lambda: ScheduleBatch(reqs=[]),
            scheduler_stage_metrics=None, **shared,
        )  # fmt: skip

    def run(self) -> None:
        """Raise if something is lost."""
        has_leak, messages = self._checker._check_all_pools(self._observer.get_pool_stats())
        if has_leak:
            self._checker._report_leak("pool", "\n".join(messages))
        self._checker._check_req_pool()
        self._checker._check_tree_cache()
        self._nothing_is_locked()

    def _nothing_is_locked(self) -> None:
        """The package adds what is locked to what can be evicted, and so does not see one counted as the other."""
        states = self._tree.mamba_protected_size() if self._tree.supports_mamba() else 0
        locked = (self._tree.protected_size(), self._tree.swa_protected_size(), states)
        if any(locked):
            raise InconsistentError(f"nobody runs, and {locked} tokens, tokens of windows and states count as locked")
