"""What a shadow needs to know of an engine: who came and what became of them, what steps took, and its sizes."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from itertools import islice
from statistics import median
from typing import Any

from headway.core.job import Job
from headway.errors import ConfigError
from headway.explain.story import Kind
from headway.explain.track import Track
from headway.explain.trail import JudgedStep, Trail

_HOST_STEPS = 256
"""Steps from which the host's time between two steps is taken."""
_COPIED_BLOCKS = 256
_COUNTS = re.compile("([0-9]{1,18})-([0-9]{1,18})")
"""More digits than any count has are refused: Python reads no number of thousands of them."""
_PARTS = ("order", "batching", "eviction", "leaving")


def window(trail: Trail, asked: str, now_s: float) -> dict[str, Any]:
    """Ended requests, and steps, since the counts that `asked` names as ENDED-STEPS, with the counts for the next
    time; and the live requests. O(what is told), some microseconds a request.

    Raises ConfigError for another question. What was not asked for in time is gone: `missed` says how many requests.
    """
    since, steps_since = _counts(asked)
    new = max(0, trail.num_ended - since)
    kept = min(new, len(trail.ended))
    ended = list(islice(reversed(trail.ended), kept))[::-1]
    num_steps = min(max(0, trail.num_judged - steps_since), len(trail.judged))
    steps = list(islice(reversed(trail.judged), num_steps))[::-1]
    return {
        "now_s": now_s,
        "next": f"{trail.num_ended}-{trail.num_judged}",
        "missed": new - kept,
        "ended": [_request(track) for track in ended],
        "live": [_request(track) for track in trail.live.values()],
        "steps": [_step(step) for step in steps],
        "host_s": host_s(trail),
    }


def _counts(asked: str) -> tuple[int, int]:
    counts = _COUNTS.fullmatch(asked)
    if counts is None:
        raise ConfigError(f"{asked!r} names no counts; accepted: ENDED-STEPS, 0-0 at first")
    return int(counts[1]), int(counts[2])


def _request(track: Track) -> dict[str, Any]:
    """One request: what it asked for, and what became of it so far."""
    job, record = track.job, track.record
    slo = job.slo
    return {
        "id": job.id,
        "arrival_s": job.arrival_s,
        "prompt_tokens": job.num_prompt_tokens,
        "found_tokens": _found_tokens(track),
        "output_tokens": job.num_output_tokens,
        "max_output_tokens": job.max_output_tokens,
        "targets_s": [slo.ttft_s, slo.tbt_s, slo.deadline_s],
        "priority": job.priority,
        "tenant": job.tenant,
        "predicted": _predicted(job),
        "outcome": None if record is None else str(record.outcome),
        "first_token_s": job.first_token_s,
        "finished_s": None if record is None else record.finished_s,
    }


def _found_tokens(track: Track) -> int:
    """Tokens of its prompt whose KV was on the device already when it first started."""
    started = next((mark for mark in track.marks if mark.kind is Kind.ADMITTED), None)
    return 0 if started is None else max(0, started.computed)


def _predicted(job: Job) -> list[float] | None:
    estimate = job.predicted_length
    return None if estimate is None else [estimate.tokens, estimate.low_tokens, estimate.high_tokens]


def _step(step: JudgedStep) -> list[float]:
    shape = step.shape
    return [
        step.took_s,
        shape.num_jobs,
        shape.num_tokens,
        shape.num_decodes,
        shape.decode_context_tokens,
        shape.prefill_context_tokens,
        shape.prefill_pairs,
    ]


def host_s(trail: Trail) -> float:
    """Seconds between two steps in which nothing computes: the median of those known, idle times left out.

    From one schedule to the next less what the step between took; 0 where that is always under way.
    """
    times_s = trail.steps.times_s(4 * _HOST_STEPS)
    found: list[float] = []
    for step in islice(reversed(trail.judged), _HOST_STEPS):
        following = bisect_left(times_s, step.at_s)
        planned = bisect_right(times_s, step.at_s - step.took_s) - 1
        if planned < 0 or following >= len(times_s) or times_s[following] - step.at_s > step.took_s:
            continue
        found.append(max(0.0, times_s[following] - times_s[planned] - step.took_s))
    return median(found) if found else 0.0


def about(scheduler: Any) -> dict[str, Any]:
    """The policy that a scheduler goes by now, and its sizes by the names of the simulator's."""
    settings, view, swaps = scheduler.settings, scheduler.view, scheduler.swaps
    out_s, in_s = scheduler.cost.swap_out_s, scheduler.cost.swap_in_s
    guard = scheduler.guard
    # The stock policy that takes over has no parts of the settings, even where these name it too.
    parts = {} if guard.fell_back else {part: getattr(settings, part) for part in _PARTS}
    return {
        "policy": guard.policy.name,
        "parts": parts,
        "priority_first": guard.priority_first,
        "limits": {
            "num_blocks": scheduler.kv_cache_manager.block_pool.num_gpu_blocks - 1,
            "block_size": view.block_size,
            "max_num_seqs": view.max_resident,
            "max_num_batched_tokens": view.max_tokens,
            "batch_width": settings.batch_width,
            "max_cudagraph_capture_size": scheduler.cost.steps.graphed_tokens,
            "watermark_blocks": scheduler.kv_cache_manager.watermark_blocks,
            "prefix_caching": scheduler.kv_cache_manager.enable_caching,
            "asynchronous": bool(scheduler.scheduler_config.async_scheduling),
            "host_blocks": 0 if swaps is None else view.host_total_blocks,
        },
        "copies_s": [out_s(1), out_s(_COPIED_BLOCKS), in_s(1), in_s(_COPIED_BLOCKS)],
        "copied_blocks": _COPIED_BLOCKS,
    }
