from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import ConfigError
from headway.predict.known_models import model_shape
from headway.predict.recompute_rows import BlockCopy
from headway.predict.swap_cost import SwapCost, block_bytes, swap_errors
from headway.predict.transfer import TransferModel

LLAMA_13B = model_shape("Llama-2-13b")
OPT_13B = model_shape("opt-13b")
PCIE = TransferModel(start_s=0.0, bytes_per_s=12e9)
MIB = 2**20


def cost(block_size: int = 16, out: TransferModel = PCIE, into: TransferModel = PCIE) -> SwapCost:
    return SwapCost(
        block_size=block_size, block_bytes=block_bytes(LLAMA_13B, block_size), to_host=out, to_device=into
    )


def test_twenty_tokens_of_llama_13b_are_two_blocks_and_4_ms_there_and_back() -> None:
    # 2 x 40 layers x 5120 x 2 bytes = 800 KiB a token; 2 blocks of 16 = 25 MiB; 2 x 26.2 MB / 12 GB/s = 4.37 ms.
    assert block_bytes(LLAMA_13B, 16) == 16 * 800 * 1024
    assert cost().kv_bytes(20) == 25 * MIB
    assert cost().round_trip_s(20) == pytest.approx(4.37e-3, rel=1e-3)


def test_340_tokens_are_22_blocks_and_48_ms() -> None:
    assert cost().kv_bytes(340) == 22 * block_bytes(LLAMA_13B, 16)
    assert cost().round_trip_s(340) == pytest.approx(48e-3, rel=1e-2)


def test_a_hundred_tokens_of_opt_13b_are_78_mib_by_the_formula() -> None:
    # The published example says 39.1 MB, half of what Eq. 3 gives; the blocks round 100 tokens up to 112.
    alone = SwapCost(block_size=1, block_bytes=block_bytes(OPT_13B, 1), to_host=PCIE, to_device=PCIE)
    assert alone.kv_bytes(100) / MIB == pytest.approx(78.1, abs=0.05)
    in_blocks = SwapCost(block_size=16, block_bytes=block_bytes(OPT_13B, 16), to_host=PCIE, to_device=PCIE)
    assert in_blocks.kv_bytes(100) / MIB == 87.5


def test_grouped_query_attention_keeps_less() -> None:
    # Llama-3.1-8B: 32 layers, 8 KV heads of 128 in place of a hidden size of 4096.
    assert block_bytes(model_shape("Llama-3.1-8B"), 16) == 2 * 32 * (8 * 128) * 16 * 2


def test_each_way_has_its_own_law() -> None:
    slow_out = cost(out=TransferModel(start_s=0.5, bytes_per_s=6e9))
    assert slow_out.out_s(16) == pytest.approx(0.5 + slow_out.kv_bytes(16) / 6e9)
    assert slow_out.in_s(16) == cost().in_s(16)


@given(tokens=st.integers(0, 100_000), block_size=st.sampled_from([1, 16, 128]))
def test_whole_blocks_are_copied_and_more_tokens_take_no_less(tokens: int, block_size: int) -> None:
    swap = cost(block_size)
    per_token = LLAMA_13B.kv_bytes_per_token
    assert tokens * per_token <= swap.kv_bytes(tokens) < (tokens + block_size) * per_token
    assert swap.kv_bytes(tokens) % swap.block_bytes == 0
    assert swap.round_trip_s(tokens) <= swap.round_trip_s(tokens + 1)


# ---- errors on sizes that were held out ---------------------------------------------------------------

SIZES = tuple(2**power for power in range(16, 25))


def copies(
    model: str, direction: Literal["to_host", "to_device"], law: TransferModel, off: float = 0.0
) -> list[BlockCopy]:
    """Copies that follow a law, every second of them `off` by a share of its time."""
    return [
        BlockCopy(
            model=model,
            direction=direction,
            num_bytes=size,
            seconds=law.seconds(size) * (1 + off * (index % 2)),
        )
        for index, size in enumerate(SIZES)
    ]


def test_the_error_is_that_of_the_sizes_nothing_was_fitted_to() -> None:
    slow = TransferModel(start_s=1e-4, bytes_per_s=1e9)
    measured = [
        *copies("a", "to_host", PCIE, off=0.25),
        *copies("b", "to_host", slow),
        *copies("a", "to_device", PCIE),
        *copies("b", "to_device", slow, off=0.25),
    ]
    found = swap_errors(measured[::-1])
    # Predicted / measured - 1 = 1 / 1.25 - 1 = -0.2 for one of two models each way.
    assert found.out == pytest.approx(0.1)
    assert found.into == pytest.approx(0.1)
    assert found.num_held_out == 4 * 4


@pytest.mark.parametrize("ways", [("to_host",), ("to_device",), ()])
def test_both_ways_are_needed(ways: tuple[Literal["to_host", "to_device"], ...]) -> None:
    measured = [copy for way in ways for copy in copies("a", way, PCIE)]
    with pytest.raises(ConfigError, match="too few to judge; at least 4 sizes each way"):
        swap_errors(measured)


def test_three_sizes_are_too_few() -> None:
    few = copies("a", "to_host", PCIE)[:3] + copies("a", "to_device", PCIE)[:3]
    with pytest.raises(ConfigError, match="6 copies are too few"):
        swap_errors(few)
