"""Preset `predicted` between `fastserve` and the oracle, simulated: `python bench/gain/predicted.py --json`.

Four clients with answers of their own lengths (medians of 10, 40, 120 and 300 tokens) share an engine: one with
few seats and room for all KV (`roomy`), one with few seats and little memory (`short memory`), and one with little
memory and a seat for every request (`wide`). Load 1 is the rate at which `vllm` serves the same requests when all are
there from the start. At each load, as means over seeds: mean and p99 JCT in seconds and preemptions of `vllm`,
`fastserve`, `srpt-oracle` (clairvoyant) and `hrrn`, and of `predicted` with predictors from exact to broken:

  exact, tau=0.8, tau=0.6, tau=0.3   the true lengths with noise of so much rank correlation, honest intervals
  learned                            the product's own, from an empty start, by client and prompt length alone
  none                               no predictions
  reversed, constant, random         wrong from the start, and sure of themselves
  turning                            exact for half of the requests, then reversed

`gap_closed` says how far the mean of `predicted` has come from `fastserve` (0) to the oracle (1), where these are more
than 1 % apart; the oracle is not optimal (adr/0012), so it may be passed. What must be true is in `holds`: with exact
predictions and those of tau 0.8 the mean is no worse than `fastserve`'s (by 1 %), and no predictor makes it more than
3 % worse. Cells in which that is not so are in `exceptions`. About 1 s of CPU a run, of 540; `--quick` makes 90.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

from bench.command import all_done
from bench.figures import jcts_s
from headway.lab.engine_sizes import EngineSizes, engine_limits
from headway.lab.simulation import simulate_policy
from headway.predict.models.known_models import model_shape
from headway.predict.steps.hardware import calibration
from headway.sim.simulation import System
from headway.statistics import mean
from headway.traces import Constant, Poisson, TraceRequest, Zipf, at_once, generate

REQUESTS = 600
LIMIT_TOKENS = 1_024
MEDIANS_TOKENS = (10, 40, 120, 300)
SPREAD = 0.5
LOADS = (0.5, 0.8, 1.0, 1.2)
SEEDS = 3
HARDWARE, MODEL = "a100-40g", "opt-13b"
SYSTEMS = {
    "roomy": EngineSizes(max_num_seqs=256, batch_width=16, host_blocks=4_000),
    "short memory": EngineSizes(max_num_seqs=256, batch_width=16, num_blocks=250, host_blocks=4_000),
    "wide": EngineSizes(max_num_seqs=256, num_blocks=400, host_blocks=4_000),
}
REFERENCES = ("vllm", "fastserve", "srpt-oracle")
PREDICTORS = {
    "exact": "noisy-oracle:tau=1",
    "tau=0.8": "noisy-oracle:tau=0.8",
    "tau=0.6": "noisy-oracle:tau=0.6",
    "tau=0.3": "noisy-oracle:tau=0.3",
    "learned": "learned",
    "none": "none",
    "reversed": "broken:way=reversed",
    "constant": "broken:way=constant",
    "random": "broken:way=random",
    "turning": "broken:way=turning",
}
GOOD = ("exact", "tau=0.8")
"""Predictors with which the mean must be no worse than that of the queues."""
MOST_WORSE_GOOD = 1.01
MOST_WORSE = 1.03
LEAST_GAP = 0.01

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class PredictedCell:
    """One run: engine, policy, predictor and load."""

    system: str
    load: float
    seed: int
    policy: str
    predictor: str
    rate_rps: float

    @property
    def name(self) -> str:
        """The policy, and the predictor where it makes a difference."""
        return self.policy if self.policy in REFERENCES else f"{self.policy} ({self.predictor})"


def main() -> None:
    """Print `{"systems": {...: {"capacity_rps": x, "loads": {...}}}, "holds": bool, "exceptions": [...]}`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout (the default output)")
    parser.add_argument("--quick", action="store_true", help="one seed, loads 0.8 and 1.2")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    arguments = parser.parse_args()
    loads, seeds = ((0.8, 1.2), 1) if arguments.quick else (LOADS, SEEDS)
    capacity_rps = {name: capacity(name) for name in SYSTEMS}
    todo = list(cells(capacity_rps, loads, seeds))
    table = averaged(all_done(measured, todo, arguments.jobs))
    exceptions = broken_promises(table)
    systems = {
        name: {
            "capacity_rps": round(capacity_rps[name], 3),
            "loads": table[name],
            "gap_closed": {load: gap_closed(runs) for load, runs in table[name].items()},
        }
        for name in SYSTEMS
    }
    meta = {"measured_on": "simulated", "hardware": HARDWARE, "model": MODEL, "seeds": seeds}
    print(json.dumps({**meta, "systems": systems, "holds": not exceptions, "exceptions": exceptions}))


