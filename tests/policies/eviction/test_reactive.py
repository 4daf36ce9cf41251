"""AdaptiveLLM Algorithm 1 by hand: blocks of 4; a victim of 32 tokens has 8 of them."""

from __future__ import annotations

import pytest

from headway.core.job import Job
from headway.core.plan import Fate
from headway.policies.batching.decode_first import DecodeFirst
from headway.policies.eviction.cheapest import Cheapest
from headway.policies.eviction.reactive import Recompute, Swap
from headway.policies.presets import PRESETS, Preset, find_preset
from tests.policies.batching.scene import Scene
from tests.policies.contract import Arrival, Workload, drive, from_preset
from tests.policies.eviction.stage import Prices, copied, evicted, resident, stage
from tests.policies.instance import small_engine
from tests.strategies import decoding, ids


def test_nobody_is_preempted_ahead_of_need() -> None:
    scene = Scene(DecodeFirst(), residents=[decoding("a"), decoding("b")], free_blocks=0)
    plan = scene.plan()
    assert Recompute().evict(scene.view, plan, scene.order) is plan
    assert not plan.preempt


def test_on_shortage_the_last_resident_is_dropped_and_computed_again_by_hand() -> None:
    # 4 blocks of 4. Step 0: a and b take two blocks each for their prompts of 8 and bring a token. Step 1: a's
    # 9th token needs a third block: b, last, is dropped with 8 computed. a brings its 2nd and last token and ends.
    # Step 2: b computes its 8 and the token it had, 9 in all, and brings its 2nd and last.
    arrivals = tuple(Arrival(id=id_, at_step=0, prompt=8, output=2, limit=2) for id_ in "ab")
    workload = Workload(arrivals, small_engine(num_blocks=4, max_num_batched_tokens=32))
    run = drive(from_preset(PRESETS["vllm"])(workload), workload)
    assert run.ended == [set(), {"a"}, {"b"}]
    outcomes = run.instance.outcomes
    assert [{job.id: count for job, count in o.tokens.items()} for o in outcomes] == [
        {"a": 8, "b": 8},
        {"a": 1},
        {"b": 9},
    ]
    assert [{job.id: fate for job, fate in o.preempted.items()} for o in outcomes] == [
        {},
        {"b": Fate.RECOMPUTE},
        {},
    ]
    record = run.instance.records["b"]
    assert (record.preemptions, record.recomputed_tokens) == (1, 8)


def steps_of(row: Preset, workload: Workload) -> list[dict[str, int]]:
    """The tokens of each step."""
    run = drive(from_preset(row)(workload), workload)
    return [{job.id: count for job, count in outcome.tokens.items()} for outcome in run.instance.outcomes]


def test_vllm_0_2_5_wants_a_free_block_for_a_sequence_that_needs_none_by_hand() -> None:
    # The prompts take 2 blocks each, all there are. No next token opens a block: a's 7th and b's 6th have room.
    # vLLM 0.2.5 still finds no block free for a, drops b, has 2 free, and runs a, which ends. Then b is computed
    # again, with the token it had.
    arrivals = tuple(
        Arrival(id=id_, at_step=0, prompt=prompt, output=2, limit=2) for id_, prompt in (("a", 6), ("b", 5))
    )
    workload = Workload(arrivals, small_engine(num_blocks=4, max_num_batched_tokens=32))
    assert steps_of(PRESETS["vllm-v0"], workload) == [{"a": 6, "b": 5}, {"a": 1, "b": 1}]
    assert steps_of(PRESETS["vllm-0.2.5"], workload) == [{"a": 6, "b": 5}, {"a": 1}, {"b": 6}]


