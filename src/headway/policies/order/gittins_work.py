"""How much work a job is for each answer that ends: who is worth serving while lengths are a guess."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from headway.core.job import Job
from headway.policies.order.remaining_work import RemainingWork

POINTS = 16
"""Lengths that stand for all that an answer may have."""


class GittinsWork(RemainingWork):
    """Each job's work by the best moment to give up on it: its expected work until then, over the chance that it ends.

    An answer may have any of the lengths that its prediction leaves open, or that answers had of late, longer than it
    is. To serve it until it has n tokens takes some work, less where it ends before, and finishes it with some
    probability; the least work for each that finishes, over all n, is what the job counts for. So one of which many
    like it end soon goes first, and goes back once it has not been one of them; where lengths are known it is the
    remaining work. Before anything has ended it is `RemainingWork`.

    Ranked by it, mean JCT on one server is the least that can be had without knowing more (Gittins 1989; Aalto, Ayesta
    and Righter 2009). Here a job's memory counts as work (`memory`), and answers share steps, so it is a
    rule of thumb; adr/0023 has what it is worth. An estimate is kept as long as `RemainingWork` keeps it: that an
    answer is none of the short may be seen late, by up to a quarter of what was to come. O(POINTS), some 10 us.
    """

    def _until_end_s(self, job: Job, to_come: float) -> float:
        lengths = self._possible_tokens(job)
        if not lengths:
            return super()._until_end_s(job, to_come)
        limit = job.max_output_tokens
        produced = min(limit - 1, job.num_output_tokens)
        left = [(length if length < limit else limit) - produced for length in lengths]
        return work_per_end_s(self._each_s(job, left))

    def _possible_tokens(self, job: Job) -> Sequence[float]:
        """Lengths that its answer may have, ascending, each as likely as the next."""
        produced = job.num_output_tokens
        lengths = (self._prediction(job) or self._usual).longer_than(produced, POINTS)
        # One more, that follows none: a model that repeats itself never ends.
        return [*lengths, 2.0 * max(produced, lengths[-1])] if lengths else ()


def work_per_end_s(until_s: Sequence[float]) -> float:
    """The least expected work for each end, over all moments to give up; `until_s`: work to an end, each as likely.

    `until_s` ascends. Served for as long as the i-th of n takes, it ends i of n times, after as much as each of those
    takes, and the other times that much work was for nothing. O(n).
    """
    count, ends_s, least_s = len(until_s), 0.0, inf
    for ended, moment_s in enumerate(until_s, 1):
        ends_s += moment_s
        per_end_s = (ends_s + (count - ended) * moment_s) / ended
        if per_end_s < least_s:  # `min`, without the call
            least_s = per_end_s
    return least_s
