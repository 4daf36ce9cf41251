"""What a paper says, statement by statement: its value, ours, whether it was reproduced, and the reason that was
tested.

One measure judges every statement of every paper. A statement has one fact or several: a gain, a value, each case that
it names. A fact's *direction* holds where ours is on the paper's side of "no difference", by more than EQUAL: a smaller
difference could come from another draw of the requests. Its *size* holds where ours is also within NEAR of the paper's.
A tenth either way is about half of the smallest gains that the papers claim (1.1 to 1.2): a wider measure would call
the absence of such a gain the gain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from math import inf, log
from typing import Literal, get_args

from headway.results.study import StudyPart, StudyTable, Value
from headway.statistics import mean

Verdict = Literal["reproduced", "partly", "not", "not run"]

NEAR = 1.1
"""A number within this factor of the paper's, either way, counts as the same size."""
EQUAL = 1.03
"""Two numbers within this factor of each other are equal."""


class Held(IntEnum):
    """How much of a fact was reproduced."""

    NOT = 0
    DIRECTION = 1
    SIZE = 2


def judged(*facts: Held | None) -> Verdict:
    """The verdict: reproduced if all facts hold in size, partly if at least half of them hold in direction, else not.

    None is a fact that was not run; a statement with no other facts is not run.
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


# ---- reasons, each with what a run without it came to ----------------------------------------------------

Numbers = float | None | Sequence[float | None]
"""One of our numbers, or those of several cases."""


def reason_of(stands: Numbers, tried: Mapping[str, Numbers], paper: float | Sequence[float]) -> str:
    """The numbers with each supposed reason removed, and whether removing it brings them nearer to the paper's.

    `paper` has a number for each case, or one for all; inf where it only says "more", 0 for "less". A change of the
    cases' mean up to EQUAL brings nothing nearer.

    >>> reason_of(1.28, {"whole link": 1.36, "no padding": 1.27, "no limit": 1.2}, 1.38)
    '1.28 as it stands; whole link 1.36 (explains it), no padding 1.27 (not the reason), no limit 1.20 (not the reason)'
    >>> reason_of([1.0, 0.9], {"short runs": [1.1, 1.0]}, inf)
    '0.90 to 1.00 as it stands; short runs 1.00 to 1.10 (a part of it)'
    """
    before = _cases(stands)
    papers = [*paper] if isinstance(paper, Sequence) else [paper] * len(before)
    shown = []
    for name, numbers in tried.items():
        after = _cases(numbers)
        if after and len(after) == len(before):
            shown.append(f"{name} {_said(after)} ({_explained(before, after, papers)})")
    stated = f"{_said(before)} as it stands" if before else "not known as it stands"
    return f"{stated}; {', '.join(shown)}" if shown else stated


def _cases(numbers: Numbers) -> list[float]:
    found = numbers if isinstance(numbers, Sequence) else [numbers]
    return [number for number in found if number is not None]


def _said(numbers: Sequence[float]) -> str:
    least, most = f"{min(numbers):.2f}", f"{max(numbers):.2f}"
    return least if least == most else f"{least} to {most}"


def _explained(before: Sequence[float], after: Sequence[float], papers: Sequence[float]) -> str:
    nearer = mean(
        _away(old, paper) - _away(new, paper) for old, new, paper in zip(before, after, papers, strict=True)
    )
    if nearer <= log(EQUAL):
        return "not the reason"
    return "explains it" if all(map(_there, after, papers)) else "a part of it"


def _away(number: float, paper: float) -> float:
    """The distance of a number from the paper's, as a log ratio; where the paper only says "more" or "less", its
    distance to 1.
    """
    size = log(max(number, 1e-9))
    return abs(size - log(paper)) if 0 < paper < inf else -size if paper else size


def _there(number: float, paper: float) -> bool:
    return _away(number, paper) <= (log(NEAR) if 0 < paper < inf else -log(EQUAL))


# ---- the table -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A statement of the paper beside our result.

    `reading` distinguishes the results of several readings of the paper; empty where there is one, or where it makes no
    difference. `reason` is the result of a run with the supposed reason removed; empty where nothing differs.
    """

    where: str
    says: str
    paper: str
    ours: str
    verdict: Verdict
    reason: str = ""
    reading: str = ""


def verdict_counts(claims: Iterable[Claim]) -> dict[str, int]:
    """How many statements got each verdict."""
    found = Counter(claim.verdict for claim in claims)
    return {verdict: found[verdict] for verdict in get_args(Verdict) if found[verdict]}


NOTHING_TRIED = "no reason found, and nothing tried"
_NOTE = (
    f"Reproduced: in the paper's direction, and within {NEAR - 1:.0%} of its number or true of all cases. Partly: in "
    f"its direction, or so in at least half of the cases. Not: neither. Differences up to {EQUAL - 1:.0%} are none."
)


def claims_part(claims: Sequence[Claim], measured_on: str, note: str = "") -> StudyPart:
    """Every statement of the paper in one table, with the results of all readings side by side."""
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
    differs = any(verdict in ("partly", "not") for _, verdict in outcomes)
    reason = first.reason or (NOTHING_TRIED if differs else "")
    return [first.where, first.says, first.paper, *(cell for pair in outcomes for cell in pair), reason]


def _counted(found: Iterable[Claim | None]) -> str:
    counts = verdict_counts(claim for claim in found if claim is not None)
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
