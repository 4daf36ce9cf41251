"""What every paper's experiments are asked with, so that one command serves all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headway.results.study import Study


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """How much of a paper is repeated, in how many processes, and where what is done is kept.

    `data` is the folder of shared data, for papers that can use it; None: where it usually lies, if it is there.
    """

    root: Path
    jobs: int
    quick: bool = False
    data: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much there is to run: simulated runs, those kept of them, and about how many seconds the others take."""

    runs: int
    kept: int
    seconds: float


Tick = Callable[[], None]
"""Hears of each run as it is done."""
Tell = Callable[[str], None]
"""Hears in a line what else is going on."""


class Paper(Protocol):
    """One paper's experiments."""

    def size(self, request: Request) -> Size:
        """How much there is to run. Raises ConfigError for a folder that holds something else."""
        ...

    def reproduce(self, request: Request, tick: Tick, tell: Tell) -> Study:
        """Run what is not kept yet, and say what came out.

        KeyboardInterrupt passes through, with what is done kept. Raises ConfigError as `size` does.
        """
        ...
