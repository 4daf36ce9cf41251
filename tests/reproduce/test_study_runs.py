from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from headway_reproduce.study import read_kept
from headway_reproduce.study_runs import FILE, KeptRuns, RunResult, StudyRun, saturated_rps, simulate_run

from headway.errors import ConfigError, TraceError
from headway.lab.kept_runs import run_kept
from headway.lab.policy_choice import Parts
from headway.sim.limits import EngineLimits

RUN = StudyRun(
    hardware="a800-80g-pcie",
    model="facebook/opt-13b",
    trace="gen:at-once/input=constant:tokens=20/output=zipf:theta=1.1,max=30/count=40/max_output=30",
    policy="vllm-s-fallback",
    seed=0,
    max_output_tokens=30,
    limits=EngineLimits(num_blocks=32, host_blocks=16, prefix_caching=False),
)
RUNS = [RUN, replace(RUN, policy="vllm-v0"), replace(RUN, seed=1)]


def read(root: Path) -> KeptRuns:
    return read_kept(root, RunResult)


def untimed(result: RunResult) -> RunResult:
    """Without the time that plans took, which is the machine's."""
    return replace(result, meter=replace(result.meter, plan_s=0.0))


def test_a_run_repeats() -> None:
    first, second = simulate_run(RUN), simulate_run(RUN)
    assert untimed(first) == untimed(second)
    assert first.summary.finished == 40
    assert first.meter.swaps > 0


def test_every_step_can_be_planned_with_the_same_outcome() -> None:
    quick, stepwise = simulate_run(RUN), simulate_run(replace(RUN, every_step=True))
    assert stepwise.summary == quick.summary
    assert stepwise.meter.plans >= stepwise.steps > quick.meter.plans


def test_slower_copies_cost_time() -> None:
    slow = simulate_run(replace(RUN, copy_bytes_per_s=1e9))
    assert slow.end_s > simulate_run(RUN).end_s


def test_parts_take_the_place_of_the_policys_own() -> None:
    assert simulate_run(replace(RUN, parts=Parts(eviction="recompute"))).meter.swaps == 0


def test_a_stage_may_have_several_gpus() -> None:
    assert simulate_run(replace(RUN, tp=2)).end_s < simulate_run(RUN).end_s


def test_a_batch_for_each_stage_is_faster_than_one_for_both() -> None:
    limits = replace(RUN.limits, num_blocks=500, pipeline_stages=2, batch_width=2)
    one = replace(RUN, policy="orca", limits=limits)
    assert simulate_run(replace(one, micro_batches=True)).end_s < 0.7 * simulate_run(one).end_s


def test_an_error_names_its_run() -> None:
    with pytest.raises(TraceError, match=r"^vllm-v0 on facebook/opt-13b, gen:at-once/.*, seed 0: "):
        simulate_run(
            replace(
                RUN, policy="vllm-v0", trace=RUN.trace.removesuffix("/max_output=30"), max_output_tokens=1
            )
        )


@pytest.mark.parametrize(
    "change",
    [
        {"policy": "vllm"},
        {"seed": 1},
        {"hardware": "a100-80g"},
        {"model": "facebook/opt-30b"},
        {"limits": replace(RUN.limits, host_blocks=8)},
        {"copy_bytes_per_s": 1e9},
        {"every_step": True},
        {"tp": 2},
        {"parts": Parts(eviction="recompute")},
        {"micro_batches": True},
    ],
)
def test_whatever_may_differ_gives_another_digest(change: dict[str, object]) -> None:
    assert replace(RUN, **change).digest() != RUN.digest() == replace(RUN).digest()  # type: ignore[arg-type]


def test_what_is_done_is_kept_and_not_run_again(tmp_path: Path) -> None:
    ticks: list[None] = []
    run_kept(RUNS[:2], read(tmp_path), simulate_run, jobs=1, tick=lambda: ticks.append(None))
    before = (tmp_path / FILE).read_bytes()
    kept = read(tmp_path)
    run_kept(RUNS, kept, simulate_run, jobs=1, tick=lambda: ticks.append(None))
    assert len(ticks) == 3
    after = (tmp_path / FILE).read_bytes()
    assert after.startswith(before)
    assert after.count(b"\n") == 3
    again = read(tmp_path)
    assert [again.result(run) for run in RUNS] == [kept.result(run) for run in RUNS]
    assert again.result(replace(RUN, seed=2)) is None


def test_processes_find_the_same(tmp_path: Path) -> None:
    one, two = read(tmp_path / "one"), read(tmp_path / "two")
    run_kept(RUNS, one, simulate_run, jobs=1)
    run_kept(RUNS, two, simulate_run, jobs=2)
    for run in RUNS:
        found, other = one.result(run), two.result(run)
        assert found is not None
        assert other is not None
        assert untimed(found) == untimed(other)


def test_an_interruption_loses_nothing(tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_kept(RUNS, read(tmp_path), simulate_run, jobs=2, tick=interrupt)
    assert sum(read(tmp_path).result(run) is not None for run in RUNS) == 1


def test_a_line_cut_short_by_a_kill_is_dropped(tmp_path: Path) -> None:
    run_kept(RUNS[:1], read(tmp_path), simulate_run, jobs=1)
    path = tmp_path / FILE
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"digest":"12')
    assert read(tmp_path).result(RUN) is not None
    assert path.read_bytes() == whole


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    for content in (b'{"a": 1}\n', b'{"digest": "\xe9"}\n'):
        (tmp_path / FILE).write_bytes(content)
        with pytest.raises(ConfigError, match="holds something else than runs"):
            read(tmp_path)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        run_kept(RUNS, KeptRuns(tmp_path / "file"), simulate_run, jobs=1)


def test_the_saturated_part_is_from_the_first_10_to_the_first_80_per_cent_by_hand() -> None:
    # Of eleven, the second, at 2 s, to the ninth, at 16 s: seven in 14 s. The slow end does not count.
    assert saturated_rps([1, 2, 4, 6, 8, 10, 12, 14, 16, 100, 200]) == pytest.approx(0.5)
    assert saturated_rps([1.0]) is None
    assert saturated_rps([3.0] * 20) is None
