"""AdaptiveLLM's swap analyser: seconds a job's KV takes to the host and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headway.errors import ConfigError
from headway.predict.mape import mape
from headway.predict.model_shape import ModelShape
from headway.predict.recompute_rows import BlockCopy
from headway.predict.transfer import TransferModel, fit_transfer

MIN_SIZES = 4
"""Different sizes of copy one way: two to fit a line, two to judge it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapCost:
    """Whole blocks over an affine law each way, out and in one after the other.

    Source: AdaptiveLLM Eq. 3, with the bandwidth of block copies as measured, not a link's nominal one.
    """

    block_size: int
    block_bytes: int
    to_host: TransferModel
    to_device: TransferModel

    def kv_bytes(self, num_tokens: int) -> int:
        """Bytes of the blocks that hold the KV of `num_tokens` tokens."""
        return -(-num_tokens // self.block_size) * self.block_bytes

    def out_s(self, num_tokens: int) -> float:
        """Seconds to the host."""
        return self.to_host.seconds(self.kv_bytes(num_tokens))

    def in_s(self, num_tokens: int) -> float:
        """Seconds back to the device."""
        return self.to_device.seconds(self.kv_bytes(num_tokens))

    def round_trip_s(self, num_tokens: int) -> float:
        """Seconds of a swap: out, and in again."""
        return self.out_s(num_tokens) + self.in_s(num_tokens)


def block_bytes(model: ModelShape, block_size: int) -> int:
    """Bytes of one KV block on all GPUs: keys and values of every layer and KV head.

    Source: AdaptiveLLM Eq. 3, with KV heads x head size in place of the hidden size, which grouped-query
    attention tells apart.
    """
    return model.kv_bytes_per_token * block_size


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
