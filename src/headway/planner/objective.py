"""Compares deployments on few samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import exp, inf, log

from headway.planner.machine import Configuration, moving_parts
from headway.results import Summary
from headway.statistics import Interval, mean


def difference(values: Sequence[float], reference: Sequence[float]) -> Interval:
    """The mean paired difference of `values` and `reference`, so that what both share cancels out."""
    return Interval.of([value - other for value, other in zip(values, reference, strict=True)])


TIE = 0.005
"""Equally good: goodput within half a point, or times within half a per cent, of the best."""

SECOND_TIE = 0.01
"""Equally good in the second figure: within one per cent."""

Finals = Mapping[Configuration, Sequence[Summary]]
"""Summaries of each configuration, sample by sample, with equal samples for all."""


class Objective(StrEnum):
    """What is maximised or minimised; the values are summary keys."""

    GOODPUT = "goodput"
    JCT = "mean_jct_s"

    @property
    def second(self) -> str:
        """The summary key that decides among equally good configurations."""
        return "mean_jct_s" if self is Objective.GOODPUT else "p99_jct_s"

    def score(self, summary: Summary) -> float:
        """The cost of a run, lower is better: negative goodput, or the logarithm of the mean JCT.

        Differences are then points or ratios. inf if nothing was measured, or if, without targets, a request did not
        finish.
        """
        if self is Objective.GOODPUT:
            return inf if summary.goodput is None else -summary.goodput
        if summary.mean_jct_s is None or summary.finished < summary.requests:
            return inf
        return log(summary.mean_jct_s)

    def second_score(self, summaries: Sequence[Summary]) -> float:
        """The mean cost in the second figure; inf if it was not measured."""
        found = interval_of(summaries, self.second)
        return inf if found is None else found.mean

    def mean(self, summaries: Sequence[Summary]) -> Interval | None:
        """The figure itself over the samples; None if it was not measured."""
        return interval_of(summaries, self.value)


def interval_of(summaries: Sequence[Summary], key: str) -> Interval | None:
    """A summary key over the samples; None if one of them lacks it."""
    values = [getattr(summary, key) for summary in summaries]
    return None if None in values else Interval.of(values)


@dataclass(frozen=True, slots=True)
class Gain:
    """What a choice gains over the default, on samples that both were measured on.

    `points` is the difference in goodput (None without targets). `ratio` is that of goodput, or of the default's mean
    JCT to the choice's; above 0 and 1 the choice is better. None if the default meets no target at all.
    """

    points: Interval | None
    ratio: float | None
    ratio_interval: Interval | None


def gain(objective: Objective, choice: Sequence[Summary], default: Sequence[Summary]) -> Gain:
    """The gain, with the interval of the paired differences."""
    scores = [[objective.score(summary) for summary in each] for each in (choice, default)]
    if inf in scores[0] or inf in scores[1]:
        return Gain(None, None, None)
    less = difference(scores[1], scores[0])
    if objective is Objective.JCT:
        ratio = Interval(exp(less.mean), exp(less.low), exp(less.high) if less.high < inf else inf)
        return Gain(None, ratio.mean, ratio)
    before = -mean(scores[1])
    return Gain(less, -mean(scores[0]) / before if before else None, None)


def choose(objective: Objective, finals: Finals, default: Configuration) -> Configuration:
    """The best configuration: among those tied in the objective and then in the second figure, the simplest.

    The simplest has the fewest moving parts; among equals the objective decides. A configuration that left a request
    unserved is chosen only if all did.
    """
    means = {each: mean(map(objective.score, summaries)) for each, summaries in finals.items()}
    best = min(means.values())
    near = [each for each, score in means.items() if score == best or score <= best + TIE]
    seconds = {each: objective.second_score(finals[each]) for each in near}
    quickest = min(seconds.values())
    as_good = [
        each for each in near if seconds[each] == quickest or seconds[each] <= quickest * (1 + SECOND_TIE)
    ]
    return min(as_good, key=lambda each: (moving_parts(each, default), means[each], each.place))
