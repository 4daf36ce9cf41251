"""Which jobs run, start and pause; the shorter prompt ranks higher in all of these scenes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headway.core.job import Job, JobState
from headway.core.plan import StepPlan
from headway.errors import ConfigError
from headway.policies.batching import top_jobs
from headway.policies.batching.outlook import ReservingTopJobs
from headway.policies.batching.top_jobs import MOST_MISFITS
from headway.policies.order.governed import Governed
from headway.policies.order.keyed import ShortestPrompt
from headway.policies.presets import find_preset
from tests.policies.batching.scene import Scene
from tests.policies.contract import Arrival, Workload, drive, from_preset, jobs_held_by, workloads
from tests.policies.eviction.foretold import Foretold
from tests.policies.instance import small_engine
from tests.policies.order.per_token import exactly
from tests.strategies import FEW, UNTIMED, decoding, ids, make_job, prefilling


def scene(*waiting: Job, residents: list[Job] | None = None, reserve: bool = False, **view: Any) -> Scene:
    """Two seats and 50 free blocks of 4, unless told otherwise."""
    sizes = {"max_run": 2, "free_blocks": 50, **view}
    made = Scene(ReservingTopJobs(reserve=reserve), residents=residents, **sizes)
    made.order = ShortestPrompt()  # type: ignore[assignment]
    for job in (*made.view.residents, *waiting):
        made.order.add(job)
    for job in made.view.residents:
        made.order.remove(job)
    made.view.waiting = [job for job in waiting if job.state is JobState.WAITING]
    made.view.swapped = [job for job in waiting if job.state is JobState.SWAPPED]
    return made


def run_and_admit(plan: StepPlan) -> tuple[str, str]:
    """Ids of one letter, joined."""
    return "".join(ids(plan.run)), "".join(ids(plan.admit))


SHORT, MIDDLE, LONG = decoding("s", prompt=2), decoding("m", prompt=6), decoding("l", prompt=12)


# ---- who has a place -------------------------------------------------------------------------------


def test_the_highest_run_and_the_other_residents_pause() -> None:
    plan = scene(residents=[LONG, MIDDLE, SHORT]).plan()
    assert (run_and_admit(plan), plan.preempt, plan.token_budget) == (("sm", ""), {}, 64)


def test_where_not_all_have_their_drafts_the_highest_have_the_tokens() -> None:
    # Three times four are more than the 8 tokens of a step; two each fit.
    for tokens_a_decode, run in ((4, "sml"), (2, "lms")):
        at = scene(residents=[LONG, MIDDLE, SHORT], max_run=3, max_tokens=8, tokens_a_decode=tokens_a_decode)
        assert run_and_admit(at.plan()) == (run, "")


def test_a_newcomer_takes_the_place_of_a_running_job_that_ranks_lower() -> None:
    # Prompts 2, 4, 6: the middle one waits. m pauses; admission stays open for the place it left, not for more.
    plan = scene(make_job("n", prompt=4), residents=[SHORT, MIDDLE]).plan()
    assert (run_and_admit(plan), plan.preempt) == (("s", "n"), {})


def test_places_left_over_are_offered_to_further_newcomers_in_their_order() -> None:
    # Only a is known to fit; whether b and c do is for the engine to find out.
    made = scene(*(make_job(name, prompt=8) for name in "abc"), residents=[SHORT], max_run=3)
    assert run_and_admit(made.admissible(lambda job: job.id == "a").plan()) == ("s", "abc")


def test_those_in_prefill_run_behind_those_that_decode() -> None:
    young = prefilling("y", prompt=2)
    assert run_and_admit(scene(residents=[LONG, young]).plan()) == ("ly", "")


def test_a_swapped_job_competes_like_one_that_waits() -> None:
    back = decoding("b", prompt=4, state=JobState.SWAPPED)
    assert run_and_admit(scene(back, residents=[SHORT, MIDDLE]).plan()) == ("s", "b")


# ---- who has none ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("free", "expected"), [(4, ("l", "ab")), (5, ("", "ab"))])
def test_nobody_pauses_for_a_second_newcomer_for_which_the_first_leaves_no_blocks(
    free: int, expected: tuple[str, str]
) -> None:
    # a takes 2 blocks, b 3. Where both fit l pauses for them; else it runs beside a, and b is an offer at most.
    made = scene(make_job("a", prompt=8), make_job("b", prompt=9), residents=[LONG], free_blocks=free)
    assert run_and_admit(made.plan()) == expected


def test_nobody_pauses_for_a_newcomer_behind_those_whose_prompts_fill_the_step() -> None:
    # 64 tokens a step: a and b have 65. So c would start with none, is not asked about, and l keeps its place.
    asked: list[str] = []
    newcomers = [make_job(name, prompt=prompt) for name, prompt in (("a", 32), ("b", 33), ("c", 34))]
    made = scene(*newcomers, residents=[decoding("l", prompt=40)], max_run=3)
    made.admissible(lambda job: not asked.append(job.id))  # type: ignore[func-returns-value]
    assert (run_and_admit(made.plan()), asked) == (("l", "abc"), ["a", "b"])


def test_what_is_computed_already_fills_no_step() -> None:
    # On the host b has all but its newest token, and the cache holds 30 of a's 32: c has its tokens, and l's place.
    cached = make_job("a", prompt=32, num_cached_tokens=30)
    back = decoding("b", prompt=33, state=JobState.SWAPPED)
    made = scene(cached, back, make_job("c", prompt=34), residents=[decoding("l", prompt=40)], max_run=3)
    assert run_and_admit(made.plan()) == ("", "abc")


def test_a_job_all_of_which_a_step_in_flight_computes_has_no_place() -> None:
    # Two stages: s was scheduled a step ago, and its token is not out yet. l runs beside it.
    flying = decoding("f", prompt=2, num_computed_tokens=3)
    assert run_and_admit(scene(residents=[flying, MIDDLE, LONG]).plan()) == ("ml", "")


def test_one_that_goes_on_from_a_token_that_is_not_known_yet_has_one() -> None:
    ahead = decoding("a", prompt=2, num_computed_tokens=3, num_output_placeholders=1)
    assert run_and_admit(scene(residents=[ahead, MIDDLE, LONG]).plan()) == ("am", "")


def test_a_job_on_its_way_back_has_no_place_until_it_is_there() -> None:
    made = scene(residents=[SHORT, MIDDLE, LONG], restoring=[SHORT])
    assert run_and_admit(made.plan()) == ("ml", "")
    made.view.restoring = []
    assert run_and_admit(made.plan()) == ("sm", "")


@pytest.mark.parametrize(("residents", "free", "run"), [("sl", 1, "l"), ("sl", 2, "s"), ("s", 0, "s")])
def test_one_that_came_back_has_no_place_while_the_engine_would_not_resume_it(
    residents: str, free: int, run: str
) -> None:
    # Beside others that have run two blocks are to stay free. If nobody else ran none would ever come free.
    jobs = [job for job in (SHORT, LONG) if job.id in residents]
    made = scene(residents=jobs, returned=[SHORT], max_run=1, free_blocks=free, watermark_blocks=2)
    assert run_and_admit(made.plan()) == (run, "")


def test_few_that_cannot_start_are_looked_at() -> None:
    # The ninth could start, but who comes behind eight that cannot waits for the next step.
    asked: list[str] = []

    def admissible(job: Job) -> bool:
        asked.append(job.id)
        return job.id == "w8"

    jobs = [make_job(f"w{number}", prompt=1) for number in range(MOST_MISFITS + 2)]
    made = scene(*jobs, residents=[MIDDLE, LONG]).admissible(admissible)
    assert run_and_admit(made.plan()) == ("ml", "")
    assert asked == [f"w{number}" for number in range(MOST_MISFITS)]


@pytest.mark.parametrize(
    ("free", "watermark", "expected"), [(5, 0, ("lm", "")), (50, 0, ("l", "c")), (7, 2, ("lm", ""))]
)
def test_nobody_starts_past_a_higher_ranked_job_that_lacks_blocks(
    free: int, watermark: int, expected: tuple[str, str]
) -> None:
    # b cannot start. If that is for want of its 6 blocks, or of those to be left free beside them, c, which needs 2,
    # might take them, and others like it for ever; if it is not ready for another reason, c takes the place of m. They
    # rank l, b, c, m.
    jobs = [make_job("b", prompt=21), make_job("c", prompt=8)]
    made = scene(residents=[LONG, MIDDLE], free_blocks=free, watermark_blocks=watermark)
    made.order = Foretold({job: place for place, job in enumerate([LONG, *jobs, MIDDLE])})  # type: ignore[assignment]
    made.view.waiting = jobs
    plan = made.admissible(lambda job: job.id == "c").plan()
    assert (run_and_admit(plan)[0], run_and_admit(plan)[1][:1]) == expected


# ---- reserved room ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("total", "expected"), [(9, ("s", "")), (10, ("s", "n"))])
def test_with_reserve_a_job_starts_only_if_its_longest_answer_fits(
    total: int, expected: tuple[str, str]
) -> None:
    # s may reach 2 + 10 tokens, 3 blocks; n 16 + 10, 7 blocks.
    made = scene(make_job("n", prompt=16), residents=[SHORT], reserve=True, total_blocks=total)
    assert run_and_admit(made.plan()) == expected


def test_with_reserve_nobody_behind_one_that_does_not_fit_starts() -> None:
    # n, 7 blocks, does not fit beside s, 3, in 9. tiny, 1 + 1 tokens, would.
    tiny = make_job("t", prompt=17, limit=1)
    made = scene(make_job("n", prompt=16), tiny, residents=[SHORT], reserve=True, total_blocks=9)
    assert run_and_admit(made.plan()) == ("s", "")


def test_with_reserve_a_job_leaves_for_the_room_of_one_that_ranks_before_it() -> None:
    # Eight blocks of four tokens. "02" comes last, and its 14 tokens need four of them; "04" has run longest.
    rows = [
        ("00", 0, 1, 1),
        ("01", 0, 5, 1),
        ("02", 1, 13, 1),
        ("03", 0, 5, 2),
        ("04", 0, 3, 4),
        ("05", 0, 3, 3),
    ]
    arrivals = tuple(
        Arrival(id=name, at_step=at_step, prompt=prompt, output=output, limit=output)
        for name, at_step, prompt, output in rows
    )
    engine = small_engine(
        num_blocks=8, max_num_seqs=7, max_num_batched_tokens=4, batch_width=1, host_blocks=3
    )
    workload = Workload(arrivals=arrivals, engine=engine)
    row = find_preset("fastserve", batching="top-jobs:reserve=true", eviction="proactive:ahead=false")
    outcomes = drive(from_preset(row)(workload), workload).instance.outcomes
    left = [number for number, outcome in enumerate(outcomes) if outcome.preempted]
    assert [ids(outcomes[number].plan.preempt) for number in left] == [["04"]]
    assert ids(outcomes[left[0] + 1].tokens) == ["02"]


@FEW
@given(workload=workloads())
def test_with_reserve_no_kv_is_taken_away_unplanned(workload: Workload) -> None:
    # A plan may swap a job out for one that ranks before it, where that one lacks a seat or its reserved room.
    seats = len(workload.arrivals) + workload.engine.max_num_seqs
    workload = replace(workload, engine=replace(workload.engine, max_num_seqs=seats))
    row = find_preset("fastserve", batching="top-jobs:reserve=true", eviction="proactive:ahead=false")
    run = drive(from_preset(row)(workload), workload)
    assert all(outcome.preempted.keys() == outcome.plan.preempt.keys() for outcome in run.instance.outcomes)


# ---- in general ------------------------------------------------------------------------------------

prompts = st.lists(st.integers(1, 20), max_size=6)


@UNTIMED
@example(residents=[(5, True), (2, True)], waiting=[3], seats=4, free=40, tokens=1)
@given(
    residents=st.lists(st.tuples(st.integers(1, 20), st.booleans()), max_size=6),
    waiting=prompts,
    seats=st.integers(1, 12),
    free=st.integers(0, 40),
    tokens=st.integers(1, 12),
)
def test_who_is_ranked_makes_no_difference_where_there_is_a_place_for_all(
    residents: list[tuple[int, bool]], waiting: list[int], seats: int, free: int, tokens: int
) -> None:
    here = [
        (decoding if begun else prefilling)(f"r{number}", prompt=prompt)
        for number, (prompt, begun) in enumerate(residents)
    ]
    queue = [make_job(f"w{number}", prompt=prompt) for number, prompt in enumerate(waiting)]
    sizes: dict[str, Any] = {"max_run": seats, "free_blocks": free, "max_tokens": tokens}
    plan = scene(*queue, residents=here, **sizes).plan()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(top_jobs, "_all_served", lambda *_: False)
        ranked = scene(*queue, residents=here, **sizes).plan()
    assert set(plan.run) == set(ranked.run)
    # Each decode takes a token, so these are served whoever else is.
    assert set(plan.run[:tokens]) == set(ranked.run[:tokens])
    # Whose tokens may be cut, and who starts, is still a matter of rank.
    assert [job for job in plan.run if job.prefilling] == [job for job in ranked.run if job.prefilling]
    assert list(plan.admit) == list(ranked.admit)


@UNTIMED
@given(
    residents=prompts,
    waiting=prompts,
    seats=st.integers(1, 4),
    free=st.integers(0, 12),
    unready=st.sets(st.integers(0, 5)),
)
def test_nobody_pauses_but_for_a_higher_ranked_job(
    residents: list[int], waiting: list[int], seats: int, free: int, unready: set[int]
) -> None:
    here = [decoding(f"r{number}", prompt=prompt) for number, prompt in enumerate(residents)]
    queue = [make_job(f"w{number}", prompt=prompt) for number, prompt in enumerate(waiting)]
    late = [queue[number] for number in unready if number < len(queue)]
    made = scene(*queue, residents=here, max_run=seats, free_blocks=free)
    made.admissible(lambda job: job not in late and made.view.blocks(job.num_tokens) <= free)
    plan = made.plan()
    named = [*plan.run, *plan.admit]
    assert len(set(named)) == len(named)
    assert len(plan.run) <= seats
    places = len(plan.run) + sum(made.view.admissible(job) for job in plan.admit)
    paused = [job for job in here if job not in plan.run]
    assert not paused or places >= seats
    served = made.order.rank([*plan.run, *plan.admit[: seats - len(plan.run)]], 0.0)
    for job in paused:
        assert made.order.rank([served[0], job], 0.0)[0] is served[0]
        higher = [other for other in served if made.order.rank([other, job], 0.0)[0] is other]
        assert len(higher) == len(served)


def test_the_stages_of_a_pipeline_work_on_different_jobs() -> None:
    # Two stages, one job a step, whose output is out two steps later. a ranks highest and runs whenever it is not
    # under way, else b does; c starts when both have ended, and has nobody to take turns with.
    arrivals = tuple(
        Arrival(id=id_, at_step=0, prompt=prompt, output=2, limit=2)
        for id_, prompt in (("c", 3), ("b", 2), ("a", 1))
    )
    workload = Workload(arrivals, small_engine(batch_width=1, pipeline_stages=2))
    run = drive(from_preset(find_preset("fastserve", order="shortest-prompt"))(workload), workload)
    ran = ["".join(ids(outcome.tokens)) for outcome in run.instance.outcomes]
    assert ran[:7] == ["a", "b", "a", "b", "c", "", "c"]


def expecting(name: str, tokens: float) -> Job:
    """A job that waits with 10 prompt tokens, and holds 10 + 2 of them for the answer to come."""
    return make_job(name, limit=999, predicted_length=exactly(tokens))


def reserving(order: Any = None) -> Scene:
    """Sixteen blocks of 4 tokens, all of them free, for whoever has room to its end."""
    scene = Scene(ReservingTopJobs(reserve_confidence=0.5), total_blocks=16, free_blocks=16)
    scene.order = order or scene.order
    return scene


def test_who_starts_has_room_to_its_end() -> None:
    # 12 tokens held each. a and b bring 16: 56 of 64. c would bring it to 84 while they last.
    a, b, c = (expecting(name, 16) for name in "abc")
    plan = reserving().wait(a, b, c).plan()
    assert ids(plan.admit) == ["a", "b"]
    # All three fit their prompts: without a reservation they start.
    assert ids(Scene(ReservingTopJobs(), total_blocks=16, free_blocks=16).wait(a, b, c).plan().admit) == [
        "a",
        "b",
        "c",
    ]


def test_nobody_starts_past_one_that_has_no_room() -> None:
    a, huge, small = expecting("a", 16), expecting("huge", 60), expecting("small", 1)
    assert ids(reserving().wait(a, huge, small).plan().admit) == ["a"]


def test_one_alone_starts_though_it_outgrows_everything() -> None:
    assert ids(reserving().wait(expecting("huge", 600)).plan().admit) == ["huge"]


def test_while_predictions_are_not_trusted_nothing_is_set_aside() -> None:
    jobs = [expecting(name, 16) for name in "abc"]
    for trusts, expected in ((False, ["a", "b", "c"]), (True, ["a", "b"])):
        scene = reserving(Governed(trusted_at_first=trusts)).wait(*jobs)
        assert ids(scene.plan().admit) == expected


def test_what_is_known_of_residents_follows_them() -> None:
    scene = reserving()
    job = expecting("a", 16)
    plan = scene.wait(job).plan()
    job.state = JobState.RESIDENT
    scene.admit(plan, job)
    assert jobs_held_by(scene.batching) == {job}


def test_room_is_set_aside_for_the_limit_or_by_prediction() -> None:
    with pytest.raises(
        ConfigError, match="reserve and reserve_confidence are both given; accepted: one of them"
    ):
        ReservingTopJobs(reserve=True, reserve_confidence=0.5)
