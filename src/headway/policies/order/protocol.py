"""What an order has to offer, and what more it may."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeGuard, runtime_checkable

from headway.core.job import Job
from headway.core.plan import StepOutcome
from headway.core.prediction_quality import PredictionQuality
from headway.core.view import StepView
from headway.policies.offers import offers


class Order(Protocol):
    """An incremental index of the waiting jobs, and a ranking of residents by the same rule.

    `add` when a job starts waiting (it arrived, or was preempted: a swapped one waits like any other),
    `remove` when it stops (admitted, or about to end), `end` when it is gone, `touch` when something its
    rank depends on changed. The ranking is total: ties end in (arrival, id).
    """

    def add(self, job: Job) -> None:
        """Index a job that starts to wait."""
        ...

    def remove(self, job: Job) -> None:
        """Forget a job that no longer waits."""
        ...

    def end(self, job: Job) -> None:
        """Forget a job, which no longer waits, for good."""
        ...

    def touch(self, job: Job) -> None:
        """Take a live job's rank anew."""
        ...

    def top(self, k: int, now_s: float) -> list[Job]:
        """The first k waiting jobs, most deserving first."""
        ...

    def rank(self, jobs: Sequence[Job], now_s: float) -> Sequence[Job]:
        """`jobs` (residents), most deserving first."""
        ...

    def next_change_s(self, view: StepView) -> float:
        """Until when `top` and `rank` stay as they are while residents only decode and time passes.

        inf for ever; anything before now where that is not known.
        """
        ...

    def observe(self, outcome: StepOutcome) -> None:
        """Learn from a step that ran."""
        ...


@runtime_checkable
class Valued(Protocol):
    """An order that says how much a job's claim is worth, for those who compare whole queues."""

    def value(self, job: Job, now_s: float) -> float:
        """A job's claim, not negative; of two jobs the one with more is served first."""
        ...


@runtime_checkable
class Foreseeing(Protocol):
    """An order that says when a job will probably be served next, for those who move KV ahead of need."""

    def next_service_s(self, jobs: Sequence[Job], now_s: float, width: int) -> list[float]:
        """Seconds until each of `jobs` is expected to be served next, `width` at a time; ties are for `rank`."""
        ...

    def num_at_first(self, levels: int) -> int:
        """Live jobs at the first so many levels: what a burst looks like."""
        ...


@runtime_checkable
class Learning(Protocol):
    """An order, or a batching, that learns from answers that came to their end."""

    def finished(self, job: Job) -> None:
        """An answer ended by itself or at its limit; `end` follows. Not called for a job that ended otherwise."""
        ...


@runtime_checkable
class Predicting(Protocol):
    """An order that ranks by predicted lengths, or would if they were better."""

    @property
    def trusts_predictions(self) -> bool:
        """Whether it goes by predicted lengths now; others should not rely on them while it does not."""
        ...


@runtime_checkable
class Governing(Predicting, Protocol):
    """A predicting order that watches how good predictions are."""

    @property
    def quality(self) -> PredictionQuality:
        """What it has seen of them: `trusted`, `tau` and `coverage`, None while too little is known."""
        ...


@runtime_checkable
class KnowsLate(Order, Protocol):
    """An order that knows who can still meet its targets, for those who share out time and memory."""

    @property
    def trusts_step_times(self) -> bool:
        """Whether steps take about what is predicted, so that it means something to be on time."""
        ...

    def latest_start_s(self, job: Job) -> float:
        """Until when a job may be left alone and still meet its targets; inf without any, -inf if one is missed."""
        ...

    def on_time(self, jobs: Sequence[Job], now_s: float) -> list[Job]:
        """Those of `jobs`, all live, that have a target and can still meet all they have. O(jobs), without calls."""
        ...

    def overdue(self, now_s: float) -> list[Job]:
        """The job that ranks before those in time, since it has waited too long: one, or none."""
        ...


def values(order: Order) -> TypeGuard[Valued]:
    """Whether an order is `Valued`, at the price of a look-up."""
    return offers(order, Valued)


def foresees(order: Order) -> TypeGuard[Foreseeing]:
    """Whether an order is `Foreseeing`, at the price of a look-up."""
    return offers(order, Foreseeing)


def predicts(order: Order) -> TypeGuard[Predicting]:
    """Whether an order is `Predicting`, at the price of a look-up."""
    return offers(order, Predicting)


def knows_late(order: Order) -> TypeGuard[KnowsLate]:
    """Whether an order is `KnowsLate`, at the price of a look-up."""
    return offers(order, KnowsLate)


def learns(part: object) -> TypeGuard[Learning]:
    """Whether an order, or a batching, is `Learning`, at the price of a look-up."""
    return offers(part, Learning)
