from __future__ import annotations

from dataclasses import replace

import pytest
from headway_reproduce.fastserve.setting import (
    ABLATED,
    ABLATION_SEEDS,
    ALL,
    AXES,
    CAPACITY_SEEDS,
    CLUSTER,
    END_TO_END,
    FASTSERVE,
    ORCA,
    PAPER_PER_TOKEN_S,
    QUICK,
    RELEASED,
    SEEDS,
    SHAREGPT,
    SHAREGPT_RATES_RPS,
    SINGLE,
    SMALL,
    TODAY,
    VARIATIONS,
    CapacityPoint,
    FastServePoint,
    gpt_175b,
    loaded,
    with_quantum,
    zipf,
)
from headway_reproduce.fastserve.study import REAL_PLAN, real_requests

from headway.lab.policy_choice import check_policies
from headway.predict.models.known_models import model_shape
from headway.traces import NAMED_LAWS, load_trace


def ten(place: CapacityPoint) -> float:
    """Every place gets through 10 requests a second."""
    return 10.0


def point(load: float = 0.9, cv: float = 1.0) -> FastServePoint:
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
    assert [gpt_175b(stages).gpus for stages in (2, 3, 4)] == [16, 24, 32]


def test_opt_2_7b_is_of_its_size() -> None:
    assert model_shape(SMALL.model).num_weights / 1e9 == pytest.approx(2.65, rel=0.02)


# ---- the workload --------------------------------------------------------------------------------------


def test_a_point_is_two_thousand_jobs_at_its_rate() -> None:
    run = point(0.9).run(FASTSERVE, 1)
    requests = load_trace(run.trace)
    assert len(requests) == 2000
    assert requests[-1].arrival_s == pytest.approx(2000 / 9.0, rel=0.1)
    assert max(request.output_tokens for request in requests) <= 512
    assert max(request.input_tokens for request in requests) <= 512
    assert (run.max_output_tokens, run.seed, run.tp) == (512, 1, 8)


def test_sharegpt_prompts_are_cut_where_the_released_code_drops_them() -> None:
    requests = load_trace(FastServePoint(machine=RELEASED, lengths=SHAREGPT, rate_rps=2.0).trace())
    assert len(requests) == 400
    assert max(request.input_tokens for request in requests) <= 1024
    assert NAMED_LAWS["sharegpt-1024"].output == NAMED_LAWS["sharegpt"].output
    assert set(PAPER_PER_TOKEN_S) < set(SHAREGPT_RATES_RPS)


def test_who_runs_all_residents_has_a_batch_for_each_stage() -> None:
    assert point().run(ORCA, 0).micro_batches
    assert not point().run(FASTSERVE, 0).micro_batches
    assert not FastServePoint(machine=SINGLE, lengths=zipf(1.1)).run(ORCA, 0).micro_batches


# ---- what is run ---------------------------------------------------------------------------------------


def test_one_axis_varies_at_a_time() -> None:
    base = point()
    assert [each.rate_rps for each in ALL.end_to_end("rate", ten).values()] == [
        *(2.5, 5.0, 7.5, 9.0, 10.0, 12.5, 15.0)
    ]
    assert list(ALL.end_to_end("cv", ten).values()) == [replace(base, cv=cv) for cv in (1.0, 2.0, 4.0, 8.0)]
    thetas = ALL.end_to_end("theta", ten)
    assert list(thetas) == [0.7, 0.9, 1.1, 1.3, 1.5]
    assert thetas[0.7] == replace(base, lengths=zipf(0.7))
    assert thetas[1.1] == base


def test_end_to_end_has_the_most_seeds() -> None:
    assert ALL.seeds(point()) == ALL.seeds(replace(point(), lengths=zipf(0.7))) == range(SEEDS)
    assert ALL.seeds(loaded(ABLATED, 0.9, ten)) == range(ABLATION_SEEDS)
    assert {ALL.seeds(what.of(point())) for what in VARIATIONS} == {range(ABLATION_SEEDS)}
    assert QUICK.seeds(point()) == range(1)
    assert ALL.seeds(END_TO_END.at_once()) == QUICK.seeds(END_TO_END.at_once()) == range(CAPACITY_SEEDS)


def test_quick_is_a_part_of_all_with_the_same_workloads() -> None:
    quick, full = set(QUICK.loaded_runs(ten)), set(ALL.loaded_runs(ten))
    assert quick < full
    assert set(QUICK.capacity_runs()) < set(ALL.capacity_runs())
    assert {run.seed for run in quick} == {0}
    assert QUICK.num_runs() == len(quick) + len(QUICK.capacity_runs())


@pytest.mark.parametrize("axis", AXES)
def test_quick_has_the_ends_or_the_middle_of_every_axis(axis: str) -> None:
    assert set(QUICK.settings(axis)) < set(ALL.settings(axis))


def test_the_policies_exist_with_the_parts_they_are_given() -> None:
    for policy, parts in {(run.policy, run.parts) for run in ALL.loaded_runs(ten)}:
        check_policies([policy], parts)


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
    base = point().run(ORCA, 0)
    changed = [what.of(point()).run(ORCA, 0) for what in VARIATIONS]
    assert changed == [
        replace(base, micro_batches=False),
        replace(base, max_output_tokens=2048),
        replace(base, limits=replace(base.limits, num_blocks=base.limits.num_blocks // 4)),
        replace(base, trace=base.trace.replace("count=2000", "count=6000")),
        replace(base, limits=replace(base.limits, batch_width=None)),
    ]


def test_today_serves_the_same_jobs_on_the_same_engine() -> None:
    assert replace(point().run(TODAY, 3), policy=ORCA) == point().run(ORCA, 3)


# ---- on the real engine --------------------------------------------------------------------------------


def test_real_jobs_are_the_first_of_the_grids_own_all_at_once() -> None:
    requests = real_requests(20)
    assert len(requests) == 20
    assert {(request.arrival_s, request.max_output_tokens) for request in requests} == {(0.0, 512)}


def test_memory_is_short_on_the_real_engine() -> None:
    sizes = REAL_PLAN.sizes
    assert sizes.batch_width is not None
    assert sizes.blocks * sizes.block_tokens < sizes.batch_width * (512 + 512)
