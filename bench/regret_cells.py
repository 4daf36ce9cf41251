"""The cells of `bench/regret.py`, how they are selected by name, and the runs that they need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from bench.regret_contenders import Contender
from bench.regret_machines import MACHINES
from bench.regret_runs import ANY, USUAL_SPELL, RegretRun, Spell
from bench.regret_targets import CLASSES
from bench.regret_workloads import Served, known_workloads
from headway.errors import ConfigError

LOADS = (0.5, 0.8, 1.0, 1.2, 1.5)


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """A workload on a machine at a share of its capacity, with a set of targets."""

    workload: str
    machine: str
    load: float
    classes: str

    @property
    def name(self) -> str:
        """As `--cells` selects it."""
        return f"{self.workload}/{self.machine}/{self.load:g}/{self.classes}"

    @property
    def place(self) -> tuple[str, str]:
        """What has a capacity."""
        return (self.workload, self.machine)


def all_cells(data: Path) -> list[Cell]:
    """Every cell whose workload is there, workload by workload."""
    return [
        Cell(workload, machine, load, classes)
        for workload in known_workloads(data)
        for machine in MACHINES
        for load in LOADS
        for classes in CLASSES
    ]


def that_fit(cells: Sequence[Cell], data: Path) -> list[Cell]:
    """Those whose machine can hold enough of their workload; ConfigError if there are none. Reads the traces."""
    places = {cell.place for cell in cells}
    fit = {
        (workload, machine)
        for workload, machine in places
        if Served(workload, MACHINES[machine], data).facts().served
    }
    if not fit:
        raise ConfigError(
            f"hardly anything of {cells[0].workload} fits {cells[0].machine}; accepted: other cells"
        )
    return [cell for cell in cells if cell.place in fit]


def select(cells: Sequence[Cell], patterns: str) -> list[Cell]:
    """Those that a pattern of `A,B,...` matches, by name, in their order; ConfigError for a pattern of none."""
    wanted = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
    if not wanted:
        raise ConfigError(f"cells is {patterns!r}; accepted: names or patterns, comma-separated")
    for pattern in wanted:
        if not any(fnmatchcase(cell.name, pattern) for cell in cells):
            raise ConfigError(
                f"no cell is called {pattern!r}; accepted: WORKLOAD/MACHINE/LOAD/CLASSES, "
                f"as {cells[0].name}, with * for any part"
            )
    return [cell for cell in cells if any(fnmatchcase(cell.name, pattern) for pattern in wanted)]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run: cells, who serves them, and how often."""

    cells: Sequence[Cell]
    contenders: Sequence[Contender]
    seeds: Sequence[int]
    capacity_rps: Mapping[tuple[str, str], float]
    data: Path
    spell: Spell = USUAL_SPELL
    tenants: bool = False

    def run(self, cell: Cell, contender: Contender, seed: int) -> RegretRun:
        """The run that a contender's value in a cell comes from."""
        return RegretRun(
            workload=cell.workload,
            machine=cell.machine,
            load=cell.load,
            classes=ANY if contender.blind else cell.classes,
            seed=seed,
            contender=contender,
            rate_rps=float(f"{cell.load * self.capacity_rps[cell.place]:.6g}"),
            data=self.data,
            spell=self.spell,
            tenants=self.tenants,
        )

    def runs(self, seeds: Iterable[int]) -> Iterator[RegretRun]:
        """Those of some seeds, each once, seed by seed: the first is over everywhere before the second begins."""
        seen: set[str] = set()
        for seed in seeds:
            for cell in self.cells:
                for contender in self.contenders:
                    run = self.run(cell, contender, seed)
                    digest = run.digest()
                    if digest not in seen:
                        seen.add(digest)
                        yield run
