"""Fits the hardware catalogue to published timings: `python bench/simulator/fit_hardware.py --data DIR`.

Writes `src/headway/predict/steps/hardware.json`, the same bytes for the same tables, and prints what each fit misses
on rows it has not seen. Only fitted numbers are written, no measured row. Takes about half a minute.

What is fitted to what:
- products and attention of the A100, H100, H200, L40S and B200: the kernel tables of aiconfigurator;
- of the RTX 4090 and RTX PRO 6000: LLMServingSim's tables of single layers, few shapes, so coarser surfaces;
- collectives: aiconfigurator's all-reduce inside CUDA graphs;
- small kernels and experts: LLMServingSim's tables on the RTX PRO 6000, borrowed by all others;
- the host's part of a step: Qwen3-32B served by vLLM 0.12 on H100s, borrowed by all others.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import log2
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

import msgspec
import numpy as np

from bench.simulator.gpu_tables import AIC, SYSTEMS, Judged, Tables, add_data_flag, judge_steps, served_steps
from bench.simulator.kernel_fits import (
    FLAT,
    MIXED_KEY_S,
    KernelError,
    fit_kernels,
    fit_mixed,
    fit_single_layers,
    fit_tile_key_s,
    longest_tile_key_s,
)
from headway.predict.steps.fitting import Errors, errors_of
from headway.predict.steps.hardware import HOST_COPY_SHARE, Catalogue, Hardware, nearest
from headway.predict.steps.kernels import AllReduce, Kernels, Peaks
from headway.statistics import median

# ---- data sheets, and numbers taken rather than fitted, each with its source -------------------------

SMALL_START_S = 2.4e-6
"""Launch of a small kernel: norm, rotation and activation of one token on either RTX, 1.9 to 2.7 us."""
SMALL_EFFICIENCY = {"rtx": 1.4, "datacentre": 0.85}
"""Efficiency of small kernels (bytes over peak bandwidth): LLMServingSim's 2048 tokens (more than 1: the cache
helps), and the geometric mean of that with Vidur's unfused kernels on the A100 and H100 (0.5).
"""
EXPERT_MEMORY_EFFICIENCY, EXPERT_COMPUTE_EFFICIENCY = 0.82, 0.57
"""Qwen3-30B-A3B's block on the RTX PRO 6000: 128 experts read in 818 us; 2048 tokens on 8 experts in 578 us."""
SAMPLER_S, SAMPLER_JOB_S = 2e-5, 5e-7
"""Times of LLMServingSim's sampler: 12 to 25 us for one sequence, 64 to 120 us for 128."""
HOST_COPY_START_S = 1e-5

MULTIPROCESSORS = {"a100": 108, "l40s": 142}
"""Devices on FlashAttention 2, whose decodes of query heads with a KV head each are not split over keys."""
MIXED_TILES = 1.3
"""For devices on FlashAttention 2 whose mixed steps were not measured: cost of a decode's tile beside prompts, as
on the RTX PRO 6000 (1.2 to 1.5 tiles shared by all processors).
"""


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
"""Time that a device waits between steps however the host is scheduled: input copies and the graph's launch.
Published times show only its sum with the host's part (0.6 ms for one request); this share of it is assumed.
"""
UNGRAPHED_S = 6e-3
"""Time beyond its kernels of a step with more tokens than CUDA graphs hold, on an H100 under vLLM 0.32, roughly,
from the seconds of each answer of four streams (docs/gpu.md). Lone prompts of more than 600 tokens on another H100
under vLLM 0.11 take 5 to 8 ms more, steps of 64 tokens there nothing. Also used for the H200, the same chip with
more memory; not measured for the others.
"""
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


# ---- the bench ---------------------------------------------------------------------------------------

OUTERMOST = 0.02
"""Share of steps at each end that the residuals leave out."""
OUT = Path(__file__).parents[2] / "src" / "headway" / "predict" / "steps" / "hardware.json"


