from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.job import Job, JobState
from headway.errors import ConfigError
from headway.policies.batching.prefill_first import PrefillFirst
from headway.policies.batching.whole_prompts import prompts_of_step
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


@pytest.mark.parametrize(("host_free", "started"), [(9, []), (10, ["w0"]), (13, ["w0"]), (14, ["w0", "w1"])])
def test_with_host_room_the_host_holds_all_residents_and_whoever_starts(
    host_free: int, started: list[str]
) -> None:
    # Blocks of 4: the residents have 11 tokens each, 6 blocks; w0 and w1 10 tokens, 3 blocks and one more each.
    # 6 + 3 + 1 = 10 for w0, 6 + 4 + 3 + 1 = 14 for both. The device has room for more.
    fits = {"total_blocks": 50, "free_blocks": 40, "host_total_blocks": host_free}
    scene = Scene(PrefillFirst(host_room=True), residents=DECODES, **fits).wait(W0, W1)
    assert ids(scene.plan().admit) == started


def test_without_residents_host_room_does_not_matter() -> None:
    scene = Scene(PrefillFirst(host_room=True), total_blocks=3, host_total_blocks=0).wait(W0)
    assert ids(scene.plan().admit) == ["w0"]


def test_always_swapping_by_hand() -> None:
    # vllm-s: as the run of adaptivellm (see its test), but a third job waits from step 4 on. It has to wait until b
    # is back and, in step 7, gone.
    arrivals = (
        Arrival(id="a", at_step=0, prompt=8, output=6, limit=6),
        Arrival(id="b", at_step=0, prompt=8, output=6, limit=6),
        Arrival(id="c", at_step=5, prompt=1, output=1, limit=1),
    )
    # At the start the host has room for both, with a block each to grow into: 2 x (2 + 1).
    workload = Workload(arrivals, small_engine(num_blocks=6, max_num_batched_tokens=32, host_blocks=6))
    run = drive(from_preset(PRESETS["vllm-s"])(workload), workload)
    ran = [sorted(job.id for job in outcome.tokens) for outcome in run.instance.outcomes]
    assert ran == [["a", "b"]] * 5 + [["a"], ["b"], ["c"]]
    assert run.instance.records["b"].swapped_blocks == 3


# ---- padded prompts: vLLM 0.2.5 ---------------------------------------------------------------------


def granted(preset: str, *arrivals: Arrival, **sizes: int) -> list[dict[str, int]]:
    """The tokens of each step of a run."""
    workload = Workload(arrivals, small_engine(num_blocks=1000, max_num_seqs=8, **sizes))
    run = drive(from_preset(PRESETS[preset])(workload), workload)
    return [{job.id: count for job, count in outcome.tokens.items()} for outcome in run.instance.outcomes]


def one_token(id_: str, prompt: int) -> Arrival:
    """A request at 0 that brings one token."""
    return Arrival(id=id_, at_step=0, prompt=prompt, output=1, limit=1)


def test_a_prefill_has_at_most_256_padding_tokens_by_hand() -> None:
    # a and b count 300 each: 600, of which 600 - 400 = 200 are padding. With c 900, of which 900 - 444 = 456 are.
    # With d, 300 long, in c's place the padding stays 200; but c stands before d, and nothing passes it over.
    prompts = [one_token("a", 300), one_token("b", 100), one_token("c", 44), one_token("d", 300)]
    sizes = {"max_num_batched_tokens": 2048}
    assert granted("vllm-0.2.5", *prompts, **sizes) == [{"a": 300, "b": 100}, {"c": 44, "d": 300}]
    assert granted("vllm-v0", *prompts, **sizes) == [{"a": 300, "b": 100, "c": 44, "d": 300}]


@pytest.mark.parametrize(("longest", "first"), [(300, ["a", "b"]), (301, ["a"])])
def test_the_budget_is_prompts_times_the_longest_by_hand(longest: int, first: list[str]) -> None:
    # 2 x 300 = 600 is the budget; 2 x 301 is more, although 301 + 290 = 591 is not.
    prompts = [one_token("a", longest), one_token("b", 290)]
    steps = granted("vllm-0.2.5", *prompts, max_num_batched_tokens=600)
    assert list(steps[0]) == first
    assert len(granted("vllm-v0", *prompts, max_num_batched_tokens=600)) == 1


def test_a_padded_prompt_longer_than_the_budget_runs_alone_in_chunks() -> None:
    steps = granted("vllm-0.2.5", one_token("a", 20), one_token("b", 2), max_num_batched_tokens=16)
    assert steps == [{"a": 16}, {"a": 4}, {"b": 2}]


def test_in_an_empty_engine_a_job_that_is_not_ready_sets_no_padding() -> None:
    # w0's 10 tokens beside w1's 2 and w2's 2 would be 24 of padding, and 30 tokens of 16.
    short = [make_job("w1", prompt=2), make_job("w2", prompt=2)]
    scene = Scene(PrefillFirst(max_padding_tokens=0), max_tokens=16, ready=lambda job: job is not W0)
    assert ids(scene.wait(W0, *short).plan().admit) == ["w1", "w2"]


@given(st.lists(st.integers(1, 40), max_size=12), st.integers(0, 60), st.integers(1, 120))
def test_any_part_of_a_padded_batch_is_one_too(lengths: list[int], most: int, budget: int) -> None:
    queued = [make_job(str(number), prompt=length) for number, length in enumerate(lengths)]
    batch = prompts_of_step(queued, budget, max_padding_tokens=most)
    assert batch == queued[: len(batch)]
    for left_out in batch:
        rest = [job for job in batch if job is not left_out]
        assert prompts_of_step(rest, budget, max_padding_tokens=most) == rest


def test_padding_below_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_padding_tokens is -1; accepted: 0 or more tokens a step"):
        PrefillFirst(max_padding_tokens=-1)
