"""Leaving rules decide which jobs leave the queue without running here. One idea a file."""

from __future__ import annotations

from headway.policies.leaving.at_risk import AtRisk
from headway.policies.leaving.queue_limits import Expired, OutOfMemory, QueueBound
from headway.policies.protocols import Leaving

LEAVINGS: dict[str, type[Leaving]] = {
    "at-risk": AtRisk,
    "expired": Expired,
    "out-of-memory": OutOfMemory,
    "queue-bound": QueueBound,
}
