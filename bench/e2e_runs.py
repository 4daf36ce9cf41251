"""Eight published runs of real vLLM servers, simulated again: `python bench/e2e_runs.py --data DIR --json`.

Each run's requests arrive when they did, with the lengths they had, at an engine with the run's own sizes, on the
catalogue's device, served by the preset `vllm`; vLLM 0.11 without asynchronous scheduling, 0.19 with it, as was
their default. Nothing is fitted to these runs. stdout is `{"runs": {run: {...}}, "median_abs_error": {...}}`.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, only this folder is on the path

from bench.gpu_tables import DATA
from headway.core.record import Record
from headway.experiments.policy_choice import OWN_PARTS, policy_factory
from headway.predict.hardware import hardware
from headway.predict.known_models import model_shape
from headway.predict.residuals import quantile
from headway.sim.limits import EngineLimits
from headway.sim.simulation import System, simulate
from headway.traces import MOONCAKE_BLOCK_TOKENS, TraceRequest

RUNS, REQUESTS = "vllm_e2e_runs.csv", "vllm_e2e_requests.csv.gz"
POLICY = "vllm"
BLOCK_TOKENS = 16
GPU_MEMORY_UTILIZATION = 0.9
"""The default of vLLM 0.11 and 0.19."""
DEVICES = {"H100": "h100", "RTX 4090": "rtx-4090", "RTX PRO 6000": "rtx-pro-6000"}
FIRST_ASYNCHRONOUS = (0, 14)
"""The vLLM version from which asynchronous scheduling is the default."""
DATA_PARALLEL = {"llmservingsim_RTXPRO6000_Qwen3-30B-A3B-Instruct-2507": 2}
"""Engines of a run, where there are several: this one's settings name 128 seats and 256 requests decode at once.
Source: the run's own meta.json (casys-kaist/LLMServingSim): data parallel 2 with expert parallelism."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One request as it was served, real or simulated. Seconds; `tokens` is its output."""

    tokens: int
    ttft_s: float
    e2e_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What is compared of a run, seconds. Time per output token is that after the first one."""

    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    tpot_mean_s: float
    e2e_mean_s: float
    e2e_p50_s: float
    e2e_p99_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run's settings and requests."""

    name: str
    settings: Mapping[str, str]
    requests: Sequence[Mapping[str, str]]


def main() -> None:
    """Simulate every run; print one object, and a table on stderr."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the published tables")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout (the default output)")
    parser.add_argument("--run", action="append", help="simulate only runs whose name contains this")
    arguments = parser.parse_args()
    for name in (RUNS, REQUESTS):
        if not (arguments.data / name).is_file():
            parser.error(f"{arguments.data / name} is missing; --data takes the folder that holds it")
    runs = {}
    for run in read_runs(arguments.data):
        if not arguments.run or any(part in run.name for part in arguments.run):
            runs[run.name] = found = judge(run)
            print(_row(run.name, found), file=sys.stderr)
    errors = [found["error"] for found in runs.values()]
    medians = {name: round(median(abs(error[name]) for error in errors), 4) for name in errors[0]}
    print(json.dumps({"runs": runs, "median_abs_error": medians}))


def read_runs(data: Path) -> list[Run]:
    """The runs in the order of the table, each with its requests in order of arrival."""
    found: dict[str, list[dict[str, str]]] = defaultdict(list)
    with gzip.open(data / REQUESTS, "rt", newline="") as lines:
        for row in csv.DictReader(lines):
            found[row["run"]].append(row)
    for rows in found.values():
        rows.sort(key=lambda row: float(row["arrival_s"]))
    with (data / RUNS).open(newline="") as lines:
        return [
            Run(name=row["run"], settings=row, requests=found[row["run"]]) for row in csv.DictReader(lines)
        ]


def judge(run: Run) -> dict[str, Any]:
    """Real and simulated figures of a run, and each one's relative error (simulated / real - 1)."""
    real = figures(real_timelines(run))
    requests = trace_requests(run)
    records: list[Record] = []
    result = simulate(
        requests,
        policy_factory(POLICY, OWN_PARTS, requests),
        system_of(run),
        on_record=records.append,
        max_output_tokens=1,  # each request declares its own
    )
    simulated = figures(map(simulated_timeline, records))
    totals = result.totals.values()
    return {
        "requests": len(requests),
        "vllm_version": run.settings["vllm_version"],
        "real": _rounded(asdict(real)),
        "simulated": _rounded(asdict(simulated)),
        "error": relative_errors(real, simulated),
        "real_frontend_s": round(fmean(map(frontend_s, run.requests)), 4),
        "real_prefix_hit_rate": _share(run.settings["prefix_hit_rate_pct"]),
        "simulated_prefix_hit_rate": hit_rate(requests, sum(total.cached_tokens for total in totals)),
        "simulated_preemptions": sum(total.preemptions for total in totals),
    }


