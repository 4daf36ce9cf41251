"""Runs all batches: reads them, serves them in spare capacity, and ends them, with one answer for each request."""

from __future__ import annotations

import asyncio
import logging
import re
import sqlite3
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from math import ceil
from typing import TypeVar

from headway.gateway.batch.asking import Asking, Reply
from headway.gateway.batch.lines import answer_line, decode_line, problem_line, usage_of
from headway.gateway.batch.objects import BatchRecord, Problem, Status
from headway.gateway.batch.open_batch import MOST_TRIES, PAGE_LINES, OpenBatch
from headway.gateway.batch.pace import LOOK_S, Load, Pace, Progress, deadline_s
from headway.gateway.batch.store import Answer, BatchStore, Request, new_request_id
from headway.gateway.book.accounts import BatchLine
from headway.gateway.fleet.health import read_metrics
from headway.gateway.http.options import GatewayOptions
from headway.gateway.http.refusal import GatewayError
from headway.gateway.request.interrupt import Interrupt, WaitCut
from headway.http_client import NOT_AS_EXPECTED

T = TypeVar("T")

_LOG = logging.getLogger(__name__)
_TICK_S = 0.25
_SWEEP_S = 60.0
_STORE_PAUSE_S = 5.0
_METRICS_TIMEOUT_S = 2.0
_KEPT_ENDED = 5
_OK = 200
_IN_ENGINE = re.compile(rb"^vllm:num_requests_(running|waiting)(?:\{[^}]*\})? ([0-9.e+]+)$", re.MULTILINE)
_UNASKED = {
    Status.EXPIRED: ("batch_expired", "the completion window closed before the request was answered"),
    Status.CANCELLED: ("batch_cancelled", "the batch was cancelled before the request was answered"),
    Status.FAILED: ("batch_failed", "the input file was not accepted"),
}


