"""What is made of AdaptiveLLM's runs, from made-up results: every number can be worked out by hand."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from headway_reproduce.adaptivellm.cells import (
    ALL,
    BASELINE,
    BY_ALL,
    BY_PROMPT,
    GROUPS,
    MEMORY_ONLY,
    NO_PADDING,
    PLUS,
    PREDICT_ONLY,
    QUICK,
    ROOMY_HOST,
    SWAP,
    TODAY,
    AdaptivePoint,
    AdaptiveScope,
    ModelAndData,
)
from headway_reproduce.adaptivellm.findings import AdaptiveFindings, turnaround
from headway_reproduce.adaptivellm.predictor_errors import (
    PredictorErrors,
    RecomputeError,
    SwapError,
    predictor_errors,
)
from headway_reproduce.adaptivellm.study import AdaptiveLlm
from headway_reproduce.study import read_kept
from headway_reproduce.study_runs import KeptRuns, Meter, RunResult, StudyRun, throughput_rps

from headway.core.record import Outcome, Record
from headway.errors import VLLM_COMES_BY, RecordError, SimulationError
from headway.lab.papers import PaperRequest, papers
from headway.predict.recompute.rows import write_rows
from headway.results import summarize
from headway.results.study import Study
from tests.predict.prefills import rows
from tests.results.examples import make, unfinished

pytestmark = pytest.mark.slow

CHAT = ModelAndData("OPT-13B", "Chatbot")
SECONDS = {
    BASELINE: 12.0,
    SWAP: 30.0,
    BY_PROMPT: 10.0,
    BY_ALL: 15.0,
    MEMORY_ONLY: 12.0,
    PLUS: 8.0,
    TODAY: 9.0,
}
"""How long the two requests of every run take: so throughput is 2 over it."""
ERRORS = PredictorErrors(
    recompute_error=RecomputeError(value=0.05, measured_on="cpu-engine", held_out_rows=7),
    swap_error=SwapError(into=0.01, out=0.03, measured_on="cpu-engine"),
    machine="a test",
    rows=30,
    noise=0.03,
)


def result(run: StudyRun, lost: Sequence[Record] = ()) -> RunResult:
    """Two requests at 0 s, first scheduled halfway through, done at the run's end: a second later for each seed."""
    seed = run.seed // len(GROUPS)
    end_s = SECONDS.get(run.policy, 12.0) + seed
    records = [make(id_, first_scheduled_s=end_s / 2, finished_s=end_s) for id_ in "ab"]
    predicts = run.policy in (BY_PROMPT, PREDICT_ONLY)
    meter = Meter(swaps=30, recomputes=10 + seed, host_full=5, plans=100, plan_s=0.12 if predicts else 0.06)
    return RunResult(
        summary=summarize([*records, *lost]), end_s=end_s, steps=100, meter=meter, saturated_rps=3 / end_s
    )


def kept(root: Path, scope: AdaptiveScope) -> KeptRuns:
    """Every run of a scope, done."""
    found: KeptRuns = read_kept(root, RunResult)
    with found.adding() as add:
        for run in scope.runs():
            add(run, result(run))
    return found


@pytest.fixture(scope="module")
def quick_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("quick")
    kept(root, QUICK)
    (root / "predictors-quick.json").write_bytes(msgspec.json.encode(ERRORS))
    return root


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> AdaptiveFindings:
    return AdaptiveFindings(kept(tmp_path_factory.mktemp("full"), ALL), ALL)


@pytest.fixture(scope="module")
def study(quick_root: Path) -> Study:
    """What is made of it."""

    def never() -> None:
        raise AssertionError("a run that is kept was made again")

    return AdaptiveLlm().reproduce(
        PaperRequest(root=quick_root, jobs=1, quick=True), never, lambda line: None
    )


# ---- findings ------------------------------------------------------------------------------------------


def test_ratios_are_taken_seed_by_seed(full: AdaptiveFindings) -> None:
    # 12 s, 13 s and 14 s over 10 s, 11 s and 12 s: 1.2, 1.1818 and 1.1667.
    found = full.ratios(AdaptivePoint(group=CHAT), BY_PROMPT, BASELINE, throughput_rps)
    assert found.mean == pytest.approx((12 / 10 + 13 / 11 + 14 / 12) / 3)
    assert found.deviation == pytest.approx(0.0167, abs=1e-4)
    assert full.mean(AdaptivePoint(group=CHAT), BASELINE, throughput_rps) == pytest.approx(
        (2 / 12 + 2 / 13 + 2 / 14) / 3
    )


