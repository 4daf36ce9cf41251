"""An unfinished batch: its requests that wait to be sent, are with instances, or wait to be stored."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from headway.gateway.batch.objects import BatchRecord, Status
from headway.gateway.batch.pace import Forecast
from headway.gateway.batch.store import Answer, Request
from headway.gateway.request.interrupt import Cut, Interrupt

PAGE_LINES = 512
"""Requests whose positions are held in memory at a time."""
MOST_TRIES = 3
"""Tries for a request whose instances fail."""
_PAUSE_S = 1.0


@dataclass(slots=True, eq=False)
class OpenBatch:
    """One running batch. Only the store changes `record`.

    `at_work` are the lines being served, each with its interrupt once it has one. `sequences` counts their sequences in
    engines. `held` is the reason why nothing more is sent.
    """

    record: BatchRecord
    at_work: dict[int, Interrupt | None] = field(default_factory=dict)
    sequences: int = 0
    answers: list[Answer] = field(default_factory=list)
    to_ask: deque[Request] = field(default_factory=deque)
    tries: Counter[int] = field(default_factory=Counter)
    forecast: Forecast | None = None
    held: str = ""
    told: bool = False
    retry_s: float = 0.0
    """When the batch continues after its files failed."""
    _after_line: int = 0
    _all_known: bool = False
    _paused_until_s: float = 0.0

    @property
    def wants_lines(self) -> bool:
        """Whether more of its requests should be looked up."""
        return not self._all_known and len(self.to_ask) < PAGE_LINES // 2

    @property
    def after_line(self) -> int:
        """The last line that was looked up."""
        return self._after_line

    def add_lines(self, requests: list[Request]) -> None:
        """Add the next requests without an answer; fewer than PAGE_LINES are the last."""
        self.to_ask += requests
        self._all_known = len(requests) < PAGE_LINES
        if requests:
            self._after_line = requests[-1].line

    def may_ask(self, now_s: float) -> bool:
        """Whether a request of this batch may be sent now."""
        running = self.record.status is Status.IN_PROGRESS and not self.held and now_s >= self.retry_s
        return running and bool(self.to_ask) and now_s >= self._paused_until_s

    def put_back(self, request: Request, now_s: float) -> None:
        """Send a request again later, and none for a moment."""
        self.to_ask.appendleft(request)
        self._paused_until_s = now_s + _PAUSE_S

    def cut(self) -> None:
        """Send no more requests."""
        self.to_ask.clear()
        for interrupt in self.at_work.values():
            if interrupt is not None:
                interrupt.cut(Cut.GONE)

    def left_s(self, now: float) -> float:
        """Seconds until the batch's window closes."""
        return self.record.expires_at - now
