from __future__ import annotations

from collections.abc import Callable
from math import log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import ConfigError
from headway.traces import NAMED_LAWS, Constant, LengthLaw, LogNormal, Quantiles, Zipf
from headway.traces.lengths import FIT_TOLERANCE

# Each with its least and greatest length.
LAWS: list[tuple[LengthLaw, int, int]] = [
    (Constant(7), 7, 7),
    (Zipf(1.1, 256), 1, 256),
    (Zipf(0.0, 3), 1, 3),
    (Zipf(900.0, 10**4), 1, 10**4),
    (LogNormal(64.0, 0.8, maximum=512), 1, 512),
    (LogNormal(0.01, 10.0, maximum=9, minimum=4), 4, 9),
    (LogNormal.fitted(30.0, 2.0, maximum=100, minimum=5), 5, 100),
    (Quantiles(((0, 1), (0.5, 11), (1, 31))), 1, 31),
]


@given(
    case=st.sampled_from(LAWS), count=st.integers(0, 40), more=st.integers(0, 20), seed=st.integers(0, 2**64)
)
def test_lengths_are_whole_within_bounds_and_fewer_begin_more(
    case: tuple[LengthLaw, int, int], count: int, more: int, seed: int
) -> None:
    law, least, greatest = case
    lengths = law.sample(count + more, np.random.default_rng(seed))
    assert len(lengths) == count + more
    assert all(type(length) is int and least <= length <= greatest for length in lengths)
    assert law.sample(count, np.random.default_rng(seed)) == lengths[:count]


@pytest.mark.parametrize(
    "law", [case[0] for case in LAWS] + [law for pair in NAMED_LAWS.values() for law in pair]
)
def test_the_mean_of_many_is_the_expected_one(law: LengthLaw) -> None:
    lengths = np.array(law.sample(40_000, np.random.default_rng(3)))
    rounding = 0.5 if isinstance(law, Quantiles) else 1e-4
    error = 4 * lengths.std() / len(lengths) ** 0.5 + rounding
    assert lengths.mean() == pytest.approx(law.expected_tokens(), abs=error)


def test_zipf_by_hand() -> None:
    # 1, 1/2 and 1/3 sum to 11/6: probabilities 6/11, 3/11, 2/11, mean (6 + 6 + 6) / 11.
    law = Zipf(1.0, 3)
    assert law.expected_tokens() == pytest.approx(18 / 11)
    lengths = law.sample(22_000, np.random.default_rng(5))
    for length, expected in ((1, 12_000), (2, 6_000), (3, 4_000)):
        assert lengths.count(length) == pytest.approx(expected, abs=4 * expected**0.5)


def test_zipf_is_shorter_for_a_larger_theta() -> None:
    means = [Zipf(theta, 512).expected_tokens() for theta in (0.7, 0.9, 1.1, 1.3, 1.5)]
    assert means == sorted(means, reverse=True)


class _Last(np.random.Generator):
    """Draws the number nearest below 1."""

    def random(self, size: int) -> np.ndarray:  # type: ignore[override]
        return np.full(size, np.nextafter(1.0, 0.0))


def test_zipf_never_draws_beyond_its_maximum() -> None:
    for maximum in range(1, 200):
        assert Zipf(1.0, maximum).sample(1, _Last(np.random.PCG64(0))) == [maximum]


def test_log_normal_by_hand() -> None:
    # mu = ln 64 - 0.8^2 / 2, so the median is 64 e^-0.32 = 46.47; far limits change nothing.
    law = LogNormal(64.0, 0.8, maximum=10**6)
    assert law.expected_tokens() == pytest.approx(64.0, abs=0.01)
    assert np.median(law.sample(40_000, np.random.default_rng(2))) == pytest.approx(46.47, abs=0.8)
    # Half of the lengths clipped to 46, the rest above it: the mean falls well below the untruncated one.
    assert LogNormal(64.0, 0.8, maximum=46).expected_tokens() < 40.0


def test_log_normal_rounds_to_the_nearest() -> None:
    # Almost no spread around 2.4 and 2.6.
    assert set(LogNormal(2.4, 1e-6, maximum=9).sample(50, np.random.default_rng(0))) == {2}
    assert LogNormal(2.6, 1e-6, maximum=9).expected_tokens() == 3.0


