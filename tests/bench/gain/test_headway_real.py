"""The plan and the figures of `bench/gain/headway_real.py`, by hand, and the engine it measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from bench.figures import GOODPUT, MEAN_JCT, Runs
from bench.gain.headway_real import BROKEN_KINDS, CellRuns, cell_figures, verdicts
from bench.gain.headway_real_runs import (
    SWEEP_SEED,
    SYSTEMS,
    Measured,
    Plan,
    at_capacity,
    best_seats,
    governor_of,
    memory,
    simulated_capacity_rps,
    stock_name,
    taught,
)
from bench.governor import REFERENCES, Change
from bench.real_runs import (
    CONTROL,
    PRIORITY,
    STOCK,
    Contender,
    KeptRun,
    Run,
    TwinEngine,
    do_run,
    records,
    side_by_side,
)
from bench.side_by_side import EngineProcess, Gauge, Lane, do_in_turn, measure_side_by_side, placed
from bench.streams import INTERACTIVE, NONE, ONE, PATIENT, TAUGHT, TWO, lessons, untaught_stream
from headway.core.record import Outcome, Record
from headway.core.slo import Slo
from headway.engine.host_kv import HostKv
from headway.engine.stepped_engine import SteppedEngine
from headway.errors import ConfigError
from headway.lab.real_engine import EngineClock, ServedRequest, WallTime
from headway.predict.models.known_models import model_shape
from headway.predict.steps.hardware import calibration
from headway.results import Summary, summarize

NUMBERS = count()
"""Names for records, of which no two of a run may share one."""
TIGHT, LOOSE = Slo(ttft_s=0.5), Slo(ttft_s=5.0)


def answered(ttft_s: float, jct_s: float, slo: Slo = TIGHT) -> Record:
    return Record(
        id=str(next(NUMBERS)),
        arrival_s=0.0,
        prompt_tokens=8,
        outcome=Outcome.FINISHED,
        output_tokens=2,
        first_token_s=ttft_s,
        finished_s=jct_s,
        slo=slo,
    )


def runs(*by_seed: Sequence[Record]) -> Runs:
    return Runs([list(each) for each in by_seed])


def light() -> Summary:
    """First tokens after 20 ms, others 4 ms apart."""
    return summarize([answered(0.02, 0.024)])


# ---- streams ---------------------------------------------------------------------------------------------


def test_a_stream_has_nothing_that_the_predictor_was_taught_with() -> None:
    requests = untaught_stream(20.0, 60, seed=1)
    assert requests == untaught_stream(20.0, 60, seed=1) != untaught_stream(20.0, 60, seed=2)
    assert requests == untaught_stream(20.0, 90, seed=1)[:60]
    assert not {request.prompt for request in requests} & set(lessons())
    # Sixty arrivals at 20 a second, give or take three deviations.
    assert 3.0 - 1.2 <= requests[-1].arrival_s <= 3.0 + 1.2


def test_who_was_given_up_is_not_answered() -> None:
    requests = untaught_stream(20.0, 2, seed=1)
    served = [ServedRequest(0, 5, 0.0, 0.5, 1.0), ServedRequest(1, 0, 0.2, None, 0.7, "headway:shed")]
    first, second = records(requests, served)
    assert (first.outcome, first.output_tokens, first.finished_s) == (Outcome.FINISHED, 5, 1.0)
    assert (second.outcome, second.first_token_s, second.error) == (Outcome.SHED, None, "headway:shed")


# ---- the plan --------------------------------------------------------------------------------------------


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """Two seeds of two loads at 10 requests a second, with a sweep whose mean JCT is best at 16 and 32 seats."""
    prepared = Measured(
        capacity_rps=10.0,
        capacity_seats=64,
        light=light(),
        asynchronous=False,
        tokens_a_step=2048,
        num_blocks=96,
    )
    made = Plan(
        out=tmp_path,
        requests_a_cell=79,
        seeds=2,
        loads=(0.5, 1.0),
        kinds=(NONE, ONE, TWO),
        systems=SYSTEMS,
        policy="predicted",
        engine=memory(96),
    )
    made.open()
    (tmp_path / "prepared.json").write_bytes(msgspec.json.encode(prepared))
    for run in made.sweep():
        jct_s = {4: 9.0, 8: 4.0, 16: 3.0, 32: 3.0, 64: 9.5}[run.seats]
        served = [
            ServedRequest(number, 2, request.arrival_s, request.arrival_s + 0.1, request.arrival_s + jct_s)
            for number, request in enumerate(made.stream(NONE, 1.0, SWEEP_SEED))
        ]
        # One that is out at once, sooner with fewer seats, so that goodput is not the same 0 for all.
        first_s = served[0].arrival_s + 0.01
        served[0] = replace(served[0], first_token_s=first_s, finished_s=first_s + 0.004 * run.seats)
        write(run, served, tmp_path)
    return made


def write(run: Run, served: list[ServedRequest], out: Path) -> None:
    run.file(out).write_bytes(msgspec.json.encode(KeptRun(served=served)))


def test_stock_is_best_by_the_metric_that_is_compared(plan: Plan) -> None:
    # Without targets 16 and 32 seats are all but alike in mean JCT: what is out at once decides, sooner with 16.
    assert plan.best(NONE) == {MEAN_JCT: 16}
    # 4 ms a seat is within 20 ms between tokens for 4 seats alone: there one request is good, and none elsewhere.
    assert plan.best(ONE) == {GOODPUT: 4, MEAN_JCT: 16}
    assert plan.width(ONE) == 4


def test_of_equals_the_soonest_done_and_then_the_fewest_seats_are_best() -> None:
    same = {seats: light() for seats in (32, 8, 16)}
    assert best_seats(same, MEAN_JCT) == 8
    sooner = {**same, 16: replace(light(), mean_jct_s=0.001)}
    assert (best_seats(sooner, "p99_jct_s"), best_seats(sooner, MEAN_JCT)) == (16, 16)
    nothing_done = {8: replace(light(), mean_jct_s=None), 32: light()}
    assert best_seats(nothing_done, MEAN_JCT) == 32


def test_every_system_of_a_cell_is_run_once_a_seed_and_stock_for_all_kinds(plan: Plan) -> None:
    grid = plan.grid()
    assert set(grid) == {(kind, load) for kind in (NONE, ONE, TWO) for load in (0.5, 1.0)}
    assert set(grid[NONE, 0.5]) == {stock_name(16), CONTROL.name, "predicted"}
    assert set(grid[TWO, 1.0]) == {stock_name(4), stock_name(16), CONTROL.name, PRIORITY.name, "predicted"}
    # The control is stock once more, for all kinds, and kept apart from it.
    assert grid[NONE, 0.5][CONTROL.name] == grid[TWO, 0.5][CONTROL.name]
    assert grid[NONE, 0.5][CONTROL.name] != grid[NONE, 0.5][stock_name(16)]
    assert [run.seed for run in grid[TWO, 1.0]["predicted"]] == [0, 1]
    # Stock's runs do not depend on the clients, everybody else's do.
    assert grid[NONE, 0.5][stock_name(16)] == grid[TWO, 0.5][stock_name(16)]
    assert grid[NONE, 0.5]["predicted"] != grid[ONE, 0.5]["predicted"]
    every = {run for cell in grid.values() for each in cell.values() for run in each}
    assert len({run.file(plan.out) for run in every}) == len(every)


def test_equal_engines_change_places_from_group_to_group() -> None:
    lanes: Any = [SimpleNamespace(engine=kind) for kind in "xyxx"]
    pools: Any = {"x": ["x1", "x2", "x3"], "y": ["y1"]}
    found = [" ".join(map(str, placed(lanes, pools, number))) for number in range(4)]
    assert found == ["x1 y1 x2 x3", "x2 y1 x3 x1", "x3 y1 x1 x2", "x1 y1 x2 x3"]


def test_what_is_compared_serves_side_by_side(plan: Plan) -> None:
    runs = list(dict.fromkeys(run for cell in plan.grid().values() for each in cell.values() for run in each))
    groups = side_by_side(runs)
    assert sorted(map(str, runs)) == sorted(str(run) for group in groups for run in group)
    assert all(len({(run.seed, run.load) for run in group}) == 1 for group in groups)
    # What the sweep did alone does not stand in for any of them.
    assert not {run.file(plan.out) for run in plan.sweep()} & {run.file(plan.out) for run in runs}
    # Stock at 4 and 16 seats, once more, priority, and the policy for three kinds.
    assert [len(group) for group in groups] == [7] * 4


def test_who_has_useless_predictions_serves_beside_who_needs_none(plan: Plan) -> None:
    cells = replace(plan, kinds=BROKEN_KINDS).broken_grid().values()
    groups = side_by_side(dict.fromkeys(run for cell in cells for each in cell.values() for run in each))
    # Two at 16 seats and at 4, the best for either kind of clients, and six for each kind.
    assert [len(group) for group in groups] == [16] * 4


def test_broken_contenders_share_the_honest_runs(plan: Plan) -> None:
    cell = plan.broken_grid()[TWO, 1.0]
    assert set(REFERENCES) < set(cell)
    assert cell["predicted"] == plan.grid()[TWO, 1.0]["predicted"]
    assert cell["fastserve"][0].kind == ""
    wrong = cell["predicted, steps x 3"][0].contender
    assert (wrong.policy, wrong.predictor, wrong.steps) == ("predicted", TAUGHT, 3.0)
    every = [run for each in cell.values() for run in each]
    assert len({run.file(plan.out) for run in every}) == len(every) == 2 * (2 + 6)


def test_all_systems_of_a_seed_and_load_get_the_same_stream(plan: Plan) -> None:
    none, one, two = (plan.stream(kind, 1.0, 1) for kind in (NONE, ONE, TWO))
    assert [request.arrival_s for request in none] == [request.arrival_s for request in two]
    assert not any(request.slo for request in none)
    # 10 x 20 ms and 5 x 4 ms.
    assert {request.slo for request in one} == {plan.targets.interactive}
    assert plan.targets.interactive.ttft_s == pytest.approx(0.2)
    assert plan.targets.interactive.tbt_s == pytest.approx(0.02)
    assert {request.slo for request in two} == set(plan.targets.classes)


def test_stock_has_nothing_on_the_host() -> None:
    roomy = memory(96, 0.25)
    assert roomy.of(STOCK) == roomy.of(PRIORITY) == memory(96)
    assert roomy.of(taught("headway")) is roomy
    assert roomy.settings().host_kv == HostKv(gib=0.25)
    assert memory(96).settings().host_kv is None


def test_what_the_governor_did_is_counted_over_all_runs() -> None:
    one = KeptRun(
        served=[ServedRequest(0, 3, 0.0, 0.1, 10.0)],
        counters={"planned_steps": 100, "distrusting_steps": 25, "steps": 100},
        changes=[Change(0.0, "no lengths"), Change(2.5, "predictions")],
    )
    other = KeptRun(served=[ServedRequest(0, 3, 0.0, 0.1, 4.0)], changes=[Change(0.0, "predictions")])
    found = governor_of([one, other])
    assert found["counters"] == {
        "planned_steps": 100,
        "distrusting_steps": 25,
        "untimed_steps": 0,
        "policy_faults": 0,
    }
    # A quarter and nothing; three quarters and all.
    assert found["share_of_time"] == {"no lengths": 0.125, "predictions": 0.875}
    assert found["steps"] == [1, 0]


# ---- figures ---------------------------------------------------------------------------------------------


def example() -> CellRuns:
    """Two seeds: ours has 3 of 4 in time in the mean of 2 s, stock's best goodput 2 of 4, its best JCT 3 s."""

    def good(number: int) -> list[Record]:
        return [answered(0.1, 2.0) for _ in range(number)]

    real = {
        "stock, 4 seats": runs(
            [answered(0.1, 4.0), answered(0.9, 4.0)], [answered(0.1, 5.0), answered(0.9, 5.0)]
        ),
        "stock, 16 seats": runs(
            [answered(0.9, 3.0), answered(0.9, 3.1)], [answered(0.9, 2.9), answered(0.9, 3.0)]
        ),
        PRIORITY.name: runs(good(2), good(2)),
        "headway": runs(good(2), [*good(1), answered(0.9, 2.0)]),
    }
    return CellRuns(real, real)


