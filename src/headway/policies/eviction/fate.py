"""What becomes of a victim's KV, by what its way back would cost."""

from __future__ import annotations

from headway.core.cost import CostModel
from headway.core.job import Job
from headway.core.plan import Fate
from headway.core.view import StepView


def swap_s(cost: CostModel, view: StepView, job: Job) -> float:
    """Seconds predicted for a resident's way to the host and back; what is copied already need not go again."""
    blocks = view.blocks(job.num_computed_tokens)
    return cost.swap_out_s(view.uncopied_blocks(job)) + cost.swap_in_s(blocks)


def cheaper_fate(cost: CostModel, view: StepView, job: Job, has_room: bool) -> Fate:
    """Swapped if that is predicted to be quicker than computing its KV again, as one prompt, and the host has room.

    Source: AdaptiveLLM Algorithm 1 (section 1.3), with a victim costed alone (gap A9).
    """
    cheaper = swap_s(cost, view, job) < cost.prefill_s(job.num_computed_tokens)
    return Fate.SWAP if cheaper and has_room else Fate.RECOMPUTE
