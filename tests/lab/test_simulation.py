from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import pytest

from headway.core.record import Outcome, Record
from headway.core.slo import Slo
from headway.errors import ConfigError, TraceError
from headway.lab.cells import CellFolder, explain, run_cells, trace_schedule
from headway.lab.engine_sizes import EngineSizes
from headway.lab.grid import GridCell, PolicyGrid
from headway.lab.policy_choice import Parts
from headway.lab.sim_tables import averaged, sweep_pictures, tables, to_json
from headway.lab.simulation import CellResult, Setup, SimulationRequest, fingerprint, run_cell, set_up
from headway.lab.trace import Trace
from headway.results import labelled_summaries, read_records, read_run, read_runs, sections, summarize
from headway.routing.pools import parse_pools
from headway.sim.limits import KvTier
from headway.traces import TraceRequest
from tests.sim.worlds import SECOND_STEPS, Linear

TRACE = "gen:poisson:rate=30/input=zipf:theta=1.1,max=600/output=zipf:theta=1.1,max=60/count=60"
ASKED = SimulationRequest(
    hardware="h100",
    model="Qwen/Qwen3-8B",
    trace=Trace(TRACE, slo=Slo(ttft_s=0.1)),
    grid=PolicyGrid(policies=("vllm", "sjf"), loads=(0.5, 1.0), num_seeds=2),
    sizes=EngineSizes(max_num_seqs=8, max_num_batched_tokens=512, num_blocks=120),
)
ONE_SEAT = EngineSizes(max_num_seqs=1, num_blocks=120)
SINGLE = replace(ASKED, grid=PolicyGrid(policies=("vllm", "sjf")))
OF_CAPACITY = replace(SINGLE, grid=replace(SINGLE.grid, of_capacity=True))
POOLED = replace(
    SINGLE,
    trace=Trace(TRACE.replace("rate=30", "rate=300"), slo=Slo(ttft_s=0.1, tbt_s=0.05)),
    grid=PolicyGrid(policies=("ascendra", "vllm"), num_seeds=2),
    sizes=EngineSizes(max_num_seqs=2, max_num_batched_tokens=512, num_blocks=120),
    pools=parse_pools("lp=2,hp=1"),
)
"""So much for so few seats that LP instances hand requests off."""


def test_a_share_of_capacity_is_the_same_rate_whatever_the_traces_own(tmp_path: Path) -> None:
    traces = [Trace(TRACE.replace("rate=30", f"rate={rate}")) for rate in (3, 300)]
    grid = PolicyGrid(policies=("vllm",), loads=(5.0,), of_capacity=True)
    asked = [replace(SINGLE, grid=grid, trace=trace) for trace in traces]
    slow, fast = map(set_up, asked)
    assert slow.capacity_rps == fast.capacity_rps is not None
    requests = slow.scenario.trace.requests()
    assert len(requests) / requests[-1].arrival_s == pytest.approx(slow.capacity_rps)
    assert [each.input_tokens for each in requests] == [each.input_tokens for each in traces[0].requests()]
    (flooded,) = simulated(asked[0], tmp_path / "run")  # the last tenth of a queue ends more slowly
    assert flooded.summary.throughput_rps == pytest.approx(slow.capacity_rps, rel=0.35)


def test_requests_that_come_all_at_once_are_no_share_of_capacity() -> None:
    at_once = Trace.of(replace(each, arrival_s=0.0) for each in Trace(TRACE).requests())
    with pytest.raises(ConfigError, match="all requests arrive at 0 s, so no share of capacity is a rate"):
        set_up(replace(OF_CAPACITY, trace=at_once))


def test_without_a_request_that_is_served_there_is_no_capacity() -> None:
    too_long = Trace.of([TraceRequest("a", 1.0, 9_999, 5)])
    with pytest.raises(ConfigError, match="no request of the trace is served here"):
        set_up(replace(OF_CAPACITY, trace=too_long))


UNSERVED: dict[str, object] = {"grid": PolicyGrid(policies=("ascendra",))}


