"""A trace sent to a server as it would arrive: each request at its own time, whatever became of the others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

import aiohttp

from headway.core.record import Outcome, Record
from headway.errors import ConfigError
from headway.gateway.endpoint import api_url, find_model, open_session
from headway.gateway.openai_stream import Reply, stream_completion
from headway.gateway.prompts import Dialect, TokenIds
from headway.traces import TraceRequest

T = TypeVar("T")

VANISHED = "the client went away, as asked for"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """Where a trace is sent, and how.

    `vanish_fraction` of the requests, chosen by the seed, are cut off by their client mid-stream. A `plain`
    server is asked for nothing that OpenAI's own API does not define: no forced lengths, targets or tenants.
    `timeout_s` limits each whole request; None lets it wait in the server's queue for as long as it takes.
    """

    url: str
    model: str | None = None
    seed: int = 0
    vocab_size: int | None = None
    token_times: bool = False
    skip_too_long: bool = False
    plain: bool = False
    vanish_fraction: float = 0.0
    api_key: str | None = None
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        api_url(self.url, "")
        if not 0 <= self.vanish_fraction <= 1:
            raise ConfigError(f"vanish_fraction is {self.vanish_fraction}; accepted: 0 to 1")
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise ConfigError(f"timeout_s is {self.timeout_s}; accepted: a number of seconds above 0")


@dataclass(slots=True)
class ReplayReport:
    """What happened: records in the order requests ended, and how late the client itself sent each.

    `interrupted` tells that the replay was stopped; requests not sent by then have no record.
    """

    model: str
    records: list[Record] = field(default_factory=list)
    lateness_s: list[float] = field(default_factory=list)
    interrupted: bool = False


async def replay(
    requests: Sequence[TraceRequest],
    options: ReplayOptions,
    *,
    on_record: Callable[[Record], None] = lambda record: None,
    stop: asyncio.Event | None = None,
) -> ReplayReport:
    """Send every request at its arrival time and return when each has ended, or soon after `stop` is set.

    `on_record` gets each record as its request ends. Stopped or cancelled, requests in flight are cut off
    and recorded as cancelled. Times are seconds since the replay began; a record's arrival is the time at
    which its request was to be sent. A request that fails is a record, not an error.

    Raises, before anything is sent: UpstreamError if the server does not answer; ConfigError if it does not
    serve the model, or if a request does not fit its context and `skip_too_long` is not set.
    """
    stop = stop or asyncio.Event()
    async with open_session(options.api_key, options.timeout_s) as session:
        found = await _unless(stop, find_model(session, options.url, options.model))
        if found is None:
            return ReplayReport("", interrupted=True)
        model, max_model_len = found
        ids = TokenIds.for_vocabulary(options.vocab_size, options.seed)
        run = _Run(session, Dialect(model, max_model_len, ids, options.plain), options, on_record)
        fitting = run.refuse_too_long(requests)
        watcher = asyncio.create_task(run.cut_off_when(stop))
        try:
            async with asyncio.TaskGroup() as group:
                run.sender = group.create_task(run.send_all(group, fitting))
        except BaseExceptionGroup as faults:  # one error of ours is one error, as if there were no tasks
            raise faults.exceptions[0] from None
        finally:
            watcher.cancel()
            run.record_unstarted()
        return run.report


async def _unless(stop: asyncio.Event, work: Coroutine[None, None, T]) -> T | None:
    """What the work returns, or None if `stop` is set before that."""
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


@dataclass(slots=True)
class _Run:
    """One replay in progress."""

    session: aiohttp.ClientSession
    dialect: Dialect
    options: ReplayOptions
    on_record: Callable[[Record], None]
    report: ReplayReport = field(init=False)
    began_s: float | None = None
    sender: asyncio.Task[None] | None = None
    in_flight: dict[asyncio.Task[None], tuple[TraceRequest, Reply]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.report = ReplayReport(self.dialect.model)

    def now_s(self) -> float:
        """Seconds since the first request was ready to be sent."""
        if self.began_s is None:
            self.began_s = time.perf_counter()
        return time.perf_counter() - self.began_s

    def refuse_too_long(self, requests: Sequence[TraceRequest]) -> list[TraceRequest]:
        """The requests that fit the model; the others are an error, or failed if they are to be skipped."""
        reasons = {request.id: self.dialect.too_long(request) for request in requests}
        refused = [request for request in requests if reasons[request.id]]
        if refused and not self.options.skip_too_long:
            first, others = refused[0], len(refused) - 1
            more = f", and {others} more like it" if others else ""
            raise ConfigError(f"request {first.id!r}{more}: {reasons[first.id]}; accepted: requests that fit")
        for request in refused:
            reply = Reply(error=reasons[request.id])
            self._record(request, reply, *reply.outcome())
        return [request for request in requests if not reasons[request.id]]

    async def send_all(self, group: asyncio.TaskGroup, requests: Sequence[TraceRequest]) -> None:
        """Start each request at its time; its body is made while waiting for it."""
        for request in requests:
            body = self.dialect.body(request)
            await asyncio.sleep(request.arrival_s - self.now_s())
            reply = Reply()
            task = group.create_task(self._follow(request, body, reply))
            self.in_flight[task] = request, reply

    async def cut_off_when(self, stop: asyncio.Event) -> None:
        """Once `stop` is set send nothing more, and cancel what is in flight."""
        await stop.wait()
        self.report.interrupted = True
        for task in (self.sender, *self.in_flight):
            if task is not None:
                task.cancel()

    def record_unstarted(self) -> None:
        """Book requests whose task was cancelled before its first step, and so could not book itself."""
        for request, reply in self.in_flight.values():
            self._record(request, reply, Outcome.CANCELLED)
        self.in_flight.clear()

    async def _follow(self, request: TraceRequest, body: bytes, reply: Reply) -> None:
        """Send one request, read its answer to the end, and record what became of it."""
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
            self._record(request, reply, *ending)

    def _leaves_after(self, request: TraceRequest) -> int | None:
        """Tokens after which a client that vanishes goes away; None for one that stays."""
        rng = Random(f"{self.options.seed}:vanish:{request.id}")
        if rng.random() >= self.options.vanish_fraction:
            return None
        return rng.randrange(request.output_tokens)

    def _record(
        self, request: TraceRequest, reply: Reply, outcome: Outcome, error: str | None = None
    ) -> None:
        forced = not self.options.plain and outcome is Outcome.FINISHED
        if forced and reply.output_tokens != request.output_tokens:
            error = f"asked for {request.output_tokens} tokens, got {reply.output_tokens}"
        if reply.sent_s is not None:
            self.report.lateness_s.append(reply.sent_s - request.arrival_s)
        record = Record(
            id=request.id,
            tenant=request.tenant,
            arrival_s=request.arrival_s,
            first_token_s=reply.first_token_s,
            finished_s=reply.ended_s,
            prompt_tokens=request.input_tokens if reply.prompt_tokens is None else reply.prompt_tokens,
            output_tokens=reply.output_tokens,
            token_times_s=self._token_times(reply),
            slo=request.slo,
            outcome=outcome,
            error=error,
        )
        self.report.records.append(record)
        self.on_record(record)

    def _token_times(self, reply: Reply) -> list[float] | None:
        """One time a token; None if not asked for, or if the server's count shows that some were missed."""
        known = len(reply.token_times_s) == reply.output_tokens
        return reply.token_times_s if self.options.token_times and known else None
