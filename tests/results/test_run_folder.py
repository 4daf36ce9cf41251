import json
import logging
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import ConfigError, RecordError
from headway.results import (
    Run,
    RunInfo,
    RunMeta,
    forget_run_without_records,
    has_run,
    load_folder,
    read_run,
    read_runs,
    record_writer,
    start_run,
    write_info,
)
from headway.results.run_folder import INFO_SUFFIX, RECORDS_SUFFIX, run_file, seed_folder

from .examples import make, worked_run

META = RunMeta(
    policies=("vllm", "headway"),
    measured_on="real engine",
    model="demo",
    trace="bursts.csv",
    command="headway bench --model demo",
    hardware="2 cores",
    versions={"headway": "0.1.0", "vllm": "0.32.0"},
)


def write_run(folder: Path, *policies: str, meta: RunMeta = META) -> Path:
    """A run in which these policies got as far as having records."""
    start_run(folder, meta)
    for policy in policies:
        with record_writer(folder, policy) as writer:
            for record in worked_run():
                writer.append(record)
    return folder


def test_a_run_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "new" / "run", "headway", "vllm")
    info = RunInfo(scheduler_us_per_step=12.5, swapped_in_blocks=3)
    write_info(folder, "headway", info)
    run = read_run(folder)
    assert run == Run(
        folder=folder,
        meta=META,
        records={"vllm": worked_run(), "headway": worked_run()},
        infos={"vllm": RunInfo(), "headway": info},
    )
    assert list(run.records) == ["vllm", "headway"]  # the order of run.json, not of the folder
    assert read_runs(folder) == [run]


def test_the_layout_is_the_documented_one(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "vllm", "headway")
    write_info(folder, "vllm", RunInfo())
    assert sorted(path.name for path in folder.iterdir()) == [
        "headway.records.jsonl",
        "run.json",
        "vllm.records.jsonl",
        "vllm.summary.json",
    ]
    meta = json.loads((folder / "run.json").read_text())
    assert meta["policies"] == ["vllm", "headway"]
    assert meta["measured_on"] == "real engine"
    assert meta["load"] is None


def test_policies_that_were_not_reached_are_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_run(tmp_path, "vllm")
    record_writer(folder, "headway").close()  # stopped before its first request ended
    with caplog.at_level(logging.WARNING):
        assert list(read_run(folder).records) == ["vllm"]
    assert caplog.messages == [f"{folder}: no records of headway; left out"]
    run_file(folder, "headway", RECORDS_SUFFIX).write_text('{"id"')  # stopped while that was written
    assert list(read_run(folder).records) == ["vllm"]


def test_what_records_do_not_hold_is_never_half_written(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "vllm")
    write_info(folder, "vllm", RunInfo(swapped_in_blocks=1))
    with run_file(folder, "vllm", INFO_SUFFIX).open() as begun:
        write_info(folder, "vllm", RunInfo(swapped_in_blocks=2))
        assert json.load(begun)["swapped_in_blocks"] == 1
    assert read_run(folder).infos["vllm"].swapped_in_blocks == 2


def test_records_alone_are_a_run_too(tmp_path: Path) -> None:
    for policy in ("b", "a"):
        with record_writer(tmp_path, policy) as writer:
            writer.append(make())
    run = read_run(tmp_path)
    assert list(run.records) == ["a", "b"]
    assert run.meta == RunMeta()


def test_a_policy_added_by_hand_comes_last(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "vllm", "headway", "baseline")
    assert list(read_run(folder).records) == ["vllm", "headway", "baseline"]


