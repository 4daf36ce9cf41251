"""Hints of a request (targets, tenant, program, limit) in vLLM's `vllm_xargs` and in HTTP headers."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import nan
from typing import Any, TypeVar

from headway.core.length_estimate import LengthEstimate
from headway.core.slo import MAX_TARGET_S, NO_TARGETS, Slo
from headway.errors import ConfigError, HintError

PREFIX = "headway_"
TTFT, TBT, DEADLINE = "headway_ttft_ms", "headway_tbt_ms", "headway_deadline_ms"
TENANT = "headway_tenant"
PROGRAM = "headway_program"
"""Names the agent program, session or conversation of which the request is a turn."""
AGENTIC_CONTEXT = "agentic_context"
"""vllm-router's extra argument for it: an object with `program_id`, or its JSON text."""
MAX_OUTPUT_TOKENS = "headway_max_output_tokens"
LENGTH = "headway_length"
"""The expected length of the answer, from a client or from a predictor on its behalf."""
_LENGTH_ENDS = ("headway_length_low", "headway_length_high")
"""One answer in ten is shorter than the first, one in ten longer than the second."""
OF_ANSWERS = frozenset({TBT, MAX_OUTPUT_TOKENS, LENGTH, *_LENGTH_ENDS})
"""Hints about the tokens after the first."""
MAY_MOVE = "headway_may_move"
"""True if a gateway would send the request to another instance; otherwise it is never handed off."""
WAITING_ELSEWHERE = "headway_waiting_elsewhere"
"""A gateway's report on the other instances: prompt tokens that wait at each, as `1200,0`."""
MAX_TENANT_CHARACTERS = 128
MAX_PROGRAM_CHARACTERS = 256
_MOST_INSTANCES, _MOST_DIGITS = 10_000, 16


@dataclass(frozen=True, slots=True)
class RequestHints:
    """A request's targets (with defaults filled in), tenant, program, limit, predicted length and priority.

    `may_move`: the request would be served elsewhere if this instance gave it up. Only a gateway says so; a client that
    asks the server directly would get an error instead of an answer. `waiting_elsewhere` are the prompt tokens that
    wait at each other instance; None if unknown. `priority` is None if the request names none, or if it stands beside
    the hints.
    """

    slo: Slo = NO_TARGETS
    tenant: str = ""
    program: str | None = None
    max_output_tokens: int | None = None
    predicted_length: LengthEstimate | None = None
    may_move: bool = False
    waiting_elsewhere: tuple[int, ...] | None = None
    priority: int | None = None


def read_hints(extra_args: Mapping[str, Any] | None, default_slo: Slo = NO_TARGETS) -> RequestHints:
    """Read hints from `sampling_params.extra_args`; keys of other products are ignored.

    Raises ConfigError for an unknown `headway_` key, a target that is not a positive number of milliseconds up to a
    week, a token count below 1, a tenant or program that is no short text, a `headway_may_move` that is neither true
    nor false, or a `headway_waiting_elsewhere` that is no list of tokens.
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
    limit = values.get(MAX_OUTPUT_TOKENS)
    return RequestHints(
        slo=slo_of_ms(values.get(TTFT), values.get(TBT), values.get(DEADLINE), default_slo),
        tenant=values.get(TENANT, ""),
        program=values.get(PROGRAM) or None,
        max_output_tokens=None if limit is None else int(limit),
        predicted_length=_predicted_length(values),
        may_move=values.get(MAY_MOVE, False),
        waiting_elsewhere=values.get(WAITING_ELSEWHERE),
    )


def elsewhere_hint(tokens: Sequence[int]) -> dict[str, str]:
    """The hint with what waits at each other instance; empty if there is no other."""
    return {WAITING_ELSEWHERE: ",".join(map(str, tokens))} if tokens else {}


def target_hints(slo: Slo) -> dict[str, float]:
    """The hints for these targets; none for a target that is not set."""
    targets_s = {TTFT: slo.ttft_s, TBT: slo.tbt_s, DEADLINE: slo.deadline_s}
    return {key: target_s * 1000 for key, target_s in targets_s.items() if target_s is not None}


def length_hints(estimate: LengthEstimate) -> dict[str, float]:
    """The hints for a predicted length: `read_hints` turns them into the same estimate."""
    return dict(zip((LENGTH, *_LENGTH_ENDS), estimate.said_tokens, strict=True))


def _predicted_length(values: Mapping[str, Any]) -> LengthEstimate | None:
    """The expected length from a client or a predictor; an interval needs both ends, around the value."""
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


@lru_cache(maxsize=4096)
def slo_of_ms(ttft_ms: float | None, tbt_ms: float | None, deadline_ms: float | None, default: Slo) -> Slo:
    """Targets in milliseconds, over the defaults. Cached, so that requests of a class share one object."""
    seconds = (
        None if target_ms is None else target_ms / 1000 for target_ms in (ttft_ms, tbt_ms, deadline_ms)
    )
    return Slo(*seconds).with_defaults(default)


def target_ms(where: str, value: Any) -> float:
    """A client's target, a number or its text, in milliseconds. Raises HintError, naming `where` it stood."""
    number = _number(value)
    if not 0 < number / 1000 <= MAX_TARGET_S:  # in seconds, where the smallest numbers become 0
        accepted = f"milliseconds in (0, {MAX_TARGET_S * 1000:g}]"
        raise HintError(where, f"{where} is {quoted(value)}; accepted: {accepted}")
    return number


def _tokens(key: str, value: Any) -> float:
    number = _number(value)
    if not 1 <= number < 2**31:
        raise ConfigError(f"{key} is {quoted(value)}; accepted: 1 or more tokens")
    return number


