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
"""Of so many configurations one goes on from each rung, at most."""

FINALISTS = 8
"""So many may reach the last rung, however few there were."""

MOST_HALVINGS = 2
"""Of the window: first rungs have a quarter of it, since a queue needs time to build up."""

Item = TypeVar("Item", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Rung:
    """How configurations are measured before some of them go on: on so many samples of so many seconds each.

    `turn` counts from 0; `last` says that none goes on from here.
    """

    turn: int
    samples: int
    window_s: float
    last: bool


def rungs(configurations: int, samples: int, window_s: float) -> list[Rung]:
    """Rungs for so many configurations: the last has all samples and the whole window, each before it half of both,
    but no less than a quarter of the window.

    With a quarter of the configurations going on, no rung costs much more than the one before it.
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
    """How many of the so many there were at first may go on from a rung."""
    times_fewer: int = SHRINK ** (rung.turn + 1)
    return max(FINALISTS, ceil(configurations / times_fewer))


def sampled_s(configurations: int, samples: int, window_s: float) -> float:
    """Seconds of trace that a whole search simulates at most: rung by rung, those there times samples times window."""
    total = 0.0
    there = configurations
    for rung in rungs(configurations, samples, window_s):
        total += there * rung.samples * rung.window_s
        there = min(there, quota(configurations, rung))
    return total


@dataclass(frozen=True, slots=True)
class RungVerdict(Generic[Item]):
    """What a rung decides: `kept` go on, best first; `worse` surely are; `untold` may be as good as the best.

    The untold ones are more than the next rung has room for.
    """

    kept: tuple[Item, ...]
    worse: tuple[Item, ...]
    untold: tuple[Item, ...]


def judge(
    scores: Mapping[Item, Sequence[float]], room: int, *, place: Callable[[Item], Any] = lambda item: item
) -> RungVerdict[Item]:
    """Which go on. Scores are by sample, the same samples for all, and lower is better; inf never goes on.

    The leader has the lowest mean. Another is surely worse if the 95 % interval of its difference from the leader,
    taken sample by sample, lies above 0. All the others overlap with the best, and go on as far as there is room, by
    their means; with a single sample there is no interval, so none is surely worse and the room alone decides.
    Equal means are ranked by `place`. If every score is inf, none can be told from the others. O(n log n).

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
"""What each configuration comes to on its sample, in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPlan:
    """How much is measured: at the last rung so many samples of `window_s` each, of a trace that is `drawn` or not."""

    objective: Objective
    samples: int
    window_s: float
    drawn: bool

    def ladder(self, field: Field) -> list[Rung]:
        """The rungs, as many as the largest number of configurations on some number of GPUs wants."""
        return rungs(max(map(len, field.values())), self.samples, self.window_s)

    def of_rung(self, rung: Rung) -> list[Sample]:
        """What every configuration is measured on there."""
        return [sample(number, rung.window_s, drawn=self.drawn) for number in range(rung.samples)]

    def unseen(self) -> list[Sample]:
        """Samples for the last comparison, none of them used in the search."""
        numbers = range(self.samples, samples_in_all(self.samples))
        return [sample(number, self.window_s, drawn=self.drawn) for number in numbers]


@dataclass(frozen=True, slots=True, kw_only=True)
class RungReport:
    """What a rung was, and what became of its configurations on all numbers of GPUs together.

    `worse` surely are, `untold` were left out for want of room although they may be as good; at the last rung all stay.
    """

    configurations: int
    samples: int
    window_s: float
    kept: int
    worse: int
    untold: int


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What was left at the last rung on each number of GPUs, sample by sample, and the way there."""

    finals: Mapping[int, Finals]
    reports: tuple[RungReport, ...]


def search(
    field: Field, default: Mapping[int, Configuration], plan: SearchPlan, measure: Measure
) -> SearchResult:
    """Halve the field until the last rung.

    The default of each number of GPUs is measured to the end beside the others, as what they are compared with. The
    samples of a rung are the same for all.
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
    """Which go on: configurations that came to the very same count as one, the simplest, so that ten names of one thing
    do not fill the room; the others of those kept take what room is left.

    Of equal scores, as many have that meet all targets, the better in the second figure comes first.
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
    """How many runs each rung has at most, the default's included."""
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
    """Sample by sample, so that a process has its requests at hand."""
    pairs = [(each, part) for part in samples for configurations in there.values() for each in configurations]
    found: dict[int, dict[Configuration, list[Summary]]] = {gpus: {} for gpus in there}
    for (configuration, _), summary in zip(pairs, measure(pairs), strict=True):
        found[configuration.gpus].setdefault(configuration, []).append(summary)
    return found
