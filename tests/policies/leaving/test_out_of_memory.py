from __future__ import annotations

from math import inf

from headway.core.job import JobState
from headway.core.plan import Departure
from headway.core.record import Outcome
from headway.core.view import StepView
from headway.policies.leaving.queue_limits import OutOfMemory
from tests.policies.contract import jobs_held_by
from tests.sim.worlds import moved, preset, request, run, system
from tests.strategies import ids, make_job

NOW = StepView(now_s=1.0)


def test_who_was_preempted_is_handed_back_and_who_only_waits_is_not() -> None:
    rule = OutOfMemory()
    for job in (make_job("new"), make_job("lost", num_preemptions=1), make_job("again", num_preemptions=2)):
        rule.add(job)
    leaving = rule.leave(NOW)
    assert ids(leaving) == ["lost", "again"]
    assert set(leaving.values()) == {Departure.HAND_OFF}
    assert rule.next_change_s(NOW) == inf


def test_who_was_swapped_out_has_lost_nothing_and_waits() -> None:
    rule, away = OutOfMemory(), make_job("away", num_preemptions=1)
    away.state = JobState.SWAPPED
    rule.add(away)
    assert rule.leave(NOW) == {}


def test_who_no_longer_waits_does_not_leave() -> None:
    rule, new, lost = OutOfMemory(), make_job("new"), make_job("lost", num_preemptions=1)
    rule.add(new)
    rule.add(lost)
    rule.remove(new)
    rule.remove(lost)
    assert rule.leave(NOW) == {}
    assert not jobs_held_by(rule)


def test_an_engine_that_runs_out_of_memory_hands_back_the_one_it_preempts_by_hand() -> None:
    # 16 blocks of 4 tokens; each of the two grows to 4 + 36 = 40 tokens, 10 blocks. With 8 blocks each, at 32
    # tokens, memory is full: the later one goes, its tokens so far with it; the other ends whole.
    trace = [request("first", 0.0, 4, 36), request("second", 0.0, 4, 36)]
    records, _ = run(trace, preset("vllm", leaving=("out-of-memory",)), system())
    assert {id_: record.outcome for id_, record in records.items()} == {
        "first": Outcome.FINISHED,
        moved("second"): Outcome.HANDED_OFF,
    }
    assert records["first"].output_tokens == 36
    assert (records[moved("second")].preemptions, records[moved("second")].output_tokens) == (1, 29)
