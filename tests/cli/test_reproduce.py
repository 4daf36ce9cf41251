from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from headway_reproduce.adaptivellm.cells import QUICK
from headway_reproduce.adaptivellm.predictor_errors import PredictorErrors
from headway_reproduce.ascendra.cells import QUICK as QUICK_OF_ASCENDRA
from headway_reproduce.fastserve.cells import QUICK as QUICK_OF_FASTSERVE
from headway_reproduce.magnus.cells import MagnusScope
from headway_reproduce.magnus.data import find_data
from headway_reproduce.study_runs import FILE

from tests.cli.conftest import Headway, Refused
from tests.reproduce.adaptivellm.test_adaptivellm_study import ERRORS, kept
from tests.reproduce.ascendra.test_ascendra_study import kept as kept_of_ascendra
from tests.reproduce.fastserve.test_fastserve_study import kept as kept_of_fastserve
from tests.reproduce.magnus.magnus_rows import write_rows
from tests.reproduce.magnus.test_magnus_study import keep_all as keep_all_of_magnus


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which all of the quick part is done, with made-up results."""
    root = tmp_path_factory.mktemp("done")
    kept(root, QUICK)
    (root / "predictors-quick.json").write_bytes(msgspec.json.encode(ERRORS))
    return root


def test_json_is_one_object_and_all_else_is_on_stderr(headway: Headway, done: Path) -> None:
    ended = headway("reproduce", "adaptivellm", "--quick", "--json", "--out", done, "--jobs", 1)
    assert ended.code == 0
    found = json.loads(ended.out)
    assert found["tables"]["table3-vllm"]["rows"][0][:3] == ["OPT-13B/Chatbot", 1.38, pytest.approx(1.2)]
    assert found == json.loads((done / "adaptivellm.json").read_text())
    runs = QUICK.num_runs()
    assert ended.err.startswith(
        f"adaptivellm: {runs} simulated runs, {runs} of them done already; about 1 s in 1 process\n"
    )
    assert "Throughput (Table 3)" in ended.err
    assert f"wrote {done}; open {done / 'adaptivellm.html'}" in ended.err


def test_tables_plots_and_a_page_are_kept(headway: Headway, done: Path) -> None:
    assert headway("reproduce", "adaptivellm", "--quick", "--out", done).out == ""
    names = {path.name for path in done.iterdir()}
    assert {
        "adaptivellm.html",
        "adaptivellm.md",
        "claims.csv",
        "table3-vllm.csv",
        "fig4.csv",
        "fig3-opt-13b-chatbot.svg",
    } <= names
    page = (done / "adaptivellm.html").read_text()
    assert "simulated, A800 PCIe 80 GB" in page
    assert "1.38" in page


@pytest.mark.slow
def test_all_papers_have_a_folder_and_a_key_each(headway: Headway, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "data")
    folder = tmp_path / "adaptivellm"
    kept(folder, QUICK)
    (folder / "predictors-quick.json").write_bytes(msgspec.json.encode(PredictorErrors(reason="Not now.")))
    kept_of_fastserve(tmp_path / "fastserve", QUICK_OF_FASTSERVE)
    keep_all_of_magnus(tmp_path / "magnus", MagnusScope(source=find_data(data), quick=True))
    kept_of_ascendra(tmp_path / "ascendra", QUICK_OF_ASCENDRA)
    ended = headway("reproduce", "all", "--quick", "--json", "--out", tmp_path, "--data", data)
    assert list(json.loads(ended.out)) == ["adaptivellm", "ascendra", "fastserve", "magnus"]
    assert "Not now." in ended.err
    assert (folder / "adaptivellm.html").exists()
    assert (tmp_path / "fastserve" / "end-to-end-rate.svg").exists()
    assert json.loads((tmp_path / "magnus" / "magnus.json").read_text())["facts"]["data"].startswith("shared")


def test_what_is_not_accepted_is_named(refused: Refused, tmp_path: Path) -> None:
    assert refused("reproduce", "vidur") == (
        "error: paper is 'vidur'; accepted: adaptivellm, ascendra, fastserve, magnus, all\n"
    )
    assert "has no text/mt_en_zh.jsonl.gz" in refused("reproduce", "magnus", "--data", tmp_path)
    assert "--jobs is 0; accepted: 1 or more" in refused("reproduce", "adaptivellm", "--jobs", 0)
    (tmp_path / FILE).write_text("not a run\n")
    assert "holds something else than runs" in refused("reproduce", "adaptivellm", "--out", tmp_path)


LEFT = 12
"""Runs that are not done yet when the one to interrupt begins."""


def gone(group: int) -> bool:
    """Whether all processes of a group end, at the latest a moment after the first."""
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.engine
def test_interrupted_it_says_what_is_kept_and_leaves_no_process(done: Path, tmp_path: Path) -> None:
    # The last runs are the shortest: those before them are done already.
    before = (done / FILE).read_text().splitlines(keepends=True)[:-LEFT]
    (tmp_path / FILE).write_text("".join(before))
    command = [sys.executable, "-m", "headway.cli", "reproduce", "adaptivellm", "--quick", "--jobs", "2"]
    with subprocess.Popen(
        [*command, "--out", str(tmp_path)], stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        deadline_s = time.monotonic() + 60
        while len((tmp_path / FILE).read_text().splitlines()) == len(before):
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert f"interrupted: what is done is kept in {tmp_path}; the same command goes on" in err
    assert json.loads((tmp_path / FILE).read_text().splitlines()[len(before)])["result"]
    assert gone(process.pid)


def test_without_the_papers_package_it_says_how_to_install_it(
    refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.lab.papers.entry_points", lambda group: ())
    assert refused("reproduce", "all") == (
        "error: no paper is installed; the four of Headway come with: pip install ./reproduce, in a checkout\n"
    )
