"""Headway's changes to vLLM's processes; uninstalling Headway undoes them.

A process that stock vLLM schedules gets three patches: front ends check hints, engines ignore them, and a configuration
that names Headway's scheduler is noticed. Only then do all other patches follow, here and in child processes.
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
"""Set to 1 to allow asynchronous scheduling on the CPU backend, where vLLM always disables it; for tests."""

SCHEDULES = "HEADWAY_SCHEDULES"
"""Set to 1 in the processes of a server with Headway's scheduler."""


def install() -> None:
    """Apply the patches that this process needs. vLLM may call this repeatedly, in every process.

    Also asks for AMX tiles (`cpu_tiles`), without which an engine under either scheduler may crash.
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
    """Apply everything for Headway's scheduler, in this process and in those that it starts."""
    os.environ[SCHEDULES] = "1"
    for feature in (LENGTHS, ENDINGS, STOP_STRINGS, EXPLAIN, METRICS, CPU_WAITS, CPU_CORES):
        works(feature)


def is_headways(vllm_config: Any) -> bool:
    """Whether the scheduler is Headway's, given by name, as on a command line, or as an object."""
    scheduler = getattr(getattr(vllm_config, "scheduler_config", None), "scheduler_cls", None)
    name = scheduler if isinstance(scheduler, str) else getattr(scheduler, "__module__", None)
    return str(name).startswith("headway.")


def notices_scheduler(create: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the making of a configuration: one that names Headway's scheduler triggers the other patches.

    Child processes follow the newest configuration.
    """

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
    """Remove our KV connector from a configuration in which it cannot work, before vLLM loads it into workers."""
    transfer = vllm_config.kv_transfer_config
    if transfer is not None and transfer.kv_connector == CONNECTOR and not works(SWAPS):
        vllm_config.kv_transfer_config = None


_DECODING: ContextVar[bool] = ContextVar("headway_decoding", default=False)
"""Whether a message from another process is being decoded."""


def leaves_hints(decode: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap decoding: hints in requests from other processes are left to the scheduler, which ends requests with bad
    ones.

    vLLM decodes requests on a thread without a `try`, so an exception there ends the engine. A client of vLLM's Rust
    front end, which knows no hints, could otherwise end the engine with one bad number.
    """

    def decode_message(self: Any, *args: Any, **kwargs: Any) -> Any:
        mark = _DECODING.set(True)
        try:
            return decode(self, *args, **kwargs)
        finally:
            _DECODING.reset(mark)

    return decode_message


def has_rust_front_end() -> bool:
    """Whether requests come from vLLM's Rust front end, which runs no Python."""
    from vllm import envs

    return bool(getattr(envs, "VLLM_USE_RUST_FRONTEND", False))


def checks_hints(check: Callable[[Any], None]) -> Callable[[Any], None]:
    """Extend vLLM's check of `vllm_xargs`, which runs when a front end makes a request's parameters."""
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
    """Wrap the CPU platform's settings: enable asynchronous scheduling again after it was disabled."""

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        settle(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = True

    return check_and_update_config


def overlooks_connector(settle: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Wrap the CPU platform's settings: ignore Headway's KV connector when cores are counted.

    vLLM's CPU backend reserves one core for the scheduler, and another if there is any KV connector, for Nixl's busy
    thread; if none would remain it reserves none. Headway's connector has no busy thread. Without this patch an engine
    with host memory would compute on fewer cores, or, on two cores, on both instead of one.
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
    """Ask the kernel for AMX tiles where the processor has them; otherwise their first use ends the process.

    vLLM's CPU attention uses tiles in bfloat16 and relies on oneDNN to ask, which does so only for larger products: a
    server whose first prompt had four tokens died of an illegal instruction. Threads and forks inherit the permission.
    """
    import torch

    if torch.cpu._is_amx_tile_supported():
        torch.cpu._init_amx()


RECHECK_MS = 1
"""Notifications can get lost; looking again after this time finds the message."""


def waits_asleep(wait: Callable[..., None]) -> Callable[..., None]:
    """Wrap waiting for messages: the scheduler's process and the workers sleep where vLLM lets them spin.

    For a second after each message vLLM polls for the next, yielding in between. On a CPU workers compute on all cores
    but one, so the scheduler spins on the core that the HTTP server needs. Yielding does not help: under Linux 6.18
    that server, and clients on the machine, had no time for up to two seconds.
    """

    def wait_asleep(self: Any, timeout_ms: int | None = None) -> None:
        spin_s, self.busy_loop_s = self.busy_loop_s, 0.0
        messages_come = monotonic() <= self.last_read + spin_s
        wait(self, RECHECK_MS if messages_come else timeout_ms)
        self.busy_loop_s = spin_s

    return wait_asleep