def test_each_metric_is_compared_with_stock_at_its_best() -> None:
    best = {GOODPUT: "stock, 4 seats", MEAN_JCT: "stock, 16 seats"}
    found = cell_figures(example(), "headway", best, {TIGHT: INTERACTIVE, LOOSE: PATIENT})
    goodput, jct = found["over_stock"][GOODPUT], found["over_stock"][MEAN_JCT]
    # 0.75 over 0.5; by seed 1 and 0.5 over 0.5.
    assert (goodput["against"], goodput["gain"], goodput["loss"]) == ("stock, 4 seats", 1.5, -0.25)
    assert (goodput["by_seed"], goodput["spread"]) == ([2.0, 1.0], 1.0)
    # 3 s over 2 s.
    assert (jct["against"], jct["gain"]) == ("stock, 16 seats", pytest.approx(1.5))
    assert jct["loss"] == pytest.approx(-1 / 3)
    # Everything in time under priority, 0.25 more than ours.
    assert found["over_priority"][GOODPUT]["loss"] == 0.25
    assert found["over_priority"][GOODPUT]["simulated"] == {
        "gain": 0.75,
        "loss": 0.25,
        "means": {PRIORITY.name: 1.0, "headway": 0.75},
        "off": {PRIORITY.name: 0.0, "headway": 0.0},
    }
    assert found["systems"]["headway"]["goodput_by_class"] == {INTERACTIVE: 0.75}


