from __future__ import annotations

import random
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from bench.simulator.fidelity_runs import (
    MAX_OUTPUT_TOKENS,
    METRICS,
    PLAIN,
    SWAPS,
    TARGETED,
    FidelityCell,
    FidelityRun,
    FidelitySetup,
    FidelityStream,
    RealSide,
    at_speed_of,
    mean_noise,
    mean_run,
    missed,
    simulated,
    steps_report,
    stream,
    with_link,
)
from headway.core.batch_shape import BatchShape
from headway.core.record import Outcome
from headway.engine.demo_model import DemoRecipe, ensure_demo_random, ensure_model
from headway.engine.kv.block_copies import CopyDirection, TimedCopy
from headway.policies.presets import PRESETS
from headway.predict.steps.calibration import Calibration
from headway.predict.steps.copies import TransferModel
from headway.predict.steps.law import Curve, StepTimeLaw
from tests.engine.sizes import SIZES as SMALL

SIZES = replace(SMALL, num_blocks=2000, max_num_seqs=32, max_num_batched_tokens=1024, max_model_len=2048)
LAW = StepTimeLaw(
    tokens=Curve(knots=(0, 1), seconds=(0.005, 0.0051)),
    jobs=Curve(knots=(0, 1), seconds=(0.0, 0.0001)),
    decode_context_s=1e-7,
    prefill_context_s=0.0,
    prefill_pair_s=0.0,
)
COPIES = [TimedCopy(way, size, size * 1e-9) for way in CopyDirection for size in (1000, 2000, 4000, 8000)]
COPY = TransferModel(start_s=0.0, bytes_per_s=1e9)
CALIBRATION = Calibration(
    name="test",
    provenance="made up",
    derived=True,
    step=LAW,
    host_s=0.001,
    residuals=(0.9, 1.0, 1.3),
    to_host=COPY,
    to_device=COPY,
    kv_bytes_per_token=64,
    kv_capacity_tokens=64000,
)


def values(jct: float, ttft: float, p99: float) -> dict[str, float]:
    return dict(zip(METRICS, (jct, ttft, p99), strict=True))


def run(jct: float, ttft: float, p99: float, steps: int = 0) -> FidelityRun:
    return FidelityRun(values(jct, ttft, p99), {"steps": steps})


def test_errors_are_of_means_over_the_streams() -> None:
    real = [run(1.0, 0.5, 4.0, steps=10), run(3.0, 0.5, 4.0, steps=20)]
    model = [run(1.4, 0.5, 3.0), run(3.0, 0.5, 3.0)]
    own = [run(1.2, 0.5, 4.0, steps=12), run(2.8, 0.5, 4.4, steps=20)]
    cell = FidelityCell(real, model, own).to_dict()
    assert cell["error"] == pytest.approx(values(0.1, 0.0, -0.25))
    assert cell["error_at_own_speed"] == pytest.approx(values(0.0, 0.0, 0.05))
    assert cell["counts"] == {"real": {"steps": 15}, "simulated": {"steps": 16}}
    assert missed({"p": {"1": cell}}) == []
    # Deviations of 0.2 and -0.2: a standard error of 0.2, of a mean of 2; Student's t of one degree of freedom 12.706.
    assert cell["half_width"]["mean_jct_s"] == pytest.approx(12.706 * 0.1, rel=1e-4)
    assert missed({"p": {"1": FidelityCell(real, model, model).to_dict()}}) == [
        "p at 1: mean_jct_s",
        "p at 1: p99_jct_s",
    ]


def test_one_stream_has_no_interval() -> None:
    only = [run(1.0, 0.5, 4.0)]
    assert set(FidelityCell(only, only, only).to_dict()["half_width"].values()) == {None}


def test_a_stream_simulated_several_times_counts_once() -> None:
    assert mean_run([run(1.0, 0.5, 4.0, steps=10), run(2.0, 0.5, 2.0, steps=12)]) == run(
        1.5, 0.5, 3.0, steps=11
    )


