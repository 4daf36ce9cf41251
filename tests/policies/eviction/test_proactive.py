"""FastServe's moves by hand: blocks of 4, 100 in all; a second a block each way."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given

from headway.core.job import Job, JobState
from headway.core.plan import Fate, StepOutcome, StepPlan
from headway.core.view import StepView
from headway.errors import ConfigError
from headway.policies.eviction.proactive import Proactive
from headway.policies.order.keyed import ShortestPrompt
from headway.policies.presets import PRESETS, find_preset
from tests.policies.contract import Arrival, Run, Workload, drive, from_preset, workloads
from tests.policies.eviction.foretold import Foretold
from tests.policies.eviction.stage import NOW_S, Prices, copied, resident, stage
from tests.policies.instance import small_engine
from tests.strategies import FEW, decoding, ids, make_job

SWAP, RECOMPUTE = Fate.SWAP, Fate.RECOMPUTE
RUNS = decoding("runs", prompt=2)
"""Its next token needs no block."""


def newcomer(id_: str, blocks: int) -> Job:
    """A waiting job of so many blocks."""
    return make_job(id_, prompt=4 * blocks, arrival_s=NOW_S)


def swapped(id_: str, blocks: int) -> Job:
    """One on the host, whose next token is in the last of so many blocks."""
    return decoding(id_, prompt=4 * blocks - 1, state=JobState.SWAPPED)


def world(soon_s: dict[Job, float], *, free: int, host: int = 100, **fields: Any) -> StepView:
    """These jobs; all but `runs` are paused or queued."""
    view = stage(*(job for job in soon_s if job.state is JobState.RESIDENT), free=free, host=host, **fields)
    view.waiting = [job for job in soon_s if job.state is JobState.WAITING]
    view.swapped = [job for job in soon_s if job.state is JobState.SWAPPED]
    view.max_resident = 99
    return view


def plan(
    soon_s: dict[Job, float],
    *,
    free: int,
    at_first: int = 0,
    view: dict[str, Any] | None = None,
    prices: Prices | None = None,
    eviction: Proactive | None = None,
    **settings: Any,
) -> StepPlan:
    """The plan of a step in which `runs` runs; two blocks are kept idle by default."""
    settings = {"idle_jobs": 2, "burst_levels": 0, **settings}
    made = eviction or Proactive(prices or Prices(), **settings)
    soon_s = {RUNS: 0.0, **soon_s}
    return made.evict(
        world(soon_s, free=free, **(view or {})),
        StepPlan(run=[RUNS], token_budget=64),
        Foretold(soon_s, at_first),
    )


EARLY, LATE = resident("early", 3), resident("late", 3)
PAUSED = {EARLY: 5.0, LATE: 9.0}


# ---- who leaves ------------------------------------------------------------------------------------


def test_who_is_served_last_leaves_while_the_idle_room_is_lacking() -> None:
    # One block is free, two are to be: late's three are enough.
    made = plan(PAUSED, free=1)
    assert (made.preempt, ids(made.run)) == ({LATE: SWAP}, ["runs"])
    assert plan(PAUSED, free=2).preempt == {}


def test_blocks_that_are_coming_free_are_not_made_again() -> None:
    assert plan(PAUSED, free=1, view={"blocks_coming_free": 1}).preempt == {}


def test_by_default_a_block_is_kept_for_each_job_of_a_batch() -> None:
    # A batch is eight.
    assert plan(PAUSED, free=7, idle_jobs=None).preempt == {LATE: SWAP}
    assert plan(PAUSED, free=8, idle_jobs=None).preempt == {}


def test_a_burst_asks_for_as_many_jobs_of_the_usual_size_as_have_come() -> None:
    # 60 of 100 blocks are held by three: 20 each. Two jobs at the first levels: 40 blocks are to be free.
    assert plan(PAUSED, free=40, at_first=2, burst_levels=2).preempt == {}
    assert plan(PAUSED, free=39, at_first=2, burst_levels=2).preempt == {LATE: SWAP}
    assert plan(PAUSED, free=39, at_first=2, burst_levels=0).preempt == {}


def test_half_of_the_memory_is_kept_idle_at_most() -> None:
    # 49 free: 51 held, 17 each; eight of them are 136, but 50 are enough.
    assert plan(PAUSED, free=49, at_first=9, burst_levels=2).preempt == {LATE: SWAP}
    assert plan(PAUSED, free=50, at_first=9, burst_levels=2).preempt == {}


@pytest.mark.parametrize(("late_s", "leaves"), [(9.0, False), (9.5, True)])
def test_a_resident_leaves_for_a_newcomer_served_sooner_by_more_than_its_copy(
    late_s: float, leaves: bool
) -> None:
    # n needs 6 blocks and is served in 6 s; late's 3 blocks take 3 s to copy: later than 6 + 3 it goes.
    made = plan({LATE: late_s, newcomer("n", 6): 6.0}, free=5)
    assert (LATE in made.preempt) == leaves


@pytest.mark.parametrize(("late_s", "leaves"), [(15.0, False), (15.5, True)])
def test_for_one_that_comes_back_both_copies_count(late_s: float, leaves: bool) -> None:
    # s needs 6 blocks beside the two idle ones: 6 + 3 out + 6 in.
    made = plan({LATE: late_s, swapped("s", 6): 6.0}, free=5)
    assert (LATE in made.preempt) == leaves


def test_what_is_copied_already_costs_nothing_to_leave() -> None:
    eviction = Proactive(Prices(), idle_jobs=2, burst_levels=0)
    soon_s = {RUNS: 0.0, LATE: 6.5, newcomer("n", 6): 6.0}
    view = world(soon_s, free=5)
    assert eviction.evict(view, StepPlan(run=[RUNS]), Foretold(soon_s)).preempt == {}
    copied(view, LATE)
    assert eviction.evict(view, StepPlan(run=[RUNS]), Foretold(soon_s)).preempt == {LATE: SWAP}


def test_among_those_whose_turn_is_now_the_rank_decides() -> None:
    # Here by id: n ranks behind both, a before both.
    assert plan({EARLY: 0.0, LATE: 0.0, newcomer("n", 6): 0.0}, free=5).preempt == {}
    assert plan({EARLY: 0.0, LATE: 0.0, newcomer("a", 6): 0.0}, free=5).preempt == {LATE: SWAP}


def test_whoever_runs_stays() -> None:
    soon_s = {RUNS: 99.0, EARLY: 1.0}
    made = Proactive(Prices(), idle_jobs=2, burst_levels=0).evict(
        world(soon_s, free=0), StepPlan(run=[RUNS], token_budget=64), Foretold(soon_s)
    )
    assert made.preempt == {EARLY: SWAP}


def test_where_blocks_run_out_that_alone_is_dealt_with() -> None:
    # grows opens a block and there is none: late, the last, goes for it; early stays though the idle room is lacking.
    grows = resident("grows", 2)
    soon_s = {grows: 0.0, EARLY: 5.0, LATE: 9.0}
    made = Proactive(Prices(), idle_jobs=9, burst_levels=0).evict(
        world(soon_s, free=0), StepPlan(run=[grows], token_budget=64), Foretold(soon_s)
    )
    assert made.preempt == {LATE: SWAP}


# ---- who is left alone -----------------------------------------------------------------------------


def test_who_has_lost_its_kv_too_often_stays() -> None:
    tired = resident("tired", 3)
    tired.num_preemptions = 3
    for budget, gone in ((4, tired), (3, EARLY)):
        assert plan({EARLY: 5.0, tired: 9.0}, free=1, max_preemptions=budget).preempt == {gone: SWAP}


def test_who_has_only_just_come_stays_for_so_many_steps() -> None:
    eviction = Proactive(Prices(), idle_jobs=2, burst_levels=0, min_residency=2)
    for admitted, gone in (([LATE], EARLY), ([], EARLY), ([], LATE)):
        eviction.observe(StepOutcome(now_s=0.0, plan=StepPlan(), admitted=list(admitted)))
        assert plan(PAUSED, free=1, eviction=eviction).preempt == {gone: SWAP}


def test_who_is_being_moved_or_computed_stays() -> None:
    assert plan(PAUSED, free=1, view={"restoring": [LATE]}).preempt == {EARLY: SWAP}
    flying = decoding("flying", prompt=12, num_computed_tokens=13)
    assert plan({EARLY: 5.0, flying: 9.0}, free=1).preempt == {EARLY: SWAP}


def test_where_the_host_is_full_nobody_leaves_ahead_of_need() -> None:
    # It has room for two blocks, and each has three.
    assert plan(PAUSED, free=1, view={"host": 2}).preempt == {}


def test_without_a_host_nobody_leaves_ahead_of_need() -> None:
    soon_s = {RUNS: 0.0, **PAUSED}
    view = world(soon_s, free=0, host=0)
    view.host_total_blocks = 0
    wanted = StepPlan(run=[RUNS], token_budget=64)
    assert Proactive(Prices(), burst_levels=0).evict(view, wanted, Foretold(soon_s)) is wanted


# ---- who comes back, and who is copied beforehand --------------------------------------------------


def test_those_on_the_host_come_back_the_soonest_first() -> None:
    # 12 free, 2 idle: 4 + 4 fit, a third does not.
    jobs = {swapped("c", 4): 3.0, swapped("b", 4): 1.0, swapped("a", 4): 2.0}
    assert ids(plan(jobs, free=12).prefetch) == ["b", "a"]


def test_whoever_is_admitted_by_its_rank_is_not_named_again() -> None:
    back = swapped("a", 4)
    soon_s = {RUNS: 0.0, back: 1.0}
    made = Proactive(Prices(), idle_jobs=2, burst_levels=0).evict(
        world(soon_s, free=50), StepPlan(run=[RUNS], admit=[back], token_budget=64), Foretold(soon_s)
    )
    assert (ids(made.admit), list(made.prefetch)) == (["a"], [])


def test_those_who_would_leave_next_are_copied() -> None:
    # Two are free, as they are to be; two more would take late's three blocks.
    made = plan(PAUSED, free=2)
    assert (made.preempt, list(made.prefetch), ids(made.offload)) == ({}, [], ["late"])
    assert list(plan(PAUSED, free=4).offload) == []


def test_one_the_host_has_no_room_for_is_not_among_those_who_would_leave() -> None:
    # The host has three blocks, for early's: large stays whatever happens, so that early would be the next to leave.
    large = resident("large", 6)
    assert ids(plan({EARLY: 5.0, large: 9.0}, free=2, view={"host": 3}).offload) == ["early"]
    assert ids(plan({EARLY: 5.0, large: 9.0}, free=2, view={"host": 6}).offload) == ["large"]


def test_with_a_full_host_nobody_moves_unless_there_is_room_to_come_back() -> None:
    # Two idle blocks and the two of s: 3 free are too few.
    back = swapped("s", 2)
    for free, returning in ((3, []), (4, ["s"])):
        made = plan({**PAUSED, back: 1.0}, free=free, view={"host": 0})
        assert (ids(made.prefetch), made.preempt, list(made.offload)) == (returning, {}, [])


# ---- the ablations ---------------------------------------------------------------------------------


def test_with_drop_those_who_leave_are_computed_again_and_nothing_is_copied() -> None:
    made = plan(PAUSED, free=1, drop=True)
    assert (made.preempt, list(made.offload), list(made.prefetch)) == ({LATE: RECOMPUTE}, [], [])


def test_with_drop_no_host_is_needed() -> None:
    soon_s = {RUNS: 0.0, LATE: 9.0}
    view = world(soon_s, free=0, host=0)
    view.host_total_blocks = 0
    made = Proactive(Prices(), idle_jobs=2, burst_levels=0, drop=True).evict(
        view, StepPlan(run=[RUNS], token_budget=64), Foretold(soon_s)
    )
    assert made.preempt == {LATE: RECOMPUTE}


def test_not_ahead_nothing_is_kept_idle_and_nobody_is_fetched_or_copied_beforehand() -> None:
    assert plan(PAUSED, free=0, ahead=False).preempt == {}
    made = plan({LATE: 9.0, swapped("s", 4): 1.0}, free=50, ahead=False)
    assert (list(made.prefetch), list(made.offload)) == ([], [])


def test_not_ahead_a_resident_makes_room_for_a_newcomer_that_does_not_fit() -> None:
    made = plan({LATE: 99.0, newcomer("n", 6): 0.0}, free=5, ahead=False)
    assert made.preempt == {LATE: SWAP}


@pytest.mark.parametrize("by_rank", [False, True])
def test_by_rank_the_seconds_are_not_asked_for(by_rank: bool) -> None:
    # n is served a second sooner than late: by rank that is enough, by seconds it is not worth the copy.
    made = plan({LATE: 7.0, newcomer("n", 6): 6.0}, free=5, by_rank=by_rank)
    assert (LATE in made.preempt) == by_rank


def test_an_order_without_foresight_is_taken_by_its_rank() -> None:
    # The shorter prompt first: 24 tokens of n against 40 of long, then 40 of n.
    for blocks, leaves in ((6, True), (12, False)):
        order, long, n = ShortestPrompt(), resident("long", 10), newcomer("n", blocks)
        for job in (RUNS, long, n):
            order.add(job)
        order.remove(RUNS)
        order.remove(long)
        view = world({RUNS: 0.0, long: 0.0, n: 0.0}, free=5)
        made = Proactive(Prices(), idle_jobs=2).evict(view, StepPlan(run=[RUNS], token_budget=64), order)
        assert (long in made.preempt) == leaves


# ---- runs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fastserve", "fastserve-artifact", "fixed-priority"])
@FEW
@given(workload=workloads())
def test_nobody_is_moved_both_ways_in_one_step(name: str, workload: Workload) -> None:
    run = drive(from_preset(PRESETS[name])(workload), workload)
    for outcome in run.instance.outcomes:
        planned = outcome.plan
        assert not (planned.preempt and (planned.prefetch or planned.offload))
        assert not (planned.prefetch and planned.offload)
        assert not set(planned.preempt) & set(planned.run)


def put_back(run: Run) -> int:
    """How often a job came back from the host and left for it again without a token in between."""
    back: set[Job] = set()
    away: set[Job] = set()
    times = 0
    for outcome in run.instance.outcomes:
        gone = {job for job, fate in outcome.preempted.items() if fate is SWAP}
        times += len(back & gone)
        back = (back - gone) | {job for job in outcome.admitted if job in away}
        away = (away | gone) - back
        back -= set(outcome.tokens)
    return times


RESTLESS = "proactive:min_residency=0,max_preemptions=99"
"""Nobody is spared."""


@pytest.mark.parametrize("name", ["fastserve", "fastserve-artifact", "fixed-priority"])
def test_a_crowd_in_a_small_memory_ends_however_often_it_is_moved(name: str) -> None:
    run = crowd(name)
    lengths = run.instance.true_output
    assert {id_: record.output_tokens for id_, record in run.instance.records.items()} == lengths
    assert any(outcome.preempted for outcome in run.instance.outcomes)


def test_some_of_a_crowd_are_put_back_before_they_have_run() -> None:
    assert put_back(crowd("fastserve-artifact")) > 0


def crowd(name: str) -> Run:
    """Forty jobs of up to 10 blocks, of which there are 30, three at a time."""
    rng = Random(1)
    arrivals = tuple(
        Arrival(
            id=f"{number:02}",
            at_step=rng.randint(0, 40),
            prompt=rng.randint(1, 28),
            output=rng.randint(1, 12),
            limit=12,
        )
        for number in range(40)
    )
    sizes = {"num_blocks": 30, "max_num_seqs": 30, "batch_width": 3, "max_num_batched_tokens": 64}
    workload = Workload(arrivals, small_engine(**sizes, host_blocks=400, restore_share=1.0))
    return drive(from_preset(find_preset(name, eviction=RESTLESS))(workload), workload)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"idle_jobs": -1}, "idle_jobs is -1; accepted: 0 to 1,000,000"),
        ({"burst_levels": -1}, "burst_levels is -1"),
        ({"max_preemptions": -1}, "max_preemptions is -1"),
        ({"min_residency": -1}, "min_residency is -1; accepted: 0 to 1,000,000"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Proactive(**settings)  # type: ignore[arg-type]
