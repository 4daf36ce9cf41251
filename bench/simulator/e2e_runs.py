"""Eight published runs of real vLLM servers, simulated again: `python bench/simulator/e2e_runs.py --data DIR --json`.

Each run's requests arrive when they did, with the lengths they had, at an engine with the run's own sizes, on the
catalogue's device, served by the preset `vllm`; vLLM 0.11 without asynchronous scheduling, 0.19 with it, as was
their default. stdout is `{"runs": {run: {...}}, "median_abs_error": {...}}`; nothing under `error` is fitted to
these runs. Prompts share what the settings say (`shared_prefix_tokens`). Nothing recurs between the phases of a
run: alone, equally long prompts take equally long in each, and the hits that codellama-train counts are those of
preempted requests, which find their own blocks again (its server's log shows none before the first burst).

What the errors come from; the first two are shown by a variant beside the plain run (`variants`, never in the
medians):
- H100, prompts 9 to 12 % too fast. A whole model's prefill takes longer than the sum of its kernels measured one
  by one; steps bound by memory are within 2 %. `prefill as in training`: the one factor that the lone requests of
  the train run give (Llama-2-7b, 1.12) takes the mean times of the three other runs (CodeLlama-34b) from up to
  11 % to 2 %.
- Two RTX PRO 6000, everything 20 to 30 % too fast. The catalogue assumes GPUs that reach each other directly over
  PCIe 5. `without direct link`: an all-reduce as slow as measured elsewhere on a pair that does not takes the mean
  times of both runs to about 5 %.
- One RTX PRO 6000, 4 % a token, which queueing makes 12 % of the first token: steps with prompts and decodes.
- Llama-2-7b, bursts of 20: decodes 6 % too slow, a third of it the host's time per job, fitted to another server.
- vLLM 0.11 admits a prompt whose first chunk fits, later versions and the simulator one that fits whole; so the
  real server preempted more (27 % of prompt tokens found again, 1 % here), at little cost in time.
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

import msgspec

from bench.command import command_line
from bench.simulator.gpu_tables import Tables, add_data_flag, lone_steps
from headway.core.batch_shape import BatchShape
from headway.core.record import Record
from headway.lab.simulation import simulate_policy
from headway.predict.models.known_models import model_shape
from headway.predict.steps.calibration import StepSeconds
from headway.predict.steps.hardware import catalogue, hardware
from headway.sim.engine import EngineTotals
from headway.sim.limits import EngineLimits
from headway.sim.simulation import System
from headway.statistics import mean, median, quantile
from headway.traces import MOONCAKE_BLOCK_TOKENS, TraceRequest

RUNS, REQUESTS = "vllm_e2e_runs.csv", "vllm_e2e_requests.csv.gz"
POLICY = "vllm"
BLOCK_TOKENS = 16
GPU_MEMORY_UTILIZATION = 0.9
"""The default of vLLM 0.11 and 0.19."""
DEVICES = {"H100": "h100", "RTX 4090": "rtx-4090", "RTX PRO 6000": "rtx-pro-6000"}
FIRST_ASYNCHRONOUS = (0, 14)
"""The vLLM version from which asynchronous scheduling is the default."""
EXPERT_PARALLEL = {"llmservingsim_RTXPRO6000_Qwen3-30B-A3B-Instruct-2507": 2}
"""GPUs of a run whose table names one: with 128 seats, 256 of its requests decode at once. Source: the run's own
meta.json in casys-kaist/LLMServingSim: `data_parallel_size` 2 with `enable_expert_parallel`."""
INDIRECT_LINK_RATIO = 1.25
"""Time of a 21 MB all-reduce on two RTX PRO 6000 under vLLM 0.19 (1.39 ms) over that on two L40S (1.11 ms). Source:
ai-dynamo/aiconfigurator 095f58a5, rtx_pro_6000_server/comm/vllm/0.19.0; with direct transfers (0.24.0) 0.59 ms."""
COMPUTE_BOUND_TOKENS = 512
"""Tokens from which a step's products are bound by arithmetic on an H100 (989 Tflop/s over 3.35 TB/s is 295)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One request as it was served, real or simulated. Times in seconds; `tokens` is its output."""

    tokens: int
    ttft_s: float
    e2e_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The compared figures of a run, in seconds. Time per output token excludes the first."""

    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    tpot_mean_s: float
    e2e_mean_s: float
    e2e_p50_s: float
    e2e_p99_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun:
    """One run's settings and requests."""

    name: str
    settings: Mapping[str, str]
    requests: Sequence[Mapping[str, str]]


