"""By hand: a token of a prompt takes a second (`PerToken`), and so does a step until others have been seen."""

from __future__ import annotations

from typing import Any

import pytest

from headway.core.batch_shape import BatchShape
from headway.core.job import Job, JobState
from headway.core.plan import StepOutcome, StepPlan
from headway.core.slo import Slo
from headway.policies.order.remaining_work import ASSUMED_STEP_S, RemainingWork
from headway.policies.order.timetable import NO_TARGET, TOO_LATE, LatestStart
from tests.policies.order.per_token import PerToken, exactly
from tests.strategies import decoding, make_job, prefilling


def latest_start() -> LatestStart:
    return LatestStart(RemainingWork(PerToken()), PerToken())


def due(ttft_s: float | None = None, **fields: Any) -> Job:
    """A job with targets that arrived at 100 s and whose answer is to have 5 tokens."""
    slo = Slo(ttft_s=ttft_s, tbt_s=fields.pop("tbt_s", None), deadline_s=fields.pop("deadline_s", None))
    return make_job(**{"arrival_s": 100.0, "slo": slo, "limit": 50, "predicted_length": exactly(5), **fields})


@pytest.mark.parametrize(
    ("job", "latest_s"),
    [
        (make_job(), NO_TARGET),
        (due(20.0, prompt=8), 112.0),  # due at 120, 8 s of prompt
        (due(20.0, prompt=8, num_computed_tokens=6), 118.0),  # 2 s of it are left
        (due(20.0, prompt=1), 119.0),  # a step at least
        (due(deadline_s=60.0, prompt=8), 147.0),  # due at 160, 8 s of prompt and 5 steps
        (due(20.0, deadline_s=30.0, prompt=8), 112.0),  # the first token's 112 is before the whole's 130 - 13
        (due(20.0, deadline_s=24.0, prompt=8), 111.0),  # and here it is not: 124 - 13
        (due(tbt_s=0.5, prompt=8), NO_TARGET),  # between tokens, and there is none yet
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
        (due(20.0, prompt=8, num_stored_tokens=4), 114.0),  # due at 120, 2 s of load and 4 s of prompt
        (due(20.0, prompt=8, num_stored_tokens=4, num_cached_tokens=2), 115.0),  # two of the four are there
        (due(20.0, prompt=8, num_stored_tokens=4, num_computed_tokens=4), 116.0),  # they are all there
        (due(deadline_s=60.0, prompt=8, num_stored_tokens=4), 149.0),  # due at 160, 2 s, 4 s and 5 steps
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
    # At 3 s a token the last of 5 is due at 110 + 4 x 3 = 122; three are to come, a second each. (Of an exact
    # prediction as much is to come as it says, within a tenth.)
    assert latest_start().of(answering(tbt_s=3.0)) == pytest.approx(119.0, abs=0.4)
    assert latest_start().of(answering(tbt_s=3.0, deadline_s=15.0)) == pytest.approx(112.0, abs=0.2)


def test_of_an_answer_that_nobody_predicted_any_token_may_be_the_last() -> None:
    # The third token is due at 110 + 2 x 3 = 116, and takes a second. It may catch up as long as fifty, all that its
    # limit allows, bring what it is behind: 110 + 49 x 3 less 48 s.
    job = answering(tbt_s=3.0)
    job.predicted_length = None
    latest = latest_start()
    assert latest.of(job) == 115.0
    assert latest.last_chance_s(job) == 209.0
    assert LatestStart(RemainingWork(PerToken()), PerToken(), by_tokens=False).of(job) == 209.0
    job.slo = Slo(tbt_s=3.0, deadline_s=15.0)
    assert latest.of(job) == 100.0 + 15.0 - 48.0


def test_steps_that_take_longer_than_the_target_leave_no_time_to_catch_up() -> None:
    # At half a second a token the last of 5 is due at 112, and three of a second each are to come.
    latest = latest_start()
    assert latest.of(answering(tbt_s=0.5)) == pytest.approx(109.0, abs=0.3)
    assert latest.last_chance_s(answering(tbt_s=0.5)) == pytest.approx(109.0, abs=0.3)


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


def test_where_answers_pause_for_a_step_of_prompts_a_token_takes_both() -> None:
    latest = latest_start()
    answer, prompt = decoding("a"), prefilling("p", prompt=500, computed=300)
    answer.num_computed_tokens += 1  # as the ledger has it after a step
    steps = [{answer: 1}, {answer: 1}, {prompt: 100}, {answer: 1}, {answer: 1}]
    for at_s, tokens in zip((1.0, 2.0, 3.0, 7.0, 8.0), steps, strict=True):
        latest.observe(StepOutcome(now_s=at_s, plan=StepPlan(), tokens=tokens))
    # Steps of 1, 1, 4 and 1 s, the third of prompts alone: a token took 1, 1 and 5 s, of which the last counts a tenth.
    assert latest.step_s == pytest.approx(1.4)


def test_a_pause_for_answers_that_have_ended_since_is_part_of_no_step() -> None:
    latest = latest_start()
    answer, prompt, other = decoding("a"), prefilling("p", prompt=500, computed=300), decoding("b")
    answer.num_computed_tokens += 1
    other.num_computed_tokens += 1
    for at_s, tokens in ((1.0, {answer: 1}), (2.0, {prompt: 100}), (6.0, {answer: 1})):
        latest.observe(StepOutcome(now_s=at_s, plan=StepPlan(), tokens=tokens))
    answer.state = JobState.ENDED
    for at_s in (90.0, 91.0):
        latest.observe(StepOutcome(now_s=at_s, plan=StepPlan(), tokens={other: 1}))
    assert latest.step_s == 1.0


def test_prompts_that_nobody_pauses_for_are_steps_like_others() -> None:
    latest = latest_start()
    prompt = prefilling("p", prompt=500, computed=300)
    for at_s in (1.0, 5.0, 9.0):
        latest.observe(StepOutcome(now_s=at_s, plan=StepPlan(), tokens={prompt: 100}))
    assert latest.step_s == 4.0


def test_the_step_under_way_ends_before_a_prompt_begins() -> None:
    # Steps take half a second: the first token due at 120 s, after 8 s of prompt, has to be begun at 112 less that.
    latest = latest_start()
    job = decoding("a")
    for at_s in (1.0, 1.5):
        latest.observe(StepOutcome(now_s=at_s, plan=StepPlan(), tokens={job: 1}))
    assert latest.of(due(20.0, prompt=8)) == 111.5


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
