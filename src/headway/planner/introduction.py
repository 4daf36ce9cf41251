"""What is said of a plan before the search: what is looked for, in what, and what cannot be."""

from __future__ import annotations

from headway.lab.policy_choice import said_without_targets
from headway.planner.ask import Prepared
from headway.planner.samples import samples_in_all
from headway.planner.targets import Targets


def introduction(prepared: Prepared) -> str:
    """Lines for people: what serves what, what the best is, and how much of it is not possible, by reason."""
    ask, space, asked = prepared.ask, prepared.space, prepared.asked
    costs = prepared.task.machine.costs(prepared.default.tp)
    known = "DERIVED, not measured: " if costs.derived else ""
    left_out = (
        f", {prepared.left_out:,} too long for the model or any instance left out"
        if prepared.left_out
        else ""
    )
    impossible = sum(space.impossible.values())
    lines = [
        f"planning, simulated: {ask.model} on {ask.gpus} x {ask.hardware} ({known}{costs.provenance})",
        f"{prepared.requests:,} requests at {prepared.rate_rps:.3g} a second{left_out}",
        *_said_of_overlap(prepared),
        *([] if asked else said_without_targets(prepared.policies)),
        f"the best has {_said_of_best(asked)}",
        f"{', '.join(prepared.policies)}: {space.size:,} configurations possible, {impossible:,} not",
    ]
    ranked = sorted(space.impossible.items(), key=lambda reason: (-reason[1], reason[0]))
    return "\n".join([*lines, *(f"  {count:,}: {why}" for why, count in ranked)])


def _said_of_best(asked: Targets) -> str:
    if not asked:
        return "the least mean job completion time"
    if asked.differ:
        return f"the most requests that meet their own targets: {asked}"
    return f"the most requests with {asked}"


def _said_of_overlap(prepared: Prepared) -> list[str]:
    """A warning where half of the windows do not fit a trace; a generated one is drawn anew for each."""
    ask, window_s = prepared.ask, prepared.window_s
    duration_s, windows = prepared.requests / prepared.rate_rps, samples_in_all(ask.seeds)
    if ask.stream.is_drawn or duration_s >= windows * window_s / 2:
        return []
    return [
        f"the trace lasts {duration_s:.0f} s, and {windows} windows of up to {window_s:.0f} s are taken of it: "
        "they overlap, so samples that chose nothing hold requests that did, and ± is narrower than the truth"
    ]
