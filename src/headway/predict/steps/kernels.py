"""Kernel times measured on a GPU, as corrections to ideal times."""

from __future__ import annotations

from bisect import bisect_right
from math import log2
from typing import NamedTuple

import msgspec

from headway.predict.steps.attention_kernels import AttentionKernels


class Surface(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A positive factor that depends on one to three positive quantities.

    Knots and values are base-2 logarithms, with values in row-major order of the axes. The logarithm is interpolated
    linearly between knots, and constant beyond them.
    """

    axes: tuple[tuple[float, ...], ...]
    values: tuple[float, ...]

    def at(self, *point: float) -> float:
        """The factor at `point`, one quantity an axis. About 1 us for two axes, 5 us for three."""
        if len(self.axes) == 2:
            return self._on_plane(*point)
        corners = [(0, 1.0)]
        for knots, quantity in zip(self.axes, point, strict=True):
            left, share = _place(knots, log2(quantity))
            size = len(knots)
            if share:
                corners = [
                    (index * size + left + step, weight * part)
                    for index, weight in corners
                    for step, part in ((0, 1.0 - share), (1, share))
                ]
            else:
                corners = [(index * size + left, weight) for index, weight in corners]
        values = self.values
        return float(2.0 ** sum(values[index] * weight for index, weight in corners))

    def _on_plane(self, first: float, second: float) -> float:
        """The value over two axes, as the simulator's clock asks for it."""
        rows, columns = self.axes
        row, down = _place(rows, log2(first))
        column, right = _place(columns, log2(second))
        values, start = self.values, row * len(columns) + column
        low = values[start] + right * (values[start + 1] - values[start]) if right else values[start]
        if not down:
            return float(2.0**low)
        start += len(columns)
        high = values[start] + right * (values[start + 1] - values[start]) if right else values[start]
        return float(2.0 ** (low + down * (high - low)))


def _place(knots: tuple[float, ...], where: float) -> tuple[int, float]:
    """The knot at or left of `where`, and the share of the next one; 0 beyond the ends."""
    if where <= knots[0]:
        return 0, 0.0
    if where >= knots[-1]:
        return len(knots) - 1, 0.0
    left = bisect_right(knots, where) - 1
    return left, (where - knots[left]) / (knots[left + 1] - knots[left])


GEMM_START_S = 2e-6
"""Least time of a matrix product: its launch inside a CUDA graph."""
ATTENTION_START_S = 5e-6
_EXPERT_OVERLAP = 1.5
"""How far reading experts hides behind computing them: 1 not at all, infinity entirely."""


class Peaks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Peaks of one GPU from its data sheet, 16-bit and dense."""

    flops_per_s: float
    bytes_per_s: float


class Heads(msgspec.Struct, frozen=True, kw_only=True):
    """One layer's attention heads on one GPU; fractions represent shapes that do not divide evenly."""

    query: float
    kv: float
    dim: int
    kv_bytes: int = 2


class Chunks(NamedTuple):
    """One step's prefill: sequences, their new tokens, (query, key) pairs, and the tokens whose KV is read."""

    jobs: int
    tokens: int
    pairs: float
    context: int


class Kernels(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Time over ideal time, as fitted surfaces, so that a similar GPU can use them too.

    Ideal is the larger of memory traffic and arithmetic at the peaks (their sum for attention) plus a start. `gemm` is
    over (rows, columns, depth), `decode` over (sequences, KV heads, context), `prefill` over (sequences x query heads,
    prompt); the `_group` ones correct for query heads a KV head, over (group, sequences, context) and (group, prompt).

    `decode_lone`, over (sequences x KV heads, context), replaces both `decode` ones if every query head has its own KV
    head: FlashAttention 2 splits a decode's keys over processors only if heads share them. None if such decodes are
    split like all others.

    `tile_key_s` is the time of one tile of queries for a key: tiles read their keys in sequence, so a chunk with a long
    past takes that long however many processors are idle. `mixed_key_s` is the time of one decode's query head and key
    if decodes share the prefill's kernel, without the split over keys and the sharing of KV heads that they have alone,
    corrected by `mixed` over (sequences, context); 0 if they have a kernel of their own in every step.
    """

    measured_on: str
    gemm: Surface
    decode: Surface
    decode_group: Surface
    decode_lone: Surface | None = None
    prefill: Surface
    prefill_group: Surface
    tile_key_s: float
    mixed_key_s: float
    mixed: Surface
    elementwise_start_s: float
    elementwise_efficiency: float
    expert_memory_efficiency: float
    expert_compute_efficiency: float

    def launched(self, layout: AttentionKernels) -> Kernels:
        """These kernels as an engine version launches them."""
        return self if layout.shared else msgspec.structs.replace(self, mixed_key_s=0.0)

    def gemm_s(
        self,
        peaks: Peaks,
        rows: float,
        columns: float,
        depth: float,
        wide: int = 2,
        weight: float | None = None,
    ) -> float:
        """Seconds of [rows, depth] x [depth, columns] with values of `wide` bytes, and weights of `weight` bytes if
        given.
        """
        return gemm_ideal_s(peaks, rows, columns, depth, wide, weight) * self.gemm.at(rows, columns, depth)

    def decode_s(self, peaks: Peaks, heads: Heads, sequences: float, context: float) -> float:
        """Seconds of one layer's attention for one new token of each sequence, `context` tokens long.

        A kernel's work is split over sequences x KV heads. KV heads beyond the measured maximum therefore count as more
        sequences: 8 sequences of 40 heads are as efficient as 40 of 8.
        """
        ideal = decode_ideal_s(peaks, heads, sequences, context)
        if self.decode_lone is not None and heads.query == heads.kv:
            return ideal * self.decode_lone.at(sequences * heads.kv, context)
        measured = 2.0 ** self.decode.axes[1][-1]
        if heads.kv > measured:
            sequences *= heads.kv / measured
        group = self.decode_group.at(heads.query / heads.kv, sequences, context)
        return ideal * group * self.decode.at(sequences, heads.kv, context)

    def prefill_work(self, heads: Heads) -> Surface:
        """`prefill` and `prefill_group` combined for these heads."""
        sequences, prompts = self.prefill.axes
        prompts = tuple(sorted({*prompts, *self.prefill_group.axes[1]}))
        group = heads.query / heads.kv
        values = tuple(
            log2(self.prefill.at(2.0**row, 2.0**prompt) * self.prefill_group.at(group, 2.0**prompt))
            for row in sequences
            for prompt in prompts
        )
        return Surface(axes=(sequences, prompts), values=values)

    def prefill_s(self, peaks: Peaks, heads: Heads, work: Surface, chunks: Chunks) -> float:
        """Seconds of one layer's causal attention; `work` is `prefill_work` of the heads.

        Chunks are treated as prompts with as many tokens and as many pairs a token. Beyond the longest measured prompt
        they are treated as that one with as many tokens: the number of query tiles stays, each reads more keys.
        """
        tokens, pairs = chunks.tokens, chunks.pairs
        ideal = prefill_ideal_s(peaks, heads, tokens, pairs, chunks.context)
        prompt = min(max(1.0, 2 * pairs / tokens - 1), 2.0 ** work.axes[1][-1])
        longest = ATTENTION_START_S + self.tile_key_s * chunks.context / chunks.jobs
        return max(ideal * work.at(heads.query * tokens / prompt, prompt), longest)

    def mixed_decode_s(self, heads: Heads, sequences: float, context: float) -> float:
        """Seconds that one layer's decodes add to the prefill whose kernel they share."""
        keys = sequences * heads.query * context
        return max(self.mixed_key_s * keys * self.mixed.at(sequences, context), self.tile_key_s * context)

    def elementwise_s(self, peaks: Peaks, launches: float, num_bytes: float) -> float:
        """Seconds of norms, rotations, activations and the like: bound by memory."""
        return launches * self.elementwise_start_s + num_bytes / (
            self.elementwise_efficiency * peaks.bytes_per_s
        )

    def experts_s(self, peaks: Peaks, flops: float, num_bytes: float) -> float:
        """Seconds of one layer's chosen experts, as grouped products."""
        reading = num_bytes / (self.expert_memory_efficiency * peaks.bytes_per_s)
        computing = flops / (self.expert_compute_efficiency * peaks.flops_per_s)
        power = _EXPERT_OVERLAP
        return float((reading**power + computing**power) ** (1 / power))


class AllReduce(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds of a sum over several GPUs by message bytes: base-2 logarithms at knots, a curve for each group size."""

    measured_on: str
    log2_bytes: tuple[float, ...]
    log2_seconds: dict[int, tuple[float, ...]]

    def seconds(self, num_gpus: int, num_bytes: float, link_ratio: float = 1.0) -> float:
        """Seconds over `num_gpus`; the excess over the shortest message's time grows by `link_ratio`.

        More GPUs than measured take as long as the largest measured number.
        """
        if num_gpus == 1:
            return 0.0
        known = min((size for size in self.log2_seconds if size >= num_gpus), default=max(self.log2_seconds))
        curve = Surface(axes=(self.log2_bytes,), values=self.log2_seconds[known])
        start = float(2.0 ** self.log2_seconds[known][0])
        longest = float(2.0 ** self.log2_bytes[-1])
        beyond = max(1.0, num_bytes / longest)  # beyond the last knot the bandwidth is constant
        return start + (curve.at(num_bytes) * beyond - start) * link_ratio


def gemm_ideal_s(
    peaks: Peaks, rows: float, columns: float, depth: float, wide: int = 2, weight: float | None = None
) -> float:
    """Seconds of a matrix product at the peaks; quantised weights are read as such and multiplied in 16 bits."""
    share = 1.0 if weight is None else weight / wide
    traffic = wide * (rows * depth + share * depth * columns + rows * columns) / peaks.bytes_per_s
    return GEMM_START_S + max(traffic, 2 * rows * columns * depth / peaks.flops_per_s)


def decode_ideal_s(peaks: Peaks, heads: Heads, sequences: float, context: float) -> float:
    """Seconds of one layer's decode attention if reading the cache were all."""
    values = 2 * heads.dim * heads.kv_bytes * sequences * (heads.kv * context + heads.query)
    return ATTENTION_START_S + values / peaks.bytes_per_s


def prefill_ideal_s(peaks: Peaks, heads: Heads, tokens: float, pairs: float, context: float) -> float:
    """Seconds of one layer's prefill attention if arithmetic and traffic were sequential at the peaks."""
    arithmetic = 4 * heads.dim * heads.query * pairs / peaks.flops_per_s
    traffic = 2 * heads.dim * heads.kv_bytes * (heads.query * tokens + heads.kv * context)
    return ATTENTION_START_S + arithmetic + traffic / peaks.bytes_per_s
