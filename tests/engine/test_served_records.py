"""Records that an engine writes while it serves."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.config import ParallelConfig

from headway.core.record import Outcome
from headway.engine.model_free import replay
from headway.engine.step.endings import records_of
from headway.results import read_records
from tests.engine.scripts import HearingEngine, scheduler, stream
from tests.results.examples import make

FULL_DISK = Path("/dev/full")


def asking(path: Path, data_parallel: int = 1, index: int = 0) -> Any:
    """The part of a scheduler that is read."""
    parallel = SimpleNamespace(data_parallel_size=data_parallel, data_parallel_index=index)
    return SimpleNamespace(settings=SimpleNamespace(records=str(path)), parallel_config=parallel)


@pytest.mark.vllm
@pytest.mark.skipif(not FULL_DISK.exists(), reason="this system has no /dev/full")
def test_a_full_disk_costs_the_records_and_no_request(caplog: pytest.LogCaptureFixture) -> None:
    built, script = scheduler(records=str(FULL_DISK)), stream(10)
    with caplog.at_level(logging.ERROR, "headway"):
        for _ in replay(HearingEngine(built), script, 5_000):
            pass
    assert built.ledger.ended == {Outcome.FINISHED: len(script)}
    assert built.counters.unwritten_records == len(script)
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR] == [
        "/dev/full: cannot be written (No space left on device); accepted: a file that can, with room for it; "
        "no record is written from here on"
    ]
    built.shutdown()


def test_engines_side_by_side_write_a_file_each(tmp_path: Path) -> None:
    for index in range(2):
        records = records_of(asking(tmp_path / "served.jsonl", data_parallel=2, index=index))
        assert records is not None
        records.append(make(f"of {index}"))
        records.close()
        records.close()
    read = [read_records(tmp_path / f"served-dp{index}.jsonl")[0].id for index in range(2)]
    assert read == ["of 0", "of 1"]


def test_engines_of_a_dense_model_side_by_side_write_a_file_each(tmp_path: Path) -> None:
    for index in range(2):
        parallel = ParallelConfig(data_parallel_size=2, data_parallel_rank=index)
        parallel.reconfigure_for_independent_dp_rank()  # as vLLM does in each engine's process
        asked = SimpleNamespace(settings=asking(tmp_path / "served.jsonl").settings, parallel_config=parallel)
        records = records_of(asked)
        assert records is not None
        records.append(make(f"of {index}"))
        records.close()
    read = [read_records(tmp_path / f"{stem}.jsonl")[0].id for stem in ("served", "served-dp1")]
    assert read == ["of 0", "of 1"]


def test_one_engine_writes_the_file_that_is_named(tmp_path: Path) -> None:
    records = records_of(asking(tmp_path / "new" / "served.jsonl"))
    assert records is not None
    records.append(make())
    assert read_records(tmp_path / "new" / "served.jsonl") == [make()]
    records.close()


def test_nobody_asked_for_records() -> None:
    scheduled = asking(Path("unused"))
    scheduled.settings.records = None
    assert records_of(scheduled) is None
