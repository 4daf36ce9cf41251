"""Seconds of a copy between device and host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
import numpy as np

from headway.errors import ConfigError
from headway.predict.nnls import nnls


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferModel:
    """An affine law for one direction: a fixed start, then bytes at a steady bandwidth."""

    start_s: Annotated[float, msgspec.Meta(ge=0)]
    bytes_per_s: Annotated[float, msgspec.Meta(gt=0)]

    def seconds(self, num_bytes: int) -> float:
        """Seconds a copy of `num_bytes` takes; 0 for nothing."""
        return self.start_s + num_bytes / self.bytes_per_s if num_bytes else 0.0


def fit_transfer(rows: Sequence[tuple[int, float]]) -> TransferModel:
    """The law of measured copies, pairs of bytes and seconds, with the relative errors made small.

    Raises ConfigError for fewer than two different sizes, or where larger copies do not take longer.
    """
    if len({num_bytes for num_bytes, _ in rows}) < 2 or any(not seconds > 0 for _, seconds in rows):
        raise ConfigError(
            f"{len(rows)} copies cannot be fitted; at least two sizes that took time are needed"
        )
    seconds = np.array([taken_s for _, taken_s in rows])
    sizes = np.array([float(num_bytes) for num_bytes, _ in rows])
    weighted = np.column_stack([np.ones_like(sizes), sizes]) / seconds[:, None]
    start_s, s_per_byte = nnls(weighted, np.ones_like(seconds))
    if not s_per_byte > 0:
        raise ConfigError("larger copies did not take longer; measure again on a quieter machine")
    return TransferModel(start_s=float(start_s), bytes_per_s=1 / float(s_per_byte))
