"""The cells of `bench/gain/regret.py`: what comes, who serves, and a small run through the whole of it."""

from __future__ import annotations

import csv
import gzip
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.gain.regret import found_in, make_runs, near_the_best, still_racing
from bench.gain.regret_runs import (
    ABLATIONS,
    ANY,
    BUDGETS,
    Cell,
    Plan,
    RegretResult,
    Spell,
    ablations,
    all_cells,
    clairvoyants,
    contender,
    goodput,
    kept_runs,
    left_out,
    mean_jct_s,
    rivals,
    select,
    that_fit,
    worst_slowdown,
)
from bench.gain.regret_tables import summary
from bench.gain.regret_workloads import (
    DRAWN,
    INTERACTIVE,
    MACHINES,
    MAIN_AGENT,
    PATIENT,
    SEEDS,
    SUB_AGENT,
    Recording,
    ServedWorkload,
    beginning,
    fitting,
    is_interactive,
    known_workloads,
    light_step_s,
    light_ttft_s,
    recorded,
    targets,
    with_classes,
)
from headway.core.record import Outcome, Record
from headway.core.slo import Slo
from headway.errors import ConfigError
from headway.policies.presets import POOLED, known_presets
from headway.sim.killed_steps import KILLING_ROWS
from headway.sim.simulation import System, simulate
from headway.traces import TraceRequest
from tests.sim.worlds import Linear, calibration, limits, request
from tests.strategies import FEW

NO_DATA = Path("/nonexistent")
OPT = MACHINES["a100-opt-13b"]
CHAT = ServedWorkload("chat", OPT, NO_DATA)


def ten_apart(count: int = 10) -> Recording:
    """A request every 10 s."""
    return Recording([request(str(n), 10.0 * n, 5, 2) for n in range(count)], period_s=10.0 * count)


def test_a_window_is_a_piece_of_the_trace_on_a_faster_clock() -> None:
    # 0.1 requests a second recorded, 0.2 wanted: 20 recorded seconds pass in 10. Seeds begin 100 s / 5 apart.
    window = ten_apart().window(0.2, 10.0, seed=1)
    assert [(each.id, each.arrival_s) for each in window] == [("2", 0.0), ("3", 5.0)]


def test_a_window_longer_than_the_trace_goes_on_at_its_beginning_under_new_names() -> None:
    window = ten_apart(3).window(1.0, 5.0, seed=0)  # 10 recorded seconds in one: 50 of a trace of 30
    assert [each.id for each in window] == ["0", "1", "2", "0+1", "1+1"]
    assert [each.arrival_s for each in window] == [0.0, 1.0, 2.0, 3.0, 4.0]


@FEW
@given(
    gaps_s=st.lists(st.floats(0.0, 100.0), min_size=3, max_size=30),
    rate_rps=st.floats(0.05, 5.0),
    seed=st.integers(0, SEEDS - 1),
)
def test_bursts_stay_what_they_are_in_their_own_time(gaps_s: list[float], rate_rps: float, seed: int) -> None:
    times_s = [sum(gaps_s[:n]) for n in range(len(gaps_s) + 1)]
    recording = Recording(
        [request(str(n), time_s, 5, 2) for n, time_s in enumerate(times_s)], times_s[-1] + 1.0
    )
    window = recording.window(rate_rps, 100.0, seed)
    speed_up = recording.speed_up(rate_rps)
    for earlier, later in pairwise(window):
        if int(later.id.partition("+")[0]) == int(earlier.id.partition("+")[0]) + 1:
            gap_s = gaps_s[int(earlier.id.partition("+")[0])]
            assert (later.arrival_s - earlier.arrival_s) * speed_up == pytest.approx(gap_s, abs=1e-6)
    assert all(0 <= each.arrival_s < 100.0 for each in window)


