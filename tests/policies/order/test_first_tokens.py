"""When first tokens are due, by hand: a tenth of a second a token."""

from __future__ import annotations

import pytest

from headway.core.slo import Slo
from headway.policies.order.first_tokens import FirstTokens, most_times
from headway.policies.order.predicted_remaining import DEFAULT_TAIL
from headway.policies.order.remaining_work import RemainingWork
from tests.policies.instance import LinearCost
from tests.strategies import ids, make_job


def made() -> FirstTokens:
    return FirstTokens(RemainingWork(LinearCost()), most_times(DEFAULT_TAIL))


def test_a_first_token_is_due_after_twice_what_prompts_alone_would_take() -> None:
    # a's prompt takes 1 s and b's 2 s after it: they are due at 2 and 6 s.
    due = made()
    a, b = make_job("a", prompt=10), make_job("b", prompt=20)
    for job in (a, b):
        due.add(job)
    found = [ids(due.overdue([b, a], now_s)) for now_s in (1.9, 2.0, 5.9, 6.0)]
    assert found == [[], ["a"], ["a"], ["a", "b"]]


def test_the_dial_sets_how_long_a_first_token_may_wait() -> None:
    # T at 0 is 20 times that of the default: 400 times as long.
    assert [most_times(tail) for tail in (0.0, 0.5, 1.0)] == pytest.approx([800.0, 2.0, 2.0])


def test_an_idle_engine_owes_nothing_for_the_past() -> None:
    # At 100 s all before is done: 1 s of prompt is due 2 s later.
    due = made()
    due.add(make_job("a", prompt=500))
    late = make_job("b", prompt=10, arrival_s=100.0)
    due.add(late)
    assert [ids(due.overdue([late], now_s)) for now_s in (101.9, 102.1)] == [[], ["b"]]


def test_a_job_with_a_target_and_a_later_turn_of_a_program_are_due_at_no_time() -> None:
    due = made()
    jobs = [
        make_job("target", slo=Slo(ttft_s=1.0)),
        make_job("turn", arrival_s=30.0, program="p", program_began_s=0.0),
        make_job("first turn", arrival_s=30.0, program="q", program_began_s=30.0),
    ]
    for job in jobs:
        due.add(job)
    assert ids(due.overdue(jobs, 1e6)) == ["first turn"]
