"""How much a policy loses to the best choice for each load: `python bench/gain/regret.py [--quick] --json --out DIR`.

A cell is a workload (recorded traces of the shared data where they are there, and drawn ones) on a machine (H100 with
Llama-3.1-8B, A100-40G with OPT-13B, by catalogue costs, simulated) at 0.5 to 1.5 of capacity, with a set of targets:
`none`, `one` (the same for all) or `two` (interactive requests beside patient ones). Capacity is the throughput of
`vllm` with the whole workload there at the start. Each of five seeds is a window of 600 s, the first 60 s of which are
not measured; all are served to their end. The metric is goodput (difference in share) where there are targets, else
mean JCT (ratio - 1). All have vLLM's default sizes and 64 GiB of host memory; a policy that uses lengths has
the product's own predictor, learning from nothing, without prompts. docs/regret.md has every definition.

The subject (`--policy`) is held against the best of all other presets, cell by cell, and against clairvoyants.

--quick is QUICK_CELLS with QUICK_RIVALS, one of each family, and the first three seeds: whole windows of the same
workloads.

Every run is kept in DIR as it ends; the same command goes on where it was stopped. A run is made anew when the row of
its policy or the code of its parts has changed; when something has that all share, take another DIR, or --again with
names of policies, whose runs a stopped command with --again makes all anew. DIR has
every value in regret.csv and the object that is printed in regret.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

from bench.gain.regret_runs import (
    STOCK,
    SUBJECT,
    USUAL_SPELL,
    CapacityRun,
    Cell,
    Contender,
    Plan,
    RegretResult,
    RegretRun,
    Spell,
    ablations,
    all_cells,
    clairvoyants,
    contender,
    kept_capacities,
    kept_runs,
    left_out,
    measure,
    measure_capacity,
    rivals,
    select,
    that_fit,
)
from bench.gain.regret_tables import TAILS, VALUES, CellFindings, summary, tables, values
from bench.gain.regret_workloads import DATA, MACHINES, NONE, SEEDS, ServedWorkload, known_workloads
from headway.errors import ConfigError, HeadwayError
from headway.lab.kept_runs import Kept, run_kept
from headway.statistics import mean_of_known
from headway.whole_file import write_whole

# ---- the race: contenders that are run with further seeds --------------------------------------------

FAR_SHARE, FAR_RATIO = 0.10, 0.25
"""Further seeds are skipped for a rival that is behind a cell's best rival by more than this in goodput, or in mean
JCT as ratio - 1.
"""


def still_racing(
    plan: Plan, kept: Kept[RegretRun, RegretResult], rival_names: frozenset[str]
) -> Callable[[RegretRun], bool]:
    """A test that says whether to run a further seed: yes, unless it is a rival's run and the rival is far behind in
    all its cells.

    `vllm` is never left out, since gains are measured against it.
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
    """The contenders whose value in a cell is not far behind the best of them."""
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


# ---- progress on stderr ------------------------------------------------------------------------------

_A_LINE_EVERY = 20
"""Runs between two progress lines, where stderr is no terminal."""


class Progress:
    """Shows how many runs are done and the time left; called once for each new run."""

    def __init__(self, what: str, count: int, kept: Kept[Any, Any], runs: Sequence[Any]) -> None:
        self._what, self._count = what, count
        self._done = sum(kept.result(run) is not None for run in runs)
        self._started_s, self._begun = time.monotonic(), self._done

    def __call__(self) -> None:
        """One more run is done."""
        self._done += 1
        elapsed_s = time.monotonic() - self._started_s
        left_s = elapsed_s / (self._done - self._begun) * (self._count - self._done)
        told = f"{self._done} of {self._count} {self._what}, {elapsed_s:.0f} s, about {left_s:.0f} s left"
        last = self._done == self._count
        if sys.stderr.isatty():
            print(f"\r{told}   ", end="\n" if last else "", file=sys.stderr, flush=True)
        elif last or self._done % _A_LINE_EVERY == 0:
            print(told, file=sys.stderr)


# ---- the bench ---------------------------------------------------------------------------------------

QUICK_CELLS = (
    "chat/a100-opt-13b/0.5/*",
    "chat/a100-opt-13b/1.2/*",
    "agentic/h100-llama-8b/0.5/*",
)
QUICK_RIVALS = ("vllm", "sjf", "sarathi", "predicted", "ascendra-lp-no-hand-off")
QUICK_SEEDS = 3
JSON = "regret.json"

