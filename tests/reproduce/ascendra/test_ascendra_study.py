"""What is made of Ascendra's runs, from made-up results: every number can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from headway_reproduce.ascendra.ablations import Ablation
from headway_reproduce.ascendra.cells import ALL, MAIN, QUICK, AscendraRun, AscendraScope
from headway_reproduce.ascendra.claims import AscendraClaims
from headway_reproduce.ascendra.findings import AscendraFindings
from headway_reproduce.ascendra.run import AscendraResult, PoolResult
from headway_reproduce.ascendra.services import ASCENDRA, BASELINES, SARATHI, VLLM_V0
from headway_reproduce.ascendra.study import FILE, AscendraStudy
from headway_reproduce.study import read_kept

from headway.errors import SimulationError
from headway.lab.kept_runs import Kept
from headway.lab.papers import PaperRequest
from headway.results.study import Study

REFERENCE_RPS = 10.0
ENOUGH_RPS = {"ascendra": 12.0, "vllm-v0": 10.0, "sarathi": 8.0}
"""Up to where all requests are within targets; 20 % fewer for each request a second more: 0.9 half a one later."""


def result(run: AscendraRun) -> AscendraResult:
    """1,000 requests, as many within targets as the rate and the targets leave."""
    enough_rps = ENOUGH_RPS.get(run.service.name, 11.5) * run.slo_scale
    share = min(1.0, max(0.0, 1 - 0.2 * (run.rate_rps - enough_rps)))
    met = round(1000 * share)
    dropped = (1000 - met) // 2 if _sheds(run) else 0
    pools = {
        engines.pool: PoolResult(
            busy_share=0.8 if run.service.router == "ascendra" else 0.5,
            first_tokens=500,
            delay_s=0.4 if engines.pool == "lp" else 0.1,
        )
        for engines in run.service.engines
    }
    return AscendraResult(
        requests=1000,
        finished=1000 - dropped,
        met=met,
        late=1000 - dropped - met,
        dropped=dropped,
        moves=5,
        total_tps=100.0,
        mean_ttft_s=0.2,
        p99_ttft_s=0.9,
        mean_tbt_s=0.05,
        p99_tbt_s=0.1,
        needed_scale=run.rate_rps / 10,
        steady_rps=REFERENCE_RPS,
        ttft_s=tuple(place / 100 for place in range(101)),
        pools=pools,
        p99_gap_s=0.3 if run.gaps else None,
        step_errors={"prefill": (0.1, None, 0.05), "mixed": (0.06, 0.08, 0.1)} if run.errors else {},
    )


def _sheds(run: AscendraRun) -> bool:
    return all("expired" in (engines.parts.leaving or ()) for engines in run.service.engines)


def read(root: Path) -> Kept[AscendraRun, AscendraResult]:
    return read_kept(root, AscendraResult, FILE)


def kept(root: Path, scope: AscendraScope) -> Kept[AscendraRun, AscendraResult]:
    """Every run of a scope, done."""
    found = read(root)
    findings = AscendraFindings(found, scope)
    with found.adding() as add:
        for run in scope.reference_runs():
            add(run, result(run))
        for run in dict.fromkeys(scope.sweep_runs(findings.reference_rps)):
            add(run, result(run))
        for run in scope.further_runs(findings.reference_rps, findings.capacity_rps()):
            if found.result(run) is None:
                add(run, result(run))
    return found


def never() -> None:
    raise AssertionError("a run that is kept was made again")


@pytest.fixture(scope="module")
def quick_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("quick")
    kept(root, QUICK)
    return root


@pytest.fixture(scope="module")
def study(quick_root: Path) -> Study:
    return AscendraStudy().reproduce(
        PaperRequest(root=quick_root, jobs=1, quick=True), never, lambda line: None
    )


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> AscendraFindings:
    return AscendraFindings(kept(tmp_path_factory.mktemp("full"), ALL), ALL)


# ---- findings ------------------------------------------------------------------------------------------


def test_the_rate_at_nine_in_ten_is_between_two_of_the_sweep(full: AscendraFindings) -> None:
    # Ascendra: 1.0 at 12 req/s and 0.8 at 13.
    assert full.rate_at_good(MAIN, ASCENDRA) == pytest.approx(12.5)
    assert full.capacity_rps() == pytest.approx(12.5)
    assert full.rate_gain(MAIN, VLLM_V0) == pytest.approx(12.5 / 10.5)
    assert full.rate_gain(MAIN, SARATHI) == pytest.approx(12.5 / 8.5)


def test_where_the_sweep_does_not_pass_it_capacity_is_its_largest_rate(tmp_path: Path) -> None:
    scope = QUICK
    found = read(tmp_path)
    findings = AscendraFindings(found, scope)
    with found.adding() as add:
        for run in scope.reference_runs():
            add(run, result(run))
        for run in scope.sweep_runs(findings.reference_rps):
            add(run, replace(result(run), met=1000))
    assert findings.rate_at_good(MAIN, ASCENDRA) is None
    assert findings.capacity_rps() == 17.0


def test_a_run_that_was_not_made_is_an_error(tmp_path: Path) -> None:
    findings = AscendraFindings(read(tmp_path), QUICK)
    with pytest.raises(SimulationError, match=r"sarathi has not been run at Mistral-7B/ShareGPT, 0 req/s"):
        findings.reference_rps(MAIN)


def test_gains_in_overload_by_hand(full: AscendraFindings) -> None:
    # At capacity, 12.5: ascendra 0.9, vllm-v0 0.5, sarathi 0.1. Half of the others are dropped.
    assert full.overload_gain(1.0, VLLM_V0) == pytest.approx(0.9 / 0.5)
    assert full.overload_gain(1.0, SARATHI) == pytest.approx(9.0)


def test_the_smallest_factor_of_those_who_go_by_targets_and_of_those_who_do_not(
    full: AscendraFindings,
) -> None:
    # At 0.8 x 12.5 = 10 req/s Ascendra is within targets to 12 x factor: 0.8 at 0.75 and 1.0 at 10/12. Of the factors
    # tried 0.7 has 1 - 0.2 x 1.6 = 0.68 and 0.85 all: 0.9 at 0.7 + 0.15 x 22/32.
    assert full.least_scale(0.8, ASCENDRA) == pytest.approx(0.7 + 0.15 * 0.22 / 0.32)
    assert full.least_scale(0.8, VLLM_V0) == pytest.approx(1.0)


# ---- what came out -------------------------------------------------------------------------------------


def test_every_claim_has_a_row_with_ours_beside(full: AscendraFindings) -> None:
    rows = {(row.where, row.says): row for row in AscendraClaims(full.kept, full.scope).claims()}
    gain = rows["Figure 9", f"{MAIN}: rate at 90 % goodput over vllm-v0"]
    # 12.5 over 10.5 req/s. At load 1.3, 13 req/s, 0.8 over 0.4, whatever the kernels. The narrow targets are not among
    # what these made-up results heed.
    assert (gain.paper, gain.ours, gain.verdict) == ("1.191", "1.19", "reproduced")
    assert gain.reason.startswith(
        "goodput at load 1.3: 2.00 as it stands; one kernel for prompts and decodes 2.00 (not the reason)"
    )
    own = rows["Figure 9", f"{MAIN}: rate at 90 % goodput over sarathi"]
    assert own.reason == "goodput at load 1.3: not known as it stands"  # 0.8 over nothing
    assert rows["Section 6.1", "HP's use at light load with tickets over without"].verdict == "reproduced"
    waits = rows["Figure 10d", "LP's wait over HP's"]
    assert (waits.ours, waits.verdict) == ("4.00", "reproduced")
    figures = {where.split(",")[0] for where, _ in rows}
    assert {f"Figure {number}" for number in (1, 2, 6, 9, 11, 12, 13)} | {"Table 1", "Abstract"} <= figures
    assert {row.verdict for row in rows.values()} <= {"reproduced", "partly", "not"}


def test_the_quick_part_has_every_claim_but_for_figure_2_and_the_other_cells(
    study: Study, full: AscendraFindings
) -> None:
    [table] = [table for table in study.tables if table.name == "claims"]
    quick = {(row[0], row[1]) for row in table.rows}
    left_out = {(row.where, row.says) for row in AscendraClaims(full.kept, full.scope).claims()} - quick
    assert {where for where, _ in left_out} <= {"Figure 2", "Figures 9, 14", "Figure 9", "Figure 12"}


# ---- the study -----------------------------------------------------------------------------------------


def test_every_table_says_how_it_was_measured_and_has_its_columns(study: Study) -> None:
    for table in study.tables:
        assert "simulated" in table.measured_on
        assert all(len(row) == len(table.headings) for row in table.rows), table.name
    names = [table.name for table in study.tables]
    assert len(set(names)) == len(names)


def test_the_whole_has_more_parts_than_the_quick_part(full: AscendraFindings, study: Study) -> None:
    titles = {part.title for part in study.parts}
    for part in (
        Ablation(full.kept, full.scope).choice_part(),
        Ablation(full.kept, full.scope).tails_part(),
    ):
        assert part is not None
        assert part.title not in titles
        for table in part.tables:
            assert all(len(row) == len(table.headings) for row in table.rows), table.name
    assert not {"threshold", "figure-2"} & {table.name for table in study.tables}


def test_parts_are_told_from_the_runs(study: Study) -> None:
    tables = {table.name: table.rows for table in study.tables}
    # With tickets HP is busy for 0.8 of a run, without for 0.5.
    assert [row[1] for row in tables["tickets"]] == [0.8, 0.5]
    # At 13 req/s ascendra has 0.8 within targets, the others, good to 11.5, 0.7.
    assert {row[0]: row[-1] for row in tables["ablation"]}["shortest prompt"] == pytest.approx(0.7)
    [overload] = [part for part in study.parts if part.title == "Overload with shedding"]
    assert "LP instances hand off 0% at 1, 0% at 1.5 of capacity" in overload.text[-1]


def test_what_is_done_is_not_done_again(quick_root: Path) -> None:
    size = AscendraStudy().size(PaperRequest(root=quick_root, jobs=2, quick=True))
    assert size.runs == size.kept == QUICK.num_runs()
    assert size.seconds == 0


def test_size_counts_what_is_kept_phase_by_phase(tmp_path: Path) -> None:
    scope = QUICK
    found = read(tmp_path)
    request = PaperRequest(root=tmp_path, jobs=1, quick=True)
    assert AscendraStudy().size(request).kept == 0
    with found.adding() as add:
        for run in scope.reference_runs():
            add(run, result(run))
        assert AscendraStudy().size(request).kept == 5
        sweep = scope.sweep_runs(AscendraFindings(found, scope).reference_rps)
        for run in sweep[:5]:
            add(run, result(run))
    assert AscendraStudy().size(request).kept == 10


def test_all_baselines_are_in_every_comparison(study: Study) -> None:
    for table in study.tables:
        if table.name in ("capacity", "goodput", "slo-scale"):
            assert {service.name for service in (ASCENDRA, *BASELINES)} <= set(table.headings)
