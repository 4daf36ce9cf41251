"""The simulated runs of a plan: each determined by plain data, simulated once, kept in one file."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path

from headway.core.record import Outcome, Record
from headway.lab.kept_runs import Kept, Manifest, open_folder, release, run_groups
from headway.lab.policy_choice import made_of
from headway.lab.predictor_choice import length_source
from headway.lab.simulation import run_info, simulate_policy
from headway.lab.trace import Trace, read_once
from headway.planner.machine import Configuration, Machine, planned_policies
from headway.planner.sampling import Sample, counted_from_s, cut
from headway.planner.search import Field, Pairs, SearchPlan, most_runs
from headway.planner.space import REFERENCE_POLICY, default_configuration
from headway.predict.lengths.choice import NONE
from headway.results import RunInfo, Summary, summarize
from headway.results.metrics import end_s
from headway.sim.lengths import GivenLengths, LengthSource, RecordedLengths
from headway.sim.simulation import SimulatedRun
from headway.traces import TraceRequest, at_once, scale_rate

QUESTION_FILE = "plan-question.json"
FILE = "plan-runs.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What all runs of a plan share: machine, requests at `rate_scale` times their rate, and limits.

    Requests of more than `longest_tokens` are left out. `max_output_tokens` is the limit that policies see if a request
    declares none. `requests_digest` identifies the contents of the trace.
    """

    machine: Machine
    trace: Trace
    rate_scale: float
    max_output_tokens: int
    longest_tokens: int
    requests_digest: str

    def requests(self, seed: int = 0) -> list[TraceRequest]:
        """All requests that can be served, in order of arrival, at the planned rate."""
        return fitting(scale_rate(read_once(self.trace, seed), self.rate_scale), self.longest_tokens)


def fitting(requests: Sequence[TraceRequest], longest_tokens: int) -> list[TraceRequest]:
    """The requests whose prompt and answer together are short enough."""
    return [each for each in requests if each.input_tokens + each.output_tokens <= longest_tokens]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRun:
    """Everything that determines one run. `shared_predictions`: answer lengths are predicted once for all
    configurations.
    """

    task: Task
    configuration: Configuration
    sample: Sample
    shared_predictions: bool = False

    def digest(self) -> str:
        """A digest that differs for any two runs that may differ, by their settings, costs, policy, or release."""
        costs = self.task.machine.fingerprint(self.configuration.tp)
        policies = [_made_of(policy) for policy in self._policies()]
        return sha256(repr((release(), costs, policies, self)).encode()).hexdigest()

    def _policies(self) -> tuple[str, ...]:
        """The policy that serves, and the one that serves while shared predictions are made."""
        policy, predictor = self.configuration.policy, self.configuration.predictor
        return (policy, REFERENCE_POLICY) if self.shared_predictions and predictor != NONE else (policy,)


@lru_cache(maxsize=64)
def _made_of(policy: str) -> str:
    """Identifies a policy's decisions; cached, since it reads the files of the policy's parts."""
    return repr(made_of(policy))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanResult:
    """The result of a run: the summary of the counted requests, and the seconds that the simulation took.

    `most_live` is the most requests at one engine at once; `evicted` says whether any KV left a GPU.
    """

    summary: Summary
    most_live: int
    evicted: bool
    wall_s: float


def simulate_plan_run(run: PlanRun) -> PlanResult:
    """Simulate one run; a deliberate error names it. Holds its records in memory."""
    started_s = time.perf_counter()
    requests = _window(run.task, run.sample)
    records, info = _simulated(run, requests, _predictions(run, requests))
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
    result = simulate_planned(
        run.task,
        run.configuration,
        requests,
        lengths,
        run.sample.number,
        named=f"{run.configuration}, sample {run.sample.number}",
    )
    return result.records, run_info(result)


