from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from headway.core.slo import NO_TARGETS, Slo
from headway.errors import ConfigError
from headway.lab.trace import Trace
from headway.planner.machine import Configuration, Machine, Node, moving_parts
from headway.planner.request import PlanRequest
from headway.planner.space import (
    HP_TOKENS,
    LP_TOKENS,
    SMALL_BUDGETS,
    THRESHOLDS,
    Space,
    build_space,
    default_configuration,
)
from headway.sim.limits import KvTier
from tests.planner.costs import write_costs

H100 = Machine("h100", "Llama-3.1-8B")
SEATS_OVER_TOKENS = "more seats than tokens a step, which vLLM refuses"


@dataclass(frozen=True, slots=True, kw_only=True)
class OnThese(PlanRequest):
    these: tuple[int, ...] = (4,)

    def counts(self) -> tuple[int, ...]:
        return self.these


def space(machine: Machine = H100, **changes: Any) -> Space:
    asked: dict[str, Any] = {"policies": ("vllm",), "slo": Slo(ttft_s=1.0), "longest_tokens": 1000}
    asked |= {name: changes.pop(name) for name in asked.keys() & changes.keys()}
    gpus = changes.pop("gpus", (4,))
    machines = {"hardware": machine.hardware, "model": machine.model, "gpus": max(gpus), "these": gpus}
    request = OnThese(trace=Trace("none"), **machines, **changes)
    return build_space(machine, request, **asked)


def found(whole: Space) -> set[Configuration]:
    return {each for grid in whole.grids for each in grid.possible.values()}


def test_every_setting_is_possible_or_counted_with_the_reason() -> None:
    whole = space()
    # Stock on four GPUs: TP 1, 2, 4 and 8 (which does not divide), 7 seats, 6 budgets; vLLM's own 1,024 seats and
    # 8,192 tokens are among them. More seats than tokens: 1,024 with a budget of 512.
    assert whole.impossible == {"TP does not divide the number of GPUs": 42, SEATS_OVER_TOKENS: 3}
    assert whole.size == 4 * 7 * 6 - 42 - 3
    assert len(found(whole)) == whole.size


def test_gpus_are_shared_out_whole() -> None:
    assert {(each.tp, each.instances) for each in found(space())} == {(1, 4), (2, 2), (4, 1)}
    assert {(each.tp, each.instances) for each in found(space(gpus=(3,)))} == {(1, 3)}


def test_weights_must_fit() -> None:
    whole = space(Machine("h100", "Llama-3.1-70B"))
    [why] = [why for why in whole.impossible if "GB of weights" in why]
    assert "does not fit 1 x h100" in why
    assert {each.tp for each in found(whole)} == {2, 4}
    assert whole.default[4].tp == 2


def test_the_longest_request_must_fit_the_kv_cache() -> None:
    room = H100.costs(1).kv_capacity_tokens
    whole = space(longest_tokens=room + 1)
    assert {each.tp for each in found(whole)} == {2, 4}
    assert (
        f"the KV cache of TP 1 has no room for the longest request ({room + 1:,} tokens)" in whole.impossible
    )


def test_a_number_of_gpus_that_cannot_serve_is_left_out_and_the_whole_is_an_error() -> None:
    big = Machine("h100", "Llama-3.1-70B")
    assert set(space(big, gpus=(1, 2)).default) == {2}
    with pytest.raises(ConfigError, match=r"Llama-3\.1-70B cannot be served on 1 x h100: .* does not fit"):
        space(big, gpus=(1,))


def test_pools_need_two_instances_and_are_split_every_way() -> None:
    whole = space(policies=("ascendra",))
    assert {each.layout() for each in found(whole)} == {
        "lp=1,hp=3 x TP 1",
        "lp=2,hp=2 x TP 1",
        "lp=3,hp=1 x TP 1",
        "lp=1,hp=1 x TP 2",
    }
    assert whole.impossible["pools need 2 instances or more"] > 0
    assert {each.threshold for each in found(whole)} == set(THRESHOLDS)
    assert {(each.lp_tokens, each.hp_tokens) for each in found(whole)} == set(product(LP_TOKENS, HP_TOKENS))
    assert {each.lp_tokens for each in found(space(policies=("headway",)))} == {None}
    assert {each.threshold for each in found(space(policies=("ascendra",), slo=NO_TARGETS))} == {None}


