from __future__ import annotations

from dataclasses import replace

import pytest
from headway_reproduce.ablations import preset_and_parts
from headway_reproduce.fastserve.cells import (
    ABLATED,
    ABLATION_SEEDS,
    ALL,
    ANY_BATCH,
    AXES,
    CAPACITY_SEEDS,
    END_TO_END,
    EQUAL_LOAD_AXIS,
    FASTER_TRANSFORMER,
    FASTSERVE,
    JOBS,
    LOAD,
    LOADS,
    LONGER_RUN,
    LONGEST_TOKENS,
    NARROW_STATIC,
    ONE_BATCH,
    ORCA,
    ORCA_AS_SHORT,
    ORCA_LIMITS,
    ORCA_PLACES,
    PAPER_PER_TOKEN_S,
    QUICK,
    SEEDS,
    SHAREGPT,
    SHAREGPT_RATES_RPS,
    SLOTS_FOR_ALL,
    THETA,
    THETA_AXIS,
    TODAY,
    VARIATIONS,
    CapacityPoint,
    FastServePoint,
    loaded,
    with_quantum,
    zipf,
)
from headway_reproduce.fastserve.machine import CLUSTER, RELEASED, SCALED_MACHINES, SINGLE, SMALL

from headway.lab.policy_choice import check_policies
from headway.predict.models.known_models import model_shape
from headway.traces import NAMED_LAWS, load_trace


def ten(place: CapacityPoint) -> float:
    """Every place gets through 10 requests a second."""
    return 10.0


def point(load: float = LOAD, cv: float = 1.0) -> FastServePoint:
    return loaded(END_TO_END, load, ten, cv=cv)


# ---- the machines --------------------------------------------------------------------------------------


