"""How much of the engine each tenant has had, and the jobs of several in turn by that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heapreplace

from headway.core.job import Job
from headway.policies.order.sorted_index import Key

QUANTUM_S = 1.0
"""Seconds of service by which tenants may differ before it is anybody's turn: else they would change places at every
token, and all be slowed down."""


class TenantShares:
    """Seconds of service that each tenant with live jobs has had, and whose turn it is.

    Who has had least comes first. A tenant that comes back is taken to have had as much as the least served of those
    present: being away saves nothing up, and one that has had more than they does not lose that by a moment's absence.
    So of two tenants that both have jobs waiting, none falls behind the other by more than QUANTUM_S and the service
    of one batch that has been chosen and not yet counted, however many requests the other sends and however short they
    are: of n such tenants each gets an n-th of the engine. Memory: tenants with live jobs, and those that would be
    ahead of them if they came back. Source: the virtual token counter of Sheng et al. (OSDI 2024, Fairness in serving
    large language models, algorithm 2), in seconds of work in place of weighted tokens.
    """

    def __init__(self) -> None:
        self._served_s: dict[str, float] = {}
        self._live: Counter[str] = Counter()

    @property
    def several(self) -> bool:
        """Whether there is anything to share: jobs of more than one tenant."""
        return len(self._live) > 1

    def present(self, tenant: str) -> bool:
        """Whether a tenant has live jobs."""
        return tenant in self._live

    def come(self, tenant: str) -> None:
        """One more job of a tenant lives."""
        if tenant not in self._live:
            self._served_s[tenant] = max(self._served_s.get(tenant, 0.0), self._least_s())
        self._live[tenant] += 1

    def go(self, tenant: str) -> None:
        """A job of a tenant is gone. O(tenants) with its last."""
        self._live[tenant] -= 1
        if not self._live[tenant]:
            del self._live[tenant]
            self._forget()

    def _forget(self) -> None:
        """Keep nothing of those that are away and would come back to what the least served has had."""
        least_s = self._least_s()
        self._served_s = {
            tenant: served_s
            for tenant, served_s in self._served_s.items()
            if tenant in self._live or (self._live and served_s > least_s)
        }

    def serve(self, tenant: str, seconds: float) -> None:
        """A tenant with live jobs was served."""
        self._served_s[tenant] += seconds

    def leads_s(self, tenants: Iterable[str]) -> dict[str, float]:
        """Whole quanta by which each has had more than the least served, in seconds. O(live tenants + asked)."""
        least_s = self._least_s()
        return {tenant: (self._served_s[tenant] - least_s) // QUANTUM_S * QUANTUM_S for tenant in tenants}

    def _least_s(self) -> float:
        return min((self._served_s[tenant] for tenant in self._live), default=0.0)

    def in_turn(
        self,
        queues: Mapping[str, Iterator[Job]],
        key: Callable[[Job], Key],
        work_s: Callable[[Job], float],
    ) -> Iterator[Job]:
        """The jobs of all queues, each in its order, the tenants in turn as if each job were served when it is named.

        Between tenants of one quantum by `key`. O(log tenants) a job that is taken from it.
        """
        least_s = self._least_s()
        served_s = {tenant: self._served_s[tenant] - least_s for tenant in queues}

        def turn(tenant: str) -> tuple[float, Key, str, Job] | None:
            job = next(queues[tenant], None)
            return None if job is None else (served_s[tenant] // QUANTUM_S, key(job), tenant, job)

        heads = [head for head in map(turn, queues) if head is not None]
        heapify(heads)
        while heads:
            _, _, tenant, job = heads[0]
            yield job
            served_s[tenant] += work_s(job)
            head = turn(tenant)
            if head is None:
                heappop(heads)
            else:
                heapreplace(heads, head)
