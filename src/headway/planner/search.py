"""The search: rung by rung, on every number of GPUs at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headway.planner.configuration import Configuration, moving_parts
from headway.planner.halving import Rung, Verdict, judge, quota, rungs
from headway.planner.objective import Finals, Objective
from headway.planner.samples import Sample, sample, samples_in_all
from headway.results import Summary

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
class Found:
    """What was left at the last rung on each number of GPUs, sample by sample, and the way there."""

    finals: Mapping[int, Finals]
    reports: tuple[RungReport, ...]


def search(field: Field, default: Mapping[int, Configuration], plan: SearchPlan, measure: Measure) -> Found:
    """Halve the field until the last rung.

    The default of each number of GPUs is measured to the end beside the others, as what they are compared with. The
    samples of a rung are the same for all.
    """
    there = {gpus: list(dict.fromkeys([*each, default[gpus]])) for gpus, each in field.items()}
    reports: list[RungReport] = []
    for rung in plan.ladder(field):
        found = _measured(there, plan.of_rung(rung), measure)
        if rung.last:
            reports.append(_report(rung, there, there, 0, 0))
            return Found(found, tuple(reports))
        after: dict[int, list[Configuration]] = {}
        worse = untold = 0
        for gpus, finals in found.items():
            tried = {each: finals[each] for each in field[gpus] if each in finals}
            verdict = _judged(tried, default[gpus], plan.objective, quota(len(field[gpus]), rung))
            after[gpus] = list(dict.fromkeys([*verdict.kept, default[gpus]]))
            worse += len(verdict.worse)
            untold += len(verdict.untold)
        reports.append(_report(rung, there, after, worse, untold))
        there = after
    raise AssertionError("a ladder ends with its last rung")


def _judged(
    finals: Finals, default: Configuration, objective: Objective, room: int
) -> Verdict[Configuration]:
    """Who goes on: configurations that came to the very same count as one, the simplest, so that ten names of one thing
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
    return Verdict(
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


def _report(
    rung: Rung,
    there: Mapping[int, Sequence[Configuration]],
    after: Mapping[int, Sequence[Configuration]],
    worse: int,
    untold: int,
) -> RungReport:
    return RungReport(
        configurations=sum(map(len, there.values())),
        samples=rung.samples,
        window_s=rung.window_s,
        kept=sum(map(len, after.values())),
        worse=worse,
        untold=untold,
    )