@pytest.mark.parametrize("eviction", ["recompute:", "swap:", "cheapest:serial=true,min_residency=2,"])
def test_a_prompt_in_chunks_does_not_leave_for_a_free_block_by_hand(eviction: str) -> None:
    # 3 blocks of 4, steps of 5 tokens. a's prompt takes one block, the first chunk of b's the two others. The second
    # chunk, 2 tokens, opens none, and none is free. If b left for that, it would start again, and a wait, for ever.
    arrivals = (
        Arrival(id="a", at_step=0, prompt=3, output=2, limit=2),
        Arrival(id="b", at_step=0, prompt=7, output=1, limit=1),
    )
    workload = Workload(arrivals, small_engine(num_blocks=3, max_num_batched_tokens=5))
    row = find_preset("vllm-v0", order="edf", eviction=f"{eviction}free_block_each=true")
    assert steps_of(row, workload) == [{"a": 3}, {"b": 5}, {"b": 2}, {"a": 1}]


@pytest.mark.parametrize(("free", "victims"), [(0, ["idle"]), (1, ["idle"]), (2, [])])
def test_the_last_job_finds_a_block_free_when_those_before_it_have_theirs(
    free: int, victims: list[str]
) -> None:
    # first opens a block. idle, behind it, opens none: of 2 free blocks one is left for it, of 1 none. With 0 it goes
    # for first's block.
    first, idle = resident("first", 2, 50.0), decoding("idle", prompt=30, arrival_s=90.0)
    plan = evicted(Recompute(free_block_each=True), stage(first, idle, free=free))
    assert (ids(plan.preempt), ids(plan.run)) == (victims, ["first", "idle"][: 2 - len(victims)])


@pytest.mark.parametrize(
    "eviction", [Recompute(free_block_each=True), Swap(serial=True, fallback=False, free_block_each=True)]
)
def test_no_job_pauses_for_a_block_that_it_does_not_need(eviction: Recompute | Swap) -> None:
    # Alone, or with a full host and no way to recompute, jobs go on while they have room in their blocks.
    idle, other = (decoding(id_, prompt=30, arrival_s=90.0) for id_ in ("idle", "other"))
    jobs = [idle] if isinstance(eviction, Recompute) else [idle, other]
    plan = evicted(eviction, stage(*jobs, free=0, host=0))
    assert (plan.preempt, list(plan.run)) == ({}, jobs)


@pytest.mark.parametrize(("host", "victims"), [(12, []), (11, ["long"]), (10, ["long"])])
def test_with_host_room_the_residents_hold_no_more_than_the_host(host: int, victims: list[str]) -> None:
    # short and long hold 2 + 8 blocks and open one each: 12 in all. The device has blocks to spare.
    view = stage(resident("short", 2), resident("long", 8), free=50, host=host)
    view.host_total_blocks = host
    plan = evicted(Swap(serial=True, fallback=False, host_room=True), view)
    assert (ids(plan.preempt), ids(plan.run)) == (victims, ["short", "long"][: 2 - len(victims)])


def test_with_host_room_a_lone_job_grows_beyond_the_host() -> None:
    view = stage(resident("long", 8), free=50)
    view.host_total_blocks = 3
    assert ids(evicted(Swap(serial=True, fallback=False, host_room=True), view).run) == ["long"]


SWAP, RECOMPUTE = Fate.SWAP, Fate.RECOMPUTE
SHORT, LONG = resident("short", 2), resident("long", 8)


def fate(prices: Prices | None, *done: Job, host: int = 100, **settings: bool) -> Fate:
    """The fate of the victim, which has 8 blocks, 32 tokens; the host has a copy of those done."""
    view = copied(stage(SHORT, LONG, free=1, host=host), *done)
    plan = evicted(Cheapest(prices, serial=True, **settings), view)
    assert (list(plan.preempt), ids(plan.run), list(plan.admit)) == ([LONG], ["short"], [])
    return plan.preempt[LONG]


