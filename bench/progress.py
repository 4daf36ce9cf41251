"""What benches tell people while they run; stdout is for data."""

from __future__ import annotations

import sys


def say(line: str) -> None:
    """A line on stderr, at once."""
    print(line, file=sys.stderr, flush=True)
