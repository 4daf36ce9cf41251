"""Papers whose experiments can be repeated: their protocol, and how installed ones are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

from headway.errors import ConfigError, meant
from headway.results.study import Study


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperRequest:
    """How much of a paper to repeat, in how many processes, and where results are kept.

    `data` is the folder of shared data, for papers that can use it; None: the default place, if it exists.
    """

    root: Path
    jobs: int
    quick: bool = False
    data: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The amount of work: simulated runs, how many of them are kept, and roughly the seconds for the others."""

    runs: int
    kept: int
    seconds: float


Tick = Callable[[], None]
"""Called for each finished run."""
Tell = Callable[[str], None]
"""Called with a line about other progress."""


class Paper(Protocol):
    """One paper's experiments."""

    def size(self, request: PaperRequest) -> Size:
        """The amount of work. Raises ConfigError for a folder with something else."""
        ...

    def reproduce(self, request: PaperRequest, tick: Tick, tell: Tell) -> Study:
        """Run what is not kept yet, and report the results.

        KeyboardInterrupt passes through, with finished runs kept. Raises ConfigError as `size` does.
        """
        ...


GROUP = "headway.papers"
"""Entry point group: a paper's name and its class."""
ALL = "all"


def papers(name: str) -> dict[str, Paper]:
    """The paper of that name, or all papers for `all`. Raises ConfigError with the accepted names."""
    found = {point.name: point for point in entry_points(group=GROUP)}
    if not found:
        raise ConfigError(
            "no paper is installed; the four of Headway come with: pip install ./reproduce, in a checkout"
        )
    if name != ALL and name not in found:
        raise ConfigError.of("paper", f"{name!r}; {meant(name, [*found, ALL])}")
    return {each: point.load()() for each, point in found.items() if name in (each, ALL)}
