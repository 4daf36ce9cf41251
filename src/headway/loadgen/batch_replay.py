"""A trace sent to real servers in whole batches from one central queue."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from math import inf

import aiohttp

from headway.core.record import Record
from headway.errors import ConfigError
from headway.http_client import open_session
from headway.loadgen.batch_plan import BatchPlan
from headway.loadgen.batch_profile import BatchLengths, ClockedTimes, measured_times
from headway.loadgen.dispatcher import Dispatcher
from headway.loadgen.foresight import Foresight
from headway.loadgen.instance import KvMemory, ServedInstance, find_instances
from headway.loadgen.replay_book import ReplayBook, ReplayReport
from headway.loadgen.replay_options import ReplayOptions
from headway.loadgen.stopping import unless
from headway.routing.batch_queue import BatchQueue
from headway.traces import TraceRequest


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
        book = ReplayBook(min(found, key=_context).dialect, options, on_record)
        fitting = book.refuse_too_long(requests)
        if not fitting:
            return book.report
        queue = await unless(stop, _queue(session, plan, found, fitting))
        if queue is None:
            book.report.interrupted = True
            return book.report
        with Foresight(plan.predictor) as foresight:
            run = Dispatcher(session, foresight, queue, book, found, plan.silence_s)
            watcher = asyncio.create_task(run.cut_off_when(stop))
            try:
                async with asyncio.TaskGroup() as group:
                    run.start(group, fitting)
            except BaseExceptionGroup as faults:  # one error of ours is one error, as if there were no tasks
                raise faults.exceptions[0] from None
            finally:
                watcher.cancel()
                run.record_unserved()
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


def _context(instance: ServedInstance) -> float:
    limit = instance.dialect.max_model_len
    return inf if limit is None else limit


async def _memory(plan: BatchPlan, instances: Sequence[ServedInstance]) -> KvMemory:
    """What the smallest of the servers can hold, unless the plan says it."""
    if plan.kv_tokens is not None:
        return KvMemory(plan.kv_tokens)
    told = [await instance.kv_memory() for instance in instances]
    return min(told, key=lambda memory: memory.capacity_tokens)
