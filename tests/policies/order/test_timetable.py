"""By hand: a token of a prompt takes a second (`PerToken`), and so does a step until others have been seen."""

from __future__ import annotations

from itertools import combinations
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.batch_shape import BatchShape
from headway.core.job import Job, JobState
from headway.core.plan import StepOutcome, StepPlan
from headway.core.slo import Slo
from headway.policies.order.remaining_work import ASSUMED_STEP_S, RemainingWork
from headway.policies.order.timetable import NO_TARGET, TOO_LATE, Candidate, LatestStart, Timetable, given_up
from tests.policies.order.per_token import PerToken, exactly
from tests.strategies import UNTIMED, decoding, ids, make_job, prefilling


def latest_start() -> LatestStart:
    return LatestStart(RemainingWork(PerToken()), PerToken())


def due_at(ttft_s: float | None = None, **fields: Any) -> Job:
    """A job with targets that arrived at 100 s and whose answer is to have 5 tokens."""
    slo = Slo(ttft_s=ttft_s, tbt_s=fields.pop("tbt_s", None), deadline_s=fields.pop("deadline_s", None))
    return make_job(**{"arrival_s": 100.0, "slo": slo, "limit": 50, "predicted_length": exactly(5), **fields})


@pytest.mark.parametrize(
    ("job", "latest_s"),
    [
        (make_job(), NO_TARGET),
        (due_at(20.0, prompt=8), 112.0),  # due_at at 120, 8 s of prompt
        (due_at(20.0, prompt=8, num_computed_tokens=6), 118.0),  # 2 s of it are left
        (due_at(20.0, prompt=1), 119.0),  # a step at least
        (due_at(deadline_s=60.0, prompt=8), 147.0),  # due_at at 160, 8 s of prompt and 5 steps
        (
            due_at(20.0, deadline_s=30.0, prompt=8),
            112.0,
        ),  # the first token's 112 is before the whole's 130 - 13
        (due_at(20.0, deadline_s=24.0, prompt=8), 111.0),  # and here it is not: 124 - 13
        (due_at(tbt_s=0.5, prompt=8), NO_TARGET),  # between tokens, and there is none yet
    ],
)
def test_before_the_first_token(job: Job, latest_s: float) -> None:
    assert latest_start().of(job) == latest_s


class Loading(PerToken):
    """A token of a load takes half a second."""

    def load_s(self, num_tokens: int) -> float:
        """Seconds of a load."""
        return num_tokens / 2

    def step_s(self, shape: BatchShape) -> float:
        """Seconds of a step."""
        return float(shape.num_tokens)


@pytest.mark.parametrize(
    ("job", "latest_s"),
    [
        (due_at(20.0, prompt=8, num_stored_tokens=4), 114.0),  # due_at at 120, 2 s of load and 4 s of prompt
        (
            due_at(20.0, prompt=8, num_stored_tokens=4, num_cached_tokens=2),
            115.0,
        ),  # two of the four are there
        (due_at(20.0, prompt=8, num_stored_tokens=4, num_computed_tokens=4), 116.0),  # they are all there
        (
            due_at(deadline_s=60.0, prompt=8, num_stored_tokens=4),
            149.0,
        ),  # due_at at 160, 2 s, 4 s and 5 steps
    ],
)
def test_what_a_store_holds_is_loaded_first(job: Job, latest_s: float) -> None:
    assert LatestStart(RemainingWork(Loading()), Loading()).of(job) == latest_s


def answering(**targets: Any) -> Job:
    """Two of five tokens are out, the first at 110 s."""
    slo = Slo(**targets)
    return decoding(
        "a", output=2, arrival_s=100.0, slo=slo, first_token_s=110.0, limit=50, predicted_length=exactly(5)
    )


def test_between_tokens_a_job_may_wait_by_as_much_as_it_is_ahead() -> None:
    # At 3 s a token the last of 5 is due_at at 110 + 4 x 3 = 122; three are to come, a second each. (Of an exact
    # prediction as much is to come as it says, within a tenth.)
    assert latest_start().of(answering(tbt_s=3.0)) == pytest.approx(119.0, abs=0.4)
    assert latest_start().of(answering(tbt_s=3.0, deadline_s=15.0)) == pytest.approx(112.0, abs=0.2)


def test_of_an_answer_that_nobody_predicted_any_token_may_be_the_last() -> None:
    # It may catch up as long as all fifty that its limit allows bring what it is behind: 110 + 49 x 3 less 48 s.
    job = answering(tbt_s=3.0)
    job.predicted_length = None
    latest = latest_start()
    assert latest.of(job) == 209.0
    job.slo = Slo(tbt_s=3.0, deadline_s=15.0)
    assert latest.of(job) == 100.0 + 15.0 - 48.0


def test_steps_that_take_longer_than_the_target_leave_no_time_to_catch_up() -> None:
    # At half a second a token the last of 5 is due_at at 112, and three of a second each are to come.
    latest = latest_start()
    assert latest.of(answering(tbt_s=0.5)) == pytest.approx(109.0, abs=0.3)


