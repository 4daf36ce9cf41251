"""What a request says of itself: latency targets, tenant, limit, in vLLM's `vllm_xargs`."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from headway.core.length_estimate import LengthEstimate
from headway.core.slo import MAX_TARGET_S, NO_TARGETS, Slo
from headway.errors import ConfigError

PREFIX = "headway_"
_TARGETS_MS = {
    "headway_ttft_ms": "ttft_s",
    "headway_tbt_ms": "tbt_s",
    "headway_deadline_ms": "deadline_s",
}
LENGTH = "headway_length"
"""By this a client, or whoever predicts for it, says how long the answer will be."""
_LENGTH_ENDS = ("headway_length_low", "headway_length_high")
"""What one answer in ten stays below, and one in ten exceeds."""
MAY_MOVE = "headway_may_move"
"""True where somebody stands in front who would send the request to another instance; else it is never handed off."""
MAX_TENANT_CHARACTERS = 128


@dataclass(frozen=True, slots=True)
class RequestHints:
    """A request's own targets (over the engine's defaults), tenant, declared limit and predicted length.

    `may_move`: another instance would take it, if this one gave it up before it started. Nobody would but a gateway,
    which says so; a client that asks the server itself would get an error for an answer.
    """

    slo: Slo = NO_TARGETS
    tenant: str = ""
    max_output_tokens: int | None = None
    predicted_length: LengthEstimate | None = None
    may_move: bool = False


def read_hints(extra_args: Mapping[str, Any] | None, default_slo: Slo = NO_TARGETS) -> RequestHints:
    """Hints from `sampling_params.extra_args`; keys that are not Headway's are left alone.

    Raises ConfigError for an unknown `headway_` key, a target that is not a positive number of
    milliseconds up to a week, a token count below 1, a tenant that is not a short string, or a `headway_may_move`
    that is neither true nor false.
    """
    if not extra_args:
        return RequestHints(slo=default_slo)
    given = {key: value for key, value in extra_args.items() if key.startswith(PREFIX)}
    if not given:
        return RequestHints(slo=default_slo)
    if not given.keys() <= _CHECKS.keys():
        unknown = ", ".join(sorted(given.keys() - _CHECKS.keys()))
        raise ConfigError(f"unknown {unknown} in vllm_xargs; accepted: {', '.join(sorted(_CHECKS))}")
    values = {key: _CHECKS[key](key, value) for key, value in given.items()}
    limit = values.get("headway_max_output_tokens")
    return RequestHints(
        slo=_targets(values, default_slo),
        tenant=values.get("headway_tenant", ""),
        max_output_tokens=None if limit is None else int(limit),
        predicted_length=_predicted_length(values),
        may_move=values.get(MAY_MOVE, False),
    )


def length_hints(estimate: LengthEstimate) -> dict[str, float]:
    """The hints that say this of a request's answer: what `read_hints` reads as the same estimate."""
    return dict(zip((LENGTH, *_LENGTH_ENDS), estimate.said_tokens, strict=True))


def _predicted_length(values: Mapping[str, Any]) -> LengthEstimate | None:
    """What the client, or whoever predicts for it, expects; an interval is both ends, around the value."""
    tokens = values.get(LENGTH)
    ends = [values.get(key) for key in _LENGTH_ENDS]
    if ends == [None, None]:
        return None if tokens is None else LengthEstimate.around(tokens)
    low, high = ends
    if tokens is None or low is None or high is None or not low <= tokens <= high:
        raise ConfigError(
            f"headway_length is {tokens}, {_LENGTH_ENDS[0]} {low} and {_LENGTH_ENDS[1]} {high}; accepted: the value "
            "alone, or with both ends, around it"
        )
    return LengthEstimate(tokens, low, high)


def _targets(values: Mapping[str, Any], default_slo: Slo) -> Slo:
    ttft_s, tbt_s, deadline_s = (values.get(key) for key in _TARGETS_MS)
    return _slo(ttft_s, tbt_s, deadline_s, default_slo)


@lru_cache(maxsize=4096)
def _slo(ttft_s: float | None, tbt_s: float | None, deadline_s: float | None, default: Slo) -> Slo:
    """Requests of a class name the same targets, so they share one object."""
    return Slo(
        ttft_s=default.ttft_s if ttft_s is None else ttft_s,
        tbt_s=default.tbt_s if tbt_s is None else tbt_s,
        deadline_s=default.deadline_s if deadline_s is None else deadline_s,
    )


def _target_s(key: str, value: Any) -> float:
    target_s = _number(key, value) / 1000
    if not 0 < target_s <= MAX_TARGET_S:
        raise ConfigError(
            f"{key} is {_quoted(value)}; accepted: milliseconds in (0, {MAX_TARGET_S * 1000:g}]"
        )
    return target_s


def _tokens(key: str, value: Any) -> float:
    number = _number(key, value)
    if not 1 <= number < 2**31:
        raise ConfigError(f"{key} is {_quoted(value)}; accepted: 1 or more tokens")
    return number


def _number(key: str, value: Any) -> float:
    try:
        if isinstance(value, bool):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"{key} is {_quoted(value)}; accepted: a number") from None


def _quoted(value: Any) -> str:
    """A value as a message shows it: cut short, since a client may send anything."""
    try:
        return reprlib.repr(value)
    except ValueError:  # an integer of more digits than Python turns into text
        return "a huge number"


def _tenant(key: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > MAX_TENANT_CHARACTERS:
        raise ConfigError(f"{key} is {_quoted(value)}; accepted: up to {MAX_TENANT_CHARACTERS} characters")
    return value


def _yes_or_no(key: str, value: Any) -> bool:
    """JSON's true and false reach us as 1 and 0: vLLM's `vllm_xargs` knows numbers and strings alone."""
    if not isinstance(value, bool | int | float) or value not in (0, 1):
        raise ConfigError(f"{key} is {_quoted(value)}; accepted: true or false")
    return bool(value)


_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(_TARGETS_MS, _target_s),
    **dict.fromkeys((LENGTH, *_LENGTH_ENDS), _tokens),
    "headway_max_output_tokens": _tokens,
    "headway_tenant": _tenant,
    MAY_MOVE: _yes_or_no,
}
"""Every accepted key, with what turns its value into ours or refuses it."""
