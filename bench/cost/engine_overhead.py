"""What Headway adds to the steps of the real CPU engine: `python bench/cost/engine_overhead.py --json`.

`plan_overhead` calls a scheduler in a loop; here workers compute between two calls, and have emptied the caches by
then, so that the same code takes several times as long. One engine (the demo model, `--running` requests that decode
together, none comes or waits) is scheduled by vLLM's own scheduler and by `--policy` (default `vllm` and `headway`)
in turn, `--rounds` times, so that a machine's drift hits all alike. The first 30 steps of a round, with the prompts and
all that the step-time model learns at first, are left out. With `--slo-tbt` all requests have that target between
tokens.

Per contender: `step_us`, the median over the rounds of a round's median step; `parts_us`, the means of its parts:
`schedule` and `update` (both hold the step up), `follow` (while the workers compute), `dispatch`, and `rest`, mostly
the workers. `times_stock` is the median over the rounds of its median step to stock's in the same round, between the
quartiles `low` and `high`: where those lie on both sides of 1 there is nothing to see.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # vLLM logs to stdout, which is for data here
sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

from bench.command import command_line, preset_option
from bench.gain.headway_real_runs import memory
from bench.real_runs import STOCK, Contender
from headway.core.slo import Slo
from headway.engine.machine import machine_name, vllm_version
from headway.engine.stepped_engine import Hints, SteppedEngine
from headway.errors import ConfigError
from headway.statistics import mean, median, quantile

POLICIES = ("vllm", "headway")
KV_BLOCKS = 96
PROMPT_TOKENS = 30
SKIPPED_STEPS, STEPS = 30, 100
PARTS = {"schedule": "schedule", "get_grammar_bitmask": "follow", "update_from_output": "update"}
"""A scheduler's methods in a step -> their names in the output."""


class Round(NamedTuple):
    """Steps of one round: seconds of each step, and total seconds of each part."""

    steps_s: Sequence[float]
    parts_s: Mapping[str, float]

    @property
    def step_s(self) -> float:
        """The median step."""
        return median(self.steps_s)


def main() -> None:
    """Print `{"contenders": {"stock": {"step_us": s, "parts_us": {...}}, "headway": {..., "times_stock": t}, ...}}`."""
    arguments = options().parse_args()
    policies = tuple(dict.fromkeys(arguments.policy or POLICIES))
    hints: Hints = {} if arguments.slo_tbt is None else {"headway_tbt_ms": arguments.slo_tbt * 1e3}
    contenders = [STOCK, *(Contender(policy, policy) for policy in policies)]
    rounds: dict[str, list[Round]] = {contender.name: [] for contender in contenders}
    with memory(KV_BLOCKS).serving() as engine:
        for number in range(arguments.rounds):
            print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
            for contender in contenders if number % 2 else reversed(contenders):
                contender.put_in(engine, arguments.running)
                rounds[contender.name].append(serve(engine, arguments.running, hints))
    facts = {"measured_on": machine_name(), "vllm": vllm_version(), "running": arguments.running}
    facts["slo_tbt_s"] = arguments.slo_tbt
    print(json.dumps({**facts, "rounds": arguments.rounds, "contenders": figures(rounds)}))


def options() -> argparse.ArgumentParser:
    """The command's options."""
    parser = command_line(__doc__)
    preset_option(parser, "--policy", "measure only these")
    parser.add_argument("--rounds", type=_count(2, 10_000), default=60, help="of each contender (default 60)")
    parser.add_argument(
        "--running",
        type=_count(1, 16),
        default=8,
        help="requests that decode together (default 8; at most 16)",
    )
    parser.add_argument(
        "--slo-tbt", type=_seconds, metavar="SECONDS", help="target between tokens of every request (none)"
    )
    return parser


def _count(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{value} is not accepted: {least} to {most} are")
        return value

    return read


def _seconds(text: str) -> float:
    try:
        value = float(text)
        Slo(tbt_s=value)
    except (ConfigError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return value


def serve(engine: SteppedEngine, running: int, hints: Hints) -> Round:
    """Serve a round of requests with these hints under the engine's current scheduler."""
    core = engine.core
    gc.collect()
    for number in range(running):
        prompt = [300 + number] * PROMPT_TOKENS
        core.add_request(engine.make_request(f"{number}", prompt, SKIPPED_STEPS + STEPS, hints))
    steps_s: list[float] = []
    with (
        _timed(core.scheduler, PARTS) as parts,
        _timed(core.model_executor, {"execute_model": "dispatch"}) as sent,
    ):
        while core.scheduler.has_requests():
            started_s = time.perf_counter()
            core.step_fn()
            steps_s.append(time.perf_counter() - started_s)
            if len(steps_s) == SKIPPED_STEPS:
                parts.clear()
                sent.clear()
    return Round(steps_s[SKIPPED_STEPS:], {**parts, **sent})


@contextmanager
def _timed(called: Any, names: Mapping[str, str]) -> Iterator[dict[str, float]]:
    """Measure the seconds spent in these methods of an object, under other names, inside the block."""
    spent_s: dict[str, float] = defaultdict(float)

    def timed(method: Callable[..., Any], part: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            started_s = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                spent_s[part] += time.perf_counter() - started_s

        return call

    for name, part in names.items():
        setattr(called, name, timed(getattr(called, name), part))
    try:
        yield spent_s
    finally:
        for name in names:
            delattr(called, name)


def figures(rounds: Mapping[str, Sequence[Round]]) -> dict[str, Any]:
    """Each contender's figures in microseconds, and its ratio to stock, round by round."""
    return {
        name: {**_figures(own), **({} if name == STOCK.name else _against(own, rounds[STOCK.name]))}
        for name, own in rounds.items()
    }


def _figures(own: Sequence[Round]) -> dict[str, Any]:
    parts = {part: mean(each.parts_s[part] / len(each.steps_s) for each in own) for part in own[0].parts_s}
    rest = mean(mean(each.steps_s) for each in own) - sum(parts.values())
    return {
        "step_us": round(median(each.step_s for each in own) * 1e6, 1),
        "parts_us": {part: round(seconds * 1e6, 1) for part, seconds in {**parts, "rest": rest}.items()},
    }


def _against(own: Sequence[Round], stock: Sequence[Round]) -> dict[str, float]:
    ratios = [ours.step_s / theirs.step_s for ours, theirs in zip(own, stock, strict=True)]
    shares = {"times_stock": 0.5, "low": 0.25, "high": 0.75}
    return {name: round(quantile(ratios, share), 4) for name, share in shares.items()}


if __name__ == "__main__":
    main()
