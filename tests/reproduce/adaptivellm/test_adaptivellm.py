from __future__ import annotations

from dataclasses import fields

import pytest
from headway_reproduce.ablations import row_of
from headway_reproduce.adaptivellm.cells import (
    ALL,
    BASELINE,
    BY_ALL,
    BY_PROMPT,
    CHANGES,
    DATA_SETS,
    EXACT,
    GROUPS,
    HARDWARE,
    MAIN,
    MODELS,
    PLUS,
    QUICK,
    ROOMY_HOST,
    SLOW_LINK,
    TODAY,
    WHOLE_LINK,
    AdaptivePoint,
    ModelAndData,
    base_of,
    parts_of,
)
from headway_reproduce.adaptivellm.findings import PAPER_TABLE_3
from headway_reproduce.adaptivellm.worth import WorthPoint

from headway.lab.policy_choice import OWN_PARTS, Parts
from headway.policies.presets import PRESETS
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
    assert (run.seed, run.max_output_tokens, run.model) == (2 * 12, 64, "facebook/opt-13b")
    assert run.copy_bytes_per_s == 12e9


def test_each_group_draws_requests_of_its_own() -> None:
    runs = [AdaptivePoint(group=group).run(BASELINE, seed) for group in GROUPS for seed in range(3)]
    assert sorted(run.seed for run in runs) == list(range(36))


def test_the_baseline_is_the_preset_and_all_three_systems_have_its_rules() -> None:
    row = PRESETS[BASELINE]
    assert parts_of(BASELINE) == Parts(batching=row.batching, eviction=row.eviction)
    for policy in MAIN:
        own, given = row_of(policy), parts_of(policy)
        if policy in (PLUS, TODAY):
            assert given == OWN_PARTS
        elif policy != BASELINE:
            assert given.batching in (
                f"{own.batching}:max_padding_tokens=256",
                f"{own.batching},max_padding_tokens=256",
            )
            assert (given.eviction or "").endswith(",free_block_each=true")


def test_both_readings_differ_in_the_sequence_length_alone() -> None:
    prompt, whole = PRESETS[BY_PROMPT], PRESETS[BY_ALL]
    assert (prompt.order, whole.order) == ("waited-over-length:prompt_only=true", "waited-over-length")
    assert (prompt.batching, prompt.eviction) == (whole.batching, whole.eviction)


def test_the_control_has_outputs_of_exactly_the_limit() -> None:
    requests = load_trace(AdaptivePoint(group=CHAT, limit=128, lengths=EXACT).trace())
    assert {request.output_tokens for request in requests} == {128}


def test_the_policies_exist() -> None:
    assert all(row_of(run.policy) for run in ALL.runs())


def test_quick_is_a_part_of_all_with_the_same_workloads() -> None:
    quick, full = set(QUICK.runs()), set(ALL.runs())
    assert quick < full
    assert {run.seed for run in quick} == set(range(12))
    assert QUICK.num_runs() == len(quick)
    assert ALL.num_runs() == len(full)


def test_table_3_is_whole_in_both() -> None:
    for scope, seeds in ((QUICK, 1), (ALL, 3)):
        wanted = {
            AdaptivePoint(group=group).run(policy, seed)
            for group in GROUPS
            for policy in MAIN
            for seed in range(seeds)
        }
        assert wanted <= set(scope.runs())


def test_the_longest_runs_come_first() -> None:
    first, *_ = ALL.runs()
    assert (first.max_output_tokens, "constant:tokens=256" in first.trace) == (256, True)


def test_a_variation_changes_one_thing_and_the_baseline_keeps_the_engines_rules() -> None:
    plain = AdaptivePoint(group=CHAT)
    for what in (*CHANGES, ROOMY_HOST, SLOW_LINK):
        changed = what.of(plain)
        assert sum(getattr(plain, each.name) != getattr(changed, each.name) for each in fields(plain)) == 1
        assert (base_of(changed) == plain) is (what in (ROOMY_HOST, WHOLE_LINK, SLOW_LINK))
    assert parts_of(BASELINE, padding=False, free_block_each=False).eviction == PRESETS["vllm-v0"].eviction


def test_what_swapping_is_worth_is_asked_of_short_memory_over_links() -> None:
    slow, fast = (WorthPoint("h100", 1024, 8, link) for link in (0.25, 8.0))
    assert slow.run("adaptivellm-plus").copy_bytes_per_s == slow.link_bytes_per_s < fast.link_bytes_per_s
    for policy in ("vllm", "adaptivellm-plus-recompute"):
        assert slow.run(policy) == fast.run(policy)  # it never copies
    limits = slow.run("adaptivellm-plus").limits
    assert (limits.num_blocks, limits.host_blocks) == (8 * 1024 // 16, 4 * 8 * 1024 // 16)
    requests = load_trace(slow.run("vllm").trace)
    assert len(requests) == 6 * 8
    tokens = sum(request.input_tokens + request.output_tokens for request in requests)
    assert tokens / len(requests) == pytest.approx(1024, rel=0.1)