def verdict_example() -> dict[str, dict[str, object]]:
    best = {GOODPUT: "stock, 4 seats", MEAN_JCT: "stock, 16 seats"}
    cell = cell_figures(example(), "headway", best, {TIGHT: INTERACTIVE})
    worse = CellRuns(
        {
            "stock, 16 seats": runs([answered(0.1, 2.0)]),
            CONTROL.name: runs([answered(0.1, 1.94)]),
            "headway": runs([answered(0.1, 2.1)]),
        },
        {"stock, 16 seats": runs([answered(0.1, 2.0)]), "headway": runs([answered(0.1, 2.0)])},
    )
    low = cell_figures(worse, "headway", {MEAN_JCT: "stock, 16 seats"}, {})
    return {NONE: {"0.5": low}, TWO: {"1.2": cell}}


def test_every_cell_that_is_lost_is_named_and_aims_are_of_high_load() -> None:
    found = verdicts(verdict_example())  # type: ignore[arg-type]
    assert found["headline"][TWO]["1.2"] == {GOODPUT: 1.5, MEAN_JCT: pytest.approx(1.5)}
    # 2.1 s over 2.0 s at half load; goodput under priority is 0.25 higher.
    assert found["low_load_loss"] == pytest.approx(0.05)
    # Stock a second time 0.06 s sooner.
    assert found["noise"] == {"0.5": pytest.approx(0.03)}
    lost = [(cell["class"], cell["metric"], cell["against"]) for cell in found["losing_cells"]]
    assert lost == [(NONE, MEAN_JCT, "stock, 16 seats"), (TWO, GOODPUT, PRIORITY.name)]
    assert found["aims"][GOODPUT] == {"at_least": 1.5, "reached": {"two, load 1.2": 1.5}, "holds": True}
    assert not found["aims"][MEAN_JCT]["holds"]
    # Of 2.1 s the simulator said 2.0.
    off = found["promise"]["off"]["none, load 0.5"]
    assert off == {"stock, 16 seats": 0.0, "headway": pytest.approx(2.0 / 2.1 - 1)}
    assert found["promise"]["holds"]


