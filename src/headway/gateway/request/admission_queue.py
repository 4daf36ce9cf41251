"""Limits on the sequences that are inside, that wait, and that a tenant has, with refusals beyond them."""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from headway.gateway.http.refusal import GatewayError, no_instance
from headway.gateway.request.interrupt import Interrupt

LONGEST_RETRY_S = 60
_WINDOW_S = 30.0
_KEPT_STARTS = 512
_LOOK_AGAIN_S = 1.0
"""Room may appear although no request leaves: an instance that becomes ready brings its own."""
_NEWEST_STAY = 1 / 16
"""Weight of the newest stay in the mean of stays."""


@dataclass(slots=True)
class StartRate:
    """Sequences that get their first token a second, over the last half minute."""

    _starts_s: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT_STARTS))

    def began(self, now_s: float, sequences: int = 1) -> None:
        """A request of this many sequences got its first token."""
        self._starts_s.extend([now_s] * min(sequences, _KEPT_STARTS))

    def per_s(self, now_s: float) -> float:
        """The rate; 0 while fewer than two requests have begun."""
        while self._starts_s and self._starts_s[0] < now_s - _WINDOW_S:
            self._starts_s.popleft()
        if len(self._starts_s) < 2:
            return 0.0
        return len(self._starts_s) / max(now_s - self._starts_s[0], 1e-3)

    def retry_after_s(self, waiting: int, now_s: float) -> int:
        """Seconds until the currently waiting requests will have begun at that rate: 1 to 60, and 1 without a known
        rate.
        """
        per_s = self.per_s(now_s)
        return _whole_seconds(waiting / per_s) if per_s else 1


@dataclass(slots=True, eq=False)
class QueuedRequest:
    """One request's stay. It waits until its first token, and is inside once it may be sent to an instance."""

    tenant: str
    sequences: int
    since_s: float
    waiting: bool = True
    inside: bool = False


class AdmissionQueue:
    """Admits requests by priority, then arrival, within the limits.

    Every limit counts sequences: a request has one for each of its prompts and each of their `n` answers, and at most
    `max_sequences`. `places` sequences may be inside (None: no limit), and `max_in_flight` of them at one instance.
    `max_queue` sequences may be without their first token, and a tenant may have `max_per_tenant`. O(log waiting) a
    call.
    """

    def __init__(
        self,
        places: Callable[[], int | None],
        *,
        max_sequences: int | None = None,
        max_in_flight: int | None = None,
        max_queue: int | None = None,
        max_per_tenant: int | None = None,
        clock: Callable[[], float],
    ) -> None:
        self.max_queue = max_queue
        self.waiting = 0
        self.inside = 0
        self.start_rate = StartRate()
        self._places = places
        self._max_sequences = max_sequences
        self._max_in_flight = max_in_flight
        self._max_per_tenant = max_per_tenant
        self._clock = clock
        self._tenants: Counter[str] = Counter()
        self._mean_stay_s = 0.0
        self._door: list[tuple[int, int, asyncio.Future[None], QueuedRequest]] = []
        self._turn = 0

    @property
    def is_full(self) -> bool:
        """Whether requests wait for a place."""
        return bool(self._door)

    async def enter(
        self, tenant: str, priority: int, interrupt: Interrupt, sequences: int = 1
    ) -> QueuedRequest:
        """Take a request in, and wait for a place if needed. The returned stay must be passed to `leave`.

        Raises GatewayError (429) if the queue or the tenant's share is full, (400) if the request exceeds a limit by
        itself, and (503) if no place is left at all; WaitCut if the wait is cut short.
        """
        admission = self._take_in(tenant, sequences)
        if not self._door and self._has_place(admission):
            self._let_in(admission)
            return admission
        try:
            await self._wait(admission, priority, interrupt)
        except BaseException:
            self.leave(admission)
            raise
        return admission

    def began(self, admission: QueuedRequest) -> None:
        """A request's first token is out. Later calls change nothing."""
        if admission.waiting:
            admission.waiting = False
            self.waiting -= admission.sequences
            self.start_rate.began(self._clock(), admission.sequences)

    def leave(self, admission: QueuedRequest) -> None:
        """A request ended."""
        self.waiting -= admission.sequences * admission.waiting
        self.inside -= admission.sequences * admission.inside
        admission.waiting = admission.inside = False
        stay_s = self._clock() - admission.since_s
        self._mean_stay_s += _NEWEST_STAY * (stay_s - self._mean_stay_s) if self._mean_stay_s else stay_s
        self._tenants[admission.tenant] -= admission.sequences
        if not self._tenants[admission.tenant]:
            del self._tenants[admission.tenant]
        self._admit()

    def overloaded(self, code: str, message: str) -> GatewayError:
        """HTTP 429, with the time until the currently waiting requests will have begun."""
        return GatewayError(
            429, code, message, retry_after_s=self.start_rate.retry_after_s(self.waiting, self._clock())
        )

    def _take_in(self, tenant: str, sequences: int) -> QueuedRequest:
        self._check_size(sequences)
        if self.max_queue is not None and self.waiting + sequences > self.max_queue:
            raise self.overloaded(
                "queue_full",
                f"{self.waiting} sequences wait for their first token, and the request has {sequences}; accepted: "
                f"{self.max_queue} in all (--max-queue); try again later",
            )
        if self._max_per_tenant is not None and self._tenants[tenant] + sequences > self._max_per_tenant:
            raise GatewayError(
                429,
                "tenant_limit",
                f"tenant {tenant!r} has {self._tenants[tenant]} sequences here, and the request has {sequences}; "
                f"accepted: {self._max_per_tenant} in all (--max-per-tenant)",
                retry_after_s=_whole_seconds(self._mean_stay_s / self._max_per_tenant),
            )
        self._tenants[tenant] += sequences
        self.waiting += sequences
        return QueuedRequest(tenant, sequences, self._clock())

    def _check_size(self, sequences: int) -> None:
        """Raise GatewayError (400) for a request that would exceed a limit even without others."""
        for flag, limit in (
            ("--max-per-tenant", self._max_per_tenant),
            ("--max-queue", self.max_queue),
            ("--max-in-flight", self._max_in_flight),
            ("--max-sequences", self._max_sequences),
        ):
            if limit is not None and sequences > limit:
                raise GatewayError(
                    400,
                    "too_many_sequences",
                    f"the request asks for {sequences} sequences (prompts times n); accepted: up to {limit} ({flag})",
                )

    def _has_place(self, admission: QueuedRequest) -> bool:
        places = self._places()
        return places is None or self.inside + admission.sequences <= places

    def _let_in(self, admission: QueuedRequest) -> None:
        admission.inside = True
        self.inside += admission.sequences

    async def _wait(self, admission: QueuedRequest, priority: int, interrupt: Interrupt) -> None:
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        place = (priority, self._turn, called, admission)
        self._turn += 1
        heappush(self._door, place)
        try:
            while not admission.inside:
                self._admit()
                await interrupt.wait(asyncio.wait([called], timeout=_LOOK_AGAIN_S))
                if self._places() == 0:
                    raise no_instance()
        finally:
            if not admission.inside:
                self._door.remove(place)
                heapify(self._door)

    def _admit(self) -> None:
        """Admit the requests at the head of the queue for which there are places."""
        while self._door and self._has_place(self._door[0][3]):
            called, admission = heappop(self._door)[2:]
            self._let_in(admission)
            if not called.done():
                called.set_result(None)


def _whole_seconds(seconds: float) -> int:
    """Seconds as in `Retry-After`: 1 to 60."""
    return min(LONGEST_RETRY_S, max(1, math.ceil(seconds)))
