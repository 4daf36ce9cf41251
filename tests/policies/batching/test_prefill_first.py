from __future__ import annotations

import pytest

from headway.core.job import Job, JobState
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


# ---- with jobs on the host --------------------------------------------------------------------------


def on_host(id_: str, tokens: int = 8) -> Job:
    """A swapped job."""
    return decoding(id_, prompt=tokens - 1, state=JobState.SWAPPED, num_preemptions=1)


def test_while_any_job_is_swapped_none_that_waits_starts_and_decodes_go_on() -> None:
    scene = Scene(PrefillFirst(), residents=DECODES, swapped=[on_host("s")], free_blocks=50).wait(W0)
    scene.order.add(scene.view.swapped[0])  # type: ignore[index]
    plan = scene.plan()
    assert (ids(plan.run), ids(plan.admit)) == (["d0", "d1"], ["s"])


@pytest.mark.parametrize(("free", "back"), [(2, []), (3, ["s"])])
def test_a_swapped_job_comes_back_with_a_block_to_grow_into_or_everybody_waits(
    free: int, back: list[str]
) -> None:
    # 8 tokens: 2 blocks and one more; the residents have 10 of 12 tokens and need none.
    scene = Scene(PrefillFirst(), residents=DECODES, swapped=[on_host("s")], free_blocks=free).wait(W0)
    scene.order.add(scene.view.swapped[0])  # type: ignore[index]
    plan = scene.plan()
    assert (ids(plan.run), ids(plan.admit)) == (["d0", "d1"], back)


def test_nobody_comes_back_while_a_long_prompt_is_computed() -> None:
    long = prefilling("long")
    scene = Scene(PrefillFirst(), residents=[*DECODES, long], swapped=[on_host("s")], free_blocks=50)
    assert (ids(scene.plan().run), list(scene.plan().admit)) == (["long"], [])


def test_others_decode_while_a_half_computed_job_is_on_its_way_back() -> None:
    long = prefilling("long")
    scene = Scene(PrefillFirst(), residents=[*DECODES, long], restoring=[long], free_blocks=50)
    assert ids(scene.plan().run) == ["d0", "d1", "long"]


@pytest.mark.parametrize(("host_free", "started"), [(2, []), (3, ["w0"]), (6, ["w0", "w1"])])
def test_with_host_room_device_and_free_host_hold_all_residents_and_whoever_starts(
    host_free: int, started: list[str]
) -> None:
    # Blocks of 4: the residents have 11 tokens each, 6 blocks; w0 and w1 10 tokens, 3 blocks and one more each.
    # 7 blocks and the free host: 6 + 3 + 1 = 10 for w0, and 6 + 4 + 3 + 1 = 14 for both, one less for neither.
    fits = {"total_blocks": 7, "free_blocks": 7, "host_free_blocks": host_free + (host_free == 6)}
    scene = Scene(PrefillFirst(host_room=True), residents=DECODES, **fits).wait(W0, W1)
    assert ids(scene.plan().admit) == started


def test_without_residents_host_room_does_not_matter() -> None:
    scene = Scene(PrefillFirst(host_room=True), total_blocks=3, host_free_blocks=0).wait(W0)
    assert ids(scene.plan().admit) == ["w0"]


def test_always_swapping_by_hand() -> None:
    # vllm-s: as the run of adaptivellm (see its test), but a third job waits from step 4 on. It has to wait until b
    # is back and, in step 7, gone.
    arrivals = (
        Arrival(id="a", at_step=0, prompt=8, output=6, limit=6),
        Arrival(id="b", at_step=0, prompt=8, output=6, limit=6),
        Arrival(id="c", at_step=5, prompt=1, output=1, limit=1),
    )
    workload = Workload(arrivals, small_engine(num_blocks=6, max_num_batched_tokens=32, host_blocks=3))
    run = drive(from_preset(PRESETS["vllm-s"])(workload), workload)
    ran = [sorted(job.id for job in outcome.tokens) for outcome in run.instance.outcomes]
    assert ran == [["a", "b"]] * 5 + [["a"], ["b"], ["c"]]
    assert run.instance.records["b"].swapped_blocks == 3
