"""The targets of all requests together: which kinds there are, in what range, and whether all ask for the same."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields

from headway.core.slo import NO_TARGETS, Slo
from headway.traces import TraceRequest

KINDS = tuple(field.name for field in fields(Slo))
NAMES = {"ttft_s": "first token", "tbt_s": "between tokens", "deadline_s": "whole answer"}
"""What people call each kind."""


@dataclass(frozen=True, slots=True)
class Targets:
    """What the requests that have targets ask for: of each kind the shortest and the longest; None: nobody has one.

    `alike` has what all of them ask for, None where they do not; who has no target at all is not asked.
    """

    shortest: Slo = NO_TARGETS
    longest: Slo = NO_TARGETS
    alike: Slo = NO_TARGETS

    @classmethod
    def of(cls, requests: Iterable[TraceRequest]) -> Targets:
        """Of so many requests, in whatever order. O(requests)."""
        classes = {request.slo for request in requests if request.slo}
        asked = {kind: {getattr(slo, kind) for slo in classes} for kind in KINDS}
        times_s = {kind: sorted(each - {None}) for kind, each in asked.items()}
        return cls(
            shortest=Slo(**{kind: each[0] for kind, each in times_s.items() if each}),
            longest=Slo(**{kind: each[-1] for kind, each in times_s.items() if each}),
            alike=Slo(**{kind: each.pop() for kind, each in asked.items() if len(each) == 1}),
        )

    def __bool__(self) -> bool:
        """Whether anybody has a target."""
        return bool(self.shortest)

    @property
    def differ(self) -> bool:
        """Whether some ask for what others do not."""
        return self.alike != self.shortest

    def ranges(self) -> dict[str, tuple[float, float] | None]:
        """The shortest and the longest of each kind, in seconds, for scripts."""
        longest = asdict(self.longest)
        return {
            kind: None if low is None else (low, longest[kind]) for kind, low in asdict(self.shortest).items()
        }

    def __str__(self) -> str:
        """What a request wants, for people; empty where nobody has a target."""
        return ", ".join(
            f"{NAMES[kind]} within {_said(*each)}" for kind, each in self.ranges().items() if each
        )


def _said(low_s: float, high_s: float) -> str:
    return f"{low_s:g} s" if low_s == high_s else f"{low_s:g} to {high_s:g} s"
