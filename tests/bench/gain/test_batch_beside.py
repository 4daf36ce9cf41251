"""The stream and the pictures of `bench/gain/batch_beside.py`."""

from __future__ import annotations

import pytest

from bench.gain.batch_beside import HIGH, LOW, TARGETS, tokens_between, waves
from headway.core.record import Outcome, Record


def ended(first_s: float, finished_s: float, tokens: int) -> Record:
    return Record(
        id="one",
        arrival_s=0.0,
        prompt_tokens=10,
        outcome=Outcome.FINISHED,
        output_tokens=tokens,
        first_token_s=first_s,
        finished_s=finished_s,
    )


def test_interactive_requests_come_in_waves() -> None:
    sent = waves(rps=20.0, seconds=400.0, seed=0)
    assert all(each.slo == TARGETS for each in sent)
    assert len(sent) / 400 == pytest.approx(20 * (LOW + HIGH) / 2, rel=0.05)
    # Two waves: little at the beginning, the middle and the end, most at a quarter and three quarters.
    early, high = (sum(from_s <= each.arrival_s < from_s + 20 for each in sent) for from_s in (0, 90))
    assert high > 3 * early


def test_each_token_of_an_answer_is_in_one_span() -> None:
    one = ended(first_s=1.0, finished_s=5.0, tokens=8)
    assert [tokens_between(one, at_s, at_s + 2.0) for at_s in (0.0, 2.0, 4.0, 6.0)] == [2, 4, 2, 0]
