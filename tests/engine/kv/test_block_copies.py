from __future__ import annotations

import pytest
import torch

from headway.engine.kv.block_copies import CopyDirection, copies_on_worker, measure_copies
from headway.errors import ConfigError
from tests.engine.stepped import FakeEngine, FakeWorker


def test_copies_leave_every_block_as_it_was() -> None:
    worker = FakeWorker(100)
    before = [cache.clone() for cache in worker.kv_caches]
    copies_on_worker(worker, 100)
    assert all(torch.equal(now, then) for now, then in zip(worker.kv_caches, before, strict=True))


def test_sizes_double_up_to_the_pool_and_count_all_layers() -> None:
    found = copies_on_worker(FakeWorker(100), 100)
    # Two layers of 8 floats of 4 bytes a block.
    sizes = [count * 2 * 8 * 4 for count in (1, 2, 4, 8, 16, 32, 64)]
    for direction in CopyDirection:
        assert [num_bytes for way, _, num_bytes, _ in found if way == direction] == sizes
    assert all(seconds > 0 for *_, seconds in found)


def test_workers_add_up_in_bytes_and_the_slowest_counts() -> None:
    answers = [[("to_host", 1, 100, 0.5)], [("to_host", 1, 120, 0.25)]]
    (copy,) = measure_copies(lambda function, *args: answers, 10)
    assert copy.direction is CopyDirection.TO_HOST
    assert (copy.num_bytes, copy.seconds) == (220, 0.5)


def test_an_engine_without_blocks_is_an_error() -> None:
    with pytest.raises(ConfigError, match="keeps no KV cache in blocks"):
        measure_copies(lambda function, *args: [[]], 10)


def test_a_cache_that_is_no_tensor_is_left_out() -> None:
    engine = FakeEngine()
    worker = FakeWorker(engine.sizes.num_blocks)
    worker.kv_caches = [[torch.zeros(1)]]
    assert copies_on_worker(worker, engine.sizes.num_blocks) == []
