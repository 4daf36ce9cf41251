from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headway.lab.engine_sizes import EngineSizes, engine_limits
from headway.predict.models.attention import AttentionLayers
from headway.predict.models.kv_groups import KvGroup, kv_layout_of
from headway.predict.models.model_shape import ModelShape, model_shape_of
from headway.predict.steps.hardware import hardware
from tests.predict.configs import DEEPSEEK_V2_LITE, GPT_OSS, LLAMA, LLAMA4, MIMO


def shape(*kinds: tuple[int, int, int], chunked: bool = False) -> ModelShape:
    """A model of layers that are (so many, KV heads, window)."""
    layers = tuple(
        AttentionLayers(
            num_layers=number,
            num_heads=16,
            num_kv_heads=heads,
            head_dim=64,
            value_dim=64,
            window=window,
            chunked=chunked and window > 0,
        )
        for number, heads, window in kinds
    )
    total = sum(number for number, _, _ in kinds)
    return replace(model_shape_of(LLAMA), num_layers=total, uneven=layers)


def full(count: int = 1, size: int = 16) -> KvGroup:
    return KvGroup(count=count, block_size=size)


def sliding(window: int, count: int = 1, size: int = 16) -> KvGroup:
    return KvGroup(count=count, block_size=size, window=window)


LAYER = 16 * 8 * 128 * 2
"""Bytes of a block of 16 tokens of one layer of 8 KV heads."""


@pytest.mark.parametrize(("model", "groups", "block_bytes"), [
    (shape((32, 8, 0)), [full()], 32 * LAYER),
    (shape((32, 8, 64)), [sliding(64)], 32 * LAYER),
    # As many layers a group as the rarer kind has; what is left over stands in a group that is not full.
    (shape((5, 8, 0), (29, 8, 64)), [full(), sliding(64, 6)], 5 * LAYER),
    (shape((28, 8, 0), (4, 8, 64)), [full(7), sliding(64)], 4 * LAYER),
    # The commoner kind's number, if it is less than half as many again.
    (shape((13, 8, 0), (12, 8, 64)), [full(), sliding(64)], 13 * LAYER),
    (shape((10, 8, 0), (15, 8, 64)), [full(), sliding(64, 2)], 10 * LAYER),
    # Layers that keep the same tokens are one group, whatever their sizes.
    (shape((30, 8, 0), (2, 4, 0)), [full()], 31 * LAYER),
    # Smaller layers have more tokens a block, or padding.
    (shape((9, 4, 0), (39, 8, 64)), [full(size=32), sliding(64, 5)], 9 * LAYER),
    (shape((16, 2, 0), (16, 8, 64)), [full(size=64), sliding(64)], 16 * LAYER),
    (shape((16, 8, 0), (16, 6, 64)), [full(), sliding(64)], 16 * LAYER),
    (shape((10, 8, 0), (10, 8, 64), (20, 8, 128)), [full(), sliding(64), sliding(128, 2)], 10 * LAYER),
])  # fmt: skip
def test_groups_and_the_bytes_of_their_blocks(
    model: ModelShape, groups: list[KvGroup], block_bytes: int
) -> None:
    layout = kv_layout_of(model, 1, 16)
    assert list(layout.groups) == groups
    assert layout.block_bytes == block_bytes


def test_gpus_share_the_heads_of_every_layer() -> None:
    model = shape((9, 4, 0), (39, 8, 64))
    assert kv_layout_of(model, 4, 16).block_bytes == kv_layout_of(model, 1, 16).block_bytes
    # With 8 GPUs the 4 heads of full layers are held twice, so that both kinds have one on each.
    assert kv_layout_of(model, 8, 16).groups == (full(), sliding(64, 5))
    assert kv_layout_of(model_shape_of(DEEPSEEK_V2_LITE), 8, 16).block_bytes == 8 * 27 * 16 * 576 * 2


def test_what_a_request_holds_at_most() -> None:
    assert full().most_blocks(1000, 128) == 63
    # 127 tokens of the window and 128 in flight, which may begin anywhere in a block.
    assert sliding(128).most_blocks(1000, 128) == 16 + 1
    assert sliding(128).most_blocks(100, 128) == 7
    assert replace(sliding(128), chunked=True).most_blocks(1000, 128) == 16


@pytest.mark.parametrize("group", [full(), sliding(100), replace(sliding(100), chunked=True)])
def test_what_a_window_no_longer_shows(group: KvGroup) -> None:
    for computed in (0, 1, 99, 100, 101, 200, 250):
        dropped = group.dropped_tokens(computed)
        expected = {0: 0, 100: max(0, computed - 99)}[group.window]
        assert dropped == (computed // 100 * 100 if group.chunked else expected)
        if dropped:
            assert group.computed_when_dropped(dropped) <= computed
            assert group.dropped_tokens(group.computed_when_dropped(dropped) - 1) < dropped


def test_capacity_as_vllm_logs_it() -> None:
    """A tiny Gemma-2 whose memory holds 5,120 tokens of all layers: vLLM 0.32 logs a KV cache size of 7,801 tokens."""
    model = shape((2, 2, 0), (2, 2, 200))
    layout = kv_layout_of(model, 1, 32)
    memory = 5120 * 4 * 2 * 128 * 2
    assert layout.request_blocks(4096, 1024) == 128 + 40
    assert layout.capacity_tokens(memory // layout.block_bytes, 4096, 1024) == 7801


@pytest.mark.parametrize(
    ("config", "growing"), [(GPT_OSS, 12 / 24), (MIMO, 9 * 4 / (9 * 4 + 39 * 8)), (LLAMA4, 12 / 48)]
)
def test_a_gpu_holds_more_of_what_grows_less(config: dict[str, Any], growing: float) -> None:
    model, gpu = model_shape_of(config, "m"), hardware("h200")
    every = replace(model, uneven=tuple(replace(kind, window=0) for kind in model.attention_layers))
    costs, whole = (gpu.calibrate(each, 1 if config is GPT_OSS else 8) for each in (model, every))
    assert costs.kv_bytes == whole.kv_bytes
    if config is not MIMO:  # of which 8 GPUs hold a layer's 4 KV heads twice
        assert costs.kv_bytes_per_token / whole.kv_bytes_per_token == pytest.approx(growing)
    assert whole.kv_capacity_tokens < costs.kv_capacity_tokens < whole.kv_capacity_tokens / growing


def test_an_engine_of_it_has_its_groups() -> None:
    costs = hardware("h200").calibrate(model_shape_of(GPT_OSS, "m"))
    limits = engine_limits(EngineSizes(), "h200", costs)
    assert limits.kv_groups == (full(), sliding(128))
    assert limits.num_blocks == costs.kv_bytes // (12 * 16 * 8 * 128 * 2)
    assert engine_limits(EngineSizes(num_blocks=50), "h200", costs).num_blocks == 50
    assert (
        engine_limits(EngineSizes(), "h200", replace(costs, kv_bytes=0, kv_capacity_tokens=800)).num_blocks
        == 50
    )
    llama = hardware("h200").calibrate(model_shape_of(LLAMA, "m"))
    assert engine_limits(EngineSizes(), "h200", llama).kv_groups == ()
    assert engine_limits(EngineSizes(), "h200", llama).num_blocks == llama.kv_capacity_tokens // 16
