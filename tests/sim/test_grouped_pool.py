from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headway.core.job import Job
from headway.core.plan import Reason
from headway.errors import ConfigError
from headway.predict.models.kv_groups import KvGroup
from headway.sim.grouped_pool import GroupedKvPool
from headway.sim.limits import EngineLimits, KvTier
from headway.sim.simulation import System
from tests.sim.worlds import SECOND_STEPS, limits, request, run
from tests.strategies import make_job

SIZE = 4
GEMMA = (KvGroup(block_size=SIZE), KvGroup(block_size=SIZE, window=6))


def pool(num_blocks: int = 20, groups: tuple[KvGroup, ...] = GEMMA, **more: Any) -> GroupedKvPool:
    in_flight: dict[Job, int] = more.pop("in_flight", {})
    return GroupedKvPool(
        num_blocks,
        groups,
        block_size=SIZE,
        prefix_caching=more.pop("caching", True),
        most_in_flight=8,
        in_flight=lambda job: in_flight.get(job, 0),
        **more,
    )


def start(pool: GroupedKvPool, id_: str, prompt: int, shared: tuple[int, ...] = ()) -> Job:
    job = make_job(id_, prompt=prompt)
    pool.add(job, shared)
    cached = pool.cached_tokens(job)
    assert pool.start(job, prompt - cached) is None
    job.num_computed_tokens = prompt
    return job


def grow(pool: GroupedKvPool, job: Job, num_tokens: int) -> None:
    assert pool.grow(job, num_tokens)
    job.num_computed_tokens += num_tokens


def test_every_group_has_a_table_and_one_with_a_window_forgets() -> None:
    kv = pool()
    job = start(kv, "a", 12)  # three blocks in each of two groups
    assert kv.free_blocks == 20 - 6
    grow(
        kv, job, 1
    )  # a fourth in each; the next token sees 8 to 13, so that of the window the first has gone
    assert kv.free_blocks == 20 - 8 + 1
    grow(kv, job, 4)
    assert kv.free_blocks == 20 - (5 + 5 - 2)
    kv.check([job])
    kv.forget(job)
    assert kv.free_blocks == 20


def test_what_is_in_flight_is_still_read() -> None:
    in_flight: dict[Job, int] = {}
    kv = pool(in_flight=in_flight)
    job = start(kv, "a", 12)
    in_flight[job] = 12
    grow(kv, job, 1)
    assert kv.free_blocks == 20 - 8


def test_a_prompt_hits_what_all_groups_have() -> None:
    kv = pool(40)
    first = start(kv, "a", 17, (1, 2, 3, 4))
    grow(kv, first, 1)  # of the window blocks 1 to 3 have gone, and can still be found
    second = make_job("b", prompt=17)
    kv.add(second, (1, 2, 3, 9))
    assert kv.cached_tokens(second) == 12
    # Held: three full blocks, of the window the one that token 13 sees, and what both groups take for tokens 13 to 17.
    before = kv.free_blocks
    assert kv.start(second, 5) is None
    assert kv.free_blocks == before - 2 * 2 - 2
    kv.check([first, second])
    assert kv.finds(second, 2)


def test_a_group_that_has_lost_blocks_shortens_what_is_found() -> None:
    kv = pool(8)
    first = start(kv, "a", 13, (1, 2, 3))
    kv.forget(first)
    taker = start(kv, "t", 5)  # takes the two empty blocks, then 3 and 2 of the group without a window
    again = make_job("b", prompt=13)
    kv.add(again, (1, 2, 3))
    assert kv.cached_tokens(again) == 4
    kv.check([taker])


def test_a_job_is_admitted_by_what_its_windows_hold_at_most() -> None:
    long = 100  # 25 full blocks, and of the window 5 kept and 8 in flight: four and one
    assert pool().blocks_for(long) == 25 + 5
    job = make_job("a", prompt=long)
    for blocks, expected in ((30, None), (29, Reason.ISL)):
        kv = pool(blocks)
        kv.add(job)
        assert kv.misfit(job) is expected
        assert kv.missing_blocks(job) == 30 - blocks
    kv = pool(30, watermark_blocks=1)
    kv.add(job)
    assert kv.misfit(job) is None  # a watermark is kept beside running jobs alone
    start(kv, "b", 1)
    assert kv.misfit(job) is Reason.ISL


def test_a_job_that_finds_no_block_stays_as_it_is() -> None:
    kv = pool(6)
    job = start(kv, "a", 12)
    assert not kv.grow(job, 1)
    kv.check([job])


def test_without_caching_nothing_is_found() -> None:
    kv = pool(caching=False)
    kv.forget(start(kv, "a", 12, (1, 2, 3)))
    again = make_job("b", prompt=12)
    kv.add(again, (1, 2, 3))
    assert kv.cached_tokens(again) == 0


# ---- whole runs --------------------------------------------------------------------------------------


def windowed(**sizes: Any) -> EngineLimits:
    groups = (KvGroup(block_size=SIZE), KvGroup(block_size=SIZE, window=6))
    return replace(limits(**{"block_size": SIZE, "num_blocks": 60, **sizes}), kv_groups=groups)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_run_with_windows_serves_all_and_loses_no_block(asynchronous: bool) -> None:
    requests = [request(f"{number}", 0.3 * number, prompt=8 + number, output=12) for number in range(30)]
    system = System(limits=windowed(asynchronous=asynchronous), calibration=SECOND_STEPS)
    records, _ = run(requests, "vllm", system)
    assert len(records) == 30
    assert {record.output_tokens for record in records.values()} == {12}


def test_windows_leave_room_for_more_requests() -> None:
    requests = [request(f"{number}", 0.0, prompt=40, output=8) for number in range(8)]
    both = (KvGroup(count=2, block_size=SIZE),)
    every = System(limits=replace(windowed(), kv_groups=both), calibration=SECOND_STEPS)
    some = System(limits=windowed(), calibration=SECOND_STEPS)
    ends = [run(requests, "vllm", each)[1].end_s for each in (some, every)]
    assert ends[0] < ends[1]


def test_blocks_of_groups_are_not_copied() -> None:
    with pytest.raises(ConfigError, match=r"host_blocks.*sliding windows"):
        replace(windowed(), host_blocks=8)
    with pytest.raises(ConfigError, match="sliding windows"):
        System(limits=windowed(), calibration=SECOND_STEPS, kv_tier=KvTier(gib=1))