@settings(deadline=None)  # writes files
@given(
    policy=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
    | st.sampled_from([".", "..", "a/b", "../x", "noisy-oracle tau=0.3", "50%", "%2e", "<b>"])
)
def test_any_policy_name_is_a_file_name(policy: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("run")
    write_run(folder, policy, meta=RunMeta(policies=(policy,)))
    write_info(folder, policy, RunInfo(swapped_in_blocks=1))
    run = read_run(folder)
    assert list(run.records) == [policy]
    assert run.infos[policy].swapped_in_blocks == 1
    assert len(list(folder.iterdir())) == 3


def test_a_sweep_is_read_in_rising_order_of_load(tmp_path: Path) -> None:
    for load in (1.2, 0.5, 10.0):
        write_run(load_folder(tmp_path, load), "vllm", "headway")
    runs = read_runs(tmp_path)
    assert [run.meta.load for run in runs] == [0.5, 1.2, 10.0]
    assert {run.folder for run in runs} == {tmp_path}
    assert (tmp_path / "load=1.2" / "run.json").exists()


def test_repeated_sweeps_are_read_seed_by_seed(tmp_path: Path) -> None:
    for seed in (10, 2):
        for load in (1.0, 0.5):
            write_run(load_folder(seed_folder(tmp_path, seed), load), "vllm")
    runs = read_runs(tmp_path)
    assert [(run.folder.name, run.meta.load) for run in runs] == [
        ("seed=2", 0.5),
        ("seed=2", 1.0),
        ("seed=10", 0.5),
        ("seed=10", 1.0),
    ]


def test_what_a_stopped_sweep_did_not_reach_is_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for seed in (0, 1):
        for load in (0.5, 1.0):
            start_run(load_folder(seed_folder(tmp_path, seed), load), META)
    with pytest.raises(RecordError, match=r"seed=0/load=0.5: no records in it"):
        read_runs(tmp_path)
    with record_writer(load_folder(seed_folder(tmp_path, 0), 0.5), "vllm") as writer:
        writer.append(make())
    with caplog.at_level(logging.WARNING):
        assert [(run.folder.name, run.meta.load) for run in read_runs(tmp_path)] == [("seed=0", 0.5)]
    assert [message.removeprefix(f"{tmp_path}/") for message in caplog.messages] == [
        "seed=1: no records; left out",
        "seed=0/load=1: no records; left out",
        "seed=0/load=0.5: no records of headway; left out",
    ]


def test_a_seed_is_a_number(tmp_path: Path) -> None:
    write_run(tmp_path / "seed=x", "vllm")
    with pytest.raises(RecordError, match="no seed in its name; accepted: seed=<number>"):
        read_runs(tmp_path)


def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "vllm")
    with pytest.raises(ConfigError, match="holds a run already"):
        start_run(folder, META)


def test_records_alone_are_never_overwritten_but_by_a_run_that_goes_on(tmp_path: Path) -> None:
    with record_writer(tmp_path, "vllm") as writer:
        writer.append(make())
    with pytest.raises(ConfigError, match="holds a run already"):
        start_run(tmp_path, META)
    start_run(tmp_path, META, goes_on=True)
    start_run(tmp_path, META, goes_on=True)
    assert read_run(tmp_path).records == {"vllm": [make()]}


def test_a_run_without_a_record_is_forgotten_and_no_other(tmp_path: Path) -> None:
    start_run(tmp_path, META)
    run_file(tmp_path, "vllm", RECORDS_SUFFIX).touch()
    forget_run_without_records(tmp_path)
    assert not has_run(tmp_path)
    folder = write_run(tmp_path, "vllm")
    forget_run_without_records(folder)
    assert has_run(folder)


@pytest.mark.parametrize("of_a_sweep", [load_folder(Path(), 0.5), seed_folder(Path(), 1)])
def test_a_run_is_not_put_beside_a_sweep_where_nobody_would_read_it(tmp_path: Path, of_a_sweep: Path) -> None:
    write_run(tmp_path / of_a_sweep, "vllm")
    with pytest.raises(ConfigError, match="holds a sweep; accepted: another folder"):
        start_run(tmp_path, META)


@pytest.mark.parametrize("policies", [("vllm", "vllm"), ("",)])
def test_policies_have_different_names(tmp_path: Path, policies: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="accepted: different names, none empty"):
        start_run(tmp_path, RunMeta(policies=policies))


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        start_run(tmp_path / "file" / "run", META)
    with pytest.raises(ConfigError, match="cannot be written"):
        write_info(tmp_path / "file", "vllm", RunInfo())


def test_a_missing_folder_a_file_and_an_empty_folder_are_errors(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    start_run(tmp_path / "started", META)
    for name, says in {
        "nowhere": "does not exist",
        "file": "is a file",
        "empty": "no records in it",
        "started": "no records in it",
    }.items():
        with pytest.raises(RecordError, match=says) as caught:
            read_runs(tmp_path / name)
        assert str(caught.value).startswith(str(tmp_path / name))


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("run.json", "{", "run.json: Input data was truncated"),
        ("run.json", '{"measured_on": "guessed"}', "Invalid enum value 'guessed'"),
        ("run.json", '{"modell": "demo"}', "unknown field `modell`"),
        ("run.json", '{"policies": "vllm"}', r"Expected `array`"),
        ("vllm.summary.json", '{"scheduler_us_per_step": "fast"}', r"\$.scheduler_us_per_step"),
        ("vllm.summary.json", "\udcff", "vllm.summary.json: "),
        ("vllm.records.jsonl", "no record\n", "vllm.records.jsonl, line 1"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, name: str, text: str, says: str) -> None:
    folder = write_run(tmp_path, "vllm", "headway")
    (folder / name).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(RecordError, match=says):
        read_run(folder)


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "vllm", "headway")
    (folder / "vllm.summary.json").mkdir()
    with pytest.raises(RecordError, match=r"vllm.summary.json: cannot be read \(Is a directory\)"):
        read_run(folder)


@pytest.mark.parametrize("name", ["load=", "load=high", "load=nan", "load=inf"])
def test_a_load_is_a_number(tmp_path: Path, name: str) -> None:
    write_run(tmp_path / name, "vllm")
    with pytest.raises(RecordError, match="accepted: load=<number>"):
        read_runs(tmp_path)