def test_where_drafts_are_right_a_step_brings_more_than_a_token() -> None:
    # As above, but steps of a second bring two tokens: the three to come take 1.5 s.
    latest = latest_start()
    latest.observe(StepOutcome(now_s=111.0, plan=StepPlan(), decoded_tokens=2.0))
    assert latest.of(answering(tbt_s=3.0)) == pytest.approx(120.5, abs=0.2)


def test_a_first_token_in_time_is_no_longer_a_target_and_one_too_late_ends_them_all() -> None:
    assert latest_start().of(answering(ttft_s=10.0)) == NO_TARGET
    assert latest_start().of(answering(ttft_s=10.0, tbt_s=3.0)) > 100.0
    assert latest_start().of(answering(ttft_s=9.0)) == TOO_LATE
    assert latest_start().of(answering(ttft_s=9.0, tbt_s=3.0)) == TOO_LATE


def test_the_pace_is_that_of_the_steps_of_late() -> None:
    latest = latest_start()
    job = decoding("a")
    steps = [
        latest.observe(StepOutcome(now_s=at, plan=StepPlan(), tokens={job: 1})) for at in (1.0, 1.5, 2.5)
    ]
    # A tenth of the newest: 0.5, then 0.5 + (1 - 0.5) / 10.
    assert steps == [0.0, 0.5, 1.0]
    assert latest.step_s == pytest.approx(0.55)


def test_prompts_that_nobody_pauses_for_are_steps_like_others() -> None:
    latest = latest_start()
    prompt = prefilling("p", prompt=500, computed=300)
    for at_s in (1.0, 5.0, 9.0):
        latest.observe(StepOutcome(now_s=at_s, plan=StepPlan(), tokens={prompt: 100}))
    assert latest.step_s == 4.0


def test_the_step_under_way_ends_before_a_prompt_begins() -> None:
    # Steps take half a second: the first token due_at at 120 s, after 8 s of prompt, has to be begun at 112 less that.
    latest = latest_start()
    job = decoding("a")
    for at_s in (1.0, 1.5):
        latest.observe(StepOutcome(now_s=at_s, plan=StepPlan(), tokens={job: 1}))
    assert latest.of(due_at(20.0, prompt=8)) == 111.5


def test_an_idle_engine_is_no_long_step() -> None:
    latest = latest_start()
    job = decoding("a")
    latest.observe(StepOutcome(now_s=1.0, plan=StepPlan(), tokens={job: 1}))
    job.state = JobState.ENDED
    assert latest.observe(StepOutcome(now_s=99.0, plan=StepPlan(), tokens={decoding("b"): 1})) == 0.0
    assert latest.step_s == 1.0


def test_before_anything_is_known_a_step_is_assumed() -> None:
    assert LatestStart(RemainingWork()).step_s == ASSUMED_STEP_S


def test_an_engine_that_stood_still_for_a_minute_does_not_make_everybody_late_for_long() -> None:
    latest = latest_start()
    job = decoding("a")
    for at_s in (1.0, 1.5, 2.0, 62.0):
        latest.observe(StepOutcome(now_s=at_s, plan=StepPlan(), tokens={job: 1}))
    # Steps of half a second, then 60 s, which count as a hundred times as long: 50 s, a tenth of it.
    assert latest.step_s == pytest.approx(0.9 * 0.5 + 0.1 * 50.0)


def candidates(*rows: tuple[str, float, float, float]) -> list[Candidate]:
    """(name, due, service, cost) of each, by due time."""
    return sorted(
        [Candidate(due, 0.0, name, service, cost, make_job(name)) for name, due, service, cost in rows]
    )


def lost(*rows: tuple[str, float, float, float], now_s: float = 0.0) -> list[str]:
    return sorted(ids(given_up(candidates(*rows), now_s)))


def test_moores_own_example() -> None:
    # Moore 1968: services 10, 6, 3, 1, 4, 8, 7, 6 due at 35, 20, 11, 8, 6, 25, 28, 9. By due time: 4 (6), 1 (8), 6 (9),
    # 3 (11), 6 (20), 8 (25), 7 (28), 10 (35). 4 + 1 + 6 = 11 > 9: the 6 goes, 5 are left. 8, 14, 22, 29 > 28: the
    # 8 goes, 21 are left. 31 <= 35. Two are late.
    rows = [("e", 6, 4), ("d", 8, 1), ("h", 9, 6), ("c", 11, 3)]
    rows += [("b", 20, 6), ("f", 25, 8), ("g", 28, 7), ("a", 35, 10)]
    assert lost(*((name, due, service, service) for name, due, service in rows)) == ["f", "h"]


def test_the_costliest_goes_though_others_take_as_long() -> None:
    # Both prompts take 3 of the 5 seconds there are; the first would hold memory for longer.
    assert lost(("long", 5, 3, 90), ("short", 5, 3, 10)) == ["long"]
    assert lost(("short", 5, 3, 10), ("tail", 5, 3, 90)) == ["tail"]


def test_one_whose_place_would_not_be_enough_stays() -> None:
    # Without `dear` the last would still be late, at 1 + 6 > 5: it is given up itself.
    assert lost(("dear", 4, 1, 99), ("cheap", 4, 1, 1), ("last", 5, 6, 5)) == ["last"]


