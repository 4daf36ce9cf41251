import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from headway.cli.options import command_of
from headway.cli.report import report
from headway.core.record import Outcome, Record
from headway.errors import ConfigError, HeadwayError, RecordError
from headway.results import RunMeta, load_folder, record_writer, start_run

app = typer.Typer()
app.command()(command_of(report))


def headway_report(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def write_run(folder: Path, *policies: str) -> Path:
    """A run of two requests that take 2 and 4 s under the first policy, 3 and 5 under the next, and so on."""
    start_run(folder, RunMeta(policies=policies, measured_on="simulated", hardware="H200"))
    for extra_s, policy in enumerate(policies):
        with record_writer(folder, policy) as writer:
            for id_, jct_s in (("a", 2), ("b", 4)):
                end_s = float(jct_s + extra_s)
                writer.append(
                    Record(
                        id=id_,
                        arrival_s=0.0,
                        first_scheduled_s=0.5,
                        first_token_s=1.0,
                        finished_s=end_s,
                        prompt_tokens=8,
                        output_tokens=4,
                        outcome=Outcome.FINISHED,
                    )
                )
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", "vllm", "headway")


def test_the_page_is_written_and_its_path_printed(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "report.html"
    result = headway_report(folder, "--out", out, "--title", "Two policies")
    assert result.exit_code == 0
    assert result.stdout == f"{out}\n"
    assert "<h1>Two policies</h1>" in out.read_text(encoding="utf-8")


def test_a_folder_whose_name_is_no_text_has_a_page_too(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name, "vllm") for name in ("bar", "caf\udce9")]
    out = tmp_path / "report.html"
    assert headway_report(*folders, "--out", out).exit_code == 0
    assert "vllm (caf\\xe9)" in out.read_text()
    (folders[0] / "vllm.records.jsonl").rename(folders[0] / "th\udce9.records.jsonl")
    assert headway_report(folders[0], "--out", out).exit_code == 0
    assert "th\\xe9" in out.read_text()


def test_json_is_the_only_thing_on_stdout(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    result = headway_report(folder, "--json", "--out", out)
    found = json.loads(result.stdout)
    assert {policy: summary["mean_jct_s"] for policy, summary in found.items()} == {"vllm": 3, "headway": 4}
    assert out.exists()


def test_the_table_is_for_people_on_stderr(folder: Path) -> None:
    result = headway_report(folder)
    assert result.exit_code == 0
    assert result.stdout == ""
    assert "simulated, H200" in result.stderr
    assert "How requests ended" in result.stderr


def test_which_of_two_policies_did_better_is_said_before_the_tables(folder: Path, tmp_path: Path) -> None:
    said = (
        "In a simulation vllm answered sooner than headway: the mean answer took 3 s instead of 4 s, and 99 of 100 "
        "came within 3.98 s instead of 4.98 s."
    )
    first, *tables = headway_report(folder).stderr.splitlines()
    assert first == said
    assert "How requests ended" in tables
    # The page has the tables where there is one.
    assert headway_report(folder, "--out", tmp_path / "page.html").stderr == f"{said}\n"


def test_several_folders_stand_side_by_side(folder: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "other", "vllm")
    found = json.loads(headway_report(folder, other, "--json").stdout)
    assert list(found) == ["vllm (run)", "headway (run)", "vllm (other)"]


def test_a_sweep_has_its_loads_in_the_names(tmp_path: Path) -> None:
    for load in (0.5, 0.9):
        write_run(load_folder(tmp_path / "sweep", load), "vllm")
    result = headway_report(tmp_path / "sweep", "--json")
    assert list(json.loads(result.stdout)) == ["vllm load=0.5", "vllm load=0.9"]
    assert "load 0.9, simulated, H200" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (["run", "run"], ConfigError, "given twice"),
        (["run", "run/../run"], ConfigError, "given twice"),
        (["nowhere"], RecordError, "does not exist"),
        (["run", "--out", "run"], ConfigError, "cannot be written"),
    ],
)
def test_errors_are_raised_in_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], error: type[HeadwayError], says: str
) -> None:
    monkeypatch.chdir(folder.parent)
    result = headway_report(*arguments)
    assert isinstance(result.exception, error)
    assert says in str(result.exception)
    assert "\n" not in str(result.exception)
    assert result.stdout == ""


def test_a_folder_is_required() -> None:
    assert headway_report().exit_code == 2
