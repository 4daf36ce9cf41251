"""Several servers of one model on this machine: the command and the devices of each."""

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
"""vLLM's variable for the cores of each worker: `0,1|2,3` for two workers of two cores."""

KEY_VARIABLE = "VLLM_API_KEY"
"""vLLM's variable for a server's API key. The flag `--api-key` has precedence, and is visible to every local user."""

GPUS_VARIABLE = "CUDA_VISIBLE_DEVICES"

_TOPOLOGY = Path("/sys/devices/system/cpu")
_NVIDIA_SMI_S = 30.0

Device = TypeVar("Device")


@dataclass(frozen=True, slots=True)
class Binding:
    """The devices of each instance as environment variables, the same for people, and remarks.

    `environments` and `shown` have an entry for each instance, or are empty if nothing is bound.
    """

    environments: tuple[Mapping[str, str], ...] = ()
    shown: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def environment(self, index: int) -> Mapping[str, str]:
        """Variables of one instance; none if nothing is bound."""
        return self.environments[index] if self.environments else {}


@dataclass(frozen=True, slots=True)
class Workers:
    """Instances on this machine, and how many workers (tensor x pipeline x data parallel) each has."""

    instances: int
    each: int = 1
    shares_memory: bool = field(default=False, kw_only=True)
    """Whether the user limited the GPU memory of an instance, so that two may share a GPU."""

    @property
    def total(self) -> int:
        """Workers of all instances."""
        return self.instances * self.each


