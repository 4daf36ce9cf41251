from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, pairwise
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from headway.planner.machine import Configuration
from headway.planner.objective import Objective
from headway.planner.sampling import samples_in_all
from headway.planner.search import (
    FINALISTS,
    Pairs,
    Rung,
    SearchPlan,
    judge,
    most_runs,
    quota,
    rungs,
    sampled_s,
    search,
)
from headway.results import Summary
from tests.planner.summaries import summary


def test_a_rung_by_hand() -> None:
    scores = {
        "best": (1.0, 1.2, 1.1),
        # Always 0.1 more: sure, although by itself its interval overlaps with that of the best.
        "steady": (1.1, 1.3, 1.2),
        # 0, 0.2 and 0 more: mean 0.067, deviation 0.115, so +- 4.303 x 0.115 / sqrt(3) = 0.287 holds 0.
        "noisy": (1.0, 1.4, 1.1),
        # 0.5, 0.6 and 0.7 more: mean 0.6 +- 4.303 x 0.1 / sqrt(3) = 0.248.
        "far": (1.5, 1.8, 1.8),
    }
    verdict = judge(scores, 3)
    assert verdict.kept == ("best", "noisy")
    assert verdict.worse == ("steady", "far")
    assert verdict.untold == ()


def test_what_does_not_fit_is_left_out_by_name_not_as_worse() -> None:
    verdict = judge({"a": (1.0, 2.0), "b": (1.1, 2.0), "c": (1.0, 2.3)}, 1)
    assert verdict.kept == ("a",)
    assert verdict.untold == ("b", "c")
    assert verdict.worse == ()


def test_with_one_sample_nobody_is_surely_worse() -> None:
    verdict = judge({"a": (1.0,), "b": (100.0,), "c": (2.0,)}, 2)
    assert (verdict.kept, verdict.worse, verdict.untold) == (("a", "c"), (), ("b",))


def test_what_serves_nobody_never_goes_on_beside_what_does() -> None:
    assert judge({"a": (inf,), "b": (3.0,)}, 2).worse == ("a",)
    assert judge({"a": (inf,), "b": (inf,)}, 1).kept == ("a",)
    assert judge({"a": (1.0, inf), "b": (3.0, 3.0)}, 2).worse == ("a",)


def test_equal_means_are_ranked_by_place() -> None:
    assert judge({"x": (1.0,), "y": (1.0,)}, 1, place=lambda item: -ord(item)).kept == ("y",)


def test_nobody_is_judged_where_nobody_is() -> None:
    assert judge({}, 3).kept == ()


def test_a_ladder_by_hand() -> None:
    # 1000, 250, 63 and 16: the last has all samples and the whole window, each before it half of both, down to a
    # quarter of the window.
    ladder = rungs(1000, 5, 600.0)
    assert ladder == [
        Rung(turn=0, samples=1, window_s=150.0, last=False),
        Rung(turn=1, samples=2, window_s=150.0, last=False),
        Rung(turn=2, samples=3, window_s=300.0, last=False),
        Rung(turn=3, samples=5, window_s=600.0, last=True),
    ]
    assert [quota(1000, rung) for rung in ladder[:-1]] == [250, 63, 16]
    # 1000 x 150 + 250 x 2 x 150 + 63 x 3 x 300 + 16 x 5 x 600
    assert sampled_s(1000, 5, 600.0) == 329_700.0


def test_few_configurations_are_all_measured_to_the_end() -> None:
    assert rungs(2 * FINALISTS, 3, 60.0) == [Rung(turn=0, samples=3, window_s=60.0, last=True)]
    assert len(rungs(2 * FINALISTS + 1, 3, 60.0)) == 2


@given(st.integers(1, 5000), st.integers(1, 9))
def test_rungs_grow_and_what_goes_on_shrinks(configurations: int, samples: int) -> None:
    ladder = rungs(configurations, samples, 100.0)
    assert [rung.last for rung in ladder] == [False] * (len(ladder) - 1) + [True]
    assert (ladder[-1].samples, ladder[-1].window_s) == (samples, 100.0)
    for before, after in pairwise(ladder):
        assert before.samples <= after.samples
        assert before.window_s in (after.window_s, after.window_s / 2)
        assert before.window_s >= 25.0
        assert quota(configurations, before) >= quota(configurations, after) >= FINALISTS
    there = configurations
    for rung in ladder[:-1]:
        there = min(there, quota(configurations, rung))
    assert there <= 2 * FINALISTS


def noisy(truth: Sequence[float], noise: Sequence[float], samples: int) -> dict[int, list[float]]:
    """Every item's scores: its true one, with the noise in turn."""
    turns = cycle(noise)
    return {item: [true + next(turns) for _ in range(samples)] for item, true in enumerate(truth)}


@given(
    st.lists(st.integers(0, 1000), min_size=2, max_size=60, unique=True),
    st.lists(st.floats(-0.49, 0.49), min_size=1, max_size=40),
    st.integers(1, 5),
    st.integers(1, 10),
)
def test_the_true_best_goes_on_where_differences_exceed_the_noise(
    truth: list[int], noise: list[float], samples: int, room: int
) -> None:
    # True scores are 1 apart or more and the noise is less than a half either way.
    verdict = judge(noisy(truth, noise, samples), room)
    assert truth.index(min(truth)) == verdict.kept[0]


@given(
    st.dictionaries(st.integers(), st.lists(st.floats(-5, 5), min_size=3, max_size=3), max_size=30),
    st.integers(1, 12),
)
def test_everybody_has_one_verdict_and_the_kept_fit(scores: dict[int, list[float]], room: int) -> None:
    verdict = judge(scores, room)
    assert sorted([*verdict.kept, *verdict.worse, *verdict.untold]) == sorted(scores)
    assert len(verdict.kept) == min(room, len(scores) - len(verdict.worse))


DEFAULT = Configuration(gpus=1, policy="vllm", tp=1, instances=1, seats=256, tokens_a_step=2048)
PLAN = SearchPlan(objective=Objective.JCT, samples=3, window_s=100.0, drawn=True)


def field(*numbers: int) -> dict[int, list[Configuration]]:
    """This many configurations on 1, 2, ... GPUs, distinguished by their seats."""
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
