"""Data sheets of the catalogue's GPUs, and the numbers that were taken rather than fitted, each with its source."""

from __future__ import annotations

from dataclasses import dataclass

SMALL_START_S = 2.4e-6
"""Launch of a small kernel: norm, rotation and activation of one token on either RTX, 1.9 to 2.7 us."""
SMALL_EFFICIENCY = {"rtx": 1.4, "datacentre": 0.85}
"""Their bytes over peak bandwidth: LLMServingSim's 2048 tokens (more than 1: the cache helps), and the
geometric mean of that with Vidur's unfused kernels on the A100 and H100 (0.5)."""
EXPERT_MEMORY_EFFICIENCY, EXPERT_COMPUTE_EFFICIENCY = 0.82, 0.57
"""Qwen3-30B-A3B's block on the RTX PRO 6000: 128 experts read in 818 us; 2048 tokens on 8 experts in 578 us."""
SAMPLER_S, SAMPLER_JOB_S = 2e-5, 5e-7
"""LLMServingSim's sampler: 12 to 25 us for one sequence, 64 to 120 us for 128."""
HOST_COPY_START_S = 1e-5
HOST_COPY_SHARE = 0.8
"""Of the host link's rate each way; assumed, no published table of copies is at hand. `headway profile` measures it."""

MULTIPROCESSORS = {"a100": 108, "l40s": 142}
MIXED_TILES = 1.3
"""Devices on FlashAttention 2 whose mixed steps nobody measured: a decode's tile beside prompts, as on the RTX
PRO 6000 (1.2 to 1.5 tiles shared by all processors)."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """A data sheet: peaks, memory, the host link each way, and whose kernels and collectives the device has."""

    name: str
    title: str
    kernels: str
    flops_per_s: float
    bytes_per_s: float
    memory_bytes: int
    host_bytes_per_s: float
    step_overhead_s: float
    all_reduce: str = ""
    link_ratio: float = 1.0
    derived_from: str | None = None
    ratios: str = ""
    ungraphed_s: float = 0.0


STEP_OVERHEAD_S = 2e-4
"""What a device waits for between steps however the host is scheduled: input copies and the graph's launch.
Published times show only its sum with the host's part (0.6 ms for one request); this share of it is assumed."""
UNGRAPHED_S = 6e-3
"""What a step of more tokens than CUDA graphs hold takes beyond its kernels on an H100 under vLLM 0.32, roughly, from
the seconds of each answer of four streams (docs/gpu.md). Lone prompts of more than 600 tokens on another one under vLLM
0.11 take 5 to 8 ms more, steps of 64 tokens there nothing. Taken for the H200 too, which is the same chip with more
memory; for the others nobody measured it."""
SHEETS = (
    Sheet("a100-80g", "A100 SXM 80 GB", "a100", 312e12, 2039e9, 80 * 2**30, 32e9, STEP_OVERHEAD_S),
    Sheet(
        "h100", "H100 SXM 80 GB", "h100", 989e12, 3350e9, 80 * 2**30, 64e9, STEP_OVERHEAD_S,
        ungraphed_s=UNGRAPHED_S,
    ),
    Sheet(
        "h200", "H200 SXM 141 GB", "h200", 989e12, 4800e9, 141 * 2**30, 64e9, STEP_OVERHEAD_S,
        ungraphed_s=UNGRAPHED_S,
    ),
    Sheet("b200", "B200 SXM 180 GB", "b200", 2250e12, 7700e9, 180 * 2**30, 128e9, STEP_OVERHEAD_S),
    Sheet("l40s", "L40S 48 GB", "l40s", 362.05e12, 864e9, 45 * 2**30, 32e9, STEP_OVERHEAD_S),
    Sheet(
        "a100-40g", "A100 SXM 40 GB", "a100", 312e12, 1555e9, 40 * 2**30, 32e9, STEP_OVERHEAD_S,
        derived_from="a100-80g", ratios="memory bandwidth 1555/2039",
    ),
    Sheet(
        "a800-80g", "A800 SXM 80 GB", "a100", 312e12, 2039e9, 80 * 2**30, 32e9, STEP_OVERHEAD_S,
        link_ratio=1.5, derived_from="a100-80g", ratios="NVLink 600/400 GB/s, all else equal",
    ),
    Sheet(
        "a800-80g-pcie", "A800 PCIe 80 GB", "a100", 312e12, 1935e9, 80 * 2**30, 32e9, STEP_OVERHEAD_S,
        link_ratio=1.5, derived_from="a100-80g",
        ratios="memory bandwidth 1935/2039 (A100 PCIe 80 GB), NVLink bridge 600/400 GB/s, all else equal",
    ),
    Sheet(
        "v100-32g", "V100 SXM2 32 GB", "a100", 125e12, 900e9, 32 * 2**30, 16e9, STEP_OVERHEAD_S,
        link_ratio=2.0, derived_from="a100-80g",
        ratios="fp16 tensor peak 125/312, memory bandwidth 900/2039, NVLink 300/600, the A100's efficiencies",
    ),
    Sheet(
        "rtx-4090", "GeForce RTX 4090 24 GB", "rtx-4090", 165.2e12, 1008e9, 24564 * 2**20, 32e9, STEP_OVERHEAD_S,
        all_reduce="l40s",
    ),
    Sheet(
        "rtx-pro-6000", "RTX PRO 6000 Blackwell 96 GB", "rtx-pro-6000", 467.8e12, 1792e9, 97887 * 2**20, 64e9,
        STEP_OVERHEAD_S, all_reduce="l40s", link_ratio=0.5,
    ),
)  # fmt: skip
"""Published peaks, dense 16-bit: the vendor's data sheets, as in hardware_specs.csv where it has them."""

SOURCES = {
    "a100": "aiconfigurator's kernel tables, vLLM 0.14",
    "rtx": "LLMServingSim's layer tables, vLLM 0.19",
    "other": "aiconfigurator's kernel tables, vLLM 0.24",
}
