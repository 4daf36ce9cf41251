"""The jobs of several tenants: each tenant's in key order, the tenants in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice

from headway.core.job import Job
from headway.policies.order.sorted_index import Key, SortedIndex
from headway.policies.order.tenant_shares import TenantShares


class TenantQueues:
    """An index like `SortedIndex`, whose slices begin with the tenant that has had least (`TenantShares.in_turn`).

    Costs: of insert and remove those of `SortedIndex`, twice where a tenant's first job changes; of a slice O(stop log
    stop), whatever the number of tenants, and O(stop) where one tenant's jobs wait. `key` and `work_s` are asked of
    jobs that are in.
    """

    def __init__(
        self, shares: TenantShares, key: Callable[[Job], Key], work_s: Callable[[Job], float]
    ) -> None:
        self._shares = shares
        self._key = key
        self._work_s = work_s
        self._queues: dict[str, SortedIndex] = {}
        self._heads = SortedIndex()
        self._placed: dict[str, tuple[Job, Key]] = {}

    def insert(self, job: Job, key: Key) -> None:
        """Put a job in its place."""
        queue = self._queues.get(job.tenant)
        if queue is None:
            queue = self._queues[job.tenant] = SortedIndex()
        queue.insert(job, key)
        if queue.at(0) is job:
            self.place(job.tenant)

    def remove(self, job: Job, key: Key) -> None:
        """Take out a job that is in, under the key it was inserted with."""
        self._queues[job.tenant].remove(job, key)
        if self._placed[job.tenant][0] is job:
            self.place(job.tenant)

    def holds(self, job: Job, key: Key) -> bool:
        """Whether a job is in under this key."""
        queue = self._queues.get(job.tenant)
        return queue is not None and queue.holds(job, key)

    def rekey(self, keys: Mapping[Job, Key]) -> None:
        """Put all that are in where these keys have them. O(n log n)."""
        for queue in self._queues.values():
            queue.rekey(keys)
        for tenant in list(self._queues):
            self.place(tenant)

    def place(self, tenant: str) -> None:
        """Put a tenant in its turn: its first job is another, or it has had another quantum of service."""
        if tenant in self._placed:
            self._heads.remove(*self._placed.pop(tenant))
        queue = self._queues.get(tenant)
        if queue:
            head = queue.at(0)
            turn = (self._shares.quantum(tenant), *self._key(head))
            self._heads.insert(head, turn)
            self._placed[tenant] = (head, turn)
        else:
            self._queues.pop(tenant, None)

    def slice(self, start: int, stop: int) -> list[Job]:
        """Jobs `start` to `stop` in turn, as if each were served when it is named."""
        if len(self._queues) == 1:
            return next(iter(self._queues.values())).slice(start, stop)
        queues = (self._queues[head.tenant] for head in self._heads)
        return list(islice(self._shares.in_turn(queues, self._key, self._work_s), start, stop))