# ---- options ---------------------------------------------------------------------------------------------


# ---- simulated, and for real -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "contender", [STOCK, PRIORITY, Contender("x", "fastserve", predictor="broken:way=random")]
)
def test_the_simulator_serves_whom_the_engine_serves(contender: Contender) -> None:
    costs = calibration("a100-80g", model_shape("mistralai/Mistral-7B-v0.1"))
    engine = TwinEngine(memory(96, 0.25), costs, num_blocks=96, tokens_a_step=2048, asynchronous=False)
    requests = untaught_stream(20.0, 40, seed=1)
    found = engine.records(Run(contender, NONE, 4, 1.0, 1), requests, max_output_tokens=1024)
    assert sorted(record.id for record in found) == sorted(request.id for request in requests)
    assert {record.outcome for record in found} == {Outcome.FINISHED}


def test_the_simulated_engine_is_as_fast_as_the_one_that_loads_go_by(plan: Plan) -> None:
    costs = calibration("a100-80g", model_shape("mistralai/Mistral-7B-v0.1"))
    engine = TwinEngine(memory(96), costs, num_blocks=96, tokens_a_step=2048, asynchronous=False)
    found = msgspec.structs.replace(plan.prepared, capacity_rps=3.0, capacity_seats=16)
    assert simulated_capacity_rps(engine, 16) != pytest.approx(3.0, rel=0.1)
    assert simulated_capacity_rps(at_capacity(engine, found), 16) == pytest.approx(3.0)


