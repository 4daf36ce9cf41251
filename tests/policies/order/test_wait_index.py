"""The buckets of the index; its ranking is tested by the orders that use it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.policies.order.response_ratio import bucket_of
from tests.strategies import UNTIMED


@pytest.mark.parametrize(
    ("size", "bucket"),
    [
        (1, 1),
        (63, 63),
        (127, 127),
        (128, 128),
        (129, 128),
        (130, 130),
        (255, 254),
        (256, 256),
        (259, 256),
        (260, 260),
    ],
)
def test_sizes_share_a_queue_from_128_on(size: int, bucket: int) -> None:
    assert bucket_of(size) == bucket


@UNTIMED
@given(size=st.integers(1, 10**6))
def test_sizes_in_one_queue_differ_by_less_than_one_part_in_64(size: int) -> None:
    assert 0 <= size - bucket_of(size) < bucket_of(size) / 64
    assert bucket_of(bucket_of(size)) == bucket_of(size)
