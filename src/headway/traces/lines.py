"""The lines of a trace file, plain or gzip."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO

from headway.errors import TraceError

GZIP_MAGIC = b"\x1f\x8b"
_OTHER_MAGIC = {
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "Zstandard",
    b"PK\x03\x04": "zip",
    b"PAR1": "Parquet",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
BYTE_ORDER_MARK = "\ufeff"


def text_lines(path: Path) -> Generator[str, None, None]:
    """The lines of `path` as text, line ends kept, read as they are asked for.

    A gzip file is known by its first bytes; a name in `.gz` without them is an error, since it is most
    often a download that failed. Raises TraceError for what cannot be opened, unpacked or read as UTF-8.
    """
    try:
        with path.open("rb") as raw:
            head = raw.peek(8)
            for magic, name in _OTHER_MAGIC.items():
                if head.startswith(magic):
                    raise TraceError(f"{path} is a {name} file; accepted: text in UTF-8, plain or gzip")
            zipped = head.startswith(GZIP_MAGIC)
            if path.suffix == ".gz" and not zipped:
                raise TraceError(f"{path} is named .gz but does not start as a gzip file does (1f 8b)")
            unpacked: IO[bytes] = gzip.GzipFile(fileobj=raw) if zipped else raw  # type: ignore[assignment]
            yield from _decoded(path, unpacked)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"{path} is a broken gzip file: {error}") from None
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}") from None


def _decoded(path: Path, lines: IO[bytes]) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            found = line[error.start : error.start + 1].hex()
            raise TraceError(f"{path}, line {number}: byte {found} is not UTF-8; accepted: UTF-8") from None
        yield text.removeprefix(BYTE_ORDER_MARK) if number == 1 else text
