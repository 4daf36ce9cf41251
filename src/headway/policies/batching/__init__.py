"""Batchings: how a ranking becomes this step's work. One batching a file."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from headway.core.job import Job
from headway.core.plan import StepOutcome, StepPlan
from headway.core.view import StepView
from headway.policies.batching.decode_first import DecodeFirst
from headway.policies.batching.elastic import Elastic
from headway.policies.batching.iteration_level import IterationLevel
from headway.policies.batching.paced import Paced
from headway.policies.batching.prefill_first import PrefillFirst
from headway.policies.batching.request_level import RequestLevel
from headway.policies.batching.swapped_or_waiting import SwappedOrWaiting
from headway.policies.batching.top_jobs import TopJobs
from headway.policies.batching.within_budgets import WithinBudgets
from headway.policies.order import Order


class Batching(Protocol):
    """Which resident jobs run, which waiting ones start, with how many tokens."""

    def plan(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
        """The step's run, admit, budget and caps; jobs in `leaving` are not to be named."""
        ...

    def next_change_s(self, view: StepView) -> float:
        """Until when the plan stays as it is, as `Order.next_change_s`, given that the order does."""
        ...

    def observe(self, outcome: StepOutcome) -> None:
        """Learn from a step that ran."""
        ...


BATCHINGS: dict[str, type[Batching]] = {
    "decode-first": DecodeFirst,
    "prefill-first": PrefillFirst,
    "iteration-level": IterationLevel,
    "request-level": RequestLevel,
    "top-jobs": TopJobs,
    "swapped-or-waiting": SwappedOrWaiting,
    "within-budgets": WithinBudgets,
    "elastic": Elastic,
    "paced": Paced,
}
