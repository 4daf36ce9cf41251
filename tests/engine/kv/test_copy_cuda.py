"""Which bytes a GPU's copier moves, and in how many transfers, on CPU tensors: no stream and no GPU is involved."""

from __future__ import annotations

from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headway.engine.kv.copies import CopyOrder, CudaCopier, in_host_order, runs

pytestmark = pytest.mark.vllm

DEVICE_BLOCKS, HOST_BLOCKS, LAYERS = 12, 10, 3


def copier() -> CudaCopier:
    """One without streams, whose device is the CPU."""
    made = object.__new__(CudaCopier)
    made._layers = [torch.randn(DEVICE_BLOCKS, 2, 4) for _ in range(LAYERS)]
    made._device = torch.device("cpu")
    made._host = torch.zeros(HOST_BLOCKS, LAYERS, 2, 4)
    return made


def test_blocks_that_lie_together_are_one_transfer() -> None:
    assert list(runs([3, 4, 5, 8, 9, 11])) == [(0, 3, 3), (3, 8, 2), (5, 11, 1)]
    assert list(runs([7])) == [(0, 7, 1)]
    assert list(runs([])) == []


def test_a_pool_hands_blocks_out_from_its_end_and_they_lie_together_all_the_same() -> None:
    order = CopyOrder(number=1, device_blocks=(10, 4, 6), host_blocks=(9, 8, 7))
    sorted_order = in_host_order(order)
    assert (sorted_order.host_blocks, sorted_order.device_blocks) == ((7, 8, 9), (6, 4, 10))
    assert len(list(runs(sorted_order.host_blocks))) == 1


@given(st.integers(1, HOST_BLOCKS), st.integers(0, 99))
def test_every_block_comes_back_as_it_was(count: int, seed: int) -> None:
    drawn = Random(seed)
    device = drawn.sample(range(DEVICE_BLOCKS), count)
    host = drawn.sample(range(HOST_BLOCKS), count)
    order = in_host_order(CopyOrder(number=1, device_blocks=tuple(device), host_blocks=tuple(host)))
    made = copier()
    before = [layer.clone() for layer in made._layers]
    blocks = torch.tensor(order.device_blocks)
    made._gather(blocks, list(order.host_blocks))
    for block, to in zip(device, host, strict=True):
        assert torch.equal(made._host[to], torch.stack([layer[block] for layer in before]))
    for layer in made._layers:
        layer[blocks] = 0.0
    made._scatter(blocks, list(order.host_blocks))
    assert all(map(torch.equal, made._layers, before))
