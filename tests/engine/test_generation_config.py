"""The longest answers of requests that set no limit: read as vLLM reads it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.engine.servers.generation_config import NO_LIMIT, answer_limit


@pytest.mark.parametrize(
    ("flags", "limit"),
    [
        ((), 512),
        (("--generation-config", "auto"), 512),
        (("--generation-config", "vllm"), NO_LIMIT),
        (("--override-generation-config", '{"max_new_tokens": 64}'), 64),
        (("--override-generation-config", '{"temperature": 0}'), 512),
        (("--override-generation-config", "nonsense"), None),
    ],
)
def test_the_limit_follows_the_flags(tmp_path: Path, flags: tuple[str, ...], limit: int | None) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"max_new_tokens": 512}))
    assert answer_limit(str(tmp_path), flags) == limit


@pytest.mark.parametrize(("text", "limit"), [(None, NO_LIMIT), ("{}", NO_LIMIT), ("{", None), ("[]", None)])
def test_a_folder_that_sets_none_has_none(tmp_path: Path, text: str | None, limit: int | None) -> None:
    if text is not None:
        (tmp_path / "generation_config.json").write_text(text)
    assert answer_limit(str(tmp_path), ()) == limit


def test_a_model_whose_files_are_not_here_is_not_known() -> None:
    assert answer_limit("no-such-owner/no-such-model", ()) is None
