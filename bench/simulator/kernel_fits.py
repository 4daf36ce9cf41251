"""Fits the surfaces of one device's kernels to the rows that are not kept for judging."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from bench.simulator.gpu_tables import Row, Split, Tables, judges, layer_runs
from headway.predict.steps.kernels import (
    ATTENTION_START_S,
    Heads,
    Peaks,
    Surface,
    decode_ideal_s,
    gemm_ideal_s,
    prefill_ideal_s,
)
from headway.statistics import median

# ---- fits of `Surface`s: least squares on logarithms, outliers held back -----------------------------

Array: TypeAlias = npt.NDArray[np.float64]
Axes: TypeAlias = tuple[tuple[float, ...], ...]

_ROUNDS = 5
_OUTLIER = 0.07
"""Distance in log2 (5 %) beyond which a row weighs as 1/distance."""
_ROUGHNESS = 0.3
"""Weight of a bend between neighbouring knots, in rows: matters only where rows are few."""
_RIDGE = 1e-6
_DECIMALS = 3


def design(axes: Axes, points: Array) -> Array:
    """The weight of each knot in each row: (rows, knots), multilinear in the logarithms."""
    matrix = np.ones((len(points), 1))
    for knots, column in zip(axes, np.log2(points).T, strict=True):
        hats = _hats(np.array(knots), column)
        matrix = (matrix[:, :, None] * hats[:, None, :]).reshape(len(points), -1)
    return matrix


def fit_surfaces(parts: Sequence[tuple[Axes, Array]], log2_ratio: Array) -> list[Surface]:
    """Surfaces whose product is nearest to the ratios; `parts` are axes with the rows' points on them."""
    matrix = np.hstack([design(axes, points) for axes, points in parts])
    smooth = _block_diagonal([_bends(axes) for axes, _ in parts])
    held = smooth.T @ smooth + _RIDGE * np.eye(matrix.shape[1])
    trust = np.ones(len(log2_ratio))
    found = np.zeros(matrix.shape[1])
    for _ in range(_ROUNDS):
        weighted = matrix * trust[:, None] ** 2
        solved = np.linalg.solve(matrix.T @ weighted + held, weighted.T @ log2_ratio)
        found = np.asarray(solved, dtype=np.float64)
        distance = np.abs(log2_ratio - matrix @ found)
        trust = np.sqrt(np.minimum(1.0, _OUTLIER / np.maximum(distance, _OUTLIER)))
    return _surfaces([axes for axes, _ in parts], found)


def _surfaces(all_axes: Sequence[Axes], found: Array) -> list[Surface]:
    surfaces, start = [], 0
    for axes in all_axes:
        size = int(np.prod([len(knots) for knots in axes]))
        values = tuple(round(float(value), _DECIMALS) + 0.0 for value in found[start : start + size])
        surfaces.append(Surface(axes=axes, values=values))
        start += size
    return surfaces


def _hats(knots: Array, where: Array) -> Array:
    if len(knots) == 1:
        return np.ones((len(where), 1))
    inside = np.clip(where, knots[0], knots[-1])
    left = np.clip(np.searchsorted(knots, inside, side="right") - 1, 0, len(knots) - 2)
    share = (inside - knots[left]) / (knots[left + 1] - knots[left])
    hats = np.zeros((len(where), len(knots)))
    rows = np.arange(len(where))
    hats[rows, left] = 1 - share
    hats[rows, left + 1] = share
    return hats


def _bends(axes: Axes) -> Array:
    """Second differences along every axis, (bends, knots)."""
    shape = [len(knots) for knots in axes]
    blocks = []
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        # Two knots have no bend; their difference is held instead.
        line = np.diff(np.eye(size), n=min(2, size - 1), axis=0)
        block = np.ones((1, 1))
        for other, length in enumerate(shape):
            factor = line if other == axis else np.eye(length)
            block = np.asarray(np.kron(block, factor), dtype=np.float64)
        blocks.append(_ROUGHNESS * block)
    return np.vstack(blocks) if blocks else np.zeros((0, int(np.prod(shape))))


