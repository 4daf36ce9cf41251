"""The simulated engine decides as the real scheduler; all presets and 50,000 steps: `bench/right/conformance.py`."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from bench.right.conformance import (
    HOST_BLOCKS,
    MANY_HOST_BLOCKS,
    NARROW,
    PLENTY_BLOCKS,
    SHORT_BLOCKS,
    SPARE_BLOCKS,
    ConformanceCase,
    FixedCost,
    RealEngine,
    Scripted,
    SimulatedSide,
    compare,
    grid,
    job_of,
    limits_of,
    make_script,
)
from bench.right.conformance_steps import Tally
from headway.core.cost import UnknownCost
from headway.core.job import Job
from headway.core.length_estimate import LengthEstimate
from headway.core.plan import Reason
from headway.engine.demo_model import ensure_demo_random
from headway.engine.model_free import ScriptedRequest
from headway.policies.presets import build_policy, find_preset
from headway.sim.kv_pool import KvPool
from tests.sim.swapping import restless

pytestmark = pytest.mark.vllm

REQUESTS = 40


@pytest.fixture(scope="module")
def model() -> str:
    return str(ensure_demo_random())


@pytest.fixture(scope="module")
def script() -> Sequence[Scripted]:
    return make_script(REQUESTS, seed=5)


class NewestFirst(KvPool):
    """Loses the newest contents first: the line of free blocks is turned round for each start."""

    def start(self, job: Job, num_tokens: int) -> Reason | None:
        self._turn()
        misfit = super().start(job, num_tokens)
        self._turn()
        return misfit

    def _turn(self) -> None:
        self._free = OrderedDict(reversed(self._free.items()))


def tallies(
    case: ConformanceCase, model: str, script: Sequence[Scripted], ours: SimulatedSide | None = None
) -> tuple[Tally, Tally]:
    free, forced = Tally(), Tally()
    compare(case, RealEngine(case, model), ours or SimulatedSide(case), list(script), free, forced, every=16)
    return free, forced


@pytest.mark.parametrize(
    ("preset", "prefix_caching", "asynchronous"),
    # Each preset with and without either, and all pairs of the two.
    [
        *(("vllm", False, False), ("vllm", True, True), ("vllm-v0", False, True), ("vllm-v0", True, False)),
        *(("edf", False, False), ("edf", True, True), ("headway", False, True), ("headway", True, False)),
        *(("vllm-0.2.5", False, False), ("vllm-0.2.5", True, True)),
    ],
)
def test_every_decision_is_the_real_ones(
    preset: str, prefix_caching: bool, asynchronous: bool, model: str, script: Sequence[Scripted]
) -> None:
    case = ConformanceCase(preset, prefix_caching, SHORT_BLOCKS, asynchronous)
    free, forced = tallies(case, model, script)
    assert free.first_difference is None
    assert forced.differing == []
    assert free.met["preemptions"] > 0
    assert free.decisions > 1000
    assert forced.steps > 10
    assert bool(free.met["cached_tokens"]) == prefix_caching


@pytest.mark.parametrize("asynchronous", [False, True], ids=["one deep", "two deep"])
@pytest.mark.parametrize("preset", ["vllm-s-fallback", "adaptivellm", "adaptivellm-plus"])
def test_every_swap_is_the_real_ones(
    preset: str, asynchronous: bool, model: str, script: Sequence[Scripted]
) -> None:
    case = ConformanceCase(preset, True, SHORT_BLOCKS, asynchronous, HOST_BLOCKS)
    free, forced = tallies(case, model, script)
    assert free.first_difference is None
    assert forced.differing == []
    assert free.met["swaps"] > 0


@pytest.mark.parametrize(
    ("serial", "prefix_caching", "asynchronous"),
    [(False, False, False), (False, True, True), (True, False, True), (True, True, False)],  # all pairs
)
def test_offloads_prefetches_and_jobs_put_back_are_the_real_ones(
    serial: bool, prefix_caching: bool, asynchronous: bool, model: str, script: Sequence[Scripted]
) -> None:
    case = ConformanceCase("vllm", prefix_caching, SHORT_BLOCKS, asynchronous, HOST_BLOCKS)
    build = restless(seed=3, steps=300, serial=serial)
    real = RealEngine(case, model, build(UnknownCost()))
    ours = SimulatedSide(case, policy=build(UnknownCost()))
    free, forced = Tally(), Tally()
    compare(case, real, ours, list(script), free, forced, every=16)
    assert free.first_difference is None
    assert forced.differing == []
    assert free.met["swaps"] > 50
    assert real.scheduler.counters.policy_faults == 0


@pytest.mark.parametrize(
    ("preset", "prefix_caching", "asynchronous"),
    [
        *(("ascendra-lp", False, False), ("ascendra-lp", True, True)),
        *(("ascendra-hp", False, True), ("ascendra-hp", True, False)),
    ],
)
def test_everybody_who_leaves_is_who_leaves_the_real_one(
    preset: str, prefix_caching: bool, asynchronous: bool, model: str, script: Sequence[Scripted]
) -> None:
    free, forced = tallies(ConformanceCase(preset, prefix_caching, SHORT_BLOCKS, asynchronous), model, script)
    assert free.first_difference is None
    assert forced.differing == []
    assert free.met["expiries"] > 0
    assert (free.met["hand_offs"] > 0) == (preset == "ascendra-lp")


@pytest.mark.parametrize("asynchronous", [False, True], ids=["one deep", "two deep"])
@pytest.mark.parametrize("prefix_caching", [False, True], ids=["no caching", "caching"])
def test_prompts_that_take_turns_within_a_small_budget_are_the_real_ones(
    prefix_caching: bool, asynchronous: bool, model: str, script: Sequence[Scripted]
) -> None:
    case = ConformanceCase("ascendra-lp", prefix_caching, SPARE_BLOCKS, asynchronous)
    row = find_preset("ascendra-lp", batching="within-budgets:token_budget=64,width=12,patience_s=1")
    real = RealEngine(case, model, build_policy(row, FixedCost()))
    ours = SimulatedSide(case, policy=build_policy(row, FixedCost()))
    free, forced = Tally(), Tally()
    compare(case, real, ours, list(script), free, forced, every=16)
    assert free.first_difference is None
    assert forced.differing == []
    assert min(free.met["pauses"], free.met["hand_offs"]) > 0, free.met
    assert real.scheduler.counters.policy_faults == 0


PAUSING: dict[str, dict[str, Any]] = {
    "its own": {},
    "swapping in need": {"eviction": "proactive:ahead=false,serial=true"},
    "dropping": {"eviction": "proactive:drop=true,ahead=false"},
    "reserving": {"batching": "top-jobs:reserve=true", "eviction": "recompute"},
    "by rank": {"eviction": "proactive:burst_levels=0,by_rank=true"},
}
"""Parts in place of `fastserve`'s."""
AHEAD = ("pauses", "offloads", "prefetches", "put_back", "demotions", "promotions")