@pytest.mark.parametrize(
    ("setup", "policy"),
    [(setup, policy) for setup in (PLAIN, SWAPS) for policy in setup.policies],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_simulated_side_ends_every_request(setup: FidelitySetup, policy: str) -> None:
    trace = stream(5.0, 4.0, seed=1)
    sizes = replace(SIZES, num_blocks=setup.num_blocks or SIZES.num_blocks)
    side = RealSide(setup=setup, sizes=sizes, capacity_rps=5.0, run_s=4.0, runs=1)
    served = simulated(with_link(CALIBRATION, setup.host_kv), trace, policy, side)
    assert {record.id: record.output_tokens for record in served.records} == {
        request.id: request.output_tokens for request in trace
    }
    assert all(value > 0 for value in served.values.values())
    assert served.counts["steps"] >= max(request.output_tokens for request in trace)


@pytest.mark.parametrize("policy", TARGETED.policies)
def test_with_targets_some_are_given_up_and_the_others_end(policy: str) -> None:
    # About 75 requests a second is what this engine serves.
    side = RealSide(setup=TARGETED, sizes=SIZES, capacity_rps=75.0, run_s=10.0, runs=1)
    trace = side.trace(FidelityStream(policy, 1.3, 0))
    served = simulated(CALIBRATION, trace, policy, side)
    assert all(request.slo == TARGETED.slo for request in trace)
    ended = {record.id: record for record in served.records if record.outcome is not Outcome.HANDED_OFF}
    assert ended.keys() == {request.id for request in trace}
    finished = [request for request in trace if ended[request.id].outcome is Outcome.FINISHED]
    assert all(ended[request.id].output_tokens == request.output_tokens for request in finished)
    assert served.counts["expired"] == len(trace) - len(finished) > 0
    assert served.counts["handed_off"] == 0  # one engine has nobody to hand a request to


def test_the_setup_with_swaps_serves_every_preset_that_swaps_or_takes_its_place() -> None:
    swapping = {name for name, row in PRESETS.items() if not row.eviction.startswith("recompute")}
    assert set(SWAPS.policies) == swapping
    assert "49" in SWAPS.vllm_flags()  # one block more: vLLM's null block


def test_only_those_that_pause_get_a_narrow_batch() -> None:
    assert SWAPS.batch_width("fastserve") == 3
    assert SWAPS.batch_width("adaptivellm") is None
    assert PLAIN.batch_width("fastserve") is None


def test_memory_is_so_short_that_every_run_of_fastserve_swaps_often() -> None:
    sizes = replace(SIZES, num_blocks=SWAPS.num_blocks or 0)
    side = RealSide(setup=SWAPS, sizes=sizes, capacity_rps=10.0, run_s=30.0, runs=1)
    served = simulated(
        with_link(CALIBRATION, SWAPS.host_kv),
        side.trace(FidelityStream("fastserve", 0.9, 0)),
        "fastserve",
        side,
    )
    assert served.counts["preemptions"] > 100
    assert served.counts["swapped_blocks"] > 100


def test_streams_are_the_same_again_and_declare_their_limit() -> None:
    assert stream(5.0, 10.0, seed=1) == stream(5.0, 10.0, seed=1)
    assert all(request.max_output_tokens == MAX_OUTPUT_TOKENS for request in stream(5.0, 10.0, seed=1))
    side = RealSide(setup=PLAIN, sizes=SIZES, capacity_rps=10.0, run_s=20.0, runs=1)
    first, again, other = (
        side.trace(FidelityStream(policy, 0.5, number))
        for policy, number in (("vllm", 0), ("sjf", 0), ("vllm", 1))
    )
    assert len(first) == len(other) == 100
    assert first == again != other


def test_a_law_that_is_right_has_ratios_of_one() -> None:
    shape = BatchShape()
    shape.add(1, 100)
    row = {"shape": asdict(shape), "seconds": LAW.step_s(shape) + 0.001, "gap_s": 0.0}
    report = steps_report([row, {**row, "gap_s": 0.002}, {**row, "gap_s": None}], CALIBRATION)
    assert report["decode"]["in_all"] == report["all"]["median"] == pytest.approx(1.0)
    assert report["gaps"]["steps"] == 2
    # (0.95 + 1.15) / 2, drawn with straight lines between the quantiles.
    assert report["noise"]["mean"] == pytest.approx(1.05)


def test_at_the_speed_of_a_run_its_steps_take_as_long_in_all() -> None:
    rng = random.Random(0)
    rows: list[dict[str, Any]] = []
    for _ in range(100):
        shape = BatchShape()
        for _ in range(rng.randrange(1, 9)):
            shape.add(1, rng.randrange(500))
        slow = rng.choice((1.2, 1.2, 1.2, 2.0))
        rows.append({"shape": asdict(shape), "seconds": slow * LAW.step_s(shape), "gap_s": None})
    own = at_speed_of(CALIBRATION, rows)
    device_s = sum(own.step.step_s(BatchShape(**row["shape"])) for row in rows)
    assert mean_noise(own) * device_s + 100 * own.host_s == pytest.approx(sum(row["seconds"] for row in rows))
    # One factor for all: proportions, and how much the noise scatters, are the profile's.
    assert own.step is CALIBRATION.step
    assert own.residuals[2] / own.residuals[0] == pytest.approx(1.3 / 0.9)
    assert own.host_s / own.residuals[1] == pytest.approx(CALIBRATION.host_s)


def test_a_recipe_of_another_size_is_another_model(tmp_path: Path) -> None:
    small = DemoRecipe(hidden_size=64, intermediate_size=64, num_hidden_layers=1, vocab_size=600)
    made = ensure_model("tiny", small, tmp_path)
    assert made == ensure_model("tiny", small, tmp_path)
    assert made.name == f"tiny-{small.digest()}"
    assert made.name.rpartition("-")[2] != ensure_demo_random(tmp_path).name.rpartition("-")[2]
    assert sorted(path.name for path in made.iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