def test_only_policies_that_swap_have_host_memory() -> None:
    assert {each.host_gib for each in found(space(policies=("edf",)))} == {0.0}
    shares = {each.host_gib for each in found(space(policies=("fastserve",), gpus=(1,)))}
    kv_gib = H100.costs(1).kv_capacity_tokens * H100.costs(1).kv_bytes_per_token / (1 << 30)
    assert sorted(shares) == [0.0, pytest.approx(kv_gib / 2, rel=0.05), pytest.approx(2 * kv_gib, rel=0.05)]


def test_a_model_with_sliding_windows_keeps_its_kv_on_the_device(tmp_path: Path) -> None:
    keys = {"num_hidden_layers": 4, "max_position_embeddings": 8192, "sliding_window": 512}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma2"} | keys))
    whole = space(
        Machine("h100", str(tmp_path)), policies=("fastserve",), gpus=(1,), kv_tier=KvTier(gib=100.0)
    )
    assert {(each.host_gib, each.kv_tier) for each in found(whole)} == {(0.0, None)}
    assert (
        whole.impossible[
            "KV outside the device with a model that has sliding windows, which is not simulated"
        ]
        > 0
    )


def test_a_kv_tier_is_tried_and_left_out_and_never_beside_host_memory() -> None:
    tier = KvTier(gib=100.0)
    assert {each.kv_tier for each in found(space())} == {None}
    assert {each.kv_tier for each in found(space(kv_tier=tier))} == {None, tier}
    whole = space(policies=("fastserve",), kv_tier=tier)
    assert {(bool(each.host_gib), each.kv_tier) for each in found(whole)} == {
        (False, None),
        (True, None),
        (False, tier),
    }
    assert whole.impossible["host memory for swaps beside a KV tier, which is not simulated"] > 0
    [grid] = whole.grids
    assert grid.plain is not None
    assert grid.plain.kv_tier is None


def test_each_gpu_of_an_instance_brings_its_part_of_the_tier() -> None:
    two = replace(default_configuration(H100, 4, 1000), tp=2, instances=2, kv_tier=KvTier(gib=100.0))
    assert H100.system(two).kv_tier == KvTier(gib=200.0)
    assert moving_parts(two, replace(two, kv_tier=None)) == 1
    assert str(two).endswith(", KV tier gib=100")


def test_a_budget_of_its_own_is_what_is_varied() -> None:
    assert {each.tokens_a_step for each in found(space(policies=("sarathi",)))} == set(SMALL_BUDGETS)


def test_only_policies_that_go_by_predictions_have_a_predictor() -> None:
    assert {each.predictor for each in found(space(policies=("predicted",)))} == {"learned"}
    assert {each.predictor for each in found(space())} == {"none"}


def test_a_policy_that_only_simulations_have_cannot_be_deployed() -> None:
    for name in ("srpt-oracle", "mlfq-preempt", "nope"):
        with pytest.raises(ConfigError, match=f"unknown policy '{name}'"):
            space(policies=(name,))


def test_steps_larger_than_were_measured_are_not_planned_with(tmp_path: Path) -> None:
    machine = Machine(str(write_costs(tmp_path / "cost.json", jobs=64, tokens=1024)), "demo")
    whole = space(machine, gpus=(1,))
    assert {each.seats for each in found(whole)} == {16, 32, 64}
    assert {each.tokens_a_step for each in found(whole)} == {512, 1024}
    assert "larger steps than the cost file was measured with (64 jobs, 1024 tokens)" in whole.impossible
    assert machine.default_limits(1).block_size == 32
    with pytest.raises(ConfigError, match="was measured with demo on 1 GPU"):
        machine.costs(2)


def test_a_machine_whose_model_is_written_again_is_another(tmp_path: Path) -> None:
    def kv_bytes(layers: int) -> int:
        keys = {"model_type": "gemma2", "num_hidden_layers": layers}
        (tmp_path / "config.json").write_text(json.dumps(keys))
        return Machine("h100", str(tmp_path)).costs(1).kv_bytes_per_token

    assert kv_bytes(12) == 2 * kv_bytes(6)


