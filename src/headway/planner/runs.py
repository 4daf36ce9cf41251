"""One simulated run of a plan: a configuration on a sample; decided by plain data, simulated once, kept in one file."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from headway.core.record import Outcome, Record
from headway.core.slo import NO_TARGETS
from headway.errors import HeadwayError
from headway.lab.kept_runs import Kept, release
from headway.lab.policy_source import made_of
from headway.lab.predictor_choice import length_source
from headway.lab.simulation import run_info
from headway.lab.stream import Stream
from headway.planner.configuration import Configuration
from headway.planner.foretold import Foretold, Noted
from headway.planner.machine import Machine, planned_policies
from headway.planner.samples import Sample, counted_from_s, cut
from headway.planner.space import DEFAULT_POLICY, default_configuration
from headway.predict.length_choice import NONE
from headway.results import RunInfo, Summary, summarize
from headway.results.metrics import end_s
from headway.sim.length_source import LengthSource
from headway.sim.simulation import simulate
from headway.traces import TraceRequest, scale_rate

FILE = "plan-runs.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What all runs of a plan share: machine, requests at `rate_scale` times their rate, and limits.

    Requests of more than `longest_tokens` are left out. `max_output_tokens` is the limit that policies see where a
    request declares none. `requests_digest` tells the contents of the trace from others'.
    """

    machine: Machine
    stream: Stream
    rate_scale: float
    max_output_tokens: int
    longest_tokens: int
    requests_digest: str

    def requests(self, seed: int = 0) -> list[TraceRequest]:
        """All requests that can be served, in order of arrival, at the rate they come."""
        return fitting(scale_rate(read_once(self.stream, seed), self.rate_scale), self.longest_tokens)


@lru_cache(maxsize=4)
def read_once(stream: Stream, seed: int) -> list[TraceRequest]:
    """The requests of a stream; a large trace takes a second to read."""
    return stream.requests(seed)


def fitting(requests: Sequence[TraceRequest], longest_tokens: int) -> list[TraceRequest]:
    """Those whose prompt and answer together are no longer."""
    return [each for each in requests if each.input_tokens + each.output_tokens <= longest_tokens]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRun:
    """All that decides one run. `foretold`: answer lengths are predicted once for all configurations, not by each."""

    task: Task
    configuration: Configuration
    sample: Sample
    foretold: bool = False

    def digest(self) -> str:
        """Tells apart any two runs that may differ, in what is asked for, the costs, the policy, or the release."""
        costs = self.task.machine.fingerprint(self.configuration.tp)
        policies = [_made_of(policy) for policy in self._policies()]
        return sha256(repr((release(), costs, policies, self)).encode()).hexdigest()

    def _policies(self) -> tuple[str, ...]:
        """The policy that serves, and the one that serves while lengths are foretold."""
        policy, predictor = self.configuration.policy, self.configuration.predictor
        return (policy, DEFAULT_POLICY) if self.foretold and predictor != NONE else (policy,)


@lru_cache(maxsize=64)
def _made_of(policy: str) -> str:
    """What decides what a policy does; to find out takes a look at the files of its parts."""
    return repr(made_of(policy))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanResult:
    """What a run came to: the summary of the requests that count, and how long it took to simulate all of them.

    `most_live` requests were at one engine at once, `evicted` says whether any KV left a GPU.
    """

    summary: Summary
    most_live: int
    evicted: bool
    wall_s: float


def simulate_plan_run(run: PlanRun) -> PlanResult:
    """Simulate one run; an error raised on purpose names it. Holds its records in memory."""
    started_s = time.perf_counter()
    requests = _window(run.task, run.sample)
    try:
        records, info = _simulated(run, requests, _predictions(run, requests))
    except HeadwayError as error:
        raise type(error)(f"{run.configuration}, sample {run.sample.number}: {error}") from error
    from_s = counted_from_s(requests, run.sample)
    return PlanResult(
        summary=summarize([record for record in records if record.arrival_s >= from_s], run=info),
        most_live=_most_live(records),
        evicted=bool(info.swapped_out_blocks) or any(record.preemptions for record in records),
        wall_s=time.perf_counter() - started_s,
    )


