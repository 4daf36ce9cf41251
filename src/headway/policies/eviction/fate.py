"""What becomes of a victim's KV, by what its way back would cost."""

from __future__ import annotations

from headway.core.batch_shape import BatchShape
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


def recompute_s(cost: CostModel, job: Job) -> float:
    """Seconds predicted until a resident whose KV is dropped has it again, without the host.

    A connector loads what its store holds; the rest is computed as one prompt.
    """
    stored = min(job.num_stored_tokens, job.num_computed_tokens)
    if not stored:
        return cost.prefill_s(job.num_computed_tokens)
    load_s, rest = cost.load_s(stored), job.num_computed_tokens - stored
    if not rest:
        return load_s
    alone = BatchShape()
    alone.add(rest, stored)
    return load_s + cost.step_s(alone)


def cheaper_fate(cost: CostModel, view: StepView, job: Job, has_room: bool, *, serial: bool) -> Fate:
    """Swapped if that is predicted to cost less than `recompute_s`, and the host has room.

    Source: AdaptiveLLM Algorithm 1 (section 1.3), whose copies are serial, with a victim costed alone (gap A9).
    """
    cheaper = swap_s(cost, view, job, serial=serial) < recompute_s(cost, job)
    return Fate.SWAP if cheaper and has_room else Fate.RECOMPUTE
