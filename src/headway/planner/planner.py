"""A whole plan: search, choice, comparison with the default on unseen samples, and the fewest GPUs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from headway.errors import ConfigError
from headway.planner.machine import Configuration
from headway.planner.objective import Finals, Gain, choose, gain
from headway.planner.preparation import Prepared
from headway.planner.runs import KeptPlanRuns, RunCounts, Runner, Tell
from headway.planner.sampling import candidates, sample
from headway.planner.search import MOST_HALVINGS, Field, SearchPlan, SearchResult, sampled_s, search
from headway.results import Summary
from headway.statistics import Interval

BUDGET = 240
"""Configurations tried if neither a number nor minutes are given."""

PROBES = 3
"""Configurations of each policy that are timed before minutes are converted into a budget."""

PROBE_SHARE = 1 / (1 << MOST_HALVINGS)
"""Part of the last window that is timed: the window of the first of three rungs or more."""

SAFETY = 0.8
"""Part of the minutes that is planned; the rest is reserve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much to try: a number of configurations, or as many as fit into minutes; in up to `jobs` processes."""

    budget: int | None = None
    minutes: float | None = None
    jobs: int = 1

    def __post_init__(self) -> None:
        if self.budget is not None and self.minutes is not None:
            raise ConfigError("budget and minutes are given; accepted: one of the two")
        if self.budget is not None and self.budget < 1:
            raise ConfigError.of("budget", self.budget, "1 configuration or more")
        if self.minutes is not None and not self.minutes > 0:
            raise ConfigError.of("minutes", self.minutes, "more than 0")
        if self.jobs < 1:
            raise ConfigError.of("jobs", self.jobs, "1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fewest:
    """The smallest number of GPUs whose best configuration holds the aim; None if not even all of them do.

    It must hold on the samples that chose it and on unseen ones. `goodput` is that on unseen samples; if all GPUs fail
    the aim, that on the samples on which they fail. `sure` if the whole interval holds the aim.
    """

    gpus: int | None
    aim: float
    goodput: Interval | None

    @property
    def sure(self) -> bool:
        """Whether the whole interval holds the aim."""
        return self.gpus is not None and self.goodput is not None and self.goodput.low >= self.aim


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDeployment:
    """The result of a plan.

    `best` is the best configuration on each number of GPUs, at the last rung; `choice` the answer, `default` stock vLLM
    on as many GPUs. `unseen` has the results of these two on samples not used in the search, from which `gain` follows.
    """

    prepared: Prepared
    tried: int
    found: SearchResult
    best: Mapping[int, Configuration]
    choice: Configuration
    default: Configuration
    unseen: Mapping[Configuration, Sequence[Summary]]
    gain: Gain
    fewest: Fewest | None
    runs: RunCounts
    wall_s: float

    @property
    def is_too_few(self) -> bool:
        """Whether not even all of the GPUs reach the required goodput."""
        return self.fewest is not None and self.fewest.gpus is None


def make_plan(prepared: Prepared, effort: Effort, kept: KeptPlanRuns, tell: Tell) -> PlannedDeployment:
    """Search, choose and compare. Each simulated run is kept, so that a killed plan can continue."""
    started_s = time.monotonic()
    runner = Runner(prepared.task, prepared.window_s, kept, effort.jobs, tell)
    budget = _budget(prepared, effort, runner)
    tried = candidates(prepared.space, budget, even=prepared.request.fewest)
    plan = SearchPlan(
        objective=prepared.objective,
        samples=prepared.request.seeds,
        window_s=prepared.window_s,
        drawn=prepared.task.trace.is_drawn,
    )
    runner.expect(tried, plan)
    found = search(tried, prepared.space.default, plan, runner.measure)
    best = _best(prepared, tried, found)

    @cache
    def on_unseen(gpus: int) -> dict[Configuration, list[Summary]]:
        return _on_unseen([best[gpus], prepared.space.default[gpus]], plan, runner)

    fewest = _fewest(prepared, best, found, on_unseen) if prepared.request.fewest else None
    gpus = fewest.gpus if fewest is not None and fewest.gpus is not None else prepared.request.gpus
    choice, default, unseen = best[gpus], prepared.space.default[gpus], on_unseen(gpus)
    return PlannedDeployment(
        prepared=prepared,
        tried=sum(map(len, tried.values())),
        found=found,
        best=best,
        choice=choice,
        default=default,
        unseen=unseen,
        gain=gain(prepared.objective, unseen[choice], unseen[default]),
        fewest=fewest,
        runs=runner.counts,
        wall_s=time.monotonic() - started_s,
    )


def _best(prepared: Prepared, tried: Field, found: SearchResult) -> dict[int, Configuration]:
    """The best configuration by number of GPUs; the default only counts if it was a candidate."""
    return {
        gpus: choose(
            prepared.objective,
            _holding(prepared, {each: finals[each] for each in finals if each in set(tried[gpus])}),
            prepared.space.default[gpus],
        )
        for gpus, finals in found.finals.items()
        if tried[gpus]
    }


def _holding(prepared: Prepared, finals: Finals) -> Finals:
    """With `fewest`, the configurations that hold the aim, if any: simplicity does not excuse missing it. Otherwise
    all.
    """
    if not prepared.request.fewest:
        return finals
    return {each: found for each, found in finals.items() if _holds(prepared, found)} or finals


def _holds(prepared: Prepared, summaries: Sequence[Summary]) -> bool:
    goodput = prepared.objective.mean(summaries)
    return goodput is not None and goodput.mean >= prepared.request.least_goodput


def _fewest(
    prepared: Prepared,
    best: Mapping[int, Configuration],
    found: SearchResult,
    on_unseen: Callable[[int], Mapping[Configuration, Sequence[Summary]]],
) -> Fewest:
    """Go through the numbers of GPUs: one that holds the aim on the search's samples may miss it on unseen ones."""
    aim, goodput = prepared.request.least_goodput, None
    for gpus, configuration in best.items():
        summaries = found.finals[gpus][configuration]
        if _holds(prepared, summaries):
            summaries = on_unseen(gpus)[configuration]
            if _holds(prepared, summaries):
                return Fewest(gpus=gpus, aim=aim, goodput=prepared.objective.mean(summaries))
        goodput = prepared.objective.mean(summaries)
    return Fewest(gpus=None, aim=aim, goodput=goodput)


