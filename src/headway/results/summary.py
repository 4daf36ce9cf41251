"""The numbers of one run under one policy, and what each of them means."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from typing import Annotated, get_type_hints

import msgspec


class Better(StrEnum):
    """Which direction of a column is an improvement; NEITHER where a value is good or bad only in context."""

    LOWER = "lower"
    HIGHER = "higher"
    NEITHER = "neither"


class Group(StrEnum):
    """The table a column is shown in."""

    GOALS = "Goodput and throughput"
    LATENCY = "Latency of finished requests"
    REQUESTS = "How requests ended"
    MEMORY = "Memory and scheduler"


@dataclass(frozen=True, slots=True)
class Column:
    """How a summary key is shown and read; `unit` is "" for counts, shares and ratios."""

    group: Group
    unit: str
    better: Better
    heading: str
    meaning: str


class RunInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run knows beyond its records; None where it was not measured.

    `swapped_out_blocks` replaces the sum over the records, for runs that copy blocks ahead of need as well.
    """

    swapped_out_blocks: int | None = None
    swapped_in_blocks: int | None = None
    scheduler_us_per_step: float | None = None


_LOW, _HIGH, _NEITHER = Better.LOWER, Better.HIGHER, Better.NEITHER
_goal = partial(Column, Group.GOALS)
_latency = partial(Column, Group.LATENCY, "s", _LOW)
_request = partial(Column, Group.REQUESTS, "")
_memory = partial(Column, Group.MEMORY)

_ENDED = "requests that ended: finished + shed + expired + failed + cancelled"
_TBT = "time between tokens = (finished - first token) / (output tokens - 1), one value a request"
_TURNAROUND = "mean of JCT / (finished - first scheduled); 1 is no waiting"
_GOODPUT = "share (0-1) of all requests with a target that met all of theirs; refused and lost ones did not"
_SHED = "requests refused because they could not make their targets"
_FAILED = "requests lost to an error, or handed off and never seen again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One policy's run in numbers; None means not measurable. Keys are stable: scripts rely on them.

    Means and quantiles are over the finished requests that have the value; quantiles interpolate linearly
    between order statistics (numpy's default; Hyndman and Fan 1996, type 7).
    """

    requests: Annotated[int, _request(_NEITHER, "requests", _ENDED)]
    finished: Annotated[int, _request(_HIGH, "finished", "requests answered in full")]
    shed: Annotated[int, _request(_LOW, "shed", _SHED)]
    expired: Annotated[int, _request(_LOW, "expired", "requests dropped after their deadline")]
    handed_off: Annotated[
        int, _request(_NEITHER, "handed off", "moves to another instance; a move is no end")
    ]
    failed: Annotated[int, _request(_LOW, "failed", _FAILED)]
    cancelled: Annotated[int, _request(_NEITHER, "cancelled", "requests withdrawn by their client")]
    duration_s: Annotated[float | None, _goal("s", _NEITHER, "duration", "last end - first arrival")]
    throughput_rps: Annotated[float | None, _goal("req/s", _HIGH, "throughput", "finished / duration")]
    output_tps: Annotated[
        float | None, _goal("tok/s", _HIGH, "output", "output tokens of finished requests / duration")
    ]
    total_tps: Annotated[
        float | None,
        _goal("tok/s", _HIGH, "total", "prompt and output tokens of finished requests / duration"),
    ]
    mean_ttft_s: Annotated[float | None, _latency("TTFT mean", "time to first token = first token - arrival")]
    p50_ttft_s: Annotated[float | None, _latency("TTFT p50", "median TTFT")]
    p99_ttft_s: Annotated[float | None, _latency("TTFT p99", "99th percentile of TTFT")]
    mean_tbt_s: Annotated[float | None, _latency("TBT mean", _TBT)]
    p99_tbt_s: Annotated[float | None, _latency("TBT p99", "99th percentile of TBT over requests")]
    mean_jct_s: Annotated[float | None, _latency("JCT mean", "job completion time = finished - arrival")]
    p50_jct_s: Annotated[float | None, _latency("JCT p50", "median JCT")]
    p99_jct_s: Annotated[float | None, _latency("JCT p99", "99th percentile of JCT")]
    mean_normalized_latency_s: Annotated[
        float | None, _latency("JCT per token", "mean of JCT / output tokens")
    ]
    weighted_turnaround: Annotated[
        float | None, Column(Group.LATENCY, "", _LOW, "weighted turnaround", _TURNAROUND)
    ]
    goodput: Annotated[float | None, _goal("", _HIGH, "goodput", _GOODPUT)]
    goodput_rps: Annotated[
        float | None, _goal("req/s", _HIGH, "goodput rate", "requests that met their targets / duration")
    ]
    preemptions: Annotated[
        int, _memory("", _NEITHER, "preemptions", "times a request's KV cache left the device")
    ]
    swapped_out_blocks: Annotated[int, _memory("", _NEITHER, "blocks out", "KV blocks copied to the host")]
    swapped_in_blocks: Annotated[
        int | None, _memory("", _NEITHER, "blocks in", "KV blocks copied back to the device")
    ]
    recomputed_tokens: Annotated[
        int, _memory("", _LOW, "recomputed tokens", "tokens computed again after a preemption")
    ]
    scheduler_us_per_step: Annotated[
        float | None, _memory("µs/step", _LOW, "scheduler", "mean time to decide one step")
    ]

    def to_dict(self) -> dict[str, int | float | None]:
        """Key -> value, in the order above."""
        return asdict(self)


COLUMNS: dict[str, Column] = {
    key: hint.__metadata__[0] for key, hint in get_type_hints(Summary, include_extras=True).items()
}
"""Summary key -> its column, in the order of Summary."""
