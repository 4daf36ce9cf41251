"""vLLM's engine core in this process, where it does not start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.engine.stepped_engine import SteppedEngine
from headway.errors import ConfigError
from headway.traces.demo_tasks import demo_directory

pytestmark = pytest.mark.vllm


def test_a_model_that_vllm_falls_over_is_refused_in_a_line(tmp_path: Path) -> None:
    config = json.loads((demo_directory() / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_attention_heads": 0}))
    with pytest.raises(ConfigError, match=r"^vLLM does not start with model .+: ZeroDivisionError: "):
        SteppedEngine(str(tmp_path))
