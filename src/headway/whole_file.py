"""Files that appear whole, written under another name and then renamed; and earlier files that are kept."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import BinaryIO

PARTIALS = ".*.partial"
"""Pattern of the names from `partial_path`. Such files remain only if their process was killed."""
_WRITER = re.compile(r"\.([0-9]{1,9})\.partial$")


def partial_path(path: Path) -> Path:
    """Where this process writes the future content of `path`: the same folder, so that a rename suffices."""
    return path.with_name(f".{path.name}.{os.getpid()}.partial")


def number_earlier(file: Path) -> None:
    """Rename a file that has content: `served.jsonl` becomes `served.1.jsonl`. A link stays, as does what cannot be
    renamed.
    """
    if file.is_file() and not file.is_symlink() and file.stat().st_size:
        numbered = (file.with_stem(f"{file.stem}.{number}") for number in count(1))
        with suppress(OSError):
            file.rename(next(other for other in numbered if not other.exists()))


def left_behind(folder: Path) -> Iterator[Path]:
    """Yield partial files below a folder whose process has ended; files that another process still writes are not
    yielded.
    """
    for path in folder.rglob(PARTIALS):
        writer = _WRITER.search(path.name)
        if writer is not None and not _is_running(int(writer[1])):
            yield path


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's process, so it runs
        return True
    return True


@contextmanager
def appearing(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to write to, which appears at `path` when the block ends without an error.

    Until then, and after an error or a kill, the old file stays; an error leaves nothing beside it. Creates missing
    folders; the mode is that of any new file under the umask. A link stays, and its target is replaced. Devices and
    pipes are written to directly. Raises OSError if the file cannot be written.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    place = Path(os.path.realpath(path))
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_path(place)
    try:
        with partial.open("wb") as file:
            yield file
        partial.replace(place)
    finally:
        partial.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """Write `content` to `path`, all of it or nothing. Raises OSError if the file cannot be written."""
    with appearing(path) as file:
        file.write(content)
