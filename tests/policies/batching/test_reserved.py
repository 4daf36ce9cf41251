from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from headway.core.job import Job, JobState
from headway.core.view import StepView
from headway.errors import ConfigError
from headway.policies.batching.reserved import IterationLevel, RequestLevel, reservable
from headway.policies.presets import find_preset
from tests.policies.batching.scene import Scene
from tests.policies.contract import Workload, drive, from_preset, workloads
from tests.strategies import FEW, decoding, ids, make_job, prefilling


@pytest.mark.parametrize(
    ("total_blocks", "expected"), [(6, []), (7, ["a"]), (9, ["a"]), (10, ["a", "b"]), (99, ["a", "b", "c"])]
)
def test_the_leading_jobs_that_fit_beside_the_residents(total_blocks: int, expected: list[str]) -> None:
    # Blocks of 4. The resident's 10 + 6 tokens reserve 4, however few it holds now; a: 5 + 4 tokens: 3;
    # b: 8 + 4: 3; c: 40 + 1: 11.
    view = StepView(total_blocks=total_blocks, block_size=4, residents=[decoding("r", limit=6)])
    sizes = {"a": (5, 4), "b": (8, 4), "c": (40, 1)}
    jobs = [make_job(name, prompt=prompt, limit=limit) for name, (prompt, limit) in sizes.items()]
    assert ids(reservable(view, jobs)) == expected


def test_progress_changes_no_reservation() -> None:
    # A preempted job with 5 of its 10 tokens out still ends at 5 + 10: 4 blocks, so 2 more fit into 6.
    job = make_job("a", prompt=5, limit=10, num_output_tokens=5)
    two, three = make_job("b", prompt=4, limit=4), make_job("c", prompt=8, limit=4)
    assert reservable(StepView(total_blocks=6, block_size=4), [job, two]) == [job, two]
    assert reservable(StepView(total_blocks=6, block_size=4), [job, three]) == [job]


def test_a_limit_beyond_the_whole_pool_reserves_all_of_it_and_runs_alone() -> None:
    # 5 + 100 tokens are 27 blocks, the pool has 6.
    huge, small = make_job("huge", prompt=5, limit=100), make_job("small", prompt=1, limit=1)
    view = StepView(total_blocks=6, block_size=4)
    assert reservable(view, [huge, small]) == [huge]
    assert reservable(view, [small, huge]) == [small]


def start(scene: Scene, *jobs: Job) -> None:
    """Plan, and let these jobs become resident."""
    plan = scene.plan()
    for job in jobs:
        scene.order.remove(job)
        job.state = JobState.RESIDENT
    scene.admit(plan, *jobs)
    scene.view.residents = [*scene.view.residents, *jobs]


def end(scene: Scene, *jobs: Job) -> None:
    """Let residents end."""
    for job in jobs:
        job.state = JobState.ENDED
    scene.view.residents = [job for job in scene.view.residents if job not in jobs]


def four() -> list[Job]:
    """Jobs a to d, waiting."""
    return [make_job(name) for name in "abcd"]


@pytest.mark.parametrize(
    ("settings", "sizes", "expected"),
    [
        ({}, {"max_run": 3}, ["a", "b", "c"]),
        ({"batch_size": 2}, {}, ["a", "b"]),
        ({"batch_size": 99}, {"max_run": 3, "max_resident": 2}, ["a", "b"]),
    ],
)
def test_a_batch_is_as_many_as_asked_for_and_seated(
    settings: dict[str, Any], sizes: dict[str, Any], expected: list[str]
) -> None:
    plan = Scene(RequestLevel(**settings), **sizes).wait(*four()).plan()
    assert ids(plan.admit) == expected
    assert (plan.token_budget, plan.whole_prompts) == (64, False)


def test_the_next_batch_starts_when_the_last_member_has_ended() -> None:
    a, b, c, d = four()
    scene = Scene(RequestLevel(batch_size=2)).wait(a, b, c, d)
    start(scene, a, b)
    plan = scene.plan()
    assert (ids(plan.run), plan.admit) == (["a", "b"], [])
    end(scene, a)
    plan = scene.plan()
    assert (ids(plan.run), plan.admit) == (["b"], [])
    end(scene, b)
    assert ids(scene.plan().admit) == ["c", "d"]


def test_members_that_did_not_fit_the_first_step_start_later() -> None:
    a, b, c, _ = four()
    scene = Scene(RequestLevel(batch_size=3)).wait(a, b, c, make_job("late"))
    start(scene, a)
    plan = scene.plan()
    assert (ids(plan.run), ids(plan.admit)) == (["a"], ["b", "c"])


def test_a_batch_nobody_of_which_could_start_is_not_one_yet() -> None:
    a, b, c, d = four()
    scene = Scene(RequestLevel(batch_size=2)).wait(a, b, c, d)
    scene.admit(scene.plan())
    scene.order.remove(a)
    a.state = JobState.ENDED
    assert ids(scene.plan().admit) == ["b", "c"]


@pytest.mark.parametrize("state", [JobState.WAITING, JobState.SWAPPED], ids=["dropped", "swapped"])
def test_a_preempted_member_re_enters_and_the_batch_stays_the_same(state: JobState) -> None:
    a, b, c, d = four()
    scene = Scene(RequestLevel(batch_size=2, reserve=False)).wait(a, b, c, d)
    start(scene, a, b)
    b.state, b.num_preemptions = state, 1
    scene.order.add(b)
    scene.view.residents = [a]
    assert ids(scene.plan().admit) == ["b"]
    start(scene, b)
    end(scene, b)
    assert ids(scene.plan().admit) == []
    end(scene, a)
    assert ids(scene.plan().admit) == ["c", "d"]