def simulated(asked: SimulationRequest, root: Path, jobs: int = 1) -> list[CellResult]:
    setup = set_up(asked)
    folder = opened(setup, root)
    return run_cells(setup.scenario, folder, jobs=jobs)


def opened(setup: Setup, root: Path) -> CellFolder:
    folder = CellFolder(root, setup.asked.grid)
    folder.open(setup.manifest(), setup.meta("headway simulate"))
    return folder


@pytest.fixture(scope="module")
def sweep_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `sweep`."""
    return tmp_path_factory.mktemp("sweep") / "run"


@pytest.fixture(scope="module")
def sweep(sweep_root: Path) -> list[CellResult]:
    """The results of ASKED, for tests that only read them."""
    return simulated(ASKED, sweep_root)


@pytest.fixture(scope="module")
def single_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `single`."""
    return tmp_path_factory.mktemp("single") / "run"


@pytest.fixture(scope="module")
def single(single_root: Path) -> list[CellResult]:
    """The results of SINGLE, for tests that only read them."""
    return simulated(SINGLE, single_root)


def content(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


# ---- one cell ------------------------------------------------------------------------------------------


def test_a_cell_is_a_pure_function_of_what_it_is_given() -> None:
    scenario = set_up(ASKED).scenario
    runs: list[list[Record]] = []
    for _ in range(2):
        records: list[Record] = []
        run_cell(scenario, GridCell("sjf", 0.5, 1), records.append)
        runs.append(records)
    assert runs[0] == runs[1]
    assert len(runs[0]) == 60


def test_its_summary_is_the_one_of_its_folder(single: list[CellResult], single_root: Path) -> None:
    stored = read_run(single_root)
    for result in single:
        policy = result.cell.policy
        assert result.summary == summarize(stored.records[policy], run=stored.infos[policy])
        assert (result.summary.swapped_out_blocks, result.summary.swapped_in_blocks) == (0, 0)


def test_blocks_copied_both_ways_reach_the_summary(tmp_path: Path) -> None:
    # Blocks for the longest request and little more: some are swapped out, and all of them come back.
    sizes = EngineSizes(num_blocks=45, host_blocks=40, prefix_caching=False)
    grid = PolicyGrid(policies=("vllm-s-fallback",), loads=(20.0,))
    swapping = replace(SINGLE, grid=grid, sizes=sizes)
    (result,) = simulated(swapping, tmp_path)
    assert 0 < (result.summary.swapped_in_blocks or 0) <= result.summary.swapped_out_blocks
    records = read_records(tmp_path / "vllm-s-fallback.records.jsonl")
    assert sum(record.swapped_blocks for record in records) == result.summary.swapped_out_blocks


def test_loads_and_seeds_make_a_difference() -> None:
    scenario = set_up(ASKED).scenario

    def mean_jct_s(cell: GridCell) -> float:
        value = run_cell(scenario, cell, lambda record: None).summary.mean_jct_s
        assert value is not None
        return value

    assert mean_jct_s(GridCell("vllm", 1.0, 0)) > mean_jct_s(GridCell("vllm", 0.5, 0))
    assert mean_jct_s(GridCell("vllm", 1.0, 0)) != mean_jct_s(GridCell("vllm", 1.0, 1))


def test_parts_are_put_in_place_of_every_policys_own(tmp_path: Path) -> None:
    ordered = replace(SINGLE, parts=Parts(order="shortest-prompt"))
    vllm, sjf = simulated(ordered, tmp_path)
    assert vllm.summary == sjf.summary


def test_an_error_names_its_cell(tmp_path: Path) -> None:
    setup = set_up(SINGLE)
    tight = replace(setup.scenario, max_output_tokens=1)
    with pytest.raises(
        TraceError, match=r"^vllm at rate scale 1, seed 0: request .* output tokens; accepted: up to 1"
    ):
        run_cell(tight, GridCell("vllm"), lambda record: None)


def test_pools_serve_the_policies_that_are_for_them_and_as_many_equal_instances_the_others(
    tmp_path: Path,
) -> None:
    asked = replace(POOLED, grid=PolicyGrid(policies=("ascendra", "vllm")))
    results = {result.cell.policy: result for result in simulated(asked, tmp_path)}
    records = {policy: read_records(tmp_path / f"{policy}.records.jsonl") for policy in ("ascendra", "vllm")}
    assert {record.instance for record in records["ascendra"]} == {"lp-0", "lp-1", "hp-0"}
    assert {record.instance for record in records["vllm"]} == {"0", "1", "2"}
    moves = [record for record in records["ascendra"] if record.outcome is Outcome.HANDED_OFF]
    assert len(moves) == results["ascendra"].summary.handed_off > 0
    assert results["ascendra"].summary.requests == results["vllm"].summary.requests == 60


def test_without_tickets_hp_is_left_to_hand_offs(tmp_path: Path) -> None:
    asked = replace(POOLED, grid=PolicyGrid(policies=("ascendra",)), pool_router="ascendra-no-ticket")
    simulated(asked, tmp_path)
    records = read_records(tmp_path / "ascendra.records.jsonl")
    moved = {record.id for record in records if record.outcome is Outcome.HANDED_OFF}
    at_hp = {record.id for record in records if record.instance == "hp-0"}
    assert moved >= at_hp != set()  # what no HP instance takes goes back


def test_what_serves_is_said_of_pools_too() -> None:
    setup = set_up(POOLED)
    assert "3 instances of h100, 2 lp and 1 hp under ascendra (" in setup.hardware()
    assert setup.manifest()["pools"] == {"lp": 2, "hp": 1}
    assert "pools" not in set_up(SINGLE).manifest()


def test_pools_give_the_same_bytes_on_any_number_of_processes_and_count_each_request_once(
    tmp_path: Path,
) -> None:
    ended = 0

    def tick(requests: int) -> None:
        nonlocal ended
        ended += requests

    setup = set_up(POOLED)
    one = run_cells(setup.scenario, opened(setup, tmp_path / "one"), jobs=1, tick=tick)
    assert one == simulated(POOLED, tmp_path / "two", jobs=2)
    assert content(tmp_path / "one") == content(tmp_path / "two")
    assert ended == setup.num_requests == 240


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"router": "prefill-decode"}, "which the simulator cannot; accepted: round-robin"),
        ({"sizes": EngineSizes(pp=2, asynchronous=True)}, "asynchronous scheduling with pipeline stages"),
        (
            {**UNSERVED, "pools": {"lp": 1, "mp": 1}},
            "policy 'ascendra' has none for pool 'mp'; accepted: lp, hp",
        ),
        (
            {"sizes": EngineSizes(host_blocks=40), "kv_tier": KvTier(gib=1.0)},
            "host_blocks is 40 beside a KV tier (gib=1); accepted: one of the two",
        ),
        (
            {"sizes": EngineSizes(prefix_caching=False), "kv_tier": KvTier(gib=1.0)},
            "a KV tier (gib=1) without prefix caching; accepted: with prefix caching",
        ),
        ({**UNSERVED, "pools": {"lp": 1}, "pool_router": "dice"}, "unknown router 'dice'; accepted: "),
        ({**UNSERVED, "pools": {"lp": 1}, "parts": Parts(order="nope")}, "unknown order 'nope'; accepted: "),
    ],
)
def test_what_is_not_accepted_is_said_before_anything_runs(change: dict[str, object], complaint: str) -> None:
    with pytest.raises((ConfigError, TraceError)) as raised:
        set_up(replace(SINGLE, **change))  # type: ignore[arg-type]
    assert complaint in str(raised.value)


