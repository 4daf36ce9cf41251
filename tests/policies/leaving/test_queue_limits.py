from __future__ import annotations

from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.job import Job, JobState
from headway.core.plan import Departure
from headway.core.record import Outcome
from headway.core.slo import Slo
from headway.core.view import StepView
from headway.errors import ConfigError
from headway.policies.leaving.queue_limits import Expired, OutOfMemory, QueueBound
from tests.policies.contract import jobs_held_by
from tests.sim.worlds import preset, request, run, system
from tests.strategies import UNTIMED, ids, instants, make_job, waiting_jobs

NOW = StepView(now_s=10.0)


def bounded(jobs: list[Job], **bounds: Any) -> QueueBound:
    """The rule with these jobs waiting."""
    rule = QueueBound(**bounds)
    for job in jobs:
        rule.add(job)
    return rule


def queue() -> list[Job]:
    """Prompts of 4, 3, 2 and 1 tokens that arrived at 2, 4, 6 and 8 s; added in another order."""
    jobs = [make_job(name, prompt=4 - at, arrival_s=2.0 + 2 * at) for at, name in enumerate("abcd")]
    return [jobs[2], jobs[0], jobs[3], jobs[1]]


@pytest.mark.parametrize(
    ("bounds", "leaving"),
    [
        ({"max_waiting": 4}, []),
        ({"max_waiting": 3}, ["d"]),
        ({"max_waiting": 1}, ["d", "c", "b"]),
        ({"max_waiting_tokens": 10}, []),
        ({"max_waiting_tokens": 9}, ["d"]),
        ({"max_waiting_tokens": 8}, ["d", "c"]),  # 10 - 1 = 9 is still too many; without c 7 are left
        ({"max_waiting_tokens": 1}, ["d", "c", "b"]),  # a stays, although its 4 alone exceed the bound
        ({"max_age_s": 8.0}, []),  # a has waited 8 s, no more
        ({"max_age_s": 5.0}, ["a", "b"]),
        ({"max_age_s": 0.5}, ["a", "b", "c", "d"]),
        # a is too old; of the other three the two newest exceed the count, or only d the tokens.
        ({"max_age_s": 7.0, "max_waiting": 1}, ["a", "d", "c"]),
        ({"max_age_s": 7.0, "max_waiting_tokens": 5}, ["a", "d"]),
        ({"max_age_s": 0.5, "max_waiting": 1, "max_waiting_tokens": 1}, ["a", "b", "c", "d"]),
        ({"max_waiting": 3, "max_waiting_tokens": 7}, ["d", "c"]),
    ],
)
def test_the_too_old_leave_then_the_newest_beyond_the_bounds(
    bounds: dict[str, Any], leaving: list[str]
) -> None:
    found = bounded(queue(), **bounds).leave(NOW)
    assert ids(found) == leaving
    assert set(found.values()) <= {Departure.SHED}


def test_a_job_that_has_started_is_neither_counted_nor_shed() -> None:
    back = make_job("back", prompt=50, arrival_s=9.0, first_scheduled_s=9.5)
    rule = bounded([*queue(), back], max_waiting=4, max_waiting_tokens=10)
    assert rule.leave(NOW) == {}
    rule.remove(back)
    assert rule.leave(NOW) == {}