def bind_cores(workers: Workers, cores: Sequence[int]) -> Binding:
    """Divide the cores among instances, and each share among its workers.

    As in vLLM, a worker with two cores or more leaves its last one to the scheduler and the API server. If there are
    fewer cores than workers, workers share cores. Raises ConfigError if there is no core.
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
    """Divide the GPUs among instances, one for each worker.

    Raises ConfigError if there are too few, unless the user limited each instance's share of GPU memory.
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
    """Deal neighbouring devices to `hands` hands as evenly as possible.

    Every device is dealt and no hand is empty. With fewer devices than hands, devices are dealt repeatedly, one each.
    """
    if len(devices) < hands:
        return [[devices[hand % len(devices)]] for hand in range(hands)]
    starts = [hand * len(devices) // hands for hand in range(hands + 1)]
    return [devices[start:end] for start, end in pairwise(starts)]


def usable_cores() -> list[int]:
    """One logical CPU of each usable physical core; those of one socket are neighbours."""
    cores: dict[tuple[str, str], int] = {}
    mine = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    for cpu in sorted(mine):
        cores.setdefault((_topology(cpu, "physical_package_id"), _topology(cpu, "thread_siblings_list")), cpu)
    return [cpu for (_, _), cpu in sorted(cores.items(), key=lambda core: (core[0][0], core[1]))]


def usable_gpus() -> list[str] | None:
    """The GPUs that this process may use, by index or name; None if that is unknown."""
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
    """What Linux says about the place of a CPU; without an answer every CPU counts as its own core."""
    try:
        return (_TOPOLOGY / f"cpu{cpu}" / "topology" / fact).read_text().strip()
    except OSError:
        return str(cpu) if fact == "thread_siblings_list" else ""


def _without_last(share: Sequence[int]) -> Sequence[int]:
    return share[:-1] if len(share) > 1 else share


_QUIET = ("--disable-access-log-for-endpoints", "/health")
"""The gateway polls health every second, so access logs leave it out."""

NIXL_PORT_VARIABLE, NIXL_PORT = "VLLM_NIXL_SIDE_CHANNEL_PORT", "5600"
"""Where a NIXL instance serves its KV to others; each data-parallel engine has its own port."""

_STAGE_CONFIG = {
    PREFILL: {"kv_role": "kv_producer"},
    DECODE: {"kv_role": "kv_consumer", "kv_load_failure_policy": "recompute"},
}
"""Additions to `--kv-transfer-config`: compute missing KV again, where vLLM's default fails the request."""
_OTHER_PROTOCOLS = ("MooncakeConnector", "MoRIIOConnector")
"""Connectors whose decode side needs addresses that the gateway cannot supply."""

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
    """What all instances share: the model, vLLM's flags, and the settings of each pool."""

    model: str
    settings: Mapping[str, EngineSettings]
    vllm_flags: tuple[str, ...] = ()

    def command(self, name: str, pool: str) -> ServerCommand:
        """The command of an instance, still without its port. Raises ConfigError as `server_command` does."""
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
        """Extra ports of an instance: on one machine, instances of two stages listen for each other's transfers."""
        if not self.settings.keys() & STAGES:
            return {}
        first = os.environ.get(NIXL_PORT_VARIABLE, NIXL_PORT)
        return {NIXL_PORT_VARIABLE: str(_count(NIXL_PORT_VARIABLE, first) + index * self.workers(1).each)}

    def workers(self, instances: int) -> Workers:
        """How many devices this number of instances needs."""
        flags = parse_vllm_flags(self.vllm_flags)
        each = 1
        for name, short in _WORKER_FLAGS:
            given = value_of(flags, name) or value_of(flags, short)
            each *= 1 if given is None else _count(name, given)
        sized = is_given(flags, "--gpu-memory-utilization", "--kv-cache-memory-bytes")
        return Workers(instances, each, shares_memory=sized)


class LocalInstances:
    """Starts the instances of a plan, each on its own devices and a free port.

    `index` is an instance's position, and stays when it is restarted under another name. The search for ports begins at
    `first_port`. With `api_key` the instances demand that key. With a `folder` they outlive this process, and running
    ones are found there. `answer_limit`: see `generation_config`.
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
        """Check an instance's command once; may take seconds. Raises ConfigError."""
        key = (name, pool)
        if key not in self._commands:
            self._commands[key] = self._plan.command(name, pool)
        return self._commands[key]

    def start(self, index: int, name: str, pool: str) -> Server:
        """Start an instance and show its output under its name. Raises UpstreamError if no port is free.

        Records of an earlier instance with this name are renamed. With a folder, an instance that already runs is not
        started again, and the output goes to the folder.
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
        """Raise ConfigError if the folder has running instances other than these, each a name and a pool."""
        if self.folder is not None:
            self.folder.check(
                {name: self._start(index, name, pool) for index, (name, pool) in enumerate(places)}
            )

    def _start(self, index: int, name: str, pool: str) -> Start:
        environment = {**self.binding.environment(index), **self._plan.environment(index), **self._key}
        return Start(self._program, self.prepare(name, pool), environment)

    def _prepared_port(self, index: int, name: str, pool: str, others: set[int]) -> int:
        """A free port, after the records of an earlier instance were renamed."""
        put_aside(self.prepare(name, pool).settings.records)
        self._ports[index] = self._port(index, others)
        return self._ports[index]

    def _port(self, index: int, others: set[int]) -> int:
        """A free port, the instance's earlier one if possible.

        Another process may take it in between. The server then ends, and is started again on another port.
        """
        taken = others | {port for other, port in self._ports.items() if other != index}
        before = [self._ports[index]] if index in self._ports else []
        for port in chain(before, range(self._first_port, _LAST_PORT + 1)):
            if port not in taken and _is_free(port):
                return port
        raise UpstreamError(f"no port from {self._first_port} on is free on {HOST}")


def _for_stage(words: Sequence[str], pool: str) -> tuple[str, ...]:
    """vLLM's flags, with this pool's role added to `--kv-transfer-config` where the user left it out.

    Raises ConfigError without a KV connector, and for a connector that needs more than forwarded parameters.
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
    """Devices for this number of instances: cores for vLLM's CPU build, else GPUs.

    Bindings of the user stay as they are. Raises ConfigError if there are too few GPUs.
    """
    workers = plan.workers(instances)
    if is_cpu_build():
        return Binding() if CORES_VARIABLE in os.environ else bind_cores(workers, usable_cores())
    gpus = usable_gpus()
    if gpus is None:
        return Binding(warnings=("the GPUs of this machine are not known, so instances are bound to none",))
    return bind_gpus(workers, gpus)


def check_memory(settings: EngineSettings, instances: int) -> None:
    """Raise ConfigError if all instances together want more host memory for KV than the machine has."""
    host_kv = settings.host_kv
    if host_kv is not None and host_kv.gib is not None:
        replace(host_kv, gib=host_kv.gib * instances).check_machine(host_memory_bytes())


def check_kv_caches(plan: InstancesPlan, instances: int) -> None:
    """Raise ConfigError if the KV caches of all instances, which on a CPU lie in main memory, exceed that memory.

    Counts only sizes chosen here, or given in bytes.
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
    """One instance's own file name: `served.jsonl` becomes `served-lp-0.jsonl` for `lp-0`."""
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