def test_a_fingerprint_tells_costs_apart() -> None:
    prints = [
        fingerprint(set_up(replace(SINGLE, hardware=name)).scenario.system.calibration)
        for name in ("h100", "h100", "h200")
    ]
    assert prints[0] == prints[1] != prints[2]
    assert fingerprint(SECOND_STEPS) != fingerprint(replace(SECOND_STEPS, step=Linear(2.0)))


# ---- folders -------------------------------------------------------------------------------------------


def test_the_same_bytes_on_any_number_of_processes(
    sweep: list[CellResult], sweep_root: Path, tmp_path: Path
) -> None:
    assert simulated(ASKED, tmp_path, jobs=2) == sweep
    assert content(tmp_path) == content(sweep_root)
    assert set(content(sweep_root)) == {
        "simulation.json",
        *(
            f"seed={seed}/load={load}/{name}"
            for seed in (0, 1)
            for load in ("0.5", "1")
            for name in (
                "run.json",
                *(
                    f"{policy}.{kind}"
                    for policy in ("vllm", "sjf")
                    for kind in ("records.jsonl", "summary.json", "cell.json")
                ),
            )
        ),
    }


def test_a_report_can_be_made_of_every_layout(
    sweep: list[CellResult], sweep_root: Path, single: list[CellResult], single_root: Path
) -> None:
    found = labelled_summaries(sections(read_runs(sweep_root)))
    assert found["sjf (seed=1) load=0.5"] == next(
        result.summary for result in sweep if result.cell == GridCell("sjf", 0.5, 1)
    )
    assert len(found) == 8
    found = labelled_summaries(sections(read_runs(single_root)))
    assert found == {result.cell.policy: result.summary for result in single}
    assert "simulated, 1 instance of h100" in sections(read_runs(single_root))[0].measured_on


