"""The tokens that a step grants to each job, by hand: time in tenths of a second a token, blocks of 4, first come
first served.
"""

from __future__ import annotations

from math import ceil, inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.fill import uncomputed_tokens
from headway.core.job import Job
from headway.core.plan_check import check_plan
from headway.core.slo import Slo
from headway.errors import ConfigError
from headway.policies.batching.within_budgets import MOST_SCANNED, WithinBudgets
from headway.policies.leaving.at_risk import expect_step
from headway.policies.order.keyed import ShortestPrompt
from headway.policies.presets import find_preset
from tests.policies.batching.scene import Scene
from tests.policies.contract import Arrival, Workload, drive, from_preset, hurried, workloads
from tests.policies.instance import STEP_S, LinearCost, small_engine
from tests.strategies import FEW, UNTIMED, decoding, ids, ledger_of, make_job, prefilling


def scene(
    *, residents: list[Job] | None = None, settings: dict[str, Any] | None = None, **view: Any
) -> Scene:
    """A budget of 64 tokens, so 8 at least for a prompt, and blocks for everybody, unless told otherwise."""
    batching = WithinBudgets(LinearCost(), **{"token_budget": 64, **(settings or {})})
    return Scene(batching, residents=residents, **{"free_blocks": 100, **view})


def begun(id_: str, *, prompt: int, computed: int, since_s: float = 0.0, **fields: Any) -> Job:
    """A resident in mid-prompt."""
    return prefilling(id_, prompt=prompt, computed=computed, first_scheduled_s=since_s, **fields)


def timed(id_: str, tbt_s: float, **fields: Any) -> Job:
    """A resident that decodes, with a target."""
    return decoding(id_, slo=Slo(tbt_s=tbt_s), **fields)


# ---- tokens ----------------------------------------------------------------------------------------


def test_decodes_run_and_prompts_share_what_is_left() -> None:
    # 64 - 2 = 62 tokens: 40 for a, 22 of 30 for b.
    residents = [decoding("x"), decoding("y")]
    plan = scene(residents=residents).wait(make_job("a", prompt=40), make_job("b", prompt=30)).plan()
    assert (ids(plan.run), ids(plan.admit), plan.token_budget) == (["x", "y"], ["a", "b"], 64)
    assert {job.id: cap for job, cap in plan.chunk_cap.items()} == {"b": 22}


def test_with_nobody_waiting_the_residents_are_left_as_they_are() -> None:
    residents = [decoding("x"), decoding("y")]
    assert scene(residents=residents).plan().run is residents


def test_crumbs_start_nobody() -> None:
    # 60 of 64 tokens go to a; b would get 4, less than an eighth of 64, and c lacks no more than that.
    plan = scene().wait(*(make_job(n, prompt=p) for n, p in (("a", 60), ("b", 20), ("c", 4)))).plan()
    assert ids(plan.admit) == ["a", "c"]


def test_the_oldest_prompt_gets_its_eighth_and_the_best_ranked_the_rest() -> None:
    # Shortest first. long has been under way longest: 8 of 64. Then short 20, new 30, and 6 are left of the 8 that
    # middle would need at least: it pauses.
    residents = [
        begun("middle", prompt=100, computed=50, since_s=2.0),
        begun("long", prompt=500, computed=50, since_s=1.0),
        begun("short", prompt=40, computed=20, since_s=3.0),
    ]
    made = scene(residents=residents, free_blocks=200)
    made.order = ShortestPrompt()  # type: ignore[assignment]
    for job in residents:
        made.order.add(job)
        made.order.remove(job)
    plan = made.wait(make_job("new", prompt=30)).plan()
    assert (ids(plan.run), ids(plan.admit)) == (["long", "short"], ["new"])
    assert {job.id: cap for job, cap in plan.chunk_cap.items()} == {"long": 8}


# ---- time ------------------------------------------------------------------------------------------


