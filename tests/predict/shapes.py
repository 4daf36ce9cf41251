"""Batch shapes for tests."""

from __future__ import annotations

from hypothesis import strategies as st

from headway.core.batch_shape import BatchShape


def batch(*jobs: tuple[int, int]) -> BatchShape:
    """A step whose jobs have these (new, cached) tokens."""
    shape = BatchShape()
    for new, cached in jobs:
        shape.add(new, cached)
    return shape


def decodes(count: int, cached: int) -> BatchShape:
    """A step of `count` decodes with as many cached tokens each."""
    return batch(*[(1, cached)] * count)


chunks = st.tuples(st.integers(2, 4096), st.integers(0, 30_000))
single = st.tuples(st.just(1), st.integers(0, 30_000))
batches = st.lists(st.one_of(chunks, single), min_size=1, max_size=12).map(lambda jobs: batch(*jobs))
