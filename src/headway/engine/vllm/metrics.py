"""Headway's totals on vLLM's own `/metrics`.

The scheduler counts in the engine process, while the API server's process serves Prometheus. The growth of the totals
travels, under a prefix, in a dictionary of vLLM's scheduler statistics. This logger takes it out before vLLM's own
loggers see it, since plug-in loggers run first. Growth is sent instead of totals because each message reaches only one
of possibly several API servers.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from prometheus_client import Counter, Gauge
from vllm.v1.metrics.loggers import AggregateStatLoggerBase

from headway.engine.settings import EngineSettings
from headway.engine.vllm.plugin import is_headways
from headway.engine.vllm.seams import METRICS, works

PREFIX = "headway."

_SECONDS = {
    "slow_call_us": ("headway_slow_call_seconds", "Time in calls of the policy that took 0.2 s or more"),
    "scheduler_us": ("headway_scheduler_seconds", "Time in schedule(), vLLM's own included"),
    "vllm_schedule_us": ("headway_vllm_schedule_seconds", "Time in vLLM's own schedule()"),
    "follow_us": ("headway_follow_seconds", "Time following steps, while the workers compute them"),
    "swap_out_us": ("headway_swap_out_seconds", "Time of KV copies to the host, the slowest worker's"),
    "swap_in_us": ("headway_swap_in_seconds", "Time of KV copies back, the slowest worker's"),
    "forward_us": (
        "headway_forward_seconds",
        "Time of forward passes, the slowest worker's; with host memory for KV alone",
    ),
    "copy_wait_us": ("headway_copy_wait_seconds", "Time steps waited for KV copies"),
}
_LABELLED = {
    "departures": ("headway_departures", "Requests that left the queue without running on, by reason"),
    "differences": ("headway_differences", "Jobs for which a step did less than planned, by reason"),
}
_TOTALS = {
    "steps": "Calls of schedule()",
    "planned_steps": "Steps decided by a policy's plan",
    "distrusting_steps": "Steps in which a policy that goes by predicted lengths did not trust them",
    "untimed_steps": "Steps in which a policy that goes by predicted step times did not trust them",
    "empty_steps": "Steps that computed nothing",
    "scheduled_tokens": "Tokens granted",
    "admissions": "Requests started or resumed",
    "pauses": "Steps a resident request sat out with its KV kept",
    "planned_preemptions": "Preemptions the policy asked for",
    "shortage_preemptions": "Preemptions because KV blocks ran out",
    "swaps": "Preemptions whose KV the host keeps",
    "offloads": "Copies of a paused request's KV to the host, ahead of need",
    "prefetches": "Requests brought back from the host ahead of need",
    "put_backs": "Requests that came back from the host and left again without a step",
    "swapped_out_blocks": "KV blocks copied to the host",
    "swapped_in_blocks": "KV blocks copied back",
    "refused_swaps": "Swaps that the host had no room for, so that the KV was dropped",
    "failed_copies": "KV copies that came to nothing",
    "lost_copies": "Requests computed again because a copy of their KV failed or became void",
    "policy_faults": "Times the policy raised and stock order took over",
    "slow_calls": "Calls of the policy that took 0.2 s or more",
    "watchdog_faults": "Times work was ready and nothing ran",
    "late_transfers": "Transfers of KV by a connector of another package that took longer than a minute",
    "unwritten_records": "Records of requests that found no room in their file",
}


@cache
def _counter(name: str, description: str, *labels: str) -> Counter:
    """Make a counter at its first use, shared by all engines, so that a process without Headway's scheduler shows
    none.
    """
    return Counter(name, description, ["engine", *labels])


@cache
def _policy() -> Gauge:
    """The policy's gauge, made at start, so that a fresh server already tells its policy."""
    text = "1 for the policy that Headway's scheduler was started with; stock order once it has failed"
    return Gauge("headway_policy", text, ["policy"])


class HeadwayStatLogger(AggregateStatLoggerBase):  # type: ignore[misc]
    """Names the policy, and adds up each engine's totals in Prometheus counters; does nothing under stock."""

    def __init__(self, vllm_config: Any, engine_indexes: list[int]) -> None:
        """Engines name themselves in `record`."""
        self._counts = is_headways(vllm_config) and works(METRICS)
        if is_headways(vllm_config):
            settings = EngineSettings.from_additional_config(vllm_config.additional_config)
            _policy().labels(settings.policy).set(1)

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        """Remove the growth of Headway's totals from vLLM's statistics, and count it."""
        if scheduler_stats is None or not self._counts:
            return
        carried = scheduler_stats.num_kv_fetch_reqs_by_stage
        for key in [key for key in carried if key.startswith(PREFIX)]:
            _grow(str(engine_idx), key.removeprefix(PREFIX), carried.pop(key))

    def log_engine_initialized(self) -> None:
        """Nothing: the scheduler announces its policy itself."""


# vLLM makes this logger in every server without a guard, so methods that a later version adds must not fail.
HeadwayStatLogger.__abstractmethods__ = frozenset()


def _grow(engine: str, name: str, grown: int) -> None:
    kind, _, reason = name.partition(".")
    if reason:
        _counter(*_LABELLED[kind], "reason").labels(engine, reason).inc(grown)
    elif name in _SECONDS:
        _counter(*_SECONDS[name]).labels(engine).inc(grown / 1e6)
    else:
        _counter(f"headway_{name}", _TOTALS[name]).labels(engine).inc(grown)
