"""The summary of one run under one policy: what each number means, and its computation from records."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, get_type_hints

import msgspec

from headway.core.record import Outcome, Record
from headway.errors import RecordError
from headway.results.records import TIME_DECIMALS
from headway.statistics import known, mean_of_known, quantile


class Better(StrEnum):
    """Which direction of a column is an improvement; NEITHER if that depends on the context."""

    LOWER = "lower"
    HIGHER = "higher"
    NEITHER = "neither"


class Group(StrEnum):
    """The table of a column."""

    GOALS = "Goodput and throughput"
    LATENCY = "Latency of finished requests"
    REQUESTS = "How requests ended"
    MEMORY = "Memory and scheduler"
    PROGRAMS = "Agent programs"


@dataclass(frozen=True, slots=True)
class Column:
    """How a summary key is shown and read; `unit` is "" for counts, shares and ratios."""

    group: Group
    unit: str
    better: Better
    heading: str
    meaning: str


class RunInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run knows beyond its records; None if not measured.

    `swapped_out_blocks` replaces the sum over the records, for runs that also copy blocks ahead of need.
    """

    swapped_out_blocks: int | None = None
    swapped_in_blocks: int | None = None
    cached_tokens: int | None = None
    scheduler_us_per_step: float | None = None


_LOW, _HIGH, _NEITHER = Better.LOWER, Better.HIGHER, Better.NEITHER
_goal = partial(Column, Group.GOALS)
_latency = partial(Column, Group.LATENCY, "s", _LOW)
_request = partial(Column, Group.REQUESTS, "")
_memory = partial(Column, Group.MEMORY)
_program = partial(Column, Group.PROGRAMS)

