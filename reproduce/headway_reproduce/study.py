"""The machinery that all papers share: runs made phase by phase, numbers over their seeds, tables and charts of
them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from headway.errors import SimulationError
from headway.lab.kept_runs import FILE, Digested, Kept, run_kept
from headway.lab.papers import PaperRequest, Size, Tell, Tick
from headway.results.study import Chart, Study, StudyPart, StudyTable, Value
from headway.results.svg import Points, settings_svg
from headway.statistics import deviation, known, mean_of_all
from headway_reproduce.claims import Claim, verdict_counts

RunT = TypeVar("RunT", bound=Digested)
ResultT = TypeVar("ResultT", bound="Result")
PointT = TypeVar("PointT")
PointT_contra = TypeVar("PointT_contra", contravariant=True)

Range = tuple[float, float]
"""The least and the largest value."""

# ---- numbers -------------------------------------------------------------------------------------------


class Spread(NamedTuple):
    """A mean over seeds, and the standard deviation where there are several."""

    mean: float | None
    deviation: float | None


def spread(values: Iterable[float | None]) -> Spread:
    """The mean and deviation of the values; None if a value is missing or there are none."""
    found = list(values)
    whole = mean_of_all(found)
    return Spread(whole, None if whole is None else deviation(known(found)))


def ratio(mine: float | None, theirs: float | None) -> float | None:
    """The quotient of two numbers; None where one is missing."""
    return mine / theirs if mine is not None and theirs else None


def span(values: Iterable[float | None]) -> Range | None:
    """The smallest and the largest of the values that are not None; None without any."""
    found = known(values)
    return (min(found), max(found)) if found else None


# ---- what the runs came to -----------------------------------------------------------------------------


class Result(Protocol):
    """The result of a run."""

    @property
    def unfinished(self) -> int:
        """Requests that did not finish."""
        ...


class Scope(Protocol):
    """Which of a paper's experiments are run."""

    @property
    def quick(self) -> bool:
        """Whether it is the fixed part of `--quick`."""
        ...

    def num_runs(self) -> int:
        """The number of all runs."""
        ...

    def seconds_a_run(self) -> float:
        """The mean seconds of a run on one core, roughly."""
        ...


def read_kept(root: Path, kind: type[ResultT], file: str = FILE) -> Kept[RunT, ResultT]:
    """The runs that a folder holds. Raises ConfigError if the file holds anything else or cannot be read."""
    kept: Kept[RunT, ResultT] = Kept(root, file)
    kept.load(kind)
    return kept


@dataclass(frozen=True)
class Runs(ABC, Generic[RunT, ResultT]):
    """A paper's runs that are made so far, and the means to make and tabulate them."""

    measured_on: ClassVar[str]
    """The machine named in tables of these runs."""
    kept: Kept[RunT, ResultT]
    scope: Scope

    @staticmethod
    @abstractmethod
    def simulate(run: Any) -> Any:
        """Make one run; the function of a module."""

    @abstractmethod
    def phases(self) -> Iterator[Sequence[RunT]]:
        """All runs in phases: a phase is asked for once the phases before it are done, since it may depend on them."""

    def make(self, jobs: int, tick: Tick) -> None:
        """Make the runs that are not kept yet."""
        for runs in self.phases():
            run_kept(runs, self.kept, self.simulate, jobs=jobs, tick=tick)

    def made(self, run: RunT, policy: str, where: object) -> ResultT:
        """The result of a run. Raises SimulationError, which names policy and place, for one that was not made."""
        found = self.kept.result(run)
        if found is None:
            raise SimulationError(f"{policy} has not been run at {where}")
        return found

    def num_kept(self) -> int:
        """The number of kept runs, as far as the phases so far determine which runs there are."""
        done: set[str] = set()
        for runs in self.phases():
            digests = {run.digest() for run in runs}
            done |= digests & self.kept.done.keys()
            if not digests <= done:
                break
        return len(done)

    def table(
        self,
        name: str,
        title: str,
        headings: Sequence[str],
        rows: Iterable[Sequence[Value]],
        note: str = "",
        *,
        measured_on: str | None = None,
        decimals: int = 2,
        keys: int = 1,
        detail: bool = False,
    ) -> StudyTable:
        """A table of these runs."""
        return StudyTable(
            name=name,
            title=title,
            measured_on=measured_on or self.measured_on,
            headings=headings,
            rows=list(rows),
            note=note,
            decimals=decimals,
            keys=keys,
            detail=detail,
        )


def chart(
    name: str,
    title: str,
    curves: Mapping[str, Points],
    x_label: str,
    y_label: str,
    *,
    published: Mapping[str, tuple[float, float]] | None = None,
    level: float | None = None,
    doubling: bool = True,
) -> Chart:
    """A chart of values against a setting, as `settings_svg`."""
    svg = settings_svg(
        title, curves, x_label=x_label, y_label=y_label, published=published, level=level, doubling=doubling
    )
    return Chart(name=name, svg=svg)