def test_a_chunk_is_halved_until_the_step_keeps_the_tightest_target() -> None:
    # A decode takes 0.1 s. 40 tokens would make it 4.1 s and 20 2.1 s; with 10 it is 1.1 s.
    plan = scene(residents=[timed("x", 9.0), timed("y", 1.3)]).wait(make_job("a", prompt=40)).plan()
    assert {job.id: cap for job, cap in plan.chunk_cap.items()} == {"a": 10}


def test_one_that_does_not_fit_is_passed_over() -> None:
    # a needs 8 of its 40 tokens at least, c only its 2: 0.1 + 0.2 s.
    plan = scene(residents=[timed("x", 0.4)]).wait(make_job("a", prompt=40), make_job("c", prompt=2)).plan()
    assert ids(plan.admit) == ["c"]


def test_its_own_target_counts_beside_those_who_decode_and_not_alone() -> None:
    hasty = make_job("a", prompt=40, slo=Slo(tbt_s=0.2))
    assert ids(scene(residents=[timed("x", 9.0)]).wait(hasty).plan().admit) == []
    assert ids(scene().wait(hasty).plan().admit) == ["a"]


def test_with_nobody_decoding_time_is_no_limit() -> None:
    waiting = [make_job(name, prompt=30, slo=Slo(tbt_s=0.1)) for name in "ab"]
    assert ids(scene().wait(*waiting).plan().admit) == ["a", "b"]


@pytest.mark.parametrize("residents", [[decoding("x")], [timed("x", 0.001)]])
def test_unknown_times_and_no_targets_limit_nothing(residents: list[Job]) -> None:
    cost = LinearCost() if residents[0].slo.tbt_s is None else None
    made = Scene(WithinBudgets(cost, token_budget=64), residents=residents, free_blocks=100)
    assert ids(made.wait(make_job("a", prompt=60)).plan().admit) == ["a"]


# ---- memory ----------------------------------------------------------------------------------------


def test_an_engine_of_its_own_is_all_a_job_needs() -> None:
    assert ids(scene(free_blocks=4).wait(make_job("a", prompt=16), make_job("b", prompt=1)).plan().admit) == [
        "a"
    ]


def test_without_memory_for_those_begun_only_the_oldest_goes_on() -> None:
    # 2 free blocks; the unfinished parts are 3 each.
    residents = [begun("q", prompt=12, computed=0, since_s=1.0), begun("p", prompt=12, computed=0)]
    plan = scene(residents=residents, free_blocks=2).wait(make_job("a", prompt=1)).plan()
    assert (ids(plan.run), ids(plan.admit)) == (["p"], [])


# ---- who starts ------------------------------------------------------------------------------------


def test_one_that_is_not_ready_takes_nothing() -> None:
    made = (
        scene().wait(make_job("a", prompt=64), make_job("b", prompt=64)).admissible(lambda job: job.id != "a")
    )
    assert ids(made.plan().admit) == ["b"]


def test_the_scan_ends_after_so_many() -> None:
    misfits = [make_job(f"{number:03}", prompt=400) for number in range(MOST_SCANNED)]
    made = scene(free_blocks=90).wait(*misfits, make_job("x", prompt=1))
    assert ids(made.plan().admit) == []
    assert ids(scene(free_blocks=90).wait(*misfits[1:], make_job("x", prompt=1)).plan().admit) == ["x"]


def test_who_has_waited_too_long_is_passed_over_no_more() -> None:
    # a lacks memory. At 10 s nobody overtakes it any more; x goes on.
    def admitted(now_s: float) -> list[str]:
        made = scene(residents=[decoding("x")], free_blocks=10, now_s=now_s)
        return ids(made.wait(make_job("a", prompt=80), make_job("b", prompt=4)).plan().admit)

    assert (admitted(10.0), admitted(10.1)) == (["b"], [])


