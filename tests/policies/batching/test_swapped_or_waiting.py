"""AdaptiveLLM Algorithm 2 by hand: blocks of 4, at 100 s; the value of a job is its wait over its tokens."""

from __future__ import annotations

from typing import Any

import pytest

from headway.core.job import Job, JobState
from headway.policies.batching.swapped_or_waiting import SwappedOrWaiting
from headway.policies.order.response_ratio import DeadlineAware, WaitedOverLength
from headway.policies.presets import PRESETS
from tests.policies.batching.scene import Scene
from tests.policies.contract import Arrival, Workload, drive, from_preset
from tests.policies.instance import small_engine
from tests.strategies import decoding, ids, make_job, prefilling

NOW_S = 100.0


def waiting(id_: str, tokens: int, waited_s: float, **fields: Any) -> Job:
    """A job that waits, with so many tokens."""
    return make_job(id_, prompt=tokens, arrival_s=NOW_S - waited_s, **fields)


def swapped(id_: str, tokens: int, waited_s: float) -> Job:
    """A job whose KV is on the host, all but its newest token computed."""
    return decoding(id_, prompt=tokens - 1, arrival_s=NOW_S - waited_s, state=JobState.SWAPPED)


RUNS = decoding("runs", prompt=8)
"""Its next token opens a third block."""


def scene(*queued: Job, residents: list[Job] | None = None, free: int = 50, **view: Any) -> Scene:
    """The batching with its paper's order, and these queued."""
    made = Scene(SwappedOrWaiting(), residents=residents, now_s=NOW_S, free_blocks=free, **view)
    made.order = WaitedOverLength()  # type: ignore[assignment]
    for job in queued:
        made.order.add(job)
    made.view.waiting = [job for job in queued if job.state is JobState.WAITING]
    made.view.swapped = [job for job in queued if job.state is JobState.SWAPPED]
    return made


def test_waiting_jobs_with_the_higher_mean_are_prefilled_and_nobody_decodes() -> None:
    # w1 20/10 = 2 and w2 5/5 = 1: a mean of 1.5; s 10/10 = 1.
    plan = scene(waiting("w1", 10, 20), waiting("w2", 5, 5), swapped("s", 10, 10), residents=[RUNS]).plan()
    assert (ids(plan.run), ids(plan.admit), plan.whole_prompts) == ([], ["w1", "w2"], True)


def test_swapped_jobs_with_the_higher_mean_come_back_and_decode_with_the_others() -> None:
    # s1 30/10 = 3, s2 2/10 = 0.2: a mean of 1.6 against w's 1.5, although w is worth more than s2.
    plan = scene(waiting("w", 10, 15), swapped("s1", 10, 30), swapped("s2", 10, 2), residents=[RUNS]).plan()
    assert (ids(plan.run), ids(plan.admit)) == (["runs"], ["s1", "s2"])


def test_a_tie_goes_to_the_swapped() -> None:
    assert ids(scene(waiting("w", 10, 10), swapped("s", 10, 10)).plan().admit) == ["s"]


def test_an_empty_list_never_wins() -> None:
    # A newcomer is worth 0, which is more than nobody.
    assert ids(scene(waiting("w", 10, 0), residents=[RUNS]).plan().admit) == ["w"]
    plan = scene(residents=[RUNS]).plan()
    assert (ids(plan.run), list(plan.admit)) == (["runs"], [])


def test_nobody_starts_while_the_residents_next_tokens_do_not_fit() -> None:
    # Two residents open a block each.
    others = [decoding("a", prompt=8), decoding("b", prompt=8)]
    plan = scene(waiting("w", 1, 50), swapped("s", 2, 50), residents=others, free=1).plan()
    assert (len(plan.run), list(plan.admit)) == (2, [])


def test_nobody_starts_without_a_free_block() -> None:
    idle = decoding("idle", prompt=6)
    assert list(scene(waiting("w", 1, 50), residents=[idle], free=0).plan().admit) == []


@pytest.mark.parametrize(("free", "expected"), [(3, []), (4, ["w1"]), (6, ["w1"]), (7, ["w1", "w2"])])
def test_each_candidate_has_a_block_to_grow_into_beside_the_residents(free: int, expected: list[str]) -> None:
    # runs takes 1; w1 with 7 tokens 2 + 1, w2 with 5 tokens 2 + 1.
    plan = scene(waiting("w1", 7, 70), waiting("w2", 5, 5), residents=[RUNS], free=free).plan()
    assert ids(plan.admit) == expected


def test_the_first_in_an_empty_engine_may_take_all_there_is() -> None:
    assert ids(scene(waiting("w", 40, 5), free=10).plan().admit) == ["w"]
    assert ids(scene(waiting("w", 41, 5), free=10).plan().admit) == ["w"], "the engine's to refuse"
    assert ids(scene(swapped("s", 40, 5), free=10).plan().admit) == ["s"]


