"""Files that appear whole: written beside their place, then put there by one rename."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

PARTIALS = ".*.partial"
"""What `partial_path` names match: there for long only if their process was killed."""
_WRITER = re.compile(r"\.([0-9]{1,9})\.partial$")


def partial_path(path: Path) -> Path:
    """Where this process writes what will be at `path`: in the same folder, so that a rename is enough."""
    return path.with_name(f".{path.name}.{os.getpid()}.partial")


def left_behind(folder: Path) -> Iterator[Path]:
    """Partial files in a folder and below whose process has ended; what another one still writes is not among them."""
    for path in folder.rglob(PARTIALS):
        writer = _WRITER.search(path.name)
        if writer is not None and not _is_running(int(writer[1])):
            yield path


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True


@contextmanager
def appearing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which is at `path` once the block has ended without an error.

    Until then, and after an error or a kill, what was there stays; an error leaves nothing beside it. Folders on the
    way are made, and the mode is what the umask gives any new file. A link stays one, and the file it leads to is
    replaced; what is no file, such as a device or a pipe, is written to as it is. Raises OSError if it cannot be
    written.
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
    """Put `content` at `path`, all of it or nothing; raises OSError if it cannot be written."""
    with appearing(path) as file:
        file.write(content)
