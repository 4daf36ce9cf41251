"""One run of Magnus's experiments, simulated: whole batches from one queue, or iteration by iteration."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Reversible, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import floor, sqrt

import numpy as np

from headway.core.length_estimate import LengthEstimate
from headway.core.record import Outcome, Record
from headway.errors import HeadwayError
from headway.lab.simulation import simulate_policy
from headway.predict.steps.batch_time import BatchRow
from headway.results.metrics import end_s, jct_s
from headway.routing.batch import Batch, BatchMember
from headway.routing.batch_queue import Choosing, Joining
from headway.routing.magnus import BatchSettings, build_batch_queue
from headway.sim.limits import EngineLimits
from headway.sim.simulation import System
from headway.statistics import known, mean, quantile
from headway.traces import TraceRequest
from headway_reproduce.magnus.cells import UNCHANGED, MagnusChange, MagnusRun, run_costs
from headway_reproduce.magnus.data import (
    LONGEST_OUTPUT,
    DataSource,
    TaskRow,
    drawn_rows,
    load_tasks,
    task_requests,
)
from headway_reproduce.magnus.engine import BatchTimes, profile
from headway_reproduce.magnus.features import USER_GROUPS, MagnusFeatures
from headway_reproduce.magnus.forest import LengthForest, Rows, Tokens, worth_learning
from headway_reproduce.magnus.setting import (
    CAPACITY_TOKENS,
    CCB,
    INSTANCES,
    LEARN_EVERY_S,
    MAGNUS,
    PREDICTING,
    TODAY,
    VS_BATCH,
    VSQ,
    VSQ_CAPACITY_TOKENS,
)
from headway_reproduce.magnus.static_batches import StaticSystem, simulate_batches

BLOCK_TOKENS = 16
TOKENS_A_STEP = 8192
"""Token budget of the continuous engines: vLLM's own default."""
TODAY_SEATS = 256
CONTINUOUS = {CCB: "vllm-v0", TODAY: "vllm"}
"""System that batches iteration by iteration -> the simulator's policy. `vllm-v0` starts prompts first and whole, and
decodes wait for them."""
ROUTER = "least-work"
"""The router in front of the continuous instances; the others share one queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MagnusResult:
    """The result of a run.

    Times are of finished requests, from arrival to the whole answer. `valid_tps` counts tokens of answers, `total_tps`
    also those that finished members went on producing. `oom` of the batches sent ran out of memory, among them
    `oom_again` halves of such batches. Errors are root mean squares, of lengths as predicted at arrival and of batch
    times; None where nothing is predicted. `join_us` and `choose_us` are this machine's time for putting a request into
    a batch and for choosing one.
    """

    requests: int
    finished: int
    throughput_rps: float
    mean_rt_s: float
    p95_rt_s: float
    valid_tps: float
    total_tps: float
    oom: int = 0
    oom_again: int = 0
    batches: int = 0
    mean_batch: float | None = None
    length_rmse: float | None = None
    time_rmse_s: float | None = None
    refits: int = 0
    join_us: float | None = None
    choose_us: float | None = None

    @property
    def unfinished(self) -> int:
        """Requests that did not finish."""
        return self.requests - self.finished


def simulate_magnus(run: MagnusRun) -> MagnusResult:
    """Simulate one run; an error raised on purpose names it. Holds its records in memory."""
    requests = task_requests(run.source, run.seed, run.rate_rps, run.change.stretch)
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
    predicts = run.policy in PREDICTING and not run.change.true_lengths
    forecasts = MagnusForecasts(run.source, run.seed, run.change) if predicts else None
    settings = BatchSettings(
        capacity_tokens=capacity,
        wma_limit=run.phi.limit,
        wma_share=run.phi.share,
        batch_size=run.change.max_batch,
        safety_factor=run.change.safety,
        memory_confidence=0.5,  # the paper's predictions have no interval
    )
    queue = build_batch_queue(run.policy, settings, times)
    queue.joining = queue.choosing = timed = _Timed(queue.joining, queue.choosing)

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
    return replace(
        _result(records, result.valid_tokens, result.valid_tokens + result.invalid_tokens),
        oom=result.out_of_memory,
        oom_again=result.out_of_memory_again,
        batches=result.batches,
        mean_batch=len(requests) / result.batches,
        length_rmse=_length_rmse(records) if run.policy in PREDICTING else None,
        time_rmse_s=times.rmse_s() if times else None,
        refits=forecasts.refits if forecasts else 0,
        join_us=1e6 * timed.join_s / len(requests),
        choose_us=1e6 * timed.choose_s / result.batches,
    )


def _estimate(
    run: MagnusRun, forecasts: MagnusForecasts | None
) -> Callable[[TraceRequest], LengthEstimate | None]:
    if forecasts is not None:
        return forecasts.estimate
    if run.policy in PREDICTING:
        return lambda request: LengthEstimate.around(request.output_tokens)
    return lambda request: None


@dataclass(slots=True)
class _Timed:
    """Delegates both decisions of a queue, each timed by this process's CPU clock."""

    joining: Joining
    choosing: Choosing
    join_s: float = 0.0
    choose_s: float = 0.0

    def join(self, member: BatchMember, batches: Reversible[Batch]) -> Batch | None:
        """As `Joining.join`."""
        started_s = time.thread_time()
        found = self.joining.join(member, batches)
        self.join_s += time.thread_time() - started_s
        return found

    def choose(self, batches: Collection[Batch], now_s: float) -> Batch:
        """As `Choosing.choose`."""
        started_s = time.thread_time()
        found = self.choosing.choose(batches, now_s)
        self.choose_s += time.thread_time() - started_s
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
    simulate_policy(
        requests,
        CONTINUOUS[run.policy],
        system,
        on_record=records.append,
        max_output_tokens=LONGEST_OUTPUT,
        seed=run.seed,
    )
    tokens = sum(record.output_tokens for record in records)
    return _result(records, tokens, tokens)


