"""Several servers of one model on this machine: what each is started with, and on which devices."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from headway.engine.machine import host_memory_bytes, is_cpu_build
from headway.engine.servers.generation_config import answer_limit
from headway.engine.servers.kept_instances import InstancesFolder, Start
from headway.engine.servers.server_command import (
    CPU_KV_CACHE_BYTES,
    HOST,
    KV_CACHE_FLAG,
    TRANSFER_FLAG,
    ServerCommand,
    chooses_kv_cache,
    server_command,
)
from headway.engine.servers.server_process import GRACE_S, LAUNCHER, Server, ServerProcess, put_aside
from headway.engine.servers.vllm_flags import is_given, parse_vllm_flags, value_of
from headway.engine.settings import EngineSettings
from headway.errors import ConfigError, UpstreamError
from headway.routing.pools import DECODE, PREFILL, STAGES

CORES_VARIABLE = "VLLM_CPU_OMP_THREADS_BIND"
"""vLLM: the cores of each worker, `0,1|2,3` for two workers of two cores."""

KEY_VARIABLE = "VLLM_API_KEY"
"""vLLM: a key that a server asks for. Its flag `--api-key` goes before it, and shows the key to every user here."""

GPUS_VARIABLE = "CUDA_VISIBLE_DEVICES"

_TOPOLOGY = Path("/sys/devices/system/cpu")
_NVIDIA_SMI_S = 30.0

Device = TypeVar("Device")


@dataclass(frozen=True, slots=True)
class Binding:
    """What each instance's environment says of its devices, in order; the same for people, and what they should know.

    `environments` and `shown` are as long as there are instances, or empty where nothing is bound.
    """

    environments: tuple[Mapping[str, str], ...] = ()
    shown: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def environment(self, index: int) -> Mapping[str, str]:
        """Variables of one instance; none where nothing is bound."""
        return self.environments[index] if self.environments else {}


@dataclass(frozen=True, slots=True)
class Workers:
    """Instances on this machine and how many workers (tensor x pipeline x data parallel) each has."""

    instances: int
    each: int = 1
    shares_memory: bool = field(default=False, kw_only=True)
    """Whether the user said how much GPU memory an instance takes, so that two may fit on one GPU."""

    @property
    def total(self) -> int:
        """Workers of all instances."""
        return self.instances * self.each


def bind_cores(workers: Workers, cores: Sequence[int]) -> Binding:
    """Shares the cores out among instances, and each one's share among its workers.

    As vLLM does for one server, a worker of two cores or more leaves its last one to the scheduler and the API server.
    With fewer cores than workers they take turns at sharing. Raises ConfigError without any core.
    """
    if not cores:
        raise ConfigError("no core of this machine may be used; accepted: at least one")
    shares = [_without_last(share) for share in dealt(cores, workers.total)]
    lists = [",".join(map(str, share)) for share in shares]
    each = [lists[at : at + workers.each] for at in range(0, workers.total, workers.each)]
    short = workers.total - len(cores)
    warning = (
        f"{workers.total} workers share {len(cores)} cores, so they slow one another down; "
        "accepted as it is, but as many instances as cores serve more"
    )
    return Binding(
        tuple({CORES_VARIABLE: "|".join(workers_cores)} for workers_cores in each),
        tuple(f"core{'s' if len(one) > 1 or ',' in one[0] else ''} {' and '.join(one)}" for one in each),
        (warning,) if short > 0 else (),
    )


def bind_gpus(workers: Workers, gpus: Sequence[str]) -> Binding:
    """Shares the GPUs out among instances, as many to each as it has workers.

    Raises ConfigError if there are too few, unless the user said how much of a GPU's memory each takes.
    """
    if workers.total <= len(gpus):
        shares = [gpus[at : at + workers.each] for at in range(0, workers.total, workers.each)]
    elif workers.shares_memory and workers.each <= len(gpus):
        turns = len(gpus) // workers.each
        starts = [index % turns * workers.each for index in range(workers.instances)]
        shares = [gpus[at : at + workers.each] for at in starts]
    else:
        raise ConfigError(
            f"{workers.instances} instances of {workers.each} GPU{'s' if workers.each > 1 else ''} each need "
            f"{workers.total}, and there are {len(gpus)} here; accepted: fewer instances, or, for several on one GPU, "
            "the share of memory that each takes (-- --gpu-memory-utilization 0.4)"
        )
    return Binding(
        tuple({GPUS_VARIABLE: ",".join(share)} for share in shares),
        tuple(f"GPU {', '.join(share)}" for share in shares),
        ("instances share GPUs, so they slow one another down",) if workers.total > len(gpus) else (),
    )


def dealt(devices: Sequence[Device], hands: int) -> list[Sequence[Device]]:
    """Neighbouring devices to each of so many hands, as evenly as may be; one each in turn where there are fewer.

    Every device is dealt, and no hand is empty; a device is in two hands only where there are fewer devices.
    """
    if len(devices) < hands:
        return [[devices[hand % len(devices)]] for hand in range(hands)]
    starts = [hand * len(devices) // hands for hand in range(hands + 1)]
    return [devices[start:end] for start, end in pairwise(starts)]


def usable_cores() -> list[int]:
    """One logical CPU of each physical core that this process may use; those of one socket are neighbours."""
    cores: dict[tuple[str, str], int] = {}
    mine = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    for cpu in sorted(mine):
        cores.setdefault((_topology(cpu, "physical_package_id"), _topology(cpu, "thread_siblings_list")), cpu)
    return [cpu for (_, _), cpu in sorted(cores.items(), key=lambda core: (core[0][0], core[1]))]


def usable_gpus() -> list[str] | None:
    """The GPUs that this process may use, by index or by name; None where that cannot be told."""
    named = os.environ.get(GPUS_VARIABLE)
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    words = [command, "--query-gpu=index", "--format=csv,noheader"]
    try:
        told = subprocess.run(words, capture_output=True, text=True, timeout=_NVIDIA_SMI_S, check=True)
    except (subprocess.SubprocessError, OSError):
        return None
    return told.stdout.split()


def _topology(cpu: int, fact: str) -> str:
    """What Linux says of where a CPU is; where it says nothing, every CPU is a core of its own."""
    try:
        return (_TOPOLOGY / f"cpu{cpu}" / "topology" / fact).read_text().strip()
    except OSError:
        return str(cpu) if fact == "thread_siblings_list" else ""


def _without_last(share: Sequence[int]) -> Sequence[int]:
    return share[:-1] if len(share) > 1 else share


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
    where the search for ports begins. With `api_key` they ask for that key. With a `folder` they outlive this process,
    and those that run are found there. `answer_limit`: see `generation_config`.
    """

    def __init__(
        self,
        plan: InstancesPlan,
        binding: Binding,
        first_port: int,
        program: Sequence[str] = LAUNCHER,
        *,
        api_key: str | None = None,
        folder: InstancesFolder | None = None,
    ) -> None:
        self.binding = binding
        self.folder = folder
        self.answer_limit = answer_limit(plan.model, plan.vllm_flags)
        self._key = {} if api_key is None else {KEY_VARIABLE: api_key}
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

    def start(self, index: int, name: str, pool: str) -> Server:
        """Start the instance; its output is shown under its name. Raises UpstreamError if no port is free.

        What an earlier one of that name has recorded is kept under another name. With a folder the instance is started
        only if it does not run, and its output goes there.
        """
        if self.folder is not None:
            prepare = partial(self._prepared_port, index, name, pool)
            return self.folder.find_or_start(name, self._start(index, name, pool), prepare)
        start, port = self._start(index, name, pool), self._prepared_port(index, name, pool, set())
        return ServerProcess(
            start.command.on_port(port).arguments,
            (HOST, port),
            environment=start.environment,
            label=name,
            grace_s=GRACE_S + start.command.drain_s,
            program=start.program,
        )

    def check_running(self, places: Sequence[tuple[str, str]]) -> None:
        """Raise ConfigError if instances run in the folder that are not these, each a name and a pool."""
        if self.folder is not None:
            self.folder.check(
                {name: self._start(index, name, pool) for index, (name, pool) in enumerate(places)}
            )

    def _start(self, index: int, name: str, pool: str) -> Start:
        environment = {**self.binding.environment(index), **self._plan.environment(index), **self._key}
        return Start(self._program, self.prepare(name, pool), environment)

    def _prepared_port(self, index: int, name: str, pool: str, others: set[int]) -> int:
        """A free port, once what an earlier instance has recorded is put aside."""
        put_aside(self.prepare(name, pool).settings.records)
        self._ports[index] = self._port(index, others)
        return self._ports[index]

    def _port(self, index: int, others: set[int]) -> int:
        """A free port, the instance's own from before if possible.

        Another process may take it first. The server then ends, and is started again on another port.
        """
        taken = others | {port for other, port in self._ports.items() if other != index}
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
