"""The flags in a file of vLLM's `--config`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from headway.errors import ConfigError


def read_config_file(path: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each flag with its values, as vLLM will take them from the file. Raises ConfigError if it is not one of flags."""
    try:
        told = msgspec.yaml.decode(Path(path).read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"--config {path} cannot be read ({error})") from None
    if not isinstance(told, dict):
        raise ConfigError(
            f"--config {path} holds no flags; accepted: YAML with a line `flag: value` for each"
        )
    for key, value in told.items():
        yield f"--no-{key}" if value is False else f"--{key}", _words(value)


def _words(value: Any) -> tuple[str, ...]:
    if isinstance(value, bool):
        return ()
    if isinstance(value, list):
        return tuple(map(str, value))
    return (json.dumps(value) if isinstance(value, dict) else str(value),)
