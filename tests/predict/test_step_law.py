from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.batch_shape import BatchShape
from headway.errors import ConfigError
from headway.predict.steps.fitting import errors_of, nnls
from headway.predict.steps.law import Curve, StepTimeLaw, fit_step_time
from headway.statistics import quantile
from tests.predict.shapes import batch, batches, decodes
from tests.strategies import UNTIMED


def cpu_step_s(shape: BatchShape) -> float:
    """A small CPU engine: products flat up to 12 tokens, then linear; a dispatch; attention; the LM head."""
    products = max(0.0015, 0.000125 * shape.num_tokens)
    attention = 8e-8 * shape.decode_context_tokens + 2e-8 * shape.prefill_pairs
    return 0.004 + products + 3e-5 * shape.num_jobs + attention


def measured(
    count: int, seed: int = 0, noise: float = 0.02, stalls: float = 0.0
) -> list[tuple[BatchShape, float]]:
    rng = random.Random(seed)
    rows = []
    for index in range(count):
        shape = decodes(rng.choice([1, 2, 4, 8, 16, 32, 64]), rng.randint(10, 2000))
        if index % 2:
            shape.add(rng.choice([16, 64, 256, 512, 1024]), rng.choice([0, 256, 1024]))
        slow = 8 if rng.random() < stalls else 1
        rows.append((shape, cpu_step_s(shape) * rng.gauss(1, noise) * slow))
    return rows


@pytest.mark.parametrize("stalls", [0.0, 0.05])
def test_a_cpu_engine_is_fitted_to_a_few_per_cent(stalls: float) -> None:
    fit = fit_step_time(measured(300, stalls=stalls))
    errors = sorted(abs(fit.law.step_s(shape) / cpu_step_s(shape) - 1) for shape, _ in measured(200, seed=5))
    assert quantile(errors, 0.5) < 0.02
    assert quantile(errors, 0.9) < 0.06
    assert (fit.num_rows, fit.held_out.num_rows) == (300, 60)
    assert fit.held_out.median_error < 0.04


def test_held_out_rows_do_not_touch_the_law() -> None:
    rows = measured(100)
    spoiled = [(shape, s * 50 if index % 5 == 4 else s) for index, (shape, s) in enumerate(rows)]
    assert fit_step_time(spoiled).law == fit_step_time(rows).law
    assert fit_step_time(spoiled).held_out.median_error > 40


def test_too_few_rows_or_a_row_without_time_is_an_error() -> None:
    with pytest.raises(ConfigError, match="19 measured steps"):
        fit_step_time(measured(19))
    with pytest.raises(ConfigError, match="must take time"):
        fit_step_time([*measured(30), (decodes(1, 1), 0.0)])


FITTED = fit_step_time(measured(200)).law


@UNTIMED
@given(shape=batches, new=st.integers(1, 500), cached=st.integers(0, 5000))
def test_more_work_never_takes_less_time(shape: BatchShape, new: int, cached: int) -> None:
    more = replace(shape)
    more.add(new, cached)
    assert FITTED.step_s(more) >= FITTED.step_s(shape) > 0


def test_a_curve_is_linear_between_knots_and_beyond_the_last() -> None:
    # 1 at 0, 1 at 4, 3 at 8: flat, then half a second a count, for ever.
    curve = Curve(knots=(0, 4, 8), seconds=(1.0, 1.0, 3.0))
    assert [curve.at(count) for count in (0, 2, 4, 5, 8, 12)] == [1.0, 1.0, 1.0, 1.5, 3.0, 5.0]


@pytest.mark.parametrize(
    ("knots", "seconds"),
    [((0,), (1.0,)), ((0, 4), (1.0,)), ((1, 4), (1.0, 2.0)), ((0, 4, 4), (1.0, 2.0, 3.0))],
)
def test_a_broken_curve_is_an_error(knots: tuple[int, ...], seconds: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="curve"):
        Curve(knots=knots, seconds=seconds)


def test_a_law_by_hand() -> None:
    # 2 decodes of 99 cached tokens and a chunk of 10 after 20: 12 tokens, 3 jobs, 200 decode context,
    # 30 prefill context, 10 x (20 + 5.5) = 255 pairs: 12 + 30 + 0.2 + 0.3 + 2.55.
    law = StepTimeLaw(
        tokens=Curve(knots=(0, 1), seconds=(0.0, 1.0)),
        jobs=Curve(knots=(0, 1), seconds=(0.0, 10.0)),
        decode_context_s=0.001,
        prefill_context_s=0.01,
        prefill_pair_s=0.01,
    )
    assert law.step_s(batch((1, 99), (1, 99), (10, 20))) == pytest.approx(45.05)


@UNTIMED
@given(seed=st.integers(0, 10_000), rows=st.integers(1, 30), columns=st.integers(1, 8))
def test_nnls_meets_the_conditions_of_an_optimum(seed: int, rows: int, columns: int) -> None:
    # Karush, Kuhn and Tucker: x >= 0, the gradient is 0 where x > 0 and does not point inwards where x = 0.
    rng = np.random.default_rng(seed)
    matrix, target = rng.normal(size=(rows, columns)), rng.normal(size=rows)
    found = nnls(matrix, target)
    gradient = matrix.T @ (matrix @ found - target)
    assert (found >= 0).all()
    assert (gradient >= -1e-6).all()
    assert np.abs(gradient * found).max() < 1e-6


def test_quantiles_and_errors_by_hand() -> None:
    # Measured over predicted 0.9, 1.0, 1.1, 1.4: errors 0, 0.1, 0.1, 0.4; 0.9 of the way lies at 0.1 + 0.7 x 0.3.
    errors = errors_of([(0.9, 1.0), (1.0, 1.0), (2.2, 2.0), (1.4, 1.0)])
    assert errors.median_error == pytest.approx(0.1)
    assert errors.p90_error == pytest.approx(0.31)
    assert (errors.residuals[0], errors.residuals[-1], len(errors.residuals)) == (0.9, 1.4, 21)
    assert errors_of([]).residuals == (1.0,)