@pytest.mark.parametrize(("ready", "admitted"), [(True, []), (False, ["b"])])
def test_nor_where_it_is_the_engine_that_says_it_lacks_memory(ready: bool, admitted: list[str]) -> None:
    # By a watermark, for one. Who is not ready for another reason holds nobody up.
    made = scene(residents=[decoding("x")], now_s=10.1, ready=lambda job: ready)
    made.admissible(lambda job: job.id == "b").wait(make_job("a"), make_job("b"))
    assert ids(made.plan().admit) == admitted


def test_and_its_own_target_counts_no_more() -> None:
    hasty = make_job("a", prompt=40, slo=Slo(tbt_s=0.2))
    assert ids(scene(residents=[timed("x", 9.0)], now_s=10.1).wait(hasty).plan().admit) == ["a"]


def test_the_plan_may_change_while_somebody_waits_for_whom_there_is_a_seat() -> None:
    made = scene(residents=[decoding("x")])
    assert made.batching.next_change_s(made.view) == inf
    assert made.wait(make_job("a")).batching.next_change_s(made.view) == -inf
    made.view.max_run = 1
    assert made.batching.next_change_s(made.view) == inf


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"token_budget": 0}, "token_budget is 0; accepted: 1 or more tokens a step"),
        ({"width": 0}, "width is 0; accepted: 1 or more residents"),
        ({"patience_s": -1.0}, "patience_s is -1.0; accepted: 0 or more seconds"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WithinBudgets(**settings)


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    """Scenes with some decodes, some jobs in mid-prompt and some waiting, with few resources of each kind."""
    targets = st.none() | st.sampled_from([0.3, 1.0, 3.0])

    def slo() -> Slo:
        return Slo(tbt_s=draw(targets))

    decodes = [decoding(f"d{n}", slo=slo()) for n in range(draw(st.integers(0, 5)))]
    prompts = [
        begun(
            f"p{n}", prompt=draw(st.integers(12, 60)), computed=10, since_s=draw(st.floats(0, 9)), slo=slo()
        )
        for n in range(draw(st.integers(0, 4)))
    ]
    waiting = [
        make_job(f"w{n}", prompt=draw(st.integers(1, 60)), slo=slo()) for n in range(draw(st.integers(0, 8)))
    ]
    settings = {"token_budget": draw(st.integers(1, 64)), "width": draw(st.integers(1, 12))}
    made = scene(
        residents=draw(st.permutations([*decodes, *prompts])),
        settings=settings,
        free_blocks=draw(st.integers(0, 40)),
        max_run=12,
        max_resident=12,
        now_s=draw(st.sampled_from([0.0, 11.0])),
    )
    return made.wait(*waiting)


@UNTIMED
@given(made=scenes())
def test_every_budget_is_kept_but_for_the_oldest_prompt(made: Scene) -> None:
    view, batching, plan = made.view, made.batching, made.plan()
    assert isinstance(batching, WithinBudgets)
    assert batching.token_budget is not None
    check_plan(plan, view, ledger_of(view))
    step = expect_step(view, plan)
    decodes = [job for job in view.residents if not job.prefilling]
    prompts = [job for job in view.residents if job.prefilling]
    served = [job for job in plan.run if job in prompts]
    least = max(1, batching.token_budget // 8)
    # Tokens and seats: all that decode run, all chosen get what they were chosen for.
    assert plan.run[: len(decodes)] == decodes
    assert step.starting == set(plan.admit)
    chunks = [plan.chunk_cap.get(job, uncomputed_tokens(job)) for job in (*served, *plan.admit)]
    assert not chunks or len(decodes) + sum(chunks) <= batching.token_budget
    assert not plan.admit or len(view.residents) + len(plan.admit) <= batching.width
    # The oldest prompt goes on if there is a token for it, and first.
    if prompts and len(decodes) < batching.token_budget:
        assert served[0] is min(prompts, key=lambda job: (job.first_scheduled_s, job.id))
    # Time, as predicted.
    targets = [job.slo.tbt_s for job in decodes if job.slo.tbt_s is not None]
    if targets and 0.1 * step.shape.num_tokens > min(targets):
        assert not plan.admit
        assert not served or (len(served) == 1 and plan.chunk_cap.get(served[0], least) <= least)
    # Memory: newcomers to their last token, beside a block for each that decodes and the rest of every begun prompt.
    if plan.admit and view.residents:
        rest = sum(view.blocks(job.num_tokens) - view.blocks(job.num_computed_tokens) for job in prompts)
        wanted = sum(view.blocks(job.num_tokens) + 1 for job in plan.admit)
        assert wanted + rest + len(decodes) <= view.free_blocks


# ---- nobody is left lying --------------------------------------------------------------------------

LP = find_preset("ascendra-lp", leaving=())
ROOMY = {"num_blocks": 400, "max_num_seqs": 8, "max_num_batched_tokens": 16}


@FEW
@given(workload=workloads(), tbt_s=st.sampled_from([0.01, 0.3, 1.0]))
def test_targets_that_cannot_be_met_stall_nobody(workload: Workload, tbt_s: float) -> None:
    drive(from_preset(LP)(workload), hurried(workload, tbt_s), may_idle=False)


@UNTIMED
@given(
    longs=st.lists(st.integers(60, 200), min_size=1, max_size=3),
    shorts=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 8)), max_size=60),
)
def test_a_prompt_that_has_begun_is_computed_within_the_bound(
    longs: list[int], shorts: list[tuple[int, int]]
) -> None:
    """Long prompts without targets rank behind short ones that keep coming; (1) of the docstring holds all the same."""
    slo = Slo(ttft_s=30.0)
    arrivals = [
        Arrival(id=f"l{number}", at_step=0, prompt=prompt, output=1, limit=1)
        for number, prompt in enumerate(longs)
    ]
    arrivals += [
        Arrival(id=f"s{number:02}", at_step=at_step, prompt=prompt, output=1, limit=1, slo=slo)
        for number, (at_step, prompt) in enumerate(shorts)
    ]
    engine = small_engine(**ROOMY)
    workload = Workload(tuple(arrivals), engine)
    run = drive(from_preset(LP)(workload), workload)
    most = max(longs)
    for number in range(len(longs)):
        record = run.instance.records[f"l{number}"]
        assert record.first_token_s is not None
        assert record.first_scheduled_s is not None
        bound_steps = engine.max_num_seqs * ceil(8 * most / engine.max_num_batched_tokens)
        assert record.first_token_s - record.first_scheduled_s <= bound_steps * STEP_S