def fit_catalogue(tables: Tables) -> tuple[Catalogue, dict[str, dict[str, KernelError]], dict[str, int]]:
    """The catalogue without its errors, the errors of single kernels, and how many rows each device was fitted to."""
    kernels, errors = {}, {}
    for sheet in SHEETS:
        if sheet.derived_from is None:
            kernels[sheet.kernels], errors[sheet.kernels] = _device(sheet, tables)
    catalogue = Catalogue(
        kernels=kernels,
        all_reduce={name: _all_reduce(name, tables) for name in AIC},
        hardware={sheet.name: _hardware(sheet) for sheet in SHEETS},
        data_sheet_errors=errors_of([]),
    )
    return catalogue, errors, {name: _rows(found) for name, found in errors.items()}


def _rows(found: dict[str, KernelError]) -> int:
    return sum(error.num_fitted for error in found.values())


def _device(sheet: Sheet, tables: Tables) -> tuple[Kernels, dict[str, KernelError]]:
    name, peaks = sheet.kernels, Peaks(flops_per_s=sheet.flops_per_s, bytes_per_s=sheet.bytes_per_s)
    if name in AIC:
        surfaces, errors = fit_kernels(name, peaks, tables, lone_apart=name in MULTIPROCESSORS)
        tile, mixed = longest_tile_key_s(name, tables), FLAT
        mixed_key_s = MIXED_TILES * tile / MULTIPROCESSORS[name] if name in MULTIPROCESSORS else 0.0
    else:
        surfaces, errors = fit_single_layers(name, peaks, tables)
        tile, mixed, mixed_key_s = fit_tile_key_s(name, tables), fit_mixed(name, tables), MIXED_KEY_S
    found = Kernels(
        measured_on=sheet.title,
        tile_key_s=float(f"{tile:.3g}"),
        mixed_key_s=float(f"{mixed_key_s:.3g}"),
        mixed=mixed,
        elementwise_start_s=SMALL_START_S,
        elementwise_efficiency=SMALL_EFFICIENCY["datacentre" if name in AIC else "rtx"],
        expert_memory_efficiency=EXPERT_MEMORY_EFFICIENCY,
        expert_compute_efficiency=EXPERT_COMPUTE_EFFICIENCY,
        **surfaces,
    )
    return found, errors


def _all_reduce(name: str, tables: Tables) -> AllReduce:
    found = tables.all_reduce(SYSTEMS[name])
    sizes = sorted(found[2])
    return AllReduce(
        measured_on=SYSTEMS[name],
        log2_bytes=tuple(round(log2(size), 3) for size in sizes),
        log2_seconds={
            gpus: tuple(round(log2(times[size]), 3) for size in sizes)
            for gpus, times in sorted(found.items())
        },
    )


def _hardware(sheet: Sheet) -> Hardware:
    source = SOURCES.get(sheet.kernels, SOURCES["rtx" if sheet.kernels.startswith("rtx") else "other"])
    return Hardware(
        name=sheet.name,
        title=sheet.title,
        memory_bytes=sheet.memory_bytes,
        peaks=Peaks(flops_per_s=sheet.flops_per_s, bytes_per_s=sheet.bytes_per_s),
        host_bytes_per_s=HOST_COPY_SHARE * sheet.host_bytes_per_s,
        host_start_s=HOST_COPY_START_S,
        kernels=sheet.kernels,
        all_reduce=sheet.all_reduce or sheet.kernels,
        link_ratio=sheet.link_ratio,
        step_overhead_s=sheet.step_overhead_s,
        ungraphed_s=sheet.ungraphed_s,
        host_s=0.0,
        host_job_s=0.0,
        sampler_s=SAMPLER_S,
        sampler_job_s=SAMPLER_JOB_S,
        sources=source,
        derived_from=sheet.derived_from,
        ratios=sheet.ratios,
    )


