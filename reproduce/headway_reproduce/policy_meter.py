"""What a policy does and what its decisions take, counted without changing any of them."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields

from headway.core.cost import CostModel
from headway.core.plan import Fate, StepOutcome, StepPlan
from headway.core.view import StepView
from headway.policies.policy import Policy
from headway.sim.simulation import PolicyFactory


@dataclass(slots=True, kw_only=True)
class Meter:
    """Counts of a run: jobs swapped out, jobs dropped to be computed again, and how many of these the host lacked
    room for. `peak_kv_blocks` is the most KV that jobs had at once, on the device or the host, where it was counted.

    Room is asked about only where a policy chooses its victims itself; those of stock vLLM have no other way.
    `plans` decisions took `plan_s` seconds of this process's CPU time; steps that are stepped over are not
    planned.
    """

    swaps: int = 0
    recomputes: int = 0
    host_full: int = 0
    plans: int = 0
    plan_s: float = 0.0
    peak_kv_blocks: int = 0


def metered(build: PolicyFactory, meter: Meter, *, count_kv: bool = False) -> PolicyFactory:
    """A factory of the same policies, all of whose decisions are counted in `meter`; their KV with `count_kv`."""

    def build_metered(cost: CostModel) -> Policy:
        policy = build(cost)
        parts = {part.name: getattr(policy, part.name) for part in fields(policy)}
        found: _MeteredPolicy = _metered_kind(type(policy))(**parts)
        found.meter = meter
        found.count_kv = count_kv
        return found

    return build_metered


def _metered_kind(kind: type[Policy]) -> type[_MeteredPolicy]:
    """A kind of policy that is still of its own kind, to those who ask."""
    return type(f"_Metered{kind.__name__}", (_MeteredPolicy, kind), {})


class _MeteredPolicy(Policy):
    """Decides as the policy whose parts it has."""

    meter: Meter
    count_kv: bool

    def plan(self, view: StepView) -> StepPlan:
        """As the policy, timed."""
        started_s = time.thread_time()
        plan = super().plan(view)
        self.meter.plan_s += time.thread_time() - started_s
        self.meter.plans += 1
        if plan.preempt:
            self.meter.host_full += _without_room(view, plan)
        if self.count_kv:
            self.meter.peak_kv_blocks = max(self.meter.peak_kv_blocks, _kv_blocks(view))
        return plan

    def observe(self, outcome: StepOutcome) -> None:
        """As the policy; a swap that was planned and did not happen found no room on the host."""
        super().observe(outcome)
        for job, fate in outcome.preempted.items():
            if fate is Fate.SWAP:
                self.meter.swaps += 1
                continue
            self.meter.recomputes += 1
            self.meter.host_full += outcome.plan.preempt.get(job) is Fate.SWAP


def _kv_blocks(view: StepView) -> int:
    """Blocks of the KV that all jobs have, those on the host too. O(residents + swapped)."""
    return sum(view.blocks(job.num_computed_tokens) for job in (*view.residents, *view.swapped))


def _without_room(view: StepView, plan: StepPlan) -> int:
    """Victims to be recomputed for which the host has no room, those before them counted."""
    found, host_free = 0, view.host_free_blocks
    for job, fate in plan.preempt.items():
        unsent = view.unsent_blocks(job)
        if fate is Fate.SWAP:
            host_free -= unsent
        else:
            found += unsent > host_free
    return found
