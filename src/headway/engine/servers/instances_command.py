"""Several servers of one model on this machine: what each is started with, and on which devices."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from headway.engine.servers.core_binding import (
    CORES_VARIABLE,
    Binding,
    Workers,
    bind_cores,
    bind_gpus,
    usable_cores,
    usable_gpus,
)
from headway.engine.servers.kept_records import put_aside
from headway.engine.servers.server_command import (
    CPU_KV_CACHE_BYTES,
    KV_CACHE_FLAG,
    TRANSFER_FLAG,
    ServerCommand,
    chooses_kv_cache,
    host_memory_bytes,
    is_cpu_build,
    server_command,
)
from headway.engine.servers.server_process import GRACE_S, LAUNCHER, ServerProcess
from headway.engine.servers.vllm_flags import is_given, parse_vllm_flags, value_of
from headway.engine.settings import EngineSettings
from headway.errors import ConfigError, UpstreamError
from headway.routing.pools import DECODE, PREFILL, STAGES

HOST = "127.0.0.1"
"""Instances are reached through the gateway alone."""

_QUIET = ("--disable-access-log-for-endpoints", "/health")
"""The gateway asks every second."""

NIXL_PORT_VARIABLE, NIXL_PORT = "VLLM_NIXL_SIDE_CHANNEL_PORT", "5600"
"""Where a NIXL instance tells others of its KV; one port for each data-parallel engine."""

_STAGE_CONFIG = {
    PREFILL: {"kv_role": "kv_producer"},
    DECODE: {"kv_role": "kv_consumer", "kv_load_failure_policy": "recompute"},
}
"""Of `--kv-transfer-config`: KV that does not arrive is computed again, where vLLM's default fails the request."""
_OTHER_PROTOCOLS = ("MooncakeConnector", "MoRIIOConnector")
"""Their decode side needs addresses that the gateway would have to know by itself."""

_GIB = 1 << 30
_LAST_PORT = 65535
_WORKER_FLAGS = (
    ("--tensor-parallel-size", "-tp"),
    ("--pipeline-parallel-size", "-pp"),
    ("--data-parallel-size", "-dp"),
    ("--prefill-context-parallel-size", "-pcp"),
)


@dataclass(frozen=True, slots=True)
class InstancesPlan:
    """What is the same for all instances: the model, vLLM's flags, and each pool's settings (pool -> settings)."""

    model: str
    settings: Mapping[str, EngineSettings]
    vllm_flags: tuple[str, ...] = ()

    def command(self, name: str, pool: str) -> ServerCommand:
        """How the instance of that name is started; its port comes later. Raises ConfigError as `server_command`."""
        settings = self.settings[pool]
        own = replace(
            settings,
            records=named_file(settings.records, name),
            length_model=named_file(settings.length_model, name),
        )
        words = _for_stage(self.vllm_flags, pool) if pool in STAGES else self.vllm_flags
        quiet = () if is_given(parse_vllm_flags(self.vllm_flags), _QUIET[0]) else _QUIET
        return server_command(self.model, own, (HOST, 0), (*words, *quiet))

    def environment(self, index: int) -> Mapping[str, str]:
        """Ports beside the server's own: instances of two stages on one machine listen for one another's transfers."""
        if not self.settings.keys() & STAGES:
            return {}
        first = os.environ.get(NIXL_PORT_VARIABLE, NIXL_PORT)
        return {NIXL_PORT_VARIABLE: str(_count(NIXL_PORT_VARIABLE, first) + index * self.workers(1).each)}

    def workers(self, instances: int) -> Workers:
        """How many devices so many instances of this need."""
        flags = parse_vllm_flags(self.vllm_flags)
        each = 1
        for name, short in _WORKER_FLAGS:
            given = value_of(flags, name) or value_of(flags, short)
            each *= 1 if given is None else _count(name, given)
        sized = is_given(flags, "--gpu-memory-utilization", "--kv-cache-memory-bytes")
        return Workers(instances, each, shares_memory=sized)


