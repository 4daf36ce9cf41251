"""Which jobs have to leave, worked out by hand: blocks of 4, and residents whose next token opens one each."""

from __future__ import annotations

from headway.core.plan import Fate, StepOutcome, StepPlan
from headway.policies.eviction.reactive import Swap
from headway.policies.order.response_ratio import WaitedOverLength
from tests.policies.eviction.stage import copied, evicted, on_its_way, resident, stage
from tests.strategies import decoding, ids, make_job

SWAP, RECOMPUTE = Fate.SWAP, Fate.RECOMPUTE
# Waited 10 s each, so the longer ranks lower: short 10/9, middle 10/17, long 10/33.
SHORT, MIDDLE, LONG = resident("short", 2), resident("middle", 4), resident("long", 8)


def test_the_lowest_ranked_leaves_and_nobody_starts() -> None:
    # Three need a block each, two are free. Although middle is last in the engine's order, long goes.
    plan = evicted(Swap(serial=True), stage(LONG, SHORT, MIDDLE, free=2))
    assert plan.preempt == {LONG: SWAP}
    assert (ids(plan.run), list(plan.admit)) == (["short", "middle"], [])


def test_a_paused_job_may_be_the_victim() -> None:
    plan = evicted(Swap(serial=True), stage(SHORT, LONG), run=[SHORT])
    assert (plan.preempt, ids(plan.run)) == ({LONG: SWAP}, ["short"])


def test_a_paused_job_needs_nothing() -> None:
    view = stage(SHORT, LONG, free=1)
    assert not evicted(Swap(serial=True), view, run=[SHORT]).preempt


def test_one_that_is_alone_is_left_to_the_engine() -> None:
    plan = evicted(Swap(), stage(SHORT))
    assert (plan.preempt, list(plan.run)) == ({}, [SHORT])


def test_beside_the_steps_whoever_needs_a_block_waits_for_the_copies() -> None:
    # long's eight blocks come free when they are copied. Until then one of the two others can run: the higher.
    # idle needs none, so it runs on although it ranks lowest of the three.
    idle = decoding("idle", prompt=30, arrival_s=90.0)
    plan = evicted(Swap(), stage(LONG, MIDDLE, SHORT, idle, free=1))
    assert (plan.preempt, ids(plan.run)) == ({LONG: SWAP}, ["short", "idle"])


def test_blocks_that_are_coming_free_save_a_victim() -> None:
    plan = evicted(Swap(), stage(LONG, SHORT, free=1, blocks_coming_free=1))
    assert (plan.preempt, ids(plan.run), list(plan.admit)) == ({}, ["short"], [])


def test_nobody_may_be_left_to_run_while_copies_are_under_way() -> None:
    plan = evicted(Swap(), stage(LONG, SHORT, blocks_coming_free=5))
    assert (plan.preempt, list(plan.run)) == ({}, [])


def test_what_is_on_the_host_already_leaves_at_once() -> None:
    plan = evicted(Swap(), copied(stage(LONG, SHORT, free=1), LONG))
    assert (plan.preempt, ids(plan.run)) == ({LONG: SWAP}, ["short"])


def test_what_is_on_its_way_to_the_host_has_its_room_there_and_leaves_when_it_has_arrived() -> None:
    # Without a copy under way a full host means to recompute; with one, long's eight blocks are coming free.
    for host, done in ((0, ()), (0, (LONG,))):
        plan = evicted(Swap(), on_its_way(stage(LONG, SHORT, host=host), *done))
        assert (plan.preempt, ids(plan.run)) == (
            ({LONG: SWAP}, []) if done else ({LONG: RECOMPUTE}, ["short"])
        )


def test_a_victim_in_flight_leaves_its_blocks_later_even_with_serial_copies() -> None:
    flying = decoding("flying", prompt=32, arrival_s=90.0, num_computed_tokens=33, num_output_placeholders=1)
    plan = evicted(Swap(serial=True), stage(flying, SHORT))
    assert (plan.preempt, list(plan.run)) == ({flying: SWAP}, [])


def test_a_job_on_its_way_back_leaves_its_blocks_when_its_copy_ends() -> None:
    plan = evicted(Swap(serial=True), stage(LONG, SHORT, restoring=[LONG]))
    assert (plan.preempt, list(plan.run)) == ({LONG: SWAP}, [])


