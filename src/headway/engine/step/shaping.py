"""Sets vLLM's queues, caps and budget so that its own loops carry out a plan."""

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
"""vLLM's last limit on a grant: takes a request, its computed tokens and the granted tokens."""


class Shaping:
    """Prepares one scheduler for a plan, and restores everything after the step."""

    def __init__(self, engine: StepPort, admission: Admission) -> None:
        self._engine = engine
        self._admission = admission
        self._has_caps = False
        self._hidden_adapters: list[tuple[Request, LoRARequest]] = []

    def shape(self, plan: StepPlan, *, defers_prefills: bool, may_release: bool) -> StepContext:
        """Set queues, caps and budget for a plan. With `may_release`, prompts are computed if all decodes pause."""
        engine, view = self._engine, self._engine.view
        paused = paused_by(plan, engine.ledger.residents)
        caps = {job.id: cap for job, cap in plan.chunk_cap.items()}
        caps.update((job.id, 0) for job in paused)
        engine.counters.pauses += len(paused)
        if caps:
            # Set on the instance for this step alone: vLLM calls it for every grant, and most steps have no caps.
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
        """Whether vLLM computes no prompts in this step: deferral was requested, and there are decodes and no backlog.

        Deferral comes from `throttle`, or from `--prefill-schedule-interval` while the last step with prompts is too
        recent. vLLM 0.32 spaces prompts only for data-parallel engines in lockstep, and sets `throttle` for that.
        """
        engine = self._engine
        interval: int = getattr(engine, "local_prefill_interval", 1)
        if not (
            throttle or (interval > 1 and engine.num_executed_steps + 1 - engine.last_prefill_step < interval)
        ):
            return False
        return not engine.prefill_capacity_bound and not all(each.is_prefill_chunk for each in engine.running)

    def undo(self) -> None:
        """Restore what a step narrowed, except for vLLM's limits."""
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
        """A replacement for vLLM's last limit on a grant: cap 0 pauses a running request, cap k limits its chunk.

        A grant beyond the known tokens contains drafts, or vLLM's padding for them: it is granted whole or not at all.
        A chunk may not end inside a drafter's look-ahead, nor inside an item that vLLM computes in one piece.
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
        """Sort vLLM's running requests into the plan's order; return those of `run` that came back since.

        vLLM keeps returned requests among the waiting ones, and resumes them after the running ones.
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
        """Preempt a job that the plan names; put back one that came back and has not run."""
        engine, request = self._engine, self._engine.requests[job.id]
        if engine.swaps is not None and job in engine.swaps.copies.returned:
            engine.swaps.put_back(request, fate)
        else:
            engine._preempt_request(request, engine.clock(), engine.requires_kv_delivery, fate=fate)

    def _offload(self, plan: StepPlan) -> dict[Job, Reason]:
        """Start copying the paused requests that the plan wants on the host; return the reasons for refusals."""
        swaps = self._engine.swaps
        refused: dict[Job, Reason] = {}
        for job in plan.offload:
            reason = Reason.HOST_BLOCKS if swaps is None else self._copy_ahead(swaps.copies, job)
            if reason is not None:
                refused[job] = reason
        return refused

    def _copy_ahead(self, copies: HostCopies, job: Job) -> Reason | None:
        """Start copying a paused request; return the reason if that is impossible. Does nothing if the host has it."""
        before = len(copies.started)
        refused = copies.offload(job)
        self._engine.counters.offloads += len(copies.started) - before
        return refused

    def _hide_adapters(self, paused: Iterable[Job]) -> None:
        """Let paused requests use no LoRA slot: vLLM 0.33 counts the adapters of all running requests."""
        for request in (self._engine.requests[job.id] for job in paused if job.lora_id):
            self._hidden_adapters.append((request, request.lora_request))
            request.lora_request = None

    def _release_prefills(self, caps: dict[str, int]) -> bool:
        """Let this step compute prompts if the plan pauses all decodes; return whether it does.

        An empty step would not count towards the interval, so prompts would be deferred for ever.
        """
        decodes = (request for request in self._engine.running if not request.is_prefill_chunk)
        if any(caps.get(request.request_id) != 0 for request in decodes):
            return False
        self._engine.prefill_capacity_bound = True  # then vLLM defers none; it resets this after filling
        return True


def end_between_items(request: Request, start: int, end: int) -> int:
    """`end`, or the start of the prompt item (such as an image) that contains it.

    Returns the item's end if the chunk from `start` begins with the item, since nothing shorter is possible. O(items).
    """
    for item in request.mm_features:
        first: int = item.mm_position.offset
        behind: int = first + item.mm_position.length
        if first < end < behind:
            return first if first > start else behind
    return end