def _block_diagonal(blocks: Sequence[Array]) -> Array:
    width = sum(block.shape[1] for block in blocks)
    rows, start = [], 0
    for block in blocks:
        row = np.zeros((len(block), width))
        row[:, start : start + block.shape[1]] = block
        rows.append(row)
        start += block.shape[1]
    return np.vstack(rows)


ROWS = (0.0, 3.0, 4.0, 5.0, 5.6, 6.0, 6.6, 7.0, 7.6, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 15.0)
GEMM_AXES: Axes = (ROWS, (8.0, 10.0, 11.0, 12.0, 13.0, 14.0, 16.0), (8.0, 10.0, 12.0, 13.0, 14.0, 16.0))
CONTEXTS = (1.0, 4.0, 6.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 17.0)
DECODE_AXES: Axes = ((0.0, 2.0, 4.0, 6.0, 9.0), (0.0, 1.0, 2.0, 3.0), CONTEXTS)
DECODE_GROUP_AXES: Axes = (
    (0.0, 1.0, 2.0, 3.0, 4.0, 6.0),
    (0.0, 3.0, 5.0, 7.0, 9.0),
    (1.0, 7.0, 9.0, 11.0, 13.0, 15.0, 17.0),
)
DECODE_LONE_AXES: Axes = ((0.0, 2.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 12.0), CONTEXTS)
PREFILL_AXES: Axes = (
    (0.0, 2.0, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0, 14.0),
    (4.0, 6.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0),
)
PREFILL_GROUP_AXES: Axes = ((0.0, 1.0, 2.0, 3.0, 4.0, 6.0), (4.0, 7.0, 10.0, 14.0))
FEW_GEMM_AXES: Axes = (ROWS[:-3], (11.0, 13.0, 15.0, 17.0), (11.0, 13.0, 15.0))
FEW_DECODE_AXES: Axes = ((0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0), (2.0, 3.0), CONTEXTS)
FEW_PREFILL_AXES: Axes = (
    (-3.0, -1.0, 1.0, 3.0, 5.0),
    (4.0, 6.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0),
)
MIXED_AXES: Axes = ((0.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0), (4.0, 7.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0))
FLAT = Surface(axes=((0.0,), (0.0,)), values=(0.0,))
FLAT_3D = Surface(axes=((0.0,), (0.0,), (0.0,)), values=(0.0,))

BOUND_BY_WORK = 1.3
SHORT_CHUNK = 64
LONG_PAST = 2048
HEAD_DIM = 128
LONE_HEADS, LONG_PROMPTS = 2, (2048.0, 8192.0)
"""Prompts of one or two heads leave most processors idle, so they take as long as their longest tile."""
MIXED_KEY_S = 1e-10
"""Unit of the mixed surfaces."""


@dataclass(frozen=True, slots=True)
class KernelError:
    """Errors of a fitted surface on unseen rows."""

    num_fitted: int
    num_rows: int
    median: float
    p90: float


@dataclass(frozen=True, slots=True)
class Ideal:
    """Seconds of a row's kernel at the device's peak rates."""

    peaks: Peaks

    def gemm(self, row: Row) -> float:
        """Matrix product of (rows, columns, depth)."""
        return gemm_ideal_s(self.peaks, row[0], row[1], row[2])

    def decode(self, row: Row) -> float:
        """Decode attention of (sequences, context, query heads, KV heads)."""
        return decode_ideal_s(self.peaks, _heads(row), row[0], row[1])

    def prompts(self, row: Row) -> float:
        """Prefill attention of (sequences, prompt, query heads, KV heads)."""
        tokens = row[0] * row[1]
        return prefill_ideal_s(self.peaks, _heads(row), tokens, tokens * (row[1] + 1) / 2, tokens)

    def chunk(self, row: Row) -> float:
        """Chunk attention of (chunk, cached tokens, query heads, KV heads)."""
        chunk, cached = row[0], row[1]
        pairs = chunk * (cached + (chunk + 1) / 2)
        return prefill_ideal_s(self.peaks, _heads(row), chunk, pairs, cached + chunk)


