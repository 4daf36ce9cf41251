"""Room that those who are late leave free for those who can be in time."""

from __future__ import annotations

from collections.abc import Sequence

from headway.core.job import Job
from headway.core.view import StepView
from headway.errors import ConfigError
from headway.policies.order import KnowsLate


class InTimeHeadroom:
    """Who of the queued may start, if those in time are to find blocks when they come and when they grow.

    A newcomer that has missed a target already starts only if as many blocks stay free as `share` of what residents
    in time hold: a memory full of others makes those in time wait for copies, and what was computed of the others is
    lost. While nobody resident is in time nothing is kept free; nor from the one that is `overdue`, so nobody waits
    for ever.
    """

    def __init__(self, share: float) -> None:
        if not share >= 0:
            raise ConfigError(f"headroom is {share}; accepted: 0 or more, of the blocks held in time")
        self.share = share

    def leaving_room(self, view: StepView, order: KnowsLate, queued: Sequence[Job]) -> Sequence[Job]:
        """`queued`, by rank, without those whose start would leave too little. O(residents + queued)."""
        late = {job for job in queued if order.latest_start_s(job) < view.now_s} if self.share else ()
        in_time = order.on_time(view.residents, view.now_s) if late else ()
        if not in_time:
            return queued
        held_tokens = sum([job.num_prompt_tokens + job.num_output_tokens for job in in_time])
        room = view.free_blocks - self.share * view.blocks(held_tokens)
        overdue = order.overdue(view.now_s)
        chosen = []
        for job in queued:
            needed = view.blocks(job.num_tokens)
            if needed <= room or job not in late or job in overdue:
                chosen.append(job)
                room -= needed
        return chosen