def test_derived_costs_are_said_to_be_so() -> None:
    assert "DERIVED, not measured: " in set_up(replace(SINGLE, hardware="a100-40g")).hardware()
    assert "DERIVED" not in set_up(SINGLE).hardware()


@pytest.mark.usefixtures("sweep")
def test_what_is_done_is_not_done_again(sweep_root: Path, tmp_path: Path) -> None:
    copytree(sweep_root, tmp_path, dirs_exist_ok=True)
    whole = content(tmp_path)
    (tmp_path / "seed=1/load=0.5/sjf.cell.json").unlink()
    (tmp_path / "seed=1/load=0.5/sjf.records.jsonl").write_text("half a li")
    (tmp_path / "seed=0/load=1/run.json").write_text("{")  # cut short by a kill
    kept = tmp_path / "seed=1/load=0.5/vllm.records.jsonl"
    before_ns = kept.stat().st_mtime_ns
    simulated(ASKED, tmp_path)
    assert content(tmp_path) == whole
    assert kept.stat().st_mtime_ns == before_ns


@pytest.mark.usefixtures("sweep")
def test_an_interrupted_run_goes_on_where_it_was(sweep_root: Path, tmp_path: Path) -> None:
    setup = set_up(ASKED)
    folder = opened(setup, tmp_path / "interrupted")
    # As if one before had been killed between its records and the word that they are complete.
    folder.records(ASKED.grid.cells()[-1]).write_text("{}")
    ended = 0

    def stop_in_the_third(requests: int) -> None:
        nonlocal ended
        ended += requests
        if ended == 150:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_cells(setup.scenario, folder, jobs=1, tick=stop_in_the_third)
    assert [folder.result(cell) is not None for cell in ASKED.grid.cells()] == [True] * 2 + [False] * 6
    assert [folder.records(cell).exists() for cell in ASKED.grid.cells()] == [True] * 2 + [False] * 6
    assert not any("partial" in name for name in content(tmp_path))
    simulated(ASKED, tmp_path / "interrupted", jobs=2)
    assert content(tmp_path / "interrupted") == content(sweep_root)


def test_what_another_command_still_writes_into_the_folder_stays(tmp_path: Path) -> None:
    folder = opened(set_up(SINGLE), tmp_path)
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    partial = tmp_path / f".vllm.records.jsonl.{other.pid}.partial"
    partial.touch()
    folder.sweep_up()
    assert partial.exists()
    other.communicate(b"\n")
    folder.sweep_up()
    assert not partial.exists()


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_first_error_ends_it_and_the_done_is_kept(tmp_path: Path, jobs: int) -> None:
    setup = set_up(replace(ASKED, grid=PolicyGrid(policies=("vllm", "sjf"))))
    folder = opened(setup, tmp_path)
    broken = replace(setup.scenario, max_output_tokens=1)
    with pytest.raises(TraceError, match="at rate scale 1, seed 0: request"):
        run_cells(broken, folder, jobs=jobs)
    assert set(content(tmp_path)) == {"simulation.json", "run.json"}