def _on_unseen(
    configurations: Sequence[Configuration], plan: SearchPlan, runner: Runner
) -> dict[Configuration, list[Summary]]:
    different = list(dict.fromkeys(configurations))
    pairs = [(each, part) for part in plan.unseen() for each in different]
    seen: dict[Configuration, list[Summary]] = {each: [] for each in different}
    for (each, _), summary in zip(pairs, runner.measure(pairs), strict=True):
        seen[each].append(summary)
    return seen


# ---- how much is tried ---------------------------------------------------------------------------------


def _budget(prepared: Prepared, effort: Effort, runner: Runner) -> int:
    """The number of configurations to try. Timings are kept, so that a continued plan tries the same ones."""
    if effort.minutes is None:
        return BUDGET if effort.budget is None else effort.budget
    window_s = PROBE_SHARE * prepared.window_s
    first = sample(0, window_s, drawn=prepared.task.trace.is_drawn)
    probes = candidates(prepared.space, PROBES * len(prepared.policies) * len(prepared.space.default))
    pairs = [(each, first) for configurations in probes.values() for each in configurations]
    took_s = sum(runner.timed(pairs)) / len(pairs)
    seconds = SAFETY * effort.minutes * 60 * effort.jobs
    return affordable(
        seconds, took_s / window_s, prepared.request.seeds, prepared.window_s, prepared.space.size
    )


def affordable(seconds: float, rate: float, samples: int, window_s: float, most: int) -> int:
    """How many configurations can be searched in this many seconds of one core, at `rate` per second of trace.

    At least 1, at most `most`. Counts upwards one by one: one more configuration may add a rung, with a shorter first
    window, and so cost less. O(most).
    """
    counts = range(most, 1, -1)
    return next((count for count in counts if rate * sampled_s(count, samples, window_s) <= seconds), 1)
