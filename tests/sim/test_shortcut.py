"""Stepping over stretches changes nothing: the same records, totals and learned costs as step by step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.cost import CostModel
from headway.core.slo import Slo
from headway.policies.policy import Policy
from headway.policies.presets import build_policy, find_preset, known_presets
from headway.predict.steps.copies import TransferModel
from headway.sim.killed_steps import KILLING_ROWS, build_killing
from headway.sim.oracles import ORACLES
from headway.sim.simulation import Policies, PolicyFactory, System
from headway.traces import TraceRequest
from tests.policies.batching.test_mixed_step import SharedKernel
from tests.sim.swapping import restless
from tests.sim.worlds import LIMIT, Linear, calibration, limits, request, run, slo
from tests.strategies import FEW

NOISE = (0.9, 1.0, 1.0, 1.3)
LAW = Linear(0.5, 0.01, 0.002)


@st.composite
def traces(draw: st.DrawFn) -> list[TraceRequest]:
    """Requests with long quiet stretches, ties, shared prefixes and targets."""
    times = sorted(draw(st.lists(st.integers(0, 60).map(lambda t: t / 2), min_size=1, max_size=12)))
    return [
        request(
            f"{number:02}",
            arrival_s,
            draw(st.integers(1, 60)),
            draw(st.integers(1, LIMIT)),
            slo=slo(draw(st.sampled_from([2.0, 9.0]))) if draw(st.booleans()) else slo(100.0),
            prefix_blocks=(draw(st.integers(0, 2)),) if draw(st.booleans()) else (),
        )
        for number, arrival_s in enumerate(times)
    ]


@st.composite
def systems(draw: st.DrawFn) -> System:
    """Engines short of blocks or seats, synchronous or not, one or two of them."""
    sizes = limits(
        num_blocks=draw(st.sampled_from([32, 60, 400])),
        max_num_seqs=draw(st.integers(1, 6)),
        max_num_batched_tokens=draw(st.sampled_from([16, 100])),
        prefix_caching=draw(st.booleans()),
        asynchronous=draw(st.booleans()),
    )
    costs = calibration(LAW, NOISE, host_s=draw(st.sampled_from([0.0, 0.05])))
    return System(limits=sizes, calibration=costs, instances=draw(st.integers(1, 2)), router="least-work")


def same_either_way(trace: list[TraceRequest], policy: Policies, system: System) -> None:
    costs: list[list[CostModel]] = [[], []]

    def keeping(number: int) -> Policies:
        if not isinstance(policy, Mapping):
            return keeping_one(number, policy)
        return {pool: keeping_one(number, build) for pool, build in policy.items()}

    def keeping_one(number: int, build: PolicyFactory) -> PolicyFactory:
        def build_kept(cost: CostModel) -> Policy:
            costs[number].append(cost)
            return build(cost)

        return build_kept

    short = run(trace, keeping(0), system, shortcut=True)
    long = run(trace, keeping(1), system, shortcut=False)
    assert short == long
    assert list(short[0]) == list(long[0])
    assert list(map(_known, costs[0])) == list(map(_known, costs[1]))


def _known(cost: CostModel) -> tuple[float, float, float]:
    """An engine's learned costs."""
    return (cost.prefill_s(50), cost.swap_out_s(9), cost.swap_in_s(9))


PRESETS = [*known_presets(), "slack", "waited-over-length", "expired", "bounded"]
OTHERS = {
    "slack": {"order": "slack"},
    "waited-over-length": {"order": "waited-over-length"},
    "expired": {"leaving": ("expired",)},
    "bounded": {"leaving": ("queue-bound:max_waiting=3,max_age_s=6",)},
}


@pytest.mark.parametrize("name", PRESETS)
@FEW
@given(trace=traces(), system=systems(), bytes_per_s=st.sampled_from([20.0, 200.0, 1e6, None]))
def test_records_are_the_same(
    name: str, trace: list[TraceRequest], system: System, bytes_per_s: float | None
) -> None:
    row = find_preset("vllm", **OTHERS[name]) if name in OTHERS else find_preset(name)  # type: ignore[arg-type]
    if bytes_per_s is not None and not row.eviction.startswith("recompute"):
        system = with_host(system, bytes_per_s)
    same_either_way(trace, lambda cost: build_policy(row, cost), system)