def test_a_member_that_leaves_is_not_admitted_and_ends_its_membership() -> None:
    a, b, c, d = four()
    scene = Scene(RequestLevel(batch_size=2)).wait(a, b, c, d)
    start(scene, a)
    assert ids(scene.plan(leaving=(b,)).admit) == []
    scene.order.remove(b)
    end(scene, a, b)
    assert ids(scene.plan().admit) == ["c", "d"]


@pytest.mark.parametrize("batch_size", [0, -2])
def test_a_batch_of_nobody_is_refused(batch_size: int) -> None:
    with pytest.raises(ConfigError, match=f"batch_size is {batch_size}; accepted: 1 or more jobs"):
        RequestLevel(batch_size)


DECODES_ = [decoding("d0"), decoding("d1")]


def test_prompts_and_decodes_share_a_step_and_prompts_are_whole() -> None:
    plan = Scene(IterationLevel(), residents=DECODES_).wait(make_job("w0"), make_job("w1")).plan()
    assert (ids(plan.run), ids(plan.admit)) == (["d0", "d1"], ["w0", "w1"])
    assert (plan.whole_prompts, plan.token_budget) == (True, 64)


def test_admission_ends_where_the_longest_outputs_would_not_fit() -> None:
    # 12 blocks of 4. d0 may reach 10 + 6 tokens: 4 blocks. w0: 8 + 8: 4 more. w1: 9 + 8 = 17: 5, one too
    # many; w2 would fit, but comes after it.
    jobs = [
        make_job("w0", prompt=8, limit=8),
        make_job("w1", prompt=9, limit=8),
        make_job("w2", prompt=1, limit=1),
    ]
    scene = Scene(IterationLevel(), residents=[decoding("d0", limit=6)], total_blocks=12).wait(*jobs)
    assert ids(scene.plan().admit) == ["w0"]
    scene.view.total_blocks = 13
    assert ids(scene.plan().admit) == ["w0", "w1"]


def test_places_of_the_models_context_are_reserved_whatever_the_limit() -> None:
    # Places of 16 tokens are 4 blocks of 4. Three fit into 15; by their limits, 2 + 1 tokens, fifteen would.
    residents = [decoding("d0", prompt=2, limit=1)]
    jobs = [make_job(name, prompt=2, limit=1) for name in ("w0", "w1", "w2")]
    places = Scene(IterationLevel(reserve_tokens=16), residents=residents, total_blocks=15).wait(*jobs)
    assert ids(places.plan().admit) == ["w0", "w1"]
    limits = Scene(IterationLevel(), residents=residents, total_blocks=15).wait(*jobs)
    assert ids(limits.plan().admit) == ["w0", "w1", "w2"]


def test_less_than_no_tokens_cannot_be_reserved() -> None:
    with pytest.raises(ConfigError, match="reserve_tokens is -1; accepted: 0 or more tokens"):
        IterationLevel(reserve_tokens=-1)


def test_a_prompt_longer_than_a_step_pauses_the_batch_and_starts_alone() -> None:
    scene = Scene(IterationLevel(), residents=DECODES_, max_tokens=8)
    plan = scene.wait(make_job("long", prompt=9), make_job("w")).plan()
    assert (ids(plan.run), ids(plan.admit)) == ([], ["long"])


def test_a_long_prompt_that_cannot_start_pauses_nobody() -> None:
    long, short = make_job("long", prompt=9), make_job("short")
    scene = Scene(IterationLevel(), residents=DECODES_, max_tokens=8).wait(long, short)
    plan = scene.admissible(lambda job: job is not long).plan()
    assert (ids(plan.run), ids(plan.admit)) == (["d0", "d1"], ["long", "short"])


def test_a_prompt_of_exactly_one_step_is_not_long() -> None:
    plan = Scene(IterationLevel(), residents=DECODES_, max_tokens=8).wait(make_job("w", prompt=8)).plan()
    assert (ids(plan.run), ids(plan.admit)) == (["d0", "d1"], ["w"])


def test_the_batch_waits_until_a_long_prompt_is_computed() -> None:
    residents = [*DECODES_, prefilling("long", prompt=20, computed=8)]
    plan = Scene(IterationLevel(), residents=residents, max_tokens=8).wait(make_job("w")).plan()
    assert (ids(plan.run), list(plan.admit)) == (["long"], [])


@pytest.mark.parametrize(
    "batching", ["iteration-level", "iteration-level:reserve_tokens=64", "request-level"]
)
@FEW
@given(workload=workloads())
def test_reservations_fit_the_pool_so_nobody_is_ever_preempted(batching: str, workload: Workload) -> None:
    policy = from_preset(find_preset("orca", batching=batching))(workload)
    run = drive(policy, workload)
    view = run.instance.view()
    for outcome in run.instance.outcomes:
        assert not outcome.preempted
        batch = {*outcome.plan.run, *outcome.admitted}
        reserved = sum(view.blocks(job.num_prompt_tokens + job.max_output_tokens) for job in batch)
        assert reserved <= view.total_blocks
