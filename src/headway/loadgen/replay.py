"""Sends a trace to a server: each request at its own time, later turns of sessions after answers; and reports."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

import aiohttp

from headway.core.record import Outcome, Record
from headway.errors import ConfigError
from headway.http_client import api_url, find_model, open_session
from headway.loadgen.openai_stream import StreamedReply, stream_completion
from headway.loadgen.replay_options import Dialect, ReplayOptions
from headway.routing.batch_service import BatchCounts
from headway.traces import TraceRequest
from headway.traces.sessions import after, parted

T = TypeVar("T")
VANISHED = "the client went away, as asked for"


async def unless(stop: asyncio.Event, work: Coroutine[None, None, T]) -> T | None:
    """The result of `work`, or None if `stop` is set first."""
    task = asyncio.create_task(work)
    watcher = asyncio.create_task(stop.wait())
    watcher.add_done_callback(lambda _: task.cancel())
    try:
        return await task
    except asyncio.CancelledError:
        if stop.is_set():
            return None
        raise
    finally:
        watcher.cancel()


@asynccontextmanager
async def until_ended(
    stop: asyncio.Event, report: ReplayReport, cut_off: Callable[[], None], record_rest: Callable[[], None]
) -> AsyncIterator[asyncio.TaskGroup]:
    """A task group for a replay. Its end waits for the tasks, or calls `cut_off` once `stop` is set.

    Then `record_rest` records what could not record itself. An error of one task is raised as it is.
    """

    async def stopping() -> None:
        await stop.wait()
        report.interrupted = True
        cut_off()

    watcher = asyncio.create_task(stopping())
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as faults:
        raise faults.exceptions[0] from None
    finally:
        watcher.cancel()
        record_rest()


@dataclass(slots=True)
class ReplayReport:
    """The results: records in the order in which requests ended, and how late the client sent each.

    `interrupted`: the replay was stopped; requests not sent by then have no record. `batches` is for a replay in
    batches.
    """

    model: str
    records: list[Record] = field(default_factory=list)
    lateness_s: list[float] = field(default_factory=list)
    interrupted: bool = False
    batches: BatchCounts | None = None


@dataclass(slots=True)
class ReplayBook:
    """Records each request of a replay once, when it ends."""

    dialect: Dialect
    options: ReplayOptions
    on_record: Callable[[Record], None]
    report: ReplayReport = field(init=False)

    def __post_init__(self) -> None:
        self.report = ReplayReport(self.dialect.model)

    def refuse_too_long(self, requests: Sequence[TraceRequest]) -> list[TraceRequest]:
        """The requests that fit the model; the others raise an error, or are recorded as failed if they are to be
        skipped.
        """
        reasons = {request.id: self.dialect.too_long(request) for request in requests}
        refused = [request for request in requests if reasons[request.id]]
        if refused and not self.options.skip_too_long:
            first, others = refused[0], len(refused) - 1
            more = f", and {others} more like it" if others else ""
            raise ConfigError(f"request {first.id!r}{more}: {reasons[first.id]}; accepted: requests that fit")
        for request in refused:
            reply = StreamedReply(error=reasons[request.id])
            self.enter(request, reply, *reply.outcome())
        return [request for request in requests if not reasons[request.id]]

    def enter(
        self,
        request: TraceRequest,
        reply: StreamedReply,
        outcome: Outcome,
        error: str | None = None,
        **placed: Any,
    ) -> None:
        """Write a request's record; `placed` are fields that only a replay over several instances knows."""
        forced = not (self.options.plain or self.options.own_stops) and outcome is Outcome.FINISHED
        if forced and reply.output_tokens != request.output_tokens:
            error = f"asked for {request.output_tokens} tokens, got {reply.output_tokens}"
        all_known = (
            len(reply.token_times_s) == reply.output_tokens
        )  # otherwise the server's count shows that some were missed
        record = Record(
            id=request.id,
            tenant=request.tenant,
            program=request.session,
            arrival_s=request.arrival_s,
            first_token_s=reply.first_token_s,
            finished_s=reply.ended_s,
            prompt_tokens=request.input_tokens if reply.prompt_tokens is None else reply.prompt_tokens,
            output_tokens=reply.output_tokens,
            token_times_s=reply.token_times_s if self.options.token_times and all_known else None,
            slo=request.slo,
            outcome=outcome,
            error=error,
            **placed,
        )
        self.report.records.append(record)
        self.on_record(record)