def test_of_equals_the_last_goes() -> None:
    assert lost(("a", 3, 2, 2), ("b", 3, 2, 2)) == ["b"]


def in_time(rows: list[tuple[int, int]]) -> bool:
    """Whether all are served by their due times, one after another."""
    free = 0
    for due, service in sorted(rows):
        free += service
        if free > due:
            return False
    return True


@UNTIMED
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 8)), max_size=7))
def test_nobody_could_have_more_of_them_in_time(rows: list[tuple[int, int]]) -> None:
    named = [(str(number), float(due), float(work), float(work)) for number, (due, work) in enumerate(rows)]
    late = lost(*named)
    kept = [row for number, row in enumerate(rows) if str(number) not in late]
    assert in_time(kept)
    most = max(
        count
        for count in range(len(rows) + 1)
        if any(in_time(list(some)) for some in combinations(rows, count))
    )
    assert len(kept) == most


def timetable(*jobs: Job, usual: int | None = None) -> Timetable:
    """Of jobs that wait, where answers have the `usual` length."""
    work = RemainingWork(PerToken())
    if usual is not None:
        work.learn(decoding("ended", output=usual))
    times = Timetable(work, PerToken())
    for job in jobs:
        work.estimate(job)
        times.add(job)
    return times


def due(id_: str, ttft_s: float, prompt: int = 2) -> Job:
    """A job with a target for its first token alone."""
    return make_job(id_, prompt=prompt, slo=Slo(ttft_s=ttft_s))


def test_those_that_wait_and_can_be_in_time_by_latest_start() -> None:
    times = timetable(due("late", 3.0), due("last", 9.0), due("first", 7.0), make_job("no target"))
    assert ids(times.waiting_in_time(9, 2.0)) == ["first", "last"]
    assert ids(times.waiting_in_time(1, 2.0)) == ["first"]
    assert ids(times.waiting_in_time(9, 6.0)) == ["last"]


def test_what_is_asked_of_a_single_one() -> None:
    job, other = due("a", 9.0), make_job("no target")
    times = timetable(job, other)
    assert [times.latest_start_s(one) for one in (job, other)] == [7.0, inf]
    assert times.in_time([job, other], 7.0) == [job]
    assert times.in_time([job, other], 7.1) == []
    assert times.waits(job)
    times.remove(job)
    assert not times.waits(job)
    assert times.latest_start_s(job) == 7.0


def test_a_prompt_is_due_when_its_first_token_is_and_takes_twice_its_time() -> None:
    [one] = timetable(job := due("a", 9.0)).candidates([job])
    assert (one.due_s, one.service_s) == (9.0, 4.0)


def test_a_load_comes_before_the_prompt_and_is_no_service() -> None:
    class Loading(PerToken):
        def load_s(self, num_tokens: int) -> float:
            return 3.0 * num_tokens

        def step_s(self, shape: BatchShape) -> float:
            return float(shape.num_tokens)

    job = due("a", 20.0, prompt=4)
    job.num_stored_tokens = 2
    work = RemainingWork(Loading())
    times = Timetable(work, Loading())
    work.estimate(job)
    times.add(job)
    assert times.latest_start_s(job) == 20.0 - 2.0 - 6.0
    [one] = times.candidates([job])
    assert (one.due_s, one.service_s) == (20.0, 4.0)


def test_it_is_true_while_anybody_has_a_target() -> None:
    job, other = due("a", 9.0), make_job("no target")
    times = timetable(other)
    assert not times
    times = timetable(job, other)
    assert times
    for one in (job, other):
        times.remove(one)
        times.end(one)
    assert not times


def test_each_token_that_has_come_leaves_one_less_to_come() -> None:
    # Steps of a second: ten tokens due at 100 s have to be begun by 90, and the last four by 96.
    job = make_job("a", prompt=1, slo=Slo(deadline_s=100.0), limit=10, predicted_length=exactly(10))
    times = timetable(job)
    for at_s in (0.0, 1.0):
        times.observe(StepOutcome(now_s=at_s, plan=StepPlan(), tokens={job: 1}))
    times.remove(job)
    begins_s = times.latest_start_s(job)
    job.num_output_tokens = job.num_computed_tokens = 6
    assert times.latest_start_s(job) == pytest.approx(begins_s + 6.0)


def test_a_stream_may_catch_up_by_the_expected_end_of_its_answer() -> None:
    # Two tokens are out, a second apart is the target, and forty more are usual, of half a second each: the last is due
    # at 41 s, so they have to be begun by 21 s.
    job = decoding("a", output=2, limit=99, first_token_s=0.0, slo=Slo(tbt_s=1.0))
    times = timetable(job, usual=42)
    for at_s in (0.0, 0.5):
        times.observe(StepOutcome(now_s=at_s, plan=StepPlan(), tokens={job: 1}))
    times.renew([job])
    assert times.latest_start_s(job) == pytest.approx(21.0)
    assert times.in_time([job], 20.9) == [job]
    assert times.in_time([job], 21.1) == []