def _heads(row: Row) -> Heads:
    return Heads(query=row[2], kv=row[3], dim=HEAD_DIM)


def fit_kernels(
    name: str, peaks: Peaks, tables: Tables, *, lone_apart: bool
) -> tuple[dict[str, Surface], dict[str, KernelError]]:
    """The surfaces of one measured device, and their errors on unseen rows.

    `lone_apart`: decodes of query heads with a KV head each are fitted by themselves.
    """
    ideal, decodes = Ideal(peaks), tables.decode(name)
    surfaces, errors = dict[str, Surface](), dict[str, KernelError]()
    if lone_apart:
        lone, decodes = _parted(decodes, _is_lone)
        (surfaces["decode_lone"],), errors["decode lone"] = _fit(
            lone,
            ideal.decode,
            lambda rows: [(DECODE_LONE_AXES, np.column_stack([rows[:, 0] * rows[:, 3], rows[:, 1]]))],
        )

    gemm, gemm_error = _fit(tables.gemm(name), ideal.gemm, lambda rows: [(GEMM_AXES, rows[:, :3])])
    decode, decode_error = _fit(
        decodes,
        ideal.decode,
        lambda rows: [(DECODE_AXES, rows[:, [0, 3, 1]]), (DECODE_GROUP_AXES, _decode_group(rows))],
    )
    prefill, prefill_error = _fit(
        tables.prefill(name),
        ideal.prompts,
        lambda rows: [
            (PREFILL_AXES, np.column_stack([rows[:, 0] * rows[:, 2], rows[:, 1]])),
            (PREFILL_GROUP_AXES, _group(rows)),
        ],
    )
    surfaces |= {
        "gemm": gemm[0],
        "decode": decode[0],
        "decode_group": decode[1],
        "prefill": prefill[0],
        "prefill_group": prefill[1],
    }
    return surfaces, errors | {"gemm": gemm_error, "decode": decode_error, "prefill": prefill_error}


def _is_lone(row: Row) -> bool:
    return row[2] == row[3]


def _parted(split: Split, wanted: Callable[[Row], bool]) -> tuple[Split, Split]:
    """The rows that are wanted, and the others."""
    parts = [
        Split(*([row for row in rows if wanted(row) is kept] for rows in (split.fitted, split.judging)))
        for kept in (True, False)
    ]
    return parts[0], parts[1]


def _decode_group(rows: Array) -> Array:
    """Axes of decodes: query heads per KV head, sequences and context."""
    return np.column_stack([rows[:, 2] / rows[:, 3], rows[:, 0], rows[:, 1]])


def _group(rows: Array) -> Array:
    """Axes: query heads per KV head, and the length."""
    return np.column_stack([rows[:, 2] / rows[:, 3], rows[:, 1]])


def _fit(
    split: Split,
    ideal_s: Callable[[Row], float],
    parts: Callable[[Array], Sequence[tuple[Axes, Array]]],
) -> tuple[list[Surface], KernelError]:
    fitted, judging = np.array(split.fitted), np.array(split.judging)
    ideal = np.array([ideal_s(row) for row in split.fitted])
    surfaces = fit_surfaces(parts(fitted), np.log2(fitted[:, -1] / ideal))
    expected = np.array([ideal_s(row) for row in split.judging])
    for (axes, points), surface in zip(parts(judging), surfaces, strict=True):
        expected = expected * 2.0 ** (design(axes, points) @ np.array(surface.values))
    errors = np.abs(judging[:, -1] / expected - 1)
    return surfaces, KernelError(
        len(fitted), len(errors), float(np.median(errors)), float(np.quantile(errors, 0.9))
    )