def test_a_ratio_across_points_is_over_the_seeds_both_have(full: AdaptiveFindings) -> None:
    # One seed with more blocks on the host, three without: 12 s over 10 s.
    assert full.varied(AdaptivePoint(group=CHAT), ROOMY_HOST) == pytest.approx(1.2)
    assert full.varied(AdaptivePoint(group=CHAT), NO_PADDING) == pytest.approx(1.2)


def test_counts_are_means_and_one_seed_has_no_spread(full: AdaptiveFindings) -> None:
    assert full.count(AdaptivePoint(group=CHAT), BY_PROMPT, "recomputes") == 11
    capped = full.ratios(AdaptivePoint(group=CHAT, cap=8), BY_PROMPT, BASELINE, turnaround)
    assert capped.mean == pytest.approx(1.0)
    assert capped.deviation is None


def test_a_cut_is_the_share_by_which_a_turnaround_is_shorter(full: AdaptiveFindings) -> None:
    # Half of the time waiting: 2 for every policy, so nothing is cut.
    assert full.mean(AdaptivePoint(group=CHAT), BY_PROMPT, turnaround) == pytest.approx(2.0)
    assert full.cut(AdaptivePoint(group=CHAT, cap=8), BY_PROMPT, BASELINE) == pytest.approx(0.0)


def test_a_run_that_was_not_made_is_an_error(tmp_path: Path) -> None:
    findings = AdaptiveFindings(read_kept(tmp_path, RunResult), QUICK)
    with pytest.raises(
        SimulationError, match="adaptivellm-prompt has not been run at OPT-13B/Chatbot, natural outputs"
    ):
        findings.results(AdaptivePoint(group=CHAT), BY_PROMPT)
    with pytest.raises(SimulationError, match="step by step"):
        findings.overheads()


def test_what_did_not_finish_is_said(tmp_path: Path) -> None:
    runs: KeptRuns = read_kept(tmp_path, RunResult)
    point = AdaptivePoint(group=CHAT)
    with runs.adding() as add:
        add(point.run(SWAP, 0), result(point.run(SWAP, 0), [unfinished("c", Outcome.FAILED, 0.0, 1.0)]))
        add(point.run(BASELINE, 0), result(point.run(BASELINE, 0)))
    said = AdaptiveFindings(runs, QUICK).unfinished([point], [BASELINE, SWAP])
    assert said == [f"vllm-s at {point}: requests that did not finish: 1; it is not comparable."]


# ---- the study -----------------------------------------------------------------------------------------


def test_the_data_has_the_runs_numbers_beside_the_papers(study: Study) -> None:
    data = msgspec.json.decode(msgspec.json.encode(study.data))
    assert list(data) == [
        *("quick", "cells_run", "cells_total", "seeds", "facts", "verdicts", "claims", "tables"),
    ]
    assert (data["quick"], data["seeds"], data["cells_run"]) == (True, 1, QUICK.num_runs())
    assert data["cells_total"] == ALL.num_runs()
    shown = {
        name: {row[0]: dict(zip(table["headings"], row, strict=True)) for row in table["rows"]}
        for name, table in data["tables"].items()
    }
    assert list(shown["table3-vllm"]) == [str(group) for group in GROUPS]
    chats = shown["table3-vllm"]["OPT-13B/Chatbot"]
    assert (chats["paper"], shown["table3-vllm-s"]["OPT-13B/Chatbot"]["paper"]) == (1.38, 2.46)
    names = ("prompt", "prompt + output", "memory alone", "plus over it", "plus over vllm today")
    assert [chats[name] for name in names] == pytest.approx([1.2, 0.8, 1.0, 1.5, 1.125])
    assert shown["table3-vllm-s"]["OPT-13B/Chatbot"]["prompt"] == pytest.approx(3.0)
    fates = shown["fates"]["OPT-13B/Chatbot"]
    assert [fates[f"prompt: {what}"] for what in ("swaps", "recomputes", "host full")] == [30, 10, 5]
    assert shown["reasons"]["OPT-13B/Summary"]["no padding"] == pytest.approx(1.2)
    # Half of the time waiting under every policy, so nothing is cut; 0.12 s of plans in 10 s.
    assert shown["fig4"]["OPT-13B/Summary"]["cut vs vllm-0.2.5, prompt"] == 0.0
    assert shown["overhead"]["OPT-13B/Chatbot"]["% of the run"] == pytest.approx(1.2)