class LocalInstances:
    """Starts the instances of a plan, each on devices of its own and on a port that is free then.

    `index` is an instance's place among all, and stays when it is started again under another name. `first_port` is
    where the search for ports begins.
    """

    def __init__(
        self,
        plan: InstancesPlan,
        binding: Binding,
        first_port: int,
        program: Sequence[str] = LAUNCHER,
    ) -> None:
        self.binding = binding
        self._plan = plan
        self._first_port = first_port
        self._program = program
        self._ports: dict[int, int] = {}
        self._commands: dict[tuple[str, str], ServerCommand] = {}

    def prepare(self, name: str, pool: str) -> ServerCommand:
        """Check what an instance will be started with, once; may take seconds. Raises ConfigError."""
        key = (name, pool)
        if key not in self._commands:
            self._commands[key] = self._plan.command(name, pool)
        return self._commands[key]

    def start(self, index: int, name: str, pool: str) -> ServerProcess:
        """Start the instance; its output is shown under its name. Raises UpstreamError if no port is free.

        What an earlier one of that name has recorded is kept under another name.
        """
        command = self.prepare(name, pool)
        put_aside(command.settings.records)
        self._ports[index] = port = self._port(index)
        return ServerProcess(
            command.on_port(port).arguments,
            (HOST, port),
            environment={**self.binding.environment(index), **self._plan.environment(index)},
            label=name,
            grace_s=GRACE_S + command.drain_s,
            program=self._program,
        )

    def _port(self, index: int) -> int:
        """A port that nobody has, the instance's own from before if it is still free.

        Somebody may take it before the server does, which then ends, and is started again on another.
        """
        taken = {port for other, port in self._ports.items() if other != index}
        before = [self._ports[index]] if index in self._ports else []
        for port in chain(before, range(self._first_port, _LAST_PORT + 1)):
            if port not in taken and _is_free(port):
                return port
        raise UpstreamError(f"no port from {self._first_port} on is free on {HOST}")


def _for_stage(words: Sequence[str], pool: str) -> tuple[str, ...]:
    """vLLM's flags with the part of this pool in `--kv-transfer-config`, as far as the user did not say it.

    Raises ConfigError without a KV connector, and for one whose transfers take more than passing parameters on.
    """
    flags = parse_vllm_flags(words)
    text = value_of(flags, TRANSFER_FLAG)
    accepted = f"""-- {TRANSFER_FLAG} '{{"kv_connector": "NixlConnector"}}'"""
    if text is None:
        raise ConfigError(
            f"pools {PREFILL} and {DECODE} need a KV connector between them; accepted: {accepted}"
        )
    try:
        config = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ConfigError(f"{TRANSFER_FLAG} is {text!r} ({error}); accepted: one JSON object") from None
    if config.get("kv_connector") in _OTHER_PROTOCOLS:
        raise ConfigError(
            f"{config['kv_connector']} wants more of a gateway than to pass kv_transfer_params on; accepted: {accepted}"
        )
    rest = [word for flag in flags if flag.name != TRANSFER_FLAG for word in flag.words]
    return (*rest, TRANSFER_FLAG, json.dumps(_STAGE_CONFIG[pool] | config))


def bind_instances(plan: InstancesPlan, instances: int) -> Binding:
    """Devices for so many instances: cores where vLLM computes on the CPU, GPUs elsewhere.

    What the user bound stays as it is. Raises ConfigError if there are too few GPUs.
    """
    workers = plan.workers(instances)
    if is_cpu_build():
        return Binding() if CORES_VARIABLE in os.environ else bind_cores(workers, usable_cores())
    gpus = usable_gpus()
    if gpus is None:
        return Binding(warnings=("the GPUs of this machine are not known, so instances are bound to none",))
    return bind_gpus(workers, gpus)


def check_memory(settings: EngineSettings, instances: int) -> None:
    """Raise ConfigError if the host memory for KV of all instances is more than the machine has."""
    host_kv = settings.host_kv
    if host_kv is not None and host_kv.gib is not None:
        replace(host_kv, gib=host_kv.gib * instances).check_machine(host_memory_bytes())


def check_kv_caches(plan: InstancesPlan, instances: int) -> None:
    """Raise ConfigError if the KV caches of all instances, which on a CPU lie in its memory, are more than it has.

    Only what was chosen here, or was given in bytes, is known.
    """
    flags = parse_vllm_flags(plan.vllm_flags)
    given = value_of(flags, KV_CACHE_FLAG)
    known = given.isdecimal() if given is not None else chooses_kv_cache(flags)
    if not is_cpu_build() or not known:
        return
    each = CPU_KV_CACHE_BYTES if given is None else int(given)
    workers, memory = plan.workers(instances).total, host_memory_bytes()
    if workers * each > memory:
        raise ConfigError(
            f"{instances} instances would have {workers} KV caches of {each / _GIB:.3g} GiB, and this machine has "
            f"{memory / _GIB:.3g} GiB of memory in all; accepted: fewer instances, or less for each "
            f"(-- {KV_CACHE_FLAG} N)"
        )


def named_file(file: str | None, name: str) -> str | None:
    """One instance's own file: `served.jsonl` of `lp-0` is `served-lp-0.jsonl`."""
    return None if file is None else str((path := Path(file)).with_name(f"{path.stem}-{name}{path.suffix}"))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _count(flag: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{flag} is {text!r}; accepted: 1 or more")
    return int(text)