def test_who_does_not_fit_is_dropped_and_limits_give_no_length_away() -> None:
    requests = [
        request("a", 0.0, 1_000, 900),
        request("b", 1.0, 1_100, 30),
        request("c", 2.0, 1_200, 849),
        request("d", 3.0, 1_000, 9, max_output_tokens=16),
    ]
    # The longest answer that fits has 900 tokens: 1,024, or what the prompt leaves of 2,048.
    assert [(each.id, each.max_output_tokens) for each in fitting(requests, 2_048)] == [
        ("a", 1_024),
        ("b", 948),
        ("d", 16),
    ]


@pytest.mark.parametrize("name", DRAWN)
def test_drawn_windows_are_the_same_for_a_seed_and_differ_by_seed(name: str) -> None:
    served = ServedWorkload(name, OPT, NO_DATA)
    window = served.window(5.0, 60.0, 1)
    assert window == ServedWorkload(name, OPT, NO_DATA).window(5.0, 60.0, 1) != served.window(5.0, 60.0, 2)
    assert all(0 <= each.arrival_s < 60.0 for each in window)
    assert all(each.input_tokens + each.output_tokens <= OPT.longest_tokens for each in window)


def test_the_rate_is_of_those_that_fit() -> None:
    # 3,000 expected, standard deviation 55.
    assert len(CHAT.window(5.0, 600.0, 0)) == pytest.approx(3_000, abs=220)
    assert CHAT.facts().dropped > 300


def test_a_backlog_is_the_beginning_that_comes_to_so_many_tokens() -> None:
    requests = [request(str(n), 0.0, 8, 2) for n in range(4)]
    assert [len(beginning(requests, tokens)) for tokens in (9, 10, 29, 30, 1_000)] == [0, 1, 2, 3, 4]
    assert {each.arrival_s for each in CHAT.backlog()} == {0.0}
    assert len(CHAT.backlog()) == CHAT.facts().requests


def sessions(folder: Path) -> None:
    """Two sessions with clocks of their own; the second request of the first shares 16 blocks with the first."""
    rows = [
        ("s1", "main", 0, 0, 1024 + 40, 5),
        ("s1", "agent-7", 1, 30, 2048, 9),
        ("s2", "main", 0, 0, 700, 0),
        ("s2", "main", 1, 4, 600, 3),
    ]
    with gzip.open(folder / "agentic_claude_code.csv.gz", "wt", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["arrival_s", "input_tokens", "output_tokens", "session", "agent", "seq"])
        writer.writerows([row[3], row[4], row[5], row[0], row[1], row[2]] for row in rows)
    with gzip.open(folder / "agentic_claude_code_prefix.jsonl.gz", "wt") as file:
        for session, place, runs in (
            ("s1", 0, [[1, 16]]),
            ("s1", 1, [[1, 16], [40, 16]]),
            ("s2", 0, [[1, 10]]),
            ("s2", 1, [[1, 9]]),
        ):
            print(json.dumps({"s": session, "i": place, "r": runs}), file=file)


def test_sessions_are_laid_over_a_day_with_what_their_prompts_share(tmp_path: Path) -> None:
    sessions(tmp_path)
    found = recorded("agentic", tmp_path)
    by_id = {each.id: found.whole(each) for each in found.requests}
    assert set(by_id) == {"s1-0", "s1-1", "s2-1"}  # one had no output
    assert (by_id["s1-1"].arrival_s - by_id["s1-0"].arrival_s) % 86_400 == pytest.approx(30)
    assert [by_id[name].tenant for name in ("s1-0", "s1-1")] == [MAIN_AGENT, SUB_AGENT]
    # Blocks of 512 tokens are 8 recorded ones: two whole ones in 1,064 tokens, told by the 8th and the 16th id.
    first, second = by_id["s1-0"].prefix_blocks, by_id["s1-1"].prefix_blocks
    assert (len(first), len(second)) == (2, 4)
    assert second[:2] == first
    assert set(by_id["s2-1"].prefix_blocks).isdisjoint(first)
    assert recorded("agentic", tmp_path).requests == found.requests


