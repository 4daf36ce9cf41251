"""From the runs of `long_prompt` to its figures and its table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.long_prompt_scene import Measured, light_gap_s, passage_figures

STOCK = "vllm"
TUNED = "sarathi"
STEADY = 1.25
"""A machine that is slower by more than that, before the long prompt came, says nothing of a target set sooner."""


def machine_figures(measured: Measured) -> dict[str, Any]:
    """One machine: what everybody's streams felt and the long prompt waited, and who kept within each target.

    `reachable`: the streams keep within it when they are left alone. `slower`: how many times as slow the machine was
    in the slowest of the policy's runs, before the long prompt came, as when the target was set. `tuned` is the budget
    of `sarathi` that keeps within it with the least TTFT; None where no budget does.
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
    """Whether the policy keeps within every target that can be kept where `vllm` does not, and where that is not so."""
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
