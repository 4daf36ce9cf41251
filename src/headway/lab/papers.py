"""A paper whose experiments can be repeated: what every one is asked with, and how the installed ones are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

from headway.errors import ConfigError
from headway.results.study import Study


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperRequest:
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

    def size(self, request: PaperRequest) -> Size:
        """How much there is to run. Raises ConfigError for a folder that holds something else."""
        ...

    def reproduce(self, request: PaperRequest, tick: Tick, tell: Tell) -> Study:
        """Run what is not kept yet, and say what came out.

        KeyboardInterrupt passes through, with what is done kept. Raises ConfigError as `size` does.
        """
        ...


GROUP = "headway.papers"
"""Entry points: a paper's name and the class that repeats it."""
ALL = "all"


def papers(name: str) -> dict[str, Paper]:
    """The paper of that name, or every one for `all`. Raises ConfigError with the names that are accepted."""
    found = {point.name: point for point in entry_points(group=GROUP)}
    if not found:
        raise ConfigError(
            "no paper is installed; the four of Headway come with: pip install ./reproduce, in a checkout"
        )
    if name != ALL and name not in found:
        raise ConfigError.of("paper", repr(name), f"{', '.join([*found, ALL])}")
    return {each: point.load()() for each, point in found.items() if name in (each, ALL)}
