"""Decides how many instances there should be; pure, so that gateway and simulator decide alike."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil, floor
from typing import Self

from headway.errors import ConfigError

TOLERANCE = 0.01
"""Goodput that a fleet may lose compared with the largest one."""
HOPELESS = 0.5
"""If even the largest fleet has less goodput, requests are late in all fleets: then times decide."""
SLOWER = 0.25
"""Without targets: how much longer, on average, requests may take than in the largest fleet."""
DEFAULT_WINDOW_S = 120.0
"""Length of the recent past by which the number of instances is judged."""
CALM_WINDOWS = 0.75
"""Windows for which fewer instances must have been enough before one is stopped: about the start-up time of a new
one, so that one stopped too soon costs no more than one kept too long.
"""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The fewest and the most instances."""

    floor: int
    ceiling: int

    @classmethod
    def parse(cls, text: str, flag: str) -> Self:
        """Parse `N` or `MIN..MAX`. Raises ConfigError for anything else."""
        found = re.fullmatch(r"(\d{1,6})(?:\.\.(\d{1,6}))?", text)
        least, most = found.groups() if found is not None else ("0", None)
        if not 1 <= int(least) <= int(most or least):
            raise ConfigError(f"{flag} is {text!r}; accepted: N or MIN..MAX, from 1 up, as 1..4")
        return cls(int(least), int(most or least))

    def clamp(self, count: int) -> int:
        """The nearest allowed count."""
        return min(max(count, self.floor), self.ceiling)


@dataclass(frozen=True, slots=True)
class Served:
    """The result of one fleet size: goodput (None without targets), mean completion time."""

    goodput: float | None
    mean_jct_s: float | None

    def as_good_as(self, best: Served, tolerance: float = TOLERANCE) -> bool:
        """Whether it loses at most `tolerance`; without achievable targets, whether it is at most SLOWER slower."""
        if self.goodput is not None and best.goodput is not None and best.goodput >= HOPELESS:
            return self.goodput >= best.goodput - tolerance
        if self.mean_jct_s is None or best.mean_jct_s is None:
            return best.mean_jct_s is None
        return self.mean_jct_s <= best.mean_jct_s * (1 + SLOWER)


class Demand:
    """Counts arrivals, and says by how much demand may grow until one more instance would serve.

    A replay covers the last `window_s`; the decision must hold for the next `lead_s`. The last hour shows how the two
    compare. O(1) an arrival, O(bins) a question.
    """

    GUESSED_GROWTH = 1.25
    """Assumed upper growth until enough was seen."""
    LEAST_SEEN = 12
    """Bins; fewer say nothing about how demand changes."""
    BINS_A_WINDOW = 8
    KEPT_S = 3600.0
    LARGEST = 4.0
    """Largest factor; the least is its inverse. After bursts nothing may come for long, but 0 is no factor for a
    replay.
    """

    def __init__(self, window_s: float, lead_s: float) -> None:
        self._bin_s = window_s / self.BINS_A_WINDOW
        self._after = max(1, round(lead_s / self._bin_s))
        self._bins: Counter[int] = Counter()
        self._first: int | None = None

    def came(self, at_s: float) -> None:
        """A request arrived."""
        place = floor(at_s / self._bin_s)
        self._bins[place] += 1
        self._first = place if self._first is None else min(self._first, place)

    def growth(self, now_s: float, share: float) -> float:
        """The growth factor that demand stayed below in this share of the last hour."""
        last = floor(now_s / self._bin_s)
        oldest = floor((now_s - self.KEPT_S) / self._bin_s)
        for place in [place for place in self._bins if place < oldest]:
            del self._bins[place]
        first = last if self._first is None else max(self._first, oldest)
        seen = sorted(self._changes(first, last))
        if len(seen) < self.LEAST_SEEN:
            return self.GUESSED_GROWTH if share > 0.5 else 1 / self.GUESSED_GROWTH
        found = seen[min(len(seen) - 1, floor(share * len(seen)))]
        return max(1 / self.LARGEST, min(self.LARGEST, found))

    def _changes(self, first: int, last: int) -> list[float]:
        """The rates after each moment over the rates before it; for whole bins only."""
        sums = [0]
        for place in range(first, last):
            sums.append(sums[-1] + self._bins[place])
        before, after = self.BINS_A_WINDOW, self._after
        return [
            (sums[at + after] - sums[at]) / after / ((sums[at] - sums[at - before]) / before)
            for at in range(before, len(sums) - after)
            if sums[at] > sums[at - before]
        ]


