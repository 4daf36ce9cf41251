"""What is served to check a plan: two parts of its trace fitted to this machine, and what is simulated of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from statistics import fmean

from headway.core.record import Record
from headway.errors import ConfigError
from headway.experiments.planning.configuration import Configuration
from headway.experiments.planning.in_engine import InEngine
from headway.experiments.planning.machine import Machine, planned_policies
from headway.experiments.planning.planner import Planned
from headway.experiments.planning.runs import capacity_rps
from headway.experiments.planning.scaled_down import MAX_OUTPUT_TOKENS, exchange, shortened
from headway.experiments.predictor_choice import length_source
from headway.results.metrics import measured, ttft_s
from headway.sim.simulation import simulate
from headway.traces import TraceRequest

LOAD = 0.25
"""Of what the choice gets through here by itself: a server and a client share its cores. High enough for requests to
wait for one another, and not so high that a per cent in each step is ten in the waiting."""

CLOCK_SEEDS = 3
FEWEST_REQUESTS = 24
ROUNDS = 6
NEAR = 0.002
"""Of the logarithm of the time in service: a fifth of a per cent."""


@dataclass(frozen=True, slots=True)
class Served:
    """What serving adds to an engine's own steps on this machine: how many times as long they take while a server and
    a client share its cores, and seconds from a request's arrival to its first token beyond those steps.
    """

    step_factor: float = 1.0
    first_token_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What serves here, by which costs, and two parts of the trace: one `before`, and the one that is predicted."""

    machine: Machine
    configuration: Configuration
    before: Sequence[TraceRequest]
    requests: Sequence[TraceRequest]
    rate_rps: float

    def slowed(self, served: Served) -> Stage:
        """The same load where steps take as long as they do when serving; the part before is as it was."""
        rate_rps = self.rate_rps / served.step_factor
        return replace(self, requests=at_rate(self.requests, rate_rps), rate_rps=rate_rps)

    def simulated(self, requests: Sequence[TraceRequest], served: Served) -> list[list[Record]]:
        """What the simulator says of requests, with each seed of its clock's noise."""
        system = self.machine.system(self.configuration)
        costs = system.calibration
        slower = replace(
            costs,
            residuals=tuple(served.step_factor * residual for residual in costs.residuals),
            host_s=served.step_factor * costs.host_s,
        )
        runs: list[list[Record]] = []
        for seed in range(CLOCK_SEEDS):
            records: list[Record] = []
            simulate(
                requests,
                planned_policies(self.configuration),
                replace(system, calibration=slower),
                on_record=records.append,
                max_output_tokens=MAX_OUTPUT_TOKENS,
                seed=seed,
                lengths=length_source(self.configuration.predictor, requests, seed),
            )
            runs.append([_later(record, served.first_token_s) for record in records])
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


def set_stage(planned: Planned, here: Configuration, machine: Machine, seconds: float) -> Stage:
    """The trace fitted to this machine: lengths, rate and targets. Raises ConfigError for a trace that is too short."""
    task = planned.prepared.task
    theirs = task.requests()
    ours = shortened(theirs)
    rates = exchange((task.machine, planned.choice.tp, theirs), machine, ours)
    ours = [replace(request, slo=rates.targets(request.slo)) for request in ours]
    ours_task = replace(task, machine=machine, max_output_tokens=MAX_OUTPUT_TOKENS)
    rate_rps = LOAD * capacity_rps(ours_task, here, ours)
    count = min(max(FEWEST_REQUESTS, round(rate_rps * seconds)), len(ours) // 2)
    if count < FEWEST_REQUESTS:
        raise ConfigError(
            f"the trace has {len(ours)} requests; accepted with verify: {2 * FEWEST_REQUESTS} or more"
        )
    return Stage(
        machine=machine,
        configuration=here,
        before=at_rate(ours[:count], rate_rps),
        requests=at_rate(ours[count : 2 * count], rate_rps),
        rate_rps=rate_rps,
    )


def at_rate(requests: Sequence[TraceRequest], rate_rps: float) -> list[TraceRequest]:
    """The requests from 0 s on, in their own rhythm, at this mean rate; all at once if they have no rhythm."""
    first_s, last_s = requests[0].arrival_s, requests[-1].arrival_s
    stretch = len(requests) / rate_rps / (last_s - first_s) if last_s > first_s else 0.0
    return [replace(request, arrival_s=(request.arrival_s - first_s) * stretch) for request in requests]


def served_beyond(stage: Stage, came: InEngine) -> Served:
    """What serving adds, from what came of requests: the step factor first, then what the first token still lacks.
    Raises ConfigError where no request was answered.
    """
    factor = step_factor(stage, came)
    lacking_s = _over([came.records], ttft_s) - _over(stage.simulated(came.requests, Served(factor)), ttft_s)
    return Served(factor, max(0.0, lacking_s))


def step_factor(stage: Stage, came: InEngine) -> float:
    """The factor with which the simulator has the time in service that came of requests, by secants of the logarithms:
    slower steps make larger batches, which are slower still. Not the time between tokens: a policy that cuts prompts to
    keep a target there keeps it on a slower machine too. Raises ConfigError as `served_beyond`.
    """
    came_s = _over([came.records], _in_service_s)

    def off(log_factor: float) -> float:
        return log(_over(stage.simulated(came.requests, Served(exp(log_factor))), _in_service_s) / came_s)

    before, now = 0.0, -off(0.0)
    off_before = -now
    for _ in range(ROUNDS):
        off_now = off(now)
        if abs(off_now) < NEAR or off_now == off_before:
            break
        slope = (off_now - off_before) / (now - before)
        before, off_before, now = now, off_now, now - off_now / slope
    return exp(now)


def _in_service_s(record: Record) -> float | None:
    """Seconds from a request's first step to its end; None if it had none."""
    if record.first_scheduled_s is None or record.finished_s is None:
        return None
    return record.finished_s - record.first_scheduled_s


def _over(runs: Sequence[Sequence[Record]], value: Callable[[Record], float | None]) -> float:
    """The mean over all requests of all runs. Raises ConfigError where none has the value."""
    values = [found for records in runs for found in measured(map(value, records))]
    if not values:
        raise ConfigError("no request was answered, so nothing can be compared")
    return fmean(values)
