"""Evictions that act when blocks run out: drop the KV, swap it, or whichever costs less."""

from __future__ import annotations

from math import inf

from headway.core.batch_shape import BatchShape
from headway.core.cost import CostModel, UnknownCost
from headway.core.job import Job
from headway.core.plan import Fate, StepOutcome, StepPlan
from headway.core.view import StepView
from headway.errors import ConfigError
from headway.policies.demand import within_host
from headway.policies.eviction.making_room import Residency, make_room
from headway.policies.eviction.urgent_room import DEFAULT_MAX_RECOMPUTED, make_urgent_room
from headway.policies.protocols import LearnsNothing, Order


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


class OnShortage:
    """Base of the evictions that act only when blocks run out.

    `free_block_each` is as in `make_room`: vLLM's first scheduler demands a free block for every running sequence (vLLM
    0.2.5, BlockSpaceManager.can_append_slot). Such an eviction may act while blocks are left, at a step that cannot be
    foreseen.
    """

    free_block_each: bool = False

    def next_change_s(self, view: StepView) -> float:
        """Never; unknown if every job must find a block free."""
        return -inf if self.free_block_each else inf


class Recompute(OnShortage, LearnsNothing):
    """No job leaves ahead of need; on shortage the fill rule drops the last resident (stock vLLM V1).

    With `free_block_each` the lowest-ranked are dropped before the step, as in vLLM 0.2.5.
    """

    serial = False

    def __init__(self, *, free_block_each: bool = False) -> None:
        self.free_block_each = free_block_each

    def evict(self, view: StepView, plan: StepPlan, order: Order) -> StepPlan:
        """The plan as it is, or without the jobs that leave no block for the others."""
        if not self.free_block_each:
            return plan
        return make_room(view, plan, order, lambda *_: Fate.RECOMPUTE, serial=False, free_block_each=True)

    def ranks_nobody(self, view: StepView) -> bool:
        """True while there are blocks."""
        return True


class Swap(OnShortage):
    """Every victim is swapped; with `fallback`, one for which the host has no room is recomputed.

    Without `fallback` such a job keeps its KV and pauses until others end; it is recomputed only if no other job could
    run. With `serial` the step waits for the copies decided with it, as in vLLM 0.2.5; otherwise they run beside the
    steps. With `host_room` jobs also leave for what the residents hold beyond the host's blocks (`demand.within_host`),
    except for a lone job. `min_residency`: steps for which a newly admitted job is spared. Source: the vLLM_S of
    AdaptiveLLM (section 1.7).
    """

    uses_host = True

    def __init__(
        self,
        *,
        serial: bool = False,
        fallback: bool = True,
        min_residency: int = 0,
        free_block_each: bool = False,
        host_room: bool = False,
    ) -> None:
        self.serial = serial
        self.host_room = host_room
        self.free_block_each = free_block_each
        self.fallback = fallback
        self.min_residency = min_residency
        self._residency = Residency(min_residency)

    def evict(self, view: StepView, plan: StepPlan, order: Order) -> StepPlan:
        """The lowest-ranked jobs leave, as many as the step lacks blocks."""
        return make_room(
            within_host(view) if self.host_room else view,
            plan,
            order,
            self._fate,
            serial=self.serial,
            spared=self._residency.recent(),
            free_block_each=self.free_block_each,
        )

    def _fate(self, job: Job, has_room: bool) -> Fate | None:
        return Fate.SWAP if has_room else Fate.RECOMPUTE if self.fallback else None

    def ranks_nobody(self, view: StepView) -> bool:
        """True while there are blocks."""
        return True

    def next_change_s(self, view: StepView) -> float:
        """Never; unknown if jobs may leave while the device has blocks."""
        return -inf if self.host_room else super().next_change_s(view)

    def observe(self, outcome: StepOutcome) -> None:
        """Note which jobs were admitted."""
        self._residency.observe(outcome)


class Cheapest(OnShortage):
    """A victim is swapped if that is predicted to cost others less time than dropping its KV (`cheaper_fate`).

    It is recomputed on a tie, and if the host has no room. With `serial` the step waits for the copies decided with it,
    as in the paper. `min_residency`: steps for which a newly admitted job is spared. With `always_recompute` both costs
    are predicted and ignored, to measure the cost of predicting. With `urgent`, residents that can spare their place
    also leave for a newcomer that is overdue or can be in time, if the order knows (`make_urgent_room`, which explains
    `max_recomputed`).
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
        max_recomputed: float = DEFAULT_MAX_RECOMPUTED,
        free_block_each: bool = False,
    ) -> None:
        if not max_recomputed >= 0:
            raise ConfigError.of("max_recomputed", max_recomputed, "0 or more times a job's tokens")
        self.serial = serial
        self.min_residency = min_residency
        self.always_recompute = always_recompute
        self.urgent = urgent
        self.max_recomputed = max_recomputed
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
        return make_urgent_room(view, plan, order, fate, spared=recent, max_recomputed=self.max_recomputed)

    def ranks_nobody(self, view: StepView) -> bool:
        """True while there are blocks, and no waiting job needs room to be made."""
        return not view.waiting

    def observe(self, outcome: StepOutcome) -> None:
        """Note which jobs were admitted."""
        self._residency.observe(outcome)
