"""Shares service between tenants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush, heapreplace
from itertools import islice

from headway.core.job import Job
from headway.policies.order.sorted_index import Key, SortedIndex

QUANTUM_S = 1.0
"""Seconds of service by which tenants may differ before the turn changes. Without it they would change places at
every token, and all be slowed down.
"""

_Turn = tuple[int, Key, Job, Iterator[Job]]
"""Quanta that a job's tenant has had, the job's unique key, the job, and the jobs behind it."""


class TenantShares:
    """Seconds of service of each tenant with live jobs, and whose turn it is: the least served first.

    A returning tenant counts as having had as much as the least served tenant present: absence saves nothing up, and a
    tenant that had more does not lose that by a moment's absence. So of two tenants that both have jobs waiting, none
    falls behind the other by more than QUANTUM_S and the service of one chosen, uncounted batch, however many and short
    the other's requests are: of n such tenants each gets an n-th of the engine. Memory: tenants with live jobs, and
    those that would be ahead of them on return. Source: the virtual token counter of Sheng et al. (OSDI 2024, Fairness
    in serving large language models, algorithm 2), with seconds of work in place of weighted tokens.
    """

    def __init__(self) -> None:
        self._served_s: dict[str, float] = {}
        self._ascending: list[tuple[float, str]] = []
        self._live: Counter[str] = Counter()

    @property
    def several(self) -> bool:
        """Whether jobs of more than one tenant are live, so that there is something to share."""
        return len(self._live) > 1

    def present(self, tenant: str) -> bool:
        """Whether a tenant has live jobs."""
        return tenant in self._live

    def come(self, tenant: str) -> None:
        """A job of a tenant arrived."""
        if tenant not in self._live:
            least_s = self._least_s()
            if tenant not in self._served_s:
                self._served_s[tenant] = least_s
                heappush(self._ascending, (least_s, tenant))
        self._live[tenant] += 1

    def go(self, tenant: str) -> None:
        """A job of a tenant is gone."""
        self._live[tenant] -= 1
        if not self._live[tenant]:
            del self._live[tenant]
            self._least_s()

    def serve(self, tenant: str, seconds: float) -> bool:
        """Count service of a tenant with live jobs; return whether it completed another quantum."""
        before = self.quantum(tenant)
        self._served_s[tenant] += seconds
        return self.quantum(tenant) > before

    def quantum(self, tenant: str) -> int:
        """Whole quanta that a tenant with live jobs has had."""
        return int(self._served_s[tenant] // QUANTUM_S)

    def leads_s(self, tenants: Iterable[str]) -> dict[str, float]:
        """Seconds, in whole quanta, that each tenant has had more than the least served. O(tenants asked for)."""
        least = self._least_s() // QUANTUM_S
        return {tenant: (self.quantum(tenant) - least) * QUANTUM_S for tenant in tenants}

    def _least_s(self) -> float:
        """Service of the least served tenant present; drops absent tenants that are not ahead of it. O(1), amortized.

        Every known tenant has an entry, which may be out of date: no tenant has ever had less than it says.
        """
        ascending = self._ascending
        while ascending:
            noted_s, tenant = ascending[0]
            served_s = self._served_s[tenant]
            if served_s > noted_s:
                heapreplace(ascending, (served_s, tenant))
            elif tenant in self._live:
                return served_s
            else:
                heappop(ascending)
                del self._served_s[tenant]
        return 0.0

    def in_turn(
        self,
        queues: Iterable[Iterable[Job]],
        key: Callable[[Job], Key],
        work_s: Callable[[Job], float],
    ) -> Iterator[Job]:
        """Yield the jobs of all queues, each in its order, with tenants in turn as if each yielded job were served.

        Each queue belongs to one tenant and is not empty. The queues come by the turn of their first jobs: by the
        tenant's quanta, then by `key`. O(log n) for the n-th job, however many queues there are.
        """
        served_s: dict[str, float] = {}

        def turn(queue: Iterator[Job]) -> _Turn | None:
            job = next(queue, None)
            if job is None:
                return None
            had_s = served_s.setdefault(job.tenant, self._served_s[job.tenant])
            return (int(had_s // QUANTUM_S), key(job), job, queue)

        unopened = map(turn, map(iter, queues))
        coming = next(unopened, None)
        opened: list[_Turn] = []
        while coming or opened:
            if coming and (not opened or coming < opened[0]):
                heappush(opened, coming)
                coming = next(unopened, None)
            _, _, job, queue = opened[0]
            yield job
            served_s[job.tenant] += work_s(job)
            following = turn(queue)
            if following is None:
                heappop(opened)
            else:
                heapreplace(opened, following)


class TenantQueues:
    """An index like `SortedIndex`, whose slices begin with the least served tenant (`TenantShares.in_turn`).

    Costs: of insert and remove those of `SortedIndex`, twice if a tenant's first job changes; of a slice O(stop log
    stop), whatever the number of tenants, and O(stop) if one tenant's jobs wait. `key` and `work_s` are called for
    indexed jobs.
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
        """Insert a job at its place."""
        queue = self._queues.get(job.tenant)
        if queue is None:
            queue = self._queues[job.tenant] = SortedIndex()
        queue.insert(job, key)
        if queue.at(0) is job:
            self.place(job.tenant)

    def remove(self, job: Job, key: Key) -> None:
        """Remove an indexed job, given the key of its insertion."""
        self._queues[job.tenant].remove(job, key)
        if self._placed[job.tenant][0] is job:
            self.place(job.tenant)

    def holds(self, job: Job, key: Key) -> bool:
        """Whether a job is indexed under this key."""
        queue = self._queues.get(job.tenant)
        return queue is not None and queue.holds(job, key)

    def place(self, tenant: str) -> None:
        """Update a tenant's turn: its first job changed, or it has had another quantum of service."""
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
        """Jobs `start` to `stop` in turn, as if each were served when it is listed."""
        if len(self._queues) == 1:
            return next(iter(self._queues.values())).slice(start, stop)
        queues = (self._queues[head.tenant] for head in self._heads)
        return list(islice(self._shares.in_turn(queues, self._key, self._work_s), start, stop))
