"""The command of `headway serve`: vLLM's argument list from Headway's settings and the user's vLLM flags."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from headway.engine.demo_model import DEMO, DEMO_RANDOM, resolve_model
from headway.engine.machine import fastest_dtype, host_memory_bytes, is_cpu_build
from headway.engine.servers.vllm_flags import (
    VllmFlag,
    is_given,
    parse_vllm_flags,
    take_additional_config,
    value_of,
)
from headway.engine.settings import EngineSettings
from headway.errors import ConfigError
from headway.policies.presets import build_policy

SCHEDULER = "headway.engine.HeadwayScheduler"

HOST = "127.0.0.1"
"""Address of instances behind a gateway: only the gateway on this machine reaches them."""

WORKER_SLOTS = 256
"""Requests that an engine holds at once if only the batch width is given: vLLM's default for a small device."""

TRANSFER_FLAG = "--kv-transfer-config"
STARTS_CONNECTOR = (TRANSFER_FLAG, "--kv-offloading-size")
"""vLLM's flags that start a KV connector."""

KV_CACHE_FLAG = "--kv-cache-memory-bytes"
CPU_KV_CACHE_BYTES = 1 << 30
"""KV cache on a CPU, where vLLM would take nearly all memory. 1 GiB is 130,000 tokens of the demo model in float32."""


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """Arguments for vLLM's command line, the settings in them, and what was chosen for the user.

    `drain_s` is how long the server finishes running requests when it is stopped.
    """

    arguments: tuple[str, ...]
    settings: EngineSettings
    chosen: tuple[str, ...]
    drain_s: float

    def on_port(self, port: int) -> ServerCommand:
        """This command on another port."""
        at = self.arguments.index("--port") + 1
        return replace(self, arguments=(*self.arguments[:at], str(port), *self.arguments[at + 1 :]))


def server_command(
    model: str, settings: EngineSettings, address: tuple[str, int], vllm_flags: Sequence[str] = ()
) -> ServerCommand:
    """The command that starts vLLM for a model under these settings. Other vLLM flags are passed on unchanged.

    Raises ConfigError, before anything starts, for a policy, part, setting, model or flag that is not accepted, and if
    vLLM is not installed.
    """
    flags = parse_vllm_flags(vllm_flags)
    config, flags = take_additional_config(flags)
    config["headway"] = {**config.get("headway", {}), **_given(settings)}
    settings = EngineSettings.from_additional_config(config)
    build_policy(settings.preset())
    _check_slots(settings, flags)
    host, port = address
    chosen = _chosen(model, settings, flags)
    _check_lengths(settings)
    if settings.host_kv is not None:
        settings.host_kv.check_machine(host_memory_bytes())
    arguments = [
        *("serve", resolve_model(model), "--host", host, "--port", str(port)),
        *(word for flag in flags for word in flag.words),
        *(word for choice in chosen for word in choice),
        *("--scheduler-cls", SCHEDULER, "--additional-config", json.dumps(config)),
        *_connector(settings, flags),
    ]
    return ServerCommand(tuple(arguments), settings, tuple(map(" ".join, chosen)), _drain_s(flags))


def _drain_s(flags: Sequence[VllmFlag]) -> float:
    """How long vLLM finishes running requests, by its flags: whole seconds, 0 by default."""
    given = value_of(flags, "--shutdown-timeout") or "0"
    if not given.isdecimal():
        raise ConfigError(f"--shutdown-timeout is {given!r}; accepted: 0 or more whole seconds")
    return float(given)


def _connector(settings: EngineSettings, flags: Sequence[VllmFlag]) -> tuple[str, ...]:
    """The flag that starts the KV connector, if there is host memory for swaps; data-parallel engines share the
    memory.
    """
    host_kv = settings.host_kv
    if host_kv is None:
        return ()
    _refuse_second_connector(flags)
    if host_kv.gib is not None:
        host_kv = replace(host_kv, gib=host_kv.gib / _engines_here(flags))
    return (TRANSFER_FLAG, json.dumps(host_kv.transfer_config()))