@pytest.mark.parametrize(
    "change",
    [
        {"hardware": "h200"},
        {"grid": PolicyGrid(policies=("vllm",))},
        {"parts": Parts(order="edf")},
        {"trace": Trace(f"{TRACE}/seed=5")},
        {"max_output_tokens": 999},
    ],
)
def test_another_simulation_does_not_go_into_the_same_folder(
    tmp_path: Path, change: dict[str, object]
) -> None:
    opened(set_up(SINGLE), tmp_path)
    before = content(tmp_path)
    with pytest.raises(ConfigError, match=r"holds another simulation .* was .*, now .*; give another folder"):
        opened(set_up(replace(SINGLE, **change)), tmp_path)  # type: ignore[arg-type]
    assert content(tmp_path) == before


@pytest.mark.parametrize("said", [b"{", b'{"trace": "\xe9"}'])
def test_a_folder_that_cannot_say_what_it_holds_is_left_alone(tmp_path: Path, said: bytes) -> None:
    (tmp_path / "simulation.json").write_bytes(said)
    with pytest.raises(ConfigError, match=r"cannot be read .*; give another folder"):
        opened(set_up(SINGLE), tmp_path)
    assert (tmp_path / "simulation.json").read_bytes() == said


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty"):
        opened(set_up(SINGLE), tmp_path)
    with pytest.raises(ConfigError, match="cannot be written"):
        opened(set_up(SINGLE), tmp_path / "mine.txt" / "deeper")
    assert set(content(tmp_path)) == {"mine.txt"}


# ---- tables --------------------------------------------------------------------------------------------


def test_one_load_and_seed_is_policy_to_summary(single: list[CellResult]) -> None:
    found = json.loads(to_json(SINGLE.grid, single))
    assert found == {result.cell.policy: result.summary.to_dict() for result in single}


def test_several_seeds_are_averaged_with_their_spread(sweep: list[CellResult]) -> None:
    found = json.loads(to_json(ASKED.grid, sweep))
    assert list(found) == ["vllm load=0.5", "sjf load=0.5", "vllm load=1", "sjf load=1"]
    low, high = sorted(
        r.summary.mean_jct_s or 0
        for r in sweep
        if r.cell in (GridCell("vllm", 1.0, 0), GridCell("vllm", 1.0, 1))
    )
    vllm = found["vllm load=1"]
    assert vllm["seeds"] == 2
    assert vllm["mean_jct_s"] == pytest.approx((low + high) / 2)
    assert vllm["deviation"]["mean_jct_s"] == pytest.approx((high - low) / 2**0.5)  # of two values
    assert vllm["scheduler_us_per_step"] is vllm["deviation"]["scheduler_us_per_step"] is None
    assert [run.num_seeds for run in averaged(sweep)] == [2, 2, 2, 2]


def rendered(folder: CellFolder, results: list[CellResult], width: int = 200) -> str:
    from io import StringIO

    from rich.console import Console

    text = StringIO()
    Console(file=text, width=width).print(tables(folder, results))
    return text.getvalue()


def test_the_table_over_loads_and_seeds_is_never_cut_off(sweep: list[CellResult], sweep_root: Path) -> None:
    folder = CellFolder(sweep_root, ASKED.grid)
    wide, narrow = rendered(folder, sweep), rendered(folder, sweep, width=60)
    assert "mean ± standard deviation over 2 seeds" in wide
    assert "…" not in wide + narrow
    assert narrow.count("policy") > wide.count("policy") == 1
    assert all(head in narrow for head in ("goodput", "TTFT p99", "preemptions"))


