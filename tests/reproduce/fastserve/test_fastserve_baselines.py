"""The rules of FastServe's baselines, worked out by hand: a step takes a second, blocks are of 4 tokens."""

from __future__ import annotations

from headway_reproduce.ablations import preset_and_parts
from headway_reproduce.fastserve.cells import ORCA_LIMITS
from headway_reproduce.study_runs import micro_batched

from headway.sim.simulation import PolicyFactory, System
from tests.sim.worlds import calibration, limits, preset, request, run

# Prompts of 2 tokens, answers of 2, 6 and 1, all at 0 s.
JOBS = [request("a", 0.0, 2, 2), request("b", 0.0, 2, 6), request("c", 0.0, 2, 1)]


def finished(build: PolicyFactory, longest: int = 4, **sizes: int) -> dict[str, float | None]:
    small = limits(**{"num_blocks": 8, "prefix_caching": False, "host_blocks": 100, **sizes})
    system = System(limits=small, calibration=calibration())
    records, _ = run(JOBS, build, system=system, max_output_tokens=longest)
    return {job.id: records[job.id].finished_s for job in JOBS}


def test_orca_with_places_of_the_context_runs_as_many_jobs_as_there_are_places() -> None:
    # Places of 16 tokens are 4 of the 8 blocks: a and b run, c takes the place of a, which ends at 2.
    places = preset("orca", batching="iteration-level:reserve_tokens=16")
    assert finished(places, longest=6) == {"a": 2.0, "b": 6.0, "c": 3.0}


def test_orca_that_reserves_the_longest_answer_runs_more() -> None:
    # 2 + 6 tokens are 2 blocks: there is room for all three.
    assert finished(preset("orca", batching=ORCA_LIMITS), longest=6) == {"a": 2.0, "b": 6.0, "c": 1.0}


def test_orca_lets_a_job_into_the_batch_as_soon_as_one_leaves_and_fastertransformer_when_all_have() -> None:
    assert finished(preset("orca"), longest=6, batch_width=2, num_blocks=99) == {"a": 2.0, "b": 6.0, "c": 3.0}
    static = finished(preset("fastertransformer"), longest=6, batch_width=2, num_blocks=99)
    assert static == {"a": 2.0, "b": 6.0, "c": 7.0}


def test_with_two_stages_orca_has_a_batch_in_each_and_fastertransformer_one_at_a_time() -> None:
    # Batches of one. Orca: a, and half a second later b; c follows a at 2. FasterTransformer: one after another.
    two = {"pipeline_stages": 2, "batch_width": 1, "num_blocks": 99}
    orca = finished(micro_batched(preset("orca")), longest=6, **two)
    assert orca == {"a": 2.0, "b": 6.5, "c": 3.0}
    static = finished(micro_batched(preset("fastertransformer")), longest=6, **two)
    assert static == {"a": 2.0, "b": 8.0, "c": 9.0}


def test_defer_keeps_newcomers_waiting_for_memory_that_is_not_used() -> None:
    # 2 + 14 tokens are 4 blocks, so two jobs at a time, though no job ever holds more than 2.
    base, parts = preset_and_parts("defer")
    assert finished(preset(base, **parts.given()), longest=14) == {"a": 2.0, "b": 6.0, "c": 3.0}
    assert finished(preset("fastserve"), longest=14) == {"a": 2.0, "b": 6.0, "c": 1.0}