def test_without_the_eighth_for_the_oldest_it_would_not_hold() -> None:
    # 16 tokens of short prompts come every second for 300 s; the long one is done long before they end.
    shorts = tuple(
        Arrival(id=f"s{n:03}", at_step=n, prompt=16, output=1, limit=1, slo=Slo(ttft_s=400.0))
        for n in range(1, 300)
    )
    long = Arrival(id="long", at_step=0, prompt=80, output=1, limit=1)
    workload = Workload((long, *shorts), small_engine(**ROOMY))
    run = drive(from_preset(LP)(workload), workload)
    first_token_s = run.instance.records["long"].first_token_s
    # 16 tokens at 0 s, then 2 each second: 1 + 64 / 2 s.
    assert first_token_s == pytest.approx(33.0)


def test_small_ones_that_keep_coming_do_not_keep_a_big_one_out() -> None:
    # A small one comes each second for a minute and lives 5 s; big needs 11 of 12 blocks. After its 10 s nobody
    # overtakes it, and within 6 s more those resident have ended.
    smalls = tuple(Arrival(id=f"{n:02}", at_step=n, prompt=4, output=5, limit=8) for n in range(60))
    big = Arrival(id="big", at_step=4, prompt=44, output=2, limit=4)
    engine = small_engine(num_blocks=12, max_num_seqs=8, max_num_batched_tokens=16)
    workload = Workload((*smalls, big), engine)
    run = drive(from_preset(LP)(workload), workload)
    started_s = run.instance.records["big"].first_scheduled_s
    assert started_s is not None
    assert 4.0 + 10.0 < started_s <= 4.0 + 10.0 + 7.0