@pytest.mark.parametrize(
    ("prefix_caching", "asynchronous"), [(False, True), (True, False)], ids=["two deep", "caching"]
)
@pytest.mark.slow
def test_every_move_ahead_of_need_is_the_real_ones(
    prefix_caching: bool, asynchronous: bool, model: str
) -> None:
    case = ConformanceCase("fastserve", prefix_caching, SPARE_BLOCKS, asynchronous, MANY_HOST_BLOCKS, NARROW)
    real, free, forced = RealEngine(case, model), Tally(), Tally()
    compare(case, real, SimulatedSide(case), make_script(2 * REQUESTS, seed=0), free, forced, every=16)
    assert free.first_difference is None
    assert forced.differing == []
    assert free.met["swaps"] > 50
    assert all(free.met[what] > 0 for what in AHEAD), free.met
    counters = real.scheduler.counters
    moves = ("pauses", "swaps", "offloads", "prefetches", "put_back")
    counted = (counters.pauses, counters.swaps, counters.offloads, counters.prefetches, counters.put_backs)
    assert counted == tuple(free.met[what] for what in moves)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["one deep", "two deep"])
@pytest.mark.parametrize("parts", PAUSING)
@pytest.mark.slow
def test_who_runs_in_a_narrow_batch_over_little_memory_is_the_real_ones(
    parts: str, asynchronous: bool, model: str, script: Sequence[Scripted]
) -> None:
    row = find_preset("fastserve", **PAUSING[parts])
    host_blocks = HOST_BLOCKS if build_policy(row).uses_host else 0
    case = ConformanceCase("fastserve", False, SHORT_BLOCKS, asynchronous, host_blocks, NARROW)
    real = RealEngine(case, model, build_policy(row, FixedCost()))
    free, forced = Tally(), Tally()
    ours = SimulatedSide(case, policy=build_policy(row, FixedCost()))
    compare(case, real, ours, list(script), free, forced, every=16)
    assert free.first_difference is None
    assert forced.differing == []
    assert free.met["pauses"] > 100
    assert (free.met["preemptions"] > 0) == (parts != "reserving")
    assert (free.met["swaps"] > 0) == (host_blocks > 0)


