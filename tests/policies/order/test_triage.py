from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from headway.policies.order.timetable import Candidate, given_up
from tests.strategies import UNTIMED, ids, make_job


def candidates(*rows: tuple[str, float, float, float]) -> list[Candidate]:
    """(name, due, service, cost) of each, by due time."""
    return sorted(
        [
            Candidate(due, 0.0, name, service, cost, due - service + cost, make_job(name))
            for name, due, service, cost in rows
        ]
    )


def lost(*rows: tuple[str, float, float, float], now_s: float = 0.0) -> list[str]:
    return sorted(ids(given_up(candidates(*rows), now_s)))


def test_nobody_is_given_up_while_all_can_be_in_time() -> None:
    # a until 2, b until 5, c until 6: each by its due time, to the second.
    assert lost(("a", 2, 2, 2), ("b", 5, 3, 3), ("c", 6, 1, 1)) == []
    assert lost(("a", 2, 2, 2), ("b", 5, 3, 3), ("c", 6, 1, 1), now_s=0.5) == ["a"]


def test_moores_own_example() -> None:
    # Moore 1968: services 10, 6, 3, 1, 4, 8, 7, 6 due at 35, 20, 11, 8, 6, 25, 28, 9. By due time: 4 (6), 1 (8), 6 (9),
    # 3 (11), 6 (20), 8 (25), 7 (28), 10 (35). 4 + 1 + 6 = 11 > 9: the 6 goes, 5 are left. 8, 14, 22, 29 > 28: the
    # 8 goes, 21 are left. 31 <= 35. Two are late.
    rows = [("e", 6, 4), ("d", 8, 1), ("h", 9, 6), ("c", 11, 3)]
    rows += [("b", 20, 6), ("f", 25, 8), ("g", 28, 7), ("a", 35, 10)]
    assert lost(*((name, due, service, service) for name, due, service in rows)) == ["f", "h"]


def test_the_costliest_goes_though_others_take_as_long() -> None:
    # Both prompts take 3 of the 5 seconds there are; the first would hold memory for longer.
    assert lost(("long", 5, 3, 90), ("short", 5, 3, 10)) == ["long"]
    assert lost(("short", 5, 3, 10), ("tail", 5, 3, 90)) == ["tail"]


def test_one_whose_place_would_not_be_enough_stays() -> None:
    # Without `dear` the last would still be late, at 1 + 6 > 5: it is given up itself.
    assert lost(("dear", 4, 1, 99), ("cheap", 4, 1, 1), ("last", 5, 6, 5)) == ["last"]


def test_of_equals_the_last_goes() -> None:
    assert lost(("a", 3, 2, 2), ("b", 3, 2, 2)) == ["b"]


def in_time(rows: list[tuple[int, int]]) -> bool:
    """Whether all are served by their due times, one after another."""
    free = 0
    for due, service in sorted(rows):
        free += service
        if free > due:
            return False
    return True


@UNTIMED
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 8)), max_size=7))
def test_nobody_could_have_more_of_them_in_time(rows: list[tuple[int, int]]) -> None:
    named = [(str(number), float(due), float(work), float(work)) for number, (due, work) in enumerate(rows)]
    late = lost(*named)
    kept = [row for number, row in enumerate(rows) if str(number) not in late]
    assert in_time(kept)
    most = max(
        count
        for count in range(len(rows) + 1)
        if any(in_time(list(some)) for some in combinations(rows, count))
    )
    assert len(kept) == most