LOW, UPPER, HIGH = 0.1, 0.75, 0.95
"""Shares of the last hour's lead times: the recommendation suffices for UPPER of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """How many instances the demand of the next minutes needs, according to replays of the last ones.

    `low` and `high` would do for less and for more growth than assumed (`growth`). `replays` are by number of
    instances, at that growth. `doubt` says why replays cannot be trusted; `needed` then follows from observation.
    """

    needed: int
    low: int
    high: int
    growth: float = 1.0
    replays: Mapping[int, Served] = field(default_factory=dict)
    doubt: str | None = None


Replay = Callable[[int, float], Served]
"""The result of this many instances with demand larger by a factor."""


class Adviser:
    """Says how many instances the next `lead_s` need, from replays of the last requests and from the last hour.

    `demand` is told of every request.
    """

    def __init__(self, bounds: Bounds, window_s: float, lead_s: float) -> None:
        self.demand = Demand(window_s, lead_s)
        self._bounds = bounds

    def advise(self, replay: Replay, now_s: float, current: int) -> Advice:
        """The fewest instances that would have lost at most TOLERANCE compared with the maximum.

        O(log n) replays, n how far the result is from `current`. The largest fleet is replayed only if no other replay
        decides whether a fleet loses too much.
        """
        bounds, demand = self._bounds, self.demand
        growth = demand.growth(now_s, UPPER)
        replays: dict[int, Served] = {}

        def served(count: int) -> Served:
            if count not in replays:
                replays[count] = replay(count, growth)
            return replays[count]

        def is_enough(count: int) -> bool:
            found = served(count)
            if found.goodput is not None and found.goodput >= 1 - TOLERANCE:
                return True
            larger = [replays[other] for other in replays if other > count]
            loses_little = all(found.as_good_as(other) for other in larger)
            return loses_little and found.as_good_as(served(bounds.ceiling))

        needed = fewest(is_enough, bounds, near=bounds.clamp(current))
        # Equal instances serve in proportion to their number.
        low = floor((needed - 1) * demand.growth(now_s, LOW) / growth) + 1
        high = ceil(needed * demand.growth(now_s, HIGH) / growth)
        return Advice(
            needed=needed,
            low=bounds.clamp(min(low, needed)),
            high=bounds.clamp(max(high, needed)),
            growth=growth,
            replays=dict(sorted(replays.items())),
        )


def fewest(is_enough: Callable[[int], bool], bounds: Bounds, near: int) -> int:
    """The fewest within bounds that are enough, searched from `near` in doubling steps; the maximum always counts as
    enough.

    Below `near` none is tried that is less than half of what is enough, since replaying its queue would take long.
    """
    low, high, step = near, near, 1
    if is_enough(near):
        while high > bounds.floor and is_enough(low := max(bounds.floor, high - step, ceil(high / 2))):
            high, step = low, 2 * step
        low = min(low + 1, high)
    else:
        while high < bounds.ceiling and not is_enough(high):
            low, high, step = high + 1, min(bounds.ceiling, high + step), 2 * step
    return low + bisect_left(range(low, high), True, key=is_enough)


class ScalingReason(StrEnum):
    """Why a number of instances is recommended."""

    MORE = "more"
    """Otherwise requests would miss their targets."""
    FEWER = "fewer"
    """Fewer have been enough for long enough."""
    STEADY = "steady"
    """The fleet has the right size."""
    CALM = "calm"
    """Fewer would do, but not yet for long enough."""
    FLOOR = "floor"
    """A single instance, or the minimum, does everything."""
    CEILING = "ceiling"
    """The maximum is reached; more might do better."""
    DOUBT = "doubt"
    """Replays differ too much from observation: one more if targets are missed, never fewer."""
    UNKNOWN = "unknown"
    """Nothing is known yet."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The recommended number of instances, the interval, and the reason."""

    instances: int
    low: int
    high: int
    reason: ScalingReason


class Scaler:
    """Turns advice into a number of instances: more at once, fewer after a calm time."""

    def __init__(self, bounds: Bounds, window_s: float = DEFAULT_WINDOW_S) -> None:
        self.bounds = bounds
        self.window_s = window_s
        self._calm_s = CALM_WINDOWS * window_s
        self._needed: deque[tuple[float, int]] = deque()

    def decide(self, now_s: float, current: int, advice: Advice | None) -> Recommendation:
        """The recommended number, given the `current` one, which includes starting instances."""
        bounds, needs = self.bounds, self._needed
        if advice is None:
            count = bounds.clamp(current)
            return Recommendation(count, bounds.floor, bounds.ceiling, ScalingReason.UNKNOWN)
        if not needs:
            needs.append((now_s, current))
        wanted = max(advice.needed, current) if advice.doubt is not None else advice.needed
        needs.append((now_s, wanted))
        while needs[0][0] < now_s - self._calm_s:
            needs.popleft()
        count = bounds.clamp(max(needed for _, needed in needs))
        count = min(count, max(current, bounds.clamp(wanted)))
        reason = ScalingReason.DOUBT if advice.doubt is not None else self._reason(count, current, advice)
        return Recommendation(count, min(advice.low, count), max(advice.high, count), reason)

    def _reason(self, count: int, current: int, advice: Advice) -> ScalingReason:
        if count > current:
            return ScalingReason.MORE
        if count == self.bounds.ceiling and advice.needed >= count:
            return ScalingReason.CEILING
        if count < current:
            return ScalingReason.FEWER
        if advice.needed < count:
            return ScalingReason.CALM
        return ScalingReason.FLOOR if count == self.bounds.floor else ScalingReason.STEADY