@pytest.mark.parametrize(
    ("prefix_caching", "asynchronous"), [(False, True), (True, False)], ids=["two deep", "caching"]
)
@pytest.mark.slow
def test_every_decision_by_predicted_lengths_is_the_real_ones(
    prefix_caching: bool, asynchronous: bool, model: str
) -> None:
    case = ConformanceCase("predicted", prefix_caching, SHORT_BLOCKS, asynchronous, HOST_BLOCKS, NARROW)
    real, free, forced = RealEngine(case, model), Tally(), Tally()
    compare(case, real, SimulatedSide(case), make_script(2 * REQUESTS, seed=0), free, forced, every=16)
    assert free.first_difference is None
    assert forced.differing == []
    # It begins with the queues, and goes by predictions once enough answers have ended.
    assert 100 < free.met["trusting"] < free.steps - 100
    assert real.scheduler.counters.distrusting_steps == free.steps - free.met["trusting"]


def test_a_prediction_off_by_a_tenth_is_noticed(
    model: str, script: Sequence[Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    def longer(scripted: ScriptedRequest, now_s: float) -> Job:
        job = job_of(scripted, now_s)
        if job.predicted_length is not None:
            job.predicted_length = LengthEstimate.around(1.1 * job.predicted_length.tokens)
        return job

    monkeypatch.setattr("bench.right.conformance.job_of", longer)
    free, _ = tallies(ConformanceCase("hrrn", False, SHORT_BLOCKS, False), model, script)
    assert "simulated" in (free.first_difference or "")


def test_a_quantum_too_long_is_noticed(model: str, script: Sequence[Scripted]) -> None:
    case = ConformanceCase("fastserve", False, SHORT_BLOCKS, False, batch_width=NARROW)
    ours = SimulatedSide(
        case, policy=build_policy(find_preset("fastserve", order="skip-join-mlfq:quantum_s=0.06"))
    )
    free, _ = tallies(case, model, script, ours)
    assert "levels: simulated" in (free.first_difference or "")


def test_the_grid_has_host_memory_for_those_that_swap_and_narrow_batches_for_those_that_pause() -> None:
    memory: dict[str, list[tuple[int, int | None]]] = defaultdict(list)
    for case in grid(["vllm", "fastserve", "vllm-s"]):
        memory[case.preset].append((case.host_blocks, case.batch_width))
    assert {preset: sorted(set(found), key=str) for preset, found in memory.items()} == {
        "vllm": [(0, None)],
        "fastserve": [
            *((0, NARROW), (0, None), (HOST_BLOCKS, NARROW), (HOST_BLOCKS, None)),
            (MANY_HOST_BLOCKS, NARROW),
        ],
        "vllm-s": [(0, None), (HOST_BLOCKS, None)],
    }


def test_a_request_that_may_move_after_all_is_noticed(
    model: str, script: Sequence[Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    def moving(scripted: ScriptedRequest, now_s: float) -> Job:
        job = job_of(scripted, now_s)
        job.may_move = True
        return job

    monkeypatch.setattr("bench.right.conformance.job_of", moving)
    free, _ = tallies(ConformanceCase("ascendra-lp", False, SHORT_BLOCKS, False), model, script)
    assert "departures: simulated" in (free.first_difference or "")


def test_a_host_block_too_few_is_noticed(model: str, script: Sequence[Scripted]) -> None:
    case = ConformanceCase("vllm-s-fallback", False, SHORT_BLOCKS, False, HOST_BLOCKS)
    ours = SimulatedSide(case, replace(limits_of(case), host_blocks=HOST_BLOCKS - 1))
    free, _ = tallies(case, model, script, ours)
    assert "free_before: simulated" in (free.first_difference or "")


def test_a_block_too_many_kept_free_is_noticed(model: str, script: Sequence[Scripted]) -> None:
    case = ConformanceCase("vllm", False, SHORT_BLOCKS, False)
    ours = SimulatedSide(case, replace(limits_of(case), watermark_blocks=1))
    free, forced = tallies(case, model, script, ours)
    assert "admitted: simulated [" in (free.first_difference or "")
    assert forced.differing == []  # the copied engine has the real limits


def test_another_order_of_free_blocks_is_noticed(model: str, script: Sequence[Scripted]) -> None:
    case = ConformanceCase("vllm", True, SHORT_BLOCKS, False)
    ours = SimulatedSide(case)
    ours.engine.pool.__class__ = NewestFirst
    free, _ = tallies(case, model, script, ours)
    assert free.first_difference is not None


def test_with_plenty_of_blocks_nobody_is_preempted(model: str, script: Sequence[Scripted]) -> None:
    free, _ = tallies(ConformanceCase("vllm", True, PLENTY_BLOCKS, True), model, script)
    assert (free.first_difference, free.met["preemptions"]) == (None, 0)