def test_a_single_comparison_is_told_in_full_and_says_where_it_limps(tmp_path: Path) -> None:
    drop = replace(SINGLE, sizes=ONE_SEAT, parts=Parts(leaving=("queue-bound:max_waiting=2",)))
    setup = set_up(drop)
    folder = opened(setup, tmp_path)
    text = rendered(folder, run_cells(setup.scenario, folder, jobs=1))
    assert "How requests ended" in text
    assert "Latencies are not comparable" in text


def test_a_sweep_says_at_which_loads_it_limps(tmp_path: Path) -> None:
    drop = replace(
        ASKED,
        grid=PolicyGrid(policies=("vllm", "sjf"), loads=(0.01, 1.0)),
        sizes=ONE_SEAT,
        parts=Parts(leaving=("queue-bound:max_waiting=2",)),
    )
    text = rendered(CellFolder(tmp_path, drop.grid), simulated(drop, tmp_path))
    assert "rate scale 1: latencies are not comparable" in text
    assert "rate scale 0.01: latencies" not in text


def test_pictures_of_a_sweep(sweep: list[CellResult]) -> None:
    pictures = sweep_pictures(ASKED.grid, sweep)
    assert set(pictures) == {
        "goodput.svg", "throughput-rps.svg", "mean-ttft.svg", "p99-ttft.svg", "mean-jct.svg", "p99-jct.svg"
    }  # fmt: skip
    assert all(svg.startswith("<svg") for svg in pictures.values())
    assert all("against rate scale" in svg for svg in pictures.values())
    shares = sweep_pictures(replace(ASKED.grid, of_capacity=True), sweep)
    assert all("against load" in svg for svg in shares.values())


# ---- bounds --------------------------------------------------------------------------------------------


def test_an_oracle_is_marked_as_a_bound_wherever_people_look(tmp_path: Path) -> None:
    asked = replace(SINGLE, sizes=ONE_SEAT, grid=PolicyGrid(policies=("vllm", "srpt-oracle")))
    setup = set_up(asked)
    folder = opened(setup, tmp_path)
    vllm, bound = run_cells(setup.scenario, folder, jobs=2)
    assert (bound.summary.mean_jct_s or 0) < (vllm.summary.mean_jct_s or 0)
    assert "srpt-oracle (clairvoyant)" in rendered(folder, [vllm, bound])
    assert list(labelled_summaries(sections(read_runs(tmp_path)))) == ["vllm", "srpt-oracle (clairvoyant)"]
    assert list(json.loads(to_json(asked.grid, [vllm, bound]))) == ["vllm", "srpt-oracle"]
    assert explain(setup.scenario, GridCell("srpt-oracle"), "40")[0].record.id == "40"


def test_an_oracle_has_no_parts_to_replace() -> None:
    asked = replace(SINGLE, grid=PolicyGrid(policies=("edf-oracle",)), parts=Parts(order="edf"))
    with pytest.raises(ConfigError, match="'edf-oracle' is an oracle, which has no parts"):
        set_up(asked)


# ---- a closer look -------------------------------------------------------------------------------------


def test_the_story_and_the_trace_are_of_the_same_run(
    single: list[CellResult], single_root: Path, tmp_path: Path
) -> None:
    scenario = set_up(SINGLE).scenario
    records = {record.id: record for record in read_records(single_root / "sjf.records.jsonl")}
    story, explanation = explain(scenario, GridCell("sjf"), "40")
    assert story.record == records["40"]
    assert explanation is not None
    assert explanation.story == story
    result, trace = trace_schedule(scenario, GridCell("sjf"), tmp_path / "trace.json.gz")
    assert result == next(result for result in single if result.cell.policy == "sjf")
    assert trace.cut_at_s is None


