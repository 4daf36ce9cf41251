"""How vLLM's processes wait for each other on the CPU backend."""

from __future__ import annotations

import time

NAP_S = 1e-6
"""With what the kernel adds about 0.08 ms, of steps of 5 ms and more."""


def wait_asleep_on_cpu() -> None:
    """Let the scheduler's process and the workers sleep while they wait for each other, where vLLM has them spin.

    They look for a message over and over and yield in between, for a second after the last. On a CPU workers compute
    on all cores but one, so the scheduler spins on the core that the HTTP server needs. Yielding is no remedy: under
    Linux 6.18 that server, and clients on the machine, had no time for up to two seconds, while requests were late.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.distributed.device_communicators import shm_broadcast

    shm_broadcast.sched_yield = _nap


def _nap() -> None:
    time.sleep(NAP_S)