def test_who_starts_makes_room() -> None:
    jobs = queue()
    rule = bounded(jobs, max_waiting=3, max_waiting_tokens=9)
    for job in jobs:
        if job.id == "b":
            job.first_scheduled_s = 10.0
            rule.remove(job)
    assert rule.leave(NOW) == {}


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({}, "needs at least one of max_waiting, max_waiting_tokens, max_age_s"),
        ({"max_waiting": 0}, "max_waiting is 0; accepted: more than 0"),
        ({"max_waiting_tokens": -5}, "max_waiting_tokens is -5; accepted: more than 0"),
        ({"max_waiting": 1, "max_age_s": 0.0}, "max_age_s is 0.0; accepted: more than 0"),
        ({"max_age_s": float("nan")}, "max_age_s is nan; accepted: more than 0"),
    ],
)
def test_bounds_that_bound_nothing_are_refused(bounds: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        QueueBound(**bounds)


@UNTIMED
@given(
    jobs=waiting_jobs(),
    count=st.none() | st.integers(1, 6),
    tokens=st.none() | st.integers(1, 4000),
    age_s=st.none() | st.integers(1, 40).map(float),
    now_s=instants,
)
def test_what_stays_is_within_bounds_and_nobody_more_is_shed(
    jobs: list[Job], count: int | None, tokens: int | None, age_s: float | None, now_s: float
) -> None:
    limits = (count or 10**9, tokens or 10**9)
    rule = bounded(jobs, max_waiting=limits[0], max_waiting_tokens=limits[1], max_age_s=age_s)
    shed = rule.leave(StepView(now_s=now_s))
    by_arrival = sorted(jobs, key=lambda job: (job.arrival_s, job.id))
    fresh = [job for job in by_arrival if age_s is None or now_s - job.arrival_s <= age_s]
    stay = [job for job in by_arrival if job not in shed]
    assert stay == fresh[: len(stay)]
    assert _within(stay, limits)
    assert len(stay) == len(fresh) or not _within(fresh[: len(stay) + 1], limits)
    for job in jobs:
        rule.remove(job)
    assert not jobs_held_by(rule)
    assert rule.leave(StepView(now_s=1e9)) == {}


def _within(jobs: list[Job], limits: tuple[int, int]) -> bool:
    few = len(jobs) <= limits[0]
    return few and (len(jobs) <= 1 or sum(job.num_prompt_tokens for job in jobs) <= limits[1])


def watching(*jobs: Job) -> Expired:
    """The rule with these jobs waiting."""
    rule = Expired()
    for job in jobs:
        rule.add(job)
    return rule


def test_those_past_due_leave_earliest_first() -> None:
    # At 10 s: a's first token was due at 8, b's answer at 9.5; c is due at 10 exactly and may still make it.
    jobs = [
        make_job("b", arrival_s=1.0, slo=Slo(deadline_s=8.5)),
        make_job("a", arrival_s=3.0, slo=Slo(ttft_s=5, deadline_s=99)),
        make_job("c", slo=Slo(deadline_s=10)),
        make_job("d"),
    ]
    leaving = watching(*jobs).leave(StepView(now_s=10.0))
    assert ids(leaving) == ["a", "b"]
    assert set(leaving.values()) == {Departure.EXPIRED}
    assert ids(watching(*jobs).leave(StepView(now_s=10.1))) == ["a", "b", "c"]


def test_a_job_that_stopped_waiting_does_not_leave() -> None:
    started, waits, plain = (make_job(name, slo=Slo(ttft_s=1)) for name in ("started", "waits", "plain"))
    rule = watching(started, waits)
    rule.remove(started)
    rule.remove(plain)
    assert ids(rule.leave(StepView(now_s=5.0))) == ["waits"]


def test_a_job_is_watched_under_its_next_target() -> None:
    # Preempted after its first token, only the deadline at 30 is left to miss.
    job = make_job(slo=Slo(ttft_s=1, deadline_s=30))
    rule = watching(job)
    rule.remove(job)
    job.num_output_tokens = 1
    rule.add(job)
    assert rule.leave(StepView(now_s=30.0)) == {}
    assert ids(rule.leave(StepView(now_s=31.0))) == ["a"]


@UNTIMED
@given(jobs=waiting_jobs(), now_s=instants)
def test_exactly_the_overdue_leave(jobs: list[Job], now_s: float) -> None:
    rule = watching(*jobs)
    overdue = {job for job in jobs if job.due_s is not None and job.due_s < now_s}
    assert set(rule.leave(StepView(now_s=now_s))) == overdue
    for job in jobs:
        rule.remove(job)
    assert not jobs_held_by(rule)


AT_ONE_S = StepView(now_s=1.0)


def movable(name: str, **fields: Any) -> Job:
    """A job that its sender would take back."""
    return make_job(name, may_move=True, **fields)


def test_who_was_preempted_is_handed_back_and_who_only_waits_is_not() -> None:
    rule = OutOfMemory()
    for job in (movable("new"), movable("lost", num_preemptions=1), movable("again", num_preemptions=2)):
        rule.add(job)
    leaving = rule.leave(AT_ONE_S)
    assert ids(leaving) == ["lost", "again"]
    assert set(leaving.values()) == {Departure.HAND_OFF}
    assert rule.next_change_s(AT_ONE_S) == inf


def test_whom_nobody_would_take_back_waits_for_memory_here() -> None:
    rule = OutOfMemory()
    rule.add(make_job("lost", num_preemptions=1))
    assert rule.leave(AT_ONE_S) == {}


def test_who_was_swapped_out_has_lost_nothing_and_waits() -> None:
    rule, away = OutOfMemory(), movable("away", num_preemptions=1)
    away.state = JobState.SWAPPED
    rule.add(away)
    assert rule.leave(AT_ONE_S) == {}


def test_who_no_longer_waits_does_not_leave() -> None:
    rule, new, lost = OutOfMemory(), movable("new"), movable("lost", num_preemptions=1)
    rule.add(new)
    rule.add(lost)
    rule.remove(new)
    rule.remove(lost)
    assert rule.leave(AT_ONE_S) == {}
    assert not jobs_held_by(rule)


def test_an_engine_that_runs_out_of_memory_alone_serves_the_one_it_preempts_again_by_hand() -> None:
    # 16 blocks of 4 tokens; each of the two grows to 4 + 36 = 40 tokens, 10 blocks. With 8 blocks each, at 32
    # tokens, memory is full: the later one goes. No queue would take it back, so it is computed again here.
    trace = [request("first", 0.0, 4, 36), request("second", 0.0, 4, 36)]
    records, _ = run(trace, preset("vllm", leaving=("out-of-memory",)), system())
    ends = {id_: (record.outcome, record.output_tokens) for id_, record in records.items()}
    assert ends == dict.fromkeys(["first", "second"], (Outcome.FINISHED, 36))
    assert records["second"].preemptions == 1
