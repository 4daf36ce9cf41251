"""Settings that do not exist are refused: converters leave them out in silence."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from headway.errors import ConfigError


def check_keys(given: object, settings: type[Any], where: str) -> None:
    """Raise ConfigError for keys that a dataclass of settings does not have. What is no mapping is not looked at."""
    accepted = [field.name for field in fields(settings)]
    unknown = sorted(set(given) - set(accepted)) if isinstance(given, dict) else []
    if unknown:
        raise ConfigError(f"unknown {', '.join(unknown)} in {where}; accepted: {', '.join(accepted)}")
