"""Ascendra on real instances against stock vLLM's: `python bench/gain/gateway_real.py --out DIR --json`.

One LP and one HP instance of the demo model, each computing on a core of its own, behind `headway serve`'s gateway. A
bursty stream with the lengths of the Azure conversation trace, scaled to the model, at 0.8, 1.0, 1.2 and 1.5 of what
two stock instances get through of it. Against them the same number of instances under stock vLLM's order behind the
same gateway, with round robin and with least outstanding work, each with and without the rule that drops what still
waits past its TTFT target; `headline` is against whichever of the four has the best goodput at that load.

Goodput is the share of all requests sent that met both targets. The targets are set, before anything is compared, from
stock at a light load (`targets.rule`). All instances stay up, those of other systems idle, and systems take turns
within each seed and load. Prefix caching is off, since a stream comes to the same instances more than once.

Per system and load: goodput (mean, by seed, spread = largest less smallest), latencies, the shares dropped and failed,
how much of a core each process used (`cores`), and `step_time_inflation`: how many times as long an instance's busiest
thread took because others had its core. `decode_inflation` is measured beforehand: the time between tokens at an
instance with all of them at work, over the same alone. `client` says what the client took and whether that is too
much. `simulated_goodput` is what the simulator says of the same streams, by the costs of one engine measured here.
With `--instances 3` there are two LP instances and one HP.

About 20 minutes with three seeds; what is in DIR already is not run again. Nothing else should run meanwhile.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from headway.statistics import mean, mean_of_known

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

import msgspec
from headway_reproduce.ascendra.real_run import (
    CLIENT,
    GATEWAY,
    OTHERS,
    Calibrated,
    StreamRun,
    calibrated,
    serve_stream,
    warm_up,
)
from headway_reproduce.ascendra.real_servers import VLLM_FLAGS, fleet
from headway_reproduce.ascendra.real_stream import Shape, TargetRule, bursty_stream
from headway_reproduce.ascendra.real_systems import (
    ASCENDRA,
    SERVICES,
    STOCK,
    SYSTEMS,
    calibrating,
    pool_sizes,
)

from bench.command import command_line, out_option, say, stream_options
from bench.real_runs import EngineSpec, profiled
from headway.core.slo import Slo
from headway.engine.demo_model import DEMO
from headway.engine.machine import machine_name, vllm_version
from headway.json_file import made_once
from headway.lab.engine_sizes import EngineSizes, engine_limits
from headway.lab.kept_runs import open_folder
from headway.lab.policy_choice import Parts
from headway.lab.simulation import simulate_policy
from headway.predict.steps.calibration import Calibration
from headway.results import RecordWriter, summarize
from headway.sim.simulation import System
from headway.traces import TraceRequest
from headway.whole_file import write_whole

# ---- figures -----------------------------------------------------------------------------------------

DISTURBING_CORES = 0.15
"""A client that takes more than this share of the cores is said to disturb what it measures."""
DISTURBING_LATE_S = 0.02
"""So is one that sends one request in a hundred later than this."""

LATENCIES = ("p50_ttft_s", "p99_ttft_s", "mean_tbt_s", "p99_tbt_s", "throughput_rps")

Runs = Mapping[str, Sequence[StreamRun]]
"""One load: a run for each seed, by system."""


def cell(runs: Runs) -> dict[str, Any]:
    """One load: every system's figures, the best of stock's, and what Ascendra has over it."""
    found: dict[str, Any] = {"systems": {name: system_figures(of) for name, of in runs.items()}}
    stock = [name for name in STOCK if name in runs]
    if stock and ASCENDRA in runs:
        best = max(stock, key=lambda name: mean(goodputs(runs[name])))
        found["best_of_stock"] = best
        found["over_best"] = over(goodputs(runs[ASCENDRA]), goodputs(runs[best]))
    return found


def goodputs(runs: Sequence[StreamRun]) -> list[float]:
    """Share of all requests that met both targets, seed by seed."""
    return [run.summary.goodput or 0.0 for run in runs]


def over(own: Sequence[float], other: Sequence[float]) -> dict[str, Any]:
    """Goodput over another's, in all and seed by seed; `points` are percentage points.

    A ratio is None where the other has none.
    """
    return {
        "ratio": _ratio(mean(own), mean(other)),
        "ratio_by_seed": [_ratio(mine, theirs) for mine, theirs in zip(own, other, strict=True)],
        "points": 100 * (mean(own) - mean(other)),
        "points_by_seed": [100 * (mine - theirs) for mine, theirs in zip(own, other, strict=True)],
    }


def _ratio(own: float, other: float) -> float | None:
    return own / other if other else None


def system_figures(runs: Sequence[StreamRun]) -> dict[str, Any]:
    """One system at one load; means over the seeds unless it says otherwise."""
    good = goodputs(runs)
    summaries = [run.summary for run in runs]
    return {
        "goodput": {"mean": mean(good), "by_seed": good, "spread": max(good) - min(good)},
        **{name: mean_of_known([getattr(summary, name) for summary in summaries]) for name in LATENCIES},
        "dropped": mean((summary.expired + summary.shed) / summary.requests for summary in summaries),
        "failed": mean(summary.failed / summary.requests for summary in summaries),
        "served": {name: mean(run.served.get(name, 0) for run in runs) for name in runs[0].served},
        "hand_offs": mean(run.hand_offs for run in runs),
        "cores": {name: mean(run.shares[name].cores for run in runs) for name in runs[0].shares},
        "step_time_inflation": {
            name: mean(run.shares[name].inflation for run in runs)
            for name in runs[0].shares
            if name not in (CLIENT, GATEWAY, OTHERS)
        },
    }


def client_figures(runs: Sequence[StreamRun], cores: int) -> dict[str, Any]:
    """What the client took in the run in which it took most, and whether that is too much."""
    most = max(run.shares[CLIENT].cores for run in runs) / cores
    latest_s = max(run.late_p99_s for run in runs)
    return {
        "share_of_cores_at_most": most,
        "late_p99_ms_at_most": 1000 * latest_s,
        "disturbs": most > DISTURBING_CORES or latest_s > DISTURBING_LATE_S,
        "rule": f"more than {DISTURBING_CORES:.0%} of all cores, or 1 % of requests sent over "
        f"{1000 * DISTURBING_LATE_S:g} ms late",
    }


def headline(cells: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """By load: goodput of Ascendra and of the best of stock's four, and their ratio."""
    return {
        load: {
            "ascendra": found["systems"][ASCENDRA]["goodput"]["mean"],
            "best_of_stock": found["systems"][found["best_of_stock"]]["goodput"]["mean"],
            "which": found["best_of_stock"],
            "ratio": found["over_best"]["ratio"],
        }
        for load, found in cells.items()
        if "over_best" in found
    }