@pytest.mark.parametrize(
    ("prices", "expected"),
    [
        (Prices(token_s=1.0, out_s=2.0, in_s=1.0), SWAP),  # 16 + 8 = 24 s against 32 s
        (Prices(token_s=1.0, out_s=3.0, in_s=1.5), RECOMPUTE),  # 24 + 12 = 36 s against 32 s
        (Prices(token_s=1.0, out_s=2.5, in_s=1.5), RECOMPUTE),  # 20 + 12 = 32 s: a tie
        (Prices(token_s=1.0, out_s=0.0, in_s=0.0), SWAP),  # copies not known yet: the first one is tried
        (Prices(token_s=0.0, out_s=0.0, in_s=0.0), RECOMPUTE),  # nothing known: a tie
        (None, RECOMPUTE),  # no cost model: a tie
    ],
)
def test_a_victim_is_swapped_only_if_that_is_predicted_to_be_cheaper(
    prices: Prices | None, expected: Fate
) -> None:
    assert fate(prices) is expected


@pytest.mark.parametrize(
    ("prices", "expected"),
    [
        (Prices(out_s=3.0, in_s=1.5), SWAP),  # 24 s out, beside 12 s back; 32 s to compute
        (Prices(out_s=1.5, in_s=4.0), RECOMPUTE),  # 32 s back: a tie
    ],
)
def test_beside_the_steps_the_longer_way_counts(prices: Prices, expected: Fate) -> None:
    assert evicted(Cheapest(prices), stage(SHORT, LONG, free=1)).preempt == {LONG: expected}


@pytest.mark.parametrize(("host", "expected"), [(8, SWAP), (7, RECOMPUTE), (0, RECOMPUTE)])
def test_the_host_must_have_room_for_it(host: int, expected: Fate) -> None:
    assert fate(Prices(out_s=0.1, in_s=0.1), host=host) is expected


def test_what_is_on_the_host_already_is_not_paid_for_again() -> None:
    # 0 + 8 x 2.5 = 20 s against 32 s, although a copy out would be another 80 s; and the host needs no room.
    assert fate(Prices(out_s=10.0, in_s=2.5), LONG, host=0) is SWAP


@pytest.mark.parametrize(
    ("load_token_s", "stored", "expected"),
    [
        (0.5, 0, SWAP),  # 8 + 8 = 16 s to swap against 32 s to compute
        (0.5, 32, RECOMPUTE),  # a load of 16 s: a tie
        (0.6, 32, SWAP),  # 19.2 s
        (0.25, 24, RECOMPUTE),  # 6 s, and the last 8 tokens take 8 s
        (0.25, 16, SWAP),  # 4 s, and 16 s
    ],
)
def test_a_dropped_victim_loads_what_a_store_holds(load_token_s: float, stored: int, expected: Fate) -> None:
    victim = resident("long", 8)
    victim.num_stored_tokens = stored
    prices = Prices(load_token_s=load_token_s)
    plan = evicted(Cheapest(prices, serial=True), stage(SHORT, victim, free=1))
    assert plan.preempt == {victim: expected}


def test_predicting_by_itself_changes_nothing() -> None:
    asked: list[int] = []

    class Asked(Prices):
        def swap_out_s(self, num_blocks: int) -> float:
            asked.append(num_blocks)
            return 0.0

    assert fate(Asked(), always_recompute=True) is RECOMPUTE
    assert asked == [8]


def test_each_victim_has_its_own_price() -> None:
    # long: 32 s against 8 x 3 = 24 s, swapped. tiny, of one block and one token: 1 s against 3 s, recomputed.
    tiny = resident("tiny", 1, waited_s=0.1)
    tiny.num_prompt_tokens, tiny.num_computed_tokens = 1, 1
    grows = resident("grows", 2, waited_s=1000.0)
    grows.num_prompt_tokens = 48  # 40 more tokens: ten blocks
    plan = evicted(Cheapest(Prices(out_s=2.0, in_s=1.0), serial=True), stage(grows, LONG, tiny, free=1))
    assert plan.preempt == {tiny: RECOMPUTE, LONG: SWAP}


def test_beside_the_steps_a_recomputed_victim_leaves_at_once_and_a_swapped_one_later() -> None:
    view = stage(SHORT, LONG)
    assert ids(evicted(Cheapest(Prices(out_s=9.0)), view).run) == ["short"]
    assert ids(evicted(Cheapest(Prices(out_s=0.1, in_s=0.1)), view).run) == []
