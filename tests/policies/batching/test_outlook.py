from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.job import Job, JobState
from headway.core.length_estimate import LengthEstimate
from headway.core.plan import StepOutcome, StepPlan
from headway.core.view import StepView
from headway.errors import ConfigError
from headway.policies.batching.outlook import ExpectedTokens, Outlook
from tests.policies.contract import jobs_held_by
from tests.policies.order.per_token import exactly
from tests.strategies import UNTIMED, decoding, make_job


def engine(total_blocks: int, *residents: Job) -> StepView:
    """Blocks of 4 tokens."""
    return StepView(total_blocks=total_blocks, block_size=4, residents=residents)


# ---- how long an answer will be ------------------------------------------------------------------------


def test_an_answer_is_expected_to_stay_within_its_quantile() -> None:
    job = decoding(output=10, limit=999, predicted_length=LengthEstimate(40.0, 20.0, 120.0))
    assert ExpectedTokens(0.5).to_come(engine(1), [job]) == [30.0]
    assert ExpectedTokens(0.9).to_come(engine(1), [job]) == [pytest.approx(110.0)]
    assert ExpectedTokens(0.1).to_come(engine(1), [job]) == [pytest.approx(10.0)]


def test_one_that_has_outgrown_it_is_given_a_little_more_and_never_more_than_its_limit() -> None:
    expected, view = ExpectedTokens(0.5), engine(1)
    outgrown = decoding(output=80, limit=999, predicted_length=exactly(40))
    assert expected.to_come(view, [outgrown]) == [10]  # an eighth of 80
    assert expected.to_come(view, [decoding(output=9, limit=999)]) == [4]  # a block, for want of a prediction
    assert expected.to_come(view, [decoding(output=9, limit=11, predicted_length=exactly(40))]) == [2]


def test_what_is_known_of_residents_is_kept_and_forgotten_with_them() -> None:
    expected = ExpectedTokens(0.5)
    job = decoding(predicted_length=exactly(8), limit=99)
    expected.observe(StepOutcome(now_s=0.0, plan=StepPlan(), admitted=[job]))
    assert jobs_held_by(expected) == {job}
    assert expected.to_come(engine(1), [job]) == [7.0]
    job.state = JobState.ENDED
    expected.observe(StepOutcome(now_s=1.0, plan=StepPlan()))
    assert not jobs_held_by(expected)


@pytest.mark.parametrize("confidence", [0.0, 1.0, -0.5])
def test_a_confidence_is_a_probability(confidence: float) -> None:
    with pytest.raises(
        ConfigError, match=r"reserve_confidence is .*; accepted: a probability between 0 and 1"
    ):
        ExpectedTokens(confidence)


# ---- whether memory lasts ------------------------------------------------------------------------------


def test_the_most_is_held_when_one_of_them_ends() -> None:
    # Half a block, 2 tokens, for each. Short: 10 + 2 held, 4 to come; long: 20 + 2, 24 to come. When short ends
    # 12 + 22 + 2 x 4 = 42 tokens are held, when long ends 22 + 24 = 46: 12 blocks of 4 hold both.
    short = decoding("short", prompt=9, output=1, limit=99, predicted_length=exactly(5))
    long = make_job("long", prompt=20, limit=99, predicted_length=exactly(24))
    for blocks, enough in ((12, True), (11, False)):
        outlook = Outlook(engine(blocks, short), ExpectedTokens(0.5))
        assert outlook.takes(long, [short]) == enough
    # Room for both answers as a whole is 12 + 4 + 46 = 62 tokens, 16 blocks.
    assert Outlook(engine(16, short), ExpectedTokens(0.5)).is_enough_for([long])
    assert not Outlook(engine(15, short), ExpectedTokens(0.5)).is_enough_for([long])


def test_it_is_the_newcomers_own_life_that_counts() -> None:
    # Long holds 22 and will hold 46, when short (12, and 4 to come) is long gone: 42 tokens are held at its end.
    long = decoding("long", prompt=19, output=1, limit=99, predicted_length=exactly(25))
    short = make_job("short", limit=99, predicted_length=exactly(4))
    for blocks, enough in ((11, True), (10, False)):
        outlook = Outlook(engine(blocks, long), ExpectedTokens(0.5))
        assert outlook.takes(short, [long]) == enough


def test_who_ranks_lower_counts_with_what_it_holds() -> None:
    # As before, but long is not told of: 22 + 12 + 4 = 38 tokens.
    long = decoding("long", prompt=19, output=1, limit=99, predicted_length=exactly(25))
    short = make_job("short", limit=99, predicted_length=exactly(4))
    for blocks, enough in ((10, True), (9, False)):
        assert Outlook(engine(blocks, long), ExpectedTokens(0.5)).takes(short, []) == enough


def test_who_was_taken_counts_and_who_was_not_does_not() -> None:
    # Each holds 10 + 2 and is to bring 8: 20, then 40, 60; and one of 10 + 2 + 80.
    jobs = [make_job(name, predicted_length=exactly(8), limit=99) for name in "abcd"]
    huge = make_job("huge", predicted_length=exactly(80), limit=99)
    outlook = Outlook(engine(15), ExpectedTokens(0.5))
    assert [outlook.takes(job, []) for job in (jobs[0], huge, jobs[1], huge, *jobs[2:])] == [
        True,
        False,
        True,
        False,
        True,
        False,
    ]


def test_one_alone_always_has_room() -> None:
    assert Outlook(engine(1), ExpectedTokens(0.5)).takes(
        make_job(predicted_length=exactly(900), limit=999), []
    )


@st.composite
def companies(draw: st.DrawFn) -> list[Job]:
    return [
        decoding(
            str(number),
            prompt=draw(st.integers(1, 40)),
            output=1,
            limit=999,
            predicted_length=exactly(draw(st.integers(2, 60))),
        )
        for number in range(draw(st.integers(1, 12)))
    ]


@UNTIMED
@given(jobs=companies(), residents=st.integers(0, 12), blocks=st.integers(1, 400))
def test_where_there_is_enough_for_all_it_takes_all(jobs: list[Job], residents: int, blocks: int) -> None:
    here, newcomers = jobs[:residents], jobs[residents:]
    if Outlook(engine(blocks, *here), ExpectedTokens(0.5)).is_enough_for(newcomers):
        for before in ([], here):
            outlook = Outlook(engine(blocks, *here), ExpectedTokens(0.5))
            assert all(outlook.takes(job, before) for job in newcomers)


@UNTIMED
@given(jobs=companies(), blocks=st.integers(1, 120))
def test_those_it_takes_fit_step_by_step_if_they_end_as_expected(jobs: list[Job], blocks: int) -> None:
    """Simulated token by token: what all hold, but for the blocks they have begun, never exceeds the memory."""
    outlook = Outlook(engine(blocks), ExpectedTokens(0.5))
    taken = [job for job in jobs if outlook.takes(job, [])]
    assert taken
    to_come = {job: round(job.predicted_output_tokens or 0) - 1 for job in taken}
    for step in range(60):
        running = [job for job in taken if to_come[job] >= step]
        held = sum(job.num_tokens + step + 2 for job in running)
        assert held <= 4 * blocks or len(running) == 1  # one alone always has room
    # And it is no more careful than that: whoever was refused would have exceeded it at some step.
    refused = [job for job in jobs if job not in taken]
    for job in refused:
        everybody = [*taken, job]
        ends = {**to_come, job: round(job.predicted_output_tokens or 0) - 1}
        most = max(
            sum(each.num_tokens + step + 2 for each in everybody if ends[each] >= step) for step in range(60)
        )
        assert most > 4 * blocks
