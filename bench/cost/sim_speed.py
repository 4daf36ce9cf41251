"""How fast the simulator is, and what memory it needs: `python bench/cost/sim_speed.py --json`.

Speed: the Azure 2023 conversation trace (the start of the shared data where it is there, else the fitted law of the
same name) on one simulated A100 that serves Llama-3.1-8B with vLLM's default sizes, one process on one core. Counted
is CPU time of `simulate` alone. `running` is jobs a step, the mean over steps.

Memory: the trace of 117,000 requests in an hour on 8 simulated H100s, each record dropped as its request ends
(about 4 of the 5 minutes that all of this takes). What the process holds beyond the trace is sampled when a tenth,
half and all of the requests have ended: the tables of the KV pools, which are as large as the pools, and the live
requests, so it does not grow with those that have ended.

Both traces are made from public data; `--data` takes their folder. The first 75 % of AzureLLMInferenceTrace_conv:
github.com/Azure/AzurePublicDataset b469a113, CC BY 4.0 (Patel et al., Splitwise, ISCA 2024). An hour drawn from the
laws of deepseek-r1's clients: github.com/alibaba/ServeGen f891d118, Apache-2.0 (Xiang et al., arXiv:2505.09999).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from headway.core.record import Record
from headway.core.slo import Slo
from headway.lab.engine_sizes import EngineSizes, engine_limits
from headway.lab.policy_choice import OWN_PARTS, policy_factory
from headway.lab.trace import Trace
from headway.predict.models.known_models import model_shape
from headway.predict.steps.hardware import calibration
from headway.sim.simulation import System, simulate
from headway.traces import TraceRequest, scale_rate

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces"
SPEED_TRACE, MEMORY_TRACE = "azure2023_conv.csv.gz", "servegen_deepseek_r1_1h_resampled.csv.gz"
SPEED_LAW = "gen:poisson:rate=5.89/input=azure-conversation/output=azure-conversation/seed=1/count=15460"
MEMORY_LAW = "gen:poisson:rate=32.5/input=sharegpt/output=sharegpt/seed=1/count=116987"
MODEL = "Llama-3.1-8B"
MEMORY_INSTANCES = 8
SLO = Slo(ttft_s=1.0, tbt_s=0.1)
"""Targets for edf's requests; without targets it would be arrival order."""
MAX_OUTPUT_TOKENS = 1 << 17
SAMPLED_SHARES = (0.1, 0.5, 1.0)
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedCase:
    """One run of the speed trace, `load` times as fast as it was recorded."""

    policy: str = "vllm"
    load: float = 1.0
    shortcut: bool = True


MAIN = SpeedCase()
CASES = (
    MAIN,
    SpeedCase(shortcut=False),
    SpeedCase(load=0.5),
    SpeedCase(load=1.5),
    SpeedCase(policy="sjf"),
    SpeedCase(policy="edf"),
)


def main() -> None:
    """Print `{"trace", "runs": [...], "times_real_time", "shortcut_gain", "memory": {...}}`; a table on stderr."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout (the default output)")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the traces")
    parser.add_argument("--limit", type=int, help="only the first requests of each trace")
    parser.add_argument("--no-memory", action="store_true", help="leave out the long trace")
    arguments = parser.parse_args()
    source = source_of(arguments.data / SPEED_TRACE, SPEED_LAW)
    requests = Trace(source, arguments.limit).requests()
    runs = []
    for case in CASES:
        runs.append(measure(case, requests))
        print(_row(runs[-1]), file=sys.stderr)
    times = {SpeedCase(**run["case"]): run["times_real_time"] for run in runs}
    found = {
        "trace": title(source),
        "requests": len(requests),
        "runs": runs,
        "times_real_time": times[MAIN],
        "shortcut_gain": round(times[MAIN] / times[replace(MAIN, shortcut=False)], 2),
    }
    if not arguments.no_memory:
        long = source_of(arguments.data / MEMORY_TRACE, MEMORY_LAW)
        found["memory"] = in_fresh_process(long, arguments.limit)
        print(json.dumps(found["memory"]), file=sys.stderr)
    print(json.dumps(found))


def title(source: str) -> str:
    """The name of a source: the file's name, or the law as written."""
    return source if source.startswith("gen:") else Path(source).name


def source_of(path: Path, law: str) -> str:
    """The trace file if it exists, else the law to draw one from."""
    return str(path) if path.is_file() else law