def main() -> None:
    """Simulate every run; print one object, and a table on stderr."""
    parser = command_line(__doc__)
    add_data_flag(parser)
    parser.add_argument("--run", action="append", help="simulate only runs whose name contains this")
    arguments = parser.parse_args()
    for name in (RUNS, REQUESTS):
        if not (arguments.data / name).is_file():
            parser.error(f"{arguments.data / name} is missing; --data takes the folder that holds it")
    prefill_factor = lone_prefill_factor(Tables(arguments.data))
    runs = {}
    for run in read_runs(arguments.data):
        if not arguments.run or any(part in run.name for part in arguments.run):
            runs[run.name] = found = judge(run, prefill_factor)
            print(_row(run.name, found["error"]), file=sys.stderr)
            for name, error in found["variants"].items():
                print(_row(f"  {name}", error), file=sys.stderr)
    errors = [found["error"] for found in runs.values()]
    medians = {name: round(median(abs(error[name]) for error in errors), 4) for name in errors[0]}
    print(json.dumps({"runs": runs, "median_abs_error": medians, "prefill_factor": round(prefill_factor, 4)}))


def read_runs(data: Path) -> list[PublishedRun]:
    """The runs in the order of the table, each with its requests in order of arrival."""
    found: dict[str, list[dict[str, str]]] = defaultdict(list)
    with gzip.open(data / REQUESTS, "rt", newline="") as lines:
        for row in csv.DictReader(lines):
            found[row["run"]].append(row)
    for rows in found.values():
        rows.sort(key=lambda row: float(row["arrival_s"]))
    with (data / RUNS).open(newline="") as lines:
        return [
            PublishedRun(name=row["run"], settings=row, requests=found[row["run"]])
            for row in csv.DictReader(lines)
        ]


def judge(run: PublishedRun, prefill_factor: float) -> dict[str, Any]:
    """Real and simulated figures of a run, and each one's relative error (simulated / real - 1)."""
    real = figures(real_timelines(run))
    requests = trace_requests(run)
    simulated, totals = serve(requests, system_of(run))
    variants = {name: serve(requests, system)[0] for name, system in variants_of(run, prefill_factor).items()}
    return {
        "requests": len(requests),
        "vllm_version": run.settings["vllm_version"],
        "real": _rounded(asdict(real)),
        "simulated": _rounded(asdict(simulated)),
        "error": relative_errors(real, simulated),
        "variants": {name: relative_errors(real, other) for name, other in variants.items()},
        "real_frontend_s": round(mean(map(frontend_s, run.requests)), 4),
        "real_prefix_hit_rate": _share(run.settings["prefix_hit_rate_pct"]),
        "simulated_prefix_hit_rate": hit_rate(requests, totals.cached_tokens),
        "simulated_preemptions": totals.preemptions,
    }


def serve(requests: Sequence[TraceRequest], system: System) -> tuple[Figures, EngineTotals]:
    """Simulate the requests on one engine."""
    # Each request declares its own limit.
    result = simulate_policy(requests, POLICY, system, max_output_tokens=1)
    return figures(map(simulated_timeline, result.records)), next(iter(result.totals.values()))


def system_of(run: PublishedRun, link_ratio: float | None = None) -> System:
    """The engine that served a run, as far as its settings say; else with the cache size that vLLM would choose.

    Engines that share their experts take every step together, so they are modelled as one engine with all their GPUs,
    seats and tokens a step, whose layers are split like a dense model's: the same work on each GPU, twice the bytes
    between them. `link_ratio` replaces the catalogue's.
    """
    settings, together = run.settings, EXPERT_PARALLEL.get(run.name, 1)
    device = hardware(device_of(settings["gpu"]))
    if link_ratio is not None:
        device = msgspec.structs.replace(device, link_ratio=link_ratio)
    calibration = device.calibrate(
        model_shape(settings["model"]),
        together * int(settings["n_gpus"]),
        gpu_memory_utilization=GPU_MEMORY_UTILIZATION,
    )
    kv_tokens = int(settings["kv_cache_tokens"] or calibration.kv_capacity_tokens)
    limits = EngineLimits(
        num_blocks=kv_tokens // BLOCK_TOKENS - 1,  # vLLM's count includes its null block
        block_size=BLOCK_TOKENS,
        max_num_seqs=together * int(settings["max_num_seqs"]),
        max_num_batched_tokens=together * int(settings["max_num_batched_tokens"]),
        prefix_caching=settings["prefix_caching"] != "0",
        asynchronous=is_asynchronous(settings["vllm_version"]),
    )
    return System(limits=limits, calibration=calibration)


