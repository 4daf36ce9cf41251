"""One run of Magnus's experiments, simulated: whole batches from one queue, or iteration by iteration."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Reversible, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import sqrt
from statistics import fmean

import numpy as np

from headway.core.length_estimate import LengthEstimate
from headway.core.record import Outcome, Record
from headway.errors import HeadwayError
from headway.lab.policy_choice import OWN_PARTS, policy_factory
from headway.predict.batch_time import BatchRow
from headway.results.metrics import end_s, jct_s, measured
from headway.routing.batch import Batch, Member
from headway.routing.choosing import Choosing
from headway.routing.joining import Joining
from headway.routing.magnus import BatchSettings, build_batch_queue
from headway.sim.limits import EngineLimits
from headway.sim.simulation import System, simulate
from headway.sim.static_cluster import StaticSystem, simulate_batches
from headway.traces import TraceRequest
from headway_reproduce.magnus.data import LONGEST_OUTPUT
from headway_reproduce.magnus.forecasts import Forecasts
from headway_reproduce.magnus.run import Change, MagnusResult, MagnusRun, run_costs
from headway_reproduce.magnus.setting import (
    CAPACITY_TOKENS,
    CCB,
    INSTANCES,
    MAGNUS,
    PREDICTING,
    TODAY,
    VS_BATCH,
    VSQ,
    VSQ_CAPACITY_TOKENS,
)
from headway_reproduce.magnus.stream import task_requests
from headway_reproduce.magnus.times import BatchTimes, profile

BLOCK_TOKENS = 16
TOKENS_A_STEP = 8192
"""Of the continuous engines: vLLM's own default."""
TODAY_SEATS = 256
CONTINUOUS = {CCB: "vllm-v0", TODAY: "vllm"}
"""Who batches iteration by iteration -> the simulator's policy: `vllm-v0` starts prompts first and whole, and those
who decode wait for them."""
ROUTER = "least-work"
"""In front of the continuous instances; the others share one queue."""


def simulate_magnus(run: MagnusRun) -> MagnusResult:
    """Simulate one run; an error raised on purpose names it. Holds its records in memory."""
    requests = task_requests(run.source, run.seed, run.rate_rps)
    try:
        return (_continuous if run.policy in CONTINUOUS else _batched)(run, requests)
    except HeadwayError as error:
        raise type(error)(f"{run.policy} at {run.rate_rps:.4g} req/s, seed {run.seed}: {error}") from error


# ---- whole batches -------------------------------------------------------------------------------------


def _batched(run: MagnusRun, requests: Sequence[TraceRequest]) -> MagnusResult:
    records: list[Record] = []
    costs = run_costs(run.policy, run.change)
    times = BatchTimes.of(_profile(run.change)) if run.policy == MAGNUS else None
    capacity = VSQ_CAPACITY_TOKENS if run.policy == VSQ else CAPACITY_TOKENS
    forecasts = _forecasts(run)
    settings = BatchSettings(
        capacity_tokens=capacity,
        wma_limit=run.phi,
        batch_size=run.change.max_batch,
        safety_factor=run.change.safety,
    )
    queue = build_batch_queue(run.policy, settings, times)
    queue.joining = joining = _TimedJoining(queue.joining)
    queue.choosing = choosing = _TimedChoosing(queue.choosing)

    def ended(record: Record) -> None:
        records.append(record)
        if times is not None:
            times.now_s = end_s(record)
        if forecasts is not None:
            forecasts.ended(record)

    result = simulate_batches(
        requests,
        queue,
        StaticSystem(
            step=costs.step, kv_capacity_tokens=capacity, instances=INSTANCES, residuals=costs.residuals
        ),
        on_record=ended,
        max_output_tokens=LONGEST_OUTPUT,
        estimate=_estimate(run, forecasts),
        seed=run.seed,
    )
    waste = result.waste
    return replace(
        _result(records, waste.valid_tokens, waste.valid_tokens + waste.invalid_tokens),
        oom=waste.out_of_memory,
        mean_batch=len(requests) / result.batches,
        length_rmse=_length_rmse(records) if run.policy in PREDICTING else None,
        time_rmse_s=times.rmse_s() if times else None,
        refits=forecasts.refits if forecasts else 0,
        join_us=1e6 * joining.seconds / len(requests),
        choose_us=1e6 * choosing.seconds / result.batches,
    )