def system_of(run: Run) -> System:
    """The engines that served a run, as far as its settings say; vLLM's own cache size where they do not.

    Expert parallelism of equally loaded engines costs what a model of as many fewer experts costs: each device
    reads its share of the experts and computes as many pairs of token and expert as its own tokens make. What
    the engines send each other for it is left out.
    """
    settings, engines = run.settings, DATA_PARALLEL.get(run.name, 1)
    tp = int(settings["n_gpus"])
    model = model_shape(settings["model"])
    model = replace(model, num_experts=model.num_experts // engines)
    calibration = hardware(device_of(settings["gpu"])).calibrate(
        model, tp, gpu_memory_utilization=GPU_MEMORY_UTILIZATION
    )
    kv_tokens = int(settings["kv_cache_tokens"] or calibration.kv_capacity_tokens)
    limits = EngineLimits(
        num_blocks=kv_tokens // BLOCK_TOKENS - 1,  # vLLM's count has its null block
        block_size=BLOCK_TOKENS,
        max_num_seqs=int(settings["max_num_seqs"]),
        max_num_batched_tokens=int(settings["max_num_batched_tokens"]),
        prefix_caching=settings["prefix_caching"] != "0",
        asynchronous=is_asynchronous(settings["vllm_version"]),
    )
    return System(limits=limits, calibration=calibration, instances=engines)


def device_of(gpu: str) -> str:
    """The catalogue's name of a GPU as the table calls it."""
    return next(name for title, name in DEVICES.items() if gpu.startswith(title))


def is_asynchronous(version: str) -> bool:
    """Whether a vLLM version schedules asynchronously by default."""
    major, minor = version.split(".")[:2]
    return (int(major), int(minor)) >= FIRST_ASYNCHRONOUS


def trace_requests(run: Run) -> list[TraceRequest]:
    """The requests of a run. All share their first tokens as far as the settings say so, and nothing else."""
    shared = tuple(range(int(run.settings["shared_prefix_tokens"]) // MOONCAKE_BLOCK_TOKENS))
    return [
        TraceRequest(
            id=row["req"],
            arrival_s=float(row["arrival_s"]),
            input_tokens=int(row["input_tokens"]),
            output_tokens=int(row["output_tokens"]),
            max_output_tokens=int(row["output_tokens"]),  # the clients asked for just as many
            prefix_blocks=shared,
        )
        for row in run.requests
    ]


def real_timelines(run: Run) -> Iterable[Timeline]:
    """What the server recorded of each request."""
    for row in run.requests:
        yield Timeline(
            tokens=int(row["output_tokens"]), ttft_s=float(row["ttft_s"]), e2e_s=float(row["e2e_s"])
        )


def simulated_timeline(record: Record) -> Timeline:
    """The same of a simulated request."""
    assert record.first_token_s is not None and record.finished_s is not None
    return Timeline(
        tokens=record.output_tokens,
        ttft_s=record.first_token_s - record.arrival_s,
        e2e_s=record.finished_s - record.arrival_s,
    )


def frontend_s(row: Mapping[str, str]) -> float:
    """Seconds before a request's first token in which it was neither queued nor computed: the API server's."""
    return float(row["ttft_s"]) - float(row["queue_s"]) - float(row["prefill_s"])


def figures(timelines: Iterable[Timeline]) -> Figures:
    """The figures of a run of one request or more, one of them with two tokens or more."""
    found = list(timelines)
    ttft = sorted(each.ttft_s for each in found)
    e2e = sorted(each.e2e_s for each in found)
    return Figures(
        ttft_mean_s=fmean(ttft),
        ttft_p50_s=quantile(ttft, 0.5),
        ttft_p99_s=quantile(ttft, 0.99),
        tpot_mean_s=fmean(
            (each.e2e_s - each.ttft_s) / (each.tokens - 1) for each in found if each.tokens > 1
        ),
        e2e_mean_s=fmean(e2e),
        e2e_p50_s=quantile(e2e, 0.5),
        e2e_p99_s=quantile(e2e, 0.99),
    )


def relative_errors(real: Figures, simulated: Figures) -> dict[str, float]:
    """Simulated over real minus 1, each figure."""
    told = asdict(simulated)
    return {name.removesuffix("_s"): round(told[name] / value - 1, 4) for name, value in asdict(real).items()}


def hit_rate(requests: Sequence[TraceRequest], cached_tokens: int) -> float:
    """Tokens found in the cache over tokens of prompts; a preempted request's own tokens count as found too."""
    return round(cached_tokens / sum(request.input_tokens for request in requests), 4)


def _share(per_cent: str) -> float | None:
    return round(float(per_cent) / 100, 4) if per_cent else None


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 5) for name, value in values.items()}


def _row(name: str, found: Mapping[str, Any]) -> str:
    cells = "  ".join(f"{figure} {error:+7.1%}" for figure, error in found["error"].items())
    return f"{name:54} {found['requests']:4}  {cells}"


if __name__ == "__main__":
    main()
