"""A KV store beside the device, by hand: a second a step, half a second a block out and a quarter of one back in."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.job import Job, JobState
from headway.core.plan import Fate, Reason
from headway.core.record import Outcome, Record
from headway.predict.steps.copies import TransferModel
from headway.sim.kv_pool import KvPool
from headway.sim.kv_tiers import BlockStore, HostTier
from headway.sim.limits import KvTier
from headway.sim.simulation import SimulatedRun, System
from headway.traces import TraceRequest
from tests.policies.contract import Workload, workloads
from tests.sim.swapping import IN_S, Do, Script, restless, swapping_system
from tests.sim.test_limits import ONE_BLOCK_GIB
from tests.sim.worlds import calibration, request, run
from tests.strategies import SOME, UNTIMED, make_job


def tier_with_a_swapped_job(watermark_blocks: int = 0) -> tuple[HostTier, Job]:
    """8 free blocks of 4 tokens, and a job whose 8 computed tokens are on the host."""
    pool = KvPool(8, block_size=4, prefix_caching=False, watermark_blocks=watermark_blocks)
    tier = HostTier(pool, 8, restore_blocks=8, serial=False, in_flight=lambda job: False)
    swapped = make_job("swapped", prompt=8)
    pool.add(swapped)
    assert tier.start(swapped, 8) is None
    swapped.num_computed_tokens = 8
    assert tier.release(swapped, Fate.SWAP) is Fate.SWAP
    swapped.state = JobState.SWAPPED
    [copy] = tier.copies.started
    tier.copies.finish(copy)
    return tier, swapped


@pytest.mark.parametrize(("prompt", "misfit"), [(24, None), (28, Reason.BLOCKS)])
def test_who_comes_back_fits_if_a_prompt_that_has_begun_can_be_computed_to_its_end(
    prompt: int, misfit: Reason | None
) -> None:
    # The prompt holds one block of its 6, or 7; 7 are free. The job that comes back takes 2 and leaves 5, or 1 too few.
    tier, swapped = tier_with_a_swapped_job()
    begun = make_job("begun", prompt=prompt)
    tier.pool.add(begun)
    assert tier.start(begun, 4) is None
    assert tier.misfit(swapped) is misfit
    assert tier.start(swapped, 1) is misfit


def test_who_came_back_and_has_not_run_is_nobody_to_leave_blocks_for() -> None:
    # As in vLLM, whose watermark holds beside requests that run. The one that came back holds 2 of the 8 blocks its
    # tokens need; a newcomer may take the other 6, or it may run. Once it does, with 3, a newcomer is to leave one.
    tier, back = tier_with_a_swapped_job(watermark_blocks=1)
    back.num_output_tokens = 24
    assert tier.prefetch(back) is None
    newcomer = make_job("newcomer", prompt=24)
    tier.pool.add(newcomer)
    assert tier.misfit(newcomer) is None
    tier.copies.finish(tier.copies.started.pop())
    assert tier.resume(back, 4) is None
    newcomer.num_prompt_tokens = 20
    assert tier.misfit(newcomer) is Reason.WATERMARK


def test_what_a_copy_under_way_brings_is_sent_but_not_copied_yet() -> None:
    # 3 blocks, the last half full: once it is fuller, the copy does not show it truly, and it is to be sent.
    pool = KvPool(8, block_size=4, prefix_caching=False)
    copies = HostTier(pool, 8, restore_blocks=8, serial=False, in_flight=lambda job: False).copies
    job = make_job("job", prompt=10)
    pool.add(job)
    assert pool.start(job, 10) is None
    job.num_computed_tokens = 10
    sent = []
    for num_computed, under_way in ((10, False), (10, True), (11, True)):
        job.num_computed_tokens = num_computed
        if under_way and not copies.started:
            assert copies.offload(job) is None
        sent.append((copies.uncopied_blocks(job), copies.unsent_blocks(job)))
    assert sent == [(3, 3), (3, 0), (3, 1)]
    copies.finish(copies.started.pop())
    assert (copies.uncopied_blocks(job), copies.unsent_blocks(job)) == (1, 1)


DROP = Fate.RECOMPUTE


def stored_system(blocks: int, **limits: Any) -> System:
    """An engine of four seats with a store of so many blocks of four tokens."""
    sizes = {
        "host_blocks": 0,
        "prefix_caching": True,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 32,
        **limits,
    }
    return replace(swapping_system(**sizes), kv_tier=KvTier(gib=blocks * ONE_BLOCK_GIB))


def follow(script: Script, world: System, *requests: TraceRequest) -> tuple[dict[str, Record], SimulatedRun]:
    """Run a script, every step planned; stepping over stretches must not make a difference."""
    run_through = run(requests, Script(script.steps, script.serial).build, world)
    step_by_step = run(requests, script.build, world, shortcut=False)
    assert run_through == step_by_step
    return step_by_step


# ---- worked examples -----------------------------------------------------------------------------------

# Blocks of 4: the prompts take two, the first token generated (computed in the second step) a third.
A = request("a", 0.0, 8, 8)
B = request("b", 0.0, 8, 4)
D = request("d", 2.5, 12, 1)


def test_a_preempted_job_comes_back_by_a_load_of_what_the_device_has_lost() -> None:
    # Seven blocks. 0-1 both prompts, 1-2 a decode each: 9 tokens in three blocks. b is dropped at 2; its two full
    # blocks are stored by 3. d takes three blocks from 3 to 4, among them b's second; they are stored by 5.5, so that b
    # has no room before 6. a took its first block at 5: both are loaded, by 6.5, while a runs. b runs 7-8 and 8-9.
    script = Script({2.0: Do(preempt={"b": DROP}), 3.0: Do(hold="b")})
    records, result = follow(script, stored_system(16, num_blocks=7), A, B, D)
    seen = script.seen
    assert (seen[2.0].preempted, seen[3.0].ran) == ({"b": DROP}, ["a", "d"])
    assert (seen[5.0].coming, seen[5.0].passed_over) == (3, {"b": Reason.BLOCKS})
    assert (seen[6.0].ran, seen[6.0].restoring) == (["a"], [])
    assert seen[7.0].ran == ["a", "b"]
    assert (records["a"].finished_s, records["d"].finished_s, records["b"].finished_s) == (8.0, 4.0, 9.0)
    # Of b's 9 tokens, 8 are loaded.
    assert (records["b"].preemptions, records["b"].recomputed_tokens, records["b"].swapped_blocks) == (
        1,
        1,
        2,
    )
    totals = result.totals["0"]
    # d stores three blocks as it ends, and a three; b's are there.
    assert (totals.cached_tokens, totals.swapped_in_blocks, totals.swapped_out_blocks) == (8, 2, 2 + 3 + 3)


def test_without_a_store_it_computes_what_the_device_has_lost() -> None:
    script = Script({2.0: Do(preempt={"b": DROP}), 3.0: Do(hold="b")})
    records, _ = follow(script, replace(stored_system(16, num_blocks=7), kv_tier=None), A, B, D)
    # At 4 there is room, and its first block is found.
    assert (records["b"].finished_s, records["b"].recomputed_tokens) == (6.0, 9 - 4)


def test_full_blocks_stay_on_the_device_until_they_are_stored() -> None:
    # b's third block, which is not full, is free at once; the two others come free at 3.
    script = Script({2.0: Do(preempt={"b": DROP}), 3.0: Do(hold="b")})
    follow(script, stored_system(16, num_blocks=7), A, B)
    assert (script.seen[2.0].free, script.seen[3.0].free, script.seen[3.0].coming) == (1, 4, 0)
    slow = replace(calibration(), to_host=TransferModel(start_s=0.0, bytes_per_s=4 / 2.0))
    script = Script({2.0: Do(preempt={"b": DROP}), 3.0: Do(hold="b")})
    follow(script, replace(stored_system(16, num_blocks=7), calibration=slow), A, B)
    assert (script.seen[3.0].free, script.seen[3.0].coming) == (2, 2)


def turns(*, latency_ms: float = 0.0) -> System:
    """Blocks of 256 tokens, six of them on the device and ten in the store, a quarter of a second a block back in."""
    world = stored_system(1, num_blocks=6, block_size=256, max_num_batched_tokens=2048)
    per_s = TransferModel(start_s=0.0, bytes_per_s=256 / IN_S)
    tier = KvTier(gib=10 * 64 * ONE_BLOCK_GIB, latency_ms=latency_ms)
    return replace(
        world, calibration=replace(world.calibration, to_host=per_s, to_device=per_s), kv_tier=tier
    )


FIRST = request("first", 0.0, 513, 2, prefix_blocks=(1,))
OTHER = request("other", 4.0, 1100, 1)
SECOND = request("second", 8.0, 600, 1, prefix_blocks=(1, 2))


def test_a_newcomer_loads_the_part_of_its_prefix_that_only_the_store_holds() -> None:
    # `first` ends at 2 and leaves two full blocks. other takes five of the device's six from 4 to 5, the second among
    # them. second starts at 8 by loading that one, until 8.25, and then computes the other 88 tokens.
    script = Script({})
    records, result = follow(script, turns(), FIRST, OTHER, SECOND)
    assert records["second"].first_token_s == 9.25
    assert (result.totals["0"].cached_tokens, result.totals["0"].swapped_in_blocks) == (512, 1)
    assert result.totals["0"].tokens == 513 + 1 + 1100 + 600 - 512


def test_others_run_while_it_loads() -> None:
    long = request("long", 7.0, 8, 6)
    script = Script({})
    records, _ = follow(script, turns(latency_ms=1250.0), FIRST, OTHER, long, SECOND)
    # A start of 1.25 s and a block: from 8 to 9.5.
    assert (script.seen[8.0].ran, script.seen[9.0].ran) == (["long"], ["long"])
    assert (script.seen[9.0].restoring, script.seen[9.0].passed_over) == (
        ["second"],
        {"second": Reason.REMOTE_KV},
    )
    assert script.seen[10.0].ran == ["long", "second"]
    assert records["second"].finished_s == 11.0
    assert records["long"].finished_s == 13.0


def test_a_job_that_is_dropped_while_it_loads_keeps_nothing() -> None:
    long = request("long", 7.0, 8, 6)
    script = Script({9.0: Do(preempt={"second": DROP})})
    records, result = follow(script, turns(latency_ms=1250.0), FIRST, OTHER, long, SECOND)
    # Its load goes on to 9.5 for nobody. At 10 it starts a second one, to 11.5.
    assert records["second"].finished_s == 13.0
    assert result.totals["0"].swapped_in_blocks == 2


# ---- what the store holds ------------------------------------------------------------------------------


def filled(num_blocks: int, *sequences: list[int]) -> BlockStore:
    """A store of so many blocks to which these sequences went, one after another."""
    store = BlockStore(num_blocks)
    for keys in sequences:
        store.stored(store.reserve(keys))
        store.check()
    return store


def held(store: BlockStore) -> list[int]:
    return [key for key in range(10) if store.holds(key)]


def test_the_least_recently_used_make_room_the_last_of_a_sequence_first() -> None:
    assert held(filled(4, [1, 2, 3], [5, 6])) == [1, 2, 5, 6]
    # 1 and 2 are used again, so 5 and 6 are older.
    assert held(filled(4, [1, 2], [5, 6], [1, 2, 7])) == [1, 2, 5, 7]


def test_of_a_sequence_that_does_not_fit_the_first_blocks_are_stored() -> None:
    assert held(filled(3, [9], [1, 2, 3, 4])) == [1, 2, 3]
    assert held(filled(3, [1, 2], [1, 2, 3, 4])) == [1, 2, 3]


def test_a_block_is_found_once_it_has_come_and_is_sent_once() -> None:
    store = BlockStore(3)
    assert store.reserve([1, 2]) == [1, 2]
    assert held(store) == []
    assert store.reserve([1, 2, 3, 4]) == [3]  # room for one more
    store.stored([1, 2])
    assert held(store) == [1, 2]


def test_blocks_that_are_being_loaded_make_no_room() -> None:
    store = filled(2, [1, 2])
    store.load([1, 2])
    store.load([1])
    store.loaded([1, 2])
    assert store.reserve([5, 6]) == [5]
    store.loaded([1])
    store.stored([5])
    assert store.reserve([6]) == [6]
    assert held(store) == [5]


# ---- properties ----------------------------------------------------------------------------------------


@st.composite
def tiers(draw: st.DrawFn, workload: Workload) -> System:
    """The workload's engine with prefix caching, few blocks, and a store of some size and speed."""
    laws = st.builds(
        TransferModel,
        start_s=st.sampled_from([0.0, 0.3]),
        bytes_per_s=st.sampled_from([0.7, 4.0, 1000.0, inf]),
    )
    num_blocks = draw(st.sampled_from([8, 10, workload.engine.num_blocks]))
    limits = replace(workload.engine, num_blocks=num_blocks, host_blocks=0, prefix_caching=True)
    costs = replace(calibration(), to_host=draw(laws), to_device=draw(laws))
    blocks = draw(st.sampled_from([1, 3, 8, 100]))
    block_bytes = limits.block_size * costs.kv_bytes_per_token
    return System(limits=limits, calibration=costs, kv_tier=KvTier(gib=blocks * block_bytes / (1 << 30)))


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Workload, System]:
    """The contract's workloads before such an engine."""
    workload = draw(workloads())
    return workload, draw(tiers(workload))


