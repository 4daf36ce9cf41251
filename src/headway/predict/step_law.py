"""Seconds of a step as a law with fitted numbers, cheap enough for a simulated clock."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import msgspec

from headway.core.batch_shape import BatchShape
from headway.errors import ConfigError

Cost = Annotated[float, msgspec.Meta(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A piecewise-linear function of a count, beyond its last knot as steep as before it.

    `knots` ascend from 0; `seconds` are the values there, of which none is less than the one before.
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

    The curves hold what matrix products, the LM head and the sampler take: flat while a product is bound
    by reading its weights, then linear. `tokens` includes what every step costs. Context tokens are those
    whose KV attention reads; pairs are the (query, key) pairs it computes. No coefficient is negative, so
    a step with more of anything takes no less time.
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