def fit_single_layers(
    name: str, peaks: Peaks, tables: Tables
) -> tuple[dict[str, Surface], dict[str, KernelError]]:
    """The surfaces of a device of which only single layers of few models were measured; coarser for lack of data."""
    product, decode, prefill = Split([], []), Split([], []), Split([], [])
    for run, model, tp in layer_runs(name):
        single = tables.single_products(run, model, tp)
        product.fitted.extend(single.fitted)
        product.judging.extend(single.judging)
        query, kv = float(model.num_heads // tp), float(model.num_kv_heads // tp)
        for chunk, cached, decodes, context, seconds in tables.mixed_attention(run):
            if chunk and decodes:
                continue
            into = decode if decodes else prefill
            length = context if decodes else cached
            row = (float(decodes or chunk), float(length), query, kv, seconds)
            (into.judging if judges("tokens", chunk + decodes) else into.fitted).append(row)

    tile_key_s = fit_tile_key_s(name, tables)
    # Where a chunk waits for its longest tile, the surface has nothing to say.
    for rows in (prefill.fitted, prefill.judging):
        rows[:] = [
            row
            for row in rows
            if row[-1] > BOUND_BY_WORK * (ATTENTION_START_S + tile_key_s * (row[0] + row[1]))
        ]
    ideal = Ideal(peaks)
    gemm, gemm_error = _fit(product, ideal.gemm, lambda rows: [(FEW_GEMM_AXES, rows[:, :3])])
    decoded, decode_error = _fit(decode, ideal.decode, lambda rows: [(FEW_DECODE_AXES, rows[:, [0, 3, 1]])])
    prefilled, prefill_error = _fit(
        prefill, ideal.chunk, lambda rows: [(FEW_PREFILL_AXES, _as_prompts(rows))]
    )
    surfaces = {
        "gemm": gemm[0],
        "decode": decoded[0],
        "decode_group": FLAT_3D,
        "prefill": prefilled[0],
        "prefill_group": FLAT,
    }
    return surfaces, {"gemm": gemm_error, "decode": decode_error, "prefill": prefill_error}


def fit_tile_key_s(name: str, tables: Tables) -> float:
    """Seconds that one tile of queries takes per key, for short chunks with a long past."""
    run = layer_runs(name)[0][0]
    return median(
        (seconds - ATTENTION_START_S) / (chunk + cached)
        for chunk, cached, decodes, _, seconds in tables.mixed_attention(run)
        if not decodes and chunk <= SHORT_CHUNK and cached >= LONG_PAST and not judges("tokens", chunk)
    )


def fit_mixed(name: str, tables: Tables) -> Surface:
    """Seconds per query head and key of a decode beside a prompt, over (sequences, context): beside short chunks."""
    rows = []
    for run, model, tp in layer_runs(name):
        alone: dict[int, float] = {}
        both: list[tuple[int, int, int, float]] = []
        for chunk, cached, decodes, context, seconds in tables.mixed_attention(run):
            if cached or not 0 < chunk <= SHORT_CHUNK:
                continue
            if decodes and not judges("tokens", chunk + decodes):
                both.append((chunk, decodes, context, seconds))
            elif not decodes:
                alone[chunk] = seconds
        for chunk, decodes, context, seconds in both:
            rest = seconds - alone.get(chunk, ATTENTION_START_S)
            if rest > ATTENTION_START_S:
                keys = decodes * model.num_heads / tp * context
                rows.append((float(decodes), float(context), rest / keys))
    found = np.array(rows)
    return fit_surfaces([(MIXED_AXES, found[:, :2])], np.log2(found[:, 2] / MIXED_KEY_S))[0]


def _as_prompts(rows: Array) -> Array:
    """Chunks as the prompts with as many tokens and as many pairs a token, as `Kernels.prefill_s` takes them."""
    prompt = 2 * rows[:, 1] + rows[:, 0]
    return np.column_stack([rows[:, 2] * rows[:, 0] / prompt, prompt])


def longest_tile_key_s(name: str, tables: Tables) -> float:
    """Seconds that one tile of queries takes per key, for lone long prompts with hardly any heads."""
    return min(
        (seconds - ATTENTION_START_S) / length
        for batch, length, query, _, seconds in tables.prefill(name).fitted
        if batch == 1 and query <= LONE_HEADS and LONG_PROMPTS[0] <= length <= LONG_PROMPTS[1]
    )
