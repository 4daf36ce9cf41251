"""Completion times of the same requests under two systems."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from bench.serving_engine import Served
from headway.predict.residuals import quantile

QUARTERS = 4


def p99(values: Sequence[float]) -> float:
    """The 99th percentile."""
    return quantile(sorted(values), 0.99)


def latencies(jcts_s: Sequence[float]) -> dict[str, float]:
    """Mean and tail of completion times."""
    return {"mean_jct_s": fmean(jcts_s), "p99_jct_s": p99(jcts_s)}


def who_pays(stock: Sequence[Served], own: Sequence[Served]) -> dict[str, Any]:
    """The gain in mean JCT by quarter of the answers' lengths, and how many took longer, by how much at worst."""
    pairs = sorted(zip(stock, own, strict=True), key=lambda pair: pair[0].output_tokens)
    quarter = -(-len(pairs) // QUARTERS)
    parts = [pairs[start : start + quarter] for start in range(0, len(pairs), quarter)]
    return {
        "mean_gain_by_quarter": [
            fmean(theirs.jct_s for theirs, _ in part) / fmean(ours.jct_s for _, ours in part)
            for part in parts
        ],
        "share_slower": fmean(ours.jct_s > theirs.jct_s for theirs, ours in pairs),
        "worst_slowdown": max(ours.jct_s / theirs.jct_s for theirs, ours in pairs),
    }