def test_the_story_and_the_trace_of_a_request_that_moved(tmp_path: Path) -> None:
    simulated(replace(POOLED, grid=PolicyGrid(policies=("ascendra",))), tmp_path / "run")
    records = read_records(tmp_path / "run/ascendra.records.jsonl")
    moved = next(record for record in records if record.outcome is Outcome.HANDED_OFF)
    end = next(record for record in records if record.id == moved.id and record is not moved)
    scenario = set_up(POOLED).scenario
    story, explanation = explain(scenario, GridCell("ascendra"), moved.id)
    assert explanation is not None
    assert story.record == end
    assert f"instance {moved.instance} gave it up" in " ".join(chapter.why for chapter in story.chapters)
    assert [chapter.end_s for chapter in story.chapters][-1] == end.finished_s
    trace_schedule(scenario, GridCell("ascendra"), tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_bytes())["traceEvents"]
    slices = [
        (event["ph"], event["pid"], event["ts"])
        for event in events
        if event.get("id") == moved.id and event["name"] == f"request {moved.id}"
    ]
    came, left, ended = (pytest.approx(time_s * 1e6, abs=1) for time_s in times(moved, end))
    lp = int(moved.instance.removeprefix("lp-"))
    assert slices == [("b", lp, came), ("e", lp, left), ("b", 2, left), ("e", 2, ended)]


def times(moved: Record, end: Record) -> tuple[float, float, float]:
    """When it came, when it moved and when it ended."""
    assert moved.finished_s is not None
    assert end.finished_s is not None
    return moved.arrival_s, moved.finished_s, end.finished_s


def test_a_story_follows_the_load() -> None:
    scenario = set_up(ASKED).scenario
    slow, _ = explain(scenario, GridCell("vllm", 0.5, 0), "7")
    assert slow.chapters[0].start_s == pytest.approx(slow.record.arrival_s, abs=1e-6)


def test_a_trace_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    scenario = set_up(SINGLE).scenario
    for name in ("one.json.gz", "two.json.gz", "plain.json"):
        trace_schedule(scenario, GridCell("vllm"), tmp_path / name)
    assert (tmp_path / "one.json.gz").read_bytes() == (tmp_path / "two.json.gz").read_bytes()
    assert json.loads((tmp_path / "plain.json").read_bytes())["traceEvents"]
    before = set(content(tmp_path))
    with pytest.raises(TraceError):
        trace_schedule(replace(scenario, max_output_tokens=1), GridCell("vllm"), tmp_path / "broken.json")
    with pytest.raises(ConfigError, match="cannot be written"):
        trace_schedule(scenario, GridCell("vllm"), tmp_path / "plain.json" / "deeper.json")
    assert set(content(tmp_path)) == before


# ---- predicted lengths ---------------------------------------------------------------------------------


PREDICTING = replace(ASKED, grid=PolicyGrid(policies=("vllm", "predicted"), num_seeds=2))


def test_lengths_are_predicted_for_those_who_go_by_them_and_it_is_said_by_whom(tmp_path: Path) -> None:
    asked = replace(PREDICTING, predictor="noisy-oracle:tau=0.8")
    results = simulated(asked, tmp_path)
    assert [result.predictor for result in results] == [
        "",
        "noisy-oracle:tau=0.8 (made from the true lengths)",
    ] * 2
    said = json.loads(to_json(asked.grid, results))
    assert "predictor" not in said["vllm"]
    assert said["predicted"]["predictor"] == "noisy-oracle:tau=0.8 (made from the true lengths)"
    folder = CellFolder(tmp_path, asked.grid)
    for policy, predicted in (("vllm", False), ("predicted", True)):
        records = read_records(folder.records(GridCell(policy)))
        assert {record.predicted_output_tokens is not None for record in records} == {predicted}
    # Another predictor is another experiment.
    with pytest.raises(ConfigError, match=r"predictor was noisy-oracle:tau=0.8, now none"):
        simulated(replace(asked, predictor="none"), tmp_path)


def test_by_default_they_are_learned_where_somebody_goes_by_them() -> None:
    assert set_up(ASKED).scenario.predictor == "none"
    assert set_up(ASKED).lengths() is None
    setup = set_up(PREDICTING)
    assert setup.scenario.predictor == "learned"
    assert setup.lengths() == "learned, for predicted"
