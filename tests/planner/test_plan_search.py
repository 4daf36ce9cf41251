from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from headway.planner.machine import Configuration
from headway.planner.objective import Objective
from headway.planner.sampling import samples_in_all
from headway.planner.search import Pairs, SearchPlan, most_runs, search
from headway.results import Summary
from tests.planner.summaries import summary

DEFAULT = Configuration(gpus=1, policy="vllm", tp=1, instances=1, seats=256, tokens_a_step=2048)
PLAN = SearchPlan(objective=Objective.JCT, samples=3, window_s=100.0, drawn=True)


def field(*numbers: int) -> dict[int, list[Configuration]]:
    """So many configurations on 1, 2, ... GPUs, told apart by their seats."""
    return {
        gpus: [replace(DEFAULT, gpus=gpus, policy="edf", seats=seats) for seats in range(1, number + 1)]
        for gpus, number in enumerate(numbers, start=1)
    }


def defaults(*numbers: int) -> dict[int, Configuration]:
    return {gpus: replace(DEFAULT, gpus=gpus) for gpus in range(1, len(numbers) + 1)}


class Truth:
    """A made-up world: mean JCT is how far the seats are from `best`, and a noise that hangs on the sample alone."""

    def __init__(self, best: int, noise: Sequence[float] = (0.0,)) -> None:
        self.best = best
        self.noise = noise
        self.asked: list[tuple[Configuration, float, int]] = []

    def __call__(self, pairs: Pairs) -> list[Summary]:
        self.asked += [(each, part.window_s, part.number) for each, part in pairs]
        return [self._summary(each, part.number) for each, part in pairs]

    def _summary(self, configuration: Configuration, number: int) -> Summary:
        off = abs(configuration.seats - self.best)
        noise = self.noise[(number + configuration.seats) % len(self.noise)]
        return summary(mean_jct_s=10.0 + off + noise)


def test_few_go_on_and_the_best_is_among_them() -> None:
    truth = Truth(best=77)
    found = search(field(100), defaults(100), PLAN, truth)
    # 100 (and the default) on one sample of 25 s, 25 of them on two of 50 s; without noise these tell the best from
    # all others, so that it is alone on three of 100 s.
    assert [(report.configurations, report.samples, report.window_s) for report in found.reports] == [
        (101, 1, 25.0),
        (26, 2, 50.0),
        (2, 3, 100.0),
    ]
    finals = found.finals[1]
    assert [each.seats for each in finals] == [77, DEFAULT.seats]
    assert DEFAULT in finals
    assert all(len(summaries) == 3 for summaries in finals.values())


def test_everybody_is_measured_on_the_same_samples() -> None:
    truth = Truth(best=5)
    search(field(40), defaults(40), PLAN, truth)
    by_window: dict[float, Counter[int]] = {}
    for _, window_s, number in truth.asked:
        by_window.setdefault(window_s, Counter())[number] += 1
    for counts in by_window.values():
        assert len(set(counts.values())) == 1


def test_what_is_surely_worse_is_told_from_what_had_no_room() -> None:
    first, second, last = search(field(100), defaults(100), PLAN, Truth(best=77)).reports
    # A single sample tells nobody apart; two without noise tell everybody.
    assert (first.worse, first.untold) == (0, 75)
    assert (second.worse, second.untold) == (24, 0)
    assert (last.worse, last.untold, last.kept) == (0, 0, last.configurations)
    # With a noise that is larger than most differences, two tell hardly anybody apart, and the room decides.
    noisy = search(field(100), defaults(100), PLAN, Truth(best=77, noise=(0.0, 9.0, 3.0, 27.0, 1.0))).reports[
        1
    ]
    assert noisy.kept == 8 + 1
    assert noisy.untold > noisy.worse


def test_many_names_of_one_thing_do_not_fill_the_room() -> None:
    def measure(pairs: Pairs) -> list[Summary]:
        # From 30 seats on nobody lacks one; below it each fewer is a little worse.
        return [summary(mean_jct_s=10.0 - 0.01 * min(each.seats, 30)) for each, _ in pairs]

    finals = search(field(100), defaults(100), replace(PLAN, samples=1), measure).finals[1]
    seats = [each.seats for each in finals if each != DEFAULT]
    # One of the 71 is enough; the others on the way are those next to it.
    assert sorted(seats) == [23, 24, 25, 26, 27, 28, 29, 30]


def test_of_those_that_meet_all_targets_the_quicker_go_on() -> None:
    def measure(pairs: Pairs) -> list[Summary]:
        return [summary(goodput=1.0, mean_jct_s=200.0 - each.seats) for each, _ in pairs]

    plan = replace(PLAN, objective=Objective.GOODPUT)
    finals = search(field(100), defaults(100), plan, measure).finals[1]
    assert {each.seats for each in finals if each != DEFAULT} == set(range(93, 101))


def test_each_number_of_gpus_is_searched_by_itself() -> None:
    found = search(field(30, 60), defaults(30, 60), PLAN, Truth(best=20))
    assert set(found.finals) == {1, 2}
    assert all(any(each.seats == 20 for each in finals) for finals in found.finals.values())


@given(
    st.lists(st.integers(1, 150), min_size=1, max_size=3),
    st.integers(1, 5),
    st.integers(1, 150),
    st.lists(st.floats(0, 0.2), min_size=1, max_size=7),
)
def test_never_more_runs_than_the_budget_and_the_true_best_survives(
    numbers: list[int], samples: int, best: int, noise: list[float]
) -> None:
    plan = SearchPlan(objective=Objective.JCT, samples=samples, window_s=100.0, drawn=True)
    truth = Truth(best, noise)
    found = search(field(*numbers), defaults(*numbers), plan, truth)
    rungs = most_runs(field(*numbers), plan)
    assert len(truth.asked) <= sum(rungs)
    assert len(set(truth.asked)) == len(truth.asked)
    for gpus, number in enumerate(numbers, start=1):
        # Steps of one in the mean job completion time, and a noise of a fifth at most.
        assert any(each.seats == min(best, number) and each.policy == "edf" for each in found.finals[gpus])


def test_unseen_samples_are_others() -> None:
    searched = {part.number for rung in PLAN.ladder(field(100)) for part in PLAN.of_rung(rung)}
    unseen = [part.number for part in PLAN.unseen()]
    assert searched.isdisjoint(unseen)
    assert len(unseen) == 2 * PLAN.samples


def test_the_samples_of_a_plan_are_all_that_are_known_beforehand() -> None:
    numbers = {part.number for rung in PLAN.ladder(field(9)) for part in PLAN.of_rung(rung)}
    numbers |= {part.number for part in PLAN.unseen()}
    assert numbers == set(range(samples_in_all(PLAN.samples)))
