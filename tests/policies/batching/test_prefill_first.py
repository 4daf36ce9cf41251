from __future__ import annotations

from headway.policies.batching.prefill_first import PrefillFirst
from headway.policies.presets import PRESETS
from tests.policies.batching.scene import Scene
from tests.policies.contract import Arrival, Workload, drive, from_preset
from tests.policies.instance import small_engine
from tests.strategies import decoding, ids, make_job, prefilling

DECODES = [decoding("d0"), decoding("d1")]
W0, W1 = make_job("w0"), make_job("w1")


def test_a_step_that_starts_prompts_runs_no_decodes() -> None:
    plan = Scene(PrefillFirst(), residents=DECODES).wait(W0, W1).plan()
    assert (ids(plan.run), ids(plan.admit)) == ([], ["w0", "w1"])
    assert (plan.whole_prompts, plan.token_budget) == (True, 64)


def test_while_the_first_waiting_job_is_not_admissible_decodes_go_on() -> None:
    # Not even w1 may start: the queue is served in order.
    scene = Scene(PrefillFirst(), residents=DECODES).wait(W0, W1).admissible(lambda job: job is W1)
    plan = scene.plan()
    assert (ids(plan.run), ids(plan.admit)) == (["d0", "d1"], [])


def test_with_nobody_to_pause_it_is_left_to_the_engine_who_may_start() -> None:
    plan = Scene(PrefillFirst()).wait(W0, W1).admissible(lambda job: job is W1).plan()
    assert ids(plan.admit) == ["w0", "w1"]


def test_without_waiting_jobs_every_resident_decodes() -> None:
    plan = Scene(PrefillFirst(), residents=DECODES).plan()
    assert (ids(plan.run), list(plan.admit)) == (["d0", "d1"], [])


def test_a_prompt_in_chunks_runs_alone_until_it_is_computed() -> None:
    plan = Scene(PrefillFirst(), residents=[*DECODES, prefilling("long")]).wait(W0).plan()
    assert (ids(plan.run), list(plan.admit)) == (["long"], [])


def test_no_decode_waits_once_the_seats_are_taken() -> None:
    plan = Scene(PrefillFirst(), residents=DECODES, max_run=2).wait(W0).plan()
    assert (ids(plan.run), list(plan.admit)) == (["d0", "d1"], [])


def test_a_run_by_hand() -> None:
    # Budget 8. Step 0: a's 4 tokens. Step 1: b and c (4 + 4) start, a waits. Step 2: all three decode, one
    # token each; a, with 2 tokens to bring, is done. Step 3: d's 12 tokens start alone, in chunks of 8
    # and 4 (step 4), then the rest decode.
    arrivals = tuple(
        Arrival(id=id_, at_step=at, prompt=prompt, output=output, limit=3)
        for id_, at, prompt, output in (("a", 0, 4, 2), ("b", 1, 4, 3), ("c", 1, 4, 3), ("d", 3, 12, 1))
    )
    workload = Workload(arrivals, small_engine(num_blocks=20, max_num_batched_tokens=8))
    run = drive(from_preset(PRESETS["vllm-v0"])(workload), workload)
    tokens = [{job.id: count for job, count in outcome.tokens.items()} for outcome in run.instance.outcomes]
    assert tokens == [
        {"a": 4},
        {"b": 4, "c": 4},
        {"a": 1, "b": 1, "c": 1},
        {"d": 8},
        {"d": 4},
        {"b": 1, "c": 1},
    ]
