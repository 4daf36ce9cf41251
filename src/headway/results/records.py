"""Records on disk: JSON lines, one request each, written so that a kill loses at most the line in flight."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import msgspec

from headway.core.record import Outcome, Record
from headway.core.slo import Slo
from headway.errors import RecordError
from headway.whole_file import write_whole

logger = logging.getLogger(__name__)

TIME_DECIMALS = 6
"""Times are stored to the microsecond: finer than any clock that produced them."""

KEYS = (
    "id",
    "tenant",
    "program",
    "arrival_s",
    "first_scheduled_s",
    "first_token_s",
    "finished_s",
    "prompt_tokens",
    "output_tokens",
    "predicted_output_tokens",
    "token_times_s",
    "slo",
    "outcome",
    "instance",
    "preemptions",
    "swapped_blocks",
    "recomputed_tokens",
    "error",
)
"""Keys of a line, in order."""

OPTIONAL_KEYS = frozenset({"program", "token_times_s", "error"})
"""Left out of a line when None; every other key is always there, null if it never happened."""

_SLO_KEYS = tuple(field.name for field in fields(Slo))
_TIME_KEYS = ("arrival_s", "first_scheduled_s", "first_token_s", "finished_s")
_COUNT_KEYS = ("prompt_tokens", "output_tokens", "preemptions", "swapped_blocks", "recomputed_tokens")

assert set(KEYS) == {field.name for field in fields(Record)}, "KEYS and Record must name the same things"


def encode_record(record: Record) -> bytes:
    """One line of a records file, without the newline; times rounded to TIME_DECIMALS."""
    line: dict[str, Any] = {}
    for key in KEYS:
        value = getattr(record, key)
        if value is None and key in OPTIONAL_KEYS:
            continue
        if value is not None and key in _TIME_KEYS:
            value = round(value, TIME_DECIMALS)
        line[key] = value
    if record.token_times_s is not None:
        line["token_times_s"] = [round(time_s, TIME_DECIMALS) for time_s in record.token_times_s]
    line["slo"] = asdict(record.slo)
    return msgspec.json.encode(line)


def decode_record(line: bytes) -> Record:
    """Decode one line. Raises RecordError with the fault, but without file or line number."""
    try:
        found = msgspec.json.decode(line, type=dict[str, Any])
        if missing := [key for key in KEYS if key not in found and key not in OPTIONAL_KEYS]:
            raise RecordError(f"missing {', '.join(missing)}")
        _reject_unknown(found, KEYS)
        record = msgspec.convert(found, Record)
        _reject_unknown(found["slo"], _SLO_KEYS)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordError(f"not a record: {error}") from error
    _check(record)
    return record


def _reject_unknown(found: dict[str, Any], accepted: tuple[str, ...]) -> None:
    """Raise RecordError for an unknown key: a misspelt target must not count as no target."""
    if unknown := [key for key in found if key not in accepted]:
        raise RecordError(f"unknown key {unknown[0]!r}; accepted: {', '.join(accepted)}")


def _check(record: Record) -> None:
    """Raise RecordError for impossible values: negative counts, or times that go backwards."""
    for key in _COUNT_KEYS:
        if getattr(record, key) < 0:
            raise RecordError(f"{key} is {getattr(record, key)}; accepted: 0 or more")
    times_s = [time_s for key in _TIME_KEYS if (time_s := getattr(record, key)) is not None]
    if times_s != sorted(times_s):
        raise RecordError(f"times go back: {times_s}; accepted: {' <= '.join(_TIME_KEYS)}")
    if record.outcome is Outcome.FINISHED and record.finished_s is None:
        raise RecordError("outcome is 'finished' but finished_s is null")


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Write these records to `path`, all or none. Raises RecordError if the file cannot be written."""
    with _writing(path):
        write_whole(path, b"".join(encode_record(record) + b"\n" for record in records))


class RecordWriter:
    """Writes records to a new file, each passed to the operating system before `append` returns.

    Replaces an existing file and makes missing folders. Use as a context manager, or call `close`. Raises RecordError,
    here and in every call, if the file cannot be written, as on a full disk.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with _writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = path.open("wb")

    def append(self, record: Record) -> None:
        """Write one record, with a flush for each line, so that a kill leaves at most one broken line."""
        with _writing(self.path):
            self._file.write(encode_record(record) + b"\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        with _writing(self.path):
            self._file.close()

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RecordError(
            f"{path}: cannot be written ({error.strerror}); accepted: a file that can, with room for it"
        ) from error


def read_records(path: str | PathLike[str]) -> list[Record]:
    """All records of a file in order; blank lines are skipped.

    An unreadable last line without a newline was cut off by a kill: it is dropped, with a warning in the log. Raises
    RecordError, with file and line, for any other line that is not a record, and for a file that is missing or has no
    record.
    """
    records = records_so_far(Path(path))
    if not records:
        raise RecordError(f"{path}: no records in it; accepted: one JSON object a line")
    return records


def records_so_far(path: Path) -> list[Record]:
    """As `read_records`, but empty for a file without any record yet."""
    records: list[Record] = []
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                try:
                    records.append(decode_record(line))
                except RecordError as error:
                    if line.endswith(b"\n"):
                        raise RecordError(f"{path}, line {number}: {error}") from error
                    logger.warning("%s: 1 half-written line left out (line %d)", path, number)
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror})") from error
    return records
