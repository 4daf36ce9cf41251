"""Requests at the times at which they came to an engine, and its records of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from headway.core.record import Outcome, Record
from headway.core.slo import MAX_TARGET_S, NO_TARGETS, Slo
from headway.errors import ConfigError, UpstreamError
from headway.planner.machine import Configuration, Machine
from headway.planner.replay_setup import (
    FEWEST_REQUESTS,
    MAX_OUTPUT_TOKENS,
    EngineView,
    ReplaySetup,
    ServingOverhead,
    TargetScale,
    alone_s,
    at_rate,
    engine_view,
    scaled_down,
    serving_overhead,
    set_up_replay,
    shortened,
    target_scale,
)
from headway.planner.runs import capacity_rps
from headway.results import summarize
from headway.results.metrics import tbt_s, ttft_s
from headway.statistics import known
from headway.traces import TraceRequest
from tests.planner.costs import write_costs
from tests.planner.plans import TARGETS, planned, prepared

REQUESTS = [
    TraceRequest(id=name, arrival_s=n, input_tokens=8, output_tokens=2) for n, name in enumerate("ab")
]


def record(name: str, arrival_s: float, *, ended_s: float, handed_off: bool = False) -> Record:
    return Record(
        id=f"cmpl-{name}-0-0123abcd",
        arrival_s=arrival_s,
        prompt_tokens=8,
        outcome=Outcome.HANDED_OFF if handed_off else Outcome.FINISHED,
        output_tokens=0 if handed_off else 2,
        first_token_s=None if handed_off else ended_s - 1.0,
        finished_s=ended_s,
    )


def test_requests_come_when_the_engine_saw_them() -> None:
    # Sent at 0 and 1 s; a busy client sent the first last. The engine's clock starts anywhere, and it knows others.
    came = engine_view(
        REQUESTS,
        [
            record("warm-up-a", 90.0, ended_s=91.0),
            record("b", 101.5, ended_s=104.0),
            record("a", 102.25, ended_s=109.0),
        ],
    )
    assert [(request.id, request.arrival_s) for request in came.requests] == [("b", 0.0), ("a", 0.75)]
    assert [(record.id, record.finished_s) for record in came.records] == [("b", 104.0), ("a", 109.0)]


def test_one_that_was_handed_off_came_to_the_first_engine_and_ended_in_the_last() -> None:
    parts = [record("a", 13.0, ended_s=19.0), record("a", 11.0, ended_s=12.5, handed_off=True)]
    came = engine_view(REQUESTS[:1], parts)
    whole = came.records[0]
    assert (whole.arrival_s, whole.first_token_s, whole.finished_s) == (11.0, 18.0, 19.0)
    assert whole.outcome is Outcome.FINISHED


def test_one_that_was_handed_off_is_judged_by_its_own_targets_not_by_what_was_left_of_them() -> None:
    # First token 7 s after it came, of 8; the second engine was told of the 6.5 s that were left.
    wanted = Slo(ttft_s=8.0)
    parts = [
        replace(record("a", 11.0, ended_s=12.5, handed_off=True), slo=wanted),
        replace(record("a", 12.5, ended_s=19.0), slo=wanted.after(1.5)),
    ]
    came = engine_view([replace(REQUESTS[0], slo=wanted)], parts)
    assert came.records[0].slo == wanted
    assert summarize(came.records).goodput == 1.0


def test_a_request_that_no_engine_knows_cannot_be_compared() -> None:
    with pytest.raises(UpstreamError, match="the engine's records do not have request b, so nothing"):
        engine_view(REQUESTS, [record("a", 0.0, ended_s=2.0)])


BIG = Configuration(
    gpus=8, policy="predicted", tp=2, instances=4, seats=512, tokens_a_step=8192, host_gib=90.0
)
LONG_PROMPTS = (
    "gen:poisson:rate=10/input=lognormal:mean=1500,sigma=1,max=6000/"
    "output=lognormal:mean=20,sigma=0.5,max=60/count=400"
)
POOLED = replace(BIG, policy="ascendra", tp=1, instances=8, lp=5, threshold=0.1)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A made-up machine with the small model."""
    return Machine(
        str(write_costs(tmp_path_factory.mktemp("cost") / "cost.json", jobs=128, tokens=2048)), "demo"
    )