def test_the_first_that_does_not_fit_ends_the_list_unless_it_may_be_passed_over() -> None:
    jobs = [waiting("big", 40, 400), waiting("small", 4, 4)]
    made = scene(*jobs, residents=[RUNS], free=6)
    assert list(made.plan().admit) == []
    made.batching = SwappedOrWaiting(skip_misfit=True)
    assert ids(made.plan().admit) == ["small"]


def test_whole_prompts_share_the_budget_and_a_longer_one_comes_alone() -> None:
    made = scene(waiting("w1", 30, 90), waiting("w2", 30, 60), waiting("w3", 30, 30), max_tokens=64)
    assert ids(made.plan().admit) == ["w1", "w2"]
    made = scene(waiting("long", 70, 700), waiting("w", 5, 5), max_tokens=64)
    assert ids(made.plan().admit) == ["long"]
    made = scene(waiting("w", 5, 500), waiting("long", 70, 70), waiting("x", 5, 1), max_tokens=64)
    assert ids(made.plan().admit) == ["w"]
    made.batching = SwappedOrWaiting(skip_misfit=True)
    assert ids(made.plan().admit) == ["w", "x"]


def test_a_prompt_in_chunks_runs_alone_until_it_is_computed() -> None:
    long = prefilling("long", prompt=90, computed=64)
    plan = scene(waiting("w", 5, 50), residents=[RUNS, long]).plan()
    assert (ids(plan.run), list(plan.admit)) == (["long"], [])


def test_others_decode_while_one_half_computed_is_on_its_way_back() -> None:
    long = prefilling("long", prompt=90, computed=64)
    assert "runs" in ids(scene(residents=[RUNS, long], restoring=[long]).plan().run)


def test_seats_bound_both_lists() -> None:
    jobs = [waiting("w1", 5, 50), waiting("w2", 5, 40), waiting("w3", 5, 30)]
    assert ids(scene(*jobs, residents=[RUNS], max_run=3).plan().admit) == ["w1", "w2"]
    assert list(scene(*jobs, residents=[RUNS], max_run=1).plan().admit) == []
    backs = [swapped("s1", 5, 50), swapped("s2", 5, 40)]
    assert ids(scene(*backs, residents=[RUNS], max_run=2).plan().admit) == ["s1"]


def test_a_list_whose_first_is_not_ready_counts_as_empty_and_few_are_asked() -> None:
    asked: list[str] = []
    made = scene(waiting("w", 10, 90), waiting("x", 10, 80), swapped("s", 10, 1), residents=[RUNS])

    def admissible(job: Job) -> bool:
        asked.append(job.id)
        return job.id != "w"

    assert ids(made.admissible(admissible).plan().admit) == ["s"]
    assert sorted(asked) == ["s", "w"]


def test_queues_are_compared_by_the_values_of_an_order_that_has_some() -> None:
    # By waited / length s wins, 1.2 against 1. With a target at 110 s w counts (100 + 10) / 10 times as much, 8 at
    # most.
    from headway.core.slo import Slo

    w = waiting("w", 10, 10, slo=Slo(deadline_s=20.0))
    s = swapped("s", 10, 12)
    assert ids(scene(w, s).plan().admit) == ["s"]
    made = scene(w, s)
    made.order = DeadlineAware()  # type: ignore[assignment]
    for job in (w, s):
        made.order.add(job)
    assert ids(made.plan().admit) == ["w"]


def test_a_run_by_hand() -> None:
    # Six blocks of 4, ten of them on the host; copies take no time here. a and b, 8 tokens each, arrive at 0.
    # 0: a needs 2 + 1 blocks, b 2 + 1: both are prefilled. 1: each opens a third: 6 held. 2, 3, 4: to 12 tokens.
    # 5: each would open a fourth. Equal values at all times; b ranks behind a, so b goes: 12 tokens in 3 blocks.
    # A swap costs 2 x (0.2 + 0.3) = 1 s, less than 1.2 s. a takes its fourth block, and ends with this, its sixth
    # token. 6: b needs 4 blocks, all are free: it comes back and brings its sixth.
    arrivals = tuple(Arrival(id=id_, at_step=0, prompt=8, output=6, limit=6) for id_ in "ab")
    workload = Workload(arrivals, small_engine(num_blocks=6, max_num_batched_tokens=32, host_blocks=10))
    run = drive(from_preset(PRESETS["adaptivellm"])(workload), workload)
    outcomes = run.instance.outcomes
    assert [sorted(job.id for job in outcome.tokens) for outcome in outcomes] == [
        ["a", "b"], ["a", "b"], ["a", "b"], ["a", "b"], ["a", "b"], ["a"], ["b"],
    ]  # fmt: skip
    assert [outcome.num_tokens for outcome in outcomes] == [16, 2, 2, 2, 2, 1, 1]
    record = run.instance.records["b"]
    assert (record.preemptions, record.swapped_blocks, record.recomputed_tokens) == (1, 3, 0)
