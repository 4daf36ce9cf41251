"""Where a command keeps its runs."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


@contextmanager
def kept_or_temporary(out: Path | None) -> Iterator[Path]:
    """The folder the user named, or one that is gone afterwards; in the block SIGTERM is an exit that cleans up."""
    with _terminated_in_order():
        if out is not None:
            yield out
            return
        with TemporaryDirectory(prefix="headway-") as folder:
            yield Path(folder)


@contextmanager
def _terminated_in_order() -> Iterator[None]:
    """In the block SIGTERM is an exit that cleans up, with the code that shells give it; a second one does not wait."""

    def end(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
