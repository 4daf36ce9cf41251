"""By hand: newcomers of 1 to 100 s of work, and answers that keep a second a token or do not."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.job import Job
from headway.core.slo import Slo
from headway.policies.order.worth_starting import WorthStarting
from tests.strategies import decoding

works_s = st.lists(st.floats(0.0, 1e6), max_size=300)


def after_hundred(*, least_share: float = 0.3) -> WorthStarting:
    """What is known after newcomers of 1, 2, ... 100 s of work."""
    worth = WorthStarting(least_share)
    for work_s in range(1, 101):
        worth.come(float(work_s))
    return worth


def answer(*, tokens: int = 3, first_token_s: float = 0.0, slo: Slo | None = None) -> Job:
    """One whose first token is due at 5 s, and whose others a second apart."""
    return decoding(output=tokens, first_token_s=first_token_s, slo=slo or Slo(ttft_s=5.0, tbt_s=1.0))


def test_each_started_in_vain_makes_a_fifth_of_all_work_too_much() -> None:
    worth = after_hundred()
    assert worth.most_s == inf
    # Of 5050 s in all 4040 are worth starting: 1 + 2 + ... + 89 are 4005, and 90 more are enough.
    worth.finished(answer(), now_s=2.1)  # due at 2
    assert worth.most_s == 90.0
    # 4141 after four that kept their pace: 1 + 2 + ... + 90 are 4095.
    for _ in range(4):
        worth.finished(answer(), now_s=2.0)
    assert worth.most_s == 91.0


def test_never_less_than_the_least_share_and_all_again_in_the_end() -> None:
    worth = after_hundred(least_share=0.5)
    for _ in range(9):
        worth.finished(answer(), now_s=9.0)
    assert worth.most_s == 71.0  # 1 + 2 + ... + 70 are 2485 of 2525
    for _ in range(101):
        worth.finished(answer(), now_s=2.0)
    assert worth.most_s == inf


@pytest.mark.parametrize(
    "job",
    [
        answer(first_token_s=5.1),  # late with its first token: not in vain, but given up
        answer(tokens=1),
        answer(slo=Slo(ttft_s=5.0)),
        answer(slo=Slo(deadline_s=5.0)),
    ],
)
def test_nothing_is_learned_from_one_that_had_no_pace_to_keep(job: Job) -> None:
    worth = after_hundred()
    worth.finished(job, now_s=99.0)
    assert worth.most_s == inf


def test_a_few_newcomers_say_nothing() -> None:
    worth = WorthStarting(0.3)
    for _ in range(19):
        worth.come(1.0)
        worth.finished(answer(), now_s=9.0)
    assert worth.most_s == inf
    worth.come(1.0)
    assert worth.most_s == 1.0


@given(works_s=works_s, ends=st.lists(st.booleans(), max_size=40), least_share=st.floats(0.01, 1.0))
def test_of_the_work_of_the_last_200_at_least_that_share_is_worth_starting(
    works_s: list[float], ends: list[bool], least_share: float
) -> None:
    worth = WorthStarting(least_share)
    for work_s in works_s:
        worth.come(work_s)
    for kept in ends:
        worth.finished(answer(), now_s=2.0 if kept else 9.0)
    recent_s = works_s[-200:]
    started_s = sum(work_s for work_s in recent_s if work_s <= worth.most_s)
    assert started_s >= least_share * sum(recent_s) * (1 - 1e-9)
    assert worth.most_s == inf or worth.most_s in recent_s
