"""UniBoost's rule by hand: gamma is 1 a second, and a token of a prompt takes a tenth of one (`LinearCost`)."""

from __future__ import annotations

from math import exp, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import ConfigError
from headway.policies.order.boost import ASSUMED_TOKEN_S, Boost
from tests.policies.instance import LinearCost
from tests.strategies import ids, make_job


def test_a_short_prompt_passes_a_long_one_that_came_at_most_its_boost_earlier() -> None:
    # 0.5 s of work are moved up by ln(1 / (1 - exp(-0.5))) = 0.93 s, 3 s by 0.05: 0.88 s between the two.
    order = Boost(LinearCost(), gamma_per_s=1.0)
    jobs = [
        make_job("long", arrival_s=10.0, prompt=30),
        make_job("soon", arrival_s=10.8, prompt=5),
        make_job("late", arrival_s=10.95, prompt=5),
    ]
    for job in jobs:
        order.add(job)
    assert order.boost_s(0.5) == pytest.approx(0.9327, abs=1e-4)
    assert order.boost_s(3.0) == pytest.approx(0.0511, abs=1e-4)
    assert ids(order.top(3, 20.0)) == ["soon", "long", "late"]


def test_what_the_prefix_cache_holds_is_no_work() -> None:
    order = Boost(LinearCost(), gamma_per_s=1.0)
    found, other = make_job("found", arrival_s=1.0, prompt=30), make_job("other", arrival_s=0.5, prompt=30)
    found.num_cached_tokens = 28
    for job in (found, other):
        order.add(job)
    assert ids(order.top(2, 5.0)) == ["found", "other"]


def test_a_job_that_has_begun_keeps_its_rank() -> None:
    order = Boost(LinearCost(), gamma_per_s=1.0)
    job = make_job("a", prompt=30)
    order.add(job)
    before = order.key(job)
    order.remove(job)
    job.num_output_tokens, job.num_cached_tokens = 3, 20
    order.touch(job)
    assert order.key(job) == before


def test_a_large_gamma_is_first_come_and_a_small_one_shortest_prompt_first() -> None:
    jobs = [make_job(f"{n}", arrival_s=float(n), prompt=40 - 9 * n) for n in range(4)]
    for gamma_per_s, expected in ((1e3, ["0", "1", "2", "3"]), (1e-3, ["3", "2", "1", "0"])):
        order = Boost(LinearCost(), gamma_per_s=gamma_per_s)
        for job in jobs:
            order.add(job)
        assert ids(order.top(4, 9.0)) == expected


@given(tokens=st.integers(1, 100_000), gamma_per_s=st.floats(0.001, 100.0))
def test_the_boost_is_bounded_whatever_is_known(tokens: int, gamma_per_s: float) -> None:
    order = Boost(gamma_per_s=gamma_per_s)
    job = make_job("a", arrival_s=100.0, prompt=tokens)
    moved_s = 100.0 - float(order.key(job)[0])
    assert 0 <= moved_s <= order.boost_s(0.0) + 1e-9
    work_s = max(1e-3, ASSUMED_TOKEN_S * tokens)
    assert moved_s == pytest.approx(log(1 / (1 - exp(-gamma_per_s * work_s))) / gamma_per_s, abs=1e-6)


@pytest.mark.parametrize("gamma_per_s", [0.0, -1.0, float("inf"), float("nan")])
def test_gamma_is_above_nought(gamma_per_s: float) -> None:
    with pytest.raises(ConfigError, match="gamma_per_s is"):
        Boost(gamma_per_s=gamma_per_s)
