"""CPU time that following every request adds to a step: `python bench/cost/explain_overhead.py --json`.

Headway's scheduler with and without a trail (`--explain 500` and `0`), in turn in one process and without a model, at
the load of `bench/cost/plan_overhead.py`: 256 running, 1,000 waiting, 10 arrivals and about 10 finishes a step.
`added_us` is the difference of process CPU time step by step; `steady` is the same with no arrivals and no ends: 256
residents that decode. `answer_us` is what one question about a request takes, on the scheduler's own thread.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # vLLM logs to stdout, which is for data here
sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

from bench.command import preset_option
from bench.cost.plan_overhead import RUNNING, WAITING, Lane, added_us, options, quantiles
from headway.engine.demo_model import ensure_demo_random
from headway.engine.model_free import ModelFreeEngine, ScriptedRequest, headway_builder
from headway.explain.trail import KEPT_ENDED

if TYPE_CHECKING:
    from headway.engine.scheduler import PolicyScheduler

PRESETS = ("vllm", "fastserve")
STEP_S = 0.025
LONG_TOKENS = 1_000
QUESTIONS = 50


def main() -> None:
    """Print `{"<preset>": {"added_us": {"p50": a, "p99": b}, "steady_us": {...}, "answer_us": {...}}}`."""
    parser = options(__doc__)
    preset_option(parser, "--preset", "measure only this one")
    arguments = parser.parse_args()
    model = str(ensure_demo_random())
    table: dict[str, Any] = {}
    for preset in arguments.preset or PRESETS:
        print(f"{preset} ...", file=sys.stderr)
        table[preset] = _measured(model, preset, arguments.steps)
    print(json.dumps(table))


def _measured(model: str, preset: str, steps: int) -> dict[str, dict[str, float]]:
    found = {}
    for name, kind in {"added_us": _Busy, "steady_us": _Steady}.items():
        without, followed = (kind(model, preset, kept) for kept in (0, KEPT_ENDED))
        found[name] = quantiles(step.added for step in added_us(without, followed, steps))
        if kind is _Busy:
            found["answer_us"] = quantiles(_answers_us(followed.engine.scheduler))
    return found


class _Busy(Lane):
    """A warm scheduler at the load of the other bench, with a step each 25 ms of its clock."""

    waiting = min(WAITING)

    def __init__(self, model: str, preset: str, kept: int) -> None:
        build = headway_builder(policy=preset, batch_width=RUNNING, explain=kept)
        super().__init__(model, build, self.waiting)
        ticking(self.engine)
        self.warm()


class _Steady(_Busy):
    """A scheduler whose residents decode for ever, with no job waiting."""

    waiting = 0
    arrivals_a_step = 0

    def next(self) -> ScriptedRequest:
        """A short prompt with a long answer."""
        self.count += 1
        return ScriptedRequest(str(self.count), 0, range(self.count * 200, self.count * 200 + 8), LONG_TOKENS)


def ticking(engine: ModelFreeEngine) -> None:
    """Let the scheduler's clock advance slightly with each reading."""
    ticks = iter(range(1 << 40))
    engine.scheduler.clock = lambda: next(ticks) * STEP_S / 4


def _answers_us(scheduler: PolicyScheduler) -> Iterator[float]:
    """Times of questions about ended requests, beginning with the oldest."""
    listed = scheduler.answer("listed", "")
    assert not isinstance(listed, str), listed
    known = [one["id"] for one in listed if one["outcome"] != "live"]
    for id_ in (known or list(scheduler.jobs))[:QUESTIONS]:
        started = time.process_time()
        scheduler.answer("explain", id_)
        yield (time.process_time() - started) * 1e6


if __name__ == "__main__":
    main()
