"""How far `bench/regret.py` is, on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from headway.lab.kept_runs import Kept

_A_LINE_EVERY = 20
"""Runs, where stderr is no terminal."""


class Progress:
    """Says how many are done and how long the rest will take; called once for each that is made now."""

    def __init__(self, what: str, count: int, kept: Kept[Any, Any], runs: Sequence[Any]) -> None:
        self._what, self._count = what, count
        self._done = sum(kept.result(run) is not None for run in runs)
        self._started_s, self._begun = time.monotonic(), self._done

    def __call__(self) -> None:
        """One more is done."""
        self._done += 1
        elapsed_s = time.monotonic() - self._started_s
        left_s = elapsed_s / (self._done - self._begun) * (self._count - self._done)
        told = f"{self._done} of {self._count} {self._what}, {elapsed_s:.0f} s, about {left_s:.0f} s left"
        last = self._done == self._count
        if sys.stderr.isatty():
            print(f"\r{told}   ", end="\n" if last else "", file=sys.stderr, flush=True)
        elif last or self._done % _A_LINE_EVERY == 0:
            print(told, file=sys.stderr)
