"""The orders by a key that does not drift, by hand; `test_index_properties` has them against `sorted`."""

from __future__ import annotations

from typing import Any

import pytest

from headway.core.cost import UnknownCost
from headway.core.job import Job
from headway.core.slo import Slo
from headway.policies.order.due import EarliestDeadline, LeastSlack
from headway.policies.order.keyed import LongestPrompt, Priority, ShortestPrompt
from headway.policies.protocols import Order
from tests.strategies import ids, make_job


class TenTokensASecond(UnknownCost):
    """A cost model whose prefill runs at 10 tokens a second."""

    def prefill_s(self, num_tokens: int) -> float:
        """Seconds for a prompt."""
        return num_tokens / 10


def indexed(order: Order, *jobs: Job) -> Order:
    """The order with these jobs waiting."""
    for job in jobs:
        order.add(job)
    return order


def both_ways(order: Order, jobs: list[Job], now_s: float) -> list[str]:
    """The ranking of waiting jobs; the same jobs ranked as residents must agree, from either end."""
    indexed(order, *jobs)
    ranked = ids(order.top(len(jobs), now_s))
    assert ids(order.rank(jobs, now_s)) == ids(order.rank(jobs[::-1], now_s)) == ranked
    return ranked


def due(name: str, deadline_s: float | None, **fields: Any) -> Job:
    """A job since 0 s with a deadline, or none."""
    return make_job(name, slo=Slo(deadline_s=deadline_s), **fields)


# ---- prompt length and priority --------------------------------------------------------------------


def test_shortest_and_longest_prompt() -> None:
    # c and a tie at 5 tokens: c arrived first. a and b tie in nothing.
    jobs = [
        make_job("a", prompt=5, arrival_s=1.0),
        make_job("b", prompt=9),
        make_job("c", prompt=5, arrival_s=0.5),
    ]
    assert both_ways(ShortestPrompt(), jobs, 9.0) == ["c", "a", "b"]
    assert both_ways(LongestPrompt(), jobs, 9.0) == ["b", "c", "a"]


def test_prompt_length_does_not_grow_with_the_output() -> None:
    order = ShortestPrompt()
    talks, waits = make_job("talks", prompt=5), make_job("waits", prompt=6)
    indexed(order, talks, waits)
    talks.num_output_tokens = 50
    order.touch(talks)
    assert ids(order.top(2, 0.0)) == ["talks", "waits"]


@pytest.mark.parametrize("make", [ShortestPrompt, LongestPrompt, Priority, EarliestDeadline, LeastSlack])
def test_equal_keys_tie_to_arrival_then_id(make: type[Order]) -> None:
    jobs = [make_job("b", arrival_s=1.0), make_job("a", arrival_s=1.0), make_job("z", arrival_s=0.0)]
    assert both_ways(make(), jobs, 2.0) == ["z", "a", "b"]


# ---- deadlines -------------------------------------------------------------------------------------


def test_earliest_due_first_then_no_target_then_the_late_by_due() -> None:
    # At 10 s: `now` is due at 10 exactly, so it can still make it; 7 and 9 are past, the earlier first.
    jobs = [due("none", None), due("nine", 9.0), due("far", 30.0), due("seven", 7.0), due("now", 10.0)]
    assert both_ways(EarliestDeadline(), jobs, 10.0) == ["now", "far", "none", "seven", "nine"]


def test_slack_puts_a_long_prompt_before_a_short_one_due_earlier() -> None:
    # At 10 tokens a second, 80 tokens take 8 s: due at 10, `long` must start at 2. `short` (10 tokens, 1 s)
    # is due at 9 and must start at 8. By deadline alone it is the other way round.
    jobs = [due("short", 9.0, prompt=10), due("long", 10.0, prompt=80)]
    assert both_ways(LeastSlack(TenTokensASecond()), jobs, 0.0) == ["long", "short"]
    assert both_ways(EarliestDeadline(), jobs, 0.0) == ["short", "long"]


def test_a_job_that_cannot_make_it_any_more_is_late_before_its_deadline() -> None:
    # `long` must start at 2: at 3 it is lost, although its deadline is 10.
    jobs = [due("long", 10.0, prompt=80), due("short", 20.0, prompt=10)]
    assert both_ways(LeastSlack(TenTokensASecond()), jobs, 3.0) == ["short", "long"]


def test_slack_counts_only_what_is_left_to_compute() -> None:
    # Both due at 10 with 80 tokens; 60 of `half` are computed: it must start at 8, `whole` at 2.
    jobs = [due("half", 10.0, prompt=80, num_computed_tokens=60), due("whole", 10.0, prompt=80)]
    assert both_ways(LeastSlack(TenTokensASecond()), jobs, 0.0) == ["whole", "half"]


# ---- the index behind them -------------------------------------------------------------------------


def test_a_resident_keeps_its_key_until_it_ends() -> None:
    a, b = make_job("a", prompt=3), make_job("b", prompt=2)
    order = indexed(ShortestPrompt(), a, b)
    order.remove(a)
    order.remove(b)
    assert order.top(2, 0.0) == []
    assert ids(order.rank([a, b], 0.0)) == ["b", "a"]
    order.end(a)
    with pytest.raises(KeyError):
        order.rank([a], 0.0)


def test_touching_a_resident_moves_it_without_making_it_wait() -> None:
    a, b = due("a", 5.0), due("b", 6.0)
    order = indexed(EarliestDeadline(), a, b)
    for job in (a, b):
        order.remove(job)
    a.slo = Slo(deadline_s=7.0)
    order.touch(a)
    assert ids(order.rank([a, b], 0.0)) == ["b", "a"]
    assert order.top(2, 0.0) == []