def test_the_default_is_what_vllm_takes_by_itself() -> None:
    default = default_configuration(Machine("a100-80g", "Llama-3.1-8B"), 2, 1000)
    assert (default.policy, default.tp, default.instances) == ("vllm", 1, 2)
    assert (default.seats, default.tokens_a_step) == (256, 2048)


def test_the_plain_configuration_of_a_policy_has_vllms_sizes_and_nothing_added() -> None:
    [grid] = space(policies=("fastserve",)).grids
    assert grid.plain is not None
    assert (grid.plain.seats, grid.plain.tokens_a_step, grid.plain.host_gib) == (1024, 8192, 0.0)
    assert grid.plain.tp == 1


def test_moving_parts_are_counted() -> None:
    default = default_configuration(H100, 4, 1000)
    assert moving_parts(default, default) == 0
    assert moving_parts(replace(default, policy="edf", seats=64), default) == 2
    pooled = replace(default, policy="ascendra", lp=2, threshold=0.1, lp_tokens=512)
    assert moving_parts(pooled, default) == 4
    assert pooled.pools == {"lp": 2, "hp": 2}
    assert (
        str(pooled)
        == "ascendra on lp=2,hp=2 x TP 1, 1,024 seats, 8,192 tokens a step, threshold 0.1, 512 of LP"
    )


def test_what_is_simulated_has_the_sizes_that_are_deployed() -> None:
    pooled = replace(default_configuration(H100, 4, 1000), policy="ascendra", lp=1, seats=64, host_gib=2.0)
    system = H100.system(pooled)
    assert system.names == ("lp-0", "hp-0", "hp-1", "hp-2")
    assert (system.limits.max_num_seqs, system.limits.max_num_batched_tokens) == (64, 8192)
    # 16 tokens of 32 layers x 2 x 8 heads x 128 x 2 bytes are 2 MiB, so 1,024 blocks in 2 GiB.
    assert system.limits.host_blocks == 1024
    assert system.router == "ascendra"


@pytest.mark.parametrize(
    ("gpus", "per_node", "layouts"),
    [
        (16, 8, {(1, 16), (2, 8), (4, 4), (8, 2)}),
        (16, 4, {(1, 16), (2, 8), (4, 4)}),
        (12, 8, {(1, 12), (2, 6), (4, 3)}),
        (12, 6, {(1, 12), (2, 6)}),
        (3, 8, {(1, 3)}),
        (4, 6, {(1, 4), (2, 2), (4, 1)}),
    ],
)
def test_an_instance_stays_within_a_machine(gpus: int, per_node: int, layouts: set[tuple[int, int]]) -> None:
    whole = space(replace(H100, node=Node(gpus=per_node)), gpus=(gpus,))
    assert {(each.tp, each.instances) for each in found(whole)} == layouts


def test_a_model_that_takes_more_gpus_than_a_machine_has_is_refused() -> None:
    big = Machine("h100", "Llama-3.1-70B", Node(gpus=1))
    with pytest.raises(ConfigError, match="cannot be served on 4 x h100"):
        space(big)


def test_host_memory_is_that_of_a_machine() -> None:
    unbounded = found(space(policies=("headway",), gpus=(4,)))
    most = max(each.host_gib for each in unbounded)
    assert most > 0
    cap = 100.0
    bounded = space(replace(H100, node=Node(gpus=2, host_gib=cap)), policies=("headway",), gpus=(4,))
    assert found(bounded) == {
        each for each in unbounded if each.tp <= 2 and 2 // each.tp * each.host_gib <= cap
    }
    assert bounded.impossible["more host memory for KV than a machine has (100 GiB)"] > 0
    none = space(replace(H100, node=Node(host_gib=0.0)), policies=("headway",), gpus=(4,))
    assert {each.host_gib for each in found(none)} == {0.0}


def test_a_kv_tier_takes_host_memory_too() -> None:
    node = Node(gpus=2, host_gib=150.0)
    tiers = {tier: space(replace(H100, node=node), kv_tier=KvTier(gib=tier)) for tier in (75.0, 76.0)}
    with_tier = {tier: {each.kv_tier for each in found(whole)} - {None} for tier, whole in tiers.items()}
    assert with_tier == {75.0: {KvTier(gib=75.0)}, 76.0: set()}