class PointScope(Scope, Protocol[PointT_contra]):
    """A scope that compares policies at points."""

    def seeds(self, point: PointT_contra) -> range:
        """The seeds that a point is run with."""
        ...


@dataclass(frozen=True)
class PointFindings(Runs[RunT, ResultT], Generic[PointT, RunT, ResultT]):
    """The runs of policies at points; a value is None where some seed has no such value."""

    scope: PointScope[PointT]

    @abstractmethod
    def run(self, point: PointT, policy: str, seed: int) -> RunT:
        """The run of a policy at a point."""

    def results(self, point: PointT, policy: str) -> list[ResultT]:
        """A result for each seed. Raises SimulationError for a run that was not made."""
        seeds = self.scope.seeds(point)
        return [self.made(self.run(point, policy, seed), policy, point) for seed in seeds]

    def mean(self, point: PointT, policy: str, number: Callable[[ResultT], float | None]) -> float | None:
        """The mean over seeds."""
        return mean_of_all([number(result) for result in self.results(point, policy)])

    def ratios(
        self, point: PointT, policy: str, over: str, number: Callable[[ResultT], float | None]
    ) -> Spread:
        """One policy's number relative to another's, seed by seed: both served the same requests."""
        pairs = zip(self.results(point, policy), self.results(point, over), strict=True)
        return spread(ratio(number(mine), number(theirs)) for mine, theirs in pairs)

    def ratio(
        self, point: PointT, policy: str, over: str, number: Callable[[ResultT], float | None]
    ) -> float | None:
        """The mean of `ratios`."""
        return self.ratios(point, policy, over, number).mean

    def unfinished(self, points: Iterable[PointT], policies: Sequence[str]) -> list[str]:
        """A sentence for every policy and point with unfinished requests, which make it incomparable."""
        return [
            f"{policy} at {point}: requests that did not finish: {missing}; it is not comparable."
            for point in points
            for policy in policies
            if (missing := sum(result.unfinished for result in self.results(point, policy)))
        ]


# ---- a paper, repeated ---------------------------------------------------------------------------------


FindingsT = TypeVar("FindingsT", bound="Runs[Any, Any]")


class RepeatedPaper(ABC, Generic[FindingsT]):
    """A paper whose simulated runs are all made before the report; a subclass defines the runs and the report."""

    name: ClassVar[str]
    title: ClassVar[str]

    @abstractmethod
    def findings(self, request: PaperRequest) -> FindingsT:
        """The requested runs, with those that the request's folder keeps."""

    def more_seconds(self, request: PaperRequest) -> float:
        """Seconds of everything except the simulated runs, roughly."""
        return 0.0

    @abstractmethod
    def study(self, findings: FindingsT, request: PaperRequest, tell: Tell) -> Study:
        """The report, once all runs are made."""

    def size(self, request: PaperRequest) -> Size:
        """As `Paper.size`."""
        findings = self.findings(request)
        runs, done = findings.scope.num_runs(), findings.num_kept()
        seconds = (runs - done) * findings.scope.seconds_a_run() / request.jobs
        return Size(runs=runs, kept=done, seconds=seconds + self.more_seconds(request))

    def reproduce(self, request: PaperRequest, tick: Tick, tell: Tell) -> Study:
        """As `Paper.reproduce`."""
        findings = self.findings(request)
        findings.make(request.jobs, tick)
        return self.study(findings, request, tell)

    def told(
        self,
        scope: Scope,
        whole: Scope,
        *,
        extent: str,
        seeds: int,
        facts: Sequence[tuple[str, str]],
        claims: Sequence[Claim],
        parts: Iterable[StudyPart | None],
    ) -> Study:
        """The study; a part that is None is not run. `extent` describes the complete set of runs.

        The JSON output has the facts, every statement of the paper, and every table as it is shown.
        """
        part = "the quick part, 1 seed" if scope.quick else extent
        counts = {"cells_run": scope.num_runs(), "cells_total": whole.num_runs()}
        shown = [part for part in parts if part is not None]
        said = f"{counts['cells_run']:,} of {counts['cells_total']:,} simulated runs: {part}"
        facts = [("scope", said), *facts]
        return Study(
            name=self.name,
            title=self.title,
            facts=facts,
            parts=shown,
            data={
                "quick": scope.quick,
                **counts,
                "seeds": seeds,
                "facts": dict(facts),
                "verdicts": verdict_counts(claims),
                "claims": [asdict(claim) for claim in claims],
                "tables": {
                    table.name: {"headings": table.headings, "rows": table.rows}
                    for part in shown
                    for table in part.tables
                },
            },
        )