def cells(capacity_rps: Mapping[str, float], loads: Sequence[float], seeds: int) -> Iterable[PredictedCell]:
    """Every policy with every predictor it goes by."""
    runs = [(policy, "none") for policy in REFERENCES]
    runs += [("predicted", predictor) for predictor in PREDICTORS]
    runs += [("hrrn", "exact"), ("hrrn", "tau=0.6")]
    for system, per_s in capacity_rps.items():
        for load in loads:
            for seed in range(seeds):
                for policy, predictor in runs:
                    yield PredictedCell(system, load, seed, policy, predictor, load * per_s)


def requests(rate_rps: float, seed: int, count: int = REQUESTS) -> list[TraceRequest]:
    """The four clients' requests, in random order; all declare the same limit."""
    made = generate(
        Poisson(rate_rps=rate_rps),
        Zipf(theta=1.1, maximum=512),
        Constant(tokens=1),  # the answers are the clients'
        count,
        seed,
    )
    rng = Random(f"clients of {seed}")
    return [_of_a_client(request, rng) for request in made]


def _of_a_client(request: TraceRequest, rng: Random) -> TraceRequest:
    client = rng.randrange(len(MEDIANS_TOKENS))
    tokens = round(MEDIANS_TOKENS[client] * rng.lognormvariate(0.0, SPREAD))
    return replace(
        request,
        tenant=f"client {client}",
        output_tokens=min(max(1, tokens), LIMIT_TOKENS),
        max_output_tokens=LIMIT_TOKENS,
    )


def capacity(system: str) -> float:
    """Requests a second that `vllm` serves when all are there from the start."""
    backlog = at_once(requests(1.0, 0))
    return REQUESTS / simulated(backlog, PredictedCell(system, 0.0, 0, "vllm", "none", 0.0))["end_s"]


def measured(cell: PredictedCell) -> Figures:
    """What a cell came to."""
    return simulated(requests(cell.rate_rps, cell.seed), cell)


def simulated(trace: Sequence[TraceRequest], cell: PredictedCell) -> Figures:
    """What one run came to."""
    result = simulate_policy(
        trace,
        cell.policy,
        system_of(cell.system),
        max_output_tokens=LIMIT_TOKENS,
        seed=cell.seed,
        lengths=PREDICTORS[cell.predictor],
    )
    records = result.records
    assert len(records) == len(trace), "requests were lost"
    jct_s = sorted(jcts_s(records))
    return {
        "mean_jct_s": mean(jct_s),
        "p99_jct_s": jct_s[int(0.99 * len(jct_s))],
        "preemptions": float(sum(record.preemptions for record in records)),
        "end_s": result.end_s,
    }


def system_of(name: str) -> System:
    """The engine of that name."""
    costs = calibration(HARDWARE, model_shape(MODEL))
    return System(limits=engine_limits(SYSTEMS[name], HARDWARE, costs), calibration=costs)


Table = dict[str, dict[str, dict[str, Figures]]]
"""System -> load -> policy with predictor -> figures."""


def averaged(found: Mapping[PredictedCell, Figures]) -> Table:
    """Means over seeds."""
    runs: dict[tuple[str, str, str], list[Figures]] = {}
    for cell, figures in found.items():
        runs.setdefault((cell.system, f"{cell.load:g}", cell.name), []).append(figures)
    table: Table = {}
    for (system, load, name), several in runs.items():
        means = {key: round(mean(each[key] for each in several), 4) for key in several[0]}
        table.setdefault(system, {}).setdefault(load, {})[name] = means
    return table


def broken_promises(table: Table) -> list[str]:
    """The cells in which what must be true is not, in words."""
    found = []
    for system, loads in table.items():
        for load, runs in loads.items():
            fastserve_s = runs["fastserve"]["mean_jct_s"]
            for predictor in PREDICTORS:
                mean_s = runs[f"predicted ({predictor})"]["mean_jct_s"]
                if mean_s > (MOST_WORSE_GOOD if predictor in GOOD else MOST_WORSE) * fastserve_s:
                    worse = f"{mean_s:.3f} s, fastserve {fastserve_s:.3f} s"
                    found.append(f"{system}, load {load}, {predictor}: {worse}")
    return found


def gap_closed(runs: Mapping[str, Figures]) -> dict[str, float] | None:
    """The share of the way from `fastserve` to the oracle, by predictor; None where there is hardly a way."""
    fastserve_s, oracle_s = (runs[name]["mean_jct_s"] for name in ("fastserve", "srpt-oracle"))
    if fastserve_s - oracle_s <= LEAST_GAP * fastserve_s:
        return None
    return {
        predictor: round(
            (fastserve_s - runs[f"predicted ({predictor})"]["mean_jct_s"]) / (fastserve_s - oracle_s), 3
        )
        for predictor in PREDICTORS
    }


if __name__ == "__main__":
    main()
