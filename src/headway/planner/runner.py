"""The runs of a plan: what is kept is not done again, and what another run answers is not simulated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from headway.lab.kept_runs import run_groups
from headway.planner.ask import Prepared
from headway.planner.configuration import Configuration
from headway.planner.runs import KeptPlanRuns, PlanResult, PlanRun, simulate_plan_run
from headway.planner.samples import Sample
from headway.planner.search import Field, Pairs, SearchPlan, most_runs
from headway.results import Summary

Tell = Callable[[float, str], None]
"""Hears the share done (0 to 1), and what is going on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCounts:
    """How many runs were simulated now, how many of the others one of these answered, and how many were kept."""

    simulated: int = 0
    answered: int = 0
    kept: int = 0


@dataclass(slots=True)
class Runner:
    """Simulates what is not kept yet and no other run answers, and tells how far it is, in seconds of trace."""

    prepared: Prepared
    kept: KeptPlanRuns
    jobs: int
    tell: Tell
    counts: RunCounts = field(default=RunCounts(), init=False)
    _expected_s: float = field(default=0.0, init=False)
    _done_s: float = field(default=0.0, init=False)

    def expect(self, tried: Field, plan: SearchPlan) -> None:
        """Say how much is to come."""
        ladder = plan.ladder(tried)
        whole_s = sum(runs * rung.window_s for runs, rung in zip(most_runs(tried, plan), ladder, strict=True))
        self._expected_s = whole_s + 2 * len(plan.unseen()) * plan.window_s
        self._done_s = 0.0

    def measure(self, pairs: Pairs) -> list[Summary]:
        """What each came to."""
        runs = self._run(pairs)
        return [result.summary for run in runs if (result := self.kept.result(run)) is not None]

    def timed(self, pairs: Pairs) -> list[float]:
        """Seconds that each took to simulate, now or when it was."""
        return [result.wall_s for run in self._run(pairs) if (result := self.kept.result(run)) is not None]

    def _run(self, pairs: Pairs) -> list[PlanRun]:
        runs = [self._planned(configuration, part) for configuration, part in pairs]
        todo = [run for run in runs if self.kept.result(run) is None]
        window_s = pairs[0][1].window_s
        what = f"{len(runs):,} runs of {window_s:.0f} s"
        self._advance((len(runs) - len(todo)) * window_s, what)
        tick = partial(self._advance, window_s, what)
        run_groups(groups_of(todo), self.kept, simulate_next, jobs=self.jobs, tick=tick)
        self._count(todo, len(runs) - len(todo))
        return runs

    def _count(self, done: Sequence[PlanRun], kept: int) -> None:
        answered = sum(self.kept.done[run.digest()].wall_s == 0 for run in done)
        self.counts = RunCounts(
            simulated=self.counts.simulated + len(done) - answered,
            answered=self.counts.answered + answered,
            kept=self.counts.kept + kept,
        )

    def _planned(self, configuration: Configuration, part: Sample) -> PlanRun:
        """A run of a whole window learns to predict as a server does; shorter ones are only there to choose by."""
        foretold = part.window_s < self.prepared.window_s
        return PlanRun(task=self.prepared.task, configuration=configuration, sample=part, foretold=foretold)

    def _advance(self, seconds: float, what: str) -> None:
        self._done_s += seconds
        self.tell(min(1.0, self._done_s / self._expected_s) if self._expected_s else 0.0, what)


# ---- what one simulation answers ------------------------------------------------------------------------


def groups_of(runs: Sequence[PlanRun]) -> list[list[PlanRun]]:
    """Runs together that differ in seats and host memory alone, the roomiest first; the largest groups first, since
    of a group one is done after another.
    """
    groups: dict[PlanRun, list[PlanRun]] = {}
    for run in runs:
        bare = replace(run.configuration, seats=0, host_gib=0.0)
        groups.setdefault(replace(run, configuration=bare), []).append(run)
    roomiest = [sorted(group, key=_room, reverse=True) for group in groups.values()]
    return sorted(roomiest, key=len, reverse=True)


def _room(run: PlanRun) -> tuple[float, int]:
    return run.configuration.host_gib, run.configuration.seats


def simulate_next(runs: Sequence[PlanRun], results: Sequence[PlanResult]) -> PlanResult:
    """What the next of a group comes to, those before it having come to `results`; one of them may answer it."""
    run = runs[len(results)]
    for before, result in zip(runs, results, strict=False):
        if answers(before.configuration, result, run.configuration):
            return replace(result, wall_s=0.0)
    return simulate_plan_run(run)


def answers(configuration: Configuration, result: PlanResult, other: Configuration) -> bool:
    """Whether a result is also that of another configuration of its group, with as much host memory or less.

    While no KV leaves a GPU host memory decides nothing, nor do seats if everybody who was there at once had one. Once
    some does they may: `fastserve` keeps room for as many newcomers as there are seats.
    """
    seated = result.most_live <= min(configuration.seats, other.seats)
    return not result.evicted and (seated or configuration.seats == other.seats)
