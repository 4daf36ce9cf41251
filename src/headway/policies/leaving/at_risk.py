"""Hands off unstarted jobs that would be late here, and may still be in time elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from headway.core.batch_shape import BatchShape
from headway.core.cost import CostModel, UnknownCost
from headway.core.fill import starts_whole
from headway.core.job import Job, JobState
from headway.core.plan import Departure, StepPlan
from headway.core.view import StepView
from headway.errors import ConfigError
from headway.policies.batching.step_shapes import left_tokens
from headway.policies.batching.step_tokens import check_step_tokens, high_step_tokens
from headway.policies.order.sorted_index import KeyedIndex


@dataclass(slots=True)
class ExpectedStep:
    """The work of a step, and the jobs of `admit` that start while seats and tokens last."""

    shape: BatchShape = field(default_factory=BatchShape)
    starting: set[Job] = field(default_factory=set)


def expect_step(view: StepView, plan: StepPlan) -> ExpectedStep:
    """The plan filled as `core.fill` would, assuming blocks for all and every job ready. O(run + started).

    A decode is assumed to use all possible drafts; a job on its way back from the host computes nothing.
    """
    step = ExpectedStep()
    budget = plan.token_budget
    for job in plan.run:
        if job in view.restoring:
            continue
        left = left_tokens(job)
        wanted = view.tokens_a_decode if left == 1 else left
        budget -= _grant(step.shape, job, min(wanted, budget), plan.chunk_cap)
    room = budget
    for job in plan.admit[: view.seats_beside(plan.run)]:
        swapped = job.state is JobState.SWAPPED
        cut = plan.whole_prompts and not (swapped or starts_whole(job.num_tokens, room, plan.token_budget))
        if budget <= 0 or cut:
            break
        granted = _grant(step.shape, job, min(left_tokens(job), budget), plan.chunk_cap)
        budget -= granted
        room -= granted if swapped else job.num_tokens
        step.starting.add(job)
    return step


def _grant(shape: BatchShape, job: Job, most: int, caps: Mapping[Job, int]) -> int:
    """Add a job to the shape with at most `most` tokens, or its cap; return its tokens."""
    granted = min(most, caps.get(job, most))
    if granted <= 0:
        return 0
    shape.add(granted, job.num_found_tokens)
    return granted


class _QueuesElsewhere:
    """Seconds that the prompts before a job take at each instance to which it may go."""

    def __init__(self, view: StepView, token_s: float) -> None:
        gone_s = view.now_s - view.told_elsewhere_s
        self._token_s = token_s
        self.left_s = [max(0.0, token_s * tokens - gone_s) for tokens in view.waiting_elsewhere]

    def take(self, job: Job, slack_s: float) -> bool:
        """Whether the shortest queue leaves a job its slack, or is empty; if so the job joins that queue."""
        if not self.left_s:
            return True
        shortest_s = min(self.left_s)
        if shortest_s and shortest_s > slack_s:
            return False
        self.left_s[self.left_s.index(shortest_s)] += self._token_s * job.num_prompt_tokens
        return True


class AtRisk:
    """Hands off a job that no step has started, and this one does not, if the next step might be too late.

    Slack is the time to a job's first-token deadline less its predicted prefill. The job leaves when its slack is at
    most the time that may pass before it runs elsewhere: the step about to run here, a step of `hp_tokens` that has
    just begun there, and `threshold` x its first-token target (a negative threshold waits longer). `hp_tokens` is the
    token budget of an engine elsewhere, by default that of HP instances (`high_step_tokens`). A job with negative slack
    is late everywhere, and stays; so does a job that may not move, has computed something, or has no such target. If
    prompts wait elsewhere (`view.waiting_elsewhere`), a job also stays if they and a step of the longest kind there
    would make it late; jobs handed off earlier in this step count among them. Waiting prompts are assumed to be
    computed in turn, at the pace of a step of `hp_tokens`, since the moment of the report. While steps have no
    predicted time the threshold alone decides. The prefill is predicted when the job starts to wait. With `confidence`,
    the two steps and the prefill count with the time that they stay within with that probability: the less is known,
    the earlier a job leaves.

    O(log n + leaving) if all jobs have the same target, with O(running) for the step while any is watched. With
    different targets, those within the largest threshold seen since the watch was last empty are examined too. Source:
    Ascendra (Ikram et al. 2025, arXiv:2504.20828), section on offloading; the formula is spec 3.6.
    """

    def __init__(
        self,
        cost: CostModel | None = None,
        *,
        threshold: float = 0.05,
        hp_tokens: int | None = None,
        confidence: float | None = None,
    ) -> None:
        if not -1 < threshold < 1:
            raise ConfigError.of("threshold", threshold, "a share of the target between -1 and 1")
        check_step_tokens("hp_tokens", hp_tokens)
        if confidence is not None and not 0 < confidence < 1:
            raise ConfigError.of("confidence", confidence, "a probability between 0 and 1")
        self.threshold = threshold
        self.hp_tokens = hp_tokens
        self.confidence = confidence
        self._cost: CostModel = cost or UnknownCost()
        self._by_latest_start = KeyedIndex()
        self._widest_margin_s = 0.0
        self._longest_ttft_s = 0.0

    def add(self, job: Job) -> None:
        """Watch a job that has not started, may move, and has a target for its first token."""
        deadline_s = job.ttft_deadline_s
        if deadline_s is None or not job.may_move or job.first_scheduled_s is not None:
            return
        latest_start_s = deadline_s - self._prefill_s(job.num_tokens)
        self._by_latest_start.put(job, (latest_start_s, job.arrival_s, job.id))
        self._widest_margin_s = max(self._widest_margin_s, self._margin_s(job))
        self._longest_ttft_s = max(self._longest_ttft_s, job.slo.ttft_s or 0.0)

    def remove(self, job: Job) -> None:
        """Stop watching a job."""
        if self._by_latest_start.discard(job) and not self._by_latest_start:
            self._widest_margin_s = 0.0
            self._longest_ttft_s = 0.0

    def leave(self, view: StepView) -> Mapping[Job, Departure]:
        """Empty: the rule decides once it is known which jobs start in this step."""
        return {}

    def leave_unserved(self, view: StepView, plan: StepPlan) -> Mapping[Job, Departure]:
        """Jobs that do not start in this step, and for which the next might be too late."""
        on_time = self._by_latest_start.position((view.now_s,))
        if on_time == len(self._by_latest_start):
            return {}
        step = expect_step(view, plan)
        next_s = view.now_s + self._step_s(step.shape)
        tokens = self.hp_tokens or high_step_tokens(self._cost, self._longest_ttft_s, view.max_tokens)
        # A step of the longest kind may just have begun there.
        longest_s = self._prefill_s(tokens)
        queues = _QueuesElsewhere(view, longest_s / tokens)
        elsewhere_s = next_s + longest_s
        staying = set(step.starting)
        until = self._by_latest_start.position((elsewhere_s + self._widest_margin_s, inf))
        return {
            job: Departure.HAND_OFF
            for job in self._by_latest_start.slice(on_time, until)
            if job not in staying
            and (latest_s := self._by_latest_start.keys[job][0]) <= elsewhere_s + self._margin_s(job)
            and queues.take(job, latest_s - view.now_s - longest_s)
        }

    def _prefill_s(self, num_tokens: int) -> float:
        if self.confidence is None:
            return self._cost.prefill_s(num_tokens)
        alone = BatchShape()
        alone.add(num_tokens, 0)
        return self._step_s(alone)

    def _step_s(self, shape: BatchShape) -> float:
        if self.confidence is None:
            return self._cost.step_s(shape)
        return self._cost.step_within_s(shape, self.confidence)

    def _margin_s(self, job: Job) -> float:
        assert job.slo.ttft_s is not None, "only jobs with this target are watched"
        return self.threshold * job.slo.ttft_s

    def next_change_s(self, view: StepView) -> float:
        """Unknown while a job could still be in time elsewhere, since that depends on the length of the next step."""
        on_time = self._by_latest_start.position((view.now_s,))
        return inf if on_time == len(self._by_latest_start) else -inf
