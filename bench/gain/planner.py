"""How fast and how well `headway plan` plans: `python bench/gain/planner.py --json [--verify] [--out DIR]`.

Two traces: the Azure 2023 conversation and code traces where the shared data are (--data), else a Poisson stream and a
bursty one with lengths of their own kind. Two simulated H100 with Llama-3.1-8B, arrivals at 1.1 times what stock vLLM
gets through on both, first token within 1 s and 50 ms between tokens; 1,000 configurations of the usual policies in
two processes (--budget, --jobs).

Per trace: `configurations_per_minute` and `wall_s` (with `runs`, which were simulated now), `aim_reached`: 1,000
configurations in ten minutes; the `choice` and the `command` that deploys it; `gain` over stock vLLM with the flags it
takes by itself, in points of goodput with a 95 % interval, by samples that chose nothing; `beats_default`: whether the
whole interval is above 0. With --verify the choice is deployed, scaled down, with model `demo` on this machine, and
`verify` has predicted, achieved and the errors (aim: 5 %). About ten minutes a trace on two cores, and two more to
verify it; what is in DIR already is not run again. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

from bench.command import command_line, jobs_option, say
from headway.core.slo import Slo
from headway.errors import ConfigError
from headway.lab.trace import Trace
from headway.planner.deploy import command
from headway.planner.planner import Effort, PlannedDeployment, make_plan
from headway.planner.preparation import prepare
from headway.planner.report import plan_data, serve_arguments
from headway.planner.request import SEEDS, PlanRequest
from headway.planner.runs import KeptPlanRuns

HARDWARE, MODEL, GPUS = "h100", "Llama-3.1-8B", 2
TARGETS = Slo(ttft_s=1.0, tbt_s=0.05)
LOAD = 1.1
BUDGET, AIM_S = 1_000, 600.0
QUICK_BUDGET = 60
SHARED = {"conversation": "azure2023_conv.csv.gz", "code": "azure2023_code.csv.gz"}
"""Trace -> its file among the shared data."""
GENERATED = {
    "conversation": "gen:poisson:rate=6/input=azure-conversation/output=azure-conversation/count=6000",
    "code": "gen:gamma:rate=3,cv=8/input=lognormal:mean=2000,sigma=1,max=7500/"
    "output=lognormal:mean=28,sigma=1,max=900/count=6000",
}
"""Trace -> its generated replacement, used without the shared data."""
DATA = Path("../shared/data")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Settings of the bench; `data` is the folder of shared data that was named on the command line."""

    out: Path
    data: Path | None
    budget: int
    jobs: int
    limit: int | None = None
    seeds: int = SEEDS

    def source(self, trace: str) -> str:
        """The shared file, or the generated replacement. Raises ConfigError if a named folder lacks the file."""
        file = (self.data or DATA) / "traces" / SHARED[trace]
        if file.exists():
            return str(file)
        if self.data is not None:
            raise ConfigError(
                f"data is {self.data}, which has no {file}; accepted: the folder that holds traces/"
            )
        return GENERATED[trace]

    def ask(self, trace: str) -> PlanRequest:
        """The planning request for a trace."""
        stream = Trace(self.source(trace), self.limit, TARGETS)
        return PlanRequest(
            hardware=HARDWARE, model=MODEL, gpus=GPUS, trace=stream, load=LOAD, seeds=self.seeds
        )

    def plan(self, trace: str) -> tuple[PlannedDeployment, dict[str, Any]]:
        """Plan for a trace; return the plan and its row."""
        folder = self.out / trace
        started_s = time.monotonic()
        prepared = prepare(self.ask(trace))
        effort = Effort(budget=self.budget, jobs=self.jobs)
        planned = make_plan(prepared, effort, KeptPlanRuns.open(folder, prepared.manifest()), _said(trace))
        return planned, row(self.source(trace), planned, time.monotonic() - started_s)


def row(source: str, planned: PlannedDeployment, wall_s: float) -> dict[str, Any]:
    """The figures of one plan that took `wall_s` in all."""
    data = plan_data(planned)
    points = data["gain"]["points"]
    return {
        "trace": source if planned.prepared.task.trace.is_drawn else Path(source).name,
        "configurations": planned.tried,
        "possible": planned.prepared.space.size,
        "runs": data["runs"],
        "wall_s": wall_s,
        "configurations_per_minute": 60 * planned.tried / wall_s,
        "aim_reached": None
        if planned.runs.kept > planned.runs.simulated
        else planned.tried * AIM_S >= BUDGET * wall_s,
        "choice": data["choice"],
        "default": data["default"],
        "command": command(serve_arguments(planned)),
        "gain": data["gain"],
        "beats_default": points is not None and points["low"] is not None and points["low"] > 0,
        "rungs": data["rungs"],
    }


def verified(planned: PlannedDeployment, folder: Path, seconds: float) -> dict[str, Any]:
    """Check a plan on this machine."""
    from headway.planner.verify import verify

    return verify(planned, folder, seconds, say).to_dict()


def _said(trace: str) -> Callable[[float, str], None]:
    """A progress callback that reports each tenth."""
    told = -1

    def tell(share: float, what: str) -> None:
        nonlocal told
        if int(share * 10) > told:
            told = int(share * 10)
            say(f"{trace}: {share:4.0%}, {what}")

    return tell


def main() -> None:
    """Print one JSON object."""
    parser = command_line(__doc__)
    parser.add_argument("--out", type=Path, help="folder that keeps runs (default: none is kept)")
    parser.add_argument("--data", type=Path, help=f"shared data (default {DATA}, where it is)")
    parser.add_argument("--budget", type=int, default=BUDGET, help=f"configurations (default {BUDGET})")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_BUDGET} configurations")
    jobs_option(parser)
    parser.add_argument("--limit", type=int, help="only so many requests of each trace")
    parser.add_argument("--verify", action="store_true", help="deploy each choice here and compare")
    parser.add_argument("--verify-seconds", type=float, default=60.0, help="seconds of requests (default 60)")
    print(json.dumps(planned_traces(parser.parse_args())))


def planned_traces(given: argparse.Namespace) -> dict[str, Any]:
    """Plan for the traces asked for; return the report."""
    with TemporaryDirectory(prefix="headway-planner-") as temporary:
        bench = Bench(
            out=given.out or Path(temporary),
            data=given.data,
            budget=QUICK_BUDGET if given.quick else given.budget,
            jobs=given.jobs,
            limit=given.limit,
        )
        rows: dict[str, Any] = {}
        for trace in SHARED:
            planned, rows[trace] = bench.plan(trace)
            if given.verify:
                rows[trace]["verify"] = verified(planned, bench.out / trace, given.verify_seconds)
    return {"cores": os.cpu_count(), "jobs": bench.jobs, "traces": rows}


if __name__ == "__main__":
    main()