def test_sixteen_gpus_hold_gpt_175b_in_two_stages() -> None:
    # 16 x (0.92 x 42,949,672,960 - 1.5e9) bytes less 349.1 GB of weights, at 4.5 MiB a token.
    limits = CLUSTER.limits()
    assert CLUSTER.gpus == 16
    assert limits.num_blocks == pytest.approx(54_900 // 16, abs=2)
    assert (limits.pipeline_stages, limits.batch_width, limits.max_num_seqs) == (2, 16, 256)
    assert (limits.asynchronous, limits.prefix_caching) == (False, False)
    # Two nodes' memory, at 16 tokens a block: 2 x 1152e9 / 75,497,472.
    assert limits.host_blocks == 30_517


def test_a_single_gpu_has_all_of_its_nodes_memory_unless_it_is_the_released_engine() -> None:
    assert SINGLE.limits().host_blocks == int(1152e9 // (16 * 819_200))
    assert RELEASED.limits().host_blocks == int(56e9 // (16 * 819_200))
    assert [machine.gpus for machine in SCALED_MACHINES] == [8, 16, 12, 16]
    assert {machine.stages for machine in SCALED_MACHINES} == {2}


def test_opt_2_7b_is_of_its_size() -> None:
    assert model_shape(SMALL.model).num_weights / 1e9 == pytest.approx(2.65, rel=0.02)


# ---- the workload --------------------------------------------------------------------------------------


def test_a_point_is_so_many_jobs_at_its_rate() -> None:
    run = point(0.9).run(FASTSERVE, 1)
    requests = load_trace(run.trace)
    assert len(requests) == JOBS
    assert requests[-1].arrival_s == pytest.approx(JOBS / 9.0, rel=0.15)
    assert max(request.output_tokens for request in requests) <= LONGEST_TOKENS
    assert max(request.input_tokens for request in requests) <= LONGEST_TOKENS
    assert (run.max_output_tokens, run.seed, run.tp) == (LONGEST_TOKENS, 1, 8)


def test_orca_reserves_the_models_context_and_others_do_not() -> None:
    assert point().run(ORCA, 0).parts.batching == ORCA_PLACES == "iteration-level:reserve_tokens=2048"
    assert point().run(FASTSERVE, 0).parts.batching is None
    assert all(place.machine.limits().num_blocks > 2048 // 16 for place in (END_TO_END, ABLATED))


def test_sharegpt_prompts_are_cut_where_the_released_code_drops_them() -> None:
    requests = load_trace(FastServePoint(machine=RELEASED, lengths=SHAREGPT, rate_rps=2.0).trace())
    assert len(requests) == 400
    assert max(request.input_tokens for request in requests) <= 1024
    assert NAMED_LAWS["sharegpt-1024"].output == NAMED_LAWS["sharegpt"].output
    assert set(PAPER_PER_TOKEN_S) < set(SHAREGPT_RATES_RPS)


def test_who_runs_all_residents_has_a_batch_for_each_stage() -> None:
    assert point().run(ORCA, 0).micro_batches
    assert not point().run(FASTSERVE, 0).micro_batches
    assert not FastServePoint(machine=SINGLE, lengths=zipf(THETA)).run(ORCA, 0).micro_batches


# ---- what is run ---------------------------------------------------------------------------------------


def test_one_axis_varies_at_a_time() -> None:
    base = point()
    assert [each.rate_rps for each in ALL.end_to_end("rate", ten).values()] == pytest.approx(
        [10 * load for load in LOADS]
    )
    assert list(ALL.end_to_end("cv", ten).values()) == [replace(base, cv=cv) for cv in (1.0, 2.0, 4.0, 8.0)]
    thetas = ALL.end_to_end("theta", ten)
    assert list(thetas) == [0.7, 0.9, 1.1, 1.3, 1.5]
    assert thetas[1.5] == replace(base, lengths=zipf(1.5))
    assert thetas[THETA] == base


def test_over_theta_the_rate_stays_and_over_theta_at_equal_load_the_load() -> None:
    def capacity(place: CapacityPoint) -> float:
        return 20.0 if place.lengths == zipf(1.5) else 10.0

    assert {each.rate_rps for each in ALL.end_to_end(THETA_AXIS, capacity).values()} == {11.0}
    equal = ALL.end_to_end(EQUAL_LOAD_AXIS, capacity)
    assert (equal[0.7].rate_rps, equal[1.5].rate_rps) == (11.0, 22.0)


def test_the_ablations_have_their_own_lengths_and_machine() -> None:
    for axis in AXES:
        for each in ALL.ablated(axis, ten).values():
            assert (each.machine, each.lengths.limit) == (SINGLE, LONGEST_TOKENS)


def test_fewer_slots_are_less_of_the_devices_memory() -> None:
    shares = ALL.with_memory(ten)
    whole = shares[1.0].run(FASTSERVE, 0).limits.num_blocks
    for share, each in shares.items():
        assert each.run(FASTSERVE, 0).limits.num_blocks == int(share * whole)


def test_machines_of_one_model_serve_one_rate() -> None:
    def capacity(place: CapacityPoint) -> float:
        return float(place.machine.gpus)

    rates = {machine.title: each.rate_rps for machine, each in ALL.scaled(capacity).items()}
    assert rates == {
        "OPT-66B, 8 GPUs": pytest.approx(8 * LOAD),
        "OPT-66B, 16 GPUs": pytest.approx(8 * LOAD),
        "GPT-175B, 12 GPUs": pytest.approx(12 * LOAD),
        "GPT-175B, 16 GPUs": pytest.approx(12 * LOAD),
    }


def test_end_to_end_has_the_most_seeds() -> None:
    assert ALL.seeds(point()) == ALL.seeds(replace(point(), lengths=zipf(0.7))) == range(SEEDS)
    assert ALL.seeds(loaded(ABLATED, LOAD, ten)) == range(ABLATION_SEEDS)
    assert QUICK.seeds(point()) == range(1)
    assert ALL.seeds(END_TO_END.at_once()) == QUICK.seeds(END_TO_END.at_once()) == range(CAPACITY_SEEDS)


def test_quick_is_a_part_of_all_with_the_same_workloads() -> None:
    quick, full = set(QUICK.loaded_runs(ten)), set(ALL.loaded_runs(ten))
    assert quick < full
    assert set(QUICK.capacity_runs()) < set(ALL.capacity_runs())
    assert {run.seed for run in quick} == {0}
    assert QUICK.num_runs() == len(quick) + len(QUICK.capacity_runs())


@pytest.mark.parametrize("axis", AXES)
def test_quick_has_some_of_every_axis(axis: str) -> None:
    assert set(QUICK.end_to_end(axis, ten)) < set(ALL.end_to_end(axis, ten))
    assert set(QUICK.ablated(axis, ten)) < set(ALL.ablated(axis, ten))


def test_the_policies_exist_with_the_parts_they_are_given() -> None:
    for policy, parts in {(run.policy, run.parts) for run in ALL.loaded_runs(ten)}:
        preset, given = preset_and_parts(policy, parts)
        check_policies([preset], given)


def test_a_quantum_is_in_decode_steps_and_leaves_the_order_as_it_is() -> None:
    seconds = f"{2 * SINGLE.decode_step_s():.4g}"
    swept = [with_quantum(loaded(ABLATED, 0.9, ten), policy, 2.0) for policy in (FASTSERVE, "mlfq-preempt")]
    assert [each.parts.order for each in swept] == [
        f"skip-join-mlfq:quantum_s={seconds}",
        f"skip-join-mlfq:skip_join=false,quantum_s={seconds}",
    ]


def test_slots_are_varied_one_at_a_time() -> None:
    points = ALL.slot_points(ten)
    assert [each.parts.eviction for each in points.values()] == [
        *(f"proactive:idle_jobs={value}" for value in (0, 8, 16, 32, 64)),
        *(f"proactive:burst_levels={value}" for value in (0, 1, 2, 4)),
    ]


def test_a_variation_changes_one_thing() -> None:
    base, static = point().run(ORCA, 0), point().run(FASTER_TRANSFORMER, 0)
    limits = base.limits
    orca = {what: what.of(point()).run(ORCA, 0) for what in VARIATIONS}
    slots = replace(limits, block_size=2048, num_blocks=limits.num_blocks * 16 // 2048, host_blocks=238)
    assert orca == {
        ORCA_AS_SHORT: replace(base, parts=replace(base.parts, batching=ORCA_LIMITS)),
        SLOTS_FOR_ALL: replace(base, limits=slots),
        LONGER_RUN: replace(base, trace=base.trace.replace(f"count={JOBS}", f"count={3 * JOBS}")),
        NARROW_STATIC: base,
        ONE_BATCH: replace(base, micro_batches=False),
        ANY_BATCH: replace(base, limits=replace(limits, batch_width=None)),
    }
    narrow = replace(static, limits=replace(static.limits, batch_width=16))
    assert (NARROW_STATIC.of(point()).run(FASTER_TRANSFORMER, 0), static.limits.batch_width) == (narrow, 32)


def test_a_batch_of_one_is_served_at_a_sixteenth_of_the_rate() -> None:
    alone = ALL.killed_alone(ten)
    assert (alone.batch, alone.rate_rps) == (1, 12.5 / 16)


def test_today_serves_the_same_jobs_on_the_same_engine() -> None:
    today, orca = point().run(TODAY, 3), point().run(ORCA, 3)
    assert replace(today, policy=ORCA, parts=orca.parts) == orca
