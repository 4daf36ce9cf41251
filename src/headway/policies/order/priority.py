"""By the request's own priority."""

from __future__ import annotations

from headway.core.job import Job
from headway.policies.order.keyed import KeyedOrder
from headway.policies.order.sorted_index import Key


class Priority(KeyedOrder):
    """Lowest `priority` value first, as vLLM's own priority policy."""

    def key(self, job: Job) -> Key:
        """(priority, arrival, id)."""
        return (job.priority, job.arrival_s, job.id)
