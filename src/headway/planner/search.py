"""The search: successive halving that never decides by noise, on every number of GPUs at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Any, Generic, TypeVar

from headway.planner.machine import Configuration, moving_parts
from headway.planner.objective import Finals, Objective, difference
from headway.planner.sampling import Sample, sample, samples_in_all
from headway.results import Summary
from headway.statistics import mean

SHRINK = 4
"""At most one in this many configurations continues from each rung."""

FINALISTS = 8
"""Configurations that may reach the last rung in any case."""

MOST_HALVINGS = 2
"""Halvings of the window: first rungs have a quarter of it, since a queue needs time to build up."""

Item = TypeVar("Item", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Rung:
    """How configurations are measured before some continue: the number of samples, and their seconds.

    `turn` counts from 0; `last`: there is no further rung.
    """

    turn: int
    samples: int
    window_s: float
    last: bool


def rungs(configurations: int, samples: int, window_s: float) -> list[Rung]:
    """The rungs for a number of configurations.

    The last has all samples and the whole window; each before it has half of both, but at least a quarter of the
    window. With a quarter of the configurations continuing, no rung costs much more than the one before.
    """
    count = 1
    while configurations > SHRINK ** (count - 1) * 2 * FINALISTS:
        count += 1
    return [
        Rung(
            turn=count - 1 - left,
            samples=ceil(samples / (1 << left)),
            window_s=window_s / (1 << min(left, MOST_HALVINGS)),
            last=left == 0,
        )
        for left in reversed(range(count))
    ]


def quota(configurations: int, rung: Rung) -> int:
    """How many configurations, of the initial number, may continue from a rung."""
    times_fewer: int = SHRINK ** (rung.turn + 1)
    return max(FINALISTS, ceil(configurations / times_fewer))


def sampled_s(configurations: int, samples: int, window_s: float) -> float:
    """Most seconds of trace that a search simulates: over the rungs, configurations times samples times window."""
    total = 0.0
    there = configurations
    for rung in rungs(configurations, samples, window_s):
        total += there * rung.samples * rung.window_s
        there = min(there, quota(configurations, rung))
    return total


@dataclass(frozen=True, slots=True)
class RungVerdict(Generic[Item]):
    """A rung's decision: `kept` continue, best first; `worse` are surely worse; `untold` may be as good as the best.

    The untold ones exceed the room of the next rung.
    """

    kept: tuple[Item, ...]
    worse: tuple[Item, ...]
    untold: tuple[Item, ...]


def judge(
    scores: Mapping[Item, Sequence[float]], room: int, *, place: Callable[[Item], Any] = lambda item: item
) -> RungVerdict[Item]:
    """Decide which configurations continue. Scores are by sample, equal samples for all; lower is better; inf never
    continues.

    The leader has the lowest mean. Another is surely worse if the 95 % interval of its paired difference from the
    leader lies above 0. All others continue in the order of their means, as far as there is room. A single sample has
    no interval, so then none is surely worse and only the room decides. `place` ranks equal means. If every score is
    inf, none can be told from the others. O(n log n).

    Source: Jamieson and Talwalkar 2016, arXiv:1502.07943 (halving); the interval in place of the rank alone is ours.
    """
    ranked = sorted(scores, key=lambda item: (mean(scores[item]), place(item)))
    if not ranked:
        return RungVerdict((), (), ())
    leader = scores[ranked[0]]
    equal = [item for item in ranked if not _surely_worse(scores[item], leader)]
    told = set(equal)
    return RungVerdict(
        kept=tuple(equal[:room]),
        worse=tuple(item for item in ranked if item not in told),
        untold=tuple(equal[room:]),
    )


def _surely_worse(values: Sequence[float], leader: Sequence[float]) -> bool:
    return inf not in leader and (inf in values or difference(values, leader).low > 0)


Field = Mapping[int, Sequence[Configuration]]
"""What is tried on each number of GPUs."""

Pairs = Sequence[tuple[Configuration, Sample]]

Measure = Callable[[Pairs], Sequence[Summary]]
"""The result of each configuration on its sample, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPlan:
    """How much is measured: the samples of the last rung, of `window_s` each, of a trace that is `drawn` or not."""

    objective: Objective
    samples: int
    window_s: float
    drawn: bool

    def ladder(self, field: Field) -> list[Rung]:
        """The rungs for the number of GPUs with the most configurations."""
        return rungs(max(map(len, field.values())), self.samples, self.window_s)

    def of_rung(self, rung: Rung) -> list[Sample]:
        """The samples of a rung, equal for all configurations."""
        return [sample(number, rung.window_s, drawn=self.drawn) for number in range(rung.samples)]

    def unseen(self) -> list[Sample]:
        """Samples for the last comparison, none of them used in the search."""
        numbers = range(self.samples, samples_in_all(self.samples))
        return [sample(number, self.window_s, drawn=self.drawn) for number in numbers]


