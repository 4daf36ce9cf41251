from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.errors import ConfigError
from headway.predict.models.known_models import model_shape
from headway.predict.steps.calibration import CostFile, load_cost_file, measured_step, write_cost_file
from headway.predict.steps.copies import TransferModel
from headway.predict.steps.fitting import Errors
from headway.predict.steps.hardware import calibration
from headway.predict.steps.law import Curve, StepTimeFit, StepTimeLaw
from tests.predict.shapes import batch, decodes

COST = CostFile(
    machine="desk",
    model="demo",
    dtype="bfloat16",
    vllm_version="0.32.0",
    measured_on="a Monday",
    step=StepTimeFit(
        law=StepTimeLaw(
            tokens=Curve(knots=(0, 16, 32), seconds=(0.005, 0.005, 0.007)),
            jobs=Curve(knots=(0, 1), seconds=(0.0, 0.0001)),
            decode_context_s=1e-7,
            prefill_context_s=0.0,
            prefill_pair_s=1e-8,
        ),
        num_rows=100,
        held_out=Errors(num_rows=20, median_error=0.02, p90_error=0.05, residuals=(0.9, 1.0, 1.2)),
    ),
    host_s=0.0004,
    to_host=TransferModel(start_s=1e-5, bytes_per_s=8e9),
    to_device=TransferModel(start_s=2e-5, bytes_per_s=9e9),
    kv_bytes_per_token=4096,
    kv_capacity_tokens=50_000,
    block_size=16,
    rows=(measured_step(batch((5, 3), (1, 9)), 0.006),),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "costs" / "desk.json"
    write_cost_file(path, COST)
    return path


def test_what_was_written_is_read_back(path: Path) -> None:
    assert load_cost_file(path) == COST
    assert list(path.parent.iterdir()) == [path]


def test_a_calibration_carries_the_file(path: Path) -> None:
    found = load_cost_file(path).calibration()
    assert (found.name, found.derived, found.residuals) == ("desk", False, (0.9, 1.0, 1.2))
    assert found.step.step_s(decodes(2, 9)) == COST.step.law.step_s(decodes(2, 9)) > 0
    assert (found.kv_capacity_tokens, found.host_s, found.to_device) == (50_000, 0.0004, COST.to_device)
    assert "100 steps" in found.provenance
    assert "2.0% median" in found.provenance


def edited(path: Path, edit: Callable[[dict[str, Any]], object]) -> Path:
    raw = json.loads(path.read_text())
    edit(raw)
    path.write_text(json.dumps(raw))
    return path


@pytest.mark.parametrize(("edit", "says"), [
    (lambda raw: raw.update(version=99), "version 99"),
    (lambda raw: raw.update(format="else"), "not a cost file"),
    (lambda raw: raw.update(colour="red"), "colour"),
    (lambda raw: raw["to_host"].update(colour="red"), "colour"),
    (lambda raw: raw["step"]["law"].update(colour="red"), "colour"),
    (lambda raw: raw.update(host_s="long"), "host_s"),
    (lambda raw: raw.pop("machine"), "machine"),
    (lambda raw: raw["step"]["law"]["tokens"].update(knots=[3, 4, 5]), "knots"),
    (lambda raw: raw["step"]["law"]["tokens"].update(seconds=[0.2, 0.1, 0.3]), "0 or more and not fall"),
    (lambda raw: raw["step"]["law"]["jobs"].update(seconds=[-1, 0]), "0 or more and not fall"),
    (lambda raw: raw["step"]["law"].update(prefill_pair_s=-1), ">= 0.0 - at `$.step.law.prefill_pair_s`"),
    (lambda raw: raw["step"]["held_out"].update(residuals=[]), "length >= 1 - at `$.step.held_out.residuals`"),
    (lambda raw: raw["step"]["held_out"].update(residuals=[0]), "> 0.0 - at `$.step.held_out.residuals[0]`"),
    (lambda raw: raw["to_host"].update(bytes_per_s=0), "> 0.0 - at `$.to_host.bytes_per_s`"),
    (lambda raw: raw.update(host_s=-1), ">= 0.0 - at `$.host_s`"),
    (lambda raw: raw.update(block_size=0), ">= 1 - at `$.block_size`"),
])  # fmt: skip
def test_a_bad_file_is_an_error_that_says_why(
    path: Path, edit: Callable[[dict[str, Any]], object], says: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        load_cost_file(edited(path, edit))


def test_a_file_that_is_missing_or_no_json_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_cost_file(tmp_path / "none.json")
    for content in (b"hello", b'{"machine": "\xe9"}'):
        (tmp_path / "text.json").write_bytes(content)
        with pytest.raises(ConfigError, match="not JSON"):
            load_cost_file(tmp_path / "text.json")


def test_a_failed_write_leaves_the_old_file(path: Path) -> None:
    broken = replace(COST.step, num_rows=object())  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        write_cost_file(
            path, CostFile(**{**{f: getattr(COST, f) for f in COST.__struct_fields__}, "step": broken})
        )
    assert load_cost_file(path) == COST
    assert list(path.parent.iterdir()) == [path]


def test_a_cost_file_is_hardware(path: Path) -> None:
    demo = model_shape("demo")
    assert calibration(str(path), demo).step.step_s(decodes(1, 0)) > 0
    assert calibration(str(path), demo).model == demo


def test_a_cost_file_of_another_model_or_size_is_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match="measured with demo"):
        calibration(str(path), model_shape("Llama-3.1-8B"))
    with pytest.raises(ConfigError, match="on 2"):
        calibration(str(path), model_shape("demo"), 2)


def test_local_without_a_file_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match="headway profile"):
        calibration("local", model_shape("demo"))
