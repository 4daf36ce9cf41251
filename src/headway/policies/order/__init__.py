"""Orders decide which jobs come first. One idea a file."""

from __future__ import annotations

from headway.policies.order.arrival import Arrival
from headway.policies.order.boost import Boost
from headway.policies.order.due import EarliestDeadline, LeastSlack
from headway.policies.order.governed import Governed
from headway.policies.order.keyed import LongestPrompt, Priority, ShortestPrompt
from headway.policies.order.least_work import LeastWork
from headway.policies.order.on_time import OnTime
from headway.policies.order.predicted_remaining import PredictedRemaining
from headway.policies.order.response_ratio import DeadlineAware, Hrrn, WaitedOverLength
from headway.policies.order.skip_join_mlfq import SkipJoinMlfq
from headway.policies.protocols import Order

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
    "boost": Boost,
    "governed": Governed,
    "least-work": LeastWork,
    "on-time": OnTime,
}
