"""What a paper says, statement by statement: its value, ours, whether it came out, and the reason that was tested.

One measure judges every statement of every paper. A statement is one fact or several: a gain, a value, each case that
is spoken of. A fact's *direction* holds where ours is on the paper's side of "no difference", by more than EQUAL: less
than that is what another draw of the requests makes. Its *size* holds where ours is also within NEAR of the paper's. A
tenth either way is about half of the smallest gains that the papers claim (1.1 to 1.2): a wider measure would call the
absence of such a gain the gain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Literal, get_args

from headway.results.study import StudyPart, StudyTable, Value

Verdict = Literal["reproduced", "partly", "not", "not run"]

NEAR = 1.1
"""A number within this factor of the paper's, either way, has its size."""
EQUAL = 1.03
"""Two numbers within this factor of each other are equal."""


class Held(IntEnum):
    """How much of a fact came out."""

    NOT = 0
    DIRECTION = 1
    SIZE = 2


def judged(*facts: Held | None) -> Verdict:
    """Reproduced if all facts hold in size, partly if at least half of them hold in direction, else not.

    None is a fact that was not run; a statement of no other is not run.
    """
    found = [fact for fact in facts if fact is not None]
    if not found:
        return "not run"
    if min(found) is Held.SIZE:
        return "reproduced"
    return "partly" if 2 * sum(fact >= Held.DIRECTION for fact in found) >= len(found) else "not"


def as_fact(holds: bool) -> Held:
    """A fact without a number."""
    return Held.SIZE if holds else Held.NOT


def as_gain(ours: float | None, paper: float, most: float | None = None) -> Held | None:
    """A ratio that is the paper's, or from `paper` to `most`: above 1 a gain, below a loss, 1 equality.

    >>> from math import inf
    >>> as_gain(1.15, 1.2), as_gain(1.08, 1.2), as_gain(1.02, 1.1), as_gain(0.98, 1.0), as_gain(5.0, 3.0, inf)
    (<Held.SIZE: 2>, <Held.DIRECTION: 1>, <Held.NOT: 0>, <Held.SIZE: 2>, <Held.SIZE: 2>)
    """
    if ours is None:
        return None
    most = paper if most is None else most
    if _side(ours) not in (_side(paper), _side(most)):
        return Held.NOT
    return Held.SIZE if paper / NEAR <= ours <= most * NEAR else Held.DIRECTION


def as_above_one(ours: float | None) -> Held | None:
    """A ratio that the paper says is above 1, without a number."""
    return None if ours is None else as_fact(_side(ours) > 0)


def as_value(ours: float | None, paper: float) -> Held | None:
    """A number that is the paper's; it has no direction."""
    return None if ours is None else as_fact(paper / NEAR <= ours <= paper * NEAR)


def as_cost(ours: float | None, most: float) -> Held | None:
    """A cost that is no larger than the paper's."""
    return None if ours is None else as_fact(ours <= most * NEAR)


def as_trend(values: Iterable[float | None], *, rising: bool) -> Held | None:
    """A series that rises or falls from its first value to its last; in size, if no step goes the other way."""
    found = [each for each in values if each is not None]
    if len(found) < 2:
        return None
    if not rising:
        found.reverse()
    if found[-1] <= EQUAL * found[0]:
        return Held.NOT
    steady = all(EQUAL * later >= earlier for earlier, later in pairwise(found))
    return Held.SIZE if steady else Held.DIRECTION


def _side(ratio: float) -> int:
    return (ratio > EQUAL) - (ratio < 1 / EQUAL)


# ---- the table -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A statement of the paper beside what came out here.

    `reading` tells apart what several readings of the paper come to; empty where there is one, or where it makes no
    difference. `reason` is what a run with the supposed reason removed showed; empty where nothing differs.
    """

    where: str
    says: str
    paper: str
    ours: str
    verdict: Verdict
    reason: str = ""
    reading: str = ""


def verdict_counts(claims: Iterable[Claim]) -> dict[str, int]:
    """How many statements came to each verdict."""
    found = Counter(claim.verdict for claim in claims)
    return {verdict: found[verdict] for verdict in get_args(Verdict) if found[verdict]}


_NOTE = (
    f"Reproduced: in the paper's direction, and within {NEAR - 1:.0%} of its number or true of all cases. Partly: in "
    f"its direction, or so in at least half of the cases. Not: neither. Differences up to {EQUAL - 1:.0%} are none."
)


def claims_part(claims: Sequence[Claim], measured_on: str, note: str = "") -> StudyPart:
    """Every statement of the paper in one table, what each reading of it comes to side by side."""
    rows: dict[tuple[str, str], dict[str, Claim]] = {}
    for claim in claims:
        rows.setdefault((claim.where, claim.says), {})[claim.reading] = claim
    readings = list(dict.fromkeys(claim.reading for claim in claims if claim.reading)) or [""]
    shown = {reading: [_of(reading, found) for found in rows.values()] for reading in readings}
    table = StudyTable(
        name="claims",
        title="What the paper says, and what came out",
        measured_on=measured_on,
        headings=[
            *("where", "says", "paper"),
            *(
                heading
                for reading in readings
                for heading in (reading or "ours", f"verdict {reading}".strip())
            ),
            "tested",
        ],
        rows=[
            _row(found, [claims[number] for claims in shown.values()])
            for number, found in enumerate(rows.values())
        ],
        note=f"{_NOTE} {note}".strip(),
        keys=2,
    )
    return StudyPart(
        title="Statement by statement",
        text=[f"{f'{reading}: ' if reading else ''}{_counted(found)}." for reading, found in shown.items()],
        tables=[table],
    )


def _of(reading: str, found: dict[str, Claim]) -> Claim | None:
    return found.get(reading) or found.get("")


def _row(found: dict[str, Claim], shown: Sequence[Claim | None]) -> list[Value]:
    first = next(iter(found.values()))
    outcomes = [("-", "") if claim is None else (claim.ours, claim.verdict) for claim in shown]
    return [first.where, first.says, first.paper, *(cell for pair in outcomes for cell in pair), first.reason]


def _counted(found: Iterable[Claim | None]) -> str:
    counts = verdict_counts(claim for claim in found if claim is not None)
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