def _simulated(
    run: PlanRun, requests: Sequence[TraceRequest], lengths: LengthSource | None
) -> tuple[list[Record], RunInfo]:
    records: list[Record] = []
    result = simulate(
        requests,
        planned_policies(run.configuration),
        run.task.machine.system(run.configuration),
        on_record=records.append,
        max_output_tokens=run.task.max_output_tokens,
        seed=run.sample.number,
        lengths=lengths,
    )
    return records, run_info(result)


def _most_live(records: Sequence[Record]) -> int:
    """Requests at one engine at once; who comes as another ends counts beside it."""
    changes = sorted(
        change
        for record in records
        for change in ((record.arrival_s, -1, record.instance), (end_s(record), 1, record.instance))
    )
    live: Counter[str] = Counter()
    most = 0
    for _, gone, instance in changes:
        live[instance] -= gone
        most = max(most, live[instance])
    return most


def _predictions(run: PlanRun, requests: Sequence[TraceRequest]) -> LengthSource | None:
    """Who tells the policies of a run how long answers will be."""
    predictor = run.configuration.predictor
    if predictor == NONE or not run.foretold:
        return length_source(predictor, requests, run.sample.number)
    return _foretold(run.task, run.sample, run.configuration.gpus, predictor)


@lru_cache(maxsize=32)
def _foretold(task: Task, part: Sample, gpus: int, predictor: str) -> Foretold:
    """What a predictor that knows nothing at first says of each request as it comes, if stock vLLM serves on so many
    GPUs: to learn it takes longer than to simulate the rest.
    """
    requests = _window(task, part)
    source = length_source(predictor, requests, part.number)
    assert source is not None, "only a predictor is asked"
    noted = Noted(source)
    stock = default_configuration(task.machine, gpus, task.longest_tokens)
    _simulated(PlanRun(task=task, configuration=stock, sample=part), requests, noted)
    return Foretold(noted.said)


@lru_cache(maxsize=2)
def _requests(task: Task, seed: int) -> list[TraceRequest]:
    return task.requests(seed)


@lru_cache(maxsize=8)
def _window(task: Task, part: Sample) -> list[TraceRequest]:
    """The requests of a sample; read or drawn once for the runs that a process does one after another."""
    return cut(_requests(task, part.number if task.stream.is_drawn else 0), part)


@dataclass(slots=True)
class KeptPlanRuns(Kept[PlanRun, PlanResult]):
    """Runs that are done, in DIR/plan-runs.jsonl."""

    @classmethod
    def read(cls, root: Path) -> KeptPlanRuns:
        """What a folder holds. Raises ConfigError if the file holds anything else or cannot be read."""
        kept = cls(root, FILE)
        kept.load(PlanResult)
        return kept


# ---- how much the machine takes ------------------------------------------------------------------------

BURST_REQUESTS = 1_000
BURST_SHARE = 0.9


def capacity_rps(task: Task, configuration: Configuration, requests: Sequence[TraceRequest]) -> float:
    """Requests a second that a configuration gets through when all are there at once.

    Up to when nine tenths have ended: the last tenth can be a few very long answers. Of more than a thousand requests
    every so manieth is taken. They have no targets: in a burst a policy would end most of them for being late.
    """
    some = requests[:: -(-len(requests) // BURST_REQUESTS)]
    at_once = [replace(request, arrival_s=0.0, slo=NO_TARGETS) for request in some]
    records: list[Record] = []
    simulate(
        at_once,
        planned_policies(configuration),
        task.machine.system(configuration),
        on_record=records.append,
        max_output_tokens=task.max_output_tokens,
        lengths=length_source(configuration.predictor, at_once),
    )
    ends_s = sorted(end_s(record) for record in records if record.outcome is not Outcome.HANDED_OFF)
    served = max(1, int(BURST_SHARE * len(ends_s)))
    return served / ends_s[served - 1]
