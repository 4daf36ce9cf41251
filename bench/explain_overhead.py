"""CPU time that following every request adds to a step: `python bench/explain_overhead.py --json`.

Headway's scheduler with and without a trail (`--explain 500` and `0`), in turn in one process and without a model, at
the load of `bench/plan_overhead.py`: 256 running, 1,000 waiting, 10 arrivals and about 10 finishes a step. `added_us`
is the difference of process CPU time step by step; `steady` is the same with nobody coming or going: 256 residents
that decode. `answer_us` is what one question about a request takes, on the scheduler's own thread.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # vLLM logs to stdout, which is for data here

from headway.core.explain.trail import KEPT_ENDED
from headway.engine.demo_model import ensure_demo_random
from headway.engine.model_free import ModelFreeEngine, ScriptedRequest, headway_builder
from headway.policies.presets import known_presets

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.plan_overhead import MEAN_OUTPUT_TOKENS, QUANTILES, RUNNING, WAITING, Lane, quantile

PRESETS = ("vllm", "fastserve")
STEP_S = 0.025
LONG_TOKENS = 1_000
QUESTIONS = 50


def main() -> None:
    """Print `{"<preset>": {"added_us": {"p50": a, "p99": b}, "steady_us": {...}, "answer_us": {...}}}`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout (the default output)")
    parser.add_argument(
        "--preset", action="append", choices=list(known_presets()), help="measure only this one"
    )
    parser.add_argument("--steps", type=int, default=400, help="measured steps per cell (default 400)")
    arguments = parser.parse_args()
    model = str(ensure_demo_random())
    table: dict[str, Any] = {}
    for preset in arguments.preset or PRESETS:
        print(f"{preset} ...", file=sys.stderr)
        table[preset] = _measured(model, preset, arguments.steps)
    print(json.dumps(table))


def _measured(model: str, preset: str, steps: int) -> dict[str, dict[str, float]]:
    lanes = [_lane(model, preset, kept) for kept in (0, KEPT_ENDED)]
    added = list(_added_us(lanes, steps))
    steady = list(_added_us([_steady(model, preset, kept) for kept in (0, KEPT_ENDED)], steps))
    return {
        "added_us": _quantiles(added),
        "steady_us": _quantiles(steady),
        "answer_us": _quantiles(list(_answers_us(lanes[1].engine.scheduler))),
    }


def _lane(model: str, preset: str, kept: int) -> Lane:
    """A scheduler at the load of the other bench, a step each 25 ms on its clock."""
    lane = Lane(model, headway_builder(policy=preset, batch_width=RUNNING, explain=kept), min(WAITING))
    ticking(lane.engine)
    for _ in range(2 * MEAN_OUTPUT_TOKENS):
        lane.step_s()
    return lane


class _Steady(Lane):
    """A scheduler whose residents decode for ever, with nobody behind them."""

    def step_s(self) -> float:
        """CPU seconds of one step."""
        scheduler = self.engine.scheduler
        started = time.process_time()
        output = scheduler.schedule()
        scheduled = time.process_time()
        computed = self.engine.compute(output)
        resumed = time.process_time()
        scheduler.update_from_output(output, computed)
        return time.process_time() - resumed + scheduled - started

    def next(self) -> ScriptedRequest:
        """A short prompt with a long answer."""
        self.count += 1
        return ScriptedRequest(str(self.count), 0, range(self.count * 200, self.count * 200 + 8), LONG_TOKENS)


def _steady(model: str, preset: str, kept: int) -> Lane:
    lane = _Steady(model, headway_builder(policy=preset, batch_width=RUNNING, explain=kept), 0)
    ticking(lane.engine)
    for _ in range(MEAN_OUTPUT_TOKENS):
        lane.step_s()
    return lane


def ticking(engine: ModelFreeEngine) -> None:
    """Let each look at the scheduler's clock find it a fraction of a step later."""
    ticks = iter(range(1 << 40))
    engine.scheduler.clock = lambda: next(ticks) * STEP_S / 4


def _added_us(lanes: list[Lane], steps: int) -> Iterator[float]:
    gc.collect()
    gc.freeze()
    without, followed = lanes
    for _ in range(steps):
        without_s = without.step_s()
        yield (followed.step_s() - without_s) * 1e6
    gc.unfreeze()


def _answers_us(scheduler: Any) -> Iterator[float]:
    """Questions about requests that have ended, about the oldest first."""
    known = [one["id"] for one in scheduler.answer("listed", "") if one["outcome"] != "live"]
    for id_ in (known or list(scheduler.jobs))[:QUESTIONS]:
        started = time.process_time()
        scheduler.answer("explain", id_)
        yield (time.process_time() - started) * 1e6


def _quantiles(values: list[float]) -> dict[str, float]:
    ascending = sorted(values)
    return {name: quantile(ascending, share) for name, share in QUANTILES.items()}


if __name__ == "__main__":
    main()