_ENDED = "requests that ended: finished + shed + expired + failed + cancelled"
_TBT = "time between tokens = (finished - first token) / (output tokens - 1), one value a request"
_TURNAROUND = "mean of JCT / (finished - first scheduled); 1 is no waiting"
_GOODPUT = "share (0-1) of all requests with a target that met all of theirs; refused and lost ones did not"
_SHED = "requests refused because they could not make their targets"
_PROGRAMS = "programs (sessions of a tenant) of which every request was answered in full"
_PROGRAM = "first arrival of a program to the end of its last answer, tools included"
_HITS = "share (0-1) of the prompt tokens that the prefix cache held"
_FAILED = "requests lost to an error, or handed off and never seen again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One policy's run in numbers; None means not measurable. Keys are stable: scripts rely on them.

    Means and quantiles are over the finished requests that have the value; quantiles are interpolated linearly between
    order statistics (numpy's default; Hyndman and Fan 1996, type 7).
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
    programs: Annotated[int | None, _program("", _HIGH, "programs", _PROGRAMS)] = None
    mean_program_s: Annotated[float | None, _program("s", _LOW, "program mean", _PROGRAM)] = None
    p99_program_s: Annotated[float | None, _program("s", _LOW, "program p99", "99th percentile of it")] = None
    prefix_hit_rate: Annotated[float | None, _program("", _HIGH, "prefix hits", _HITS)] = None

    def to_dict(self) -> dict[str, int | float | None]:
        """Key -> value, in the order above."""
        return asdict(self)


COLUMNS: dict[str, Column] = {
    key: hint.__metadata__[0] for key, hint in get_type_hints(Summary, include_extras=True).items()
}
"""Summary key -> its column, in the order of Summary."""


_RESOLUTION_S = 10.0**-TIME_DECIMALS

LOST = "handed off and never seen again"


def jct_s(record: Record) -> float | None:
    """Arrival to finish; None unless finished."""
    if record.outcome is not Outcome.FINISHED or record.finished_s is None:
        return None
    return record.finished_s - record.arrival_s


def ttft_s(record: Record) -> float | None:
    """Arrival to first token; None unless the request finished and had one."""
    if record.outcome is not Outcome.FINISHED or record.first_token_s is None:
        return None
    return record.first_token_s - record.arrival_s


def tbt_s(record: Record) -> float | None:
    """Mean time per output token after the first; None unless finished with two tokens or more."""
    if record.outcome is not Outcome.FINISHED or record.output_tokens < 2:
        return None
    if record.finished_s is None or record.first_token_s is None:
        return None
    return (record.finished_s - record.first_token_s) / (record.output_tokens - 1)


def weighted_turnaround(record: Record) -> float | None:
    """Time in the system over time since first scheduled, >= 1; None unless finished and the latter is > 0.

    Source: AdaptiveLLM, weighted turnaround (finish - send) / (finish - first scheduled).
    """
    whole_s = jct_s(record)
    if whole_s is None or record.finished_s is None or record.first_scheduled_s is None:
        return None
    served_s = record.finished_s - record.first_scheduled_s
    return whole_s / served_s if served_s > 0 else None


def normalized_latency_s(record: Record) -> float | None:
    """Arrival to finish per output token; None unless finished with a token."""
    whole_s = jct_s(record)
    return None if whole_s is None or record.output_tokens < 1 else whole_s / record.output_tokens


def end_s(record: Record) -> float:
    """When the record closed; if that was not written, its latest time."""
    times_s = (record.finished_s, record.first_token_s, record.first_scheduled_s)
    return next((time_s for time_s in times_s if time_s is not None), record.arrival_s)


def met_targets(record: Record) -> bool:
    """Whether a request finished within all of its targets; a value that was not measured meets none.

    Equality at the stored resolution counts as met; so does the time between tokens of a single token.
    """
    if record.outcome is not Outcome.FINISHED:
        return False
    slo = record.slo
    return (
        _within(ttft_s(record), slo.ttft_s)
        and (record.output_tokens <= 1 or _within(tbt_s(record), slo.tbt_s))
        and _within(jct_s(record), slo.deadline_s)
    )


def _within(value_s: float | None, target_s: float | None) -> bool:
    if target_s is None:
        return True
    return value_s is not None and value_s - target_s < _RESOLUTION_S / 2


def ends(records: Iterable[Record]) -> list[Record]:
    """The only end of every request, without moves.

    A hand-off is a move, written by the instance that gave the request up; its end is another record with the same id.
    A move whose request has no end was lost: its last record represents it, as failed. Raises RecordError if a request
    ends twice.
    """
    ended: dict[str, Record] = {}
    moved: dict[str, Record] = {}
    for record in records:
        if record.outcome is Outcome.HANDED_OFF:
            if record.id not in moved or end_s(record) > end_s(moved[record.id]):
                moved[record.id] = record
        elif record.id in ended:
            raise RecordError(f"request {record.id!r} ends twice; a request ends exactly once")
        else:
            ended[record.id] = record
    lost = (
        replace(move, outcome=Outcome.FAILED, error=LOST) for id_, move in moved.items() if id_ not in ended
    )
    return [*ended.values(), *lost]


def summarize(records: Sequence[Record], *, run: RunInfo | None = None) -> Summary:
    """The summary of one policy's run; the order of the records does not matter.

    Requests are counted by their `ends`. Preemptions, blocks and recomputed tokens are summed over all records
    including moves, since that work was done. `run` adds what records lack. Raises RecordError if a request ends twice.
    """
    run = run or RunInfo()
    ended = ends(records)
    finished = [record for record in ended if record.outcome is Outcome.FINISHED]
    swapped_out = run.swapped_out_blocks
    if swapped_out is None:
        swapped_out = sum(record.swapped_blocks for record in records)
    return Summary(
        **_counts(records, ended),
        **_rates(ended, finished),
        **_latencies(finished),
        preemptions=sum(record.preemptions for record in records),
        swapped_out_blocks=swapped_out,
        swapped_in_blocks=run.swapped_in_blocks,
        recomputed_tokens=sum(record.recomputed_tokens for record in records),
        scheduler_us_per_step=run.scheduler_us_per_step,
        **(_programs(records, ended, run) if any(record.program is not None for record in ended) else {}),
    )


def _programs(records: Sequence[Record], ended: Sequence[Record], run: RunInfo) -> dict[str, Any]:
    """The combined results of the turns of each program."""
    turns: defaultdict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in ended:
        if record.program is not None:
            turns[record.tenant, record.program].append(record)
    whole = [each for each in turns.values() if all(turn.outcome is Outcome.FINISHED for turn in each)]
    spans_s = [max(map(end_s, each)) - min(turn.arrival_s for turn in each) for each in whole]
    prompt_tokens = sum(record.prompt_tokens for record in records)
    return {
        "programs": len(whole),
        "mean_program_s": mean_of_known(spans_s),
        "p99_program_s": quantile(spans_s, 0.99) if spans_s else None,
        "prefix_hit_rate": None if run.cached_tokens is None else run.cached_tokens / max(1, prompt_tokens),
    }


def _counts(records: Sequence[Record], ended: Sequence[Record]) -> dict[str, int]:
    by_outcome = Counter(record.outcome for record in ended)
    counts = {str(outcome): by_outcome[outcome] for outcome in Outcome if outcome is not Outcome.HANDED_OFF}
    assert sum(counts.values()) == len(ended), "an outcome is not counted"
    moves = sum(record.outcome is Outcome.HANDED_OFF for record in records)
    return {"requests": len(ended), **counts, "handed_off": moves}


def _rates(ended: Sequence[Record], finished: Sequence[Record]) -> dict[str, Any]:
    """Duration, throughput and goodput; rates need a positive duration, goodput a request with a target."""
    duration_s = max(map(end_s, ended)) - min(record.arrival_s for record in ended) if ended else None
    output_tokens = sum(record.output_tokens for record in finished)
    prompt_tokens = sum(record.prompt_tokens for record in finished)
    targeted = [record for record in ended if record.slo]
    met = sum(map(met_targets, targeted))

    def per_second(count: int) -> float | None:
        return count / duration_s if duration_s else None

    return {
        "duration_s": duration_s,
        "throughput_rps": per_second(len(finished)),
        "output_tps": per_second(output_tokens),
        "total_tps": per_second(prompt_tokens + output_tokens),
        "goodput": met / len(targeted) if targeted else None,
        "goodput_rps": per_second(met) if targeted else None,
    }


def _latencies(finished: Sequence[Record]) -> dict[str, Any]:
    ttfts, tbts, jcts = (known(map(value, finished)) for value in (ttft_s, tbt_s, jct_s))

    def share(values: Sequence[float], within: float) -> float | None:
        return quantile(values, within) if values else None

    return {
        "mean_ttft_s": mean_of_known(ttfts),
        "p50_ttft_s": share(ttfts, 0.5),
        "p99_ttft_s": share(ttfts, 0.99),
        "mean_tbt_s": mean_of_known(tbts),
        "p99_tbt_s": share(tbts, 0.99),
        "mean_jct_s": mean_of_known(jcts),
        "p50_jct_s": share(jcts, 0.5),
        "p99_jct_s": share(jcts, 0.99),
        "mean_normalized_latency_s": mean_of_known(map(normalized_latency_s, finished)),
        "weighted_turnaround": mean_of_known(map(weighted_turnaround, finished)),
    }