def _number(value: Any) -> float:
    """A number or the text of one; NaN, which is in no range, for anything else."""
    try:
        return nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return nan


def quoted(value: Any) -> str:
    """A value as an error shows it, shortened, since a client may send anything."""
    try:
        return reprlib.repr(value)
    except ValueError:  # an integer with more digits than Python converts to text
        return "a huge number"


def tenant_name(where: str, value: Any) -> str:
    """A client's tenant. Raises HintError, naming `where` it stood."""
    return _short_text(where, value, MAX_TENANT_CHARACTERS)


def program_name(where: str, value: Any) -> str:
    """A client's agent program. Raises HintError, naming `where` it stood."""
    return _short_text(where, value, MAX_PROGRAM_CHARACTERS)


def _short_text(where: str, value: Any, most: int) -> str:
    if not isinstance(value, str) or len(value) > most or not value.isprintable():
        raise HintError(where, f"{where} is {quoted(value)}; accepted: up to {most} printable characters")
    return value


def _yes_or_no(key: str, value: Any) -> bool:
    """JSON's true and false arrive as 1 and 0: vLLM's `vllm_xargs` accepts only numbers and strings."""
    if not isinstance(value, bool | int | float) or value not in (0, 1):
        raise ConfigError(f"{key} is {quoted(value)}; accepted: true or false")
    return bool(value)


def _token_counts(key: str, value: Any) -> tuple[int, ...]:
    """Token counts in one text: vLLM would accept a list, but its Rust front end would not."""
    parts = value.split(",", _MOST_INSTANCES) if isinstance(value, str) else ("",)
    if not all(part.isascii() and part.isdigit() and len(part) < _MOST_DIGITS for part in parts):
        raise ConfigError(f"{key} is {quoted(value)}; accepted: tokens at each instance, as '1200,0'")
    return tuple(map(int, parts))


_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys((TTFT, TBT, DEADLINE), target_ms),
    **dict.fromkeys((LENGTH, *_LENGTH_ENDS), _tokens),
    MAX_OUTPUT_TOKENS: _tokens,
    TENANT: tenant_name,
    PROGRAM: program_name,
    MAY_MOVE: _yes_or_no,
    WAITING_ELSEWHERE: _token_counts,
}
"""Every accepted key -> the function that converts its value or refuses it."""


T = TypeVar("T")

_MAX_PRIORITY = 2**63 - 1

_TARGET_HEADERS = {
    prefix + name: key
    for prefix in (b"x-slo-", b"x-llm-d-slo-")
    for name, key in (
        (b"ttft-ms", TTFT),
        (b"tpot-ms", TBT),
        (b"tbt-ms", TBT),
        (b"deadline-ms", DEADLINE),
    )
}
_TENANT_HEADER = b"x-tenant"
PRIORITY_HEADER = "x-vllm-priority"
_PRIORITY_HEADERS = {PRIORITY_HEADER.encode(): 1, b"x-dynamo-request-priority": -1}
"""The sign that converts the header's value into vLLM's: lower runs earlier."""

HINT_HEADERS = frozenset({*_TARGET_HEADERS, *_PRIORITY_HEADERS, _TENANT_HEADER})
"""Headers that are read here; the engine gets their contents in the body."""


def hints_of_request(
    headers: Iterable[tuple[bytes, bytes]],
    xargs: Mapping[str, Any],
    priority: int | None,
    default_slo: Slo = NO_TARGETS,
) -> RequestHints:
    """The hints of headers (with lower-case names) and body (`vllm_xargs`, `priority`) together.

    Raises HintError for a value that is not accepted, and for two places that disagree.
    """
    said: dict[str, Any] = {}
    for name, value in headers:
        if name in HINT_HEADERS:
            _read_header(said, name, header_text(value).strip())
    for key in (TTFT, TBT, DEADLINE):
        if key in xargs:
            _agree(said, key, target_ms(key, xargs[key]), key)
    if TENANT in xargs:
        _agree(said, TENANT, tenant_name(TENANT, xargs[TENANT]), TENANT)
    if priority is not None:
        _agree(said, "priority", priority, "priority")
    targets = (said.get(TTFT), said.get(TBT), said.get(DEADLINE))
    return RequestHints(
        slo=default_slo if targets == (None, None, None) else slo_of_ms(*targets, default_slo),
        tenant=said.get(TENANT, ""),
        priority=said.get("priority"),
        may_move=bool(xargs.get(MAY_MOVE, True)),
    )


def header_text(value: bytes) -> str:
    """A header's text: UTF-8, as names come today and as aiohttp writes them, else Latin-1."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _read_header(said: dict[str, Any], name: bytes, value: str) -> None:
    where = name.decode()
    if name in _TARGET_HEADERS:
        _agree(said, _TARGET_HEADERS[name], target_ms(where, value), where)
    elif name == _TENANT_HEADER:
        _agree(said, TENANT, tenant_name(where, value), where)
    else:
        _agree(said, "priority", _PRIORITY_HEADERS[name] * _priority(value, where), where)


def _agree(said: dict[str, T], key: str, value: T, where: str) -> None:
    """Record a value. Raises HintError if another place said something else."""
    known = said.setdefault(key, value)
    if known != value:
        raise HintError(
            where,
            f"{where} says {quoted(value)} where another header or the body says {quoted(known)}; accepted: one value",
        )


def _priority(value: str, where: str) -> int:
    try:
        number = int(value)
    except ValueError:
        number = _MAX_PRIORITY + 1
    if abs(number) > _MAX_PRIORITY:
        raise HintError(where, f"{where} is {quoted(value)}; accepted: a whole number")
    return number
