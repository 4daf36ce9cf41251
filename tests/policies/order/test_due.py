"""Least slack first where prompts take several steps, by hand: a tenth of a second a token."""

from __future__ import annotations

import pytest

from headway.core.job import JobState
from headway.core.slo import Slo
from headway.core.view import StepView
from headway.policies.order.due import LeastSlack
from tests.policies.instance import LinearCost
from tests.strategies import ids, make_job


def test_a_prompt_under_way_keeps_its_rank_and_is_not_late_while_the_rest_can_be_in_time() -> None:
    # Due at 5 s: a, of 4 s, had to start by 1 s, and b, of 1 s, by 4 s. At 3 s, with 3 s of a done, both can still
    # make it, and a is first. With 1.9 s done it cannot, whatever comes first.
    order = LeastSlack(LinearCost())
    a, b = (make_job(name, prompt=prompt, slo=Slo(ttft_s=5.0)) for name, prompt in (("a", 40), ("b", 10)))
    for job in (a, b):
        order.add(job)
    order.remove(a)
    a.state = JobState.RESIDENT
    for computed, ranked in ((0, "ba"), (19, "ba"), (30, "ab")):
        a.num_computed_tokens = computed
        assert ids(order.rank([b, a], 3.0)) == list(ranked)


def test_prompts_of_like_slack_do_not_take_turns() -> None:
    # Both had to start by 1 s and 1.5 s. At 1 s half of a is done: it has more time to spare than b, and goes on.
    order = LeastSlack(LinearCost())
    a = make_job("a", prompt=40, slo=Slo(ttft_s=5.0), state=JobState.RESIDENT)
    b = make_job("b", prompt=35, slo=Slo(ttft_s=5.0))
    for job in (a, b):
        order.add(job)
    order.remove(a)
    a.num_computed_tokens = 20
    assert ids(order.rank([a, b], 1.0)) == ["a", "b"]


def test_ranks_change_when_what_is_left_of_a_job_is_late() -> None:
    # a had to start by 0.9 s when it was to be computed again. It decodes now, and is late from 4.9 s on.
    order = LeastSlack(LinearCost())
    a = make_job("a", prompt=40, slo=Slo(deadline_s=5.0), num_output_tokens=1)
    b = make_job("b", prompt=1, state=JobState.RESIDENT)
    for job in (a, b):
        order.add(job)
        order.remove(job)
    a.num_computed_tokens, a.state = 40, JobState.RESIDENT
    assert [ids(order.rank([a, b], now_s)) for now_s in (0.5, 3.0, 4.91)] == [
        ["a", "b"],
        ["a", "b"],
        ["b", "a"],
    ]
    for now_s in (0.5, 3.0):
        assert order.next_change_s(StepView(now_s=now_s, residents=[a, b])) == pytest.approx(4.9)
