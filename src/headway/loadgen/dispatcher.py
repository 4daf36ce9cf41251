"""Sends whole batches to servers, one at a time each; what is left of a failed batch goes back into the queue."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType

import aiohttp

from headway.core.job import Job
from headway.core.length_estimate import LengthEstimate
from headway.core.record import Outcome
from headway.http_client import api_url
from headway.loadgen.instance import ServedInstance
from headway.loadgen.openai_stream import Reply, stream_completion
from headway.loadgen.replay import BatchCounts, ReplayBook
from headway.predict.lengths.facts import LengthPredictor, RequestFacts, SharedPrefix
from headway.routing.batch import Batch
from headway.routing.batch_queue import BatchQueue
from headway.traces import TraceRequest


class PredictorThread:
    """Judges requests as they come and learns from answers as they finish, in the order it was told of either.

    One thread of its own does both; a context manager ends it. What many prompts begin with is their
    instruction. Without a predictor nothing is known of any length.
    """

    def __init__(self, predictor: LengthPredictor | None) -> None:
        self._predictor = predictor
        self._prefixes = SharedPrefix()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="headway-lengths")

    def __enter__(self) -> PredictorThread:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown()

    def facts(self, request: TraceRequest, limit: int) -> RequestFacts:
        """What a server would know of the request when it comes; to be asked once a request."""
        return self._prefixes.facts(
            request.prompt or "",
            num_prompt_tokens=request.input_tokens,
            max_output_tokens=limit,
            tenant=request.tenant,
        )

    async def judge(self, facts: Sequence[RequestFacts]) -> list[LengthEstimate | None]:
        """How long the answers will probably be."""
        predictor = self._predictor
        if predictor is None:
            return [None] * len(facts)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: [predictor.predict(each) for each in facts])

    def learn(self, facts: RequestFacts, output_tokens: int) -> None:
        """An answer has finished; returns at once."""
        if self._predictor is not None:
            self._thread.submit(self._predictor.observe, facts, output_tokens)


SILENCE_S = 5.0
"""A batch of which no token came for so long has its server asked whether it is still there."""


class BatchEnd(Enum):
    """How a batch came to its end."""

    SERVED = "every member has its answer"
    OUT_OF_MEMORY = "the instance handed a member back for want of memory"
    BROKEN = "a member has failed, or its connection has"


@dataclass(slots=True)
class BatchStreams:
    """Follows a batch. `on_end` gets each job whose answer is over, once.

    `refused` are those that failed with an error of the server's; what becomes of them, and of the others
    that `on_end` was not called for, is the caller's to decide. A server can die without closing its
    connections, so `still_there` is asked when nothing comes.
    """

    replies: Mapping[Job, Reply]
    on_end: Callable[[Job], None]
    still_there: Callable[[], Awaitable[bool]]
    silence_s: float = SILENCE_S
    refused: list[Job] = field(default_factory=list)

    async def follow(self, streams: Mapping[Job, Coroutine[None, None, None]]) -> BatchEnd:
        """Run all streams at once until the last is over, or one was handed back, or the server is gone.

        Then the others are cut off.
        """
        tasks = {asyncio.create_task(stream): job for job, stream in streams.items()}
        running, ends = set(tasks), {BatchEnd.SERVED}
        watch = asyncio.create_task(self._until_gone())
        try:
            while running and BatchEnd.OUT_OF_MEMORY not in ends and not watch.done():
                done, _ = await asyncio.wait({*running, watch}, return_when=asyncio.FIRST_COMPLETED)
                for task in running & done:
                    running.discard(task)
                    task.result()
                    ends.add(self._settle(tasks[task]))
            if watch.done():
                watch.result()
                ends.add(BatchEnd.BROKEN)
        finally:
            for task in (watch, *running):
                task.cancel()
            await asyncio.gather(watch, *running, return_exceptions=True)
        for task in running:
            # Its last token may have come while it was being cut off.
            if self.replies[tasks[task]].finish_reason is not None:
                self._settle(tasks[task])
        return next(end for end in (BatchEnd.OUT_OF_MEMORY, BatchEnd.BROKEN, BatchEnd.SERVED) if end in ends)

    async def _until_gone(self) -> None:
        """Returns once no token has come for a while and the server is not there any more."""
        tokens = -1
        while True:
            now = sum(reply.output_tokens for reply in self.replies.values())
            if now == tokens and not await self.still_there():
                return
            tokens = now
            await asyncio.sleep(self.silence_s)

    def _settle(self, job: Job) -> BatchEnd:
        """What one finished stream says of the whole batch."""
        reply = self.replies[job]
        outcome, _ = reply.outcome()
        if outcome is Outcome.HANDED_OFF:
            return BatchEnd.OUT_OF_MEMORY
        if outcome is not Outcome.FAILED:
            self.on_end(job)
            return BatchEnd.SERVED
        if not reply.cut:
            self.refused.append(job)
        return BatchEnd.BROKEN


TOO_LARGE = "alone in its batch it ran out of KV memory"
NOBODY_LEFT = "no instance is left to serve it"


@dataclass(slots=True)
class _LiveRequest:
    """A request that has come and not ended, and what has come back for its newest attempt."""

    request: TraceRequest
    facts: RequestFacts
    reply: Reply = field(default_factory=Reply)
    attempts: int = 0
    instance: str = ""


@dataclass(slots=True)
class Dispatcher:
    """A task that adds arrivals to the queue, and one for each server, which serves batch after batch.

    Each request that has come is in `live` until its one end. `serving` are the servers that answer; one that does
    not is asked every `silence_s`, and with each change, whether it is back.
    """

    session: aiohttp.ClientSession
    predictor_thread: PredictorThread
    queue: BatchQueue
    book: ReplayBook
    serving: list[ServedInstance]
    silence_s: float
    counts: BatchCounts = field(default_factory=BatchCounts)
    live: dict[Job, _LiveRequest] = field(default_factory=dict)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _all_have_come: bool = False
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _began_s: float = 0.0

    def __post_init__(self) -> None:
        self.book.report.batches = self.counts

    def now_s(self) -> float:
        """Seconds since the replay began."""
        return time.perf_counter() - self._began_s

    def start(self, group: asyncio.TaskGroup, requests: Sequence[TraceRequest]) -> None:
        """Begin to take requests in and to serve them."""
        self._began_s = time.perf_counter()
        work = [self._arrive(requests), *(self._serve_with(instance) for instance in self.serving)]
        self._tasks = [group.create_task(each) for each in work]

    def cut_off(self) -> None:
        """Take nothing more in, and cut off what is being served."""
        for task in self._tasks:
            task.cancel()

    def record_unserved(self) -> None:
        """Book what had come and was cut short."""
        for job in list(self.live):
            self._end(job, Outcome.CANCELLED)

    async def _arrive(self, requests: Sequence[TraceRequest]) -> None:
        coming = deque(requests)
        while coming:
            await asyncio.sleep(max(0.0, coming[0].arrival_s - self.now_s()))
            now_s = self.now_s()
            due = []
            while coming and coming[0].arrival_s <= now_s:
                due.append(coming.popleft())
            await self._take_in(due)
        self._all_have_come = True
        self._changed.set()

    async def _take_in(self, requests: Sequence[TraceRequest]) -> None:
        """Put those that have come into the queue, all at once: they may share a batch."""
        jobs = [self._come(request) for request in requests]
        estimates = await self.predictor_thread.judge([self.live[job].facts for job in jobs])
        for job, estimate in zip(jobs, estimates, strict=True):
            job.predicted_length = estimate
            if job not in self.live:
                continue  # while it was judged the last server was lost, and it failed
            if self.serving:
                self.queue.add(job)
            else:
                self._end(job, Outcome.FAILED, NOBODY_LEFT)
        self._changed.set()

    def _come(self, request: TraceRequest) -> Job:
        limit = self.book.dialect.limit_tokens(request) or request.output_tokens
        job = Job(
            id=request.id,
            arrival_s=request.arrival_s,
            num_prompt_tokens=request.input_tokens,
            max_output_tokens=limit,
            tenant=request.tenant,
        )
        self.live[job] = _LiveRequest(request, self.predictor_thread.facts(request, limit))
        self.book.report.lateness_s.append(self.now_s() - request.arrival_s)
        return job

    async def _serve_with(self, instance: ServedInstance) -> None:
        """Serve batches until all requests have ended, and nothing while the server is gone."""
        while self.live or not self._all_have_come:
            if instance not in self.serving:
                await self._miss(instance)
            elif (batch := self.queue.next_batch(self.now_s())) is None:
                self._changed.clear()
                await self._changed.wait()
            else:
                await self._serve(instance, batch)
                self._changed.set()

    async def _miss(self, instance: ServedInstance) -> None:
        """Take a server that has gone in again if it is back."""
        self._changed.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), self.silence_s)
        if await instance.answers(self.session):
            self.serving.append(instance)

    async def _serve(self, instance: ServedInstance, batch: Batch) -> None:
        """Serve one batch to its end, whatever that is."""
        self.counts.batches += 1
        sent_s = self.now_s()
        coming = {job: self._attempt(job, instance, sent_s) for job in batch.jobs}
        replies = {job: self.live[job].reply for job in batch.jobs}
        streams = BatchStreams(
            replies, self._answered, lambda: instance.answers(self.session), self.silence_s
        )
        end = await streams.follow(coming)
        if end is BatchEnd.SERVED:
            self._served(batch, self.now_s() - sent_s)
        elif end is BatchEnd.OUT_OF_MEMORY:
            self.counts.out_of_memory += 1
            self._give_up(streams.refused)
            self._split(batch, fail_alone=True, reason=TOO_LARGE)
            await instance.until_idle()
        else:
            await self._broken(instance, batch, streams.refused)

    def _attempt(self, job: Job, instance: ServedInstance, sent_s: float) -> Coroutine[None, None, None]:
        """The stream that asks the server for the job's answer, from its start."""
        live = self.live[job]
        body = instance.dialect.body(live.request, live.attempts)
        live.reply, live.attempts, live.instance = Reply(), live.attempts + 1, instance.url
        if job.first_scheduled_s is None:
            job.first_scheduled_s = sent_s
        url = api_url(instance.url, "completions")
        return stream_completion(self.session, url, body, live.reply, self.now_s)

    def _answered(self, job: Job) -> None:
        """A member has its answer: that is its end."""
        live = self.live[job]
        outcome, error = live.reply.outcome()
        if outcome is Outcome.FINISHED:
            job.num_output_tokens = live.reply.output_tokens
            self.predictor_thread.learn(live.facts, job.num_output_tokens)
        self._end(job, outcome, error)

    def _served(self, batch: Batch, seconds: float) -> None:
        answers = [job.num_output_tokens for job in batch.jobs]
        if all(answers):
            self.queue.finished(batch, output_tokens=max(answers), seconds=seconds)
        else:
            self.queue.dropped(batch)

    def _split(self, batch: Batch, *, fail_alone: bool, reason: str | None) -> None:
        """Have what is left of a batch wait again. One that was alone fails, or joins the others once more."""
        ended = {job for job in batch.jobs if job not in self.live}
        for job in self.queue.split(batch, ended):
            if fail_alone:
                self._end(job, Outcome.FAILED, reason or self.live[job].reply.outcome()[1])
            else:
                self.queue.add(job)
        self._changed.set()

    async def _broken(self, instance: ServedInstance, batch: Batch, refused: Sequence[Job]) -> None:
        """Something failed. A server that no longer answers is given up, and others serve what it had.

        From one that does, an error is an answer; only members whose connection failed are asked again.
        """
        gone = not await instance.answers(self.session)
        if gone:
            self.serving.remove(instance)
            self.counts.lost_instances += 1
        else:
            self._give_up(refused)
        self._split(batch, fail_alone=not gone, reason=None)
        if not self.serving:
            self._fail_all()

    def _fail_all(self) -> None:
        """No server is left: all that have come fail, and none of them waits for one that comes back."""
        while (batch := self.queue.next_batch(self.now_s())) is not None:
            self.queue.dropped(batch)
        for job in list(self.live):
            self._end(job, Outcome.FAILED, NOBODY_LEFT)

    def _give_up(self, refused: Sequence[Job]) -> None:
        """The end of members that the server failed with an error of their own."""
        for job in refused:
            self._end(job, *self.live[job].reply.outcome())

    def _end(self, job: Job, outcome: Outcome, error: str | None = None) -> None:
        """The one end of a request."""
        live = self.live.pop(job)
        if live.reply.ended_s is None:
            live.reply.ended_s = self.now_s()
        self.book.enter(
            live.request,
            live.reply,
            outcome,
            error,
            instance=live.instance,
            first_scheduled_s=job.first_scheduled_s,
            preemptions=max(0, live.attempts - 1),
            predicted_output_tokens=job.predicted_output_tokens,
        )