def _refuse_second_connector(flags: Sequence[VllmFlag]) -> None:
    """Raise ConfigError if another package's KV connector is combined with Headway's host memory."""
    for flag in flags:
        name = flag.name.partition(".")[0]
        if any(len(name) > len("--kv-") and starts.startswith(name) for starts in STARTS_CONNECTOR):
            raise ConfigError(
                f"{name} starts a KV connector, and so does --host-kv-gib: both in one server are not supported; "
                "accepted: one of the two"
            )


def _engines_here(flags: Sequence[VllmFlag]) -> int:
    """How many of the server's data-parallel engines are on this machine."""
    for name, short in (("--data-parallel-size-local", "-dpl"), ("--data-parallel-size", "-dp")):
        given = value_of(flags, name) or value_of(flags, short)
        if given is not None and given.isdecimal() and int(given) > 0:
            return int(given)
    return 1


def _check_lengths(settings: EngineSettings) -> None:
    """Make the predictor once, if the settings name one, to find errors before the API servers start."""
    spec = settings.length_predictor()
    if spec is not None:
        from headway.engine.lengths.service import made_predictor

        made_predictor(spec, None if settings.length_model is None else Path(settings.length_model))


def _given(settings: EngineSettings) -> dict[str, Any]:
    """The settings that differ from their defaults, and always the policy."""
    defaults = asdict(EngineSettings())
    given = {name: value for name, value in asdict(settings).items() if value != defaults[name]}
    return {"policy": settings.policy, **given}


def _check_slots(settings: EngineSettings, flags: Sequence[VllmFlag]) -> None:
    slots = value_of(flags, "--max-num-seqs")
    width = settings.batch_width
    if slots is not None and width is not None and slots.isdecimal() and width > int(slots):
        raise ConfigError(
            f"--batch-width is {width} but --max-num-seqs leaves {slots} worker slots; accepted: "
            "a width up to the slots (more slots than width hold paused requests)"
        )


def _chosen(model: str, settings: EngineSettings, flags: Sequence[VllmFlag]) -> list[tuple[str, ...]]:
    """Flags that Headway adds because the user gave no value."""
    chosen: list[tuple[str, ...]] = []
    if model in (DEMO, DEMO_RANDOM) and not is_given(flags, "--served-model-name"):
        chosen.append(("--served-model-name", model))
    if settings.batch_width is not None and not is_given(flags, "--max-num-seqs"):
        chosen.append(("--max-num-seqs", str(max(WORKER_SLOTS, settings.batch_width))))
    if is_cpu_build():
        chosen += _chosen_for_cpu(flags)
    return chosen


def _chosen_for_cpu(flags: Sequence[VllmFlag]) -> list[tuple[str, ...]]:
    """Flags with which a CPU engine starts in seconds, and leaves memory to others."""
    chosen: list[tuple[str, ...]] = []
    if not is_given(flags, "--dtype"):
        chosen.append(("--dtype", fastest_dtype()))
    if not is_given(flags, "--max-model-len"):
        chosen.append(("--max-model-len", "auto"))
    if not is_given(flags, "--enforce-eager", "--compilation-config", "-cc", "-O", "--optimization-level"):
        chosen.append(("--enforce-eager",))
    if chooses_kv_cache(flags):
        chosen.append((KV_CACHE_FLAG, str(CPU_KV_CACHE_BYTES)))
    return chosen


def chooses_kv_cache(flags: Sequence[VllmFlag]) -> bool:
    """Whether Headway chooses the size of a CPU's KV cache, as the user did not."""
    sized = is_given(flags, KV_CACHE_FLAG, "--gpu-memory-utilization")
    return not sized and "VLLM_CPU_KVCACHE_SPACE" not in os.environ
