"""Whether an instance that has requests gets on with them."""

from __future__ import annotations

from collections.abc import Callable

import aiohttp

from headway.gateway.fleet.health import is_paused, read_metrics

_COUNTERS = (
    b"headway_steps_total",
    b"vllm:iteration_tokens_total_count",
    b"vllm:prompt_tokens_total",
    b"vllm:generation_tokens_total",
)
"""Those that grow while an engine computes."""
_REQUESTS = (b"vllm:num_requests_running", b"vllm:num_requests_waiting")
"""What it says it has to compute: a client that reads nothing keeps its request here, and no engine busy."""
_LOOKS = 10
"""So often its counters are read within the time in which they must have changed."""


class Progress:
    """Holds an engine against its own counters: one that hangs answers `/health` all the same.

    It stands still if it says that it has requests and none of its counters has changed for `patience_s`; who has no
    such counters never does, nor does one that says that it was paused. Once it does, it has to move to be well again,
    whatever is asked of it.
    """

    def __init__(self, patience_s: float, clock: Callable[[], float]) -> None:
        self._patience_s = patience_s
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """Another engine is there, or one that was idle: what was seen before says nothing."""
        self._counters: list[bytes] = []
        self._moved_s = self._clock()
        self._asked_s = float("-inf")
        self._stands_still = False

    async def problem(
        self, session: aiohttp.ClientSession, url: str, timeout_s: float, *, busy: bool
    ) -> str | None:
        """Why it is not well, for people; None if it is. `busy`: whether it was sent something that has not ended."""
        if not busy and not self._stands_still:
            self.begin()
            return None
        now_s = self._clock()
        if now_s - self._asked_s >= self._patience_s / _LOOKS:
            self._asked_s = now_s
            self._look((await read_metrics(session, url, timeout_s)).splitlines(), now_s)
            if self._stands_still and await is_paused(session, url, timeout_s):
                self.begin()
        if self._stands_still:
            return f"its engine stands still: no step for {now_s - self._moved_s:.0f} s, with requests there"
        return None

    def _look(self, metrics: list[bytes], now_s: float) -> None:
        if not metrics:
            return
        counters = [line for line in metrics if line.startswith(_COUNTERS)]
        if counters != self._counters or not counters or not _has_requests(metrics):
            self._counters, self._moved_s, self._stands_still = counters, now_s, False
        elif now_s - self._moved_s >= self._patience_s:
            self._stands_still = True


def _has_requests(metrics: list[bytes]) -> bool:
    return any(line.startswith(_REQUESTS) and not line.endswith(b" 0.0") for line in metrics)
