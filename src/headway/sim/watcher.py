"""Follows a run step by step without changing it, to tell one request's story."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from headway.core.batch_shape import BatchShape, shape_of
from headway.core.cost import CostModel
from headway.core.job import Job, JobState
from headway.core.plan import StepOutcome, StepPlan
from headway.core.record import Outcome, Record
from headway.core.view import StepView
from headway.explain.explanation import Explanation, explain
from headway.explain.story import (
    IN_QUEUE,
    LOOK_AHEAD,
    UNDER_WAY,
    Chapter,
    Kind,
    Story,
    hull,
    whole_story,
)
from headway.explain.telling import chapters
from headway.explain.trail import Trail
from headway.policies.policy import Policy
from headway.policies.protocols import Batching, Learning, Order


@dataclass(frozen=True, slots=True)
class ObservedStep:
    """One step at the moment it was scheduled. Jobs are live, in the state after the step.

    `view` is what the step was planned on, and `residents` those before the step; `order` and the view's waiting jobs
    are from after it. `cost` is the policy's cost model. Read only, and valid only during the call.
    """

    instance: str
    view: StepView
    residents: Sequence[Job]
    order: Order
    cost: CostModel
    outcome: StepOutcome


class Watcher(Protocol):
    """Follows a run; must not change any job or policy."""

    def saw(self, sight: ObservedStep) -> None:
        """A step was scheduled, or nothing could be."""
        ...

    def stepped(self, instance: str, outcome: StepOutcome, started_s: float, finished_s: float) -> None:
        """A step's output is about to be processed; it was scheduled at `started_s`."""
        ...

    def ended(self, record: Record) -> None:
        """A request ended."""
        ...


def watched(policy: Policy, watcher: Watcher, instance: str, cost: CostModel) -> Policy:
    """Wrap an instance's policy so that it tells `watcher` of every step; `cost` is the policy's cost model."""
    policy.batching = _WatchedBatching(policy.batching, instance, cost, watcher.saw)
    policy.uses_costs = True
    return policy


