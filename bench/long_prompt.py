"""A long prompt arrives amid streams: `python bench/long_prompt.py --json`.

64 streams decode, sharing a system prompt of 1,024 tokens; then a prompt of 20,000 tokens arrives. Simulated on an H100
serving Llama-3.1-8B, an A100 serving OPT-13B (its costs; its positions end sooner) and Qwen2.5-14B, which takes such
prompts; on the real CPU engine scaled down, 1,500 tokens amid 12 streams of a made model of 46 million parameters.
Before that an engine has served a dozen prompts of up to a quarter of that length and as many short streams, so that
the cost of a step is known.

The streams' target for the time between tokens is 1.2, 1.5, 2 and 3 times their median gap when they are left alone
(`light_gap_s`, under `vllm`); the long prompt has none. From its arrival to its first token, per system: the worst gap
of any stream (of all seeds; also by seed), p99, the prompt's TTFT, which is the price, and whether all streams went on
until then (`amid_all`). `vllm` (vLLM's own scheduler on the real engine) and `sarathi`, whose budget of tokens a
step is fixed, know no targets; `tuned` is the budget that keeps within a target with the least TTFT. `--policy`
(default headway) is run with each. `holds` when it keeps within every target and `vllm` within none; `exceptions` names
what is otherwise, `reachable` whether the streams alone keep within a target at all, `slower` how many times as slow
the machine had become by the policy's runs (above 1.25 they say nothing: delete them from DIR and run again).

Simulated about a minute, real about 15 with three seeds on 2 cores, while nothing else should run. `--out DIR` keeps
the real runs, and does not make again what is there. `--markdown` prints the table of docs/headway-real.md in place of
the JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # vLLM logs to stdout, which is for data here
sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, only this folder is on the path

from bench import long_prompt_real, long_prompt_simulated
from bench.long_prompt_figures import machine_figures, markdown, verdicts
from bench.long_prompt_real import MACHINE as REAL
from bench.long_prompt_real import Kept
from bench.long_prompt_simulated import MACHINES
from bench.progress import say
from headway.engine.machine import machine_name, vllm_version
from headway.errors import ConfigError, HeadwayError
from headway.policies.presets import find_preset

FACTORS = (1.2, 1.5, 2.0, 3.0)
SEEDS = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """All that decides what is run."""

    policy: str
    machines: Sequence[str]
    factors: Sequence[float]
    seeds: int
    out: Path | None


def report(plan: Plan) -> dict[str, Any]:
    """All figures."""
    machines: dict[str, dict[str, Any]] = {}
    for name in plan.machines:
        say(f"long prompt: {name}")
        machines[name] = real(plan) if name == REAL else simulated(plan, name)
    return {
        "policy": plan.policy,
        "seeds": plan.seeds,
        **verdicts(machines),
        "machines": machines,
    }


def simulated(plan: Plan, name: str) -> dict[str, Any]:
    """One simulated machine."""
    machine, budgets = MACHINES[name], long_prompt_simulated.BUDGETS
    found = long_prompt_simulated.measured(machine, plan.policy, plan.factors, budgets, plan.seeds)
    return {
        "measured_on": "simulated",
        "note": machine.note,
        "scene": asdict(machine.scene),
        **machine_figures(found),
    }


def real(plan: Plan) -> dict[str, Any]:
    """This machine's engine."""
    kept = Kept(plan.out, say)
    found = long_prompt_real.measured(plan.policy, plan.factors, long_prompt_real.BUDGETS, plan.seeds, kept)
    return {
        "measured_on": machine_name(),
        "vllm": vllm_version(),
        "note": long_prompt_real.NOTE,
        "scene": asdict(long_prompt_real.SCENE),
        **machine_figures(found),
    }


def options() -> argparse.ArgumentParser:
    """The command's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout (the default output)")
    parser.add_argument("--markdown", action="store_true", help="the table of docs/headway-real.md instead")
    parser.add_argument("--policy", default="headway", help="a preset (default headway)")
    parser.add_argument(
        "--factor", type=float, action="append", help=f"target over the streams' gap (default {FACTORS})"
    )
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"runs of each (default {SEEDS})")
    parser.add_argument("--machine", choices=(*MACHINES, REAL), action="append", help="default: all")
    parser.add_argument("--simulated", action="store_true", help="the simulated machines alone")
    parser.add_argument("--out", type=Path, help="folder for the real runs; resumed if there")
    return parser


def plan_of(arguments: argparse.Namespace) -> Plan:
    """What the options ask for. Raises ConfigError for what is not accepted."""
    find_preset(arguments.policy)
    factors = tuple(arguments.factor or FACTORS)
    if min(factors) <= 1:
        raise ConfigError(f"--factor is {min(factors):g}; accepted: more than 1")
    if arguments.seeds < 1:
        raise ConfigError(f"--seeds is {arguments.seeds}; accepted: 1 or more")
    if arguments.simulated and REAL in (arguments.machine or ()):
        raise ConfigError(f"--simulated leaves {REAL!r} out, which --machine names; choose one")
    usual = MACHINES if arguments.simulated else (*MACHINES, REAL)
    return Plan(
        policy=arguments.policy,
        machines=tuple(arguments.machine or usual),
        factors=factors,
        seeds=arguments.seeds,
        out=arguments.out,
    )


def main() -> int:
    """Print one JSON object, or the table; 2 for an option that is not accepted."""
    arguments = options().parse_args()
    try:
        found = report(plan_of(arguments))
    except HeadwayError as error:
        say(f"long_prompt: {error}")
        return 2
    print(markdown(found) if arguments.markdown else json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
