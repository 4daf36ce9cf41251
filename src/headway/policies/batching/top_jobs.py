"""Runs the most deserving jobs, resident or not."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import inf

from headway.core.job import Job
from headway.core.plan import StepPlan
from headway.core.view import StepView
from headway.policies.batching.admission import first_queued, starts_beside
from headway.policies.batching.step_shapes import decodes_first, left_tokens, split_ranked
from headway.policies.protocols import LearnsNothing, Order, Unchanging

MOST_MISFITS = 8
"""Newcomers that rank high and cannot start, skipped in one step; jobs behind them wait for the next step."""


Takes = Callable[[Job, Sequence[Job]], bool]
"""Whether a newcomer may start beside the running residents that rank before it."""


class TopJobs(Unchanging, LearnsNothing):
    """The first `max_run` jobs of the ranking run, resident or waiting; the other residents pause.

    Preemption at every token: a newcomer that ranks higher takes the place of a running job in the next step, and the
    job that made way keeps its KV (FastServe section 4.1). Only a job that would be admitted takes a place: none
    pauses for a job that has no slot or blocks, is not ready, or stands behind newcomers whose prompts fill the step.
    At most 8 that cannot start are passed over in a step, and none that lacks blocks. A resident has no place either
    while its KV is on its way back, or while a step in flight computes all it has: with pipeline stages several steps
    are under way, each of the highest that are not in another.

    Costs: O((residents + seats) log) a step, and a memory check for each newcomer that the step has tokens for;
    O(residents) with a ranking of prompts alone where there is a place and a block for every resident.
    """

    def plan(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
        """Plan the top of residents and startable newcomers together, then further newcomers for the remaining
        seats.
        """
        queued = self._queued(view, order, leaving)
        pending = _pending(view)
        if not queued and _all_run_on(view, pending):
            # All residents run, so the same list is kept: such a run is not examined again.
            run = view.residents if len(pending) == len(view.residents) else pending
            return StepPlan(run=run, token_budget=view.max_tokens)
        takes = self._takes(view, order, queued) if queued else None
        if pending and takes is None and _all_served(view, pending, queued):
            # No job pauses for a newcomer, and the engine passes over those that cannot start.
            decodes, prompts = split_ranked(pending)
            ranked = order.rank(prompts, view.now_s) if len(prompts) > 1 else prompts
            return StepPlan(run=[*decodes, *ranked], admit=queued, token_budget=view.max_tokens)
        ranked = order.rank([*pending, *queued], view.now_s)
        run, starting = _top(view, ranked, set(queued), takes)
        run = decodes_first(run)
        # With a reserve only jobs that have room may start; in an empty engine any ready job may.
        others: Sequence[Job] = queued if takes is None or not (view.residents or starting) else ()
        if starting and others:
            chosen = set(starting)
            others = [job for job in others if job not in chosen]
        return StepPlan(
            run=run,
            admit=[*starting, *others] if len(run) < view.max_run else (),
            token_budget=view.max_tokens,
        )

    def _queued(self, view: StepView, order: Order, leaving: Collection[Job]) -> Sequence[Job]:
        """The first queued jobs, for every slot and place: running jobs may have to make way."""
        slots = view.max_resident - len(view.residents)
        return first_queued(view, order, leaving, min(view.max_run, slots))

    def _takes(self, view: StepView, order: Order, queued: Sequence[Job]) -> Takes | None:
        """The check for reserved room; None if nothing is reserved, or there is enough for all."""
        return None

    def ranks_nobody(self, view: StepView) -> bool:
        """True while all residents decode and are served, and no job is queued. O(residents)."""
        return not (view.waiting or view.swapped) and _all_run_on(view, view.residents)


def _top(
    view: StepView, ranked: Sequence[Job], newcomers: Collection[Job], takes: Takes | None
) -> tuple[Sequence[Job], list[Job]]:
    """Which of `ranked` keep running, and which start: together the first `max_run` of those that can."""
    run: list[Job] = []
    starting: list[Job] = []
    room, slots, misfits = view.free_blocks, view.max_resident - len(view.residents), 0
    spare = view.spare_blocks
    # Without a reserve, jobs behind are included unchecked: if the cache leaves tokens, the step has work for them too.
    unfilled = view.max_tokens if takes is None else inf
    for job in ranked:
        if len(run) + len(starting) == view.max_run:
            break
        if job not in newcomers:
            if job in view.returned:
                opened = view.blocks(job.num_tokens) - view.blocks(job.num_computed_tokens)
                if opened + spare > room:
                    continue
                room -= opened
            run.append(job)
        elif len(starting) < slots and misfits < MOST_MISFITS and unfilled > 0:
            needed = view.blocks(job.num_tokens)
            ready, has_room = starts_beside(view, starting, room, job), needed + spare <= room
            if ready and takes is not None:
                ready = has_room = takes(job, run)
            if ready:
                starting.append(job)
                room -= needed
                unfilled -= left_tokens(job)
            else:
                # After a job that lacks blocks none starts: a stream of small ones would starve it.
                misfits = misfits + 1 if has_room else MOST_MISFITS
    return run, starting


def _pending(view: StepView) -> list[Job]:
    """Residents whose KV is here, with tokens that no step in flight computes."""
    # Inlined, since this runs for every resident of every step.
    pending = [
        job
        for job in view.residents
        if job.num_computed_tokens
        < job.num_prompt_tokens + job.num_output_tokens + job.num_output_placeholders
    ]
    return [job for job in pending if job not in view.restoring] if view.restoring else pending


def _all_run_on(view: StepView, pending: Sequence[Job]) -> bool:
    """Whether all of these decode and are served: then their order makes no difference."""
    # `job.prefilling` is inlined, since this runs for every resident of every step.
    return _all_served(view, pending, ()) and all(
        job.num_computed_tokens >= job.num_prompt_tokens + job.num_output_tokens - 1 for job in pending
    )


def _all_served(view: StepView, pending: Sequence[Job], queued: Sequence[Job]) -> bool:
    """Whether each of these residents has a seat, its tokens and a block, whichever queued jobs start."""
    starting = min(view.max_resident - len(view.residents), len(queued))
    most = min(view.max_run - starting, view.max_tokens // view.tokens_a_decode, view.free_blocks)
    return not view.returned and len(pending) <= most
