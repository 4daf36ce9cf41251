"""A simulated run of one engine, determined by plain data; wrappers that meter its policy or fill a batch for each
stage.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from hashlib import sha256
from typing import Generic, Protocol, TypeVar

from headway.core.cost import CostModel
from headway.core.plan import Fate, StepOutcome, StepPlan
from headway.core.record import Outcome
from headway.core.view import StepView
from headway.lab.kept_runs import FILE as FILE
from headway.lab.kept_runs import Kept, release
from headway.lab.policy_choice import OWN_PARTS, Parts, policy_factory
from headway.lab.simulation import fingerprint, run_info, simulate_policy
from headway.lab.trace import Trace, read_once
from headway.policies.policy import Policy
from headway.predict.models.known_models import model_shape
from headway.predict.steps.calibration import Calibration
from headway.predict.steps.hardware import calibration
from headway.results import Summary, summarize
from headway.sim.limits import EngineLimits
from headway.sim.simulation import PolicyFactory, System
from headway_reproduce.ablations import preset_and_parts
from headway_reproduce.study import PointFindings


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRun:
    """All that determines one simulated run of one engine.

    `seed` draws the workload `trace` (`gen:...`) anew, and the noise of the clock. Each pipeline stage has `tp` GPUs.
    `parts` replace the policy's own; with `micro_batches` it fills a batch for each stage. `copy_bytes_per_s` replaces
    the hardware's own rate between device and host. With `every_step` no stretch of equal steps is stepped over, so
    that the time of every plan is measured, and the KV at each.
    """

    hardware: str
    model: str
    trace: str
    policy: str
    seed: int
    max_output_tokens: int
    limits: EngineLimits
    tp: int = 1
    parts: Parts = OWN_PARTS
    micro_batches: bool = False
    copy_bytes_per_s: float | None = None
    every_step: bool = False

    def digest(self) -> str:
        """Distinguishes any two runs that may differ, in their settings, costs, or the release."""
        said = [release(), _fingerprint(*_machine(self)), *sorted(asdict(self).items())]
        return sha256(repr(said).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The result of a run: `end_s` simulated seconds and `steps`; `meter` counts the policy's actions.

    `saturated_rps` is the result of the function of that name; None where too few requests finished.
    """

    summary: Summary
    end_s: float
    steps: int
    meter: Meter
    saturated_rps: float | None = None

    @property
    def unfinished(self) -> int:
        """Requests that did not finish."""
        return self.summary.requests - self.summary.finished


KeptRuns = Kept[StudyRun, RunResult]

Number = Callable[[RunResult], float | None]
"""A value of a run; None where it has no such value."""


def summary_key(key: str) -> Number:
    """A function that reads the summary's value under a key."""

    def value(result: RunResult) -> float | None:
        found: float | None = getattr(result.summary, key)
        return found

    return value


throughput_rps = summary_key("throughput_rps")
"""Requests a second."""

SATURATED = (0.1, 0.8)
"""Shares of the finished requests between which a queue of all of them at once keeps the engine full: not filling
up, and not running empty.
"""


def saturated_rps(finished_s: Sequence[float]) -> float | None:
    """Requests a second between the finish times of SATURATED of them; None if these are the same instant."""
    ends = sorted(finished_s)
    first, last = (int(share * len(ends)) for share in SATURATED)
    if last <= first or ends[last] <= ends[first]:
        return None
    return (last - first) / (ends[last] - ends[first])


def simulate_run(run: StudyRun) -> RunResult:
    """Simulate one run; an error raised on purpose names it. Holds its records in memory."""
    meter = Meter()
    requests = read_once(Trace(run.trace), run.seed)
    build = policy_factory(*preset_and_parts(run.policy, run.parts), requests)
    if run.micro_batches:
        build = micro_batched(build)
    result = simulate_policy(
        requests,
        metered(build, meter, count_kv=run.every_step),
        System(limits=run.limits, calibration=_costs(run)),
        max_output_tokens=run.max_output_tokens,
        seed=run.seed,
        named=f"{run.policy} on {run.model}, {run.trace}, seed {run.seed}",
        shortcut=not run.every_step,
    )
    summary = summarize(result.records, run=run_info(result))
    finished_s = [record.finished_s for record in result.records if record.outcome is Outcome.FINISHED]
    return RunResult(
        summary=summary,
        end_s=result.end_s,
        steps=result.total("steps"),
        meter=meter,
        saturated_rps=saturated_rps([end_s for end_s in finished_s if end_s is not None]),
    )


def _costs(run: StudyRun) -> Calibration:
    costs, rate = _calibration(*_machine(run)), run.copy_bytes_per_s
    if rate is None:
        return costs
    return replace(
        costs,
        to_host=replace(costs.to_host, bytes_per_s=rate),
        to_device=replace(costs.to_device, bytes_per_s=rate),
    )


def _machine(run: StudyRun) -> tuple[str, str, int, int]:
    """The determinants of costs: hardware, model, GPUs of a stage and stages."""
    return run.hardware, run.model, run.tp, run.limits.pipeline_stages


@lru_cache(maxsize=8)
def _calibration(hardware: str, model: str, tp: int, stages: int) -> Calibration:
    return calibration(hardware, model_shape(model), tp, stages)