def test_a_full_host_means_to_recompute() -> None:
    # long has eight blocks, the host room for seven; middle's four are not wanted.
    plan = evicted(Swap(serial=True), stage(LONG, MIDDLE, SHORT, free=2, host=7))
    assert plan.preempt == {LONG: RECOMPUTE}


def test_the_host_fills_up_with_each_victim() -> None:
    # z, y, x, w leave in this order, for the four blocks of a prompt; the host has room for two of them.
    jobs = [
        resident(name, 1, waited) for name, waited in (("w", 40.0), ("x", 30.0), ("y", 20.0), ("z", 10.0))
    ]
    giant = make_job("giant", prompt=20, arrival_s=-1e6, num_computed_tokens=4, state=SHORT.state)
    plan = evicted(Swap(serial=True), stage(giant, *jobs, host=2))
    assert list(plan.preempt.values()) == [SWAP, SWAP, RECOMPUTE, RECOMPUTE]


def test_without_a_host_everybody_is_recomputed() -> None:
    view = copied(stage(LONG, SHORT, free=1, host=0), LONG)
    view.host_total_blocks = 0
    assert evicted(Swap(), view).preempt == {LONG: RECOMPUTE}


def test_without_fallback_a_full_host_pauses_whoever_needs_blocks() -> None:
    plan = evicted(Swap(serial=True, fallback=False), stage(LONG, MIDDLE, SHORT, free=1, host=0))
    assert (plan.preempt, ids(plan.run), list(plan.admit)) == ({}, ["short"], [])


def test_without_fallback_the_next_that_fits_the_host_leaves() -> None:
    # The host has room for middle's four blocks and not for long's eight.
    plan = evicted(Swap(serial=True, fallback=False), stage(LONG, MIDDLE, SHORT, host=4))
    assert (plan.preempt, ids(plan.run)) == ({MIDDLE: SWAP}, ["short", "long"][::-1])


def test_when_nobody_could_run_at_all_the_lowest_is_recomputed_after_all() -> None:
    plan = evicted(Swap(serial=True, fallback=False), stage(LONG, SHORT, host=0))
    assert (plan.preempt, ids(plan.run)) == ({LONG: RECOMPUTE}, ["short"])


def test_tokens_given_up_go_to_others_who_then_open_more_blocks() -> None:
    # A budget of 6: beside d and e, which get a token each, a prompt of 40 tokens gets 4 and opens a block; d opens
    # another. Without d it gets 5 and opens two, and d gave one: e, who needs none, has to go too.
    prompt = make_job("prompt", prompt=40, arrival_s=-1e6, num_computed_tokens=4, state=SHORT.state)
    d, e = resident("d", 1), decoding("e", prompt=3, arrival_s=90.0)
    plan = StepPlan(run=[d, e, prompt], token_budget=6)
    made = Swap(serial=True).evict(stage(d, e, prompt), plan, WaitedOverLength())
    assert (list(made.preempt), list(made.run)) == ([d, e], [prompt])


def test_a_step_whose_only_job_leaves_has_no_work() -> None:
    # Only the lowest is to run, and it is the one that goes; the paused others are not this plan's business.
    plan = evicted(Swap(serial=True), stage(LONG, SHORT), run=[LONG])
    assert (plan.preempt, list(plan.run)) == ({LONG: SWAP}, [])


def test_who_was_just_admitted_is_spared_for_so_many_steps() -> None:
    # long is the lowest; admitted two steps ago, it is spared for two steps and then is a victim again.
    eviction = Swap(serial=True, min_residency=2)
    view = stage(LONG, MIDDLE, SHORT, free=2)

    def step(*admitted: object) -> None:
        eviction.observe(StepOutcome(now_s=0.0, plan=StepPlan(), admitted=list(admitted)))  # type: ignore[arg-type]

    step(LONG)
    assert list(evicted(eviction, view).preempt) == [MIDDLE]
    step()
    assert list(evicted(eviction, view).preempt) == [MIDDLE]
    step()
    assert list(evicted(eviction, view).preempt) == [LONG]


def test_the_spared_go_where_there_is_nobody_else() -> None:
    eviction = Swap(serial=True, min_residency=1)
    eviction.observe(StepOutcome(now_s=0.0, plan=StepPlan(), admitted=[LONG, MIDDLE]))
    assert list(evicted(eviction, stage(LONG, MIDDLE, SHORT, free=2)).preempt) == [LONG]
