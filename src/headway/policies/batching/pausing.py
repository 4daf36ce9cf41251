"""Which decodes may pause, where all of them together would take too long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf

from headway.core.batch_shape import BatchShape
from headway.core.job import Job
from headway.core.view import StepView
from headway.policies.batching.step_shapes import context_tokens, decode_shape
from headway.policies.order import Order, knows_late


@dataclass(frozen=True, slots=True)
class Pausing:
    """The decodes in a hurry, who go on, and the others by rank, of whom the last may pause.

    In a hurry is who has a target between tokens, unless it is at least twice the longest step, and the job ahead of
    it. `contexts` are the context tokens of those in a hurry with the first 0, 1, 2 ... of the others.
    """

    hurried: Sequence[Job]
    others: Sequence[Job]
    contexts: Sequence[int]
    tokens_a_decode: int

    def shape(self, count: int) -> BatchShape:
        """A step of those in a hurry and the first so many others."""
        return decode_shape(len(self.hurried) + count, self.contexts[count], self.tokens_a_decode)


def pausing(view: StepView, order: Order, decodes: Sequence[Job], longest_s: float) -> Pausing:
    """Who of these may pause in a step that may take so long. O(decodes), and a ranking of them."""
    others = [
        job
        for job in order.rank(decodes, view.now_s)
        if job.slo.tbt_s is None or _is_ahead(job, longest_s, view, order)
    ]
    patient = set(others)
    hurried = [job for job in decodes if job not in patient]
    contexts = list(accumulate(map(context_tokens, others), initial=sum(map(context_tokens, hurried))))
    return Pausing(hurried, others, contexts, view.tokens_a_decode)


def _is_ahead(job: Job, longest_s: float, view: StepView, order: Order) -> bool:
    """Whether a decode's own pace is so much slower that it may sit a step out."""
    own_s = (job.slo.tbt_s or inf) * view.decoded_tokens
    return knows_late(order) and own_s >= 2 * longest_s and order.latest_start_s(job) > view.now_s + own_s
