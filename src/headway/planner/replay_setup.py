"""A plan scaled down to this machine: configuration, trace and targets; and the engines' measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import exp, log

from headway.core.batch_shape import MOST_GRAPHED_TOKENS, BatchShape
from headway.core.record import Record
from headway.core.slo import MAX_TARGET_S, Slo
from headway.errors import ConfigError, UpstreamError
from headway.lab.both_sides import by_client_id, whole
from headway.lab.simulation import simulate_policy
from headway.planner.machine import Configuration, Machine, planned_policies
from headway.planner.planner import PlannedDeployment
from headway.planner.runs import capacity_rps
from headway.predict.steps.calibration import Calibration, StepSeconds
from headway.results.metrics import jct_s, ttft_s
from headway.statistics import known, mean
from headway.traces import TraceRequest, scale_lengths

MODEL = "demo"
MAX_SEATS, MAX_TOKENS_A_STEP = 128, 2048
"""vLLM's default limits on a CPU, up to which `headway profile` measures."""
MAX_INPUT_TOKENS, MAX_OUTPUT_TOKENS = 1024, 192
MAX_HOST_GIB = 0.5


def scaled_down(configuration: Configuration) -> Configuration:
    """The policy of a configuration on one instance here, or one in each pool, with sizes that suit a CPU."""
    instances = 1 if configuration.pools is None else len(configuration.pools)
    return replace(
        configuration,
        gpus=instances,
        tp=1,
        instances=instances,
        lp=0 if configuration.pools is None else 1,
        seats=min(configuration.seats, MAX_SEATS),
        tokens_a_step=min(configuration.tokens_a_step, MAX_TOKENS_A_STEP),
        host_gib=min(configuration.host_gib, MAX_HOST_GIB),
    )


def shortened(requests: Sequence[TraceRequest]) -> list[TraceRequest]:
    """The requests with lengths that the small model holds; prompts given as text become generated tokens.

    All declare the same output limit, so that policies see the same one here and in the simulation.
    """
    bare = [replace(request, prompt=None) for request in requests]
    fitted = scale_lengths(bare, MAX_INPUT_TOKENS, MAX_OUTPUT_TOKENS)
    return [replace(request, max_output_tokens=MAX_OUTPUT_TOKENS) for request in fitted]


def alone_s(costs: Calibration, input_tokens: float, output_tokens: float) -> tuple[float, float, float]:
    """Seconds that a request takes alone on an engine: its prompt, a token halfway through its answer, and in total."""
    prefill_s = _step_s(costs, round(input_tokens), 0)
    decode_s = _step_s(costs, 1, round(input_tokens + output_tokens / 2))
    return prefill_s, decode_s, prefill_s + output_tokens * decode_s


def _typical_s(costs: Calibration, requests: Sequence[TraceRequest]) -> tuple[float, float, float]:
    """The times of a request with the mean lengths of these."""
    lengths = ((each.input_tokens, each.output_tokens) for each in requests)
    return alone_s(costs, *map(mean, zip(*lengths, strict=True)))


def _step_s(costs: Calibration, new_tokens: int, context_tokens: int) -> float:
    shape = BatchShape()
    shape.add(max(1, new_tokens), context_tokens)
    step = costs.step_with(MOST_GRAPHED_TOKENS)
    return step.step_s(shape) + costs.host_s + costs.host_job_s


@dataclass(frozen=True, slots=True)
class TargetScale:
    """Converts targets to this machine, by the time that a typical request takes alone on either."""

    ttft: float = 1.0
    tbt: float = 1.0
    deadline: float = 1.0

    def targets(self, slo: Slo) -> Slo:
        """Targets for this machine, none longer than allowed, so that no job counts as one that can wait."""
        return Slo(
            ttft_s=_worth(slo.ttft_s, self.ttft),
            tbt_s=_worth(slo.tbt_s, self.tbt),
            deadline_s=_worth(slo.deadline_s, self.deadline),
        )


def _worth(target_s: float | None, rate: float) -> float | None:
    return None if target_s is None else min(MAX_TARGET_S, target_s * rate)


def target_scale(
    planned: tuple[Machine, int, Sequence[TraceRequest]], here: Machine, requests: Sequence[TraceRequest]
) -> TargetScale:
    """The scale from the planned machine (its TP, its requests) to this one; 1 if they are the same."""
    machine, tp, theirs = planned
    if machine == here:
        return TargetScale()
    there_s, here_s = _typical_s(machine.costs(tp), theirs), _typical_s(here.costs(1), requests)
    return TargetScale(*(ours / its for ours, its in zip(here_s, there_s, strict=True)))


