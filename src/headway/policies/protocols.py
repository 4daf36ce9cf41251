"""The protocols of the four kinds of parts, and their optional abilities."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from typing import Any, Protocol, TypeGuard, runtime_checkable

from headway.core.job import Job
from headway.core.plan import Departure, StepOutcome, StepPlan
from headway.core.prediction_quality import PredictionQuality
from headway.core.view import StepView


class Changing(Protocol):
    """What every kind of part says about time."""

    def next_change_s(self, view: StepView) -> float:
        """How long the part's answers stay valid, while residents only decode and time passes.

        inf for ever; a moment before now if unknown. A batching may assume that the order stays as it is, an eviction
        that the plan does, a leaving rule that no job arrives.
        """


class Part(Changing, Protocol):
    """A part that learns from steps."""

    def observe(self, outcome: StepOutcome) -> None:
        """Learn from a filled step."""


class Order(Part, Protocol):
    """An incremental index of the waiting jobs, and a ranking of residents by the same rule.

    `add` is called when a job starts to wait (it arrived, or was preempted or swapped), `remove` when it stops
    (admitted, or about to end), `end` when it is gone, `touch` when something changed on which its rank depends. The
    ranking is total: ties end in (arrival, id).
    """

    def add(self, job: Job) -> None:
        """Index a job that starts to wait."""

    def remove(self, job: Job) -> None:
        """Forget a job that no longer waits."""

    def end(self, job: Job) -> None:
        """Forget a job, which no longer waits, for good."""

    def touch(self, job: Job) -> None:
        """Update a live job's rank."""

    def top(self, k: int, now_s: float) -> list[Job]:
        """The first k waiting jobs, most deserving first."""

    def rank(self, jobs: Sequence[Job], now_s: float) -> Sequence[Job]:
        """Sort `jobs` (residents), most deserving first."""


class Batching(Part, Protocol):
    """Decides which resident jobs run, which waiting ones start, and with how many tokens."""

    def plan(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
        """The step's run, admit, budget and caps, without the jobs in `leaving`."""


class Eviction(Part, Protocol):
    """Decides which jobs are preempted before the step is filled; a shortage while filling takes the last resident."""

    @property
    def serial(self) -> bool:
        """Whether a step waits for the copies decided with it."""

    def evict(self, view: StepView, plan: StepPlan, order: Order) -> StepPlan:
        """The plan with the jobs whose KV leaves now moved from `run` to `preempt`.

        `admit` is emptied if they leave because blocks are short (invariant 4). Without victims the plan is returned as
        it is.
        """


class Leaving(Changing, Protocol):
    """A rule that runs first in a step, and only examines the waiting jobs that it was told of."""

    def add(self, job: Job) -> None:
        """A job starts to wait."""

    def remove(self, job: Job) -> None:
        """A job no longer waits."""

    def leave(self, view: StepView) -> Mapping[Job, Departure]:
        """The jobs that leave now, and why."""


# ---- defaults that many parts share ---------------------------------------------------------------------------


class LearnsNothing:
    """Mixed into a part that learns nothing from steps."""

    __slots__ = ()

    def observe(self, outcome: StepOutcome) -> None:
        """Nothing to learn."""


class Unchanging:
    """Mixed into a part whose answers change with neither time nor tokens.

    Most batchings are such parts: memory that only fills up starts no job that could not start before.
    """

    __slots__ = ()

    def next_change_s(self, view: StepView) -> float:
        """Never."""
        return inf


class Drifting:
    """Mixed into a part whose answers may change at any time: rankings cross as time passes and answers grow."""

    __slots__ = ()

    def next_change_s(self, view: StepView) -> float:
        """Unknown."""
        return -inf


# ---- optional abilities of a part --------------------------------------------------------------------------


@runtime_checkable
class SecondLook(Protocol):
    """A leaving rule that also decides after the plan, when it is known which jobs run and start."""

    def leave_unserved(self, view: StepView, plan: StepPlan) -> Mapping[Job, Departure]:
        """Which of the jobs that this step does not serve leave, and why."""


@runtime_checkable
class Indifferent(Protocol):
    """A batching or an eviction that may be independent of ranks."""

    def ranks_nobody(self, view: StepView) -> bool:
        """Whether ranks do not matter while residents only decode, have blocks, and no job comes or ends."""


@runtime_checkable
class Learning(Protocol):
    """An order, or a batching, that learns from answers that ended by themselves or at their limit."""

    def finished(self, job: Job) -> None:
        """An answer ended by itself or at its limit; `end` follows. Not called for other ends."""


@runtime_checkable
class Predicting(Protocol):
    """An order that ranks by predicted lengths, or would if they were better."""

    @property
    def trusts_predictions(self) -> bool:
        """Whether it uses predicted lengths now; other parts should not rely on them otherwise."""


@runtime_checkable
class Governing(Predicting, Protocol):
    """A predicting order that watches the quality of predictions."""

    @property
    def quality(self) -> PredictionQuality:
        """The observed quality: `trusted`, `tau` and `coverage`, None while too little is known."""


@runtime_checkable
class KnowsLate(Order, Protocol):
    """An order that knows which jobs can still meet their targets, for parts that distribute time and memory."""

    @property
    def trusts_step_times(self) -> bool:
        """Whether steps take about as long as predicted, so that being on time has a meaning."""

    def latest_start_s(self, job: Job) -> float:
        """How long a job may be left alone and still meet its targets; inf without any, -inf if one is missed."""

    def on_time(self, jobs: Sequence[Job], now_s: float) -> list[Job]:
        """The live jobs among these that have a target and can still meet all of their targets. O(jobs), without
        calls.
        """

    def that_can_wait(self, jobs: Iterable[Job], now_s: float) -> Collection[Job]:
        """The jobs that stay in time even if ignored for the next minutes."""

    def due_first_tokens(self, jobs: Iterable[Job], now_s: float) -> list[Job]:
        """The prompts without a target that are computed before all others now, since their first token is due."""

    def overdue(self, now_s: float) -> list[Job]:
        """The jobs that rank before those in time, since they have waited too long."""


_OFFERS: dict[tuple[type, type], bool] = {}


def offers(part: object, ability: Any) -> bool:
    """`isinstance` for a runtime-checkable protocol, asked once a type: Python 3.11 takes 25 us for it."""
    asked = (type(part), ability)
    if asked not in _OFFERS:
        _OFFERS[asked] = isinstance(part, ability)
    return _OFFERS[asked]


def looks_again(rule: Leaving) -> TypeGuard[SecondLook]:
    """Whether a rule is a `SecondLook`."""
    return offers(rule, SecondLook)


def may_rank_nobody(part: object) -> TypeGuard[Indifferent]:
    """Whether a part is `Indifferent`."""
    return offers(part, Indifferent)


def learns(part: object) -> TypeGuard[Learning]:
    """Whether an order, or a batching, is `Learning`."""
    return offers(part, Learning)


def predicts(order: Order) -> TypeGuard[Predicting]:
    """Whether an order is `Predicting`."""
    return offers(order, Predicting)


def knows_late(order: Order) -> TypeGuard[KnowsLate]:
    """Whether an order is `KnowsLate`."""
    return offers(order, KnowsLate)
