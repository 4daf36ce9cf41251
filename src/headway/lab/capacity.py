"""Capacity: the rate at which a server works through requests that are all there at once; load is a share of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from math import ceil, isfinite

from headway.core.record import Outcome, Record
from headway.core.slo import NO_TARGETS
from headway.errors import ConfigError, UpstreamError
from headway.loadgen import ReplayOptions, replay
from headway.traces import TraceRequest, scale_rate


def capacity_rps(requests: Sequence[TraceRequest], options: ReplayOptions, *, share: float = 1.0) -> float:
    """Requests a second that a server finishes, all of these there at once and without targets.

    It is the rate up to when `share` of them have finished. Raises UpstreamError if one does not finish.
    """
    report = asyncio.run(replay(at_once(requests), options))
    finished = all_finished(report.records, len(requests))
    ends_s = sorted(record.finished_s or 0.0 for record in finished)
    counted = max(1, int(share * len(ends_s)))
    return counted / ends_s[counted - 1]


def at_once(requests: Sequence[TraceRequest]) -> list[TraceRequest]:
    """The same requests, all at 0 s and without targets."""
    return [replace(request, arrival_s=0.0, slo=NO_TARGETS) for request in requests]


def all_finished(records: list[Record], count: int) -> list[Record]:
    """The records, if all `count` requests finished; else UpstreamError."""
    unfinished = [record for record in records if record.outcome is not Outcome.FINISHED]
    if unfinished or len(records) != count:
        why = unfinished[0].error or unfinished[0].outcome if unfinished else "they were not sent"
        raise UpstreamError(
            f"{count - len(records) + len(unfinished)} of {count} requests did not finish: {why}"
        )
    return records


def sample(requests: Sequence[TraceRequest], most: int) -> list[TraceRequest]:
    """At most so many of the requests, spread evenly over all lengths of answers, in the order they had.

    They stand in for a stream whose capacity is measured: their prompts are made up to the same lengths, so that a
    prefix cache holds none of the stream's own afterwards.

    >>> stream = [TraceRequest(str(n), n / 10, 8, n + 1, prompt="x") for n in range(6)]
    >>> [(request.id, request.output_tokens, request.prompt) for request in sample(stream, 3)]
    [('capacity-1', 2, None), ('capacity-3', 4, None), ('capacity-5', 6, None)]
    """
    step = ceil(len(requests) / most)
    by_length = sorted(
        range(len(requests)),
        key=lambda number: (requests[number].output_tokens, requests[number].input_tokens, number),
    )
    chosen = sorted(by_length[step // 2 :: step])
    return [replace(requests[number], id=f"capacity-{requests[number].id}", prompt=None) for number in chosen]


def at_load(requests: Sequence[TraceRequest], load: float, capacity: float) -> list[TraceRequest]:
    """The same requests, arriving at `load` of the capacity in the mean.

    Raises ConfigError for a load that is none, and where all requests arrive at 0 s, which is no rate.
    """
    if not (isfinite(load) and load > 0):
        raise ConfigError(f"--load is {load:g}; accepted: a finite number above 0")
    last_s = max((request.arrival_s for request in requests), default=0.0)
    if last_s <= 0:
        raise ConfigError(
            f"--load is {load:g} and all {len(requests)} requests arrive at 0 s; accepted: requests that arrive "
            "over time"
        )
    return scale_rate(requests, load * capacity * last_s / len(requests))