@dataclass(frozen=True, slots=True)
class EngineView:
    """Requests at the times at which engines received them, the first at 0 s, and the engines' records by client id."""

    requests: Sequence[TraceRequest]
    records: Sequence[Record]


def engine_view(requests: Iterable[TraceRequest], engine: Iterable[Record]) -> EngineView:
    """The requests as the engines of one machine saw them, in order of arrival. O(n log n).

    Delays of a client and a server on busy cores then count for neither side. A request that was handed off arrived at
    the first engine and ended at the last, which knew only the remaining targets: all are judged by the request's own.
    Raises UpstreamError if no engine reports a request.
    """
    seen = by_client_id(engine)
    pairs: list[tuple[Record, TraceRequest]] = []
    for request in requests:
        if request.id not in seen:
            raise UpstreamError(
                f"the engine's records do not have request {request.id}, so nothing can be compared"
            )
        pairs.append((replace(whole(seen[request.id]), id=request.id, slo=request.slo), request))
    pairs.sort(key=lambda pair: pair[0].arrival_s)
    return EngineView(
        [replace(request, arrival_s=record.arrival_s - pairs[0][0].arrival_s) for record, request in pairs],
        [record for record, _ in pairs],
    )


LOADS = (0.25, 0.125, 0.0625)
"""Loads to try, as shares of what the choice serves here: server and client share its cores. High enough for
requests to wait for each other; lower if a trace is so bursty that one per cent in each step becomes ten in
waiting.
"""
SLOWER, MOST_LONGER = 1.1, 1.2
"""If steps SLOWER times as long make the mean JCT more than MOST_LONGER times as long, a lower load is used."""

CLOCK_SEEDS = 3
FEWEST_REQUESTS = 48
ROUNDS = 6
ALIKE = 0.1
"""Times to the first token with a smaller relative difference say nothing about how steps are longer."""
NEAR = 0.002
"""Tolerance of the logarithm of the time in service: a fifth of a per cent."""


@dataclass(frozen=True, slots=True)
class ServingOverhead:
    """What serving adds to an engine's own steps on this machine.

    While a server and a client share its cores, each step takes `step_factor` times as long, and `step_s` more. From a
    request's arrival to its first token another `first_token_s` pass.
    """

    step_factor: float = 1.0
    step_s: float = 0.0
    first_token_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Longer:
    """A step law with an overhead in every step."""

    law: StepSeconds
    more_s: float

    def step_s(self, shape: BatchShape) -> float:
        """Seconds of one step of this shape."""
        return self.law.step_s(shape) + self.more_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySetup:
    """The deployment here, its costs, and the part of the trace that is replayed.

    Every other request is `calibrating`: it measures the machine's speed at the time. The rest is compared.
    """

    machine: Machine
    configuration: Configuration
    requests: Sequence[TraceRequest]
    rate_rps: float

    @property
    def calibrating(self) -> frozenset[str]:
        """Ids of the requests that measure the machine's speed."""
        return frozenset(request.id for request in self.requests[::2])

    def simulated(self, requests: Sequence[TraceRequest], served: ServingOverhead) -> list[list[Record]]:
        """Simulated records of the requests, for each seed of the clock's noise."""
        system = self.machine.system(self.configuration)
        costs = system.calibration
        slower = replace(
            costs,
            step=_Longer(costs.step, served.step_s / served.step_factor),
            residuals=tuple(served.step_factor * residual for residual in costs.residuals),
            host_s=served.step_factor * costs.host_s,
        )
        runs: list[list[Record]] = []
        for seed in range(CLOCK_SEEDS):
            found = simulate_policy(
                requests,
                planned_policies(self.configuration),
                replace(system, calibration=slower),
                max_output_tokens=MAX_OUTPUT_TOKENS,
                seed=seed,
                lengths=self.configuration.predictor,
            )
            runs.append([_later(record, served.first_token_s) for record in found.records])
        return runs


def _later(record: Record, seconds: float) -> Record:
    def moved(time_s: float | None) -> float | None:
        return None if time_s is None else time_s + seconds

    return replace(
        record,
        first_scheduled_s=moved(record.first_scheduled_s),
        first_token_s=moved(record.first_token_s),
        finished_s=moved(record.finished_s),
    )


def check_requests(number: int) -> None:
    """Raise ConfigError for too few requests to have meaningful means."""
    if number < FEWEST_REQUESTS:
        raise ConfigError(f"the trace has {number} requests; accepted with verify: {FEWEST_REQUESTS} or more")


