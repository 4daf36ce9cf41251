"""Ways back by hand: at least 3 s, else twice the mean of late or twice as long as anybody has been away."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headway.core.job import Job
from headway.core.plan import Fate, StepOutcome, StepPlan
from headway.policies.order.way_back import WayBack
from tests.strategies import make_job

A, B = make_job("a"), make_job("b")


def step(back: WayBack, at_s: float, *, left: Sequence[Job] = (), came: Sequence[Job] = ()) -> None:
    preempted = dict.fromkeys(left, Fate.RECOMPUTE)
    back.observe(StepOutcome(now_s=at_s, plan=StepPlan(), preempted=preempted, admitted=list(came)), left)


def test_while_nobody_was_away_it_is_the_least() -> None:
    assert WayBack().likely_until_s(10.0) == 13.0


def test_whoever_is_away_longest_has_taken_that_long_already() -> None:
    back = WayBack()
    step(back, 10.0, left=[A])
    step(back, 15.0, left=[B])
    assert back.likely_until_s(11.0) == 14.0
    assert back.likely_until_s(18.0) == 18.0 + 2 * 8.0
    step(back, 20.0, came=[A])  # A's 10 s count a tenth; B has been away for 5
    assert back.likely_until_s(20.0) == 20.0 + 2 * 5.0


def test_those_that_came_back_count_in_their_mean_the_newest_a_tenth() -> None:
    back = WayBack()
    for at_s in (0.0, 100.0):
        step(back, at_s, left=[A])
        step(back, at_s + 40.0, came=[A])
    # A tenth of 40, then nine tenths of that and a tenth of 40: 7.6 s.
    assert back.likely_until_s(200.0) == pytest.approx(200.0 + 2 * 7.6)


def test_one_that_ends_while_it_is_away_is_waited_for_no_more() -> None:
    back = WayBack()
    step(back, 0.0, left=[A])
    back.end(A)
    assert back.likely_until_s(50.0) == 53.0


def test_newcomers_and_those_that_left_late_are_no_ways_back() -> None:
    back = WayBack()
    outcome = StepOutcome(now_s=0.0, plan=StepPlan(), preempted={A: Fate.RECOMPUTE}, admitted=[B])
    back.observe(outcome, in_time=[])
    assert back.likely_until_s(50.0) == 53.0
