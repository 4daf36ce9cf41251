"""Policies that swap, for the simulator's tests: one follows a script, one does anything it may."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, nextafter
from random import Random
from typing import Any

from headway.core.cost import CostModel
from headway.core.job import Job
from headway.core.plan import Fate, Reason, StepOutcome, StepPlan
from headway.core.view import StepView
from headway.policies.batching.decode_first import DecodeFirst
from headway.policies.order.arrival import Arrival
from headway.policies.policy import Policy
from headway.predict.steps.copies import TransferModel
from headway.sim.simulation import PolicyFactory, System
from tests.sim.worlds import SECOND_STEPS, system

OUT_S, IN_S = 0.5, 0.25
"""Seconds a block of four one-byte tokens takes each way."""


def swapping_system(**limits: Any) -> System:
    """One engine with a second a step, half a second a block out and a quarter of one back in."""
    costs = replace(
        SECOND_STEPS,
        to_host=TransferModel(start_s=0.0, bytes_per_s=4 / OUT_S),
        to_device=TransferModel(start_s=0.0, bytes_per_s=4 / IN_S),
    )
    return replace(system(**{"host_blocks": 16, **limits}), calibration=costs)


@dataclass(frozen=True, kw_only=True)
class Do:
    """The actions of one step besides stock scheduling, by ids: preemptions, pauses, and jobs that may not start."""

    preempt: Mapping[str, Fate] = field(default_factory=dict)
    pause: str = ""
    hold: str = ""
    offload: str = ""
    prefetch: str = ""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The state and the actions of one step."""

    free: int
    coming: int
    host_free: int
    swapped: list[str]
    restoring: list[str]
    ran: list[str]
    passed_over: dict[str, Reason]
    preempted: dict[str, Fate]


@dataclass
class Script:
    """Stock scheduling, but for the steps planned at the given times; `seen` tells of every step by its time."""

    steps: Mapping[float, Do] = field(default_factory=dict)
    serial: bool = False
    seen: dict[float, Seen] = field(default_factory=dict)

    def build(self, cost: CostModel) -> Policy:
        """The policy."""
        return _Scripted("scripted", Arrival(), DecodeFirst(), _AsPlanned(self.serial), script=self)


@dataclass(slots=True)
class _Scripted(Policy):
    script: Script = field(default_factory=Script)
    _view: tuple[Any, ...] = ()

    def plan(self, view: StepView) -> StepPlan:
        plan = Policy.plan(self, view)
        step = self.script.steps.get(view.now_s, Do())
        jobs = {job.id: job for job in [*view.residents, *view.swapped, *view.waiting]}
        # With pipeline stages there may be several steps of one time: who has gone with the first is gone.
        preempt = {jobs[name]: fate for name, fate in step.preempt.items()}
        plan.preempt = {job: fate for job, fate in preempt.items() if job in view.residents}
        stays = [*step.preempt, *step.pause, *step.offload]
        plan.run = [job for job in plan.run if job.id not in stays]
        plan.admit = [job for job in plan.admit if job.id not in step.hold + step.prefetch]
        plan.offload = [jobs[name] for name in step.offload]
        plan.prefetch = [jobs[name] for name in step.prefetch]
        swapped, restoring = (sorted(job.id for job in part) for part in (view.swapped, view.restoring))
        self._view = (view.free_blocks, view.blocks_coming_free, view.host_free_blocks, swapped, restoring)
        return plan

    def next_change_s(self, view: StepView) -> float:
        """Just before the next step the script names; not known in one that it names."""
        if view.now_s in self.script.steps:
            return -inf
        return min(
            (nextafter(time_s, -inf) for time_s in self.script.steps if time_s > view.now_s), default=inf
        )

    def observe(self, outcome: StepOutcome) -> None:
        Policy.observe(self, outcome)
        free, coming, host_free, swapped, restoring = self._view
        self.script.seen[outcome.now_s] = Seen(
            free=free,
            coming=coming,
            host_free=host_free,
            swapped=swapped,
            restoring=restoring,
            ran=[job.id for job in outcome.tokens],
            passed_over={job.id: reason for job, reason in outcome.passed_over.items()},
            preempted={job.id: fate for job, fate in outcome.preempted.items()},
        )


class Restless:
    """A batching that pauses, preempts, offloads and prefetches as its dice say, for a number of steps.

    Then, or with `calm` and nobody queued, it schedules as stock does. Without a `host` it neither offloads nor
    prefetches. What the dice say depends on the view alone, so that the same view gives the same plan.
    """

    def __init__(self, seed: int, steps: int, *, calm: bool, drops: bool, host: bool) -> None:
        self._seed = seed
        self._steps_left = steps
        self._calm = calm
        self._drops = Fate.RECOMPUTE if drops else Fate.SWAP
        self._host = host

    def plan(self, view: StepView, order: Any, leaving: Collection[Job]) -> StepPlan:
        """A stock plan, spoiled."""
        plan = DecodeFirst().plan(view, order, leaving)
        plan.run = plan.run[: view.max_run]
        if self._steps_left <= 0 or (self._calm and not (view.waiting or view.swapped)):
            return plan
        dice = Random(f"{self._seed} {self._steps_left} {len(view.residents)} {view.free_blocks}")
        part = _dealt(dice, sorted(view.residents, key=lambda job: job.id), 5)
        plan.preempt = dict.fromkeys(part[0], Fate.SWAP) | dict.fromkeys(part[1][:1], self._drops)
        plan.offload = part[2] if self._host else []
        kept = {*part[3], *part[4], *part[1][1:]}
        plan.run = [job for job in plan.run if job in kept]
        dice.random()
        ahead = _dealt(dice, sorted(view.swapped, key=lambda job: job.id), 3)
        plan.prefetch = ahead[0]
        plan.admit = [job for job in plan.admit if job not in ahead[0] and job not in ahead[1]]
        return plan

    def next_change_s(self, view: StepView) -> float:
        """Never after a stock plan, or while nobody is queued and it is calm; else not known."""
        stock = self._steps_left < 0 or (self._calm and not (view.waiting or view.swapped))
        return inf if stock else -inf

    def observe(self, outcome: StepOutcome) -> None:
        """One step less; steps in which it is calm do not count, since they may be stepped over."""
        plan = outcome.plan
        if not (self._calm and outcome.tokens) or plan.admit or plan.preempt or plan.offload:
            self._steps_left -= 1


@dataclass(frozen=True)
class _AsPlanned:
    """An eviction that takes whom the batching has named."""

    serial: bool = False

    def evict(self, view: StepView, plan: StepPlan, order: Any) -> StepPlan:
        return plan

    def next_change_s(self, view: StepView) -> float:
        return inf

    def observe(self, outcome: StepOutcome) -> None:
        pass


def _dealt(dice: Random, jobs: Sequence[Job], parts: int) -> list[list[Job]]:
    """The jobs dealt into so many parts."""
    dealt: list[list[Job]] = [[] for _ in range(parts)]
    for job in jobs:
        dealt[dice.randrange(parts)].append(job)
    return dealt


def restless(
    seed: int, steps: int, *, calm: bool = False, drops: bool = True, serial: bool = False, host: bool = True
) -> PolicyFactory:
    """A policy that is restless for so many steps, then stock; one that `drops` some KV rather than swap all."""

    def build(cost: CostModel) -> Policy:
        batching = Restless(seed, steps, calm=calm, drops=drops, host=host)
        return Policy("restless", Arrival(), batching, _AsPlanned(serial))

    return build
