"""Files that appear whole: written beside their place, then put there by one rename."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

PARTIALS = ".*.partial"
"""What `partial_path` names match: left behind only by a process that was killed."""


def partial_path(path: Path) -> Path:
    """Where this process writes what will be at `path`: in the same folder, so that a rename is enough."""
    return path.with_name(f".{path.name}.{os.getpid()}.partial")


@contextmanager
def appearing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which is at `path` once the block has ended without an error.

    Until then, and after an error or a kill, what was there stays; an error leaves nothing beside it. Folders on the
    way are made, and the mode is what the umask gives any new file. Raises OSError if it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_path(path)
    try:
        with partial.open("wb") as file:
            yield file
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """Put `content` at `path`, all of it or nothing; raises OSError if it cannot be written."""
    with appearing(path) as file:
        file.write(content)
