from __future__ import annotations

from dataclasses import replace
from math import inf, log

import pytest

from headway.planner.machine import Configuration
from headway.planner.objective import Objective, choose, difference, gain
from headway.statistics import Interval, student_t
from tests.planner.summaries import summary


def test_an_interval_by_hand() -> None:
    # Mean 2, deviation 1, three samples: 4.303 x 1 / sqrt(3) = 2.4843.
    interval = Interval.of([1.0, 2.0, 3.0])
    assert interval.mean == 2.0
    assert interval.half == pytest.approx(2.4843, abs=1e-4)
    assert interval.low == pytest.approx(-0.4843, abs=1e-4)


def test_one_sample_says_nothing_of_how_sure_it_is() -> None:
    assert Interval.of([3.0]) == Interval(3.0, -inf, inf)


@pytest.mark.parametrize(
    ("freedom", "published"),
    [(1, 12.706), (10, 2.228), (11, 2.201), (12, 2.179), (13, 2.160), (20, 2.086), (60, 2.000)],
)
def test_students_percentiles_are_the_published_ones(freedom: int, published: float) -> None:
    assert student_t(freedom) == pytest.approx(published, abs=1e-3)


def test_what_two_share_cancels_out() -> None:
    # Each sample is 0.5 more than the other's, however far the samples are from one another.
    assert difference([10.5, 0.5, 3.5], [10.0, 0.0, 3.0]) == Interval(0.5, 0.5, 0.5)


DEFAULT = Configuration(gpus=1, policy="vllm", tp=1, instances=1, seats=256, tokens_a_step=2048)
EDF = replace(DEFAULT, policy="edf")
SMALL = replace(DEFAULT, policy="edf", seats=64)


def test_scores_are_lower_for_better() -> None:
    assert Objective.GOODPUT.score(summary(goodput=0.9)) == -0.9
    assert Objective.JCT.score(summary(mean_jct_s=2.0)) == log(2.0)


def test_times_of_those_who_were_served_are_no_score_where_others_were_not() -> None:
    assert Objective.JCT.score(summary(mean_jct_s=2.0, finished=99, failed=1)) == inf
    assert Objective.GOODPUT.score(summary(goodput=0.9, finished=99, failed=1)) == -0.9
    assert Objective.GOODPUT.score(summary()) == inf


def test_the_best_by_far_is_chosen() -> None:
    finals = {DEFAULT: [summary(goodput=0.5, mean_jct_s=1.0)], EDF: [summary(goodput=0.9, mean_jct_s=9.0)]}
    assert choose(Objective.GOODPUT, finals, DEFAULT) == EDF


def test_of_those_as_good_the_quicker_is_chosen() -> None:
    # 0.9 and 0.896 are within half a point, so the mean job completion time decides.
    finals = {EDF: [summary(goodput=0.9, mean_jct_s=2.0)], DEFAULT: [summary(goodput=0.896, mean_jct_s=1.0)]}
    assert choose(Objective.GOODPUT, finals, DEFAULT) == DEFAULT


@pytest.mark.parametrize(("goodput", "chosen"), [(0.8951, DEFAULT), (0.8949, EDF)])
def test_as_good_is_within_half_a_point(goodput: float, chosen: Configuration) -> None:
    quicker = [summary(goodput=goodput, mean_jct_s=1.0)]
    finals = {EDF: [summary(goodput=0.9, mean_jct_s=2.0)], DEFAULT: quicker}
    assert choose(Objective.GOODPUT, finals, DEFAULT) == chosen


@pytest.mark.parametrize(("jct_s", "chosen"), [(1.0099, EDF), (1.0101, SMALL)])
def test_as_quick_is_within_a_per_cent(jct_s: float, chosen: Configuration) -> None:
    finals = {SMALL: [summary(goodput=0.9, mean_jct_s=1.0)], EDF: [summary(goodput=0.9, mean_jct_s=jct_s)]}
    assert choose(Objective.GOODPUT, finals, DEFAULT) == chosen


@pytest.mark.parametrize(("jct_s", "chosen"), [(1.0049, EDF), (1.0051, DEFAULT)])
def test_without_targets_as_quick_is_within_half_a_per_cent(jct_s: float, chosen: Configuration) -> None:
    finals = {
        DEFAULT: [summary(mean_jct_s=1.0, p99_jct_s=9.0)],
        EDF: [summary(mean_jct_s=jct_s, p99_jct_s=5.0)],
    }
    assert choose(Objective.JCT, finals, DEFAULT) == chosen


def test_of_those_as_quick_the_simpler_is_chosen() -> None:
    # EDF differs in the policy alone, the other in its seats too; 1.005 s is within a per cent of 1 s.
    finals = {SMALL: [summary(goodput=0.9, mean_jct_s=1.0)], EDF: [summary(goodput=0.898, mean_jct_s=1.005)]}
    assert choose(Objective.GOODPUT, finals, DEFAULT) == EDF


def test_without_targets_the_tail_decides_between_equal_means() -> None:
    finals = {
        DEFAULT: [summary(mean_jct_s=1.0, p99_jct_s=9.0)],
        EDF: [summary(mean_jct_s=1.004, p99_jct_s=5.0)],
        SMALL: [summary(mean_jct_s=1.1, p99_jct_s=1.0)],
    }
    assert choose(Objective.JCT, finals, DEFAULT) == EDF


def test_one_that_left_requests_unserved_is_chosen_only_without_another() -> None:
    lost = [summary(mean_jct_s=0.1, finished=1, failed=99)]
    assert choose(Objective.JCT, {EDF: lost, DEFAULT: [summary(mean_jct_s=9.0)]}, DEFAULT) == DEFAULT
    assert choose(Objective.JCT, {EDF: lost}, DEFAULT) == EDF


def test_a_gain_in_points_is_paired() -> None:
    # Differences 0.2 and 0.3 in goodput: mean 0.25, half 12.706 x 0.0707 / sqrt(2) = 0.635; 0.75 / 0.5 = 1.5 x.
    found = gain(
        Objective.GOODPUT,
        [summary(goodput=0.7), summary(goodput=0.8)],
        [summary(goodput=0.5), summary(goodput=0.5)],
    )
    assert found.points is not None
    assert found.points.mean == pytest.approx(0.25)
    assert found.points.half == pytest.approx(0.635, abs=1e-3)
    assert found.ratio == pytest.approx(1.5)


def test_a_gain_in_time_is_a_ratio() -> None:
    found = gain(
        Objective.JCT,
        [summary(mean_jct_s=1.0), summary(mean_jct_s=3.0)],
        [summary(mean_jct_s=2.0), summary(mean_jct_s=6.0)],
    )
    assert found.ratio == pytest.approx(2.0)
    assert found.ratio_interval is not None
    assert (found.ratio_interval.low, found.ratio_interval.high) == pytest.approx((2.0, 2.0))
    one = gain(Objective.JCT, [summary(mean_jct_s=1.0)], [summary(mean_jct_s=2.0)])
    assert one.ratio_interval is not None
    assert (one.ratio_interval.low, one.ratio_interval.high) == (0.0, inf)


def test_what_cannot_be_compared_has_no_gain() -> None:
    lost = [summary(mean_jct_s=1.0, finished=50, failed=50)]
    assert gain(Objective.JCT, lost, [summary(mean_jct_s=2.0)]).ratio is None
    nothing = gain(Objective.GOODPUT, [summary(goodput=0.5)], [summary(goodput=0.0)])
    assert nothing.ratio is None
    assert nothing.points is not None
