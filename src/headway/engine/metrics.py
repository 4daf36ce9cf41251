"""Headway's totals on vLLM's own `/metrics`.

The scheduler counts in the engine process; Prometheus is served by the API server's. The totals ride on a
dictionary that vLLM's scheduler statistics carry across anyway, under a prefix, and are taken out here
before vLLM's own loggers look at it (plug-in loggers come first).
"""

from __future__ import annotations

from typing import Any

from prometheus_client import Counter
from vllm.v1.metrics.loggers import AggregateStatLoggerBase

PREFIX = "headway."

_SECONDS = {
    "scheduler_us": ("headway_scheduler_seconds", "Time in schedule(), vLLM's own included"),
    "vllm_schedule_us": ("headway_vllm_schedule_seconds", "Time in vLLM's own schedule()"),
}
_LABELLED = {
    "departures": ("headway_departures", "Requests that left the queue without running on, by reason"),
    "differences": ("headway_differences", "Jobs for which a step did less than planned, by reason"),
}
_TOTALS = {
    "steps": "Calls of schedule()",
    "planned_steps": "Steps decided by a policy's plan",
    "empty_steps": "Steps that computed nothing",
    "scheduled_tokens": "Tokens granted",
    "admissions": "Requests started or resumed",
    "pauses": "Steps a resident request sat out with its KV kept",
    "planned_preemptions": "Preemptions the policy asked for",
    "shortage_preemptions": "Preemptions because KV blocks ran out",
    "policy_faults": "Times the policy raised and stock order took over",
    "watchdog_faults": "Times work was ready and nothing ran",
}


class HeadwayStatLogger(AggregateStatLoggerBase):  # type: ignore[misc]
    """Turns the totals of each engine into Prometheus counters; silent while stock schedules."""

    def __init__(self, vllm_config: Any, engine_indexes: list[int]) -> None:
        self._seen: dict[tuple[int, str], int] = {}
        self._counters: dict[str, Counter] = {}

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        """Move Headway's totals out of vLLM's statistics and count what they grew by."""
        if scheduler_stats is None:
            return
        carried = scheduler_stats.num_kv_fetch_reqs_by_stage
        for key in [key for key in carried if key.startswith(PREFIX)]:
            self._grow(engine_idx, key.removeprefix(PREFIX), carried.pop(key))

    def _grow(self, engine_idx: int, name: str, total: int) -> None:
        grown = total - self._seen.get((engine_idx, name), 0)
        self._seen[engine_idx, name] = total
        engine = str(engine_idx)
        kind, _, reason = name.partition(".")
        if reason:
            self._counter(*_LABELLED[kind], "reason").labels(engine, reason).inc(grown)
        elif name in _SECONDS:
            self._counter(*_SECONDS[name]).labels(engine).inc(grown / 1e6)
        else:
            self._counter(f"headway_{name}", _TOTALS[name]).labels(engine).inc(grown)

    def _counter(self, name: str, description: str, *labels: str) -> Counter:
        """Made at first use, so that an engine without Headway shows none of them."""
        if name not in self._counters:
            self._counters[name] = Counter(name, description, ["engine", *labels])
        return self._counters[name]

    def log_engine_initialized(self) -> None:
        """Nothing to say: the scheduler announces its policy itself."""
