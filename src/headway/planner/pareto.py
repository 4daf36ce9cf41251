"""What more GPUs buy: the best figure on each number of them, and which of these are worth having."""

from __future__ import annotations

from collections.abc import Mapping

from headway.planner.configuration import Configuration
from headway.planner.objective import Objective
from headway.planner.planner import Planned
from headway.results import COLUMNS
from headway.results.line_chart import settings_svg

FILE = "pareto.svg"
PLANNED, DEFAULT = "planned", "vllm, its own flags"


def front(values: Mapping[int, float], objective: Objective) -> list[int]:
    """The numbers of GPUs that no smaller or equal number does as well as, rising.

    >>> front({1: 0.5, 2: 0.9, 4: 0.9}, Objective.GOODPUT)
    [1, 2]
    """
    sign = -1 if objective is Objective.GOODPUT else 1
    worth: list[int] = []
    for gpus in sorted(values):
        if not worth or sign * values[gpus] < sign * values[worth[-1]]:
            worth.append(gpus)
    return worth


def figures(planned: Planned, which: Mapping[int, Configuration]) -> dict[int, float]:
    """What these configurations came to at the last rung, where it was measured."""
    objective = planned.prepared.objective
    means = {gpus: objective.mean(planned.found.finals[gpus][each]) for gpus, each in which.items()}
    return {gpus: mean.mean for gpus, mean in means.items() if mean is not None}


def pareto_svg(planned: Planned) -> str:
    """The figure against GPUs, of the best configurations and of stock vLLM."""
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
