"""Decides how long an agent program's KV stays on the device while its tool runs."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from math import inf

from headway.core.cost import CostModel, UnknownCost
from headway.core.kept_programs import Program
from headway.errors import ConfigError

_RECENT = 200
"""Recent pauses of each tenant that predict the next one."""
_TELLING = 8
"""Pauses needed before anything is kept: fewer would say little."""
_MOST_PAUSED = 10_000
"""Most paused programs of which the return is awaited."""


class _Pauses:
    """The recent pauses of one tenant's programs, ascending; inf for one that did not end in time."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=_RECENT)
        self.ascending: list[float] = []

    def add(self, pause_s: float) -> None:
        if len(self._latest) == _RECENT:
            del self.ascending[bisect_left(self.ascending, self._latest[0])]
        self._latest.append(pause_s)
        insort(self.ascending, pause_s)


class KeepUntilReturn:
    """Keeps a program's KV as long as its expected return is worth more than the memory.

    Worth is what the prompt would take to compute again, times the share of the tenant's pauses of late that were over
    by then. What a store would bring back counts with the memory that its load holds instead. The price of memory is
    engine time: a program that holds a tenth of it for ten seconds costs one second, as jobs are ranked by work with
    memory (`RemainingWork`). Of all moments up to `longest_s` the one with the most gain is the program's time to live.
    Nothing is kept if there is no gain, or before eight pauses of the tenant have been seen. All programs together keep
    at most `share` (0 to 1) of the device's KV blocks.

    Costs: O(log) for a turn that arrives, O(_RECENT) for a turn that ends.
    """

    def __init__(
        self, cost: CostModel | None = None, *, share: float = 0.75, longest_s: float = 120.0
    ) -> None:
        if not 0 <= share <= 1:
            raise ConfigError.of("share", share, "0 to 1")
        if not longest_s >= 0:
            raise ConfigError.of("longest_s", longest_s, "seconds, 0 or more")
        self.share = share
        self._longest_s = longest_s
        self._cost: CostModel = cost or UnknownCost()
        self._pauses: dict[str, _Pauses] = {}
        self._since_s: dict[Program, float] = {}

    def came(self, program: Program, now_s: float) -> None:
        """A turn of a program arrived: learn how long its tool ran."""
        since_s = self._since_s.pop(program, None)
        if since_s is not None:
            self._learn(program, now_s - since_s)

    def keep_s(self, program: Program, num_tokens: int, now_s: float, stored_share: float = 0.0) -> float:
        """Seconds for which the `num_tokens` of KV of a program whose turn has ended are kept; 0: let go."""
        self._since_s.pop(program, None)
        self._since_s[program] = now_s
        self._give_up(now_s)
        pauses = self._pauses.get(program[0])
        if pauses is None or len(pauses.ascending) < _TELLING or not self._cost.kv_tokens:
            return 0.0
        held = num_tokens / self._cost.kv_tokens
        load_s, prefill_s = held * self._cost.load_s(num_tokens), self._cost.prefill_s(num_tokens)
        again_s = stored_share * load_s + (1 - stored_share) * prefill_s
        return best_wait_s(pauses.ascending, again_s, held)

    def _give_up(self, now_s: float) -> None:
        """Programs that have paused for longer than any is kept did not return in time."""
        while self._since_s:
            program, since_s = next(iter(self._since_s.items()))
            if now_s - since_s <= self._longest_s and len(self._since_s) <= _MOST_PAUSED:
                return
            del self._since_s[program]
            self._learn(program, inf)

    def _learn(self, program: Program, pause_s: float) -> None:
        self._pauses.setdefault(program[0], _Pauses()).add(pause_s if pause_s <= self._longest_s else inf)


def best_wait_s(pauses_s: Sequence[float], gain_s: float, price: float) -> float:
    """How long to wait for a return that saves `gain_s`, if each second of waiting costs `price`; 0: not at all.

    `pauses_s` ascends, each equally likely. Waiting until the i-th of n gains i times in n; it costs the length of
    those pauses, and otherwise the whole wait. O(n).

    >>> best_wait_s([1.0, 2.0, 50.0, float("inf")], gain_s=4.0, price=0.5)
    2.0
    """
    count, waited_s, best, found_s = len(pauses_s), 0.0, 0.0, 0.0
    for returned, pause_s in enumerate(pauses_s, 1):
        if pause_s == inf:
            break
        waited_s += pause_s
        worth = gain_s * returned - price * (waited_s + (count - returned) * pause_s)
        if worth > best:
            best, found_s = worth, pause_s
    return found_s