@lru_cache(maxsize=8)
def _fingerprint(hardware: str, model: str, tp: int, stages: int) -> str:
    return fingerprint(_calibration(hardware, model, tp, stages))


class EnginePoint(Protocol):
    """One setting that policies are compared at on one engine."""

    def run(self, policy: str, seed: int) -> StudyRun:
        """The run of a policy at this setting."""
        ...


PointT = TypeVar("PointT", bound=EnginePoint)


@dataclass(frozen=True)
class EngineFindings(PointFindings[PointT, StudyRun, RunResult], Generic[PointT]):
    """The runs of one engine at points."""

    simulate = staticmethod(simulate_run)

    def run(self, point: PointT, policy: str, seed: int) -> StudyRun:
        """As `PointFindings.run`."""
        return point.run(policy, seed)

    def count(self, point: PointT, policy: str, name: str) -> float:
        """Mean over seeds of a counter of the policy's meter."""
        return self.mean(point, policy, lambda result: float(getattr(result.meter, name))) or 0.0


# ---- policies that decide as others do -------------------------------------------------------------------

PolicyT = TypeVar("PolicyT", bound=Policy)


def of_kind(kind: type[PolicyT], policy: Policy) -> PolicyT:
    """A policy of another class with the parts of this one."""
    return kind(**{part.name: getattr(policy, part.name) for part in fields(policy)})


def micro_batched(build: PolicyFactory) -> PolicyFactory:
    """A factory of the same policies whose batches leave out jobs that a step in flight computes.

    Each step fills a batch of its own, as Orca keeps one a stage in flight (Yu et al., OSDI 2022, section 4.2).
    Without it the batch width bounds all residents together, and the stages share them.
    """

    def build_micro_batched(cost: CostModel) -> Policy:
        return of_kind(_MicroBatched, build(cost))

    return build_micro_batched


class _MicroBatched(Policy):
    """Delegates decisions to the policy whose parts it has, with a batch width for each step in flight."""

    def plan(self, view: StepView) -> StepPlan:
        """The policy's plan, without jobs that have nothing to compute before their step comes back."""
        in_flight = {job for job in view.residents if job.awaiting_output}
        view.max_run += len(in_flight)
        try:
            plan = super().plan(view)
        finally:
            view.max_run -= len(in_flight)
        if in_flight:
            plan.run = [job for job in plan.run if job not in in_flight]
        return plan


@dataclass(slots=True, kw_only=True)
class Meter:
    """Counts of a run: jobs swapped out, jobs dropped to be computed again, and how many of these the host lacked room
    for. `peak_kv_blocks` is the most KV that jobs had at once, on the device or the host, where it was counted.

    Room is counted only where a policy chooses its victims itself; stock vLLM's victims have no alternative. `plans`
    decisions took `plan_s` seconds of this process's CPU time; steps that are stepped over are not planned.
    """

    swaps: int = 0
    recomputes: int = 0
    host_full: int = 0
    plans: int = 0
    plan_s: float = 0.0
    peak_kv_blocks: int = 0


def metered(build: PolicyFactory, meter: Meter, *, count_kv: bool = False) -> PolicyFactory:
    """A factory of the same policies, whose decisions are all counted in `meter`; with `count_kv` also their KV."""

    def build_metered(cost: CostModel) -> Policy:
        policy = build(cost)
        mine = type(policy)  # code that checks the policy's class still finds it
        kind: type[_MeteredPolicy] = type(f"_Metered{mine.__name__}", (_MeteredPolicy, mine), {})
        found = of_kind(kind, policy)
        found.meter, found.count_kv = meter, count_kv
        return found

    return build_metered


class _MeteredPolicy(Policy):
    """Delegates decisions to the policy whose parts it has, and counts them."""

    meter: Meter
    count_kv: bool

    def plan(self, view: StepView) -> StepPlan:
        """The policy's plan, timed."""
        started_s = time.thread_time()
        plan = super().plan(view)
        self.meter.plan_s += time.thread_time() - started_s
        self.meter.plans += 1
        if plan.preempt:
            self.meter.host_full += _without_room(view, plan)
        if self.count_kv:
            blocks = sum(view.blocks(job.num_computed_tokens) for job in (*view.residents, *view.swapped))
            self.meter.peak_kv_blocks = max(self.meter.peak_kv_blocks, blocks)
        return plan

    def observe(self, outcome: StepOutcome) -> None:
        """Count swaps that were planned and did not happen for lack of host room; then update the policy."""
        super().observe(outcome)
        for job, fate in outcome.preempted.items():
            if fate is Fate.SWAP:
                self.meter.swaps += 1
                continue
            self.meter.recomputes += 1
            self.meter.host_full += outcome.plan.preempt.get(job) is Fate.SWAP


def _without_room(view: StepView, plan: StepPlan) -> int:
    """Victims to be recomputed for which the host has no room after those before them."""
    found, host_free = 0, view.host_free_blocks
    for job, fate in plan.preempt.items():
        unsent = view.unsent_blocks(job)
        if fate is Fate.SWAP:
            host_free -= unsent
        else:
            found += unsent > host_free
    return found
