"""One simulated engine: a ledger, a block pool, the fill rule, and a policy that is watched at every step."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from headway.core.fill import fill
from headway.core.job import Job, JobState
from headway.core.ledger import LEFT_AS, Ledger
from headway.core.plan import StepOutcome, StepPlan, check_plan
from headway.core.record import Outcome, Record
from headway.core.view import StepView
from headway.policies.policy import Policy
from tests.core.block_pool import BlockPool

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
        tuple((job.id, departure) for job, departure in plan.leave.items()),
    )


@dataclass(slots=True, kw_only=True)
class Engine:
    """Sizes of a simulated engine. `lag` steps pass between a step and its tokens (1: asynchronous)."""

    total_blocks: int = 16
    block_size: int = 4
    watermark_blocks: int = 0
    max_run: int = 4
    max_resident: int = 4
    max_tokens: int = 12
    lag: int = 0


@dataclass(slots=True)
class Instance:
    """Steps a policy. `true_output` says how long each job really is; the policy never sees it."""

    policy: Policy
    true_output: dict[str, int]
    engine: Engine = field(default_factory=Engine)
    now_s: float = 0.0
    ledger: Ledger = field(default_factory=Ledger)
    records: dict[str, Record] = field(default_factory=dict)
    outcomes: list[StepOutcome] = field(default_factory=list)
    plans: list[Snapshot] = field(default_factory=list)
    pool: BlockPool = field(init=False)
    _in_flight: deque[list[Job]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        engine = self.engine
        self.pool = BlockPool(
            engine.total_blocks, block_size=engine.block_size, watermark_blocks=engine.watermark_blocks
        )

    def arrive(self, job: Job) -> None:
        """Take in a job."""
        self.ledger.arrive(job)
        self.policy.add(job)

    def view(self) -> StepView:
        """What the policy sees now."""
        return StepView(
            now_s=self.now_s,
            residents=self.ledger.residents,
            waiting=self.ledger.waiting.values(),
            free_blocks=self.pool.free_blocks,
            total_blocks=self.pool.total_blocks,
            block_size=self.pool.block_size,
            max_run=self.engine.max_run,
            max_resident=self.engine.max_resident,
            max_tokens=self.engine.max_tokens,
            admissible=self._admissible,
        )

    def _admissible(self, job: Job) -> bool:
        seat = len(self.ledger.residents) < self.engine.max_resident
        return seat and self.pool.ready(job) is None and self.pool.misfit(job) is None

    def plan(self) -> StepPlan:
        """The policy's plan, checked: within the rules, and made without changing anything."""
        view = self.view()
        before = (list(view.residents), list(view.waiting), self.pool.free_blocks)
        plan = self.policy.plan(view)
        check_plan(plan, view)
        taken = snapshot(plan)
        assert taken == snapshot(self.policy.plan(view)), "the same view gave two plans"
        assert before == (list(view.residents), list(view.waiting), self.pool.free_blocks)
        self.plans.append(taken)
        return plan

    def step(self) -> StepOutcome:
        """Plan, fill, follow; then bring the tokens of `lag` steps ago, and end who is done."""
        plan = self.plan()
        for job, departure in plan.leave.items():
            self._end(job, LEFT_AS[departure])
        outcome = fill(
            plan,
            self.ledger.residents,
            self.pool,
            now_s=self.now_s,
            max_run=self.engine.max_run,
            max_resident=self.engine.max_resident,
        )
        self.ledger.apply(outcome)
        self.policy.observe(outcome)
        self.now_s += STEP_S
        # A job whose last known token was computed brings its next one.
        self._in_flight.append([job for job in outcome.tokens if job.num_computed_tokens == job.num_tokens])
        if len(self._in_flight) > self.engine.lag:
            for job in self._in_flight.popleft():
                self._sample(job)
        self.ledger.check()
        self.pool.check()
        assert set(self.pool.tables) == set(self.ledger.residents)
        self.outcomes.append(outcome)
        return outcome

    def _sample(self, job: Job) -> None:
        if job.state is JobState.ENDED:
            return
        is_first = self.ledger.sampled(job, 1, self.now_s)
        if is_first or job.state is JobState.WAITING:
            self.policy.touch(job)
        if job.num_output_tokens >= self.true_output[job.id]:
            self._end(job, Outcome.FINISHED)

    def _end(self, job: Job, outcome: Outcome) -> None:
        if job.state is JobState.RESIDENT:
            self.pool.release(job)
        self.policy.end(job)
        assert job.id not in self.records, f"{job!r} ended twice"
        self.records[job.id] = self.ledger.end(job, outcome, self.now_s)
