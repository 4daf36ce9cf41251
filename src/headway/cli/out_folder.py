"""Where a command keeps its runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


@contextmanager
def kept_or_temporary(out: Path | None) -> Iterator[Path]:
    """The folder the user named, or one that is gone afterwards."""
    if out is not None:
        yield out
        return
    with TemporaryDirectory(prefix="headway-") as folder:
        yield Path(folder)
