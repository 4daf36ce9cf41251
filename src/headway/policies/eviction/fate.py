"""What becomes of a victim's KV, by what its way back would cost."""

from __future__ import annotations

from headway.core.cost import CostModel
from headway.core.job import Job
from headway.core.plan import Fate
from headway.core.view import StepView


def swap_s(cost: CostModel, view: StepView, job: Job, *, serial: bool) -> float:
    """Seconds predicted that a resident's way to the host and back costs others; what is copied already need not go.

    With `serial` copies steps wait for both ways. Else they go beside the steps, each way on a copy engine of its own,
    so that no more is taken of anybody than the longer of the two.
    """
    out_s = cost.swap_out_s(view.uncopied_blocks(job))
    back_s = cost.swap_in_s(view.blocks(job.num_computed_tokens))
    return out_s + back_s if serial else max(out_s, back_s)


def cheaper_fate(cost: CostModel, view: StepView, job: Job, has_room: bool, *, serial: bool) -> Fate:
    """Swapped if that is predicted to cost less than computing its KV again, as one prompt, and the host has room.

    Source: AdaptiveLLM Algorithm 1 (section 1.3), whose copies are serial, with a victim costed alone (gap A9).
    """
    cheaper = swap_s(cost, view, job, serial=serial) < cost.prefill_s(job.num_computed_tokens)
    return Fate.SWAP if cheaper and has_room else Fate.RECOMPUTE
