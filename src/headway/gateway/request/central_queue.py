"""The central queue: requests wait in batches, and an idle instance gets a whole batch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from headway.core.job import Job
from headway.errors import UpstreamError
from headway.gateway.fleet.fleet import Fleet
from headway.gateway.http.refusal import no_instance
from headway.gateway.request.batch_profile import KvMemory, least_memory, measured_rows
from headway.gateway.request.generation_request import GenerationRequest
from headway.gateway.request.interrupt import Interrupt
from headway.gateway.request.length_thread import Judged, LengthThread
from headway.predict.lengths.facts import LengthPredictor
from headway.predict.steps.kept_batch_times import BatchTimes
from headway.routing.batch_service import BatchCounts, BatchService
from headway.routing.magnus import BatchSettings, build_batch_queue, find_batch_preset

_LOG = logging.getLogger(__name__)
_TOGETHER_S = 0.01
"""Requests that arrive within this time may share an idle instance's batch; less than any step takes."""
_LOOK_AGAIN_S = 1.0
"""An instance may become ready without a notification."""
_CONTEXT_TOKENS = 4096
"""Assumed context length if a server does not state it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CentralBatching:
    """How a central queue batches: a row of `routing.magnus`, the length predictor, and the time predictor.

    Without a `predictor` an answer is planned at its limit. `settings` without a capacity use that of the instances.
    """

    row: str
    settings: BatchSettings
    times: BatchTimes
    predictor: LengthPredictor | None = None


@dataclass(slots=True)
class CentralQueue:
    """Requests on their way into batches and at instances. Runs on one event loop.

    A request is known from its first `place` to its `ended`, to be called once for each. Before the first batch the
    queue finds out what the instances hold and, for rows that use it, how long batches take.
    """

    batching: CentralBatching
    fleet: Fleet
    clock: Callable[[], float]
    _lengths: LengthThread = field(init=False)
    _service: BatchService | None = None
    _preparing: asyncio.Task[BatchService] | None = None
    _called: dict[Job, asyncio.Future[str]] = field(default_factory=dict)
    """The future instance of each waiting request."""
    _judged: dict[Job, Judged] = field(default_factory=dict)
    _look: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        self._lengths = LengthThread(self.batching.predictor)

    @property
    def counts(self) -> BatchCounts:
        """Counts of the batches so far."""
        return BatchCounts() if self._service is None else self._service.counts

    async def place(
        self,
        job: Job,
        request: GenerationRequest,
        interrupt: Interrupt,
        avoided: Collection[str],
        due_s: float | None,
    ) -> str | None:
        """Wait for the turn of the request's batch; return its instance, or None if `due_s` passes before.

        A request that was placed before was not served to its end there: it waits again, and goes to an `avoided`
        instance only if there is no other. Raises GatewayError (503) if no instance is left to wait for, or none says
        what it holds; WaitCut if the wait is cut short.
        """
        service = await interrupt.wait(asyncio.shield(self._prepared()))
        if job not in service:
            job.max_output_tokens = self._limit(request)
            judged = await interrupt.wait(self._lengths.judge(request, job.max_output_tokens))
            self._judged[job], job.predicted_length = judged, judged.estimate
            service.add(job, request.answers)
        else:
            service.given_back(job, self.clock(), avoided)
        called: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._called[job] = called
        self._look_in(_TOGETHER_S)
        while not called.done():
            left_s = _LOOK_AGAIN_S if due_s is None else min(_LOOK_AGAIN_S, due_s - self.clock())
            if left_s <= 0:
                return None
            await interrupt.wait(asyncio.wait([called], timeout=left_s))
            if not called.done():
                if not self.fleet.names():
                    raise no_instance()
                self._look_now()
        return called.result()

    def ended(self, job: Job, output_tokens: int | None) -> None:
        """A request ended, wherever it was; `output_tokens` None: without a whole answer."""
        self._called.pop(job, None)
        judged = self._judged.pop(job, None)
        if self._service is None or job not in self._service:
            return
        if output_tokens and judged is not None:
            self._lengths.learn(judged.facts, output_tokens)
        self._service.ended(job, self.clock(), output_tokens)
        self._look_in(0.0)

    def close(self) -> None:
        """Stop serving."""
        for handle in (self._look, self._preparing):
            if handle is not None:
                handle.cancel()
        self._lengths.close()

    # ---- idle instances -------------------------------------------------------------------------------------------

    def _look_in(self, seconds: float) -> None:
        if self._look is None:
            self._look = asyncio.get_running_loop().call_later(seconds, self._look_now)

    def _look_now(self) -> None:
        """Give each idle instance a waiting batch."""
        if self._look is not None:
            self._look.cancel()
            self._look = None
        if self._service is None:
            return
        for instance, batch in self._service.hand_out(self.fleet.names(), self.clock()):
            for job in batch.jobs:
                called = self._called[job]
                if not called.done():
                    called.set_result(instance)

    # ---- before the first batch -----------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Begin to ask and measure, as soon as there is an instance."""
        self._prepared()

    def _prepared(self) -> asyncio.Task[BatchService]:
        known = self._preparing
        if known is None or (known.done() and (known.cancelled() or known.exception() is not None)):
            self._preparing = known = asyncio.create_task(self._prepare())
            known.add_done_callback(_seen)
        return known

    async def _prepare(self) -> BatchService:
        while not self.fleet.names():
            await asyncio.sleep(_TOGETHER_S)
        settings, memory = self.batching.settings, await self._memory()
        times = self.batching.times
        if find_batch_preset(self.batching.row).by_ratio and not times.is_known:
            await self._measure(times, memory)
        settings = replace(settings, capacity_tokens=memory.capacity_tokens, block_tokens=memory.block_tokens)
        self._service = BatchService(build_batch_queue(self.batching.row, settings, times))
        return self._service

    async def _memory(self) -> KvMemory:
        told = self.batching.settings.capacity_tokens
        if told is not None:
            return KvMemory(told, self.batching.settings.block_tokens)
        urls = [self.fleet.member(name).url for name in self.fleet.names()]
        memory = await least_memory(self.fleet.session, urls)
        if memory is None:
            raise no_instance(
                "an instance does not say how much KV memory it has; accepted: vLLM with metrics, or --kv-tokens N"
            )
        return memory

    async def _measure(self, times: BatchTimes, memory: KvMemory) -> None:
        """Measure a few batches on the first instance, if it serves them, to start the time predictor."""
        member = self.fleet.member(self.fleet.names()[0])
        context = member.facts.limits.get(member.facts.model) or _CONTEXT_TOKENS
        try:
            rows = await measured_rows(
                self.fleet.session,
                member.url,
                member.facts.model,
                min(context, memory.capacity_tokens),
                memory,
            )
        except UpstreamError as error:
            _LOG.warning("batch times are not known, so batches go first come, first served: %s", error)
            return
        times.measured(rows)

    def _limit(self, request: GenerationRequest) -> int:
        """The most tokens that the answer can have, by the request and by the context."""
        facts = self.fleet.facts
        context = facts.limits.get(request.model or facts.model) or _CONTEXT_TOKENS
        left = max(1, context - request.prompt_tokens)
        return left if request.max_tokens is None else max(1, min(request.max_tokens, left))


def _seen(task: asyncio.Task[BatchService]) -> None:
    """Mark a task's error as seen: a waiting caller gets it, and without one asyncio must not complain."""
    if not task.cancelled():
        task.exception()
