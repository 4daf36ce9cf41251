from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from headway.engine.kv.block_copies import CopyDirection
from headway.engine.profiling.profile import (
    Identity,
    Measurements,
    ProfilePlan,
    Profiler,
    conclude,
    measure,
    unbiased,
)
from headway.engine.stepped_engine import SteppedStep
from headway.errors import ConfigError
from headway.predict.steps.calibration import load_cost_file, write_cost_file
from headway.predict.steps.law import fit_step_time
from tests.engine.sizes import SIZES
from tests.engine.stepped import SCHEDULE_S, FakeEngine, law_s
from tests.predict.shapes import batch

HERE = Identity(machine="2 x test", model="fake", vllm_version="0", measured_on="today")


def measured(seconds: float = 0.01) -> Measurements:
    found = Measurements(SIZES)
    measure(FakeEngine(), ProfilePlan(seconds=seconds), found, lambda share, what: None)
    return found


def test_a_repetition_measures_every_kind_of_step_and_both_ways_of_copying() -> None:
    found = measured()
    assert found.repetitions >= 1
    assert {step.shape.kind for step in found.steps} == {"prefill", "decode", "mixed"}
    assert {copy.direction for copy in found.copies} == set(CopyDirection)
    assert found.missing() == []


def test_more_time_is_more_repetitions_of_other_lengths() -> None:
    long = measured(1.0)
    assert long.repetitions > 1
    prompts = {step.shape.num_tokens for step in long.steps if step.shape.kind == "prefill"}
    assert any(tokens.bit_count() > 1 for tokens in prompts)


def test_a_profile_can_be_gone_on_with_in_slices() -> None:
    found = Measurements(SIZES)
    profiler = Profiler(FakeEngine(), found, seconds=0.01)
    profiler.prepare(lambda share, what: None)
    names, shares = [], []
    while found.repetitions < 2:
        names.append(profiler.play_next())
        shares.append(profiler.share_of_repetition)
    half = len(names) // 2
    assert sorted(names[:half]) == sorted(names[half:])
    assert names[:half] != names[half:]
    assert shares[:half] == [*sorted(shares[: half - 1]), 0.0]


def test_progress_is_a_share_that_grows() -> None:
    told: list[float] = []
    measure(FakeEngine(), ProfilePlan(seconds=0.2), Measurements(SIZES), lambda share, _: told.append(share))
    assert told[0] == 0
    assert all(0 <= share <= 1 for share in told)


def test_the_first_step_of_a_scene_is_not_counted() -> None:
    # It wakes the workers: every prompt of 16 alone would otherwise be among the steps as often as it was sent.
    engine = FakeEngine()
    found = Measurements(SIZES)
    measure(engine, ProfilePlan(seconds=1e-9), found, lambda share, what: None)
    assert len(found.steps) < engine._steps


def test_an_interruption_leaves_what_was_measured() -> None:
    engine = FakeEngine()
    engine.interrupt_after = 60
    found = Measurements(SIZES)
    with pytest.raises(KeyboardInterrupt):
        measure(engine, ProfilePlan(seconds=0.01), found, lambda share, what: None)
    assert found.copies
    assert 0 < len(found.steps) < 60


def test_too_little_is_refused_by_name() -> None:
    nothing = Measurements(SIZES)
    with pytest.raises(ConfigError, match=r"missing: prefill steps \(0 of 8\), decode steps \(0 of 8\)"):
        conclude(nothing, HERE)
    some = measured()
    some.copies = [copy for copy in some.copies if copy.direction is CopyDirection.TO_HOST]
    assert some.missing() == ["copies to_device"]
    some.steps = some.steps[:5]
    assert "steps" in some.missing()[0]


def test_the_fit_finds_the_law_behind_the_steps() -> None:
    found = measured(0.3)
    result = conclude(found, HERE)
    assert result.cost.host_s == pytest.approx(SCHEDULE_S)
    for jobs in ([(1, 200)] * 8, [(128, 0)], [(1, 100), (1, 100), (64, 0)]):
        step = batch(*jobs)
        assert result.cost.step.law.step_s(step) == pytest.approx(law_s(step), rel=0.02)
    assert all(errors.p90_error < 0.02 for errors in result.errors.values())
    assert set(result.errors) == {"prefill", "decode", "mixed"}


def test_a_cost_file_carries_what_was_measured(tmp_path: Path) -> None:
    flags = ("--max-num-seqs", "16", "--block-size=32", "-tp", "1", "--no-async-scheduling")
    result = conclude(measured(), replace(HERE, vllm_flags=flags))
    engine = result.cost.engine
    assert engine is not None
    assert (engine.max_num_seqs, engine.max_num_batched_tokens, engine.asynchronous) == (16, 256, True)
    assert engine.vllm_flags == ("--block-size=32", "--no-async-scheduling")
    write_cost_file(tmp_path / "cost.json", result.cost)
    cost = load_cost_file(tmp_path / "cost.json")
    assert cost.step.num_rows == len(cost.rows)
    assert cost.kv_capacity_tokens == SIZES.num_blocks * SIZES.block_size
    assert cost.kv_blocks == 0
    assert cost.graphed_tokens == SIZES.graphed_tokens == 64
    assert (cost.machine, cost.model, cost.kv_bytes_per_token) == ("2 x test", "fake", 64)
    assert cost.calibration().to_host.bytes_per_s > 0
    assert result.to_dict()["steps"] == cost.step.num_rows


def test_the_hosts_part_never_takes_a_whole_step() -> None:
    slow = [SteppedStep(shape=batch((1, 5)), seconds=1.0, schedule_s=0.9) for _ in range(3)]
    assert replace(Measurements(SIZES), steps=slow).host_s() == 0.5


def test_what_a_clock_draws_has_the_mean_of_what_was_measured() -> None:
    rng = random.Random(1)
    # Most steps take what the law says, some far longer, as on a machine that does other things too.
    rows = [
        (step, law_s(step) * (rng.choice((3.0, 5.0)) if rng.random() < 0.05 else 1.0))
        for step in (batch(*[(1, rng.randrange(900))] * rng.randrange(1, 16)) for _ in range(400))
    ]
    fit = unbiased(fit_step_time(rows), rows)
    residuals = fit.held_out.residuals
    drawn = sum((low + high) / 2 for low, high in pairwise(residuals)) / 20
    true = sum(s for _, s in rows) / sum(fit.law.step_s(step) for step, _ in rows)
    assert drawn == pytest.approx(true)
    assert list(residuals) == sorted(residuals)


def test_no_time_is_refused() -> None:
    with pytest.raises(ConfigError, match="seconds is 0; accepted: more than 0"):
        ProfilePlan(seconds=0)
