from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headway.errors import ConfigError
from headway.predict.recompute_rows import PrefillStep, load_rows, write_rows
from tests.predict.prefills import SIX, rows
from tests.predict.shapes import batch


def test_a_step_knows_its_shape_and_what_its_repetitions_share() -> None:
    step = PrefillStep(model="4x256", tokens=24, batch=3, seconds=0.01)
    assert step.shape() == batch((24, 0), (24, 0), (24, 0))
    assert step.configuration == ("4x256", 24, 3)


def test_a_file_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    written = rows(SIX[:2])
    write_rows(tmp_path / "new" / "rows.json", written)
    read = load_rows(tmp_path / "new" / "rows.json")
    assert read == written
    assert read.model("4x512").hidden_size == 512


def broken(change: dict[str, Any]) -> str:
    return json.dumps({"format": "headway-recompute-rows", "version": 1, **change})


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("no json", "is not a rows file"),
        ("[]", "is not a rows file"),
        (broken({"format": "headway-cost"}), "accepted: one that `headway profile --recompute-grid` wrote"),
        (broken({"version": 2}), "is not a rows file"),
        (broken({}), "missing required field"),
        (broken({"surprise": 1}), "surprise"),
        (broken({}).replace("{", '{"machine": "\xe9", ', 1), "is not a rows file"),
    ],
)
def test_what_is_not_such_a_file_is_refused(tmp_path: Path, content: str, complaint: str) -> None:
    path = tmp_path / "rows.json"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(ConfigError, match=complaint):
        load_rows(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_rows(tmp_path / "rows.json")


def test_steps_of_a_model_without_sizes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    write_rows(path, rows(SIX[:2]))
    content = json.loads(path.read_text())
    content["models"] = content["models"][:1]
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="has steps of '4x512', whose sizes it does not give"):
        load_rows(path)
