"""The state of a file, which belongs in the key of every cache of what was read from it."""

from __future__ import annotations

from pathlib import Path

FileState = tuple[int, int, int]


def file_state(path: Path) -> FileState | None:
    """Inode, size and time of the last change in ns. None if there is no file.

    Another state after each writing, unless as many bytes are written in place within a tick of the kernel's clock.
    """
    try:
        found = path.stat()
    except (OSError, ValueError):  # ValueError: a name with a null character, which no file has
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