def set_up_replay(
    planned: PlannedDeployment, here: Configuration, machine: Machine, seconds: float
) -> ReplaySetup:
    """Fit the trace to this machine: lengths, rate and targets. Raises ConfigError for a trace that is too short."""
    task = planned.prepared.task
    check_requests(planned.prepared.requests)
    theirs = task.requests()
    ours = shortened(theirs)
    rates = target_scale((task.machine, planned.choice.tp, theirs), machine, ours)
    ours = [replace(request, slo=rates.targets(request.slo)) for request in ours]
    ours_task = replace(task, machine=machine, max_output_tokens=MAX_OUTPUT_TOKENS)
    most_rps = capacity_rps(ours_task, here, ours)
    for load in LOADS:
        count = max(FEWEST_REQUESTS, round(load * most_rps * seconds))
        requests = at_rate(ours[:count], load * most_rps)
        setup = ReplaySetup(machine=machine, configuration=here, requests=requests, rate_rps=load * most_rps)
        if _times_longer(setup) <= MOST_LONGER:
            break
    return setup


def _times_longer(setup: ReplaySetup) -> float:
    """The factor by which the mean JCT grows if steps take SLOWER times as long."""
    usual_s, slower_s = (
        _told(setup, setup.simulated(setup.requests, ServingOverhead(factor)), jct_s)
        for factor in (1.0, SLOWER)
    )
    return slower_s / usual_s


def at_rate(requests: Sequence[TraceRequest], rate_rps: float) -> list[TraceRequest]:
    """The requests from 0 s on, in their own rhythm, at this mean rate; all at once if they have no rhythm."""
    first_s, last_s = requests[0].arrival_s, requests[-1].arrival_s
    stretch = len(requests) / rate_rps / (last_s - first_s) if last_s > first_s else 0.0
    return [replace(request, arrival_s=(request.arrival_s - first_s) * stretch) for request in requests]


def serving_overhead(setup: ReplaySetup, came: EngineView) -> ServingOverhead:
    """The overhead of serving, from the calibrating requests. Raises ConfigError if none was answered.

    The time in service tells how much longer steps are, by a factor or by a constant in each. Both occur, and the time
    to the first token separates them, since prompts take longer steps than answers do; its remainder is outside of
    steps. The time between tokens says nothing: a policy that cuts prompts to keep that target keeps it on a slower
    machine too.
    """
    service_s = _told(setup, [came.records], _in_service_s)

    def first_token_s(served: ServingOverhead) -> float:
        return _told(setup, setup.simulated(came.requests, served), ttft_s)

    def off(served: ServingOverhead) -> float:
        return log(_told(setup, setup.simulated(came.requests, served), _in_service_s) / service_s)

    off_0, came_s = off(ServingOverhead()), _told(setup, [came.records], ttft_s)
    log_factor = _root(lambda value: off(ServingOverhead(exp(value))), off_0, -off_0)
    found = ServingOverhead(exp(log_factor))
    if log_factor > 0:
        token_s = service_s / mean(request.output_tokens for request in came.requests)
        added_s = max(
            0.0,
            _root(lambda value: off(ServingOverhead(step_s=max(0.0, value))), off_0, log_factor * token_s),
        )
        times_s = first_token_s(ServingOverhead(step_s=added_s)), first_token_s(found)
        share = _share(came_s, *times_s)
        found = ServingOverhead(1 + share * (found.step_factor - 1), (1 - share) * added_s)
    return replace(found, first_token_s=max(0.0, came_s - first_token_s(found)))


def _share(value: float, at_0: float, at_1: float) -> float:
    """The position of a value between two others, 0 to 1; 1 if these are about equal and so tell nothing."""
    if abs(at_1 - at_0) < ALIKE * value:
        return 1.0
    return min(1.0, max(0.0, (value - at_0) / (at_1 - at_0)))


def _root(off: Callable[[float], float], off_0: float, guess: float) -> float:
    """The root of `off`, which is `off_0` at 0, by secants: slower steps make larger batches, which are slower
    still.
    """
    before, off_before, now = 0.0, off_0, guess
    for _ in range(ROUNDS):
        off_now = off(now)
        if abs(off_now) < NEAR or off_now == off_before:
            break
        slope = (off_now - off_before) / (now - before)
        before, off_before, now = now, off_now, now - off_now / slope
    return now


def _in_service_s(record: Record) -> float | None:
    """Seconds from a request's first step to its end; None if it had none."""
    if record.first_scheduled_s is None or record.finished_s is None:
        return None
    return record.finished_s - record.first_scheduled_s


def _told(
    setup: ReplaySetup, runs: Sequence[Sequence[Record]], value: Callable[[Record], float | None]
) -> float:
    """The mean over the calibrating requests of all runs. Raises ConfigError if none has the value."""
    calibrating = setup.calibrating
    values = known(value(record) for records in runs for record in records if record.id in calibrating)
    if not values:
        raise ConfigError("no request was answered, so nothing can be compared")
    return mean(values)
