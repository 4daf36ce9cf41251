from __future__ import annotations

import pytest

from headway.core.job import Job, has_prompts, is_decode
from headway.core.slo import Slo
from tests.strategies import decoding, make_job


def test_jobs_are_compared_by_identity() -> None:
    one, twin = make_job("a"), make_job("a")
    assert one != twin
    assert len({one, twin}) == 2


def test_a_job_has_no_place_for_its_true_output_length() -> None:
    assert "max_output_tokens" in Job.__slots__
    with pytest.raises(AttributeError):
        make_job().true_output_tokens = 7  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("computed", "output", "expected"),
    [
        (0, 0, True),
        (8, 0, True),  # 8 of 10: two tokens are left, one more than the newest
        (9, 0, False),  # only the newest is left, as in a decode
        (10, 0, False),  # all computed, its first token is in flight
        (10, 1, False),
        (0, 1, True),  # preempted after its first token: 11 tokens to compute again
    ],
)
def test_prefilling_until_only_the_newest_token_is_left(computed: int, output: int, expected: bool) -> None:
    job = make_job(prompt=10, num_computed_tokens=computed, num_output_tokens=output)
    assert job.prefilling is expected
    assert job.num_tokens == 10 + output


@pytest.mark.parametrize(
    ("computed", "output", "tokens", "expected"),
    [
        (8, 0, 8, False),
        (10, 0, 10, False),
        (11, 0, 1, True),  # scheduled before the first token is known
        (13, 3, 1, True),
        (16, 3, 4, True),  # a token and three drafts
        (13, 3, 13, False),  # computed again
    ],
)
def test_a_step_extends_an_answer_or_computes_a_prompt(
    computed: int, output: int, tokens: int, expected: bool
) -> None:
    job = make_job(prompt=10, num_computed_tokens=computed, num_output_tokens=output)
    assert is_decode(job, tokens) is expected
    back = decoding("back from the host")
    back.num_computed_tokens += 1
    assert has_prompts({decoding("d"): 0, job: tokens, back: 1}) is not expected


def test_a_step_of_no_jobs_has_no_prompts() -> None:
    assert not has_prompts({})


@pytest.mark.parametrize(
    ("slo", "output", "ttft_deadline_s", "due_s"),
    [
        (Slo(), 0, None, None),
        (Slo(tbt_s=1), 0, None, None),
        (Slo(ttft_s=3), 0, 8.0, 8.0),
        (Slo(ttft_s=3), 1, None, None),  # the first token is out: nothing left to miss
        (Slo(deadline_s=9), 0, None, 14.0),
        (Slo(ttft_s=3, deadline_s=9), 0, 8.0, 8.0),
        (Slo(ttft_s=3, deadline_s=2), 0, 8.0, 7.0),
        (Slo(ttft_s=3, deadline_s=9), 1, None, 14.0),
    ],
)
def test_due_is_the_next_target_that_can_still_be_missed(
    slo: Slo, output: int, ttft_deadline_s: float | None, due_s: float | None
) -> None:
    job = make_job(arrival_s=5.0, slo=slo, num_output_tokens=output)
    assert (job.ttft_deadline_s, job.due_s) == (ttft_deadline_s, due_s)


def test_repr_shows_state_and_progress() -> None:
    assert repr(decoding("x", prompt=10, output=3)) == "Job('x', resident, computed 12/13)"


def test_what_is_found_need_not_be_computed() -> None:
    assert make_job(prompt=40, num_cached_tokens=32).num_found_tokens == 32
    assert make_job(prompt=40, num_cached_tokens=16, num_computed_tokens=20).num_found_tokens == 20