@pytest.mark.engine
@pytest.mark.long
def test_stock_and_a_policy_that_is_told_wrongly_answer_everything() -> None:
    requests = untaught_stream(20.0, 10, seed=1)
    wrong = Contender("x", "predicted", predictor="broken:way=random", steps=3.0)
    with memory(96).serving() as engine:
        found = [
            do_run(engine, WallTime(), run=Run(each, TWO, 8, 1.0, 1), requests=requests)
            for each in (STOCK, PRIORITY, wrong)
        ]
    for run in found:
        assert len(run.served) == len(requests)
        assert all(each.output_tokens and not each.given_up for each in run.served)
    assert not found[0].counters
    own = found[2]
    assert own.counters["planned_steps"] == own.counters["distrusting_steps"] > 0
    assert [change.goes_by for change in own.changes] == ["no lengths"]


@pytest.mark.engine
@pytest.mark.long
@pytest.mark.timeout(600)
def test_two_engines_live_side_by_side_and_take_turns() -> None:
    # Minutes between some arrivals, which nobody waits for.
    drawn = untaught_stream(20.0, 10, seed=1)
    requests = [replace(each, arrival_s=each.arrival_s * 1000) for each in drawn]
    with EngineProcess(memory(96)) as stock, EngineProcess(memory(96, 0.25)) as own:
        for seed in range(2):
            runs = [Run(STOCK, "", 8, 1.0, seed), Run(taught("headway"), TWO, 8, 1.0, seed)]
            works = [partial(do_run, run=run, requests=requests) for run in runs]
            theirs, ours = (run.result() for run in do_in_turn([stock, own], works))
            assert len(theirs.served) == len(ours.served) == len(requests)
            assert not theirs.counters
            assert ours.counters["planned_steps"] > 0
            for each in (*theirs.served, *ours.served):
                assert each.first_token_s is not None
                assert 0 < each.first_token_s - each.arrival_s < 30
            # A run that fails ends its turn, and the engines go on.
            without = [replace(requests[0], prompt=None)]
            failed, whole = do_in_turn(
                [stock, own], [partial(do_run, run=runs[0], requests=without), works[1]]
            )
            assert isinstance(failed.exception(), ConfigError)
            assert len(whole.result().served) == len(requests)


@pytest.mark.engine
@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_machines_speed_is_taken_before_each_group_and_clocks_go_by_it() -> None:
    requests = untaught_stream(20.0, 10, seed=1)
    found: list[KeptRun] = []
    lane = Lane(memory(96), partial(do_run, run=Run(STOCK, "", 8, 1.0, 0), requests=requests), found.append)
    gauge = Gauge(memory(96), rate_of_nothing, first_rate=4.0)
    said: list[str] = []
    measure_side_by_side([[lane], [lane]], said.append, gauge)
    assert [each.speed for each in found] == [0.5, 0.5]
    assert all("0.50 times as fast" in each for each in said)


def rate_of_nothing(engine: SteppedEngine, clock: EngineClock) -> float:
    """At a rate of 2, by a clock that goes as the machine's."""
    return 2.0 * clock.speed
