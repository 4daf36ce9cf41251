"""JSON files that hold one value: written whole, and read back as what they were."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from headway.errors import RecordError
from headway.whole_file import write_whole

T = TypeVar("T")


def read_json(path: Path, kind: type[T]) -> T | None:
    """What a file keeps; None if there is none. Raises RecordError, which names it, if it cannot be read as that."""
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror})") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordError(f"{path}: {error}") from error


def write_json(path: Path, value: object, *, indent: int = 2) -> None:
    """Put a value at `path`, for people to read too; raises OSError if it cannot be written."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(value), indent=indent) + b"\n")


def made_once(path: Path, kind: type[T], make: Callable[[], T]) -> T:
    """What a file keeps; without one it is made now and kept there. Raises as `read_json` and `write_json`."""
    found = read_json(path, kind)
    if found is None:
        found = make()
        write_json(path, found)
    return found