# ---- the simulator on the same streams ---------------------------------------------------------------

BLOCK_TOKENS = 128
"""Of the CPU backend."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """Instances of this machine, on a virtual clock."""

    file: Path
    costs: Calibration
    instances: int

    @classmethod
    def measured(cls, file: Path, seconds: float, instances: int) -> Simulated:
        """By costs that are in the file, else measured now for about so long and kept there."""
        flags = (*VLLM_FLAGS, "--enforce-eager")
        spec = EngineSpec(model=DEMO, flags=flags, block_tokens=BLOCK_TOKENS)
        return cls(file, profiled(file, spec, seconds), instances)

    def goodput(self, system: str, requests: Sequence[TraceRequest], seed: int) -> float:
        """The share of requests that meet their targets there."""
        service = SERVICES[SYSTEMS[system].service]
        policy = ASCENDRA if system == ASCENDRA else service.presets[""]
        result = simulate_policy(
            requests,
            policy,
            System(
                limits=engine_limits(EngineSizes(block_size=BLOCK_TOKENS), str(self.file), self.costs),
                calibration=self.costs,
                instances=self.instances,
                router=SYSTEMS[system].router,
                pools=pool_sizes(service, self.instances) if len(service.presets) > 1 else None,
            ),
            parts=Parts(leaving=service.leaving),
            max_output_tokens=max(request.output_tokens for request in requests),
            seed=seed,
        )
        return summarize(result.records).goodput or 0.0


# ---- the bench ---------------------------------------------------------------------------------------

LOADS = (0.8, 1.0, 1.2, 1.5)
SEEDS = 3
SECONDS = 12.0


@dataclass(frozen=True, slots=True)
class GatewayRun:
    """One stream on one system."""

    system: str
    load: float
    seed: int

    def file(self, out: Path) -> Path:
        """Where what it came to is kept."""
        return out / f"{re.sub('[^a-z]+', '-', self.system)}-{self.load:g}-{self.seed}.json"


@dataclass(frozen=True)
class Plan:
    """All that decides what is run; what was measured so far is in `out`."""

    out: Path
    instances: int
    seconds: float
    seeds: int
    loads: Sequence[float]
    systems: Sequence[str]
    rule: TargetRule
    shape: Shape

    def runs(self) -> list[GatewayRun]:
        """In the order in which they are done: the first changes from one stream to the next."""
        streams = product(range(self.seeds), self.loads)
        return [
            GatewayRun(self.systems[(place + turn) % len(self.systems)], load, seed)
            for turn, (seed, load) in enumerate(streams)
            for place in range(len(self.systems))
        ]

    @property
    def calibration(self) -> Path:
        """Where what is measured beforehand is kept."""
        return self.out / "calibrated.json"

    def open(self) -> None:
        """Make the folder, or go on with it. Raises ConfigError if it holds runs of another kind."""
        open_folder(self.out / "bench.json", {"instances": self.instances, "seconds": self.seconds}, "bench")

    @cached_property
    def calibrated(self) -> Calibrated:
        """As it was kept."""
        return msgspec.json.decode(self.calibration.read_bytes(), type=Calibrated)

    def targets(self) -> Slo:
        """Of every request of every run."""
        return self.rule.targets(self.calibrated.light)

    def stream(self, run: GatewayRun) -> list[TraceRequest]:
        """The requests of a run: the same for every system."""
        rate_rps = run.load * self.calibrated.capacity_rps
        return bursty_stream(rate_rps, self.seconds, run.seed, self.targets(), self.shape)


def measure(plan: Plan) -> None:
    """Do all that is not kept yet, on instances that are started once."""
    if plan.calibration.exists():
        say(f"going on at {plan.calibrated.capacity_rps:.1f} requests a second of capacity")
    todo = [run for run in plan.runs() if not run.file(plan.out).exists()]
    if not todo:
        return
    with fleet(plan.systems, plan.instances, plan.out, say) as servers:
        warm_up(servers)
        made_once(plan.calibration, Calibrated, lambda: calibrated(servers, plan.shape, say))
        for run in todo:
            found, records = serve_stream(servers, run.system, plan.stream(run))
            file = run.file(plan.out)
            with RecordWriter(file.with_suffix(".jsonl")) as writer:
                for record in records:
                    writer.append(record)
            write_whole(file, msgspec.json.encode(found))
            say(
                f"seed {run.seed}, load {run.load:g}, {run.system}: goodput {found.summary.goodput or 0.0:.3f}"
            )


def report(plan: Plan, simulated: Simulated | None) -> dict[str, Any]:
    """All figures, from what is kept; beside them what the simulator says, unless that is left out."""
    cells, every = {}, []
    for load in plan.loads:
        runs = {
            system: [kept_run(GatewayRun(system, load, seed), plan.out) for seed in range(plan.seeds)]
            for system in plan.systems
        }
        every += [run for of in runs.values() for run in of]
        cells[f"{load:g}"] = cell(runs)
        if simulated is not None:
            say(f"simulating load {load:g}")
            cells[f"{load:g}"]["simulated_goodput"] = {
                system: mean(
                    simulated.goodput(system, plan.stream(GatewayRun(system, load, seed)), seed)
                    for seed in range(plan.seeds)
                )
                for system in plan.systems
            }
    slo, found = plan.targets(), plan.calibrated
    return {
        "measured_on": machine_name(),
        "vllm": vllm_version(),
        "model": "demo",
        "instances": plan.instances,
        "seeds": plan.seeds,
        "seconds": plan.seconds,
        "stream": plan.shape.text(),
        "capacity_rps": found.capacity_rps,
        "light": {"p50_ttft_s": found.light.p50_ttft_s, "mean_tbt_s": found.light.mean_tbt_s},
        "targets": {"ttft_s": slo.ttft_s, "tbt_s": slo.tbt_s, "rule": plan.rule.text()},
        "decode_inflation": found.decode_inflation,
        "headline": headline(cells),
        "client": client_figures(every, os.cpu_count() or 1),
        "cells": cells,
    }


def kept_run(run: GatewayRun, out: Path) -> StreamRun:
    """What a run came to."""
    return msgspec.json.decode(run.file(out).read_bytes(), type=StreamRun)


def main() -> None:
    """Print one JSON object: `headline`, and a cell for each load with every system in it."""
    parser = command_line(__doc__)
    out_option(parser)
    parser.add_argument("--instances", type=int, default=2, help="of each service (default 2)")
    stream_options(parser, seconds=SECONDS, seeds=SEEDS, loads=LOADS)
    parser.add_argument("--system", choices=SYSTEMS, action="append", help="default: all")
    parser.add_argument(
        "--profile-seconds", type=float, default=30.0, help="for the simulator's costs; 0: none (default 30)"
    )
    arguments = parser.parse_args()
    calibrating(arguments.system or SYSTEMS)
    plan = Plan(
        out=arguments.out,
        instances=arguments.instances,
        seconds=arguments.seconds,
        seeds=arguments.seeds,
        loads=tuple(arguments.load or LOADS),
        systems=tuple(arguments.system or SYSTEMS),
        rule=TargetRule(),
        shape=Shape(),
    )
    plan.open()
    measure(plan)
    simulated = None
    if arguments.profile_seconds > 0:
        simulated = Simulated.measured(plan.out / "cost.json", arguments.profile_seconds, plan.instances)
    found = report(plan, simulated)
    (arguments.out / "gateway-real.json").write_text(json.dumps(found) + "\n")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
