from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import ConfigError
from headway.traces import AllAtOnce, ArrivalProcess, Fixed, Gamma, OnOff, Poisson

PROCESSES: list[ArrivalProcess] = [
    Poisson(8.0),
    Gamma(8.0, cv=4.0),
    Gamma(0.1, cv=0.2),
    OnOff(10.0, 0.0, mean_on_s=1.0, mean_off_s=9.0),
    OnOff(10.0, 1.0, mean_on_s=1.0, mean_off_s=2.0),
    Fixed(0.25),
    AllAtOnce(),
]


def intervals_s(process: ArrivalProcess, count: int) -> np.ndarray:
    return np.diff(process.sample(count, np.random.default_rng(7)))


@given(
    process=st.sampled_from(PROCESSES),
    count=st.integers(0, 40),
    more=st.integers(0, 20),
    seed=st.integers(0, 2**64),
)
def test_times_start_at_0_never_fall_and_fewer_begin_more(
    process: ArrivalProcess, count: int, more: int, seed: int
) -> None:
    times_s = process.sample(count + more, np.random.default_rng(seed))
    assert len(times_s) == count + more
    assert times_s[:1] in ([], [0.0])
    assert times_s == sorted(times_s)
    assert process.sample(count, np.random.default_rng(seed)) == times_s[:count]


def test_intervals_without_chance() -> None:
    rng = np.random.default_rng(0)
    assert Fixed(0.25).sample(4, rng) == [0.0, 0.25, 0.5, 0.75]
    assert AllAtOnce().sample(3, rng) == [0.0, 0.0, 0.0]
    assert rng.bit_generator.state == np.random.default_rng(0).bit_generator.state


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.0, 4.0])
def test_gamma_has_the_stated_rate_and_variation(cv: float) -> None:
    count = 40_000
    gaps_s = intervals_s(Gamma(8.0, cv), count)
    # Standard errors: the mean's is cv / sqrt(n) of it; a gamma law has kurtosis 3 + 6 cv^2, so its
    # variance's is sqrt((2 + 6 cv^2) / n) of it.
    assert gaps_s.mean() * 8.0 == pytest.approx(1.0, abs=4 * cv / count**0.5)
    assert gaps_s.var() * (8.0 / cv) ** 2 == pytest.approx(1.0, abs=4 * ((2 + 6 * cv**2) / count) ** 0.5)


def test_poisson_is_gamma_with_cv_1_and_exponential() -> None:
    assert Poisson(3.0).sample(50, np.random.default_rng(1)) == Gamma(3.0, 1.0).sample(
        50, np.random.default_rng(1)
    )
    gaps_s = intervals_s(Poisson(3.0), 40_000)
    # P(gap > 1 s) = e^-3 = 0.0498; standard error sqrt(p (1 - p) / n) = 0.0011
    assert (gaps_s > 1.0).mean() == pytest.approx(0.0498, abs=0.0044)


def test_on_off_has_the_rate_and_variation_of_theory() -> None:
    process = OnOff(10.0, 0.0, mean_on_s=1.0, mean_off_s=9.0)
    # A cycle of 1 + 9 s has 10 arrivals. With a = 1 and b = 1/9: cv^2 = 1 + 2*10*1 / (10/9)^2 = 17.2.
    gaps_s = intervals_s(process, 100_000)
    assert gaps_s.mean() == pytest.approx(1.0, abs=4 * (17.2 / 100_000) ** 0.5)
    # Of the gaps, 1/11 hold a pause of mean 9 s: the variance's own error is about 2 %.
    assert gaps_s.var() == pytest.approx(17.2, rel=0.08)


def test_on_off_begins_on() -> None:
    # 100 arrivals of an on phase take about 0.1 s; one of an off phase would take about 1000 s.
    process = OnOff(1000.0, 0.001, mean_on_s=1e6, mean_off_s=1e6)
    assert process.sample(100, np.random.default_rng(0))[-1] < 1.0


def test_on_off_without_a_difference_is_poisson() -> None:
    process = OnOff(5.0, 5.0, mean_on_s=0.3, mean_off_s=0.7)
    gaps_s = intervals_s(process, 40_000)
    assert gaps_s.mean() * 5.0 == pytest.approx(1.0, abs=4 / 40_000**0.5)
    assert gaps_s.var() * 25.0 == pytest.approx(1.0, abs=4 * (8 / 40_000) ** 0.5)


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: Poisson(0.0), "rate_rps is 0.0; accepted: a finite number above 0"),
        (lambda: Gamma(float("nan"), 1.0), "rate_rps is nan"),
        (lambda: Gamma(1.0, 0.0), "cv is 0.0; accepted: 0.001 to 1000"),
        (lambda: Gamma(1.0, 1e200), r"cv is 1e\+200"),
        (lambda: OnOff(1.0, -1.0, 1.0, 1.0), "rate_off_rps is -1.0; accepted: a finite number, 0 or more"),
        (lambda: OnOff(1.0, 0.0, float("inf"), 1.0), "mean_on_s is inf"),
        (lambda: OnOff(1e-6, 0.0, 1.0, 1.0), "has 1e-06 arrivals on average; accepted: 0.001 or more"),
        (lambda: Fixed(-1.0), "interval_s is -1.0"),
    ],
)
def test_a_setting_out_of_range_is_refused(build: Callable[[], ArrivalProcess], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        build()
