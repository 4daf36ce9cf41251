"""Decides how many requests of batches are with the instances, and forecasts whether a window can be kept. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

FIRST_OF_AN_INSTANCE = 4
BLIND_OF_AN_INSTANCE = 8
"""Most requests for each instance if none reports how many wait in its engine."""
LOOK_S = 1.0
_GROWTH, _BACK_OFF = 0.25, 0.5
_MISSED_SHARE = 0.01
"""Batches make way if a larger share of recent interactive requests with targets missed them."""
_MISSES_KEPT = 0.8
"""Decay of the counts per look: some five seconds count."""
_SETTLES_S = 5.0
"""After this time a reduction shows in the targets of other requests."""
_WAITING_SHARE = 1 / 16
"""Requests that may wait in the engines, as a share of the running ones, so that a free seat is taken at once."""
_RECENT_S = 600.0
_MOST_MARKS = 600
TELLS_S = 60.0
"""Seconds of work that suffice to know a rate, even with fewer than ten answers."""
CALM_SHARE = 0.5
"""While the remaining work takes less than this share of the remaining time, a batch uses only spare capacity."""


class Load(NamedTuple):
    """What was seen of the instances and of interactive requests since the last look.

    `running` and `waiting` count all requests in the engines, None if no instance reports them. `judged` interactive
    requests with targets ended, and `missed` of them missed one. `in_flight` are the batches' own requests; `needed` of
    these keep every window.
    """

    instances: int
    in_flight: int
    judged: int
    missed: int
    needed: int = 0
    running: int | None = None
    waiting: int | None = None


class Pace:
    """The number of batch requests that may be in flight: `allowed`.

    `allowed` grows by a quarter a second while all of it is in flight and few requests wait in the engines, and shrinks
    by the excess of waiting requests. If interactive requests miss targets it is halved, and again every five seconds
    until they do not. Windows that are about to close set a floor (`Load.needed`); else the floor is one for each
    instance. Additive increase and multiplicative decrease, as in TCP. O(1).
    """

    def __init__(self, most_of_an_instance: int) -> None:
        self.allowed = 0
        self.missed_share = 0.0
        self._most = most_of_an_instance
        self._judged = self._missed = 0.0
        self._settled_s = float("-inf")

    def look(self, load: Load, now_s: float) -> int:
        """Process what was seen, once in LOOK_S; return `allowed`."""
        self._judged = self._judged * _MISSES_KEPT + load.judged
        self._missed = self._missed * _MISSES_KEPT + load.missed
        self.missed_share = self._missed / self._judged if self._judged else 0.0
        blind = load.waiting is None
        most = load.instances * (min(self._most, BLIND_OF_AN_INSTANCE) if blind else self._most)
        wanted = self._wanted(load, now_s)
        self.allowed = min(most, max(load.instances, load.needed, wanted))
        return self.allowed

    def _wanted(self, load: Load, now_s: float) -> int:
        if not self.allowed:
            return FIRST_OF_AN_INSTANCE * load.instances
        if now_s < self._settled_s:
            return self.allowed
        if self.missed_share > _MISSED_SHARE and load.missed:
            self._settled_s = now_s + _SETTLES_S
            return int(min(self.allowed, load.in_flight) * _BACK_OFF)
        too_many = (load.waiting or 0) - max(load.instances, ceil((load.running or 0) * _WAITING_SHARE))
        if too_many > 0:
            return min(self.allowed, max(load.in_flight, 1)) - too_many
        if load.in_flight < self.allowed:
            return self.allowed
        return self.allowed + max(1, int(self.allowed * _GROWTH))


class Forecast(NamedTuple):
    """When a batch ends at the rate of the last ten minutes, in seconds from now, and how late that is."""

    requests_per_s: float
    needed_per_s: float
    ends_in_s: float
    unfinished: int

    @property
    def in_time(self) -> bool:
        """Whether its window can be kept."""
        return not self.unfinished


@dataclass(slots=True)
class Progress:
    """Times of answers to batch requests, for forecasts, and the mean duration of a request at an instance.

    `run_s` is the time with work, even if no instance had room for it; times without a gateway do not count. O(1) a
    call, amortised.
    """

    service_s: float = 0.0
    run_s: float = 0.0
    _answered: int = 0
    _marks: deque[tuple[float, int]] = field(default_factory=lambda: deque([(0.0, 0)]))

    def worked(self, seconds: float) -> None:
        """Batches had work for `seconds`."""
        self.run_s += seconds
        if self.run_s - self._marks[-1][0] >= _RECENT_S / _MOST_MARKS:
            self._marks.append((self.run_s, self._answered))
        while self._marks[0][0] < self.run_s - _RECENT_S:
            self._marks.popleft()

    def answered(self, took_s: float) -> None:
        """A request got its answer."""
        self._answered += 1
        self.service_s += (took_s - self.service_s) * (0.1 if self.service_s else 1.0)

    @property
    def requests_per_s(self) -> float | None:
        """The recent highest rate of answers a second; None until ten answers, or TELLS_S of work."""
        since_s, before = self._marks[0]
        seconds, answers = self.run_s - since_s, self._answered - before
        known = seconds > 0 and (answers >= 10 or seconds >= TELLS_S)
        return max(answers, 1) / seconds if known else None

    def forecasts(self, batches: Iterable[tuple[int, float]]) -> list[Forecast | None]:
        """Forecasts for batches given as (requests left, seconds left), served in the order of their ends. O(n log
        n).
        """
        rate = self.requests_per_s
        asked = list(batches)
        found: list[Forecast | None] = [None] * len(asked)
        if rate is None:
            return found
        before = 0
        for index in sorted(range(len(asked)), key=lambda index: asked[index][1]):
            left, left_s = asked[index]
            before += left
            unfinished = min(left, max(0, ceil(before - rate * left_s)))
            needed = before / left_s if left_s > 0 else float(before)
            found[index] = Forecast(rate, needed, before / rate, unfinished)
        return found

    def needed(self, batches: Iterable[tuple[int, float]]) -> int:
        """Requests in flight that keep each window, given the recent duration of one; 0 while there is enough time.

        Little's law: the rate that a window needs, times the duration of a request.
        """
        rate = self.requests_per_s
        if rate is None:
            return 0
        before, most = 0, 0.0
        for left, left_s in sorted(batches, key=lambda each: each[1]):
            before += left
            if before > CALM_SHARE * rate * max(left_s, 0.0):
                most = max(most, before / max(left_s, 1.0) * self.service_s)
        return ceil(most)


def deadline_s(left: int, left_s: float, in_flight: int, requests_per_s: float | None) -> float:
    """How long a request may take: to the window's end, or, as the window closes, its share of the rest.

    `left` requests have `left_s` seconds, with `in_flight` of them at a time. While the remaining work takes less than
    CALM_SHARE of the time, the result is all of the time; if it takes all of it, the result is the time in which this
    many must be done.
    """
    if requests_per_s is None or left <= in_flight or left_s <= 0:
        return max(left_s, 1.0)
    share = left / requests_per_s / left_s
    hurry = min(1.0, max(0.0, (share - CALM_SHARE) / (1 - CALM_SHARE)))
    paced_s = left_s * max(1, in_flight) / left
    return max(left_s + hurry * (paced_s - left_s), 1.0)
