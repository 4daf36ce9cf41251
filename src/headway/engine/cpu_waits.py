"""How vLLM's processes wait for each other on the CPU backend."""

from __future__ import annotations

from functools import wraps
from time import monotonic
from typing import Any

RECHECK_MS = 1
"""Word of a message can get lost; then it is found by looking again."""


def wait_asleep_on_cpu() -> None:
    """Let the scheduler's process and the workers sleep until they have word of a message, where vLLM has them spin.

    For a second after each message vLLM has them look for the next over and over, and yield in between. On a CPU
    workers compute on all cores but one, so the scheduler spins on the core that the HTTP server needs. Yielding is no
    remedy: under Linux 6.18 that server, and clients on the machine, had no time for up to two seconds.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

    wait = SpinCondition.wait
    if getattr(wait, "is_asleep", False):
        return

    @wraps(wait)
    def wait_asleep(self: Any, timeout_ms: int | None = None) -> None:
        spin_s, self.busy_loop_s = self.busy_loop_s, 0.0
        messages_come = monotonic() <= self.last_read + spin_s
        wait(self, RECHECK_MS if messages_come else timeout_ms)
        self.busy_loop_s = spin_s

    wait_asleep.is_asleep = True  # type: ignore[attr-defined]
    SpinCondition.wait = wait_asleep