def system_of(hardware: str, instances: int = 1) -> System:
    """Engines as vLLM serves the model on this hardware by default."""
    model = model_shape(MODEL)
    costs = calibration(hardware, model)
    limits = engine_limits(EngineSizes(), hardware, costs)
    return System(limits=limits, calibration=costs, instances=instances)


def measure(case: SpeedCase, requests: Sequence[TraceRequest]) -> dict[str, Any]:
    """Run a case once."""
    requests = scale_rate(requests, case.load)
    if case.policy == "edf":
        requests = [replace(request, slo=SLO) for request in requests]
    output_tokens = 0

    def count(record: Record) -> None:
        nonlocal output_tokens
        output_tokens += record.output_tokens

    policy, system = policy_factory(case.policy, OWN_PARTS, requests), system_of("a100-80g")
    started_s = time.process_time()
    result = simulate(
        requests,
        policy,
        system,
        on_record=count,
        max_output_tokens=MAX_OUTPUT_TOKENS,
        shortcut=case.shortcut,
    )
    cpu_s = time.process_time() - started_s
    (totals,) = result.totals.values()
    return {
        "case": asdict(case),
        "simulated_s": round(result.end_s, 1),
        "cpu_s": round(cpu_s, 2),
        "times_real_time": round(result.end_s / cpu_s, 1),
        "steps": totals.steps,
        "us_a_step": round(cpu_s / totals.steps * 1e6, 1),
        "running": round(output_tokens / totals.steps, 1),
        "preemptions": totals.preemptions,
    }


def in_fresh_process(source: str, limit: int | None) -> dict[str, Any]:
    """`memory_samples` in a fresh process, where nothing else was allocated before."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(memory_samples, (source, limit))


class MemoryMeter:
    """Follows requests in and out of a run, and samples memory when given shares of them have ended."""

    def __init__(self, num_requests: int) -> None:
        self.arrived = self.ended = self.most_live = 0
        self.baseline_bytes = resident_bytes()
        self.samples: list[dict[str, float]] = []
        self._due = [max(1, int(share * num_requests)) for share in SAMPLED_SHARES]

    def feed(self, requests: Sequence[TraceRequest]) -> Iterator[TraceRequest]:
        """Yield the requests, counting each when it is taken: one ahead of its arrival."""
        for request in requests:
            self.arrived += 1
            self.most_live = max(self.most_live, self.arrived - self.ended)
            yield request

    def drop(self, record: Record) -> None:
        """A request ended; drop its record."""
        self.ended += 1
        if self.ended in self._due:
            self.samples.append(
                {
                    "ended": self.ended,
                    "live": self.arrived - self.ended,
                    "mib": round((resident_bytes() - self.baseline_bytes) / _MIB, 1),
                }
            )


def memory_samples(source: str, limit: int | None) -> dict[str, Any]:
    """Serve a trace and sample the process's memory beyond the trace."""
    requests = Trace(source, limit).requests()
    system = system_of("h100", MEMORY_INSTANCES)
    meter = MemoryMeter(len(requests))
    started_s = time.process_time()
    result = simulate(
        meter.feed(requests),
        policy_factory(MAIN.policy, OWN_PARTS, requests),
        system,
        on_record=meter.drop,
        max_output_tokens=MAX_OUTPUT_TOKENS,
    )
    cpu_s = time.process_time() - started_s
    steps = result.total("steps")
    return {
        "trace": title(source),
        "requests": len(requests),
        "instances": MEMORY_INSTANCES,
        "baseline_mib": round(meter.baseline_bytes / _MIB, 1),
        "samples": meter.samples,
        "most_live": meter.most_live,
        "simulated_s": round(result.end_s, 1),
        "cpu_s": round(cpu_s, 1),
        "times_real_time": round(result.end_s / cpu_s, 1),
        "us_a_step": round(cpu_s / steps * 1e6, 1),
    }


def resident_bytes() -> int:
    """Resident memory of this process (Linux)."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _row(run: dict[str, Any]) -> str:
    case = SpeedCase(**run["case"])
    return (
        f"{case.policy:5} load {case.load:3}  shortcut {'on ' if case.shortcut else 'off'}  "
        f"{run['times_real_time']:7.1f} x real time  {run['us_a_step']:6.1f} us a step  "
        f"{run['running']:6.1f} running  {run['steps']} steps  {run['preemptions']} preemptions"
    )


if __name__ == "__main__":
    main()
