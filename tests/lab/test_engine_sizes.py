from __future__ import annotations

from math import inf, nan
from pathlib import Path

import pytest

from headway.errors import ConfigError
from headway.lab.engine_sizes import EngineSizes, engine_limits
from headway.predict.models.known_models import model_shape
from headway.predict.steps.calibration import EngineDefaults
from headway.predict.steps.hardware import calibration
from headway.sim.limits import EngineLimits
from tests.planner.costs import write_costs
from tests.sim.worlds import SECOND_STEPS

MODEL = model_shape("Qwen/Qwen3-8B")


def limits(name: str, **sizes: object) -> EngineLimits:
    given = EngineSizes(**sizes)  # type: ignore[arg-type]
    return engine_limits(given, name, calibration(name, MODEL, given.tp, given.pp))


@pytest.mark.parametrize(
    ("name", "tokens", "seats"),
    [("h100", 8192, 1024), ("b200", 16384, 1024), ("a100-80g", 2048, 256), ("l40s", 2048, 256)],
)
def test_the_defaults_are_vllms(name: str, tokens: int, seats: int) -> None:
    found = limits(name)
    assert (found.max_num_batched_tokens, found.max_num_seqs) == (tokens, seats)
    assert found.asynchronous
    assert found.num_blocks == calibration(name, MODEL).kv_capacity_tokens // 16


def test_what_is_given_is_taken() -> None:
    found = limits(
        "h100",
        max_num_seqs=8,
        max_num_batched_tokens=64,
        num_blocks=99,
        block_size=32,
        asynchronous=False,
        host_blocks=7,
    )
    assert (found.max_num_seqs, found.max_num_batched_tokens, found.num_blocks) == (8, 64, 99)
    assert (found.block_size, found.asynchronous, found.host_blocks) == (32, False, 7)
    assert limits("h100").host_blocks == 0


@pytest.mark.parametrize(
    ("sizes", "tokens"),
    [
        ({}, 512),
        ({"max_num_seqs": 256}, 512),
        ({"max_num_seqs": 64}, 128),
        ({"max_num_batched_tokens": 100}, 100),
        ({"max_cudagraph_capture_size": 1024}, 1024),
        ({"max_cudagraph_capture_size": 9000}, 8192),
        ({"max_cudagraph_capture_size": 0}, 0),
    ],
)
def test_cuda_graphs_hold_two_tokens_a_seat_and_512_at_most_unless_told_otherwise(
    sizes: dict[str, int], tokens: int
) -> None:
    assert limits("h100", **sizes).graphed_tokens == tokens


def test_graphs_of_less_than_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_cudagraph_capture_size is -1; accepted: 0 or more"):
        limits("h100", max_cudagraph_capture_size=-1)


def test_host_memory_in_gib_is_as_many_whole_blocks_as_it_holds() -> None:
    # 36 layers x 2 x 8 heads x 128 x 2 bytes = 144 KiB a token, 2.25 MiB a block of 16: 256 of them are 576 MiB.
    assert limits("h100", host_kv_gib=0.5625).host_blocks == 256
    assert limits("h100", host_kv_gib=0.002).host_blocks == 0
    with pytest.raises(ConfigError, match="host_kv_gib is 1 and host_blocks 7; accepted: one of the two"):
        limits("h100", host_kv_gib=1, host_blocks=7)


@pytest.mark.parametrize("gib", [-1.0, inf, nan, 1e300, 65_537.0])
def test_host_memory_that_no_machine_has_is_refused(gib: float) -> None:
    with pytest.raises(ConfigError, match=r"host_kv_gib is .*; accepted: 0 or more GiB, up to 65,536"):
        limits("h100", host_kv_gib=gib)


def test_no_more_seats_than_tokens_by_default() -> None:
    assert limits("h100", max_num_batched_tokens=64).max_num_seqs == 64


@pytest.mark.parametrize(("sizes", "tokens"), [({"max_num_batched_tokens": 64}, 64), ({}, 8192)])
def test_more_seats_than_tokens_are_refused_as_vllm_does(sizes: dict[str, int], tokens: int) -> None:
    assert limits("h100", max_num_seqs=tokens, **sizes).max_num_seqs == tokens
    with pytest.raises(
        ConfigError, match=f"max_num_seqs is {tokens + 1} with max_num_batched_tokens {tokens}, which"
    ):
        limits("h100", max_num_seqs=tokens + 1, **sizes)


def test_pipeline_stages_bring_their_memory_and_schedule_synchronously() -> None:
    one, two = limits("h100"), limits("h100", pp=2)
    assert two.num_blocks > 2 * one.num_blocks  # the weights are there once
    assert not two.asynchronous
    assert two.depth == two.pipeline_stages == 2


def test_a_measured_machine_is_taken_for_a_cpu_with_the_blocks_it_was_measured_with(tmp_path: Path) -> None:
    # The file of a made-up machine says blocks of 32 tokens; 64 tokens of KV are two of them.
    file = str(write_costs(tmp_path / "cost.json", jobs=1, tokens=1))
    found = engine_limits(EngineSizes(), file, SECOND_STEPS)
    assert found == EngineLimits(
        num_blocks=2,
        block_size=32,
        max_num_seqs=128,
        max_num_batched_tokens=2048,
        max_cudagraph_capture_size=0,
    )
    assert engine_limits(EngineSizes(block_size=16), file, SECOND_STEPS).num_blocks == 4
    with pytest.raises(ConfigError, match="pp is 2; accepted with a cost file: 1"):
        calibration(file, MODEL, stages=2)


def test_a_measured_machine_is_served_as_it_was_where_its_file_says_how(tmp_path: Path) -> None:
    engine = EngineDefaults(max_num_seqs=512, max_num_batched_tokens=4096, asynchronous=True)
    file = str(write_costs(tmp_path / "cost.json", jobs=1, tokens=1, engine=engine))
    found = engine_limits(EngineSizes(), file, SECOND_STEPS)
    assert (found.max_num_seqs, found.max_num_batched_tokens, found.asynchronous) == (512, 4096, True)
    assert not engine_limits(EngineSizes(asynchronous=False), file, SECOND_STEPS).asynchronous


def test_a_measured_machine_has_the_cuda_graphs_it_was_measured_with(tmp_path: Path) -> None:
    file = str(write_costs(tmp_path / "cost.json", jobs=1, tokens=1, graphed_tokens=512))
    assert engine_limits(EngineSizes(max_num_seqs=8), file, SECOND_STEPS).graphed_tokens == 512
    fewer = EngineSizes(max_num_seqs=8, max_cudagraph_capture_size=16)
    assert engine_limits(fewer, file, SECOND_STEPS).graphed_tokens == 16


def test_a_file_is_measured_whatever_its_name(tmp_path: Path) -> None:
    path = write_costs(tmp_path / "machine", jobs=1, tokens=1)
    assert not engine_limits(EngineSizes(), str(path), SECOND_STEPS).asynchronous


@pytest.mark.parametrize("name", ["block_size", "tp", "pp", "max_num_seqs", "num_blocks", "batch_width"])
def test_sizes_are_at_least_one(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is 0; accepted: 1 or more"):
        engine_limits(EngineSizes(**{name: 0}), "h100", SECOND_STEPS)  # type: ignore[arg-type]
