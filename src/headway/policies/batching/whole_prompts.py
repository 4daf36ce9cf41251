"""Swapped and waiting jobs of batchings that compute prompts whole."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from headway.core.job import Job, JobState
from headway.core.view import StepView
from headway.errors import ConfigError
from headway.policies.batching.admission import SCAN_AHEAD, startable
from headway.policies.demand import new_blocks, surely_fits
from headway.policies.protocols import Order


def ranked_queues(
    view: StepView, order: Order, leaving: Collection[Job], seats: int
) -> tuple[list[Job], list[Job]]:
    """All swapped jobs, and the first `seats` waiting ones with SCAN_AHEAD more, without those leaving.

    The most deserving come first. O(seats + s log s) with s swapped jobs, which host memory bounds, and one
    `order.top`.
    """
    if not (view.waiting or view.swapped):
        return [], []
    wanted = seats + SCAN_AHEAD
    staying = startable(view, order, leaving, wanted + len(view.swapped))
    waiting = [job for job in staying if job.state is JobState.WAITING]
    return _all_swapped(view, order, leaving, staying), waiting[:wanted]


def _all_swapped(view: StepView, order: Order, leaving: Collection[Job], top: Collection[Job]) -> list[Job]:
    """All swapped jobs: first those among the order's top, then the others, which rank below, in the order's
    ranking.
    """
    found = [job for job in top if job.state is JobState.SWAPPED]
    if len(found) == len(view.swapped):
        return found
    reached = {*found, *leaving}
    return [*found, *order.rank([job for job in view.swapped if job not in reached], view.now_s)]


def residents_next_blocks(view: StepView) -> int:
    """Blocks that the residents would take if all of them ran this step. O(residents), O(1) with blocks to spare."""
    if surely_fits(view, len(view.residents), view.max_tokens):
        return 0
    return sum(new_blocks(view, view.residents, view.max_tokens).values())


def check_padding(max_padding_tokens: int | None) -> None:
    """Raise ConfigError for a negative bound on padding."""
    if max_padding_tokens is not None and max_padding_tokens < 0:
        raise ConfigError.of("max_padding_tokens", max_padding_tokens, "0 or more tokens a step")


def prompts_of_step(
    queued: Sequence[Job],
    token_budget: int,
    *,
    max_padding_tokens: int | None = None,
    skip_misfit: bool = False,
) -> list[Job]:
    """The leading jobs whose whole prompts fit one step; a first prompt longer than the budget runs alone.

    Without `max_padding_tokens` the prompts' tokens together must fit the budget. With it every prompt counts as long
    as the longest: prompts x longest must fit the budget, with at most `max_padding_tokens` of padding. Any subset of
    such a batch fits too. The first job that does not fit ends the batch; with `skip_misfit` it is skipped. O(queued).
    """
    found: list[Job] = []
    longest = total = 0
    for job in queued:
        more, most = total + job.num_tokens, max(longest, job.num_tokens)
        computed = more if max_padding_tokens is None else (len(found) + 1) * most
        padding_fits = max_padding_tokens is None or computed - more <= max_padding_tokens
        if not found or (computed <= token_budget and padding_fits):
            found.append(job)
            total, longest = more, most
        elif not skip_misfit:
            break
    return found