def fit_host(catalogue: Catalogue, tables: Tables) -> None:
    """Set every device's host times: time of served steps on H100s beyond the device's part, by jobs.

    Fitted by least squares to the medians of each concurrency, so that a few long steps do not count for more.
    """
    beyond: dict[int, list[float]] = defaultdict(list)
    for jobs, (measured, predicted) in served_steps(catalogue, tables, judging=False):
        beyond[jobs].append(measured - predicted)
    jobs_seen = np.array(sorted(beyond), dtype=float)
    medians = np.array([median(beyond[int(jobs)]) for jobs in jobs_seen])
    slope, start = np.polyfit(jobs_seen, medians, 1)
    host_s, host_job_s = float(f"{max(start, 0.0):.3g}"), float(f"{max(slope, 0.0):.3g}")
    for name, device in catalogue.hardware.items():
        catalogue.hardware[name] = msgspec.structs.replace(device, host_s=host_s, host_job_s=host_job_s)
    print(
        f"host: {host_s * 1e3:.2f} ms a step and {host_job_s * 1e6:.0f} us a job, without asynchronous scheduling"
    )


def judge_data_sheets(catalogue: Catalogue, tables: Tables) -> dict[str, list[Judged]]:
    """Device -> whole steps as predicted from a data sheet alone, with the kernels of the nearest other device."""
    kernels, devices = {}, {}
    for device in catalogue.measured():
        like = nearest(device.peaks, [other for other in catalogue.measured() if other is not device])
        kernels[device.kernels] = catalogue.kernels[like.kernels]
        devices[device.name] = msgspec.structs.replace(
            like, name=device.name, kernels=device.kernels, peaks=device.peaks
        )
    return judge_steps(msgspec.structs.replace(catalogue, kernels=kernels, hardware=devices), tables)


def main() -> None:
    """Fit, judge, write, and print the errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add_data_flag(parser)
    parser.add_argument("--out", type=Path, default=OUT, help="the catalogue to write")
    arguments = parser.parse_args()
    tables = Tables(arguments.data)
    catalogue, kernel_errors, rows = fit_catalogue(tables)
    fit_host(catalogue, tables)
    steps = judge_steps(catalogue, tables)
    for name, judged in steps.items():
        device = catalogue.hardware[name]
        catalogue.hardware[name] = msgspec.structs.replace(
            device, num_rows=rows[device.kernels], errors=_errors(judged)
        )
    sheets = judge_data_sheets(catalogue, tables)
    everything = _errors([step for judged in sheets.values() for step in judged])
    catalogue = msgspec.structs.replace(catalogue, data_sheet_errors=everything)
    arguments.out.write_bytes(msgspec.json.encode(catalogue) + b"\n")
    for name, found in kernel_errors.items():
        for kind, error in found.items():
            print(
                f"{name:13} {kind:8} {error.num_rows:6} unseen rows  median {error.median:6.1%}  p90 {error.p90:6.1%}"
            )
    for name, judged in steps.items():
        for kind in sorted({step.kind for step in judged}):
            errors = errors_of([(step.measured_s, step.predicted_s) for step in judged if step.kind == kind])
            median_error, p90 = errors.median_error, errors.p90_error
            print(
                f"{name:13} {kind:12} {errors.num_rows:6} unseen steps median {median_error:6.1%}  p90 {p90:6.1%}"
            )
    for name, judged in sheets.items():
        errors = _errors(judged)
        print(
            f"{name:13} from its data sheet alone: median {errors.median_error:6.1%}  p90 {errors.p90_error:6.1%}"
        )


def _errors(judged: Sequence[Judged]) -> Errors:
    """The errors, rounded to their precision; residuals without the outermost rows at either end.

    A clock draws between residuals, so one server's first request (nine times its time) would count for all.
    """
    pairs = sorted(
        ((step.measured_s, step.predicted_s) for step in judged), key=lambda pair: pair[0] / pair[1]
    )
    outermost = round(OUTERMOST * len(pairs))
    errors, inner = errors_of(pairs), errors_of(pairs[outermost : len(pairs) - outermost])
    return Errors(
        num_rows=errors.num_rows,
        median_error=round(errors.median_error, 4),
        p90_error=round(errors.p90_error, 4),
        residuals=tuple(round(ratio, 4) for ratio in inner.residuals),
    )


if __name__ == "__main__":
    main()
