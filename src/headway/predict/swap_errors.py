"""How well AdaptiveLLM's law of swaps tells what copies take of sizes that it was not fitted to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headway.errors import ConfigError
from headway.predict.mape import mape
from headway.predict.recompute_rows import BlockCopy
from headway.predict.transfer import fit_transfer

MIN_SIZES = 4
"""Different sizes of copy one way: two to fit a line, two to judge it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapErrors:
    """MAPE of the laws on sizes of copy they were not fitted to, and how many copies that were, both ways."""

    out: float
    into: float
    num_held_out: int


def swap_errors(copies: Sequence[BlockCopy]) -> SwapErrors:
    """For each model and way a law of every other size, the least and the largest among them, judged on the rest.

    Raises ConfigError if no model was copied in at least four sizes each way.
    """
    out, into = _pairs(copies, "to_host"), _pairs(copies, "to_device")
    out_error, into_error = mape(out), mape(into)
    if out_error is None or into_error is None:
        raise ConfigError(
            f"{len(copies)} copies are too few to judge; at least {MIN_SIZES} sizes each way are needed"
        )
    return SwapErrors(out=out_error, into=into_error, num_held_out=len(out) + len(into))


def _pairs(copies: Iterable[BlockCopy], direction: str) -> list[tuple[float, float]]:
    """Measured and predicted seconds of the held-out copies one way."""
    by_model: dict[str, list[tuple[int, float]]] = {}
    for copy in copies:
        if copy.direction == direction:
            by_model.setdefault(copy.model, []).append((copy.num_bytes, copy.seconds))
    pairs = []
    for sizes in map(sorted, by_model.values()):
        if len(sizes) >= MIN_SIZES:
            law = fit_transfer(sizes[::2])
            pairs += [(seconds, law.seconds(num_bytes)) for num_bytes, seconds in sizes[1::2]]
    return pairs
