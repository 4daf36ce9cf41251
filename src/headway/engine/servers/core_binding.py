"""Which cores and which GPUs each of several instances on one machine computes on."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from headway.errors import ConfigError

CORES_VARIABLE = "VLLM_CPU_OMP_THREADS_BIND"
"""vLLM: the cores of each worker, `0,1|2,3` for two workers of two cores."""

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