def _forecasts(run: MagnusRun) -> Forecasts | None:
    if run.policy not in PREDICTING or run.change.true_lengths:
        return None
    return Forecasts(run.source, run.seed, learns=run.change.learns)


def _estimate(run: MagnusRun, forecasts: Forecasts | None) -> Callable[[TraceRequest], LengthEstimate | None]:
    if forecasts is not None:
        return forecasts.estimate
    if run.policy in PREDICTING:
        return lambda request: LengthEstimate.around(request.output_tokens)
    return lambda request: None


@dataclass(slots=True)
class _TimedJoining:
    """Decides as another does, timed by this process's CPU clock."""

    joining: Joining
    seconds: float = 0.0

    def join(self, member: Member, batches: Reversible[Batch]) -> Batch | None:
        """As `Joining.join`."""
        started_s = time.thread_time()
        found = self.joining.join(member, batches)
        self.seconds += time.thread_time() - started_s
        return found


@dataclass(slots=True)
class _TimedChoosing:
    """Chooses as another does, timed by this process's CPU clock."""

    choosing: Choosing
    seconds: float = 0.0

    def choose(self, batches: Collection[Batch], now_s: float) -> Batch:
        """As `Choosing.choose`."""
        started_s = time.thread_time()
        found = self.choosing.choose(batches, now_s)
        self.seconds += time.thread_time() - started_s
        return found


# ---- continuous batches --------------------------------------------------------------------------------


def _continuous(run: MagnusRun, requests: Sequence[TraceRequest]) -> MagnusResult:
    records: list[Record] = []
    limits = EngineLimits(
        num_blocks=CAPACITY_TOKENS // BLOCK_TOKENS,
        block_size=BLOCK_TOKENS,
        max_num_seqs=VS_BATCH if run.policy == CCB else TODAY_SEATS,
        max_num_batched_tokens=TOKENS_A_STEP,
        prefix_caching=False,
    )
    system = System(
        limits=limits, calibration=run_costs(run.policy, run.change), instances=INSTANCES, router=ROUTER
    )
    simulate(
        requests,
        policy_factory(CONTINUOUS[run.policy], OWN_PARTS, requests),
        system,
        on_record=records.append,
        max_output_tokens=LONGEST_OUTPUT,
        seed=run.seed,
    )
    tokens = sum(record.output_tokens for record in records)
    return _result(records, tokens, tokens)


# ---- what it came to -----------------------------------------------------------------------------------


def _result(records: Sequence[Record], valid_tokens: int, total_tokens: int) -> MagnusResult:
    times_s = measured(map(jct_s, records))
    duration_s = max(map(end_s, records)) - min(record.arrival_s for record in records)
    return MagnusResult(
        requests=len(records),
        finished=len(times_s),
        throughput_rps=len(times_s) / duration_s,
        mean_rt_s=fmean(times_s),
        p95_rt_s=float(np.quantile(times_s, 0.95)),
        valid_tps=valid_tokens / duration_s,
        total_tps=total_tokens / duration_s,
    )


def _length_rmse(records: Sequence[Record]) -> float:
    finished = [record for record in records if record.outcome is Outcome.FINISHED]
    errors = [(record.predicted_output_tokens or 0.0) - record.output_tokens for record in finished]
    return sqrt(fmean(error * error for error in errors))


@lru_cache(maxsize=4)
def _profile(change: Change) -> tuple[BatchRow, ...]:
    return profile(run_costs(MAGNUS, change).step)
