"""A long prompt arrives amid streams: `python bench/gain/long_prompt.py --json`.

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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # vLLM logs to stdout, which is for data here
sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

from bench.command import command_line, markdown_option, say
from bench.gain.long_prompt_runs import (
    MACHINES,
    NOTE,
    REAL,
    REAL_BUDGETS,
    SCENE,
    SIMULATED_BUDGETS,
    MeasuredMachine,
    light_gap_s,
    measured_real,
    measured_simulated,
    passage_figures,
)
from headway.engine.machine import machine_name, vllm_version
from headway.errors import ConfigError
from headway.policies.presets import find_preset

# ---- figures and table -------------------------------------------------------------------------------

STOCK = "vllm"
TUNED = "sarathi"
STEADY = 1.25
"""If the machine was slower than this factor before the long prompt came, the run proves nothing about a target set
earlier.
"""


def machine_figures(measured: MeasuredMachine) -> dict[str, Any]:
    """One machine: the gaps of all streams, how long the long prompt waited, and which systems kept each target.

    `reachable`: the streams keep within the target when they are left alone. `slower`: how many times slower the
    machine was in the slowest of the policy's runs, before the long prompt came, than when the target was set. `tuned`
    is the budget of `sarathi` that keeps within the target with the least TTFT; None where no budget does.
    """
    gap_s = light_gap_s(measured.light)
    alone_s = max(each.worst_gap_s for each in measured.light)
    deaf = {name: passage_figures(passages) for name, passages in measured.deaf.items()}
    targets = {}
    for factor, passages in measured.policy.items():
        target_s, own = factor * gap_s, passage_figures(passages)
        targets[f"{factor:g}"] = {
            "target_s": target_s,
            "reachable": alone_s <= target_s,
            "slower": own["before_gap_s"] / gap_s,
            "within": {
                "policy": own["worst_gap_s"] <= target_s,
                STOCK: deaf[STOCK]["worst_gap_s"] <= target_s,
            },
            "policy": own,
            "tuned": _tuned(deaf, target_s),
        }
    return {
        "light_gap_s": gap_s,
        "light_worst_gap_s": alone_s,
        "without_targets": deaf,
        "targets": targets,
    }


def _tuned(deaf: Mapping[str, Mapping[str, Any]], target_s: float) -> dict[str, Any] | None:
    within = {
        name: found["long_ttft_s"]
        for name, found in deaf.items()
        if name.startswith(TUNED) and found["worst_gap_s"] <= target_s
    }
    if not within:
        return None
    best = min(within, key=lambda name: within[name])
    return {"system": best, "long_ttft_s": within[best]}


def verdicts(machines: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Whether the policy keeps within every reachable target and `vllm` within none, and the exceptions."""
    exceptions = []
    for machine, found in machines.items():
        for factor, target in found["targets"].items():
            if not target["reachable"]:
                exceptions.append(f"{machine}, {factor}: the streams alone do not keep within it")
            elif not target["within"]["policy"]:
                exceptions.append(f"{machine}, {factor}: the policy does not keep within it")
            if target["slower"] > STEADY:
                slower = f"{target['slower']:.1f} times as slow as when the target was set"
                exceptions.append(f"{machine}, {factor}: the machine was {slower}")
            if target["within"][STOCK]:
                exceptions.append(f"{machine}, {factor}: {STOCK} keeps within it too")
            if not target["policy"]["amid_all"]:
                exceptions.append(f"{machine}, {factor}: streams ended before the long prompt was through")
    return {"holds": not exceptions, "exceptions": exceptions}


def markdown(found: Mapping[str, Any]) -> str:
    """The table of docs/headway-real.md: a row for each machine and target."""
    policy = found["policy"]
    lines = [
        f"| machine | target (ms) | worst gap (ms) `vllm` / `{policy}` | kept | TTFT of the long prompt (s) `vllm` / "
        f"`{policy}` | `sarathi`, best budget within: TTFT (s) |",
        "|---|---|---|---|---|---|",
    ]
    for machine, of in found["machines"].items():
        stock = of["without_targets"][STOCK]
        for factor, target in of["targets"].items():
            own, tuned = target["policy"], target["tuned"]
            budget = "none" if tuned is None else f"{tuned['system']}: {tuned['long_ttft_s']:.2f}"
            kept = "yes" if target["within"]["policy"] else "**no**"
            amid = "" if own["amid_all"] else " (streams ended first)"
            lines.append(
                f"| {machine} | {1e3 * target['target_s']:.1f} ({factor} x) | {1e3 * stock['worst_gap_s']:.1f} / "
                f"{1e3 * own['worst_gap_s']:.1f} | {kept} | {stock['long_ttft_s']:.2f} / "
                f"{own['long_ttft_s']:.2f}{amid} | {budget} |"
            )
    return "\n".join(lines)


# ---- the bench ---------------------------------------------------------------------------------------

FACTORS = (1.2, 1.5, 2.0, 3.0)
SEEDS = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """The complete setting of a bench run."""

    policy: str
    machines: Sequence[str]
    factors: Sequence[float]
    seeds: int
    out: Path | None


def report(plan: Plan) -> dict[str, Any]:
    """The figures of all machines."""
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
    """Figures of one simulated machine."""
    machine, budgets = MACHINES[name], SIMULATED_BUDGETS
    found = measured_simulated(machine, plan.policy, plan.factors, budgets, plan.seeds)
    return {
        "measured_on": "simulated",
        "note": machine.note,
        "scene": asdict(machine.scene),
        **machine_figures(found),
    }


def real(plan: Plan) -> dict[str, Any]:
    """Figures of this machine's real engine."""
    found = measured_real(plan.policy, plan.factors, REAL_BUDGETS, plan.seeds, plan.out)
    return {
        "measured_on": machine_name(),
        "vllm": vllm_version(),
        "note": NOTE,
        "scene": asdict(SCENE),
        **machine_figures(found),
    }


def options() -> argparse.ArgumentParser:
    """The command's options."""
    parser = command_line(__doc__)
    markdown_option(parser, "the table of docs/headway-real.md instead")
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
    """The plan that the options describe. Raises ConfigError for an option that is not accepted."""
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


def main() -> None:
    """Print one JSON object, or the table."""
    arguments = options().parse_args()
    found = report(plan_of(arguments))
    print(markdown(found) if arguments.markdown else json.dumps(found))


if __name__ == "__main__":
    main()