@dataclass(frozen=True, slots=True, kw_only=True)
class RungReport:
    """What happened in a rung to the configurations on all numbers of GPUs together.

    `worse` are surely worse; `untold` were left out for want of room although they may be as good. All stay at the last
    rung.
    """

    configurations: int
    samples: int
    window_s: float
    kept: int
    worse: int
    untold: int


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What was left at the last rung on each number of GPUs, sample by sample, and the reports of the rungs."""

    finals: Mapping[int, Finals]
    reports: tuple[RungReport, ...]


def search(
    field: Field, default: Mapping[int, Configuration], plan: SearchPlan, measure: Measure
) -> SearchResult:
    """Halve the field until the last rung.

    The default of each number of GPUs is measured to the end as the reference. All configurations in a rung have equal
    samples.
    """
    there = {gpus: list(dict.fromkeys([*each, default[gpus]])) for gpus, each in field.items()}
    reports: list[RungReport] = []
    for rung in plan.ladder(field):
        found = _measured(there, plan.of_rung(rung), measure)
        after: dict[int, list[Configuration]] = {}
        worse = untold = 0
        for gpus, finals in () if rung.last else found.items():
            tried = {each: finals[each] for each in field[gpus] if each in finals}
            verdict = _judged(tried, default[gpus], plan.objective, quota(len(field[gpus]), rung))
            after[gpus] = list(dict.fromkeys([*verdict.kept, default[gpus]]))
            worse += len(verdict.worse)
            untold += len(verdict.untold)
        report = RungReport(
            configurations=sum(map(len, there.values())),
            samples=rung.samples,
            window_s=rung.window_s,
            kept=sum(map(len, (there if rung.last else after).values())),
            worse=worse,
            untold=untold,
        )
        reports.append(report)
        if rung.last:
            return SearchResult(found, tuple(reports))
        there = after
    raise AssertionError("a ladder ends with its last rung")


def _judged(
    finals: Finals, default: Configuration, objective: Objective, room: int
) -> RungVerdict[Configuration]:
    """Which configurations continue. Those with identical results count as one, represented by the simplest.

    Duplicates therefore do not fill the room; those of kept ones take the remaining room. Among equal scores, as when
    many meet all targets, the better in the second figure comes first.
    """
    ranked = sorted(finals, key=lambda each: (moving_parts(each, default), each.place))
    alike: dict[tuple[Summary, ...], list[Configuration]] = {}
    for each in ranked:
        alike.setdefault(tuple(finals[each]), []).append(each)
    twins = {first: others for first, *others in alike.values()}
    place = {each: (objective.second_score(finals[each]), at) for at, each in enumerate(ranked)}
    scores = {each: [objective.score(summary) for summary in finals[each]] for each in twins}
    verdict = judge(scores, room, place=place.__getitem__)
    as_good = [twin for each in verdict.kept for twin in twins[each]]
    left = room - len(verdict.kept)
    return RungVerdict(
        kept=(*verdict.kept, *as_good[:left]),
        worse=tuple(each for first in verdict.worse for each in (first, *twins[first])),
        untold=(*as_good[left:], *(each for first in verdict.untold for each in (first, *twins[first]))),
    )


def most_runs(field: Field, plan: SearchPlan) -> list[int]:
    """The most runs in each rung, including the default's."""
    numbers = {gpus: len(each) for gpus, each in field.items()}
    there = dict(numbers)
    most: list[int] = []
    for rung in plan.ladder(field):
        most.append(sum(number + 1 for number in there.values()) * rung.samples)
        there = {gpus: min(there[gpus], quota(numbers[gpus], rung)) for gpus in numbers}
    return most


def _measured(
    there: Mapping[int, Sequence[Configuration]], samples: Sequence[Sample], measure: Measure
) -> dict[int, dict[Configuration, list[Summary]]]:
    """Measure sample by sample, so that a process has the requests at hand."""
    pairs = [(each, part) for part in samples for configurations in there.values() for each in configurations]
    found: dict[int, dict[Configuration, list[Summary]]] = {gpus: {} for gpus in there}
    for (configuration, _), summary in zip(pairs, measure(pairs), strict=True):
        found[configuration.gpus].setdefault(configuration, []).append(summary)
    return found
