"""Small pools of engines for tests: one low-priority and one high-priority, and a rule that gives requests up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from headway.core.cost import CostModel
from headway.core.job import Job
from headway.core.plan import Departure
from headway.core.view import StepView
from headway.policies.policy import Policy
from headway.predict.steps.calibration import Calibration
from headway.routing.pools import PoolSizes, parse_pools
from headway.sim.simulation import PolicyFactory, System
from tests.sim.worlds import SECOND_STEPS, limits, preset


def pooled_system(
    pools: str = "lp=1,hp=1",
    router: str = "ascendra-no-ticket",
    costs: Calibration = SECOND_STEPS,
    **sizes: Any,
) -> System:
    """Engines of two seats whose steps take a second, requests going to LP alone."""
    small = {"num_blocks": 16, "max_num_seqs": 2, "max_num_batched_tokens": 16, "prefix_caching": False}
    found: PoolSizes = parse_pools(pools)
    return System(limits=limits(**{**small, **sizes}), calibration=costs, pools=found, router=router)


@dataclass(eq=False)
class GivesUp:
    """Hands off whoever has waited so long without having started, and may move."""

    patience_s: float = 2.0
    _waiting: dict[Job, None] = field(default_factory=dict)

    def add(self, job: Job) -> None:
        if job.may_move and job.first_scheduled_s is None:
            self._waiting[job] = None

    def remove(self, job: Job) -> None:
        self._waiting.pop(job, None)

    def leave(self, view: StepView) -> Mapping[Job, Departure]:
        late = [job for job in self._waiting if view.now_s - job.arrival_s >= self.patience_s]
        return dict.fromkeys(sorted(late, key=lambda job: job.id), Departure.HAND_OFF)

    def next_change_s(self, view: StepView) -> float:
        return -inf if self._waiting else inf


@dataclass(eq=False)
class Seen:
    """Lets nobody go, and notes who came with what."""

    jobs: list[Job] = field(default_factory=list)

    def add(self, job: Job) -> None:
        self.jobs.append(job)

    def remove(self, job: Job) -> None:
        pass

    def leave(self, view: StepView) -> Mapping[Job, Departure]:
        return {}

    def next_change_s(self, view: StepView) -> float:
        return inf


def with_rule(build: PolicyFactory, rule: Callable[[], Any]) -> PolicyFactory:
    """The same policies, each with one leaving rule of its own."""

    def build_with_rule(cost: CostModel) -> Policy:
        policy = build(cost)
        policy.leaving = (rule(),)
        return policy

    return build_with_rule


def giving_up(patience_s: float = 2.0, hp: PolicyFactory | None = None) -> dict[str, PolicyFactory]:
    """First come, first served everywhere; LP gives up whoever has waited so long."""
    lp = with_rule(preset("vllm"), lambda: GivesUp(patience_s))
    return {"lp": lp, "hp": hp or preset("vllm")}
