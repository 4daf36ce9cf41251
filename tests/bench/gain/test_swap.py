"""The bench of swaps: its own arithmetic, and a small instance of it on the real CPU engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench.gain.swap import swap
from bench.gain.swap_runs import (
    FAMILIES,
    LOADS,
    SwapRun,
    Watch,
    WatchedStep,
    at_one_speed_s,
    break_even_bytes_per_s,
    hidden_share,
    lengthened,
    policy_row,
    run_of,
    versus,
)
from headway.core.batch_shape import BatchShape
from headway.core.plan import Fate
from headway.core.record import Outcome, Record

BLOCK_BYTES = 1000
COUNTERS = {"swap_out_s": 0.5, "swap_in_s": 0.3, "copy_wait_s": 0.2}


def law(shape: BatchShape) -> float:
    return 0.01 * shape.num_jobs


def step(jobs: int, seconds: float, *, copying: bool = False) -> WatchedStep:
    shape = BatchShape()
    for _ in range(jobs):
        shape.add(1, 10 + jobs)
    return WatchedStep(shape, seconds, copying)


def run(steps: list[WatchedStep], makespan_s: float = 4.0, **counters: Any) -> SwapRun:
    record = Record(
        id="0",
        arrival_s=0.0,
        prompt_tokens=8,
        output_tokens=40,
        recomputed_tokens=12,
        outcome=Outcome.FINISHED,
        finished_s=2.0,
    )
    watch = Watch(steps=steps, idle_s=0.1, records=[record])
    watch.fates.update([Fate.SWAP, Fate.SWAP, Fate.RECOMPUTE, Fate.SWAP])
    return run_of(watch, makespan_s, {**COUNTERS, **counters})


def test_a_run_is_what_was_noted_and_counted() -> None:
    found = run([step(2, 0.02)])
    assert (found.swaps, found.recomputes, found.recomputed_tokens, found.output_tokens) == (3, 1, 12, 40)
    assert (found.mean_jct_s, found.copy_s, found.idle_s) == (2.0, 0.8, 0.1)
    row = policy_row([found, replace(found, makespan_s=2.0)], law)
    assert row["makespan_s"] == 3.0
    assert row["output_tps"] == pytest.approx(40 / 3)
    assert (row["preemptions"], row["swap_share"]) == (4, 0.75)


def test_at_one_speed_steps_take_what_the_law_says_and_waits_what_they_took() -> None:
    assert at_one_speed_s(run([step(2, 9.0), step(3, 9.0)]), law) == pytest.approx(0.02 + 0.03 + 0.2 + 0.1)


def test_serial_copies_are_hidden_as_far_as_nobody_waited() -> None:
    found = run([step(2, 0.02), step(2, 0.03, copying=True)])
    assert hidden_share(found, law, serial=True) == pytest.approx(1 - 0.2 / 0.8)
    assert hidden_share(replace(found, swap_out_s=0.0, swap_in_s=0.0), law, serial=True) is None


def test_copies_beside_steps_cost_what_steps_of_equal_shape_take_longer() -> None:
    # The machine is at half the law's speed; beside copies steps take a quarter more than that.
    free = [step(jobs, 0.02 * jobs) for jobs in (1, 2, 3)]
    found = run([*free, step(4, 0.1, copying=True), step(2, 0.05, copying=True)])
    assert lengthened(found, law) == pytest.approx(0.25)
    # 0.03 s of the 0.15 s beside copies, and 0.1 s of turns without work, of 0.8 s of copies.
    assert hidden_share(found, law, serial=False) == pytest.approx(1 - 0.13 / 0.8)
    assert lengthened(run(free), law) is None


def test_the_better_twin_is_the_one_with_the_lower_median() -> None:
    twins = {"recompute": [3.0, 3.0, 3.0], "swap": [2.0, 9.0, 2.2]}
    found = versus([2.0, 9.0, 2.0], twins)
    assert found["better"] == "swap"
    assert found["ratio"] == 1.0
    assert found["spread"] == [1.0, pytest.approx(1.1)]


def test_break_even_is_a_round_trip_as_long_as_the_prefill() -> None:
    # Two blocks of 32 tokens, both ways.
    assert break_even_bytes_per_s(33, BLOCK_BYTES, 0.5) == 8000.0


def test_twins_differ_in_the_eviction_alone() -> None:
    for family in FAMILIES:
        presets = [settings.preset() for settings in family.settings().values()]
        assert len({preset.eviction for preset in presets}) == 3
        assert len({(preset.order, preset.batching, preset.leaving) for preset in presets}) == 1


@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
def test_loads_repeat_and_have_the_papers_prompts(load: Any) -> None:
    requests = load.draw(400, 1)
    assert requests == load.draw(400, 1)
    assert {request.arrival_s for request in requests} == {0.0}
    mean = sum(request.input_tokens for request in requests) / 400
    assert mean == pytest.approx(load.mean_input_tokens, rel=0.1)


@pytest.mark.engine
@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_small_instance_swaps_and_recomputes_on_the_real_engine() -> None:
    load = replace(LOADS[0], requests=60)
    found = swap([load], {"fast": 8.0}, FAMILIES, rounds=1)
    cell = found["cells"]["short/fast"]
    assert cell["recompute"]["swap_share"] == cell["recompute-plus"]["swap_share"] == 0.0
    assert cell["swap"]["swap_share"] == cell["swap-plus"]["swap_share"] == 1.0
    assert cell["recompute"]["recomputed_tokens"] > 0
    hidden = found["copy_time_hidden"]["short/fast"]
    assert hidden["swap"]["hidden_share"] < 0.1
    assert "swap-plus" in hidden
