"""Reports policy calls that delay the engine: which part took the time, and how long."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from weakref import WeakMethod

from headway.engine.step.counters import Counters
from headway.policies.policy import Policy

logger = logging.getLogger(__name__)

SLOW_S = 0.2
"""A call of this duration is reported: steps take some 20 ms."""
LOOK_S = 0.05
SAY_AGAIN_S = 60.0


class SlowCalls:
    """Measures the policy's calls of each step, and counts and logs those of SLOW_S or more.

    A thread looks at the engine every LOOK_S, and notes the innermost part at work in a call of that age. A part that
    never releases the interpreter is not seen: then only the call is named. The log gets at most one line in
    SAY_AGAIN_S. O(1) a call.
    """

    def __init__(self, counters: Counters, clock: Callable[[], float] = time.perf_counter) -> None:
        self._counters = counters
        self._clock = clock
        self._policy: Policy | None = None
        self._thread = 0
        self._began_s = 0.0
        self._said_s = float("-inf")
        self._unsaid = 0
        self.seen = ""
        """The part found at work in this call; empty if none yet."""
        threading.Thread(target=_watch, args=(WeakMethod(self.look),), daemon=True).start()

    def begin(self, policy: Policy) -> None:
        """A policy call begins."""
        self._thread, self.seen = threading.get_ident(), ""
        self._began_s = self._clock()
        self._policy = policy

    def end(self, call: str) -> None:
        """The call ended."""
        policy, self._policy = self._policy, None
        took_s = self._clock() - self._began_s
        if took_s < SLOW_S or policy is None:
            return
        self._counters.slow_calls += 1
        self._counters.slow_call_s += took_s
        if self._clock() - self._said_s < SAY_AGAIN_S:
            self._unsaid += 1
            return
        more = f" ({self._unsaid} more since this was last said)" if self._unsaid else ""
        self._said_s, self._unsaid = self._clock(), 0
        logger.warning(
            "policy %r took %.2f s in %s%s: the engine computes nothing meanwhile%s",
            policy.name,
            took_s,
            call,
            f", last seen in {self.seen}" if self.seen else "",
            more,
        )

    def look(self) -> None:
        """Note the part at work if a call has lasted for LOOK_S."""
        policy, began_s = self._policy, self._began_s
        if policy is None or self._clock() - began_s < LOOK_S:
            return
        found = _part_at_work(sys._current_frames().get(self._thread), policy)
        if found and self._policy is policy and self._began_s == began_s:
            self.seen = found


def _watch(look: WeakMethod[Callable[[], None]]) -> None:
    while True:
        time.sleep(LOOK_S)
        there = look()
        if there is None:
            return
        there()
        del there


def _part_at_work(frame: FrameType | None, policy: Policy) -> str:
    """The innermost part among the callers, as in `order Late.top (late.py:12)`; empty if none."""
    parts: dict[int, str] = {id(rule): "leaving" for rule in policy.leaving}
    parts |= {id(policy.order): "order", id(policy.batching): "batching", id(policy.eviction): "eviction"}
    while frame is not None:
        kind = parts.get(id(frame.f_locals.get("self")))
        if kind is not None:
            code = frame.f_code
            return f"{kind} {code.co_qualname} ({code.co_filename}:{frame.f_lineno})"
        frame = frame.f_back
    return ""
