"""The default limit of an answer's length, read from a model's generation config as vLLM reads it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from headway.engine.servers.vllm_flags import parse_vllm_flags, value_of

NO_LIMIT = 2**31 - 1
_FILE = "generation_config.json"


def answer_limit(model: str, vllm_flags: Sequence[str]) -> int | None:
    """`max_new_tokens` of the model under these flags; NO_LIMIT if there is none, None if unknown.

    Unknown means that the model's files are not on this machine yet.
    """
    flags = parse_vllm_flags(vllm_flags)
    try:
        override = json.loads(value_of(flags, "--override-generation-config") or "{}")
        if isinstance(override, dict) and "max_new_tokens" in override:
            return int(override["max_new_tokens"])
        source = value_of(flags, "--generation-config") or "auto"
        if source == "vllm":
            return NO_LIMIT
        text = _text(model if source == "auto" else source)
        limit = None if text is None else json.loads(text or "{}").get("max_new_tokens") or NO_LIMIT
        return None if limit is None else int(limit)
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _text(model: str) -> str | None:
    """The file's text: empty if the model has none, None if that is unknown."""
    if Path(model).is_dir():
        found = Path(model) / _FILE
        return found.read_text(encoding="utf-8") if found.exists() else ""
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(model, _FILE)
    return Path(cached).read_text(encoding="utf-8") if isinstance(cached, str) else None