@given(
    place=st.floats(0.001, 0.999),
    sigma=st.floats(0.05, 4.0),
    minimum=st.integers(1, 20),
    size=st.integers(2, 300),
)
def test_a_fitted_law_has_the_published_mean(place: float, sigma: float, minimum: int, size: int) -> None:
    mean = minimum + place * size
    law = LogNormal.fitted(mean, sigma, maximum=minimum + size, minimum=minimum)
    assert abs(law.expected_tokens() - mean) <= FIT_TOLERANCE * mean
    assert (law.sigma, law.minimum, law.maximum) == (sigma, minimum, minimum + size)


def test_quantiles_by_hand() -> None:
    # Half of the lengths even between 1 and 11 (mean 6), half between 11 and 31 (mean 21).
    law = Quantiles(((0, 1), (0.5, 11), (1, 31)))
    assert law.expected_tokens() == 13.5
    lengths = np.array(law.sample(40_000, np.random.default_rng(6)))
    for quantile, expected in ((0.25, 6), (0.5, 11), (0.75, 21)):
        assert np.quantile(lengths, quantile) == pytest.approx(expected, abs=1)


def test_quantiles_up_to_a_length_are_those_of_the_shorter_ones() -> None:
    # Of 1..31 a quarter of the upper half is 16 or less: 0.625 in all, of which 1..11 is 0.8.
    law = Quantiles(((0, 1), (0.5, 11), (1, 31)))
    assert law.up_to(16) == Quantiles(((0, 1), (0.8, 11), (1, 16)))


@pytest.mark.parametrize(
    ("name", "mean"),
    [("adaptivellm-chatbot", 17.02), ("adaptivellm-alpaca", 19.66), ("adaptivellm-summary", 340.48)],
)
def test_adaptivellm_inputs_have_the_published_means(name: str, mean: float) -> None:
    law = NAMED_LAWS[name].input
    assert isinstance(law, LogNormal)
    assert law.expected_tokens() == pytest.approx(mean, rel=FIT_TOLERANCE)
    assert (law.minimum, law.maximum) == (1, 1024)
    assert log(law.mean / mean) >= -FIT_TOLERANCE  # clipping at 1024 only ever takes away


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: Constant(0), "tokens is 0; accepted: a whole number from 1 to 10000000"),
        (lambda: Constant(2.5), "tokens is 2.5"),  # type: ignore[arg-type]
        (lambda: Zipf(-0.1, 5), "theta is -0.1; accepted: a finite number, 0 or more"),
        (lambda: Zipf(1.0, 10**9), "maximum is 1000000000"),
        (lambda: LogNormal(0.0, 1.0, 5), "mean is 0.0; accepted: a finite number above 0"),
        (lambda: LogNormal(1.0, 0.0, 5), "sigma is 0.0; accepted: above 0, up to 10"),
        (lambda: LogNormal(1.0, 11.0, 5), "sigma is 11.0"),
        (lambda: LogNormal(1.0, 1.0, 5, minimum=6), r"minimum is 6; accepted: maximum \(5\) or less"),
        (lambda: LogNormal.fitted(5.0, 1.0, 5), "mean is 5.0; accepted: between 1 and 5, both excluded"),
        (lambda: LogNormal.fitted(2.3, 1e-18, 9), "sigma is 1e-18, with which no law has a mean of 2.3"),
        (lambda: Quantiles(((0, 1),)), "accepted: points from probability 0 to 1"),
        (lambda: Quantiles(((0, 1), (1, 4))).up_to(4), "maximum is 4; accepted: between 1 and 4"),
        (lambda: Quantiles(((0, 1), (0.9, 2))), "accepted: points from probability 0 to 1"),
        (lambda: Quantiles(((0, 5), (1, 4))), r"\(1, 4\) follows \(0, 5\); accepted: rising points"),
        (lambda: Quantiles(((0, 0), (1, 4))), "a length of table is 0"),
    ],
)
def test_a_setting_out_of_range_is_refused(build: Callable[[], LengthLaw], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        build()