def serve(
    workload: Workload, system: System, seed: int, **options: Any
) -> tuple[dict[str, Record], SimulatedRun]:
    """Run the workload under a policy that preempts as its dice say, every invariant checked at every step."""
    arrivals = sorted(workload.arrivals, key=lambda arrival: arrival.at_step)
    requests = [
        request(
            each.id, float(each.at_step), each.prompt, each.output, max_output_tokens=each.limit, slo=each.slo
        )
        for each in arrivals
    ]
    return run(requests, restless(seed, 40, host=False), system, **options)


@UNTIMED
@given(world=worlds(), seed=st.integers(0, 1000))
def test_everything_ends_every_block_is_somewhere_and_loads_end_once(
    world: tuple[Workload, System], seed: int
) -> None:
    workload, system = world
    records, result = serve(workload, system, seed)
    assert {id_: record.output_tokens for id_, record in records.items()} == {
        each.id: each.output for each in workload.arrivals
    }
    assert all(record.outcome is Outcome.FINISHED for record in records.values())
    totals = result.totals["0"]
    assert totals.swapped_out_blocks == sum(record.swapped_blocks for record in records.values())
    assert totals.preemptions == sum(record.preemptions for record in records.values())


@SOME
@given(world=worlds(), seed=st.integers(0, 1000))
def test_stepping_over_stretches_makes_no_difference(world: tuple[Workload, System], seed: int) -> None:
    workload, system = world
    assert serve(workload, system, seed) == serve(workload, system, seed, shortcut=False)


@SOME
@given(world=worlds(), seed=st.integers(0, 1000))
def test_a_tier_without_capacity_changes_nothing(world: tuple[Workload, System], seed: int) -> None:
    workload, system = world
    empty, none = replace(system, kv_tier=KvTier(gib=0.0)), replace(system, kv_tier=None)
    assert serve(workload, empty, seed) == serve(workload, none, seed)


@SOME
@given(workload=workloads(), seed=st.integers(0, 1000))
def test_where_transfers_take_no_time_only_the_last_block_is_computed_again(
    workload: Workload, seed: int
) -> None:
    limits = replace(
        workload.engine, host_blocks=0, prefix_caching=True, asynchronous=False, pipeline_stages=1
    )
    tier = KvTier(gib=1.0, gib_per_s=inf, latency_ms=0.0)
    system = System(limits=limits, calibration=calibration(), kv_tier=tier)
    records, _ = serve(workload, system, seed)
    for record in records.values():
        assert record.recomputed_tokens <= record.preemptions * limits.block_size