Runs = Kept[RegretRun, RegretResult]


def main() -> None:
    """Print the object that docs/regret.md describes; exit status 2 for an option that is not accepted."""
    arguments = _arguments()
    try:
        found = regret(arguments)
    except HeadwayError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print(f"\nstopped; what is done is in {arguments.out}: the same command goes on", file=sys.stderr)
        sys.exit(130)
    print(tables(arguments.policy, found["by_cell"]) if arguments.markdown else json.dumps(found))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("--json", action="store_true", help="one JSON object on stdout (the default output)")
    add("--markdown", action="store_true", help="the tables of docs/regret.md instead")
    add("--quick", action="store_true", help=f"{len(QUICK_RIVALS)} rivals in a few named cells")
    add("--policy", default=SUBJECT, help=f"the subject ({SUBJECT})")
    add("--presets", help="A,B,...: only these rivals, in place of every preset")
    add("--cells", help="A,B,...: only cells like WORKLOAD/MACHINE/LOAD/CLASSES, * for any part")
    add(
        "--seeds",
        type=int,
        help=f"1 to {SEEDS} ({SEEDS}; quick {QUICK_SEEDS}): with fewer the bounds say less",
    )
    add(
        "--window",
        type=float,
        default=USUAL_SPELL.window_s,
        metavar="S",
        help="seconds of arrivals (600), a tenth as warm-up",
    )
    add("--ablations", action="store_true", help="run the subject without one idea each, beside; no rivals")
    add(
        "--no-clairvoyants",
        action="store_true",
        help="only presets, in half of the time: no gap_to_bound then",
    )
    add("--tenants", action="store_true", help="requests name their tenants, between which `headway` shares")
    add(
        "--race",
        action="store_true",
        help="after the first seed, leave out rivals that are far behind in all cells",
    )
    add("--again", default="", help="A,B,...: contenders, * for any part, to be run again")
    add("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    add("--data", type=Path, default=DATA, help="folder of the recorded traces")
    add("--out", type=Path, default=Path("out/regret"), help="where runs are kept (out/regret)")
    return parser.parse_args()


def regret(arguments: argparse.Namespace) -> dict[str, Any]:
    """Make the missing runs; write the report to the folder and return it."""
    started_s = time.monotonic()
    data = arguments.data.resolve()
    contenders, rival_names = chosen_contenders(arguments)
    again = chosen_again(contenders, arguments.again)
    cells = chosen_cells(arguments, data)
    plan = Plan(
        cells=cells,
        contenders=contenders,
        seeds=chosen_seeds(arguments),
        capacity_rps=capacities(cells, data, arguments.out, arguments.jobs),
        data=data,
        spell=Spell(window_s=arguments.window, warm_up_s=arguments.window / 10),
        tenants=arguments.tenants,
    )
    kept = kept_runs(arguments.out)
    for run in replace(plan, contenders=again).runs(plan.seeds):
        kept.done.pop(run.digest(), None)
    make_runs(plan, kept, rival_names, race=arguments.race, jobs=arguments.jobs)
    findings = found_in(plan, kept, arguments.policy, rival_names)
    told = {
        **summary(findings),
        "subject": arguments.policy,
        "seeds": len(plan.seeds),
        "tenants": plan.tenants,
        "rivals": sorted(rival_names),
        "left_out": left_out(),
        "workloads": workload_facts(plan),
        "seconds": round(time.monotonic() - started_s, 1),
        "cpu_s_of_all_runs": round(sum(kept.done[digest].cpu_s for digest in _digests(plan, kept)), 1),
    }
    write_whole(arguments.out / JSON, json.dumps(told, indent=1).encode())
    write_whole(arguments.out / VALUES, values(findings).encode())
    return told


def chosen_cells(arguments: argparse.Namespace, data: Path) -> list[Cell]:
    """The cells asked for; of the quick ones, those whose workload is available."""
    if arguments.quick and not arguments.cells:
        known = known_workloads(data)
        patterns = ",".join(each for each in QUICK_CELLS if each.partition("/")[0] in known)
    else:
        patterns = arguments.cells or "*"
    return that_fit(select(all_cells(data), patterns), data)


def chosen_contenders(arguments: argparse.Namespace) -> tuple[list[Contender], frozenset[str]]:
    """All contenders, the subject first, and the names of the rivals."""
    subject = arguments.policy
    wanted = arguments.presets.split(",") if arguments.presets else rivals(subject)
    if arguments.quick and not arguments.presets:
        wanted = QUICK_RIVALS
    names = [name.strip() for name in wanted if name.strip() != subject]
    beside = list(ablations(subject)) if arguments.ablations else []
    served = dict.fromkeys([subject, *names, *beside, STOCK])
    knowing = [] if arguments.no_clairvoyants else clairvoyants(subject)
    return [*map(contender, served), *knowing], frozenset(names)


def chosen_again(contenders: Sequence[Contender], patterns: str) -> list[Contender]:
    """The contenders whose kept runs are dropped: those that a pattern of `A,B,...` matches; ConfigError for a
    pattern that matches none.
    """
    wanted = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
    for pattern in wanted:
        if not any(fnmatchcase(each.name, pattern) for each in contenders):
            raise ConfigError(
                f"no contender is called {pattern!r}; accepted: their names, with * for any part"
            )
    return [each for each in contenders if any(fnmatchcase(each.name, pattern) for pattern in wanted)]


def chosen_seeds(arguments: argparse.Namespace) -> range:
    """The first seeds, as many as asked for. Raises ConfigError for none, or for more than there are windows."""
    count = arguments.seeds
    if count is None:
        count = QUICK_SEEDS if arguments.quick else SEEDS
    if not 1 <= count <= SEEDS:
        raise ConfigError(f"seeds is {count}; accepted: 1 to {SEEDS}")
    return range(count)


def capacities(cells: Sequence[Cell], data: Path, out: Path, jobs: int) -> dict[tuple[str, str], float]:
    """Capacity (requests a second of `vllm`) by workload and machine, measured where it is not kept."""
    places = list(dict.fromkeys(cell.place for cell in cells))
    runs = [CapacityRun(workload=workload, machine=machine, data=data) for workload, machine in places]
    kept = kept_capacities(out)
    run_kept(runs, kept, measure_capacity, jobs=jobs, tick=Progress("capacities", len(runs), kept, runs))
    return {(run.workload, run.machine): kept.done[run.digest()].rps for run in runs}


def make_runs(plan: Plan, kept: Runs, rival_names: frozenset[str], *, race: bool, jobs: int) -> None:
    """Make the runs that are not kept; with `race`, the first seed decides which rivals get further seeds."""
    stages = [plan.seeds] if not race else [plan.seeds[:1], plan.seeds[1:]]
    for stage in stages:
        runs = list(plan.runs(stage))
        if race and stage is not stages[0]:
            staying = still_racing(plan, kept, rival_names)
            runs = [run for run in runs if staying(run)]
        run_kept(runs, kept, measure, jobs=jobs, tick=Progress("runs", len(runs), kept, runs))


def found_in(plan: Plan, kept: Runs, subject: str, rival_names: frozenset[str]) -> list[CellFindings]:
    """Every cell's values by contender and seed."""
    knowing = frozenset(each.name for each in plan.contenders if each.oracle)
    found = []
    for cell in plan.cells:
        values: dict[str, list[float | None]] = {}
        tails: dict[str, dict[str, float | None]] = {}
        for each in plan.contenders:
            results = [kept.result(plan.run(cell, each, seed)) for seed in plan.seeds]
            values[each.name] = [None if result is None else result.value(cell.classes) for result in results]
            tails[each.name] = {
                key: mean_of_known([None if result is None else getattr(result, key) for result in results])
                for key in TAILS
            }
        found.append(CellFindings(cell, subject, rival_names, knowing, values, tails))
    return found


def workload_facts(plan: Plan) -> list[dict[str, Any]]:
    """Facts about each workload on a machine: its capacity, and how many requests fit and do not."""
    rows = []
    for (workload, machine), rps in plan.capacity_rps.items():
        facts = ServedWorkload(workload, MACHINES[machine], plan.data).facts()
        row: dict[str, Any] = {
            "workload": workload,
            "machine": machine,
            "capacity_rps": round(rps, 4),
            "requests": facts.requests,
            "dropped": facts.dropped,
        }
        if facts.recorded_rps is not None:
            window_s = plan.spell.window_s * rps / facts.recorded_rps
            row["recorded_s_in_a_window_at_capacity"] = round(window_s, 1)
            row["windows_overlap_above_load"] = round(facts.requests / (SEEDS * plan.spell.window_s * rps), 3)
        rows.append(row)
    return rows


def _digests(plan: Plan, kept: Runs) -> list[str]:
    return [digest for run in plan.runs(plan.seeds) if (digest := run.digest()) in kept.done]


if __name__ == "__main__":
    main()