def with_host(system: System, bytes_per_s: float) -> System:
    """The same engines with a host of 40 blocks, and copies at this speed."""
    copies = TransferModel(start_s=0.01, bytes_per_s=bytes_per_s)
    return replace(
        system,
        limits=replace(system.limits, host_blocks=40),
        calibration=replace(system.calibration, to_host=copies, to_device=copies),
    )


@FEW
@given(trace=traces(), system=systems(), targets=st.booleans())
def test_the_moment_at_which_one_has_waited_too_long_is_not_stepped_over(
    trace: list[TraceRequest], system: System, targets: bool
) -> None:
    row = find_preset("headway", order="on-time:patience_s=3")
    asked = trace if targets else [replace(each, slo=Slo()) for each in trace]
    same_either_way(asked, lambda cost: build_policy(row, cost), system)


@pytest.mark.parametrize("name", ORACLES)
@FEW
@given(trace=traces().map(lambda trace: trace[:5]), system=systems())
def test_under_the_bounds_too(name: str, trace: list[TraceRequest], system: System) -> None:
    same_either_way(trace, ORACLES[name]({each.id: each.output_tokens for each in trace}), system)


@pytest.mark.parametrize("name", KILLING_ROWS)
@FEW
@given(trace=traces(), system=systems())
def test_with_killed_steps_too(name: str, trace: list[TraceRequest], system: System) -> None:
    killable = replace(system.limits, asynchronous=False, prefix_caching=False)
    row = KILLING_ROWS[name]
    same_either_way(trace, lambda cost: build_killing(row, cost), replace(system, limits=killable))


@FEW
@given(trace=traces(), system=systems(), seed=st.integers(0, 99), bytes_per_s=st.sampled_from([20.0, 100.0]))
def test_with_copies_on_their_way_too(
    trace: list[TraceRequest], system: System, seed: int, bytes_per_s: float
) -> None:
    swapping = with_host(system, bytes_per_s)
    same_either_way(trace, restless(seed, 40, calm=True, serial=seed % 2 == 0), swapping)


def test_a_stretch_is_one_go() -> None:
    # One request of 50 tokens: its prefill and the first decode are planned, the rest is stepped over.
    planned = 0

    def counting(cost: CostModel) -> Policy:
        policy = build_policy(find_preset("vllm"), cost)

        class Counting(Policy):
            def plan(self, view):  # type: ignore[no-untyped-def]
                nonlocal planned
                planned += 1
                return Policy.plan(self, view)

        return Counting(policy.name, policy.order, policy.batching, policy.eviction)

    trace = [replace(request("a", 0.0, 4, 50), arrival_s=0.0)]
    records, result = run(trace, counting)
    assert (records["a"].finished_s, result.totals["0"].steps) == (50.0, 50)
    assert planned <= 4


@pytest.mark.parametrize("tbt_s", [None, 6.0, 8.0])
def test_saving_up_for_prompts_is_not_stepped_over(tbt_s: float | None) -> None:
    # Streams save up for prompts that wait.
    row = find_preset("headway", order="arrival", leaving=())
    streams = [request(f"x{n}", 0.0, 5, 60, slo=Slo(tbt_s=tbt_s)) for n in range(10)]
    trace = [*streams, *(request(f"p{n}", 61.0, 27, 60, slo=Slo(tbt_s=tbt_s)) for n in range(6))]
    sizes = limits(max_num_seqs=16, max_num_batched_tokens=64, prefix_caching=False)
    system = System(limits=sizes, calibration=calibration(SharedKernel()))
    short, long = (
        run(trace, lambda cost: build_policy(row, SharedKernel()), system, shortcut=shortcut)
        for shortcut in (True, False)
    )
    assert short == long