class Batches:
    """Serves the batches of all tenants on one event loop; `run` continues until `close`.

    A batch's lines are checked, then sent at the pace that `Pace` sets. The tenant with the fewest running sequences
    comes first, and of its batches the one whose window closes first. Answers that arrive together are stored in one
    transaction. Unfinished batches continue in the next gateway with the same folder: requests without a stored answer
    are sent again.
    """

    def __init__(
        self,
        asking: Asking,
        options: GatewayOptions,
        store: BatchStore,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self.wall_clock = wall_clock
        self.open = {record.id: OpenBatch(record) for record in store.open_batches()}
        self.ended: deque[OpenBatch] = deque(maxlen=_KEPT_ENDED)
        self.ends: Counter[Status] = Counter()
        self.results: Counter[str] = Counter()
        in_flight = options.max_in_flight
        most = options.max_batch_in_flight
        self.pace = Pace(most if in_flight is None else min(most, max(1, in_flight // 2)))
        self.progress = Progress()
        self._asking = asking
        self._options = options
        self._serving = asking.serving
        self._clock = asking.serving.clock
        self._thread = ThreadPoolExecutor(1, "batches")
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._looked_s = self._swept_s = float("-inf")
        self._seen = (0, 0)
        self._stopping = self._had_work = False

    # ---- called by the routes ---------------------------------------------------------------------------------------

    async def call(self, function: Callable[..., T], *arguments: object) -> T:
        """Run a call of the store on its thread, and return the result."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    async def add(self, record: BatchRecord) -> bool:
        """Take in a batch; False if its input file is gone."""
        if not await self.call(self.store.add_batch, record):
            return False
        self.open[record.id] = OpenBatch(record)
        self._wake.set()
        return True

    async def cancel(self, batch_id: str) -> None:
        """Send no more requests of a batch, which then ends with the answers that it has; one that is ending
        continues.
        """
        batch = self.open.get(batch_id)
        if batch is not None and batch.record.status in (Status.VALIDATING, Status.IN_PROGRESS):
            await self._end_early(batch, Status.CANCELLED)
            self._wake.set()

    # ---- running ----------------------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Sequences of batches at the instances, or on their way there."""
        return sum(batch.sequences for batch in self.open.values())

    async def run(self) -> None:
        """Advance all batches until cancelled. Disk errors are retried and lose no answer."""
        while True:
            try:
                await self._go_on()
            except (OSError, sqlite3.Error) as error:
                _LOG.error("batches in %s: %s; trying again", self._options.batch_dir, error)
                await asyncio.sleep(_STORE_PAUSE_S)
            except Exception:
                _LOG.exception("batches in %s; trying again", self._options.batch_dir)
                await asyncio.sleep(_STORE_PAUSE_S)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), _TICK_S)
            self._wake.clear()

    def stop(self) -> None:
        """Send nothing more to instances."""
        self._stopping = True

    async def close(self) -> None:
        """Stop; the folder stays as it is, and the next gateway sends unfinished requests again."""
        self.stop()
        for batch in self.open.values():
            batch.cut()
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self.call(self.store.close)
        self._thread.shutdown()

    async def _go_on(self) -> None:
        now_s = self._clock()
        for batch in [*self.open.values()]:
            if now_s >= batch.retry_s:
                await self._advance_or_wait(batch)
        if now_s - self._swept_s >= _SWEEP_S:
            self._swept_s = now_s
            await self.call(self.store.remove_expired, int(self.wall_clock()))
            await self._hold_those_without_room()
        running = [batch for batch in self.open.values() if batch.record.status is Status.IN_PROGRESS]
        if not running:
            self._seen = self._serving.accounts.judged, self._serving.accounts.missed
        elif now_s - self._looked_s >= LOOK_S:
            await self._look(running, now_s)
        self._feed()
        self._had_work = any(not batch.held for batch in running)

    async def _advance_or_wait(self, batch: OpenBatch) -> None:
        """Advance a batch by a turn. If its files fail it is retried later, and other batches continue."""
        try:
            await self._advance(batch)
        except (OSError, sqlite3.Error) as error:
            _LOG.error("batch %s: %s; trying again", batch.record.id, error)
            batch.retry_s = self._clock() + _STORE_PAUSE_S

    async def _advance(self, batch: OpenBatch) -> None:
        """Store a batch's new answers, and advance it by a turn."""
        store, record, now = self.store, batch.record, int(self.wall_clock())
        await self._keep(batch)
        if record.status in (Status.VALIDATING, Status.IN_PROGRESS) and now >= record.expires_at:
            await self._end_early(batch, Status.EXPIRED)
        elif record.status is Status.VALIDATING:
            if await self.call(store.check_lines, record):
                await self.call(store.begin, record, now)
            self._wake.set()
        elif record.status is Status.IN_PROGRESS:
            if batch.wants_lines:
                batch.add_lines(await self.call(store.unanswered, record.id, batch.after_line, PAGE_LINES))
            if not record.left:
                await self.call(store.end_early, record, Status.COMPLETED, now)
                self._wake.set()
        elif not batch.at_work and not batch.answers:
            await self._finish(batch, now)

    async def _finish(self, batch: OpenBatch, now: int) -> None:
        """End a batch once each of its requests has an answer."""
        record = batch.record
        if record.left:
            code, message = _UNASKED[record.ending]
            await self.call(self.store.give_up, record, code, message)
            self._wake.set()
            return
        await self.call(self.store.finish, record, now)
        del self.open[record.id]
        self.ended.append(batch)
        self.ends[record.status] += 1
        _LOG.info(
            "batch %s %s: %d of %d requests answered",
            record.id,
            record.status,
            record.completed,
            record.total,
        )

    async def _end_early(self, batch: OpenBatch, ending: Status) -> None:
        await self.call(self.store.end_early, batch.record, ending, int(self.wall_clock()))
        batch.cut()

    async def _keep(self, batch: OpenBatch) -> None:
        answers = batch.answers[:]
        if not answers:
            return
        await self.call(self.store.answer, batch.record, answers)
        del batch.answers[: len(answers)]
        for each in answers:
            self.results["completed" if each.ok else "failed"] += 1
            self.results["input_tokens"] += each.usage.input
            self.results["output_tokens"] += each.usage.output

    async def _hold_those_without_room(self) -> None:
        """Pause the batches of tenants whose files have reached their limit."""
        most = self._options.max_files_mib * 2**20
        for batch in self.open.values():
            used = await self.call(self.store.used_bytes, batch.record.tenant)
            full = used >= most
            told = f"the tenant's files take {used} of {most} bytes (--max-files-mib): delete some"
            batch.held = told if full else ""

    # ---- pace -------------------------------------------------------------------------------------------------------

    async def _look(self, running: Iterable[OpenBatch], now_s: float) -> None:
        """Look at other requests and at the batches' progress: set how many may be in flight, and find windows at
        risk.
        """
        if self._had_work:
            self.progress.worked(now_s - self._looked_s)
        self._looked_s = now_s
        batches, now = list(running), self.wall_clock()
        asked = [(batch.record.left, batch.left_s(now)) for batch in batches]
        for batch, forecast in zip(batches, self.progress.forecasts(asked), strict=True):
            batch.forecast = forecast
            _tell(batch, now)
        accounts = self._serving.accounts
        judged, missed = self._seen
        self._seen = accounts.judged, accounts.missed
        busy, waiting = await self._in_engines()
        self.pace.look(
            Load(
                instances=len(self._serving.fleet.names()),
                in_flight=self.in_flight,
                judged=accounts.judged - judged,
                missed=accounts.missed - missed,
                needed=self.progress.needed(asked),
                running=busy,
                waiting=waiting,
            ),
            now_s,
        )

    async def _in_engines(self) -> tuple[int | None, int | None]:
        """Running and waiting requests in the engines of all instances; None if no instance reports them."""
        fleet = self._serving.fleet
        urls = [fleet.member(name).url for name in fleet.names()]
        told = await asyncio.gather(*(read_metrics(fleet.session, url, _METRICS_TIMEOUT_S) for url in urls))
        counts: Counter[bytes] = Counter()
        for kind, value in (found for each in told for found in _IN_ENGINE.findall(each)):
            counts[kind] += ceil(float(value))
        return (counts[b"running"], counts[b"waiting"]) if counts else (None, None)

    def _feed(self) -> None:
        """Start as many requests as may be in flight."""
        while not (self._stopping or self._serving.closing or self._serving.queue.is_full):
            in_flight = self.in_flight
            batch = self._next_batch() if in_flight < self.pace.allowed else None
            if batch is None:
                return
            request = batch.to_ask.popleft()
            batch.at_work[request.line] = None
            batch.sequences += 1
            task = asyncio.create_task(self._serve(batch, request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _next_batch(self) -> OpenBatch | None:
        now_s, most = self._clock(), self._options.max_per_tenant
        under_way: Counter[str] = Counter()
        for batch in self.open.values():
            under_way[batch.record.tenant] += batch.sequences
        able = [
            batch
            for batch in self.open.values()
            if batch.may_ask(now_s) and (most is None or under_way[batch.record.tenant] < max(1, most // 2))
        ]
        return min(
            able, key=lambda batch: (under_way[batch.record.tenant], batch.record.expires_at), default=None
        )

    # ---- one request ------------------------------------------------------------------------------------------------

    async def _serve(self, batch: OpenBatch, request: Request) -> None:
        """Serve one request and note its answer, or put it back if there was none."""
        began_s, interrupt = self._clock(), Interrupt()
        batch.at_work[request.line] = interrupt
        sequences = 1
        try:
            if self._stopping or batch.record.status is not Status.IN_PROGRESS:
                return
            reply, sequences = await self._ask(batch, request, interrupt)
            if interrupt.reason is None:
                self._note(batch, request, reply, self._clock() - began_s)
            else:
                batch.put_back(request, self._clock())
        except OSError as error:
            _LOG.error("batch %s, line %d: %s", batch.record.id, request.line, error)
            batch.put_back(request, self._clock())
        except Exception:
            _LOG.exception("batch %s, line %d", batch.record.id, request.line)
            self._note(batch, request, Reply(0, b"", new_request_id()), self._clock() - began_s)
        finally:
            del batch.at_work[request.line]
            batch.sequences -= sequences
            self._wake.set()

    async def _ask(self, batch: OpenBatch, request: Request, interrupt: Interrupt) -> tuple[Reply, int]:
        """The reply to a request, and the number of sequences counted for it."""
        record, request_id, asking, sequences = batch.record, new_request_id(), self._asking, 1
        try:
            data = await self.call(self.store.read, record.input_file_id, request.place, request.size)
            body = bytes(decode_line(data).body)
            with asking.holding(body, record.tenant):
                reading = asking.read(record.endpoint, body, record.tenant, request_id)
                asked = await interrupt.wait(reading)
                batch.sequences += asked.answers - 1
                sequences = asked.answers
                line = BatchLine(record.id, request.line, request.custom_id, record.expires_at)
                reply = await asking.ask(asked, line, self._deadline_s(batch), interrupt)
        except GatewayError as refusal:
            return Reply(refusal.status, refusal.body, request_id), sequences
        except WaitCut:
            return Reply(0, b"", request_id), sequences
        return reply, sequences

    def _deadline_s(self, batch: OpenBatch) -> float:
        left_s = batch.left_s(self.wall_clock())
        return deadline_s(batch.record.left, left_s, len(batch.at_work), self.progress.requests_per_s)

    def _note(self, batch: OpenBatch, request: Request, reply: Reply, took_s: float) -> None:
        batch.tries[request.line] += reply.is_fault
        if reply.is_for_later or (reply.is_fault and batch.tries[request.line] < MOST_TRIES):
            batch.put_back(request, self._clock())
            return
        del batch.tries[request.line]
        ok = reply.status == _OK
        try:
            data = answer_line(reply.request_id, request.custom_id, reply.status, reply.body)
        except NOT_AS_EXPECTED:
            problem = Problem(code="bad_answer", message=f"HTTP {reply.status}, and no JSON")
            ok, data = False, problem_line(reply.request_id, request.custom_id, problem)
        batch.answers.append(Answer(request.line, ok, data, usage_of(reply.status, reply.body)))
        self.progress.answered(took_s)


def _tell(batch: OpenBatch, now: float) -> None:
    """Warn once, while it is so, that a window cannot be kept."""
    forecast = batch.forecast
    late = forecast is not None and not forecast.in_time
    if late and not batch.told:
        assert forecast is not None
        _LOG.warning(
            "batch %s: %d of %d requests will have no answer when its window closes in %.0f s, at %.3g a second where "
            "%.3g are needed",
            batch.record.id,
            forecast.unfinished,
            batch.record.total,
            batch.left_s(now),
            forecast.requests_per_s,
            forecast.needed_per_s,
        )
    batch.told = late