def test_a_recording_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"accepted: the folder of the shared traces, by --data"):
        recorded("azure-conv", tmp_path)
    with pytest.raises(ConfigError, match="unknown recording 'x'; accepted: azure-code"):
        recorded("x", tmp_path)
    assert known_workloads(tmp_path) == tuple(DRAWN)


# ---- targets -------------------------------------------------------------------------------------------


def test_what_targets_are_multiples_of() -> None:
    # Steps of 1 s, 0.01 s a token and 0.001 s for each that is read, at most 64 tokens a step: a full step takes
    # 1.704 s; 100 tokens as much once more, and a step of 36 that reads 100.
    system = System(
        limits=limits(max_num_batched_tokens=64), calibration=calibration(Linear(1.0, 0.01, 0.001))
    )
    assert light_ttft_s(system, 100) == pytest.approx(1.704 + 1.704 + 1.36 + 0.1)
    assert light_step_s(system, 499) == pytest.approx(1.01 + 0.5)


def test_two_classes_share_the_requests_and_one_waits_for_longer() -> None:
    window = CHAT.window(5.0, 60.0, 0)
    two = with_classes(window, CHAT, "two", seed=0)
    tight, loose = targets(CHAT, INTERACTIVE), targets(CHAT, PATIENT)
    assert {(each.slo, each.priority) for each in two} == {(tight, 0), (loose, 1)}
    assert sum(each.slo == tight for each in two) / len(two) == pytest.approx(0.5, abs=0.12)
    assert (loose.ttft_s or 0) / (tight.ttft_s or 1) == pytest.approx(50 / 3, rel=0.01)
    assert with_classes(two, CHAT, "none", seed=0) == list(window)
    assert len({each.slo for each in with_classes(window, CHAT, "one", seed=0)}) == 1


def test_the_classes_of_a_trace_count_where_it_has_some() -> None:
    agents = [replace(request("a", 0.0, 5, 2), tenant=tenant) for tenant in (MAIN_AGENT, SUB_AGENT)]
    assert [is_interactive(each, seed) for seed in (0, 1) for each in agents] == [True, False] * 2
    drawn = [is_interactive(request("a", 0.0, 5, 2), seed) for seed in range(20)]
    assert {True, False} == set(drawn)


# ---- who serves ----------------------------------------------------------------------------------------


def test_every_preset_is_a_rival_or_left_out_for_a_reason() -> None:
    raced = {*rivals("vllm"), *left_out(), "vllm", "headway"}
    assert raced - {*POOLED, *KILLING_ROWS, *BUDGETS} == set(known_presets())
    assert {"uniboost", "hrrn", "vllm-v0", "sarathi", *BUDGETS} < set(rivals("headway"))
    assert contender("vllm-1024").blind
    assert left_out()["fastertransformer"] == "has the parts of static"
    assert not set(rivals("edf")) & {*left_out(), "edf"}
    assert set(ablations("headway")) == set(ABLATIONS)
    with pytest.raises(ConfigError, match="'ascendra' needs pools of several instances"):
        contender("ascendra")
    with pytest.raises(ConfigError, match="unknown policy 'x'"):
        contender("x")


def test_predictions_are_the_products_own_and_exact_for_clairvoyants_alone() -> None:
    assert contender("predicted").predictor == "learned"
    assert contender("vllm").predictor == "none"
    known = clairvoyants("predicted")
    assert [each.name for each in known][-1] == "predicted (exact lengths)"
    assert all(each.oracle for each in known)
    assert "vllm (exact lengths)" not in [each.name for each in clairvoyants("vllm")]


def mixed(*, slo: Slo, priority: int) -> list[TraceRequest]:
    """Overload of a small engine; every third request has targets and a priority."""
    return [
        request(f"{n:02}", n / 2, 3 + 5 * n % 17, 1 + 7 * n % 11, tenant=str(n % 3))
        if n % 3
        else request(
            f"{n:02}", n / 2, 3 + 5 * n % 17, 1 + 7 * n % 11, slo=slo, priority=priority, tenant=str(n % 3)
        )
        for n in range(30)
    ]


