"""What Headway changes in vLLM's processes, which uninstalling it undoes.

A process that stock vLLM schedules gets three patches: hints are checked in front ends, left alone in engines, and a
configuration that names Headway's scheduler is noticed. Only with that scheduler do all others follow, here and in
child processes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextvars import ContextVar
from time import monotonic
from typing import Any

from headway.core.hints import read_hints
from headway.engine.host_kv import CONNECTOR
from headway.engine.vllm.seams import (
    CPU_ASYNC,
    CPU_CORES,
    CPU_TILES,
    CPU_WAITS,
    ENDINGS,
    EXPLAIN,
    HINTS,
    LENGTHS,
    METRICS,
    NOTICING,
    STOP_STRINGS,
    SWAPS,
    works,
)
from headway.errors import ConfigError

CPU_ASYNC_SWITCH = "HEADWAY_CPU_ASYNC"
"""Set to 1 to run asynchronous scheduling on the CPU backend, where vLLM always turns it off; for tests."""

SCHEDULES = "HEADWAY_SCHEDULES"
"""Set to 1 for the processes of a server whose scheduler is Headway's."""


def install() -> None:
    """Put in what this process needs; called in every vLLM process, as often as vLLM likes.

    Without the tiles, which are a permission and not a patch, an engine of either scheduler may end (`cpu_tiles`).
    """
    works(HINTS)
    works(NOTICING)
    if works(CPU_TILES):
        ask_for_tiles()
    if os.environ.get(CPU_ASYNC_SWITCH) == "1":
        works(CPU_ASYNC)
    if os.environ.get(SCHEDULES) == "1":
        schedule_here()


def schedule_here() -> None:
    """Put in all that goes with Headway's scheduler, in this process and in those that it starts."""
    os.environ[SCHEDULES] = "1"
    for feature in (LENGTHS, ENDINGS, STOP_STRINGS, EXPLAIN, METRICS, CPU_WAITS, CPU_CORES):
        works(feature)


def is_headways(vllm_config: Any) -> bool:
    """Whether the scheduler is Headway's: named, as on a command line, or given as an object."""
    scheduler = getattr(getattr(vllm_config, "scheduler_config", None), "scheduler_cls", None)
    name = scheduler if isinstance(scheduler, str) else getattr(scheduler, "__module__", None)
    return str(name).startswith("headway.")


def notices_scheduler(create: Callable[..., Any]) -> Callable[..., Any]:
    """Put in the rest once a configuration names Headway's scheduler; the newest one made counts for children."""

    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        vllm_config = create(self, *args, **kwargs)
        if is_headways(vllm_config):
            schedule_here()
            _check_connector(vllm_config)
        else:
            os.environ.pop(SCHEDULES, None)
        return vllm_config

    return create_engine_config


def _check_connector(vllm_config: Any) -> None:
    """Drop our KV connector where it cannot work, before vLLM loads it into workers."""
    transfer = vllm_config.kv_transfer_config
    if transfer is not None and transfer.kv_connector == CONNECTOR and not works(SWAPS):
        vllm_config.kv_transfer_config = None


_DECODING: ContextVar[bool] = ContextVar("headway_decoding", default=False)
"""Whether a message from another process is being decoded."""


def leaves_hints(decode: Callable[..., Any]) -> Callable[..., Any]:
    """Leave the hints of requests that another process sends to the scheduler, which ends a request with a bad one.

    vLLM decodes requests in a thread that has no `try` around it: what raises there ends the engine. So a client of
    vLLM's Rust front end, which knows no hints, could end it by one bad number.
    """

    def decode_message(self: Any, *args: Any, **kwargs: Any) -> Any:
        mark = _DECODING.set(True)
        try:
            return decode(self, *args, **kwargs)
        finally:
            _DECODING.reset(mark)

    return decode_message


def has_rust_front_end() -> bool:
    """Whether requests come from vLLM's Rust front end, in which no Python runs."""
    from vllm import envs

    return bool(getattr(envs, "VLLM_USE_RUST_FRONTEND", False))


def checks_hints(check: Callable[[Any], None]) -> Callable[[Any], None]:
    """Extend vLLM's own check of `vllm_xargs`, which runs as a front end makes a request's parameters."""
    from vllm.exceptions import VLLMValidationError

    def verify_extra_args(self: Any) -> None:
        check(self)
        if _DECODING.get():
            return
        try:
            read_hints(self.extra_args)
        except ConfigError as error:
            raise VLLMValidationError(str(error), parameter="vllm_xargs") from None

    return verify_extra_args


def keeps_async(settle: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Turn asynchronous scheduling on after the CPU platform has turned it off."""

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        settle(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = True

    return check_and_update_config


def overlooks_connector(settle: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Let an engine with Headway's KV connector compute on the cores that it would have without one.

    vLLM's CPU backend sets one core aside for the scheduler, and another one where there is any KV connector, for
    Nixl's busy thread; where that leaves none it sets none aside. Headway's connector has no busy thread. With host
    memory an engine would else compute on fewer cores, or on two cores on both instead of one.
    """

    def init(self: Any, config: Any) -> None:
        transfer = config.kv_transfer_config
        ours = transfer is not None and transfer.kv_connector == CONNECTOR
        config.kv_transfer_config = None if ours else transfer
        try:
            settle(self, config)
        finally:
            config.kv_transfer_config = transfer

    return init


def ask_for_tiles() -> None:
    """Ask the kernel for AMX tiles where the processor has them: without, the first use of one ends the process.

    vLLM's CPU attention uses them in bfloat16 and leaves the asking to oneDNN, which does it for larger products only:
    a server whose first prompt had four tokens died of an illegal instruction. Threads and forks inherit the answer.
    """
    import torch

    if torch.cpu._is_amx_tile_supported():
        torch.cpu._init_amx()


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
