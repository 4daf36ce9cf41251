"""The simulator's engine under a policy that is watched at every step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from headway.core.batch_shape import BatchShape
from headway.core.host_copies import Copy
from headway.core.job import Job
from headway.core.ledger import Ledger
from headway.core.plan import Reason, StepOutcome, StepPlan
from headway.core.record import Record
from headway.core.view import StepView
from headway.policies.policy import Policy
from headway.sim.engine import SimulatedEngine
from headway.sim.kv_pool import KvPool
from headway.sim.limits import EngineLimits

STEP_S = 1.0
"""Every step takes a second."""

Snapshot = tuple[object, ...]


def snapshot(plan: StepPlan) -> Snapshot:
    """A plan by ids, so that plans of two runs can be compared."""
    return (
        tuple(job.id for job in plan.run),
        tuple(job.id for job in plan.admit),
        plan.token_budget,
        tuple((job.id, cap) for job, cap in plan.chunk_cap.items()),
        plan.whole_prompts,
        tuple((job.id, fate) for job, fate in plan.preempt.items()),
        tuple(job.id for job in plan.offload),
        tuple(job.id for job in plan.prefetch),
        tuple((job.id, departure) for job, departure in plan.leave.items()),
    )


def small_engine(**sizes: Any) -> EngineLimits:
    """An engine of a few blocks and seats, so that everything runs short."""
    small = {"num_blocks": 16, "block_size": 4, "max_num_seqs": 4, "max_num_batched_tokens": 12}
    return EngineLimits(**{**small, "prefix_caching": False, **sizes})


@dataclass(slots=True)
class RecordedPolicy(Policy):
    """A policy whose plans are kept."""

    plans: list[Snapshot] = field(default_factory=list)

    def plan(self, view: StepView) -> StepPlan:
        plan = Policy.plan(self, view)
        self.plans.append(snapshot(plan))
        return plan


class WatchedPolicy(RecordedPolicy):
    """One that must give the same plan twice for one view, and change nothing by planning."""

    __slots__ = ()

    def plan(self, view: StepView) -> StepPlan:
        before = (list(view.residents), list(view.waiting), view.free_blocks)
        plan = Policy.plan(self, view)
        taken = snapshot(plan)
        assert taken == snapshot(Policy.plan(self, view)), "the same view gave two plans"
        assert before == (list(view.residents), list(view.waiting), view.free_blocks)
        self.plans.append(taken)
        return plan


class LinearCost:
    """A tenth of a second a token to compute; a copy 0.2 s and 0.1 s a block of four: long prompts are swapped."""

    @property
    def kv_tokens(self) -> int:
        """Those of `small_engine`."""
        return 64

    def prefill_s(self, num_tokens: int) -> float:
        """Seconds to compute a prompt."""
        return 0.1 * num_tokens

    def step_s(self, shape: BatchShape) -> float:
        """Seconds of a step: its tokens, whatever it reads."""
        return 0.1 * shape.num_tokens

    def step_within_s(self, shape: BatchShape, confidence: float) -> float:
        """The predicted time with a probability of a half, and never twice that."""
        return 2 * confidence * self.step_s(shape)

    def swap_out_s(self, num_blocks: int) -> float:
        """Seconds of a copy to the host."""
        return 0.2 + 0.1 * num_blocks

    def swap_in_s(self, num_blocks: int) -> float:
        """Seconds of a copy back."""
        return 0.2 + 0.1 * num_blocks

    def load_s(self, num_tokens: int) -> float:
        """Seconds of a load from a store."""
        return 0.2 + 0.01 * num_tokens


class ReadingCost(LinearCost):
    """Like `LinearCost`, plus a millisecond for each token of context that a decode reads."""

    def step_s(self, shape: BatchShape) -> float:
        """Seconds of a step, the longer the further answers have come."""
        return LinearCost.step_s(self, shape) + 0.001 * shape.decode_context_tokens


class Instance:
    """Steps a policy, a second a step. `true_output` says how long each job is; the policy never sees it.

    Copies between device and host that are not serial take the step they were decided with and the next one. Unless it
    is `watched`, nothing is checked but that each plan is legal: for runs to compare with one that was.
    """

    def __init__(
        self, policy: Policy, true_output: dict[str, int], limits: EngineLimits, *, watched: bool = True
    ) -> None:
        kind = WatchedPolicy if watched else RecordedPolicy
        self.policy = kind(policy.name, policy.order, policy.batching, policy.eviction, policy.leaving)
        self.true_output = true_output
        self.now_s = 0.0
        self.records: dict[str, Record] = {}
        self.outcomes: list[StepOutcome] = []
        self._engine = SimulatedEngine(limits, self.policy, on_end=self._ended, check=watched)
        self._copies: deque[list[Copy]] = deque([[]])

    @property
    def ledger(self) -> Ledger:
        return self._engine.ledger

    @property
    def pool(self) -> KvPool:
        return self._engine.pool

    @property
    def plans(self) -> list[Snapshot]:
        return self.policy.plans

    def view(self) -> StepView:
        """The policy's view now."""
        return self._engine.view(self.now_s)

    def arrive(self, job: Job) -> None:
        """Take in a job."""
        self._engine.arrive(job, self.true_output[job.id], self.now_s)

    def hold_back(self, jobs: Iterable[Job]) -> None:
        """Make exactly these jobs not ready, beside those whose tokens are still on their way."""
        stale = {job: why for job, why in self.pool.not_ready.items() if why is Reason.STALE_OUTPUT}
        self.pool.not_ready = dict.fromkeys(jobs, Reason.GRAMMAR) | stale

    def step(self) -> StepOutcome:
        """Schedule a step; bring the output of the oldest when as many are in flight as may be."""
        for copy in self._copies.popleft():
            self._engine.copied(copy)
        outcome = self._engine.schedule(self.now_s)
        self._copies.append(self._take_copies())
        self.now_s += STEP_S
        full = self._engine.in_flight == self._engine.limits.depth
        if full or (self._engine.in_flight and not outcome.tokens):
            self._engine.update(self.now_s)
            self._copies[-1] += self._take_copies()
        self.outcomes.append(outcome)
        return outcome

    def _take_copies(self) -> list[Copy]:
        copies = self._engine.take_copies()
        return [] if self.policy.serial_copies else copies

    @property
    def copying(self) -> bool:
        """Whether copies are under way."""
        return any(self._copies)

    def _ended(self, record: Record) -> None:
        assert record.id not in self.records, f"{record.id} ended twice"
        self.records[record.id] = record
