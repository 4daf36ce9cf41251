"""Where one request is served: in a batch of the central queue if there is one, else where the router says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headway.core.job import Job
from headway.gateway.request.generation_request import GenerationRequest
from headway.gateway.request.interrupt import Interrupt
from headway.gateway.request.serving import Serving


@dataclass(slots=True)
class Placement:
    """One request's places, in sequence: chosen, begun, left, ended.

    Requests for one particular instance, and background responses, are not batched.
    """

    serving: Serving
    request: GenerationRequest
    job: Job
    interrupt: Interrupt
    _routed: bool = False
    _queued: bool = False
    _started: bool = False

    async def place(
        self, names: Sequence[str], avoided: Sequence[str] = (), due_s: float | None = None
    ) -> str | None:
        """One of the instances `names`, preferably none of the `avoided`; None if `due_s` passes before.

        Raises GatewayError and WaitCut as `CentralQueue.place` does.
        """
        self._started = False
        queue = self.serving.batches
        if queue is not None and self._is_batched(names):
            self._queued = True
            return await queue.place(self.job, self.request, self.interrupt, avoided, due_s)
        self._routed = True
        unavoided = [each for each in names if each not in avoided] or names
        return self.serving.router.route(self.job, self.serving.with_room(unavoided, self.request.answers))

    def _is_batched(self, names: Sequence[str]) -> bool:
        return not self.request.is_background and set(names) == set(self.serving.fleet.names())

    async def hand_off(self, name: str, names: Sequence[str], due_s: float | None) -> str | None:
        """Where a request goes that its instance gave up unstarted; None if `due_s` passes before."""
        if self._queued:
            return await self.place(names, due_s=due_s)
        target = self.serving.router.hand_off(self.job, names)
        if target is None and name not in names:
            return await self.place(names)
        return target or name

    def may_move(self, loses_nothing: Callable[[], bool]) -> bool:
        """Whether an instance may give the request up; in a batch, even in the middle of the answer."""
        return self.job.may_move and (loses_nothing() if self._queued else self.serving.router.hands_off)

    def begin(self) -> bool:
        """A token arrived from the current instance; return whether it is the first from there."""
        if self._started:
            return False
        self._started = True
        if self._routed:
            self.serving.router.started(self.job)
        return True

    def end(self, tokens: int, *, finished: bool) -> None:
        """The request ended with this many tokens, `finished` if that is the whole answer."""
        self.job.num_output_tokens = tokens
        if self._routed:
            self.serving.router.end(self.job)
        if self._queued and self.serving.batches is not None:
            self.serving.batches.ended(self.job, tokens if finished else None)