# ---- what it came to -----------------------------------------------------------------------------------


def _result(records: Sequence[Record], valid_tokens: int, total_tokens: int) -> MagnusResult:
    times_s = known(map(jct_s, records))
    duration_s = max(map(end_s, records)) - min(record.arrival_s for record in records)
    return MagnusResult(
        requests=len(records),
        finished=len(times_s),
        throughput_rps=len(times_s) / duration_s,
        mean_rt_s=mean(times_s),
        p95_rt_s=quantile(times_s, 0.95),
        valid_tps=valid_tokens / duration_s,
        total_tps=total_tokens / duration_s,
    )


def _length_rmse(records: Sequence[Record]) -> float:
    finished = [record for record in records if record.outcome is Outcome.FINISHED]
    errors = [(record.predicted_output_tokens or 0.0) - record.output_tokens for record in finished]
    return sqrt(mean(error * error for error in errors))


@lru_cache(maxsize=4)
def _profile(change: MagnusChange) -> tuple[BatchRow, ...]:
    return profile(run_costs(MAGNUS, change).step)


# ---- lengths, predicted for a run and learned from its answers on its clock ----------------------------


class MagnusForecasts:
    """Predicts each request of a run on arrival, and learns from answers when they end.

    The forest starts from the training rows. It learns from badly predicted answers: every three minutes of the run's
    clock a forest is fitted to the training rows and all of these, and used at once. Source: Magnus, section III-B.
    """

    def __init__(self, source: DataSource, seed: int, change: MagnusChange = UNCHANGED) -> None:
        self.refits = 0
        self._source = source
        self._change = change
        self._rows = _seen(_served_features(source, seed), change.text)
        self._outputs = [drawn.row.output_tokens for drawn in drawn_rows(source, seed)]
        self._tokens = self._whole(_first_forest(source, change.text, change.taught).ask(self._rows))
        self._worse: list[int] = []
        self._fitted = 0
        self._due_s = LEARN_EVERY_S

    def estimate(self, request: TraceRequest) -> LengthEstimate:
        """The predicted length of the answer, asked on arrival."""
        self._learn(request.arrival_s)
        return LengthEstimate.around(float(self._tokens[int(request.id)]))

    def ended(self, record: Record) -> None:
        """Learn that an answer has ended; called in the order of time."""
        self._learn(end_s(record))
        predicted = record.predicted_output_tokens
        if record.outcome is not Outcome.FINISHED or predicted is None:
            return
        if worth_learning(predicted, record.output_tokens):
            self._worse.append(int(record.id))

    def _learn(self, now_s: float) -> None:
        """Fit again if it is due and there is something new."""
        if not self._change.learns or now_s < self._due_s:
            return
        self._due_s = LEARN_EVERY_S * (floor(now_s / LEARN_EVERY_S) + 1)
        if len(self._worse) == self._fitted:
            return
        self._fitted = len(self._worse)
        rows, tokens = training(self._source, self._change.taught)
        outputs = np.array([self._outputs[number] for number in self._worse], dtype=np.float64)
        seen = _seen(rows, self._change.text)
        forest = LengthForest(
            np.concatenate([seen, self._rows[self._worse]]), np.concatenate([tokens, outputs])
        )
        self._tokens = self._whole(forest.ask(self._rows))
        self.refits += 1

    def _whole(self, answers: Tokens) -> Tokens:
        """Each answer's length, (rows,), after stretching, rounded, 1 to Gmax."""
        return np.clip(np.rint(self._change.stretch * answers), 1, LONGEST_OUTPUT)


def features(rows: Sequence[TaskRow]) -> Rows:
    """(rows, features): the forest's input for each row. The hash encoder replaces LaBSE, as it needs no file."""
    return MagnusFeatures().rows([row.facts() for row in rows])


@lru_cache(maxsize=2)
def training(source: DataSource, every: int = 1) -> tuple[Rows, Tokens]:
    """The features and answers of every n-th training row of all tasks."""
    rows = [row for task in load_tasks(source) for row in task.training[::every]]
    return features(rows), np.array([row.output_tokens for row in rows], dtype=np.float64)


def _seen(rows: Rows, text: bool) -> Rows:
    """(rows, features): without the text columns, unless `text`."""
    return rows if text else rows[:, USER_GROUPS:]


@lru_cache(maxsize=4)
def _first_forest(source: DataSource, text: bool, every: int) -> LengthForest:
    rows, tokens = training(source, every)
    return LengthForest(_seen(rows, text), tokens)


@lru_cache(maxsize=4)
def _served_features(source: DataSource, seed: int) -> Rows:
    return features([drawn.row for drawn in drawn_rows(source, seed)])
