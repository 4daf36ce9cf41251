"""Whatever a policy swaps, offloads and prefetches, everything ends and every block is accounted for."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from headway.core.record import Outcome, Record
from headway.predict.steps.copies import TransferModel
from headway.sim.limits import EngineLimits
from headway.sim.simulation import SimulatedRun, System
from tests.policies.contract import Workload, workloads
from tests.sim.swapping import restless
from tests.sim.worlds import calibration, request, run
from tests.strategies import UNTIMED


@st.composite
def host_tiers(draw: st.DrawFn, engine: EngineLimits) -> System:
    """The engine with a host of some size and copies that take from no time to several steps."""
    laws = st.builds(
        TransferModel, start_s=st.sampled_from([0.0, 0.3]), bytes_per_s=st.sampled_from([0.7, 4.0, 1000.0])
    )
    limits = replace(
        engine,
        num_blocks=draw(st.sampled_from([8, 10, engine.num_blocks])),
        host_blocks=draw(st.sampled_from([1, 4, 40])),
        restore_share=draw(st.sampled_from([0.2, 0.5, 1.0])),
    )
    costs = replace(calibration(), to_host=draw(laws), to_device=draw(laws))
    return System(limits=limits, calibration=costs)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Workload, System]:
    """The contract's workloads before such an engine."""
    workload = draw(workloads())
    return workload, draw(host_tiers(workload.engine))


def serve(
    workload: Workload, system: System, seed: int, steps: int, *, drops: bool = True
) -> tuple[dict[str, Record], SimulatedRun]:
    """Run the workload, every invariant checked at every step."""
    arrivals = sorted(workload.arrivals, key=lambda arrival: arrival.at_step)
    requests = [
        request(
            each.id, float(each.at_step), each.prompt, each.output, max_output_tokens=each.limit, slo=each.slo
        )
        for each in arrivals
    ]
    return run(requests, restless(seed, steps, drops=drops, serial=seed % 2 == 0), system)


@UNTIMED
@given(world=worlds(), seed=st.integers(0, 1000), steps=st.integers(0, 60))
def test_everything_ends_and_is_accounted_for(world: tuple[Workload, System], seed: int, steps: int) -> None:
    workload, system = world
    records, result = serve(workload, system, seed, steps)
    assert {id_: record.output_tokens for id_, record in records.items()} == {
        each.id: each.output for each in workload.arrivals
    }
    assert all(record.outcome is Outcome.FINISHED for record in records.values())
    totals = result.totals["0"]
    assert totals.swapped_out_blocks == sum(record.swapped_blocks for record in records.values())
    assert totals.preemptions == sum(record.preemptions for record in records.values())


@UNTIMED
@given(world=worlds(), seed=st.integers(0, 1000))
def test_the_same_run_twice(world: tuple[Workload, System], seed: int) -> None:
    workload, system = world
    assert serve(workload, system, seed, 30) == serve(workload, system, seed, 30)


@UNTIMED
@given(world=worlds(), seed=st.integers(0, 1000))
def test_with_room_for_all_every_token_is_computed_once(world: tuple[Workload, System], seed: int) -> None:
    workload, system = world
    roomy = replace(system.limits, num_blocks=100, host_blocks=100, prefix_caching=False)
    records, result = serve(workload, replace(system, limits=roomy), seed, 30, drops=False)
    assert all(record.recomputed_tokens == 0 for record in records.values())
    needed = sum(each.prompt + each.output - 1 for each in workload.arrivals)
    # Two deep, the step after a job's last one may compute a token for nobody.
    assert 0 <= result.totals["0"].tokens - needed <= system.limits.asynchronous * len(records)