async def replay(
    requests: Sequence[TraceRequest],
    options: ReplayOptions,
    *,
    on_record: Callable[[Record], None] = lambda record: None,
    stop: asyncio.Event | None = None,
) -> ReplayReport:
    """Send every request at its time; return when each has ended, or soon after `stop` is set.

    A request's time is its arrival, or, for a turn with a think time, that long after the previous answer.

    `on_record` gets each record when its request ends. When stopped or cancelled, requests in flight are cut off and
    recorded as cancelled. Times are seconds since the replay began; a record's arrival is the time at which its request
    was to be sent. A failed request is a record, not an error.

    Raises, before anything is sent: UpstreamError if the server does not answer; ConfigError if it does not serve the
    model, or if a request does not fit its context and `skip_too_long` is not set.
    """
    stop = stop or asyncio.Event()
    async with open_session(options.api_key, options.session_timeout_s) as session:
        found = await unless(stop, find_model(session, options.url, options.model))
        if found is None:
            return ReplayReport("", interrupted=True)
        dialect = options.dialect(*found)
        book = ReplayBook(dialect, options, on_record)
        run = _Replay(session, dialect, options, book)
        fitting = book.refuse_too_long(requests)
        async with until_ended(stop, book.report, run.cut_off, run.record_unstarted) as group:
            run.sender = group.create_task(run.send_all(group, fitting))
        return book.report


@dataclass(slots=True)
class _Replay:
    """A running replay."""

    session: aiohttp.ClientSession
    dialect: Dialect
    options: ReplayOptions
    book: ReplayBook
    began_s: float | None = None
    sender: asyncio.Task[None] | None = None
    in_flight: dict[asyncio.Task[None], tuple[TraceRequest, StreamedReply]] = field(default_factory=dict)
    thinking: set[asyncio.Task[None]] = field(default_factory=set)
    followers: dict[str, TraceRequest] = field(default_factory=dict)

    def now_s(self) -> float:
        """Seconds since the first request was ready to be sent."""
        if self.began_s is None:
            self.began_s = time.perf_counter()
        return time.perf_counter() - self.began_s

    async def send_all(self, group: asyncio.TaskGroup, requests: Sequence[TraceRequest]) -> None:
        """Start each request at its time; its body is made while waiting for that."""
        free, self.followers = parted(requests)
        for request in free:
            body = self.dialect.body(request)
            await asyncio.sleep(request.arrival_s - self.now_s())
            reply = StreamedReply()
            task = group.create_task(self._follow_session(request, body, reply))
            self.in_flight[task] = request, reply

    async def _follow_session(self, request: TraceRequest, body: bytes, reply: StreamedReply) -> None:
        """Send a request, and after its end the turns that wait for it."""
        task = asyncio.current_task()
        assert task is not None
        await self._follow(request, body, reply)
        while (following := self.followers.get(request.id)) is not None:
            request, reply = after(following, self.now_s()), StreamedReply()
            body = self.dialect.body(request)
            self.thinking.add(task)
            await asyncio.sleep(request.arrival_s - self.now_s())
            self.thinking.remove(task)
            self.in_flight[task] = request, reply
            await self._follow(request, body, reply)

    def cut_off(self) -> None:
        """Send nothing more, and cancel what is in flight."""
        for task in (self.sender, *self.in_flight, *self.thinking):
            if task is not None:
                task.cancel()

    def record_unstarted(self) -> None:
        """Record requests whose task was cancelled before its first step."""
        for request, reply in self.in_flight.values():
            self._enter(request, reply, Outcome.CANCELLED)
        self.in_flight.clear()

    async def _follow(self, request: TraceRequest, body: bytes, reply: StreamedReply) -> None:
        """Send one request, read its answer to the end, and record the result."""
        url = api_url(self.options.url, "completions")
        leave = self._leaves_after(request)
        ending: tuple[Outcome, str | None] = Outcome.CANCELLED, None
        try:
            await stream_completion(self.session, url, body, reply, self.now_s, leave)
            gone = leave is not None and reply.error is None and reply.finish_reason is None
            ending = (Outcome.CANCELLED, VANISHED) if gone else reply.outcome()
        finally:
            task = asyncio.current_task()
            assert task is not None
            del self.in_flight[task]
            self._enter(request, reply, *ending)

    def _leaves_after(self, request: TraceRequest) -> int | None:
        """Tokens after which a vanishing client goes away; None for one that stays."""
        rng = Random(f"{self.options.seed}:vanish:{request.id}")
        if rng.random() >= self.options.vanish_fraction:
            return None
        return rng.randrange(request.output_tokens)

    def _enter(
        self, request: TraceRequest, reply: StreamedReply, outcome: Outcome, error: str | None = None
    ) -> None:
        if reply.sent_s is not None:
            self.book.report.lateness_s.append(reply.sent_s - request.arrival_s)
        self.book.enter(request, reply, outcome, error)
