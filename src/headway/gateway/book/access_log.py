"""The access log: one line of JSON for each request that ended."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import msgspec

from headway.errors import ConfigError
from headway.gateway.book.accounts import Entry

_LOG = logging.getLogger(__name__)
_DECIMALS = 3


class AccessLogLine(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A request: when it arrived (seconds since 1970), what it wanted, where it was served, how it ended and why."""

    at: float
    id: str
    path: str
    status: int
    outcome: str
    ms: float
    ttft_ms: float | None = None
    tokens: int = 0
    stream: bool = False
    slo: str = "none"
    met: bool = False
    tenant: str = ""
    program: str = ""
    instance: str = ""
    moves: int = 0
    resumes: int = 0
    prefill: str = ""
    prefill_ms: float | None = None
    reason: str = ""


class AccessLog:
    """Appends to a file, one write a line, so that readers see whole lines. A full disk loses lines, not requests."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError if the file cannot be written."""
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise ConfigError(f"the access log cannot be written to {path}: {error}") from None

    def write(self, entry: Entry, path: str, status: int, now_s: float, reason: str, *, stream: bool) -> None:
        """Write one request's line when it ends, at `now_s` of the entry's clock."""
        lasted_s = now_s - entry.arrival_s
        line = AccessLogLine(
            at=round(time.time() - lasted_s, _DECIMALS),
            id=entry.id,
            path=path,
            status=status,
            outcome=entry.outcome_name,
            ms=_ms(lasted_s),
            ttft_ms=None if entry.ttft_s is None else _ms(entry.ttft_s),
            tokens=entry.tokens,
            stream=stream,
            slo=entry.key.slo,
            met=entry.met,
            tenant=entry.tenant,
            program=entry.program,
            instance=entry.instance,
            moves=entry.moves,
            resumes=entry.resumes,
            prefill=entry.prefill or "",
            prefill_ms=None if entry.prefill_s is None else _ms(entry.prefill_s),
            reason=reason,
        )
        try:
            self._file.write(msgspec.json.encode(line) + b"\n")
        except OSError as error:
            _LOG.error("the access log: %s", error)

    def close(self) -> None:
        """Close the log."""
        self._file.close()


def _ms(seconds: float) -> float:
    return round(seconds * 1000, _DECIMALS)