class _WatchedBatching:
    """A batching that plans like the wrapped one. A policy informs its batching last of each step."""

    def __init__(
        self, inner: Batching, instance: str, cost: CostModel, saw: Callable[[ObservedStep], None]
    ) -> None:
        self._inner = inner
        self._instance = instance
        self._cost = cost
        self._saw = saw
        self._seen: tuple[StepView, Sequence[Job], Order] | None = None

    def plan(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
        """The wrapped batching's plan."""
        self._seen = (view, view.residents, order)
        return self._inner.plan(view, order, leaving)

    def next_change_s(self, view: StepView) -> float:
        """As the wrapped batching."""
        return self._inner.next_change_s(view)

    def finished(self, job: Job) -> None:
        """Let the wrapped batching learn, if it does."""
        if isinstance(self._inner, Learning):
            self._inner.finished(job)

    def observe(self, outcome: StepOutcome) -> None:
        """Let the wrapped batching learn, then tell the watcher."""
        self._inner.observe(outcome)
        assert self._seen is not None, "a step was filled that was not planned"
        view, residents, order = self._seen
        self._saw(ObservedStep(self._instance, view, residents, order, self._cost, outcome))


_KEPT_ENDED = 10_000


class StoryWatcher:
    """Follows one request by its id, and those around it as an engine's trail does.

    O(waiting) a step until it arrives, then O(LOOK_AHEAD) a step while it waits. `block_bytes` is the size of a KV
    block.
    """

    def __init__(self, request_id: str, arrival_s: float, block_bytes: int = 0) -> None:
        self._id = request_id
        self._arrival_s = arrival_s
        self._block_bytes = block_bytes
        self._trails: dict[str, Trail] = {}
        self._expected: dict[str, deque[tuple[StepOutcome, BatchShape, float]]] = {}
        self._last_s: dict[str, float] = {}
        self._job: Job | None = None
        self._instance = ""
        self._ahead: list[tuple[float, int]] = []
        self._told: list[Chapter] = []
        self._record: Record | None = None
        self._found: Explanation | None = None

    # ---- calls of the simulation -------------------------------------------------------------------

    def saw(self, sight: ObservedStep) -> None:
        """Follow this step, and find the request's position in it."""
        if self._record is not None:
            return
        trail = self._trails.get(sight.instance)
        if trail is None:
            trail = Trail(kept=_KEPT_ENDED, cost=sight.cost, name=sight.instance)
            self._trails[sight.instance] = trail
        if self._job is None:
            self._find(sight, trail)
        trail.stepped(sight.view, sight.outcome)
        self._expect(sight)
        job = self._job
        if job is not None and sight.instance == self._instance and job.state in _QUEUED:
            self._ahead.append((sight.outcome.now_s, _ahead(job, sight)))

    def stepped(self, instance: str, outcome: StepOutcome, started_s: float, finished_s: float) -> None:
        """Compare the step's time with its prediction."""
        expected = self._expected.get(instance)
        if expected and expected[0][0] is outcome:
            _, shape, seconds = expected.popleft()
            took_s = finished_s - max(started_s, self._last_s.get(instance, started_s))
            self._trails[instance].judge(finished_s, shape, seconds, took_s)
        self._last_s[instance] = finished_s

    def ended(self, record: Record) -> None:
        """The request ended, or left an instance."""
        trail = self._trails.get(record.instance)
        if trail is not None:
            trail.finished(record)
        if record.id != self._id:
            return
        if trail is not None and record.finished_s is not None:
            self._found = explain(trail, self._id, record.finished_s, self._block_bytes) or self._found
        if record.outcome is Outcome.HANDED_OFF:
            self._leave(record, trail)
        else:
            self._record = record
            self._told += self._stay(record, trail)

    @property
    def story(self) -> Story | None:
        """The whole story; None until the request has ended."""
        if self._record is None:
            return None
        return whole_story([replace(chapter) for chapter in self._told], self._record)

    @property
    def explanation(self) -> Explanation | None:
        """Why it took as long, by its last stay that saw a step, with the whole story; None if there was no such
        stay.
        """
        story = self.story
        return None if self._found is None or story is None else replace(self._found, story=story)

    # ---- stays at instances ----------------------------------------------------------------------------

    def _find(self, sight: ObservedStep, trail: Trail) -> None:
        if sight.outcome.now_s < self._arrival_s:
            return
        for job in (*sight.view.waiting, *sight.outcome.admitted):
            if job.id == self._id:
                self._job, self._instance = job, sight.instance
                trail.arrived(job, job.arrival_s)

    def _expect(self, sight: ObservedStep) -> None:
        """The step time that the policy's cost model predicts, once it has learned enough."""
        if self._job is None or not sight.outcome.tokens:
            return
        shape = shape_of(sight.outcome.tokens)
        step = (sight.outcome, shape, sight.cost.step_s(shape))
        self._expected.setdefault(sight.instance, deque()).append(step)

    def _leave(self, record: Record, trail: Trail | None) -> None:
        """The request moves; its next stay is told after this one."""
        assert record.finished_s is not None, "a request moved at no time"
        stay = self._stay(record, trail)
        if not stay:
            stay = [Chapter(kind=Kind.ARRIVED, start_s=record.arrival_s, end_s=record.arrival_s)]
        if stay[-1].end_s < record.finished_s:
            waited = Chapter(kind=Kind.WAITED, start_s=stay[-1].end_s, end_s=record.finished_s, why=UNDER_WAY)
            stay.append(waited)
        why = f"instance {record.instance} gave it up before it had started"
        move = Chapter(kind=Kind.HANDED_OFF, start_s=record.finished_s, end_s=record.finished_s, why=why)
        self._told += [*stay, move]
        self._job = None

    def _stay(self, record: Record, trail: Trail | None) -> list[Chapter]:
        """What happened at one instance, and how many requests waited ahead of it."""
        track = None if trail is None else trail.find(self._id)
        if trail is None or track is None or record.finished_s is None:
            return []
        told = chapters(trail, track, record.finished_s)
        for chapter in told:
            if chapter.kind in IN_QUEUE:
                chapter.ahead = self._bounds(chapter.start_s, chapter.end_s)
        return told

    def _bounds(self, start_s: float, end_s: float) -> tuple[int, int] | None:
        first = bisect_left(self._ahead, (start_s,))
        last = bisect_left(self._ahead, (end_s,))
        return hull([(ahead, ahead) for _, ahead in self._ahead[first:last]])


_QUEUED: Sequence[JobState] = (JobState.WAITING, JobState.SWAPPED)


def _ahead(job: Job, sight: ObservedStep) -> int:
    """How many waiting jobs would start before this one."""
    first = sight.order.top(LOOK_AHEAD, sight.outcome.now_s)
    return first.index(job) if job in first else LOOK_AHEAD
