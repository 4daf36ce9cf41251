"""A trace sent to servers in whole batches from one central queue."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import aiohttp

from headway.core.record import Record
from headway.errors import ConfigError
from headway.http_client import api_url, open_session
from headway.loadgen.batch_profile import BatchLengths, ClockedTimes, measured_times
from headway.loadgen.dispatcher import SILENCE_S, Dispatcher, PredictorThread
from headway.loadgen.instance import KvMemory, ServedInstance, find_instances
from headway.loadgen.replay import ReplayBook, ReplayReport, unless, until_ended
from headway.loadgen.replay_options import ReplayOptions
from headway.predict.lengths.facts import LengthPredictor
from headway.routing.batch_queue import MEMORY_CONFIDENCE, BatchQueue, BatchTime
from headway.routing.magnus import WMA_LIMIT, BatchSettings, build_batch_queue, find_batch_preset
from headway.traces import TraceRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """A row of `routing.magnus` and its settings, for the replay's own server and `more_urls` beside it.

    `kv_tokens` is what one server can hold; None: what its metrics say. `predictor` guesses answers' lengths
    and learns from those that finish; without one every answer is planned at its limit. `batch_time` guesses
    how long batches take; None: measured before the replay, where the row asks for it. A batch of which
    nothing has come for `silence_s` has its server asked whether it is still there. Raises ConfigError for
    what is not accepted.
    """

    batches: str
    more_urls: tuple[str, ...] = ()
    kv_tokens: int | None = None
    batch_size: int | None = None
    wma_limit: int = WMA_LIMIT
    confidence: float = 0.5
    memory_confidence: float = MEMORY_CONFIDENCE
    safety_factor: float = 1.0
    predictor: LengthPredictor | None = None
    batch_time: BatchTime | None = None
    silence_s: float = SILENCE_S

    def __post_init__(self) -> None:
        for url in self.more_urls:
            api_url(url, "")
        row = find_batch_preset(self.batches)
        if row.simulated:
            raise ConfigError(f"batches {row.name!r} exist in the simulator alone; accepted here: the others")
        if not self.silence_s > 0:
            raise ConfigError.of("silence_s", self.silence_s, "a number of seconds above 0")
        self._settings(KvMemory(1 if self.kv_tokens is None else self.kv_tokens))

    @property
    def needs_times(self) -> bool:
        """Whether the row chooses by a batch's time while no guess of it exists."""
        return find_batch_preset(self.batches).by_ratio and self.batch_time is None

    def queue(self, memory: KvMemory, batch_time: BatchTime | None) -> BatchQueue:
        """A fresh central queue for servers of this memory."""
        return build_batch_queue(self.batches, self._settings(memory), batch_time)

    def _settings(self, memory: KvMemory) -> BatchSettings:
        return BatchSettings(
            capacity_tokens=memory.capacity_tokens,
            block_tokens=memory.block_tokens,
            batch_size=self.batch_size,
            wma_limit=self.wma_limit,
            confidence=self.confidence,
            memory_confidence=self.memory_confidence,
            safety_factor=self.safety_factor,
        )


async def replay_batches(
    requests: Sequence[TraceRequest],
    options: ReplayOptions,
    plan: BatchPlan,
    *,
    on_record: Callable[[Record], None] = lambda record: None,
    stop: asyncio.Event | None = None,
) -> ReplayReport:
    """Put every request into the central queue at its arrival time, and return when each has ended.

    A server gets a batch when it has nothing else, all members at once, and the next when the last of them
    has ended. A member that the server hands back for want of memory ends the batch: what is left of it is
    split into sealed halves, which wait again, as does what is left of a batch whose server has gone. Each
    request ends exactly once; stopped or cancelled, those that had come are recorded as cancelled.

    Raises, before anything is sent: UpstreamError and ConfigError as `replay` does, for each server, and
    ConfigError if none says how much KV memory it has and the plan does not either.
    """
    if options.vanish_fraction:
        raise ConfigError("clients of a batch do not vanish; accepted: vanish_fraction 0")
    stop = stop or asyncio.Event()
    async with open_session(options.api_key, options.session_timeout_s) as session:
        found = await unless(stop, find_instances(session, (options.url, *plan.more_urls), options))
        if found is None:
            return ReplayReport("", interrupted=True)
        book = ReplayBook(min(found, key=ServedInstance.context_tokens).dialect, options, on_record)
        fitting = book.refuse_too_long(requests)
        if not fitting:
            return book.report
        queue = await unless(stop, _queue(session, plan, found, fitting))
        if queue is None:
            book.report.interrupted = True
            return book.report
        with PredictorThread(plan.predictor) as predictor_thread:
            run = Dispatcher(session, predictor_thread, queue, book, found, plan.silence_s)
            async with until_ended(stop, book.report, run.cut_off, run.record_unserved) as group:
                run.start(group, fitting)
        return book.report


async def _queue(
    session: aiohttp.ClientSession,
    plan: BatchPlan,
    instances: Sequence[ServedInstance],
    requests: Sequence[TraceRequest],
) -> BatchQueue:
    """The plan's queue, for what the servers say or show of themselves."""
    memory = await _memory(plan, instances)
    if not plan.needs_times:
        return plan.queue(memory, plan.batch_time)
    first = instances[0]
    longest = BatchLengths(
        max(request.input_tokens for request in requests),
        max(first.dialect.limit_tokens(request) or request.output_tokens for request in requests),
    )
    model = await measured_times(session, first, longest, memory)
    began_s = time.monotonic()
    return plan.queue(memory, ClockedTimes(model, lambda: time.monotonic() - began_s))


async def _memory(plan: BatchPlan, instances: Sequence[ServedInstance]) -> KvMemory:
    """What the smallest of the servers can hold, unless the plan says it."""
    if plan.kv_tokens is not None:
        return KvMemory(plan.kv_tokens)
    told = [await instance.kv_memory() for instance in instances]
    return min(told, key=lambda memory: memory.capacity_tokens)
