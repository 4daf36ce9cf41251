"""How vLLM's processes wait for each other on the CPU backend."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

RECHECK_MS = 1
"""Word of a message can get lost; then it is found by looking again."""


def waits_asleep(wait: Callable[..., None]) -> Callable[..., None]:
    """Let the scheduler's process and the workers sleep until they have word of a message, where vLLM has them spin.

    For a second after each message vLLM has them look for the next over and over, and yield in between. On a CPU
    workers compute on all cores but one, so the scheduler spins on the core that the HTTP server needs. Yielding is no
    remedy: under Linux 6.18 that server, and clients on the machine, had no time for up to two seconds.
    """

    def wait_asleep(self: Any, timeout_ms: int | None = None) -> None:
        spin_s, self.busy_loop_s = self.busy_loop_s, 0.0
        messages_come = monotonic() <= self.last_read + spin_s
        wait(self, RECHECK_MS if messages_come else timeout_ms)
        self.busy_loop_s = spin_s

    return wait_asleep
