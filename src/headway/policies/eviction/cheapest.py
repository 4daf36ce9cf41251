"""KV that leaves is dropped or swapped, whichever costs less; and room for newcomers whose turn it is."""

from __future__ import annotations

from headway.core.batch_shape import BatchShape
from headway.core.cost import CostModel, UnknownCost
from headway.core.job import Job
from headway.core.plan import Fate, StepOutcome, StepPlan
from headway.core.view import StepView
from headway.policies.eviction.making_room import OnShortage, Residency, make_room
from headway.policies.eviction.urgent_room import make_urgent_room
from headway.policies.protocols import Order


def swap_s(cost: CostModel, view: StepView, job: Job, *, serial: bool) -> float:
    """Predicted seconds that a resident's way to the host and back costs others. Blocks copied already are free.

    With `serial` copies steps wait for both ways. Otherwise copies run beside the steps, each direction on its own copy
    engine, so other jobs lose only the longer of the two.
    """
    out_s = cost.swap_out_s(view.uncopied_blocks(job))
    back_s = cost.swap_in_s(view.blocks(job.num_computed_tokens))
    return out_s + back_s if serial else max(out_s, back_s)


def recompute_s(cost: CostModel, job: Job) -> float:
    """Predicted seconds until a resident whose KV is dropped has it again, without the host.

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
    """Swapped if that is predicted to cost less than `recompute_s` and the host has room, else recomputed.

    Source: AdaptiveLLM Algorithm 1 (section 1.3), whose copies are serial, with a victim costed alone (gap A9).
    """
    cheaper = swap_s(cost, view, job, serial=serial) < recompute_s(cost, job)
    return Fate.SWAP if cheaper and has_room else Fate.RECOMPUTE


class Cheapest(OnShortage):
    """A victim is swapped if that is predicted to cost others less time than dropping its KV (`cheaper_fate`).

    It is recomputed on a tie, and if the host has no room. With `serial` the step waits for the copies decided with it,
    as in the paper. `min_residency`: steps for which a newly admitted job is spared. With `always_recompute` both costs
    are predicted and ignored, to measure the cost of predicting. With `urgent`, residents that can spare their place
    also leave for a newcomer that is overdue or can be in time, if the order knows (`make_urgent_room`).
    """

    uses_host = True

    def __init__(
        self,
        cost: CostModel | None = None,
        *,
        serial: bool = False,
        min_residency: int = 0,
        always_recompute: bool = False,
        urgent: bool = False,
        free_block_each: bool = False,
    ) -> None:
        self.serial = serial
        self.min_residency = min_residency
        self.always_recompute = always_recompute
        self.urgent = urgent
        self.free_block_each = free_block_each
        self._cost: CostModel = cost or UnknownCost()
        self._residency = Residency(min_residency)

    def evict(self, view: StepView, plan: StepPlan, order: Order) -> StepPlan:
        """The lowest-ranked jobs leave, as many as the step lacks blocks, each the cheaper way."""

        def fate(job: Job, has_room: bool) -> Fate:
            cheaper = cheaper_fate(self._cost, view, job, has_room, serial=self.serial)
            return Fate.RECOMPUTE if self.always_recompute else cheaper

        recent = self._residency.recent()
        plan = make_room(
            view,
            plan,
            order,
            fate,
            serial=self.serial,
            spared=recent,
            free_block_each=self.free_block_each,
        )
        if plan.preempt or not self.urgent:
            return plan
        return make_urgent_room(view, plan, order, fate, spared=recent)

    def ranks_nobody(self, view: StepView) -> bool:
        """True while there are blocks, and no waiting job needs room to be made."""
        return not view.waiting

    def observe(self, outcome: StepOutcome) -> None:
        """Note which jobs were admitted."""
        self._residency.observe(outcome)
