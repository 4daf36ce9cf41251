"""The step-time law of one machine, and its fit to measured steps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import msgspec
import numpy as np

from headway.core.batch_shape import BatchShape
from headway.errors import ConfigError
from headway.predict.steps.fitting import Array, Errors, errors_of, nnls

Cost = Annotated[float, msgspec.Meta(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A piecewise-linear function of a count; beyond its last knot it continues with the same slope.

    `knots` ascend from 0; `seconds` are the values there, in non-decreasing order.
    """

    knots: tuple[int, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.knots) != len(self.seconds) or len(self.knots) < 2 or self.knots[0] != 0:
            raise ConfigError(
                f"a curve needs as many seconds as knots, at least 2, from 0 on; "
                f"found knots {self.knots} and {len(self.seconds)} values"
            )
        if any(low >= high for low, high in zip(self.knots, self.knots[1:], strict=False)):
            raise ConfigError(f"a curve's knots must ascend; found {self.knots}")
        if any(low > high for low, high in pairwise((0.0, *self.seconds))):
            raise ConfigError(f"a curve's seconds must be 0 or more and not fall; found {self.seconds}")

    def at(self, count: float) -> float:
        """Seconds at `count`. O(log knots)."""
        knots, seconds = self.knots, self.seconds
        right = bisect_right(knots, count, 1, len(knots) - 1)
        left = right - 1
        slope = (seconds[right] - seconds[left]) / (knots[right] - knots[left])
        return seconds[left] + slope * (count - knots[left])


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeLaw:
    """A step = a curve of its tokens + a curve of its jobs + linear costs of context and of causal pairs.

    The curves represent matrix products, the LM head and the sampler: flat while a product is bound by reading its
    weights, then linear. `tokens` includes the constant cost of every step. Context tokens are those whose KV attention
    reads; pairs are the (query, key) pairs it computes. No coefficient is negative, so a step with more of anything
    takes no less time.
    """

    tokens: Curve
    jobs: Curve
    decode_context_s: Cost
    prefill_context_s: Cost
    prefill_pair_s: Cost

    def step_s(self, shape: BatchShape) -> float:
        """Seconds of one step of this shape. About 1 us."""
        return (
            self.tokens.at(shape.num_tokens)
            + self.jobs.at(shape.num_jobs)
            + self.decode_context_s * shape.decode_context_tokens
            + self.prefill_context_s * shape.prefill_context_tokens
            + self.prefill_pair_s * shape.prefill_pairs
        )


HELD_OUT_EVERY = 5
"""One row in this many is held out to judge the fit."""
MIN_ROWS = 20
_KNOTS = tuple(2**power for power in range(1, 21))
_ROWS_A_SEGMENT = 3
"""Distinct counts that a segment of a curve needs, or it would follow noise."""
_MAX_JOB_KNOTS = 3
_ROUNDS = 12
_OUTLIER_MADS = 2.0
"""Residuals beyond this many median deviations are weighted by 1/distance (Huber 1964)."""
_SMALLEST_SPREAD = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeFit:
    """A fitted law, and its errors on held-out rows."""

    law: StepTimeLaw
    num_rows: int
    held_out: Errors


def fit_step_time(
    rows: Sequence[tuple[BatchShape, float]], *, held_out_every: int = HELD_OUT_EVERY
) -> StepTimeFit:
    """Fit `rows`, pairs of a step's shape and its seconds, in an order that mixes kinds of step.

    Every `held_out_every`-th row only judges. Minimises relative errors and resists outliers. Raises ConfigError for
    fewer than 20 rows or a row that did not take time. Well under a second for thousands of rows.
    """
    if len(rows) < MIN_ROWS:
        raise ConfigError(f"{len(rows)} measured steps are too few to fit; at least {MIN_ROWS} are needed")
    for shape, seconds in rows:
        if not seconds > 0 or not np.isfinite(seconds):
            raise ConfigError(f"a measured step must take time; found {seconds} s for {shape}")
    judges = rows[held_out_every - 1 :: held_out_every]
    learned = [row for index, row in enumerate(rows) if (index + 1) % held_out_every]
    law = _fit(learned)
    return StepTimeFit(
        law=law,
        num_rows=len(rows),
        held_out=errors_of([(seconds, law.step_s(shape)) for shape, seconds in judges]),
    )


def _fit(rows: Sequence[tuple[BatchShape, float]]) -> StepTimeLaw:
    shapes = [shape for shape, _ in rows]
    token_knots = _knots([shape.num_tokens for shape in shapes], len(_KNOTS))
    job_knots = _knots([shape.num_jobs for shape in shapes], _MAX_JOB_KNOTS)
    matrix = np.column_stack(
        [
            np.ones(len(shapes)),
            _segments([shape.num_tokens for shape in shapes], token_knots),
            _segments([shape.num_jobs for shape in shapes], job_knots),
            np.array([float(shape.decode_context_tokens) for shape in shapes]),
            np.array([float(shape.prefill_context_tokens) for shape in shapes]),
            np.array([shape.prefill_pairs for shape in shapes]),
        ]
    )
    found = _robust(matrix, np.array([seconds for _, seconds in rows]))
    num_token, num_job = len(token_knots), len(job_knots)
    return StepTimeLaw(
        tokens=_curve(found[0], token_knots, found[1 : 1 + num_token]),
        jobs=_curve(0.0, job_knots, found[1 + num_token : 1 + num_token + num_job]),
        decode_context_s=float(found[-3]),
        prefill_context_s=float(found[-2]),
        prefill_pair_s=float(found[-1]),
    )


def _robust(matrix: Array, seconds: Array) -> Array:
    """Non-negative coefficients with small relative errors, refitted repeatedly with less weight on outliers."""
    expected, trust = seconds, np.ones_like(seconds)
    for _ in range(_ROUNDS):
        weight = trust / expected
        found = nnls(matrix * weight[:, None], seconds * weight)
        expected = np.maximum(matrix @ found, 0.1 * seconds)
        residual = np.abs(seconds / expected - 1)
        limit = _OUTLIER_MADS * max(float(np.median(residual)), _SMALLEST_SPREAD)
        # The squares are weighted by 1/distance, so the rows by its root.
        trust = np.sqrt(np.minimum(1.0, limit / np.maximum(residual, limit)))
    return found


def _knots(counts: Sequence[int], most: int) -> tuple[int, ...]:
    """Starts of the segments after which a curve may bend: 0 and powers of 2 with enough counts on each side."""
    distinct = sorted(set(counts))
    starts, used = [0], 0
    for knot in _KNOTS:
        below = sum(count <= knot for count in distinct)
        if below - used >= _ROWS_A_SEGMENT and len(distinct) - below >= _ROWS_A_SEGMENT:
            starts.append(knot)
            used = below
    while len(starts) > most + 1:
        del starts[1::2]
    return tuple(starts)


def _segments(counts: Sequence[int], starts: tuple[int, ...]) -> Array:
    """How much of each segment every count covers, (rows, segments); the last one is open."""
    values = np.array(counts, dtype=float)[:, None]
    low = np.array(starts, dtype=float)
    width = np.append(np.diff(low), np.inf)
    covered: Array = np.clip(values - low, 0.0, width)
    return covered


def _curve(base_s: float, starts: tuple[int, ...], slopes: Array) -> Curve:
    knots = (*starts, 2 * starts[-1] or 1)
    values = [float(base_s)]
    for left, right, slope in zip(knots, knots[1:], slopes, strict=False):
        values.append(values[-1] + float(slope) * (right - left))
    return Curve(knots=knots, seconds=tuple(values))
