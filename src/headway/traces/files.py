"""Opens trace files: lines of text, plain or compressed, or the rows of a Parquet table."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Generator, Iterator
from importlib import import_module
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

from headway.errors import TraceError

ACCEPTED_FILES = "text in UTF-8, plain or packed by gzip, bzip2, xz or zstd, or a Parquet file"
NEEDS_PYARROW = "reading it takes pyarrow, which is not installed; accepted: pip install pyarrow"


def _zstd(raw: IO[bytes]) -> BufferedReader:
    arrow: Any = import_module("pyarrow")
    return BufferedReader(arrow.CompressedInputStream(arrow.PythonFile(raw, mode="r"), "zstd"))


PACKED: dict[bytes, tuple[str, Callable[[Any], Any]]] = {
    b"\x1f\x8b": ("gzip", lambda raw: gzip.GzipFile(fileobj=raw)),
    b"BZh": ("bzip2", bz2.BZ2File),
    b"\xfd7zXZ": ("xz", lzma.LZMAFile),
    b"\x28\xb5\x2f\xfd": ("zstd", _zstd),
}
"""First bytes of a compressed file -> its name, and how to decompress it."""
SUFFIXES = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd"}
PARQUET = b"PAR1"
OTHERS = {
    b"PK\x03\x04": "zip file or Excel workbook",
    b"\xff\xfe": "UTF-16 file",
    b"\xfe\xff": "UTF-16 file",
    b"ARROW1": "Arrow or Feather file",
    b"SQLite format 3": "SQLite database",
    b"\x89HDF": "HDF5 file",
    b"\x80\x04\x95": "Python pickle",
    b"\x80\x05\x95": "Python pickle",
}
"""First bytes of other files -> their names in errors."""
BYTE_ORDER_MARK = "\ufeff"


def is_parquet(path: Path) -> bool:
    """Whether a file begins like a Parquet table; False for what cannot be opened, and for a pipe."""
    if not path.is_file():
        return False
    try:
        with path.open("rb") as raw:
            return raw.read(len(PARQUET)) == PARQUET
    except OSError:
        return False


def parquet_rows(path: Path) -> Iterator[dict[str, object]]:
    """The rows of a Parquet table, with times as text. Raises TraceError without pyarrow, and for a broken file."""
    try:
        arrow: Any = import_module("pyarrow")
        parquet: Any = import_module("pyarrow.parquet")
    except ModuleNotFoundError:
        raise TraceError(f"{path} is a Parquet file; {NEEDS_PYARROW}") from None
    try:
        table = parquet.ParquetFile(path)
        times = [field.name for field in table.schema_arrow if arrow.types.is_temporal(field.type)]
        for batch in table.iter_batches():
            for name in times:  # Python's own times have no nanoseconds
                index = batch.schema.get_field_index(name)
                batch = batch.set_column(index, name, batch.column(index).cast(arrow.string()))
            yield from batch.to_pylist()
    except (arrow.ArrowException, OSError) as error:
        raise TraceError(f"{path} is a broken Parquet file: {error}") from None


def text_lines(path: Path) -> Generator[str, None, None]:
    """The lines of `path` as text with line ends, read lazily.

    A compressed file is recognised by its first bytes; a name such as `.gz` without them is an error, since it is
    usually a failed download. Raises TraceError for what cannot be opened, decompressed or read as UTF-8.
    """
    name = ""
    try:
        with path.open("rb") as raw:
            head = raw.peek(16)
            for magic, other in OTHERS.items():
                if head.startswith(magic):
                    raise TraceError(f"{path} is a {other}; accepted: {ACCEPTED_FILES}")
            found = next((PACKED[magic] for magic in PACKED if head.startswith(magic)), None)
            name, unpack = found or ("", lambda plain: plain)
            if (said := SUFFIXES.get(path.suffix)) and said != name:
                raise TraceError(f"{path} is named {path.suffix} but does not start as a {said} file does")
            yield from _decoded(path, unpack(raw))
    except ModuleNotFoundError:
        raise TraceError(f"{path} is a {name} file; {NEEDS_PYARROW}") from None
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise TraceError(f"{path} is a broken {name} file: {error}") from None
    except OSError as error:
        if name and error.strerror is None:  # how bzip2 and zstd report it
            raise TraceError(f"{path} is a broken {name} file: {error}") from None
        raise TraceError(f"{path} cannot be read: {error.strerror}") from None


def _decoded(path: Path, lines: IO[bytes]) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            found = line[error.start : error.start + 1].hex()
            raise TraceError(f"{path}, line {number}: byte {found} is not UTF-8; accepted: UTF-8") from None
        yield text.removeprefix(BYTE_ORDER_MARK) if number == 1 else text