@pytest.fixture(scope="module")
def setup(here: Machine, tmp_path_factory: pytest.TempPathFactory) -> ReplaySetup:
    plan = planned(tmp_path_factory.mktemp("plan"), prepared(slo=TARGETS), budget=2)
    return set_up_replay(plan, scaled_down(plan.choice), here, 10.0)


@pytest.fixture(scope="module")
def long_prompts(here: Machine, tmp_path_factory: pytest.TempPathFactory) -> ReplaySetup:
    """A stage of a hundred requests."""
    plan = planned(tmp_path_factory.mktemp("plan"), prepared(slo=TARGETS, trace=LONG_PROMPTS), budget=1)
    return set_up_replay(plan, scaled_down(plan.choice), here, 8.0)


def test_capacity_is_what_is_answered_and_not_what_expires(here: Machine, tmp_path: Path) -> None:
    """Ascendra's instances end what waits past its target: all of a burst but its first, in no time."""
    task = replace(planned(tmp_path, prepared(), budget=1).prepared.task, machine=here)
    bare = shortened(task.requests()[:100])
    targeted = [replace(request, slo=Slo(ttft_s=0.02, tbt_s=0.006)) for request in bare]
    pooled = scaled_down(POOLED)
    assert capacity_rps(task, pooled, targeted) == capacity_rps(task, pooled, bare)


def test_one_instance_or_one_of_each_pool_serves_here() -> None:
    small = scaled_down(BIG)
    assert (small.gpus, small.tp, small.instances, small.lp) == (1, 1, 1, 0)
    assert (small.seats, small.tokens_a_step, small.host_gib) == (128, 2048, 0.5)
    assert scaled_down(POOLED).pools == {"lp": 1, "hp": 1}
    assert scaled_down(POOLED).threshold == 0.1
    assert scaled_down(small) == small


def test_requests_are_shortened_to_what_the_small_model_holds() -> None:
    long = [
        TraceRequest(id=f"{n}", arrival_s=float(n), input_tokens=40 * (n + 1), output_tokens=9)
        for n in range(99)
    ]
    short = shortened([*long, replace(long[0], id="text", prompt="so it is written", input_tokens=40)])
    assert max(each.input_tokens for each in short) == 1024
    assert {each.max_output_tokens for each in short} == {MAX_OUTPUT_TOKENS}
    assert {each.prompt for each in short} == {None}


def test_targets_are_worth_as_much_as_a_typical_request_takes() -> None:
    rates = TargetScale(ttft=2.0, tbt=0.5, deadline=3.0)
    assert rates.targets(Slo(ttft_s=1.0, tbt_s=0.1, deadline_s=10.0)) == Slo(
        ttft_s=2.0, tbt_s=0.05, deadline_s=30.0
    )
    assert rates.targets(NO_TARGETS) == NO_TARGETS
    week = Slo(ttft_s=MAX_TARGET_S, tbt_s=MAX_TARGET_S, deadline_s=MAX_TARGET_S)
    assert rates.targets(week) == replace(week, tbt_s=MAX_TARGET_S / 2)


def test_a_typical_request_by_hand(here: Machine) -> None:
    # The made-up law: 5 ms + 50 us a token + 100 us a job + 100 ns a token of decode context, and 0.5 ms of the host.
    prefill_s = 0.005 + 100 * 5e-5 + 1e-4 + 0.0005
    decode_s = 0.005 + 5e-5 + 1e-4 + 111 * 1e-7 + 0.0005
    expected_s = (prefill_s, decode_s, prefill_s + 20 * decode_s)
    assert alone_s(here.costs(1), 100.0, 20.0) == pytest.approx(expected_s)


def test_between_a_machine_and_itself_targets_stay(here: Machine) -> None:
    requests = prepared().task.requests()
    assert target_scale((here, 1, requests), here, shortened(requests)) == TargetScale(1.0, 1.0, 1.0)
    slower = target_scale((Machine("h100", "Qwen/Qwen3-8B"), 1, requests), here, requests)
    assert slower.ttft != 1.0


def test_the_stage_has_a_rate_that_can_be_served(setup: ReplaySetup) -> None:
    assert len(setup.requests) >= FEWEST_REQUESTS
    assert setup.requests[0].arrival_s == 0
    assert len(setup.requests) / setup.requests[-1].arrival_s == pytest.approx(setup.rate_rps)
    records = setup.simulated(setup.requests, ServingOverhead())[0]
    assert len(records) == len(setup.requests)


