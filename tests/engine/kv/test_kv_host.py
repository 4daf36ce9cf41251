"""Host memory for KV: how many blocks it holds, what it is refused for, and for which models."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)

from headway.engine.demo_model import ensure_demo_random
from headway.engine.host_kv import (
    CONNECTOR,
    CONNECTOR_MODULE,
    HostKv,
    most_layers,
    why_not,
    worker_block_bytes,
)
from headway.engine.model_free import engine_config
from headway.errors import ConfigError

pytestmark = pytest.mark.vllm

GIB = 1 << 30
SHAPE: dict[str, Any] = {"block_size": 16, "num_kv_heads": 2, "head_size": 64, "dtype": torch.bfloat16}
FULL = FullAttentionSpec(**SHAPE)
SLIDING = SlidingWindowSpec(**SHAPE, sliding_window=128)
MAMBA = MambaSpec(block_size=16, shapes=((4, 4),), dtypes=(torch.float32,))
BLOCK_BYTES = 2 * 16 * 2 * 64 * 2
"""Keys and values of 16 tokens, 2 heads of 64 numbers, in bfloat16: one layer's."""


def kv_cache(*groups: tuple[KVCacheSpec, int]) -> KVCacheConfig:
    """A KV cache of groups of so many layers each."""
    named = [KVCacheGroupSpec([f"{n}" for n in range(layers)], spec) for spec, layers in groups]
    return KVCacheConfig(num_blocks=8, kv_cache_tensors=[], kv_cache_groups=named)


@pytest.mark.parametrize(
    ("world_size", "blocks"), [(1, GIB // BLOCK_BYTES // 4), (2, GIB // BLOCK_BYTES // 8)]
)
def test_memory_is_shared_by_all_layers_and_workers(world_size: int, blocks: int) -> None:
    cache = kv_cache((FULL, 4))
    assert worker_block_bytes(cache) == 4 * BLOCK_BYTES
    assert HostKv(gib=1).num_blocks(cache, world_size) == blocks


def test_workers_of_unlike_stages_have_as_many_blocks() -> None:
    # Four layers in three stages: the one in the middle has two.
    config = engine_config(str(ensure_demo_random()), pipeline_parallel_size=3)
    assert most_layers(config) == 2
    found = {HostKv(gib=1).num_blocks(kv_cache((FULL, n)), 3, most_layers=2) for n in (1, 2)}
    assert found == {GIB // BLOCK_BYTES // 6}
    assert most_layers(engine_config(str(ensure_demo_random()))) is None


def test_memory_for_less_than_one_block_is_refused() -> None:
    cache, needed = kv_cache((FULL, 4)), 4 * BLOCK_BYTES
    assert HostKv(gib=needed / GIB).num_blocks(cache, 1) == 1
    with pytest.raises(
        ConfigError, match=rf"^host_kv\.gib is .*; accepted: at least a block, {2 * needed} bytes$"
    ):
        HostKv(gib=needed / GIB).num_blocks(cache, 2)


def test_a_number_of_blocks_is_taken_as_it_is() -> None:
    assert HostKv(blocks=7).num_blocks(kv_cache((FULL, 4)), 8) == 7


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({}, r"host_kv\.gib is None and host_kv\.blocks None; accepted: one of them"),
        ({"gib": 1.0, "blocks": 5}, r"host_kv\.gib is 1\.0 and host_kv\.blocks 5; accepted: one of them"),
        ({"gib": 0.0}, r"host_kv\.gib is 0\.0; accepted: more than 0"),
        ({"gib": -1.0}, r"host_kv\.gib is -1\.0; accepted: more than 0"),
        ({"gib": float("nan")}, r"host_kv\.gib is nan; accepted: more than 0"),
        ({"gib": float("inf")}, r"host_kv\.gib is inf; accepted: more than 0"),
        ({"blocks": 0}, r"host_kv\.blocks is 0; accepted: more than 0"),
        ({"blocks": 5, "bytes_per_s": 0.0}, r"host_kv\.bytes_per_s is 0\.0; accepted: more than 0"),
        (
            {"blocks": 5, "restore_share": 0.0},
            r"host_kv\.restore_share is 0\.0; accepted: more than 0, up to 1",
        ),
        (
            {"blocks": 5, "restore_share": 1.1},
            r"host_kv\.restore_share is 1\.1; accepted: more than 0, up to 1",
        ),
    ],
)
def test_values_out_of_range_say_what_is_accepted(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=f"^{complaint}$"):
        HostKv(**given)


def test_more_than_the_machine_has_is_refused() -> None:
    HostKv(gib=4).check_machine(4 * GIB)
    HostKv(blocks=10**9).check_machine(1)  # how large a block is, is not known yet
    with pytest.raises(
        ConfigError,
        match=r"^host_kv\.gib is 4\.5 but this machine has 4\.0 GiB of memory in all; accepted: less",
    ):
        HostKv(gib=4.5).check_machine(4 * GIB)


def started_with(**transfer_config: Any) -> Any:
    """The part of vLLM's configuration that is read."""
    return SimpleNamespace(kv_transfer_config=SimpleNamespace(**transfer_config))


@pytest.mark.parametrize(
    "host", [HostKv(gib=1.5, bytes_per_s=1e9), HostKv(blocks=3, restore_share=0.25)], ids=["gib", "blocks"]
)
def test_what_is_given_survives_the_way_through_vllm(host: HostKv) -> None:
    config = host.transfer_config()
    assert (config["kv_connector"], config["kv_connector_module_path"]) == (CONNECTOR, CONNECTOR_MODULE)
    assert config["kv_role"] == "kv_producer"
    assert HostKv.of(started_with(**config)) == host


@pytest.mark.parametrize(
    ("extra", "complaint"),
    [({"gib": "1"}, "Expected `float | null`, got `str`"), ({"gib": -1.0}, "accepted: more than 0")],
)
def test_what_cannot_be_read_is_refused(extra: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{CONNECTOR}: .*{complaint.replace('|', '.')}"):
        HostKv.of(started_with(kv_connector_extra_config=extra))


@pytest.mark.parametrize(
    ("groups", "zeroes_blocks", "reason"),
    [
        ([(FULL, 2)], False, None),
        ([(FULL, 2)], True, "its KV blocks have to be zeroed"),
        ([(SLIDING, 2)], False, "its layers keep SlidingWindowSpec; accepted: full attention"),
        ([(MAMBA, 2)], True, "its layers keep MambaSpec; accepted: full attention"),
        ([(FULL, 1), (SLIDING, 1)], False, "its KV cache has 2 groups of layers; accepted: one"),
        ([(FULL, 1), (MAMBA, 1)], True, "its KV cache has 2 groups of layers; accepted: one"),
    ],
)
def test_only_full_attention_of_one_group_can_be_copied(
    groups: list[tuple[KVCacheSpec, int]], zeroes_blocks: bool, reason: str | None
) -> None:
    assert why_not(kv_cache(*groups), zeroes_blocks=zeroes_blocks) == reason