def test_every_table_says_whether_it_was_simulated_or_measured(study: Study) -> None:
    labels = {table.name: table.measured_on for table in study.tables}
    assert labels["table3-vllm"] == "simulated, A800 PCIe 80 GB"
    assert labels["predictors"] == "real engine, a test"
    assert all(
        label.startswith(("simulated", "real engine")) or "timed on this machine" in label
        for label in labels.values()
    )


def test_schedules_that_differ_are_counted(study: Study) -> None:
    said = " ".join(sentence for part in study.parts for sentence in part.text)
    assert "Of the 12 groups so many schedules differ: 1 under vllm-0.2.5, 1 under adaptivellm-prompt" in said


def test_everything_kept_leaves_nothing_to_run(quick_root: Path) -> None:
    size = AdaptiveLlm().size(PaperRequest(root=quick_root, jobs=2, quick=True))
    assert (size.kept, size.seconds) == (size.runs, 0.0)


def test_of_an_empty_folder_everything_is_to_run(tmp_path: Path) -> None:
    quick = AdaptiveLlm().size(PaperRequest(root=tmp_path, jobs=2, quick=True))
    everything = AdaptiveLlm().size(PaperRequest(root=tmp_path, jobs=2))
    assert quick.kept == everything.kept == 0
    assert 10 < quick.seconds < 240 < everything.seconds


def test_overhead_is_of_the_same_run_and_predicting_apart(full: AdaptiveFindings) -> None:
    first = full.overheads()[0]
    assert first.group == CHAT
    assert first.plan_s == pytest.approx(0.0012)
    assert first.step_s == pytest.approx(0.1)
    assert first.share == pytest.approx(0.12 / 10)
    assert first.prediction_share == pytest.approx(0.06 / 12)


# ---- predictor errors ----------------------------------------------------------------------------------


def test_errors_that_are_kept_are_not_measured_again(quick_root: Path) -> None:
    found = predictor_errors(PaperRequest(root=quick_root, jobs=1, quick=True), lambda line: None)
    assert found == ERRORS
    rows = found.part().tables[0].rows
    assert rows[0] == ["recompute", 0.05, 0.0176, 0.0130]
    assert rows[2] == ["the same prefill again (noise)", 0.03, None, None]
    assert rows[3] == ["swap in", 0.01, 0.015, 0.011]


def test_kept_errors_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "predictors.json").write_text('{"rows": "many"}')
    with pytest.raises(RecordError, match=r"predictors\.json"):
        predictor_errors(PaperRequest(root=tmp_path, jobs=1), lambda line: None)


@pytest.mark.parametrize(("noise", "refused"), [(0.62, True), (0.02, False)])
def test_errors_of_a_busy_machine_are_refused_and_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noise: float, refused: bool
) -> None:
    write_rows(tmp_path / "recompute-rows-quick.json", msgspec.structs.replace(rows(), noise=noise))
    monkeypatch.setattr("headway_reproduce.adaptivellm.predictor_errors.find_spec", lambda name: name)
    found = predictor_errors(PaperRequest(root=tmp_path, jobs=1, quick=True), lambda line: None)
    assert (found.recompute_error.value is None) is refused
    assert found.noise == pytest.approx(noise, abs=0.02)
    assert ("this busy machine the same prefill differs by 62%" in found.reason) is refused
    assert (tmp_path / "predictors-quick.json").exists() is not refused
    assert (tmp_path / "recompute-rows-quick.json").exists() is not refused


def test_without_the_engine_the_reason_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway_reproduce.adaptivellm.predictor_errors.find_spec", lambda name: None)
    found = predictor_errors(PaperRequest(root=tmp_path, jobs=1, quick=True), lambda line: None)
    assert found.recompute_error.value is None
    assert found.part().text == [f"Not measured: needs {VLLM_COMES_BY} and pip install scikit-learn."]
    assert list(tmp_path.iterdir()) == []


def test_papers_are_found_by_name() -> None:
    assert list(papers("adaptivellm")) == ["adaptivellm"]
    assert list(papers("all")) == ["adaptivellm", "ascendra", "fastserve", "magnus"]


@pytest.mark.parametrize("name", ["adaptivellm", "fastserve"])
def test_what_is_simulated_alone_needs_no_http_library(name: str) -> None:
    without = "import sys; sys.modules['aiohttp'] = None"
    program = f"{without}; from headway.lab.papers import papers; papers({name!r})"
    subprocess.run([sys.executable, "-c", program], check=True)
