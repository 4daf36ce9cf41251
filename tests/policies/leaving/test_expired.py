from __future__ import annotations

from hypothesis import given

from headway.core.job import Job
from headway.core.plan import Departure
from headway.core.slo import Slo
from headway.core.view import StepView
from headway.policies.leaving.queue_limits import Expired
from tests.policies.contract import jobs_held_by
from tests.strategies import UNTIMED, ids, instants, make_job, waiting_jobs


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


def test_a_job_without_targets_never_leaves() -> None:
    rule = watching(make_job("plain"), make_job("rate", slo=Slo(tbt_s=0.1)))
    assert rule.leave(StepView(now_s=1e12)) == {}
    assert not jobs_held_by(rule)


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
