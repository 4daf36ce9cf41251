"""Runs of Magnus's experiments on a few made rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from headway_reproduce.magnus.cells import MagnusChange, MagnusRun, Phi
from headway_reproduce.magnus.data import DataSource, drawn_rows, find_data, load_tasks, task_requests
from headway_reproduce.magnus.engine import BatchTimes
from headway_reproduce.magnus.setting import (
    ABP,
    BASELINES,
    CCB,
    GLP,
    LEARN_EVERY_S,
    MAGNUS,
    POLICIES,
    TODAY,
    VS,
)
from headway_reproduce.magnus.simulation import MagnusForecasts, MagnusResult, simulate_magnus
from headway_reproduce.magnus.study import FILE
from headway_reproduce.study import read_kept

from headway.core.record import Outcome
from headway.lab.kept_runs import Kept
from headway.traces import TraceRequest
from tests.reproduce.magnus.magnus_rows import write_rows
from tests.results.examples import make

pytest.importorskip("lightgbm", reason="lengths are learned through LightGBM")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> DataSource:
    return find_data(write_rows(tmp_path_factory.mktemp("data")))


@pytest.fixture(scope="module")
def results(source: DataSource) -> dict[str, MagnusResult]:
    return {
        policy: simulate_magnus(MagnusRun(source=source, policy=policy, seed=0, rate_rps=40.0))
        for policy in (*POLICIES, TODAY)
    }


def read(root: Path) -> Kept[MagnusRun, MagnusResult]:
    return read_kept(root, MagnusResult, FILE)


def untimed(result: MagnusResult) -> MagnusResult:
    """Without what is this machine's own."""
    return replace(result, join_us=None, choose_us=None)


# ---- runs ----------------------------------------------------------------------------------------------


def test_everybody_serves_the_same_requests_to_their_end(results: dict[str, MagnusResult]) -> None:
    assert {(found.requests, found.finished) for found in results.values()} == {(240, 240)}


def test_where_none_can_follow_magnus_gets_more_through_and_answers_sooner(source: DataSource) -> None:
    mine, *others = (
        simulate_magnus(MagnusRun(source=source, policy=policy, seed=0, rate_rps=120.0))
        for policy in (MAGNUS, *BASELINES)
    )
    assert mine.throughput_rps is not None
    assert mine.mean_rt_s is not None
    for each in others:
        assert mine.throughput_rps > 1.3 * (each.throughput_rps or 0.0)
        assert mine.mean_rt_s < 0.9 * (each.mean_rt_s or 0.0)


def test_only_padded_batches_compute_tokens_for_nothing(results: dict[str, MagnusResult]) -> None:
    for policy, found in results.items():
        if policy in (CCB, TODAY):
            assert found.total_tps == found.valid_tps
        else:
            assert found.total_tps > found.valid_tps


def test_only_some_batches_are_capped(source: DataSource) -> None:
    sizes = {
        policy: simulate_magnus(MagnusRun(source=source, policy=policy, seed=0, rate_rps=0.0)).mean_batch
        for policy in (VS, GLP, ABP)
    }
    # 240 requests all at once: 34 batches of 7 and one of 2.
    assert sizes[VS] == pytest.approx(240 / 35)
    assert (sizes[GLP] or 99) <= 7 < (sizes[ABP] or 0)


def test_only_who_predicts_has_errors_of_lengths(results: dict[str, MagnusResult]) -> None:
    assert {policy for policy, found in results.items() if found.length_rmse is not None} == {
        GLP,
        ABP,
        MAGNUS,
    }
    assert {policy for policy, found in results.items() if found.time_rmse_s is not None} == {MAGNUS}


def test_a_run_repeats(source: DataSource, results: dict[str, MagnusResult]) -> None:
    again = simulate_magnus(MagnusRun(source=source, policy=MAGNUS, seed=0, rate_rps=40.0))
    assert untimed(again) == untimed(results[MAGNUS])


def test_true_lengths_are_never_wrong(source: DataSource) -> None:
    run = MagnusRun(
        source=source, policy=MAGNUS, seed=0, rate_rps=40.0, change=MagnusChange(true_lengths=True)
    )
    found = simulate_magnus(run)
    assert (found.length_rmse, found.oom, found.refits) == (0.0, 0, 0)


def test_batches_can_be_kept_small(source: DataSource) -> None:
    run = MagnusRun(source=source, policy=MAGNUS, seed=0, rate_rps=40.0, change=MagnusChange(max_batch=2))
    size = simulate_magnus(run).mean_batch
    assert size is not None
    assert size <= 2


def test_an_engine_without_its_overhead_is_faster(
    source: DataSource, results: dict[str, MagnusResult]
) -> None:
    run = MagnusRun(source=source, policy=VS, seed=0, rate_rps=40.0, change=MagnusChange(overhead=False))
    assert simulate_magnus(run).mean_rt_s < results[VS].mean_rt_s


