"""Files and batches as the gateway stores them and as OpenAI's clients read them."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any

import msgspec

from headway.core.slo import MAX_TARGET_S
from headway.gateway.http.api import APIS
from headway.gateway.http.refusal import bad_request
from headway.http_client import NOT_AS_EXPECTED

PURPOSE, OUTPUT_PURPOSE = "batch", "batch_output"
KEPT_S = 30 * 24 * 3600
"""Default lifetime of a file: thirty days, as for OpenAI's batch files."""
SHORTEST_KEPT_S = 3600
_MOST_METADATA, _MOST_KEY, _MOST_VALUE = 16, 64, 512
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_WINDOW = re.compile(r"([1-9][0-9]{0,6})([smhd])")


class Status(StrEnum):
    """The status of a batch."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether the batch has ended."""
        return self in (Status.FAILED, Status.COMPLETED, Status.EXPIRED, Status.CANCELLED)


class FileRecord(msgspec.Struct, kw_only=True):
    """A file that a tenant uploaded, or that a batch made. Times are seconds since 1970."""

    id: str
    tenant: str
    filename: str
    purpose: str
    bytes: int
    created_at: int
    expires_at: int

    def shown(self) -> dict[str, Any]:
        """The file in the form of OpenAI's API."""
        named = msgspec.structs.asdict(self)
        del named["tenant"]
        return {**named, "object": "file", "status": "processed", "status_details": None}


class Problem(msgspec.Struct, kw_only=True):
    """A problem of an input file or of one of its lines; lines count from 1."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchRecord(msgspec.Struct, kw_only=True):
    """A batch: its request, and its progress. Times are seconds since 1970.

    `total` counts lines, `completed` those with an answer in the output file, `failed` those in the error file.
    `read_bytes` and `read_lines` say how far the input file was read; `output_bytes` and `error_bytes` how many bytes
    of the two files are valid. Both files have their ids from the beginning, and are shown once they are complete.
    """

    id: str
    tenant: str
    endpoint: str
    input_file_id: str
    output_file_id: str
    error_file_id: str
    completion_window: str
    window_s: float
    created_at: int
    expires_at: int
    answers_kept_s: int = KEPT_S
    metadata: dict[str, str] | None = None
    status: Status = Status.VALIDATING
    ending: Status = Status.COMPLETED
    """The status that the batch takes once its files are complete."""
    model: str | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    read_bytes: int = 0
    read_lines: int = 0
    output_bytes: int = 0
    error_bytes: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    errors: list[Problem] = []
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None

    @property
    def left(self) -> int:
        """Lines without an answer."""
        return self.total - self.completed - self.failed

    def become(self, status: Status, now: int) -> None:
        """Enter a status, and note the time."""
        self.status = status
        setattr(self, f"{status}_at", now)

    def shown(self, headway: object = None) -> dict[str, Any]:
        """The batch in the form of OpenAI's API, with Headway's additions under `headway`."""
        named = msgspec.structs.asdict(self)
        whole = self.status.is_final
        tokens = {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens}
        details = {
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        }
        errors = {"object": "list", "data": self.errors} if self.errors else None
        return {
            **{name: named[name] for name in _SHOWN},
            "object": "batch",
            "errors": errors,
            "output_file_id": self.output_file_id if whole and self.output_bytes else None,
            "error_file_id": self.error_file_id if whole and self.error_bytes else None,
            "request_counts": {"total": self.total, "completed": self.completed, "failed": self.failed},
            "usage": {**tokens, **details, "total_tokens": self.input_tokens + self.output_tokens},
            "headway": headway,
        }


_SHOWN = (
    "id", "endpoint", "input_file_id", "completion_window", "created_at", "expires_at", "metadata", "status", "model",
    "in_progress_at", "finalizing_at", "completed_at", "failed_at", "expired_at", "cancelling_at", "cancelled_at",
)  # fmt: skip


class Expiry(msgspec.Struct):
    """How long to keep a file after it was made."""

    seconds: int = KEPT_S
    anchor: str = "created_at"


def kept_s(expiry: Expiry | None, param: str) -> int:
    """Seconds for which a file is kept. Raises GatewayError (400) for a time that is not accepted."""
    if expiry is None:
        return KEPT_S
    if expiry.anchor != "created_at" or not SHORTEST_KEPT_S <= expiry.seconds <= KEPT_S:
        raise bad_request(
            f"{param} is {expiry.seconds} s after {expiry.anchor[:40]!r}; accepted: {SHORTEST_KEPT_S} to {KEPT_S} s "
            "after 'created_at'",
            param,
        )
    return expiry.seconds


class BatchRequest(msgspec.Struct):
    """The body of `POST /v1/batches`."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: Expiry | None = None


def read_batch_request(body: bytes) -> BatchRequest:
    """Read the body of a client's request. Raises GatewayError (400), which names the field."""
    try:
        asked = msgspec.json.decode(body, type=BatchRequest)
    except NOT_AS_EXPECTED as error:
        raise bad_request(
            f"the body is no batch ({error}); accepted: an object as OpenAI's API has it"
        ) from None
    if asked.endpoint not in APIS:
        accepted = ", ".join(APIS)
        raise bad_request(f"endpoint is {asked.endpoint[:80]!r}; accepted: {accepted}", "endpoint")
    _check_metadata(asked.metadata or {})
    return asked


def window_s(text: str) -> float:
    """The seconds of a `completion_window` such as `24h`. Raises GatewayError (400) if it is invalid."""
    found = _WINDOW.fullmatch(text)
    seconds = int(found[1]) * _SECONDS[found[2]] if found else 0
    if not 0 < seconds <= MAX_TARGET_S:
        raise bad_request(
            f"completion_window is {text[:40]!r}; accepted: a number with s, m, h or d, up to 7d, as '24h'",
            "completion_window",
        )
    return float(seconds)


def _check_metadata(metadata: dict[str, str]) -> None:
    """Raise GatewayError (400) for more metadata than OpenAI's API accepts."""
    fits = len(metadata) <= _MOST_METADATA and all(
        len(key) <= _MOST_KEY and len(value) <= _MOST_VALUE for key, value in metadata.items()
    )
    if not fits:
        raise bad_request(
            f"metadata has {len(metadata)} pairs, or a long one; accepted: {_MOST_METADATA} of up to {_MOST_KEY} and "
            f"{_MOST_VALUE} characters",
            "metadata",
        )