BLIND = [name for name in known_presets() if name not in left_out() and contender(name).blind]


@pytest.mark.parametrize("name", BLIND)
def test_the_runs_of_who_is_blind_to_targets_are_the_same_with_any(name: str) -> None:
    system = System(
        limits=limits(max_num_seqs=4, num_blocks=24, max_num_batched_tokens=16, host_blocks=40),
        calibration=calibration(Linear(1.0, 0.02)),
    )
    ended = []
    for slo, priority in ((Slo(), 0), (Slo(ttft_s=3.0, tbt_s=0.8, deadline_s=20.0), -1)):
        trace, records = mixed(slo=slo, priority=priority), list[Record]()
        simulate(
            trace, contender(name).factory(trace), system, on_record=records.append, max_output_tokens=16
        )
        ended.append([(each.id, each.first_token_s, each.finished_s) for each in records])
    assert ended[0] == ended[1]


# ---- runs ----------------------------------------------------------------------------------------------


def record(id_: str, finished_s: float, **fields: object) -> Record:
    return Record(
        id=id_,
        arrival_s=1.0,
        prompt_tokens=5,
        output_tokens=3,
        first_token_s=2.0,
        finished_s=finished_s,
        **{"outcome": Outcome.FINISHED, **fields},  # type: ignore[arg-type]
    )


def test_one_run_is_judged_by_any_targets() -> None:
    records = [record("a", 4.0), record("b", 6.0), record("c", 9.0, outcome=Outcome.EXPIRED)]
    tight, loose = Slo(ttft_s=1.0, tbt_s=1.0), Slo(ttft_s=1.0, tbt_s=2.0)
    assert goodput(records, dict.fromkeys("abc", tight)) == pytest.approx(1 / 3)  # a: 2 s for two more tokens
    assert goodput(records, dict.fromkeys("abc", loose)) == pytest.approx(2 / 3)
    assert mean_jct_s(records[:2]) == (3.0 + 5.0) / 2
    assert mean_jct_s(records) is None
    assert goodput([], {}) == 0.0


def test_the_worst_slowdown_is_in_times_of_an_idle_engine() -> None:
    # Alone: a step of 0.1 + 0.01 x 10 s, and two of 0.1 + 0.01 s.
    steps = Linear(0.1, 0.01)

    def answered(name: str, jct_s: float, outcome: Outcome = Outcome.FINISHED) -> Record:
        return Record(
            id=name, arrival_s=1.0, prompt_tokens=10, outcome=outcome, output_tokens=3, finished_s=1.0 + jct_s
        )

    records = [answered("a", 0.42), answered("b", 0.84), answered("c", 9.0, Outcome.CANCELLED)]
    assert worst_slowdown(records, steps) == pytest.approx(2.0)
    assert worst_slowdown(records[2:], steps) is None


def small_plan(*names: str, seeds: int = 2) -> Plan:
    """Two cells of 12 s."""
    return Plan(
        cells=[Cell("chat", OPT.name, 1.2, classes) for classes in ("none", "two")],
        contenders=[contender(name) for name in names],
        seeds=range(seeds),
        capacity_rps={("chat", OPT.name): 2.0},
        data=NO_DATA,
        spell=Spell(window_s=12.0, warm_up_s=2.0),
    )


def test_who_is_blind_is_run_once_for_all_targets() -> None:
    plan = small_plan("vllm", "edf")
    runs = list(plan.runs(plan.seeds))
    assert [(run.contender.name, run.classes, run.seed) for run in runs] == [
        (name, classes, seed)
        for seed in (0, 1)
        for name, classes in (("vllm", ANY), ("edf", "none"), ("edf", "two"))
    ]
    assert len({run.digest() for run in runs}) == 6
    assert {run.rate_rps for run in runs} == {2.4}


