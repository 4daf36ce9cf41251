"""Targets, tenant and priority of a request, read from its HTTP headers and its body together.

The gateway and a single server both read them here, so that the same names mean the same in both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from headway.core.hints import (
    DEADLINE,
    MAY_MOVE,
    TBT,
    TENANT,
    TTFT,
    quoted,
    slo_of_ms,
    target_ms,
    tenant_name,
)
from headway.core.slo import NO_TARGETS, Slo
from headway.errors import HintError

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
"""Sign that turns the header's value into vLLM's: lower runs earlier."""

HINT_HEADERS = frozenset({*_TARGET_HEADERS, *_PRIORITY_HEADERS, _TENANT_HEADER})
"""Headers that are read here; the engine gets what they say in the body."""


class Hints(NamedTuple):
    """A request's own targets over the given defaults; `priority` is None if the request names none."""

    slo: Slo
    tenant: str
    priority: int | None
    may_move: bool


def hints_of_request(
    headers: Iterable[tuple[bytes, bytes]],
    xargs: Mapping[str, Any],
    priority: int | None,
    default_slo: Slo = NO_TARGETS,
) -> Hints:
    """What headers (with lower-case names) and body (`vllm_xargs`, `priority`) say together.

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
    return Hints(
        slo=default_slo if targets == (None, None, None) else slo_of_ms(*targets, default_slo),
        tenant=said.get(TENANT, ""),
        priority=said.get("priority"),
        may_move=bool(xargs.get(MAY_MOVE, True)),
    )


def header_text(value: bytes) -> str:
    """What a header says: UTF-8, as names come today and as aiohttp writes them, or else Latin-1."""
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
    """Note a value; raises HintError if another place said something else."""
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
