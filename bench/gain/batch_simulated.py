"""A batch beside interactive requests, simulated: `python bench/gain/batch_simulated.py --json`.

The scene of `batch_beside`, without gateway and HTTP: interactive requests in waves of 0.2 to 0.9 of capacity, with
targets (first token 1 s, 0.05 s between tokens), beside a batch with a day's window, of which more requests come than
can be served. `--hardware` and `--model` name the engine, by default an H100 with Qwen3-8B and vLLM's default sizes.
Interactive prompts have 490 tokens in the median and answers 180, log-normal; a batch's have 1,000 and 250.

`alone` and `beside`: means over `--seeds` of the figures of interactive requests. `batch_share_of_idle`: the batch's
tokens a second over those of a batch alone times the mean idle share. Half a minute of CPU a seed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from random import Random
from statistics import fmean

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

from bench.command import all_done, command_line, jobs_option
from bench.gain.batch_beside import HIGH, LOW, waves
from headway.core.record import Record
from headway.core.slo import NO_TARGETS, Slo
from headway.lab.engine_sizes import EngineSizes, engine_limits
from headway.lab.simulation import simulate_policy
from headway.predict.models.known_models import model_shape
from headway.predict.steps.hardware import calibration
from headway.results import summarize
from headway.sim.simulation import System
from headway.traces import TraceRequest, at_once

SECONDS, SEEDS = 120.0, 5
PROMPT_TOKENS, ANSWER_TOKENS = (6.2, 1.0, 6_000), (5.2, 0.7, 1_500)
"""Log-normal: mean and deviation of the logarithm, and the most."""
MOST_ANSWER_TOKENS = 2_048
BATCH_PROMPT_TOKENS, BATCH_ANSWER_TOKENS = 1_000, 250
TARGETS, WINDOW = Slo(ttft_s=1.0, tbt_s=0.05), Slo(deadline_s=86_400.0)
BACKLOG_REQUESTS = 2_500
BATCH_LOAD = 0.65
"""Requests of the batch come at this share of its rate alone, more than the 0.45 that is idle."""
SHOWN = ("goodput", "p50_ttft_s", "p99_ttft_s", "mean_jct_s", "p99_jct_s")


@dataclass(frozen=True, slots=True)
class Engine:
    """A simulated engine under a policy, with vLLM's default sizes."""

    hardware: str
    model: str
    policy: str

    def served(self, requests: Sequence[TraceRequest]) -> list[Record]:
        """Records of these requests."""
        costs = calibration(self.hardware, model_shape(self.model))
        limits = engine_limits(EngineSizes(), self.hardware, costs)
        system = System(limits=limits, calibration=costs)
        return simulate_policy(requests, self.policy, system, max_output_tokens=MOST_ANSWER_TOKENS).records

    def capacity_rps(self, requests: Sequence[TraceRequest]) -> float:
        """Requests a second that the engine serves if all of these are there, until the last few are left."""
        ends_s = sorted(record.finished_s or inf for record in self.served(at_once(requests)))
        most = int(0.95 * len(ends_s))
        return most / ends_s[most - 1]


@dataclass(frozen=True, slots=True)
class Scene:
    """A run: interactive requests of one seed, alone or beside a batch."""

    engine: Engine
    rps: float
    batch_rps: float
    seed: int

    def __str__(self) -> str:
        return f"seed {self.seed}, {'beside a batch' if self.batch_rps else 'alone'}"


def interactive(number: int, arrival_s: float, rng: Random, slo: Slo) -> TraceRequest:
    """An interactive request."""
    prompt, answer = drawn(rng, *PROMPT_TOKENS), drawn(rng, *ANSWER_TOKENS)
    return TraceRequest(f"i{number}", arrival_s, prompt, answer, slo=slo)


def drawn(rng: Random, mean: float, deviation: float, most: int) -> int:
    """A length."""
    return min(max(8, round(rng.lognormvariate(mean, deviation))), most)


def of_a_batch(number: int, arrival_s: float) -> TraceRequest:
    """A request of the batch."""
    return TraceRequest(f"b{number}", arrival_s, BATCH_PROMPT_TOKENS, BATCH_ANSWER_TOKENS, slo=WINDOW)


def run(scene: Scene) -> dict[str, float]:
    """Figures of the interactive requests, and the batch's answers that came within SECONDS, a second."""
    batch = [of_a_batch(n, n / scene.batch_rps) for n in range(int(SECONDS * scene.batch_rps))]
    chats = waves(scene.rps, SECONDS, scene.seed, interactive, TARGETS)
    records = scene.engine.served(sorted([*chats, *batch], key=lambda each: each.arrival_s))
    found = summarize([record for record in records if record.id.startswith("i")]).to_dict()
    done = sum(record.id.startswith("b") and (record.finished_s or inf) <= SECONDS for record in records)
    return {**{key: found[key] or 0.0 for key in SHOWN}, "batch_rps": done / SECONDS}


def main() -> None:
    """Print one JSON object."""
    parser = command_line(__doc__)
    parser.add_argument("--hardware", default="h100", help="as of `headway simulate` (default: h100)")
    parser.add_argument("--model", default="Qwen/Qwen3-8B", help="(default: Qwen/Qwen3-8B)")
    parser.add_argument("--policy", default="headway", help="(default: headway)")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"streams (default: {SEEDS})")
    jobs_option(parser)
    arguments = parser.parse_args()
    engine = Engine(arguments.hardware, arguments.model, arguments.policy)
    rng = Random("capacity")
    rps = engine.capacity_rps([interactive(n, 0.0, rng, NO_TARGETS) for n in range(BACKLOG_REQUESTS)])
    offline_rps = engine.capacity_rps([of_a_batch(n, 0.0) for n in range(BACKLOG_REQUESTS)])
    ways = {"alone": 0.0, "beside": BATCH_LOAD * offline_rps}
    scenes = {
        name: [Scene(engine, rps, batch_rps, seed) for seed in range(arguments.seeds)]
        for name, batch_rps in ways.items()
    }
    found = all_done(run, [scene for several in scenes.values() for scene in several], arguments.jobs)
    figures = {
        name: {key: fmean(found[scene][key] for scene in several) for key in (*SHOWN, "batch_rps")}
        for name, several in scenes.items()
    }
    alone, beside = figures["alone"], figures["beside"]
    headline = {
        "batch_share_of_idle": beside["batch_rps"] / (offline_rps * (1 - (LOW + HIGH) / 2)),
        "goodput_less": alone["goodput"] - beside["goodput"],
        **{f"{key}_times": beside[key] / alone[key] for key in SHOWN[1:]},
    }
    print(json.dumps({"capacity_rps": rps, "batch_alone_rps": offline_rps, **figures, "headline": headline}))


if __name__ == "__main__":
    main()
