from __future__ import annotations

import pytest
from headway_reproduce.adaptivellm.setting import (
    ADAPTIVE,
    ALL,
    BASELINE,
    DATA_SETS,
    EXACT,
    GROUPS,
    HARDWARE,
    MAIN,
    MODELS,
    PAPER_TABLE_3,
    QUICK,
    VARIATIONS,
    AdaptivePoint,
    ModelAndData,
)

from headway.lab.policy_choice import OWN_PARTS, check_policies
from headway.predict.models.known_models import model_shape
from headway.predict.steps.hardware import calibration
from headway.traces import NAMED_LAWS, load_trace

CHAT = ModelAndData("OPT-13B", "Chatbot")


def test_the_twelve_groups_are_the_papers() -> None:
    assert [str(group) for group in GROUPS] == list(PAPER_TABLE_3)


@pytest.mark.parametrize(
    ("model", "billions", "kib_per_token"),
    # Two values of two bytes for each layer and width: OPT-13B 2 x 2 x 40 x 5120 = 800 KiB (gap A5).
    [("OPT-13B", 12.8, 800), ("OPT-30B", 30.0, 1344), ("Llama-13B", 13.0, 800), ("Llama-32.5B", 32.5, 1560)],
)
def test_models_have_the_sizes_of_their_names_and_fit(
    model: str, billions: float, kib_per_token: int
) -> None:
    shape = model_shape(MODELS[model])
    assert shape.num_weights / 1e9 == pytest.approx(billions, rel=0.01)
    costs = calibration(HARDWARE, shape)
    assert costs.kv_bytes_per_token == kib_per_token * 1024
    assert costs.kv_capacity_tokens > 128 * 16


def test_the_hardware_is_the_a100s_with_the_pcie_cards_memory_and_says_so() -> None:
    costs = calibration(HARDWARE, model_shape("opt-13b"))
    assert costs.derived
    assert "derived from a100-80g by memory bandwidth 1935/2039" in costs.provenance


@pytest.mark.parametrize(("data", "mean"), [("Chatbot", 17.02), ("Alpaca", 19.66), ("Summary", 340.48)])
def test_prompts_have_the_published_means(data: str, mean: float) -> None:
    assert NAMED_LAWS[DATA_SETS[data]].input.expected_tokens() == pytest.approx(mean, rel=1e-4)


def test_a_point_is_a_thousand_requests_at_once_on_128_and_64_blocks() -> None:
    run = AdaptivePoint(group=CHAT).run(BASELINE, 2)
    requests = load_trace(run.trace)
    assert len(requests) == 1000
    assert {request.arrival_s for request in requests} == {0.0}
    assert {request.max_output_tokens for request in requests} == {64}
    assert max(request.output_tokens for request in requests) == 64
    assert min(request.output_tokens for request in requests) < 64
    limits = run.limits
    assert (limits.num_blocks, limits.host_blocks, limits.block_size, limits.max_num_seqs) == (
        128,
        64,
        16,
        256,
    )
    assert (limits.prefix_caching, limits.asynchronous) == (False, False)
    assert (run.seed, run.max_output_tokens, run.model) == (2, 64, "facebook/opt-13b")


def test_the_control_has_outputs_of_exactly_the_limit() -> None:
    requests = load_trace(AdaptivePoint(group=CHAT, limit=128, lengths=EXACT).trace())
    assert {request.output_tokens for request in requests} == {128}


def test_loaded_requests_arrive_at_their_rate() -> None:
    requests = load_trace(AdaptivePoint(group=CHAT, rate_rps=20.0).trace())
    assert requests[-1].arrival_s == pytest.approx(1000 / 20.0, rel=0.1)


def test_the_policies_exist() -> None:
    check_policies(sorted({run.policy for run in ALL.first_runs()}), OWN_PARTS)


def test_quick_is_a_part_of_all_with_the_same_workloads() -> None:
    quick, full = set(QUICK.first_runs()), set(ALL.first_runs())
    assert quick < full
    assert {run.seed for run in quick} == {0}
    assert QUICK.num_runs() == len(quick)
    assert ALL.num_runs() == len(full) + 12 * len(MAIN)


def test_table_3_is_whole_in_both() -> None:
    for scope, seeds in ((QUICK, 1), (ALL, 3)):
        wanted = {
            AdaptivePoint(group=group).run(policy, seed)
            for group in GROUPS
            for policy in MAIN
            for seed in range(seeds)
        }
        assert wanted <= set(scope.first_runs())


def test_the_longest_runs_come_first() -> None:
    first, *_ = ALL.first_runs()
    assert (first.policy, first.max_output_tokens) == (ADAPTIVE, 256)
    assert "constant:tokens=256" in first.trace


def test_a_variation_changes_one_thing() -> None:
    changes = [what.of(CHAT) for what in VARIATIONS]
    assert [point.gpu_blocks for point in changes] == [128, 128, 128, 128, 64]
    assert [point.host_blocks for point in changes] == [64, 10_000, 10_000, 64, 64]
    assert [point.copy_bytes_per_s for point in changes] == [None, None, None, 12e9, None]


def test_loads_are_shares_of_capacity() -> None:
    [point] = ALL.loaded_points({CHAT: 20.0})
    assert point.rate_rps == pytest.approx(18.0)
    assert QUICK.loaded_points({CHAT: 20.0}) == []