# ---- what is kept --------------------------------------------------------------------------------------


def test_rows_that_lie_elsewhere_are_the_same_run(source: DataSource, tmp_path: Path) -> None:
    run = MagnusRun(source=source, policy=MAGNUS, seed=0, rate_rps=1.0)
    other = find_data(write_rows(tmp_path))
    assert replace(run, source=other).digest() == run.digest()


@pytest.mark.parametrize(
    "changed",
    [
        {"policy": ABP},
        {"seed": 1},
        {"rate_rps": 2.0},
        {"phi": Phi(1)},
        {"change": MagnusChange(learns=False)},
    ],
)
def test_whatever_decides_a_run_tells_it_apart(source: DataSource, changed: dict[str, object]) -> None:
    run = MagnusRun(source=source, policy=MAGNUS, seed=0, rate_rps=1.0)
    assert replace(run, **changed).digest() != run.digest()  # type: ignore[arg-type]


# ---- lengths -------------------------------------------------------------------------------------------


def served(source: DataSource, forecasts: MagnusForecasts, number: int, now_s: float) -> float:
    """Predict a request and let it end at once; what was predicted."""
    row = drawn_rows(source, 0)[number].row
    request = TraceRequest(str(number), now_s, row.prompt_tokens, row.output_tokens)
    tokens = forecasts.estimate(request).tokens
    record = make(
        str(number),
        arrival_s=now_s,
        finished_s=now_s,
        output_tokens=row.output_tokens + 500,
        predicted_output_tokens=tokens,
    )
    forecasts.ended(record)
    return tokens


def test_predictions_are_whole_and_within_the_limit(source: DataSource) -> None:
    forecasts = MagnusForecasts(source, 0)
    found = [forecasts.estimate(request).tokens for request in task_requests(source, 0, 1.0)[:50]]
    assert all(tokens == int(tokens) and 1 <= tokens <= 1024 for tokens in found)


def test_bad_predictions_are_learned_from_every_three_minutes(source: DataSource) -> None:
    forecasts = MagnusForecasts(source, 0)
    for number in range(20):
        served(source, forecasts, number, 1.0)
    served(source, forecasts, 20, LEARN_EVERY_S - 1)
    assert forecasts.refits == 0
    served(source, forecasts, 21, LEARN_EVERY_S + 1)
    assert forecasts.refits == 1


def test_good_predictions_are_not_learned_from(source: DataSource) -> None:
    forecasts = MagnusForecasts(source, 0)
    [first, later] = task_requests(source, 0, 1.0)[:2]
    tokens = forecasts.estimate(first).tokens
    forecasts.ended(make(first.id, output_tokens=int(tokens) + 9, predicted_output_tokens=tokens))
    forecasts.ended(make(first.id, output_tokens=3, predicted_output_tokens=None))
    forecasts.ended(make(first.id, outcome=Outcome.FAILED, output_tokens=900, predicted_output_tokens=tokens))
    forecasts.estimate(replace(later, arrival_s=10 * LEARN_EVERY_S))
    assert forecasts.refits == 0


def test_who_does_not_learn_never_fits_again(source: DataSource) -> None:
    forecasts = MagnusForecasts(source, 0, change=MagnusChange(learns=False))
    first = served(source, forecasts, 0, 0.0)
    assert served(source, forecasts, 0, 100 * LEARN_EVERY_S) == first
    assert forecasts.refits == 0


def test_the_training_rows_are_what_it_starts_from(source: DataSource) -> None:
    # Answers of these rows grow with their inputs, by a word for two.
    forecasts = MagnusForecasts(source, 0)
    requests = task_requests(source, 0, 1.0)
    tokens = {request.id: forecasts.estimate(request).tokens for request in requests}
    short = [tokens[request.id] for request in requests if request.output_tokens < 8]
    long = [tokens[request.id] for request in requests if request.output_tokens > 18]
    assert sum(short) / len(short) + 3 < sum(long) / len(long)
    assert sum(len(task.training) for task in load_tasks(source)) == 80


# ---- batch times ---------------------------------------------------------------------------------------


def test_batch_times_are_learned_on_the_runs_clock() -> None:
    times = BatchTimes.of([(1, 10, 10, 1.0), (7, 10, 10, 1.0), (7, 100, 100, 10.0)])
    before_s = times.predict(7, 100, 100)
    times.observe(7, 100, 100, 30.0)
    assert times.predict(7, 100, 100) == before_s
    times.now_s = 121.0
    times.observe(7, 100, 100, 30.0)
    assert times.predict(7, 100, 100) > before_s
    # Both were 20 s off when they ended.
    assert times.rmse_s() == pytest.approx(20.0, rel=0.01)


def test_before_the_first_batch_there_is_no_error() -> None:
    assert BatchTimes.of([(1, 10, 10, 1.0)]).rmse_s() is None
