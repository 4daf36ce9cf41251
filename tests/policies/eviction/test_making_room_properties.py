"""An eviction that plans ahead never leaves the fill rule short, and takes victims from the end of the ranking."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.plan import Fate, StepPlan
from headway.policies.demand import new_blocks
from headway.policies.eviction.cheapest import Cheapest
from headway.policies.eviction.reactive import Swap
from headway.policies.order.response_ratio import WaitedOverLength
from headway.policies.policy import Policy
from headway.policies.presets import PRESETS, build_policy, find_preset
from headway.policies.protocols import Eviction
from tests.policies.contract import Workload, drive, from_preset, workloads
from tests.policies.eviction.stage import NEWCOMER, NOW_S, Prices, stage
from tests.policies.instance import small_engine
from tests.strategies import SOME, UNTIMED, make_job

EVICTIONS: dict[str, Callable[[], Eviction]] = {
    "swap": Swap,
    "serial swap": lambda: Swap(serial=True),
    "swap or wait": lambda: Swap(serial=True, fallback=False),
    "cheapest": lambda: Cheapest(Prices(token_s=1.0, out_s=1.5, in_s=1.5)),
    "serial cheapest": lambda: Cheapest(Prices(token_s=1.0, out_s=1.5, in_s=1.5), serial=True),
}


@pytest.mark.parametrize("make", EVICTIONS.values(), ids=EVICTIONS)
@UNTIMED
@given(
    tokens=st.lists(st.tuples(st.integers(1, 12), st.integers(0, 9)), min_size=1, max_size=6),
    free=st.integers(0, 6),
    coming=st.sampled_from([0, 0, 3]),
    host=st.sampled_from([0, 2, 50]),
    num_run=st.integers(1, 6),
)
def test_what_is_left_to_run_fits_and_the_victims_rank_lowest(
    make: Callable[[], Eviction],
    tokens: list[tuple[int, int]],
    free: int,
    coming: int,
    host: int,
    num_run: int,
) -> None:
    jobs = [
        make_job(f"{n}", prompt=1 + more + computed, num_computed_tokens=computed, arrival_s=NOW_S - n % 3)
        for n, (computed, more) in enumerate(tokens)
    ]
    view = stage(*jobs, free=free, host=host, blocks_coming_free=coming)
    order = WaitedOverLength()
    eviction = make()
    plan = StepPlan(run=jobs[:num_run], admit=[NEWCOMER], token_budget=20)
    made = eviction.evict(view, plan, order)
    if made is plan:
        assert sum(new_blocks(view, plan.run, 20).values()) <= free
        return
    ranked = order.rank(jobs, NOW_S)
    assert ranked[0] not in made.preempt
    if getattr(eviction, "fallback", True):
        assert set(made.preempt) == set(ranked[len(ranked) - len(made.preempt) :])
    assert not made.admit
    assert set(made.run) | set(made.preempt) <= set(jobs)
    assert not set(made.run) & set(made.preempt)
    at_once = [job for job, fate in made.preempt.items() if fate is Fate.RECOMPUTE or eviction.serial]
    freed = sum(view.blocks(job.num_computed_tokens) for job in at_once)
    needed = sum(new_blocks(view, made.run, 20).values())
    # One that does not fit although all others are gone is left to the engine.
    assert needed <= free + freed or list(made.run) == [ranked[0]]


PLANNING = {
    (row.batching, row.eviction): name
    for name, row in PRESETS.items()
    if not row.eviction.startswith("recompute")
}
"""One preset of each batching with an eviction that plans ahead: the step is filled as the two leave it."""


@pytest.mark.parametrize("name", PLANNING.values())
@SOME
@given(workload=workloads())
def test_no_resident_runs_out_while_the_step_is_filled(name: str, workload: Workload) -> None:
    # Without prefix caching, since a victim's blocks then are its own, and one step at a time.
    limits = workload.engine
    engine = small_engine(
        num_blocks=limits.num_blocks,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        host_blocks=limits.host_blocks,
    )
    tight = Workload(workload.arrivals, engine)
    run = drive(from_preset(PRESETS[name])(tight), tight)
    for outcome in run.instance.outcomes:
        assert set(outcome.preempted) == set(outcome.plan.preempt)
        assert outcome.preempted == outcome.plan.preempt, "the host had room where it was expected"


def steps_at_most(workload: Workload) -> int:
    """The bound of `SwappedOrWaiting`: one step for each output token, times the chunks of the longest recompute."""
    budget = workload.engine.max_num_batched_tokens
    return sum(each.output * -(-(each.prompt + each.output) // budget) for each in workload.arrivals)


@pytest.mark.parametrize("eviction", [None, "recompute"])
@UNTIMED
@given(workload=workloads())
def test_no_request_waits_longer_than_the_bound(eviction: str | None, workload: Workload) -> None:
    limits = workload.engine
    engine = small_engine(
        num_blocks=limits.num_blocks,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        host_blocks=limits.host_blocks,
        prefix_caching=limits.prefix_caching,
    )
    tight = Workload(tuple(replace(each, ready_after_steps=0) for each in workload.arrivals), engine)
    run = drive(from_preset(find_preset("adaptivellm", eviction=eviction))(tight), tight)
    last_arrival = max(each.at_step for each in tight.arrivals)
    idle = [step for step, outcome in enumerate(run.instance.outcomes) if not outcome.tokens]
    assert all(step < last_arrival for step in idle), "a step without work although somebody waits"
    assert len(run.instance.outcomes) - len(idle) <= steps_at_most(tight)


def test_the_policy_of_a_row_tells_the_engine_whether_copies_are_serial() -> None:
    serial: dict[str, bool] = {name: _policy(name).serial_copies for name in PRESETS}
    assert {name for name, is_serial in serial.items() if is_serial} == {
        "adaptivellm",
        "adaptivellm-prompt",
        "vllm-s",
        "vllm-s-fallback",
    }


def _policy(name: str) -> Policy:
    return build_policy(PRESETS[name])
