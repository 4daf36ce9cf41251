"""The simulated engine decides as the real scheduler; all presets and 50,000 steps: `bench/conformance.py`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

import pytest

from bench.conformance import (
    HOST_BLOCKS,
    PLENTY_BLOCKS,
    SHORT_BLOCKS,
    Case,
    RealEngine,
    Scripted,
    SimulatedSide,
    Tally,
    compare,
    limits_of,
    make_script,
)
from headway.core.cost import UnknownCost
from headway.core.job import Job
from headway.core.plan import Reason
from headway.engine.demo_model import ensure_demo_model
from headway.sim.kv_pool import KvPool
from tests.sim.swapping import restless

pytestmark = pytest.mark.vllm

REQUESTS = 40


@pytest.fixture(scope="module")
def model() -> str:
    return str(ensure_demo_model())


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
    case: Case, model: str, script: Sequence[Scripted], ours: SimulatedSide | None = None
) -> tuple[Tally, Tally]:
    free, forced = Tally(), Tally()
    compare(case, RealEngine(case, model), ours or SimulatedSide(case), list(script), free, forced, every=16)
    return free, forced


@pytest.mark.parametrize("asynchronous", [False, True], ids=["one deep", "two deep"])
@pytest.mark.parametrize("prefix_caching", [False, True], ids=["no caching", "caching"])
@pytest.mark.parametrize("preset", ["vllm", "vllm-v0", "edf"])
def test_every_decision_is_the_real_ones(
    preset: str, prefix_caching: bool, asynchronous: bool, model: str, script: Sequence[Scripted]
) -> None:
    case = Case(preset, prefix_caching, SHORT_BLOCKS, asynchronous)
    free, forced = tallies(case, model, script)
    assert free.first_difference is None
    assert forced.differing == []
    assert free.preemptions > 0
    assert free.decisions > 1000
    assert forced.steps > 10
    assert bool(free.cached_tokens) == prefix_caching


@pytest.mark.parametrize("asynchronous", [False, True], ids=["one deep", "two deep"])
@pytest.mark.parametrize("preset", ["vllm-s-fallback", "adaptivellm", "adaptivellm-plus"])
def test_every_swap_is_the_real_ones(
    preset: str, asynchronous: bool, model: str, script: Sequence[Scripted]
) -> None:
    case = Case(preset, True, SHORT_BLOCKS, asynchronous, HOST_BLOCKS)
    free, forced = tallies(case, model, script)
    assert free.first_difference is None
    assert forced.differing == []
    assert free.swaps > 0


@pytest.mark.parametrize("asynchronous", [False, True], ids=["one deep", "two deep"])
@pytest.mark.parametrize("prefix_caching", [False, True], ids=["no caching", "caching"])
@pytest.mark.parametrize("serial", [False, True], ids=["overlapped", "serial"])
def test_offloads_prefetches_and_jobs_put_back_are_the_real_ones(
    serial: bool, prefix_caching: bool, asynchronous: bool, model: str, script: Sequence[Scripted]
) -> None:
    case = Case("vllm", prefix_caching, SHORT_BLOCKS, asynchronous, HOST_BLOCKS)
    build = restless(seed=3, steps=300, serial=serial)
    real = RealEngine(case, model, build(UnknownCost()))
    ours = SimulatedSide(case, policy=build(UnknownCost()))
    free, forced = Tally(), Tally()
    compare(case, real, ours, list(script), free, forced, every=16)
    assert free.first_difference is None
    assert forced.differing == []
    assert free.swaps > 50
    assert real.scheduler.counters.policy_faults == 0


def test_a_host_block_too_few_is_noticed(model: str, script: Sequence[Scripted]) -> None:
    case = Case("vllm-s-fallback", False, SHORT_BLOCKS, False, HOST_BLOCKS)
    ours = SimulatedSide(case, replace(limits_of(case), host_blocks=HOST_BLOCKS - 1))
    free, _ = tallies(case, model, script, ours)
    assert "free_before: simulated" in (free.first_difference or "")


def test_a_block_too_many_kept_free_is_noticed(model: str, script: Sequence[Scripted]) -> None:
    case = Case("vllm", False, SHORT_BLOCKS, False)
    ours = SimulatedSide(case, replace(limits_of(case), watermark_blocks=1))
    free, forced = tallies(case, model, script, ours)
    assert "admitted: simulated [" in (free.first_difference or "")
    assert forced.differing == []  # the copied engine has the real limits


def test_another_order_of_free_blocks_is_noticed(model: str, script: Sequence[Scripted]) -> None:
    case = Case("vllm", True, SHORT_BLOCKS, False)
    ours = SimulatedSide(case)
    ours.engine.pool.__class__ = NewestFirst
    free, _ = tallies(case, model, script, ours)
    assert free.first_difference is not None


def test_with_plenty_of_blocks_nobody_is_preempted(model: str, script: Sequence[Scripted]) -> None:
    free, _ = tallies(Case("vllm", True, PLENTY_BLOCKS, True), model, script)
    assert (free.first_difference, free.preemptions) == (None, 0)