def simulate_planned(
    task: Task,
    configuration: Configuration,
    requests: Sequence[TraceRequest],
    lengths: str | LengthSource | None,
    seed: int = 0,
    *,
    named: object = "",
) -> SimulatedRun:
    """Run a configuration on the task's machine."""
    return simulate_policy(
        requests,
        planned_policies(configuration),
        task.machine.system(configuration),
        max_output_tokens=task.max_output_tokens,
        seed=seed,
        lengths=lengths,
        named=named,
    )


def _most_live(records: Sequence[Record]) -> int:
    """The most requests at one engine at once; one that arrives as another ends counts beside it."""
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
    """The source of predicted lengths for a run's policies."""
    predictor = run.configuration.predictor
    if predictor == NONE or not run.shared_predictions:
        return length_source(predictor, requests, run.sample.number)
    return _shared_predictions(run.task, run.sample, run.configuration.gpus, predictor)


@lru_cache(maxsize=32)
def _shared_predictions(task: Task, part: Sample, gpus: int, predictor: str) -> GivenLengths:
    """Predictions of a fresh predictor, made for each request as it arrives while stock vLLM serves on as many GPUs.

    They are shared, since learning them takes longer than simulating the rest.
    """
    requests = _window(task, part)
    source = length_source(predictor, requests, part.number)
    assert source is not None, "only a predictor is asked"
    noted = RecordedLengths(source)
    stock = default_configuration(task.machine, gpus, task.longest_tokens)
    _simulated(PlanRun(task=task, configuration=stock, sample=part), requests, noted)
    return GivenLengths(noted.said)


@lru_cache(maxsize=2)
def _requests(task: Task, seed: int) -> list[TraceRequest]:
    return task.requests(seed)


@lru_cache(maxsize=8)
def _window(task: Task, part: Sample) -> list[TraceRequest]:
    """The requests of a sample, read or drawn once for the runs that a process does in sequence."""
    return cut(_requests(task, part.number if task.trace.is_drawn else 0), part)


@dataclass(slots=True)
class KeptPlanRuns(Kept[PlanRun, PlanResult]):
    """Finished runs, in DIR/plan-runs.jsonl."""

    @classmethod
    def open(cls, root: Path, manifest: Manifest) -> KeptPlanRuns:
        """The runs of the plan with this manifest in a folder, which is made if needed.

        Raises ConfigError if the folder has anything else or cannot be read.
        """
        open_folder(root / QUESTION_FILE, manifest, "plan")
        kept = cls(root, FILE)
        kept.load(PlanResult)
        return kept


# ---- capacity ------------------------------------------------------------------------------------------

BURST_REQUESTS = 1_000
BURST_SHARE = 0.9


