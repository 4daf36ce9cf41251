"""Preset `vllm` against stock vLLM's scheduler, step by step: `python bench/right/parity.py --json`.

Both are the real scheduler and KV manager, without a model. Lengths come from the Azure 2023 conversation
trace where the shared data is there, else from the fitted law of the same name; the KV cache is small
enough that requests are preempted. Four cases: prefix caching off and on, one and two steps in flight.
`same` is the share of steps that grant the same tokens to the same requests and preempt the same ones;
`mutant_same` the same for a run of ours whose order is reversed, to show that the comparison can fail.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # vLLM logs to stdout, which is for data here

from headway.core.job import Job
from headway.engine.demo_model import ensure_demo_random
from headway.engine.model_free import ScriptedRequest, engine_config, headway_builder
from headway.engine.self_check import Parity, compare_logs, run_script, stock_builder
from headway.lab.trace import Trace
from headway.policies.order.arrival import Arrival

SHARED_TRACE = Path(__file__).parents[3] / "shared" / "data" / "traces" / "azure2023_conv.csv.gz"
OWN_TRACE = "gen:poisson:rate=6/input=azure-conversation/output=azure-conversation/count=400/seed=1"
REQUESTS = 400
MAX_MODEL_LEN = 4096
NUM_BLOCKS = 400
STEPS_PER_S = 2.0
MAX_STEPS = 20_000


@dataclass(frozen=True, slots=True)
class ParityCase:
    """One configuration that both schedulers run under."""

    prefix_caching: bool
    asynchronous: bool

    @property
    def name(self) -> str:
        """The name in the table."""
        mode = "async" if self.asynchronous else "sync"
        return f"{mode}, prefix caching {'on' if self.prefix_caching else 'off'}"


CASES = [ParityCase(prefix, asynchronous) for asynchronous in (False, True) for prefix in (False, True)]


class Reversed(Arrival):
    """The mutant: last come, first served."""

    def top(self, k: int, now_s: float) -> list[Job]:
        """The last k of the queue."""
        return self._index.slice(0, len(self._index))[::-1][:k]


def main() -> int:
    """Print `{"steps": N, "planned_steps": N, "same": 1.0, "preemptions": M, "mutant_same": x}`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout (the default output)")
    parser.add_argument("--requests", type=int, default=REQUESTS, help=f"default {REQUESTS}")
    arguments = parser.parse_args()
    model = str(ensure_demo_random())
    script = make_script(arguments.requests)
    results = [run_case(model, script, case) for case in CASES]
    total = {key: sum(result[key] for result in results) for key in results[0]}
    steps = total["steps"]
    print(
        json.dumps(
            {
                "steps": steps,
                "planned_steps": total["planned_steps"],
                "same": total["same_steps"] / steps,
                "preemptions": total["preemptions"],
                "mutant_same": total["mutant_same_steps"] / total["mutant_steps"],
                "cases": {case.name: result for case, result in zip(CASES, results, strict=True)},
            }
        )
    )
    return 0 if total["same_steps"] == steps == total["planned_steps"] else 1


def make_script(count: int) -> list[ScriptedRequest]:
    """Requests with the trace's lengths and gaps; every fifth shares its leading half with others."""
    source = str(SHARED_TRACE) if SHARED_TRACE.exists() else OWN_TRACE
    print(f"lengths from {Path(source).name}", file=sys.stderr)
    rng = random.Random(0)
    script = []
    for index, request in enumerate(Trace(source, count).requests()):
        prompt = min(request.input_tokens, MAX_MODEL_LEN // 2)
        shared = prompt // 2 if rng.random() < 0.5 else 0
        group = rng.randrange(5) * MAX_MODEL_LEN
        own = 1_000_000 + index * MAX_MODEL_LEN
        script.append(
            ScriptedRequest(
                id=request.id,
                arrival_step=int(request.arrival_s * STEPS_PER_S),
                prompt_token_ids=[*range(group, group + shared), *range(own, own + prompt - shared)],
                output_tokens=min(request.output_tokens, MAX_MODEL_LEN // 4),
            )
        )
    return script


def run_case(model: str, script: list[ScriptedRequest], case: ParityCase) -> dict[str, int]:
    """Count how stock, Headway and the mutant agree under one configuration."""
    print(case.name, "...", file=sys.stderr)
    config = engine_config(model, max_model_len=MAX_MODEL_LEN, enable_prefix_caching=case.prefix_caching)
    config.scheduler_config.async_scheduling = case.asynchronous
    limits = {"num_blocks": NUM_BLOCKS, "max_steps": MAX_STEPS}
    _, expected = run_script(stock_builder(case.asynchronous), config, script, **limits)
    scheduler, actual = run_script(headway_builder(check=True), config, script, **limits)
    _, mutant = run_script(_mutant_builder, config, script, **limits)
    parity: Parity = compare_logs(expected, actual)
    mutant_parity = compare_logs(expected, mutant)
    if parity.first_difference:
        print(parity.first_difference, file=sys.stderr)
    return {
        "steps": parity.steps,
        "planned_steps": scheduler.counters.planned_steps,
        "same_steps": parity.same_steps,
        "preemptions": parity.preemptions,
        "mutant_steps": mutant_parity.steps,
        "mutant_same_steps": mutant_parity.same_steps,
    }


def _mutant_builder(**kwargs: Any) -> Any:
    scheduler = headway_builder()(**kwargs)
    scheduler.guard.policy.order = Reversed()
    return scheduler


if __name__ == "__main__":
    sys.exit(main())
