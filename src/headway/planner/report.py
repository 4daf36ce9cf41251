"""A plan as a table, as one JSON object, and as a plot of what more GPUs bring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import isfinite
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headway.core.slo import Slo
from headway.planner.deploy import arguments, flags_here, script
from headway.planner.machine import Configuration, moving_parts
from headway.planner.objective import TIE, Gain, Objective, interval_of
from headway.planner.planner import PlannedDeployment
from headway.predict.models.known_models import model_shape
from headway.results import COLUMNS, Summary
from headway.results.svg import settings_svg
from headway.results.tables import MISSING
from headway.statistics import Interval

FILE = "pareto.svg"
PLANNED, DEFAULT = "planned", "vllm, its own flags"


def front(values: Mapping[int, float], objective: Objective) -> list[int]:
    """The numbers of GPUs, ascending, that do better than every smaller number.

    >>> front({1: 0.5, 2: 0.9, 4: 0.9}, Objective.GOODPUT)
    [1, 2]
    """
    sign = -1 if objective is Objective.GOODPUT else 1
    worth: list[int] = []
    for gpus in sorted(values):
        if not worth or sign * values[gpus] < sign * values[worth[-1]]:
            worth.append(gpus)
    return worth


def figures(planned: PlannedDeployment, which: Mapping[int, Configuration]) -> dict[int, float]:
    """The results of these configurations at the last rung, where measured."""
    objective = planned.prepared.objective
    means = {gpus: objective.mean(planned.found.finals[gpus][each]) for gpus, each in which.items()}
    return {gpus: mean.mean for gpus, mean in means.items() if mean is not None}


def pareto_svg(planned: PlannedDeployment) -> str:
    """Plot the figure against GPUs, for the best configurations and for stock vLLM."""
    objective = planned.prepared.objective
    column = COLUMNS[objective.value]
    default = {gpus: planned.prepared.space.default[gpus] for gpus in planned.best}
    curves = {
        PLANNED: sorted(figures(planned, planned.best).items()),
        DEFAULT: sorted(figures(planned, default).items()),
    }
    name = f"{column.heading} ({column.unit})" if column.unit else column.heading
    aim = None if planned.fewest is None else planned.fewest.aim
    return settings_svg(
        f"{column.heading} by GPUs, simulated",
        curves,
        x_label="GPUs",
        y_label=name,
        level=aim,
        doubling=False,
    )


SHOWN = ("goodput", "mean_jct_s", "p99_jct_s", "mean_ttft_s", "p99_ttft_s", "mean_tbt_s", "throughput_rps")
"""Summary keys of each configuration in the JSON object."""

RIVALS = 5
"""Configurations shown on all of the GPUs, besides the best on fewer."""


def serve_arguments(planned: PlannedDeployment) -> tuple[str, ...]:
    """The arguments that deploy the choice on one machine."""
    return arguments(*_deployed(planned), flags_here(planned.prepared.task.machine, planned.choice))


def serve_script(planned: PlannedDeployment) -> str:
    """The commands that deploy the choice, on as many machines as it takes."""
    machine = planned.prepared.task.machine
    return script(*_deployed(planned), machine.node, flags_here(machine, planned.choice))


def _deployed(planned: PlannedDeployment) -> tuple[str, Configuration, Slo]:
    request = planned.prepared.request
    shape = model_shape(request.model)
    return shape.name if "/" in shape.name else request.model, planned.choice, request.trace.slo


# ---- JSON ----------------------------------------------------------------------------------------------


def plan_data(planned: PlannedDeployment) -> dict[str, Any]:
    """The plan for scripts; shares are 0 to 1, times in seconds, intervals 95 %, null if there is none."""
    prepared = planned.prepared
    machines = len(prepared.request.node.sizes(planned.choice.gpus))
    defaults = {gpus: prepared.space.default[gpus] for gpus in planned.best}
    return {
        "simulated": True,
        "objective": prepared.objective.value,
        "hardware": prepared.task.machine.costs(planned.choice.tp).provenance,
        "requests": prepared.requests,
        "left_out": prepared.left_out,
        "rate_rps": prepared.rate_rps,
        "targets": asdict(prepared.targets),
        "target_ranges": prepared.asked.ranges(),
        "choice": _configuration_data(planned, planned.choice, planned.unseen[planned.choice]),
        "default": _configuration_data(planned, planned.default, planned.unseen[planned.default]),
        "gain": _gain_data(planned.gain),
        "command": serve_script(planned),
        "arguments": list(serve_arguments(planned)) if machines == 1 else None,
        "machines": machines,
        "gpus": {
            str(gpus): {
                "best": _configuration_data(planned, each, planned.found.finals[gpus][each]),
                "default": _configuration_data(
                    planned, defaults[gpus], planned.found.finals[gpus][defaults[gpus]]
                ),
            }
            for gpus, each in planned.best.items()
        },
        "pareto": front(figures(planned, planned.best), prepared.objective),
        "fewest": _fewest_data(planned),
        "configurations": {
            "possible": prepared.space.size,
            "tried": planned.tried,
            "impossible": dict(prepared.space.impossible),
        },
        "rungs": [asdict(report) for report in planned.found.reports],
        "runs": asdict(planned.runs),
        "wall_s": planned.wall_s,
    }


def _configuration_data(
    planned: PlannedDeployment, configuration: Configuration, summaries: Sequence[Summary]
) -> dict[str, Any]:
    default = planned.prepared.space.default[configuration.gpus]
    return {
        **asdict(configuration),
        "kv_tier": None if configuration.kv_tier is None else str(configuration.kv_tier),
        "pools": configuration.pools,
        "moving_parts": moving_parts(configuration, default),
        "samples": len(summaries),
        **{key: _interval_data(interval_of(summaries, key)) for key in SHOWN},
    }


def _interval_data(interval: Interval | None) -> dict[str, float | None] | None:
    if interval is None:
        return None
    return {name: value if isfinite(value) else None for name, value in asdict(interval).items()}


def _gain_data(gain: Gain) -> dict[str, Any]:
    return {
        "points": _interval_data(gain.points),
        "ratio": gain.ratio,
        "ratio_interval": _interval_data(gain.ratio_interval),
    }


def _fewest_data(planned: PlannedDeployment) -> dict[str, Any] | None:
    fewest = planned.fewest
    if fewest is None:
        return None
    goodput = _interval_data(fewest.goodput)
    return {"gpus": fewest.gpus, "aim": fewest.aim, "goodput": goodput, "sure": fewest.sure}


# ---- tables --------------------------------------------------------------------------------------------


def plan_table(planned: PlannedDeployment) -> RenderableType:
    """The choice, its neighbours, the best on fewer GPUs, and stock vLLM on each; then the result."""
    objective = planned.prepared.objective
    table = Table(box=SIMPLE_HEAD, header_style="", title="simulated, last rung", title_justify="left")
    table.add_column("GPUs", justify="right", vertical="bottom")
    table.add_column("configuration", vertical="bottom", overflow="fold")
    for heading in ("goodput ↑", "JCT mean s ↓", "JCT p99 s ↓"):
        table.add_column(heading, justify="right", vertical="bottom", no_wrap=True)
    for gpus, finals in planned.found.finals.items():
        rows = _rows(planned, gpus)
        for configuration in rows:
            cells = [f"{gpus}", _named(planned, configuration), *_figures(finals[configuration])]
            style = "bold green" if configuration == planned.choice else ""
            table.add_row(*map(Text, cells), style=style, end_section=configuration == rows[-1])
    lines = [_said_of_gain(objective, planned), *_said_of_gpus(planned), *_said_of_fewest(planned)]
    lines.append(_said_of_search(planned))
    return Group(table, *map(Text, lines))


def _rows(planned: PlannedDeployment, gpus: int) -> list[Configuration]:
    """The best on a number of GPUs, on all of them also its rivals, and stock vLLM."""
    objective = planned.prepared.objective
    finals = planned.found.finals[gpus]

    def place(configuration: Configuration) -> tuple[object, ...]:
        scores = [objective.score(summary) for summary in finals[configuration]]
        return (sum(scores), configuration.place)

    whole = gpus == planned.choice.gpus
    rivals = sorted(finals, key=place)[: RIVALS if whole else 0]
    best = [planned.best[gpus]] if gpus in planned.best else []
    return list(dict.fromkeys([*best, *rivals, planned.prepared.space.default[gpus]]))


def _named(planned: PlannedDeployment, configuration: Configuration) -> str:
    """The configuration, marked if it is the answer or the reference."""
    default = planned.prepared.space.default[configuration.gpus]
    marks = {"choice": planned.choice, "default": default}
    named = [mark for mark, marked in marks.items() if marked == configuration]
    return f"{', '.join(named)}: {configuration}" if named else f"{configuration}"


def _figures(summaries: Sequence[Summary]) -> list[str]:
    return [_shown(interval_of(summaries, key)) for key in ("goodput", "mean_jct_s", "p99_jct_s")]


def _shown(interval: Interval | None) -> str:
    if interval is None:
        return MISSING
    return f"{interval.mean:.3f}{f' ± {interval.half:.3f}' if isfinite(interval.half) else ''}"


def _said_of_gain(objective: Objective, planned: PlannedDeployment) -> str:
    gain, samples = planned.gain, len(planned.unseen[planned.choice])
    what = "goodput" if objective is Objective.GOODPUT else "mean JCT"
    if planned.choice == planned.default:
        return "nothing tried is better than vllm with its own flags"
    over = f"over vllm with its own flags, on {samples} samples that chose nothing"
    if gain.points is not None:
        times = "" if gain.ratio is None else f", {gain.ratio:.2f} x"
        return f"gain in {what} {over}: {_signed(gain.points)}{times}"
    if gain.ratio_interval is not None:
        ratio = gain.ratio_interval
        spread = f" (95 %: {ratio.low:.2f} to {ratio.high:.2f})" if isfinite(ratio.high) else ""
        return f"gain in {what} {over}: {ratio.mean:.2f} x{spread}"
    return f"gain in {what}: not measurable, since requests were left unserved"


def _signed(interval: Interval) -> str:
    spread = f" (95 %: {interval.low:+.3f} to {interval.high:+.3f})" if isfinite(interval.half) else ""
    return f"{interval.mean:+.3f}{spread}"


def _said_of_gpus(planned: PlannedDeployment) -> list[str]:
    """Why all GPUs are used although fewer meet as many targets: as requested, and what more of them bring."""
    objective, choice, finals = planned.prepared.objective, planned.choice, planned.found.finals
    if planned.fewest is not None or objective is not Objective.GOODPUT:
        return []
    goodput, jct = (interval_of(finals[choice.gpus][choice], key) for key in ("goodput", "mean_jct_s"))
    for gpus in sorted(each for each in finals if each < choice.gpus):
        best = min(finals[gpus].values(), key=lambda runs: sum(map(objective.score, runs)))
        fewer, longer = (interval_of(best, key) for key in ("goodput", "mean_jct_s"))
        if goodput and fewer and fewer.mean >= goodput.mean - TIE:
            return [
                f"--gpus {choice.gpus} asks for a plan on {choice.gpus}; on {gpus} the best has goodput "
                f"{fewer.mean:.3f} too, and a mean JCT of {_shown(longer)} s in place of {_shown(jct)} s. "
                "--fewest plans for the fewest GPUs"
            ]
    return []


def _said_of_fewest(planned: PlannedDeployment) -> list[str]:
    fewest = planned.fewest
    if fewest is None:
        return []
    if fewest.gpus is None:
        gpus = planned.prepared.request.gpus
        most = "not even all GPUs hold" if gpus > 1 else "one GPU does not hold"
        return [f"{most} a goodput of {fewest.aim:g}: {_shown(fewest.goodput)} with {gpus}"]
    sure = "" if fewest.sure else "; its interval reaches below, so one more may be wise"
    return [
        f"fewest GPUs that hold a goodput of {fewest.aim:g}: {fewest.gpus} ({_shown(fewest.goodput)}{sure})"
    ]


def _said_of_search(planned: PlannedDeployment) -> str:
    ladder = " -> ".join(
        f"{report.configurations:,} on {report.samples} x {report.window_s:.0f} s"
        for report in planned.found.reports
    )
    untold = sum(report.untold for report in planned.found.reports)
    runs = planned.runs
    more = f", {runs.answered:,} answered by these" if runs.answered else ""
    there = f", {runs.kept:,} were there" if runs.kept else ""
    return (
        f"tried {planned.tried:,} of {planned.prepared.space.size:,}: {ladder}; {untold:,} left out for want of room, "
        f"not for being worse; {runs.simulated:,} runs simulated{more}{there}, {planned.wall_s:.0f} s"
    )