def capacity_rps(task: Task, configuration: Configuration, requests: Sequence[TraceRequest]) -> float:
    """Requests a second that a configuration serves if all arrive at once.

    Measured until nine tenths have ended, since the last tenth may be a few very long answers. Of more than a thousand
    requests every so manieth is taken. They have no targets: in a burst a policy would end most of them for being late.
    """
    some = requests[:: -(-len(requests) // BURST_REQUESTS)]
    found = simulate_planned(task, configuration, at_once(some), configuration.predictor)
    ends_s = sorted(end_s(record) for record in found.records if record.outcome is not Outcome.HANDED_OFF)
    served = max(1, int(BURST_SHARE * len(ends_s)))
    return served / ends_s[served - 1]


Tell = Callable[[float, str], None]
"""Receives the share done (0 to 1), and the current activity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCounts:
    """How many runs were simulated now, how many were answered by another run, and how many were kept from before."""

    simulated: int = 0
    answered: int = 0
    kept: int = 0


@dataclass(slots=True)
class Runner:
    """Simulates what is neither kept nor answered by another run, and reports progress in seconds of trace."""

    task: Task
    window_s: float
    kept: KeptPlanRuns
    jobs: int
    tell: Tell
    counts: RunCounts = field(default=RunCounts(), init=False)
    _expected_s: float = field(default=0.0, init=False)
    _done_s: float = field(default=0.0, init=False)

    def expect(self, tried: Field, plan: SearchPlan) -> None:
        """Set how much is to come."""
        ladder = plan.ladder(tried)
        whole_s = sum(runs * rung.window_s for runs, rung in zip(most_runs(tried, plan), ladder, strict=True))
        self._expected_s = whole_s + 2 * len(plan.unseen()) * plan.window_s
        self._done_s = 0.0

    def measure(self, pairs: Pairs) -> list[Summary]:
        """The summaries of these configurations on their samples."""
        runs = self._run(pairs)
        return [result.summary for run in runs if (result := self.kept.result(run)) is not None]

    def timed(self, pairs: Pairs) -> list[float]:
        """The seconds that simulating each took, now or earlier."""
        return [result.wall_s for run in self._run(pairs) if (result := self.kept.result(run)) is not None]

    def _run(self, pairs: Pairs) -> list[PlanRun]:
        runs = [self._planned(configuration, part) for configuration, part in pairs]
        todo = [run for run in runs if self.kept.result(run) is None]
        window_s = pairs[0][1].window_s
        what = f"{len(runs):,} runs of {window_s:.0f} s"
        self._advance((len(runs) - len(todo)) * window_s, what)
        tick = partial(self._advance, window_s, what)
        run_groups(groups_of(todo), self.kept, simulate_next, jobs=self.jobs, tick=tick)
        self._count(todo, len(runs) - len(todo))
        return runs

    def _count(self, done: Sequence[PlanRun], kept: int) -> None:
        answered = sum(self.kept.done[run.digest()].wall_s == 0 for run in done)
        self.counts = RunCounts(
            simulated=self.counts.simulated + len(done) - answered,
            answered=self.counts.answered + answered,
            kept=self.counts.kept + kept,
        )

    def _planned(self, configuration: Configuration, part: Sample) -> PlanRun:
        """A run of a whole window learns to predict as a server does; shorter ones use shared predictions."""
        shared_predictions = part.window_s < self.window_s
        return PlanRun(
            task=self.task, configuration=configuration, sample=part, shared_predictions=shared_predictions
        )

    def _advance(self, seconds: float, what: str) -> None:
        self._done_s += seconds
        self.tell(min(1.0, self._done_s / self._expected_s) if self._expected_s else 0.0, what)


# ---- runs that answer others ---------------------------------------------------------------------------


def groups_of(runs: Sequence[PlanRun]) -> list[list[PlanRun]]:
    """Group runs that differ only in seats and host memory, the largest first in a group.

    Larger groups come first, since the runs of a group are done in sequence.
    """
    groups: dict[PlanRun, list[PlanRun]] = {}
    for run in runs:
        bare = replace(run.configuration, seats=0, host_gib=0.0)
        groups.setdefault(replace(run, configuration=bare), []).append(run)
    roomiest = [sorted(group, key=_room, reverse=True) for group in groups.values()]
    return sorted(roomiest, key=len, reverse=True)


def _room(run: PlanRun) -> tuple[float, int]:
    return run.configuration.host_gib, run.configuration.seats


def simulate_next(runs: Sequence[PlanRun], results: Sequence[PlanResult]) -> PlanResult:
    """The result of the next run of a group, given the earlier `results`, one of which may answer it."""
    run = runs[len(results)]
    for before, result in zip(runs, results, strict=False):
        if answers(before.configuration, result, run.configuration):
            return replace(result, wall_s=0.0)
    return simulate_plan_run(run)


def answers(configuration: Configuration, result: PlanResult, other: Configuration) -> bool:
    """Whether a result also holds for another configuration of its group, with at most as much host memory.

    While no KV leaves a GPU, host memory does not matter, nor do seats if all simultaneous requests had one. Once some
    leaves they may: `fastserve` keeps room for as many newcomers as there are seats.
    """
    seated = result.most_live <= min(configuration.seats, other.seats)
    return not result.evicted and (seated or configuration.seats == other.seats)