@pytest.mark.parametrize(("crowded_s", "load"), [(4.0, 0.25), (1.0, 0.125)])
def test_of_a_trace_that_comes_in_crowds_less_is_served(
    here: Machine, tmp_path: Path, crowded_s: float, load: float
) -> None:
    # At a quarter of capacity, all that come within a quarter of the time come as fast as they can be served.
    times_s = [crowded_s * number / 400 for number in range(400)]
    rows = "".join(f"{time_s},200,20\n" for time_s in [*times_s, 4.0])
    (tmp_path / "trace.csv").write_text(f"arrival_s,input_tokens,output_tokens\n{rows}")
    plan = planned(tmp_path / "plan", prepared(trace=str(tmp_path / "trace.csv")), budget=1)
    small = scaled_down(plan.choice)
    ours = replace(plan.prepared.task, machine=here, max_output_tokens=MAX_OUTPUT_TOKENS)
    capacity = capacity_rps(ours, small, shortened(plan.prepared.task.requests()))
    assert set_up_replay(plan, small, here, 60.0).rate_rps == pytest.approx(load * capacity)


def test_every_other_request_tells_how_fast_the_machine_is(setup: ReplaySetup) -> None:
    ids = [request.id for request in setup.requests]
    assert setup.calibrating == set(ids[::2])
    # What the others took makes no difference.
    came = setup.simulated(setup.requests, ServingOverhead())[0]
    others = [replace(r, finished_s=1e9) if r.id not in setup.calibrating else r for r in came]
    found = [serving_overhead(setup, EngineView(setup.requests, records)) for records in (came, others)]
    assert found[0] == found[1]


def test_at_a_rate_the_rhythm_stays() -> None:
    requests = [
        TraceRequest(id=f"{t}", arrival_s=t, input_tokens=1, output_tokens=1) for t in (10.0, 11.0, 14.0)
    ]
    # Three requests at one a second last three seconds.
    assert [each.arrival_s for each in at_rate(requests, 1.0)] == [0.0, 0.75, 3.0]
    assert [each.arrival_s for each in at_rate(requests[:1], 1.0)] == [0.0]


def test_what_serving_adds_is_found_again(setup: ReplaySetup) -> None:
    added = ServingOverhead(step_factor=1.3, first_token_s=0.02)
    came = setup.simulated(setup.requests, added)[0]
    found = serving_overhead(setup, EngineView(setup.requests, came))
    assert found.step_factor == pytest.approx(1.3, rel=0.03)
    assert found.first_token_s == pytest.approx(0.02, rel=0.15)
    assert means_of(came) == pytest.approx(means_of(setup.simulated(setup.requests, found)[0]), rel=0.03)


@pytest.mark.parametrize(
    "added",
    [ServingOverhead(1.3), ServingOverhead(step_s=0.002), ServingOverhead(1.15, 0.001), ServingOverhead(0.8)],
)
@pytest.mark.slow
def test_where_prompts_are_long_a_factor_is_told_from_so_much_more_in_each_step(
    long_prompts: ReplaySetup, added: ServingOverhead
) -> None:
    setup = long_prompts
    came = setup.simulated(setup.requests, added)[0]
    found = serving_overhead(setup, EngineView(setup.requests, came))
    assert found.step_factor == pytest.approx(added.step_factor, abs=0.05)
    assert found.step_s == pytest.approx(added.step_s, abs=0.0005)
    assert means_of(setup.simulated(setup.requests, found)[0]) == pytest.approx(means_of(came), rel=0.03)


def means_of(records: list[Record]) -> tuple[float, float]:
    """Mean times between tokens and to the first."""
    return fmean(known(map(tbt_s, records))), fmean(known(map(ttft_s, records)))


def test_a_trace_of_few_requests_cannot_be_checked_with(here: Machine, tmp_path: Path) -> None:
    trace = "gen:poisson:rate=4/input=constant:tokens=9/output=constant:tokens=5/count=30"
    plan = planned(tmp_path, prepared(trace=trace, policies=("vllm",)), budget=1)
    with pytest.raises(ConfigError, match="the trace has 30 requests; accepted with verify: 48 or more"):
        set_up_replay(plan, scaled_down(plan.choice), here, 10.0)
