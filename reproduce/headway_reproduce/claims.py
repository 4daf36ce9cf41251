"""What a paper says, statement by statement: its value, ours, whether it came out, and the reason that was tested."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

from headway.results.study import StudyPart, StudyTable
from headway_reproduce.study import Range

Verdict = Literal["reproduced", "partly", "not", "not run"]

NEAR = 1.5
"""A value within this factor of the paper's, either way, counts as reproduced."""
EQUAL = 1.05
"""Two values within this factor of each other count as equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A statement of the paper beside what came out here.

    `reason` is what a run with the supposed reason removed showed; empty where nothing differs.
    """

    where: str
    says: str
    paper: str
    ours: str
    verdict: Verdict
    reason: str = ""


def verdict_counts(claims: Sequence[Claim]) -> dict[str, int]:
    """How many statements came to each verdict."""
    found = Counter(claim.verdict for claim in claims)
    return {verdict: found[verdict] for verdict in get_args(Verdict) if found[verdict]}


_NOTE = (
    f"reproduced: within a factor of {NEAR:g} of the paper's value, a trend at every step, or equal within "
    f"{EQUAL - 1:.0%}; partly: in the paper's direction; not: neither."
)


def claims_part(claims: Sequence[Claim], measured_on: str, note: str = _NOTE) -> StudyPart:
    """Every statement of the paper in one table; `note` says what the verdicts mean."""
    counts = ", ".join(f"{count} {verdict}" for verdict, count in verdict_counts(claims).items())
    table = StudyTable(
        name="claims",
        title="What the paper says, and what came out",
        measured_on=measured_on,
        headings=["where", "says", "paper", "ours", "verdict", "tested"],
        rows=[
            [claim.where, claim.says, claim.paper, claim.ours, claim.verdict, claim.reason]
            for claim in claims
        ],
        note=note,
        keys=2,
    )
    return StudyPart(title="Statement by statement", text=[f"{counts}."], tables=[table])


def judged_gain(ours: float | None, paper: float) -> Verdict:
    """A gain above 1: near the paper's, at least in its direction, or neither. A loss is near no gain of the paper."""
    if ours is None:
        return "not run"
    if paper > EQUAL >= ours:
        return "not"
    if paper / NEAR <= ours <= paper * NEAR:
        return "reproduced"
    return "partly" if ours > EQUAL else "not"


def judged_range(ours: Range | None, paper: Range) -> Verdict:
    """A range of gains: both ends near the paper's; the larger end at least in its direction; or neither."""
    if ours is None:
        return "not run"
    ends = [judged_gain(mine, theirs) for mine, theirs in zip(ours, paper, strict=True)]
    if ends == ["reproduced", "reproduced"]:
        return "reproduced"
    return "partly" if ours[1] > EQUAL else "not"


def judged_trend(values: Iterable[float | None], *, rising: bool) -> Verdict:
    """A series that should rise or fall from its first value to its last: at every step, on the whole, or neither.

    Differences that count as equal are no steps.
    """
    found = [value for value in values if value is not None]
    if len(found) < 2:
        return "not run"
    if not rising:
        found.reverse()
    if found[-1] <= EQUAL * found[0]:
        return "not"
    return "reproduced" if all(EQUAL * later >= value for value, later in pairwise(found)) else "partly"


def judged_near(ours: float | None, paper: float) -> Verdict:
    """A value that should be the paper's own: near it, or not."""
    if ours is None:
        return "not run"
    return "reproduced" if paper / NEAR <= ours <= paper * NEAR else "not"


def judged_equal(ratio: float | None) -> Verdict:
    """A ratio that should be 1."""
    if ratio is None:
        return "not run"
    return "reproduced" if 1 / EQUAL <= ratio <= EQUAL else "not"