def test_a_small_run_through_the_whole_path_is_kept_and_goes_on(tmp_path: Path) -> None:
    plan = small_plan("sjf", "edf", "vllm")
    rival_names = frozenset({"edf", "vllm"})
    kept = kept_runs(tmp_path)
    make_runs(plan, kept, rival_names, race=False, jobs=1)
    findings = found_in(plan, kept, "sjf", rival_names)
    told = summary(findings)
    assert told["cells"] == 2
    assert len(told["goodput_gain_vs_vllm_saturated"]) == 3
    by_classes = {each.cell.classes: each for each in findings}
    assert all(value is not None and value > 0 for value in by_classes["none"].values["sjf"])
    assert all(value is not None and 0 <= value <= 1 for value in by_classes["two"].values["edf"])

    file = tmp_path / "regret-runs.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole[:-40])  # killed while the last line was written
    again = kept_runs(tmp_path)
    assert len(again.done) == len(kept.done) - 1
    make_runs(plan, again, rival_names, race=False, jobs=1)
    assert [each.values for each in found_in(plan, again, "sjf", rival_names)] == [
        each.values for each in findings
    ]
    assert file.read_bytes().count(b"\n") == whole.count(b"\n")


# ---- what is asked for ---------------------------------------------------------------------------------


def test_a_workload_that_does_not_fit_a_machine_is_not_served_on_it(tmp_path: Path) -> None:
    sessions(tmp_path)
    with gzip.open(tmp_path / "agentic_claude_code.csv.gz", "at", newline="") as file:
        csv.writer(file).writerows([[9, 50_000, 3, "s3", "main", number] for number in range(30)])
    cells = select(all_cells(tmp_path), "agentic/*/1/one")
    assert [cell.machine for cell in that_fit(cells, tmp_path)] == ["h100-llama-8b", "h200-llama-70b"]
    with pytest.raises(ConfigError, match="hardly anything of agentic fits a100-opt-13b"):
        that_fit([cell for cell in cells if cell.machine == "a100-opt-13b"], tmp_path)


def result(mean_jct_s: float, goodput: float) -> RegretResult:
    return RegretResult(
        goodput={"two": goodput},
        mean_jct_s=mean_jct_s,
        p99_jct_s=None,
        p99_ttft_s=None,
        worst_slowdown=None,
        requests=1,
        preemptions=0,
        end_s=1.0,
        cpu_s=0.1,
    )


def test_nobody_races_on_who_is_far_behind() -> None:
    near, far = contender("sjf"), contender("static")
    results = {near: result(10.0, 0.80), far: result(12.6, 0.69)}
    assert near_the_best(Cell("chat", OPT.name, 1.0, "none"), results) == [near]  # more than a quarter slower
    assert near_the_best(Cell("chat", OPT.name, 1.0, "two"), results) == [near]  # more than a tenth fewer
    close = {near: result(10.0, 0.80), far: result(12.4, 0.71)}
    assert near_the_best(Cell("chat", OPT.name, 1.0, "none"), close) == [near, far]


def test_a_race_leaves_out_rivals_alone_and_only_where_no_cell_needs_them(tmp_path: Path) -> None:
    plan = small_plan("predicted", "sjf", "static", "vllm")
    kept = kept_runs(tmp_path)
    # Blind all of them: one run a seed. `static` is near in the cell of two classes, `sjf` in neither.
    for name, found in {
        "predicted": result(1.0, 0.9),
        "sjf": result(30.0, 0.2),
        "static": result(20.0, 0.85),
        "vllm": result(40.0, 0.1),
    }.items():
        kept.done[plan.run(plan.cells[0], contender(name), 0).digest()] = found
    rival_names = frozenset({"sjf", "static", "vllm"})
    staying = still_racing(plan, kept, rival_names)
    assert {run.contender.name for run in plan.runs([1]) if staying(run)} == {"predicted", "static", "vllm"}
