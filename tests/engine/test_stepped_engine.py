"""Why an engine that is stepped by hand does not start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.engine.settings import EngineSettings
from headway.engine.stepped_engine import start_core
from headway.errors import ConfigError
from headway.traces.demo_tasks import demo_directory

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--quantization", "awq"], "Cannot find the config file for awq"),
        (["--tensor-parallel-size", "0"], "tensor_parallel_size: Input should be greater than or equal to 1"),
    ],
)
def test_a_configuration_that_vllm_refuses_is_told_with_its_reason(flags: list[str], reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        start_core("demo-random", flags, EngineSettings())
    assert str(refused.value) == f"vLLM does not start with model 'demo-random': {reason}"


def test_a_folder_without_a_model_is_told_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=f"does not start with model .*: Invalid repository.*: '{tmp_path}'"
    ):
        start_core(str(tmp_path), [], EngineSettings())


def test_a_model_that_vllm_falls_over_is_refused_in_a_line(tmp_path: Path) -> None:
    config = json.loads((demo_directory() / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_attention_heads": 0}))
    with pytest.raises(ConfigError, match=r"^vLLM does not start with model .+: ZeroDivisionError: "):
        start_core(str(tmp_path), [], EngineSettings())
