"""The members of one batch, streamed side by side up to the barrier at its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from enum import Enum

from headway.core.job import Job
from headway.core.record import Outcome
from headway.loadgen.openai_stream import Reply

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
