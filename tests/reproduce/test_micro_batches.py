from __future__ import annotations

from headway_reproduce.study_runs import micro_batched

from headway.sim.simulation import PolicyFactory, System
from tests.sim.worlds import calibration, limits, preset, request, run

PAIR = [request("a", 0.0, 4, 3), request("b", 0.0, 4, 3)]
SYSTEM = System(
    limits=limits(pipeline_stages=2, batch_width=1, prefix_caching=False), calibration=calibration()
)
"""Two stages of half a second each, and batches of one."""


def finished(build: PolicyFactory, system: System = SYSTEM) -> dict[str, float | None]:
    records, _ = run(PAIR, build, system=system)
    return {id_: record.finished_s for id_, record in records.items()}


def test_without_them_a_batch_is_shared_by_all_stages() -> None:
    assert finished(preset("orca")) == {"a": 3.0, "b": 6.0}


def test_with_them_each_stage_has_one() -> None:
    # b half a second, a stage's time, behind a.
    assert finished(micro_batched(preset("orca"))) == {"a": 3.0, "b": 3.5}


def test_static_batches_still_wait_for_each_other() -> None:
    assert finished(micro_batched(preset("static"))) == {"a": 3.0, "b": 6.0}


def test_what_others_have_set_aside_is_not_given_twice() -> None:
    # Each may have 4 + 64 tokens, 17 blocks of 4: both fit 34 blocks, and not 33.
    def system(num_blocks: int) -> System:
        small = limits(pipeline_stages=2, batch_width=1, prefix_caching=False, num_blocks=num_blocks)
        return System(limits=small, calibration=calibration())

    assert finished(micro_batched(preset("orca")), system(34))["b"] == 3.5
    assert finished(micro_batched(preset("orca")), system(33))["b"] == 6.0
