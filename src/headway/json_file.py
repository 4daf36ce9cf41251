"""JSON files that hold one value: written atomically, and read back with their type."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from headway.errors import RecordError
from headway.whole_file import write_whole

T = TypeVar("T")


def read_json(path: Path, kind: type[T]) -> T | None:
    """Read a file's value; None if there is no file. Raises RecordError, naming the file, if it is not of this kind."""
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror})") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordError(f"{path}: {error}") from error


def write_json(path: Path, value: object, *, indent: int = 2) -> None:
    """Write a value to `path`, indented for people. Raises OSError if the file cannot be written."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(value), indent=indent) + b"\n")


def made_once(path: Path, kind: type[T], make: Callable[[], T]) -> T:
    """Read a file's value; without a file, make the value and write it. Raises as `read_json` and `write_json` do."""
    found = read_json(path, kind)
    if found is None:
        found = make()
        write_json(path, found)
    return found
