"""What a request says of itself beside its text: targets, tenant and priority, in headers and in the body."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from headway.core.slo import MAX_TARGET_S, NO_TARGETS, Slo
from headway.gateway.refusal import bad_request

T = TypeVar("T")

TTFT, TBT, DEADLINE = "headway_ttft_ms", "headway_tbt_ms", "headway_deadline_ms"
TENANT = "headway_tenant"
MAY_MOVE = "headway_may_move"
MAX_TENANT_CHARACTERS = 128
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
_PRIORITY_HEADERS = {b"x-vllm-priority": 1, b"x-dynamo-request-priority": -1}
"""Sign that turns the header's value into vLLM's: lower runs earlier."""

HINT_HEADERS = frozenset({*_TARGET_HEADERS, *_PRIORITY_HEADERS, _TENANT_HEADER})
"""Headers that are read here and go no further: the instance gets what they say in the body."""


class Hints(NamedTuple):
    """A request's own targets over the gateway's defaults; priority None if it names none."""

    slo: Slo
    tenant: str
    priority: int | None
    may_move: bool


def read_hints(
    headers: Iterable[tuple[bytes, bytes]],
    xargs: Mapping[str, Any],
    priority: int | None,
    default_slo: Slo = NO_TARGETS,
) -> Hints:
    """What headers and body (`vllm_xargs`, `priority`) say together.

    Raises Refusal (400) for a value that is not accepted, or two places that disagree.
    """
    said: dict[str, Any] = {}
    for name, value in headers:
        if name in HINT_HEADERS:
            _read_header(said, name, value.decode("latin-1").strip())
    for key in (TTFT, TBT, DEADLINE):
        if key in xargs:
            _agree(said, key, _milliseconds(xargs[key], key), key)
    if TENANT in xargs:
        _agree(said, TENANT, _tenant(xargs[TENANT], TENANT), TENANT)
    if priority is not None:
        _agree(said, "priority", priority, "priority")
    targets = (said.get(TTFT), said.get(TBT), said.get(DEADLINE))
    return Hints(
        slo=default_slo if targets == (None, None, None) else _slo(*targets, default_slo),
        tenant=said.get(TENANT, ""),
        priority=said.get("priority"),
        may_move=bool(xargs.get(MAY_MOVE, True)),
    )


def _read_header(said: dict[str, Any], name: bytes, value: str) -> None:
    where = name.decode()
    if name in _TARGET_HEADERS:
        _agree(said, _TARGET_HEADERS[name], _milliseconds(value, where), where)
    elif name == _TENANT_HEADER:
        _agree(said, TENANT, _tenant(value, where), where)
    else:
        _agree(said, "priority", _PRIORITY_HEADERS[name] * _priority(value, where), where)


def _agree(said: dict[str, T], key: str, value: T, where: str) -> None:
    """Note a value; raises Refusal if another place said something else."""
    known = said.setdefault(key, value)
    if known != value:
        raise bad_request(
            f"{where} says {value!r} where another header or the body says {known!r}; accepted: one value",
            where,
        )


def _milliseconds(value: Any, where: str) -> float:
    """Milliseconds from a header or the body."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = 0.0
    if not 0 < number / 1000 <= MAX_TARGET_S:  # as seconds, where the smallest numbers become 0
        raise bad_request(
            f"{where} is {_shown(value)}; accepted: milliseconds in (0, {MAX_TARGET_S * 1000:g}]", where
        )
    return number


def _tenant(value: Any, where: str) -> str:
    if not isinstance(value, str) or len(value) > MAX_TENANT_CHARACTERS or not value.isprintable():
        raise bad_request(
            f"{where} is {_shown(value)}; accepted: up to {MAX_TENANT_CHARACTERS} printable characters", where
        )
    return value


def _priority(value: str, where: str) -> int:
    try:
        number = int(value)
    except ValueError:
        number = _MAX_PRIORITY + 1
    if abs(number) > _MAX_PRIORITY:
        raise bad_request(f"{where} is {_shown(value)}; accepted: a whole number", where)
    return number


def _shown(value: Any) -> str:
    """A value as a message shows it: cut short, since a client may send anything."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


@lru_cache(maxsize=4096)
def _slo(ttft_ms: float | None, tbt_ms: float | None, deadline_ms: float | None, default: Slo) -> Slo:
    """Requests of a class name the same targets, so they share one object."""
    return Slo(
        ttft_s=default.ttft_s if ttft_ms is None else ttft_ms / 1000,
        tbt_s=default.tbt_s if tbt_ms is None else tbt_ms / 1000,
        deadline_s=default.deadline_s if deadline_ms is None else deadline_ms / 1000,
    )
