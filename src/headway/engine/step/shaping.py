"""vLLM's queues, caps and budget, put so that its own loops carry out a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from vllm.v1.request import Request

from headway.core.fill import paused_by
from headway.core.host_copies import HostCopies
from headway.core.job import Job
from headway.core.plan import Fate, Reason, StepPlan
from headway.engine.step.admission import Admission
from headway.engine.step.context import StepContext
from headway.engine.step.ports import StepPort

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest

Clip = Callable[[Request, int, int], int]
"""The last clipping of a grant: a request, its computed tokens, the tokens granted."""


class Shaping:
    """Prepares one scheduler for a plan, and puts everything back after the step."""

    def __init__(self, engine: StepPort, admission: Admission) -> None:
        self._engine = engine
        self._admission = admission
        self._has_caps = False
        self._hidden_adapters: list[tuple[Request, LoRARequest]] = []

    def shape(self, plan: StepPlan, *, defers_prefills: bool, may_release: bool) -> StepContext:
        """Put queues, caps and budget for a plan; with `may_release` prompts are computed if all decodes pause."""
        engine, view = self._engine, self._engine.view
        paused = paused_by(plan, engine.ledger.residents)
        caps = {job.id: cap for job, cap in plan.chunk_cap.items()}
        caps.update((job.id, 0) for job in paused)
        engine.counters.pauses += len(paused)
        if caps:
            # On the instance, for this step alone: vLLM calls it for every grant, and most steps have no caps.
            engine._reserve_prefill_lookahead = self.capped(caps, engine._reserve_prefill_lookahead)
            self._has_caps = True
        resumable = self._line_up(plan, paused)
        for job, fate in plan.preempt.items():
            engine.counters.planned_preemptions += 1
            self._preempt(job, fate)
        not_offloaded = self._offload(plan)
        if engine.lora_config is not None:
            self._hide_adapters(paused)
        holding, waiting, cut = self._admission.windows(plan)
        engine.kv_holding_waiting.show([*resumable, *holding])
        engine.waiting.show(waiting)
        seats = max(0, min(view.max_run - len(plan.run), view.max_resident - len(plan.run) - len(paused)))
        engine.max_num_active_reqs = len(engine.running) + len(resumable) + seats
        engine.max_num_scheduled_tokens = plan.token_budget
        return StepContext(
            plan=plan,
            num_running=len(engine.running),
            seats=seats,
            defers_prefills=defers_prefills and not (may_release and self._release_prefills(caps)),
            caps=caps,
            cut=cut,
            over_adapters=() if self._admission.adapters is None else self._admission.adapters.over,
            not_offloaded=not_offloaded,
        )

    def defers_prefills(self, throttle: bool) -> bool:
        """Whether vLLM computes no prompts in this step: asked to, and it has decodes and no backlog.

        Asked by `throttle`, or by `--prefill-schedule-interval`: the last step with prompts is fewer steps ago. vLLM
        0.32 spaces prompts only where data-parallel engines keep pace, and throttles for that.
        """
        engine = self._engine
        interval: int = getattr(engine, "local_prefill_interval", 1)
        if not (
            throttle or (interval > 1 and engine.num_executed_steps + 1 - engine.last_prefill_step < interval)
        ):
            return False
        return not engine.prefill_capacity_bound and not all(each.is_prefill_chunk for each in engine.running)

    def undo(self) -> None:
        """Put back what a step narrowed, but for vLLM's limits."""
        engine = self._engine
        engine.waiting.close()
        engine.kv_holding_waiting.close()
        if self._has_caps:
            self._has_caps = False
            del engine._reserve_prefill_lookahead
        for request, adapter in self._hidden_adapters:
            request.lora_request = adapter
        self._hidden_adapters.clear()

    def capped(self, caps: dict[str, int], clip: Clip) -> Clip:
        """In place of vLLM's last clipping of a grant: 0 pauses a running request, k caps its chunk.

        A grant past the known tokens holds drafts, or vLLM's padding for them: it is whole or nothing. A chunk may not
        end in what a drafter reads ahead, nor inside an item that vLLM wants computed in one piece.
        """
        whole_items = self._engine.scheduler_config.disable_chunked_mm_input

        def clipped(request: Request, num_computed_tokens: int, num_new_tokens: int) -> int:
            granted = clip(request, num_computed_tokens, num_new_tokens)
            cap = caps.get(request.request_id, granted)
            if not 0 < cap < granted:
                return min(granted, cap)
            if num_computed_tokens + granted > request.num_tokens:
                return granted
            end = num_computed_tokens + cap
            if whole_items:
                end = end_between_items(request, num_computed_tokens, end)
            shorter = clip(request, num_computed_tokens, min(granted, end - num_computed_tokens))
            return shorter or granted

        return clipped

    def _line_up(self, plan: StepPlan, paused: list[Job]) -> list[Request]:
        """Put vLLM's running requests in the plan's order; returns those of `run` that have come back since.

        These vLLM keeps among the waiting, and resumes after the running ones.
        """
        engine, requests, swaps = self._engine, self._engine.requests, self._engine.swaps
        if swaps is None:
            if plan.run is not engine.ledger.residents:
                engine.running = [requests[job.id] for job in (*plan.run, *paused)]
            return []
        returned, restoring = swaps.copies.returned, swaps.copies.restoring
        engine.running = [requests[job.id] for job in (*plan.run, *paused) if job not in returned]
        return [requests[job.id] for job in plan.run if job in returned and job not in restoring]

    def _preempt(self, job: Job, fate: Fate) -> None:
        """Preempt one that the plan names; one that has come back and not run is put back."""
        engine, request = self._engine, self._engine.requests[job.id]
        if engine.swaps is not None and job in engine.swaps.copies.returned:
            engine.swaps.put_back(request, fate)
        else:
            engine._preempt_request(request, engine.clock(), engine.requires_kv_delivery, fate=fate)

    def _offload(self, plan: StepPlan) -> dict[Job, Reason]:
        """Start the copies of paused requests that the plan wants on the host; returns why not, for those refused."""
        swaps = self._engine.swaps
        refused: dict[Job, Reason] = {}
        for job in plan.offload:
            reason = Reason.HOST_BLOCKS if swaps is None else self._copy_ahead(swaps.copies, job)
            if reason is not None:
                refused[job] = reason
        return refused

    def _copy_ahead(self, copies: HostCopies, job: Job) -> Reason | None:
        """Start a paused request's copy; why not, where that cannot be. One that the host has needs none."""
        before = len(copies.started)
        refused = copies.offload(job)
        self._engine.counters.offloads += len(copies.started) - before
        return refused

    def _hide_adapters(self, paused: Iterable[Job]) -> None:
        """Let paused requests take no LoRA slot: vLLM 0.33 counts the adapters of all its running requests."""
        for request in (self._engine.requests[job.id] for job in paused if job.lora_id):
            self._hidden_adapters.append((request, request.lora_request))
            request.lora_request = None

    def _release_prefills(self, caps: dict[str, int]) -> bool:
        """Let this step compute prompts if the plan pauses all decodes; whether it does.

        An empty step would not count towards the interval: prompts would be deferred for ever.
        """
        decodes = (request for request in self._engine.running if not request.is_prefill_chunk)
        if any(caps.get(request.request_id) != 0 for request in decodes):
            return False
        self._engine.prefill_capacity_bound = True  # then vLLM defers none; it sets it anew after filling
        return True


def end_between_items(request: Request, start: int, end: int) -> int:
    """`end`, or, where that is inside an image or another item of the prompt, the item's beginning.

    Its end, if the chunk from `start` begins with the item: then nothing shorter will do. O(items).
    """
    for item in request.mm_features:
        first: int = item.mm_position.offset
        behind: int = first + item.mm_position.length
        if first < end < behind:
            return first if first > start else behind
    return end
