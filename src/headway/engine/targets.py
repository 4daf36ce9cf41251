"""What a request says of itself: latency targets, tenant, limit, in vLLM's `vllm_xargs`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headway.core.slo import NO_TARGETS, Slo
from headway.errors import ConfigError

PREFIX = "headway_"
_TARGETS_MS = {
    "headway_ttft_ms": "ttft_s",
    "headway_tbt_ms": "tbt_s",
    "headway_deadline_ms": "deadline_s",
}
_TOKENS = ("headway_length", "headway_max_output_tokens")
ACCEPTED = (*_TARGETS_MS, *_TOKENS, "headway_tenant")
MAX_TENANT_CHARACTERS = 128


@dataclass(frozen=True, slots=True)
class RequestHints:
    """A request's own targets (over the engine's defaults), tenant, declared limit and predicted length."""

    slo: Slo = NO_TARGETS
    tenant: str = ""
    max_output_tokens: int | None = None
    predicted_output_tokens: float | None = None


def read_hints(extra_args: Mapping[str, Any] | None, default_slo: Slo = NO_TARGETS) -> RequestHints:
    """Hints from `sampling_params.extra_args`; keys that are not Headway's are left alone.

    Raises ConfigError for an unknown `headway_` key, a target that is not a positive number of
    milliseconds up to a week, a token count below 1, or a tenant that is not a short string.
    """
    given = {key: value for key, value in (extra_args or {}).items() if key.startswith(PREFIX)}
    if not given:
        return RequestHints(slo=default_slo)
    unknown = sorted(set(given) - set(ACCEPTED))
    if unknown:
        raise ConfigError(f"unknown {', '.join(unknown)} in vllm_xargs; accepted: {', '.join(ACCEPTED)}")
    limit = _tokens(given, "headway_max_output_tokens")
    return RequestHints(
        slo=_targets(given, default_slo),
        tenant=_tenant(given.get("headway_tenant", "")),
        max_output_tokens=None if limit is None else int(limit),
        predicted_output_tokens=_tokens(given, "headway_length"),
    )


def _targets(given: Mapping[str, Any], default_slo: Slo) -> Slo:
    targets = {name: getattr(default_slo, name) for name in _TARGETS_MS.values()}
    for key, name in _TARGETS_MS.items():
        if key in given:
            targets[name] = _number(key, given[key]) / 1000
    try:
        return Slo(**targets)
    except ConfigError as error:
        asked = {key: given[key] for key in _TARGETS_MS if key in given}
        raise ConfigError(f"target out of range in {asked}: {error}") from None


def _tokens(given: Mapping[str, Any], key: str) -> float | None:
    if key not in given:
        return None
    number = _number(key, given[key])
    if not 1 <= number < 2**31:
        raise ConfigError(f"{key} is {given[key]!r}; accepted: 1 or more tokens")
    return number


def _number(key: str, value: Any) -> float:
    try:
        if isinstance(value, bool):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"{key} is {value!r}; accepted: a number") from None


def _tenant(value: Any) -> str:
    if not isinstance(value, str) or len(value) > MAX_TENANT_CHARACTERS:
        raise ConfigError(f"headway_tenant is {value!r}; accepted: up to {MAX_TENANT_CHARACTERS} characters")
    return value
