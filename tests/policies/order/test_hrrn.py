from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway.core.job import Job
from headway.core.plan import StepOutcome, StepPlan
from headway.policies.order.response_ratio import SIZES_A_SECOND, Hrrn
from tests.policies.contract import jobs_held_by
from tests.policies.order.per_token import PerToken, exactly
from tests.strategies import UNTIMED, ids, make_job

NOW_S = 50.0


def expecting(id_: str, tokens: float, arrival_s: float) -> Job:
    return make_job(id_, prompt=1, limit=10**6, arrival_s=arrival_s, predicted_length=exactly(tokens))


def indexed(jobs: list[Job]) -> Hrrn:
    order = Hrrn(PerToken())
    for job in jobs:
        order.add(job)
    return order


def test_the_response_ratio_by_hand() -> None:
    # At 50 s, waited over work: a 40 / (80/8) = 4, ratio 5; b 10 / (16/8) = 5, ratio 6; c 45 / (120/8) = 3; d 0.
    jobs = [
        expecting("a", 80, 10.0),
        expecting("b", 16, 40.0),
        expecting("c", 120, 5.0),
        expecting("d", 8, 50.0),
    ]
    order = indexed(jobs)
    assert ids(order.top(9, NOW_S)) == ids(order.rank(jobs, NOW_S)) == ["b", "a", "c", "d"]
    assert ids(order.top(1, NOW_S)) == ["b"]
    assert [order.value(job, NOW_S) for job in jobs] == [4.0, 5.0, 3.0, 0.0]


def test_rankings_cross_as_time_passes() -> None:
    # Long (10 s of work since 0 s) against short (1 s since 9 s). At 9.5 s: 0.95 against 0.5; at 12 s: 1.2 against 3.
    order = indexed([expecting("long", 80, 0.0), expecting("short", 8, 9.0)])
    assert ids(order.top(2, 9.5)) == ["long", "short"]
    assert ids(order.top(2, 12.0)) == ["short", "long"]


def test_who_runs_has_less_and_less_work() -> None:
    # Both came at 0 s; after 40 of its 80 tokens `runs` has 5 s left against 6.
    runs, waits = expecting("runs", 80, 0.0), expecting("waits", 48, 0.0)
    order = indexed([runs, waits])
    order.remove(runs)
    runs.num_output_tokens = runs.num_computed_tokens = 40
    assert ids(order.rank([runs, waits], NOW_S)) == ["waits", "runs"]
    order.observe(StepOutcome(now_s=NOW_S, plan=StepPlan(), tokens={runs: 1}))
    assert ids(order.rank([runs, waits], NOW_S)) == ["runs", "waits"]


def test_a_waiting_job_is_moved_when_it_is_touched() -> None:
    grows, other = expecting("grows", 8, 0.0), expecting("other", 16, 0.0)
    order = indexed([grows, other])
    grows.predicted_length = exactly(80)
    order.touch(grows)
    assert ids(order.top(9, NOW_S)) == ["other", "grows"]


def test_nothing_is_left_of_those_that_ended() -> None:
    jobs = [expecting(str(n), 8.0 * n, 0.0) for n in (1, 5, 50)]
    order = indexed(jobs)
    for job in jobs:
        order.remove(job)
        order.finished(job)
        order.end(job)
    assert order.top(9, NOW_S) == []
    assert not jobs_held_by(order)


@UNTIMED
@given(
    queued=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 5000)), max_size=14), k=st.integers(0, 15)
)
def test_a_job_served_too_early_is_behind_by_at_most_one_part_in_64(
    queued: list[tuple[int, int]], k: int
) -> None:
    jobs = [expecting(f"{n:02}", tokens, float(at_s)) for n, (at_s, tokens) in enumerate(queued)]
    order = indexed(jobs)
    ranked = order.top(k, NOW_S)
    assert len(ranked) == min(k, len(jobs))
    rest = [job for job in jobs if job not in ranked]
    rounding = 1 + 1e4 / SIZES_A_SECOND  # work of an eighth of a second or more, in whole microseconds
    for place, first in enumerate(ranked):
        for later in [*ranked[place + 1 :], *rest]:
            assert order.value(later, NOW_S) <= order.value(first, NOW_S) * 65 / 64 * rounding
