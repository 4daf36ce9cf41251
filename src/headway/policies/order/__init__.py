"""Orders: who comes first. One order a file."""

from __future__ import annotations

from headway.policies.order.arrival import Arrival
from headway.policies.order.deadline_aware import DeadlineAware
from headway.policies.order.edf import EarliestDeadline
from headway.policies.order.governed import Governed
from headway.policies.order.hrrn import Hrrn
from headway.policies.order.least_work import LeastWork
from headway.policies.order.on_time import OnTime
from headway.policies.order.predicted_remaining import PredictedRemaining
from headway.policies.order.priority import Priority
from headway.policies.order.prompt_length import LongestPrompt, ShortestPrompt
from headway.policies.order.protocol import (
    Foreseeing,
    Governing,
    KnowsLate,
    Learning,
    Order,
    Predicting,
    Valued,
    foresees,
    knows_late,
    learns,
    predicts,
    values,
)
from headway.policies.order.skip_join_mlfq import SkipJoinMlfq
from headway.policies.order.slack import LeastSlack
from headway.policies.order.waited_over_length import WaitedOverLength

__all__ = [
    "ORDERS",
    "Foreseeing",
    "Governing",
    "KnowsLate",
    "Learning",
    "Order",
    "Predicting",
    "Valued",
    "foresees",
    "knows_late",
    "learns",
    "predicts",
    "values",
]

ORDERS: dict[str, type[Order]] = {
    "arrival": Arrival,
    "shortest-prompt": ShortestPrompt,
    "longest-prompt": LongestPrompt,
    "slack": LeastSlack,
    "edf": EarliestDeadline,
    "waited-over-length": WaitedOverLength,
    "deadline-aware": DeadlineAware,
    "priority": Priority,
    "skip-join-mlfq": SkipJoinMlfq,
    "predicted-remaining": PredictedRemaining,
    "hrrn": Hrrn,
    "governed": Governed,
    "least-work": LeastWork,
    "on-time": OnTime,
}
