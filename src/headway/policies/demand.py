"""Counts the blocks that the residents of a step would newly take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from headway.core.fill import uncomputed_tokens
from headway.core.job import Job
from headway.core.view import StepView

_NO_CAPS: Mapping[Job, int] = {}


def new_blocks(
    view: StepView, run: Iterable[Job], token_budget: int, chunk_cap: Mapping[Job, int] = _NO_CAPS
) -> dict[Job, int]:
    """The blocks that each job of `run` opens with its `core.fill` grant; jobs that open none are left out.

    Grants are min(uncomputed tokens, chunk cap, rest of the budget), in order; a job that came back from the host takes
    its first step after the others, from the rest. A decode is assumed to use all possible drafts. Demand is the
    increase for this step, not the total (AdaptiveLLM section 1.3, gap A8). O(run).
    """
    demand: dict[Job, int] = {}
    size, returned, decode_tokens = view.block_size, view.returned, view.tokens_a_decode
    for job in run:
        if token_budget <= 0:
            break
        if returned and job in returned:
            continue
        granted = uncomputed_tokens(job)
        granted = min(decode_tokens if granted == 1 else granted, token_budget)
        if chunk_cap:
            granted = min(granted, chunk_cap.get(job, granted))
        if granted <= 0:
            continue
        token_budget -= granted
        computed = job.num_computed_tokens
        opened = -(-(computed + granted) // size) - -(-computed // size)
        if opened:
            demand[job] = opened
    return demand


def surely_fits(view: StepView, num_run: int, token_budget: int) -> bool:
    """Whether any `num_run` jobs fit the free blocks with any split of the budget, without examining them. O(1).

    A grant of g tokens opens at most g / block size blocks, plus one.
    """
    return view.free_blocks >= num_run + token_budget // view.block_size


def within_host(view: StepView) -> StepView:
    """The view of a device that holds no more KV than the host, so that all of it has room there. O(residents).

    Jobs that came back and have not run since are not counted, so that each runs before it may leave again. Without a
    host the view is returned as it is.
    """
    if not view.host_total_blocks:
        return view
    staying = (job for job in view.residents if job not in view.returned)
    held = sum(view.blocks(job.num_computed_tokens) for job in staying)
    return replace(view, free_blocks=min(view.free_blocks, max(0, view.host_total_blocks - held)))
