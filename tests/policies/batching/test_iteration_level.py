from __future__ import annotations

import pytest
from hypothesis import given

from headway.policies.batching.reserved import IterationLevel
from headway.policies.presets import find_preset
from tests.policies.batching.scene import Scene
from tests.policies.contract import Workload, drive, from_preset, workloads
from tests.strategies import FEW, decoding, ids, make_job, prefilling

DECODES = [decoding("d0"), decoding("d1")]


def test_prompts_and_decodes_share_a_step_and_prompts_are_whole() -> None:
    plan = Scene(IterationLevel(), residents=DECODES).wait(make_job("w0"), make_job("w1")).plan()
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


def test_a_prompt_longer_than_a_step_pauses_the_batch_and_starts_alone() -> None:
    scene = Scene(IterationLevel(), residents=DECODES, max_tokens=8)
    plan = scene.wait(make_job("long", prompt=9), make_job("w")).plan()
    assert (ids(plan.run), ids(plan.admit)) == ([], ["long"])


def test_a_long_prompt_that_cannot_start_pauses_nobody() -> None:
    long, short = make_job("long", prompt=9), make_job("short")
    scene = Scene(IterationLevel(), residents=DECODES, max_tokens=8).wait(long, short)
    plan = scene.admissible(lambda job: job is not long).plan()
    assert (ids(plan.run), ids(plan.admit)) == (["d0", "d1"], ["long", "short"])


def test_a_prompt_of_exactly_one_step_is_not_long() -> None:
    plan = Scene(IterationLevel(), residents=DECODES, max_tokens=8).wait(make_job("w", prompt=8)).plan()
    assert (ids(plan.run), ids(plan.admit)) == (["d0", "d1"], ["w"])


def test_the_batch_waits_until_a_long_prompt_is_computed() -> None:
    residents = [*DECODES, prefilling("long", prompt=20, computed=8)]
    plan = Scene(IterationLevel(), residents=residents, max_tokens=8).wait(make_job("w")).plan()
    assert (ids(plan.run), list(plan.admit)) == (["long"], [])


@pytest.mark.parametrize("batching", ["iteration-level", "request-level"])
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