def variants_of(run: PublishedRun, prefill_factor: float) -> dict[str, System]:
    """The same engine with one thing changed, by a description of the change."""
    system, device = system_of(run), device_of(run.settings["gpu"])
    if device == "h100":
        step = SlowerPrompts(system.calibration.step, prefill_factor)
        calibration = replace(system.calibration, step=step)
        return {"prefill as in training": replace(system, calibration=calibration)}
    if device == "rtx-pro-6000" and (int(run.settings["n_gpus"]) > 1 or run.name in EXPERT_PARALLEL):
        return {"without direct link": system_of(run, INDIRECT_LINK_RATIO)}
    return {}


@dataclass(frozen=True, slots=True)
class SlowerPrompts:
    """A step law in which steps with prompts that are bound by arithmetic take `factor` times as long."""

    law: StepSeconds
    factor: float

    def step_s(self, shape: BatchShape) -> float:
        """Seconds of one step of this shape."""
        seconds = self.law.step_s(shape)
        return self.factor * seconds if shape.num_prefill_tokens >= COMPUTE_BOUND_TOKENS else seconds


def lone_prefill_factor(tables: Tables) -> float:
    """The median of measured over predicted seconds, over the train run's prompts that were served alone."""
    judged = lone_steps(catalogue(), tables, least_prompt=COMPUTE_BOUND_TOKENS)
    return median(step.measured_s / step.predicted_s for step in judged if step.kind == "lone prefill")


def device_of(gpu: str) -> str:
    """The catalogue's name of a GPU by its name in the table."""
    return next(name for title, name in DEVICES.items() if gpu.startswith(title))


def is_asynchronous(version: str) -> bool:
    """Whether a vLLM version schedules asynchronously by default."""
    major, minor = version.split(".")[:2]
    return (int(major), int(minor)) >= FIRST_ASYNCHRONOUS


def trace_requests(run: PublishedRun) -> list[TraceRequest]:
    """The requests of a run. They share their first tokens as far as the settings say so, and nothing else."""
    shared = tuple(range(int(run.settings["shared_prefix_tokens"]) // MOONCAKE_BLOCK_TOKENS))
    return [
        TraceRequest(
            id=row["req"],
            arrival_s=float(row["arrival_s"]),
            input_tokens=int(row["input_tokens"]),
            output_tokens=int(row["output_tokens"]),
            max_output_tokens=int(row["output_tokens"]),  # the clients asked for exactly this many
            prefix_blocks=shared,
        )
        for row in run.requests
    ]


def real_timelines(run: PublishedRun) -> Iterable[Timeline]:
    """The server's record of each request."""
    for row in run.requests:
        yield Timeline(
            tokens=int(row["output_tokens"]), ttft_s=float(row["ttft_s"]), e2e_s=float(row["e2e_s"])
        )


def simulated_timeline(record: Record) -> Timeline:
    """The timeline of a simulated request."""
    assert record.first_token_s is not None
    assert record.finished_s is not None
    return Timeline(
        tokens=record.output_tokens,
        ttft_s=record.first_token_s - record.arrival_s,
        e2e_s=record.finished_s - record.arrival_s,
    )


def frontend_s(row: Mapping[str, str]) -> float:
    """Seconds of the API server: before a request's first token, neither queued nor computed."""
    return float(row["ttft_s"]) - float(row["queue_s"]) - float(row["prefill_s"])


def figures(timelines: Iterable[Timeline]) -> Figures:
    """The figures of a run; at least one request must have two tokens or more."""
    found = list(timelines)
    ttft = sorted(each.ttft_s for each in found)
    e2e = sorted(each.e2e_s for each in found)
    return Figures(
        ttft_mean_s=mean(ttft),
        ttft_p50_s=quantile(ttft, 0.5),
        ttft_p99_s=quantile(ttft, 0.99),
        tpot_mean_s=mean((each.e2e_s - each.ttft_s) / (each.tokens - 1) for each in found if each.tokens > 1),
        e2e_mean_s=mean(e2e),
        e2e_p50_s=quantile(e2e, 0.5),
        e2e_p99_s=quantile(e2e, 0.99),
    )


def relative_errors(real: Figures, simulated: Figures) -> dict[str, float]:
    """Each figure's simulated value over the real one, minus 1."""
    told = asdict(simulated)
    return {name.removesuffix("_s"): round(told[name] / value - 1, 4) for name, value in asdict(real).items()}


def hit_rate(requests: Sequence[TraceRequest], cached_tokens: int) -> float:
    """Tokens found in the cache over tokens of prompts; a preempted request's own tokens count as found too."""
    return round(cached_tokens / sum(request.input_tokens for request in requests), 4)


def _share(per_cent: str) -> float | None:
    return round(float(per_cent) / 100, 4) if per_cent else None


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 5) for name, value in values.items()}


def _row(name: str, errors: Mapping[str, float]) -> str:
    cells = "  ".join(f"{figure} {error:+6.1%}" for figure, error in errors.items())
    return f"{name:53} {cells}"


if __name__ == "__main__":
    main()
