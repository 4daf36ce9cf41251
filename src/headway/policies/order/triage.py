"""Who can still be on time together, when not all can."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from headway.core.job import Job


class Candidate(NamedTuple):
    """A job due at `due_s`, which takes `service_s` of the one server that all share, and costs `cost_s` in all.

    `turn_s` is when it is its turn beside others that can be in time.
    """

    due_s: float
    arrival_s: float
    id: str
    service_s: float
    cost_s: float
    turn_s: float
    job: Job


def given_up(candidates: Sequence[Candidate], now_s: float) -> set[Job]:
    """Whom to give up so that the others are all served in time, one after another by due time.

    `candidates` come by due time. Where one would be late, the one that costs most among it and those kept before it is
    given up, the last of equals, if that lets it be in time; else it is given up itself. If costs are services
    this is Moore and Hodgson's rule, and nobody could have more of them in time; with costs of their own it gives
    up the jobs that free most for those that come later. O(n log n); O(n) where all can be in time.
    Source: Moore 1968, An n job, one machine sequencing algorithm for minimizing the number of late jobs.
    """
    if _all_in_time(candidates, now_s):
        return set()
    kept: list[tuple[float, int, Candidate]] = []
    lost: set[Job] = set()
    free_s = now_s
    for number, candidate in enumerate(candidates):
        if free_s + candidate.service_s > candidate.due_s:
            if not kept or not _makes_way(kept[0][2], candidate, free_s):
                lost.add(candidate.job)
                continue
            costliest = heappop(kept)[2]
            lost.add(costliest.job)
            free_s -= costliest.service_s
        heappush(kept, (-candidate.cost_s, -number, candidate))
        free_s += candidate.service_s
    return lost


def _all_in_time(candidates: Iterable[Candidate], free_s: float) -> bool:
    for candidate in candidates:
        free_s += candidate.service_s
        if free_s > candidate.due_s:
            return False
    return True


def _makes_way(costliest: Candidate, newcomer: Candidate, free_s: float) -> bool:
    """Whether giving one up that costs more lets the newcomer be in time."""
    in_time = free_s - costliest.service_s + newcomer.service_s <= newcomer.due_s
    return in_time and costliest.cost_s > newcomer.cost_s
