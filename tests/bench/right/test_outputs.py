"""Tokens under forced pauses and preemptions: the bench's own parts, and its check on the real CPU engine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

import pytest

from bench.right.forced import SEATS, SPARED, Answers, forced_settings, register_parts, storm_settings
from bench.right.outputs import FEATURES, WHOLE, Cell, outputs, passed, write_requests
from headway.core.fill import fill
from headway.core.ledger import Ledger
from headway.core.plan import StepPlan
from headway.core.plan_check import check_plan
from headway.core.view import StepView
from headway.engine.settings import EngineSettings
from headway.policies.policy import Policy
from headway.policies.presets import PRESETS, Preset, build_policy
from tests.core.block_pool import BlockPool
from tests.policies.instance import snapshot
from tests.strategies import make_job

STEPS = 60


@pytest.mark.engine
@pytest.mark.parametrize("preset", ["vllm", pytest.param("vllm-v0", marks=pytest.mark.long)])
def test_plain_outputs_are_stocks_whoever_is_paused_and_preempted(preset: str) -> None:
    cell = outputs([preset], ["plain"], 16)[preset]["plain"]
    assert passed(cell), cell
    assert cell["requests"] == cell["identical"] == 16
    assert int(cell["preemptions"]) > 0
    assert int(cell["pauses"]) > 0


@pytest.mark.engine
def test_outputs_are_stocks_though_requests_pause_and_move_all_the_time() -> None:
    cell = outputs(["fastserve"], ["storm-prefix"], 32)["fastserve"]["storm-prefix"]
    # Not `passed`: it asks for copies ahead of need too; whether there are two or none hangs on how long steps take.
    assert cell["requests"] == cell["identical"] == 32
    assert int(cell["pauses"]) > 500
    assert int(cell["swaps"]) > 100


@pytest.mark.engine
@pytest.mark.long
def test_what_vllm_itself_cannot_do_is_named() -> None:
    table = outputs(["vllm"], ["seeded-chunks"], 4)
    assert table == {"vllm": {"seeded-chunks": {"unsupported": "CPU Generator does not use offset"}}}


COUNTED: Cell = {"requests": 9, "identical": 8, "near_ties": 1, "preemptions": 3, "pauses": 4}


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (COUNTED, True),
        ({**COUNTED, "near_ties": 0}, False),
        ({**COUNTED, "error": "too few pauses"}, False),
        ({"error": "the engine's process ended"}, False),
        ({"unsupported": "why"}, True),
    ],
)
def test_a_cell_passes_only_if_each_request_is_identical_or_a_near_tie(cell: Cell, expected: bool) -> None:
    assert passed(cell) is expected


@dataclass
class Logprob:
    logprob: float


def test_answers_differ_by_request_and_part_by_logprob() -> None:
    likely = [{5: Logprob(-0.1), 6: Logprob(-3.0)}, {7: Logprob(-1.0), 8: Logprob(-1.5)}]
    stock = Answers(
        tokens={(0, 0): [5, 7], (1, 0): [5, 7], (2, 0): [5], (2, 1): [6]},
        logprobs={(0, 0): likely, (1, 0): likely, (2, 0): [], (2, 1): []},
    )
    other = Answers(tokens={(0, 0): [5, 8], (1, 0): [5], (2, 0): [5], (2, 1): [5]})
    assert stock.differing(stock) == set()
    assert stock.differing(other) == {0, 1, 2}
    assert stock.gap(other, 0) == 0.5
    assert stock.gap(other, 1) == inf  # cut short: there is no other token to compare with


@pytest.mark.parametrize("feature", FEATURES)
def test_requests_repeat_and_a_whole_prompt_fits_whoever_sits_beside_it(feature: str) -> None:
    for load in FEATURES[feature].loads:
        requests = write_requests(feature, load, 200)
        assert requests == write_requests(feature, load, 200)
        assert any(not request.greedy for request in requests) == load.seeded
        longest = max(len(request.prompt) + request.sampling["max_tokens"] for request in requests)
        whole = load.token_budget >= WHOLE.token_budget and not FEATURES[feature].apart
        assert not whole or longest * SEATS <= load.token_budget


@pytest.mark.parametrize(
    ("preset", "order"),
    [
        ("fastserve", "skip-join-mlfq:quantum_s=0.005,starve_s=0.05"),
        ("fastserve-v3", "skip-join-mlfq:starve_s=0.05,demote_levels=2,quantum_s=0.005"),
        ("fixed-priority", "shortest-prompt"),
    ],
)
def test_in_a_storm_quanta_are_short_and_all_else_is_the_presets(preset: str, order: str) -> None:
    settings = EngineSettings(**storm_settings(PRESETS[preset]))
    assert settings.preset() == replace(PRESETS[preset], order=order)
    assert build_policy(settings.preset()).name == preset
    assert settings.batch_width is not None
    assert settings.batch_width < SEATS


@pytest.fixture
def _registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bench's parts registered by entry points, as its worker finds them."""
    register_parts(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def _plans(preset: Preset, seed: int) -> list[StepPlan]:
    """The plans of some steps on a simulated engine, each checked; no job ever ends."""
    policy: Policy = build_policy(EngineSettings(**forced_settings(preset, seed)).preset())
    ledger, pool = Ledger(), BlockPool(100, block_size=4, watermark_blocks=0)
    for number in range(12):
        job = make_job(f"{number:02}", prompt=3 * number + 2, limit=4, tenant=SPARED if number % 2 else "")
        ledger.arrive(job)
        policy.add(job)
    plans = []
    for step in range(STEPS):
        view = StepView(
            now_s=float(step),
            residents=ledger.residents,
            waiting=ledger.waiting.values(),
            free_blocks=pool.free_blocks,
            total_blocks=100,
            block_size=4,
            max_run=SEATS,
            max_resident=SEATS,
            max_tokens=20,
            admissible=lambda job: pool.misfit(job) is None,
        )
        plan = policy.plan(view)
        check_plan(plan, view, ledger)
        plans.append(plan)
        outcome = fill(plan, ledger.residents, pool, now_s=view.now_s, max_run=SEATS, max_resident=SEATS)
        ledger.apply(outcome)
        policy.observe(outcome)
    return plans


@pytest.mark.usefixtures("_registered")
@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_a_disturbed_preset_keeps_the_rules_and_repeats_itself(preset: Preset) -> None:
    plans = _plans(preset, seed=1)
    assert any(plan.preempt for plan in plans)
    capped = {job for plan in plans for job in plan.chunk_cap}
    assert capped
    cuts_prompts_itself = preset.batching.startswith(("within-budgets", "paced"))
    assert (SPARED in {job.tenant for job in capped}) == cuts_prompts_itself
    taken = [snapshot(plan) for plan in plans]
    assert taken == [snapshot(plan) for plan in _plans(preset, seed=1)]
    assert taken != [snapshot(plan) for plan in _plans(preset, seed=2)]
