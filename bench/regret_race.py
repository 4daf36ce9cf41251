"""Who is run with further seeds: nobody who is far behind with the first one, wherever a run of his would count."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.regret_cells import Cell, Plan
from bench.regret_contenders import STOCK, Contender
from bench.regret_runs import RegretResult, RegretRun
from bench.regret_targets import NONE
from headway.lab.kept_runs import Kept

FAR_SHARE, FAR_RATIO = 0.10, 0.25
"""Behind the best rival by more of goodput, or of mean JCT as ratio - 1, nobody is taken to be a cell's best."""


def still_racing(
    plan: Plan, kept: Kept[RegretRun, RegretResult], rival_names: frozenset[str]
) -> Callable[[RegretRun], bool]:
    """Whether a run of a further seed is to be made: always, unless it is a rival's and far behind in all its cells.

    `vllm` is never left behind: gains are over it.
    """
    racing = [each for each in plan.contenders if each.name in rival_names and each.name != STOCK]
    first = plan.seeds[0]
    counted: dict[str, bool] = {}
    for cell in plan.cells:
        near = near_the_best(cell, {each: kept.done[plan.run(cell, each, first).digest()] for each in racing})
        for each in racing:
            for seed in plan.seeds:
                digest = plan.run(cell, each, seed).digest()
                counted[digest] = counted.get(digest, False) or each in near
    return lambda run: counted.get(run.digest(), True)


def near_the_best(cell: Cell, results: dict[Contender, RegretResult]) -> Sequence[Contender]:
    """Those whose value in a cell is not far behind the best of them."""
    found = {
        each: value for each, result in results.items() if (value := result.value(cell.classes)) is not None
    }
    if not found:
        return ()
    if cell.classes == NONE:
        least = min(found.values())
        return [each for each, value in found.items() if value <= (1 + FAR_RATIO) * least]
    most = max(found.values())
    return [each for each, value in found.items() if value >= most - FAR_SHARE]
