"""Figure 1 of Ascendra in the simulator: five requests on two instances, target 5 units.

Prefills (units): A 3.5, B 1, C 1, D 1.5, E 2; A, B, D and C come at 0 in this order, E at 1.
"""

from __future__ import annotations

import pytest
from headway_reproduce.ascendra.example import ExampleFate, example_part, figure_1


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, ExampleFate]]:
    return figure_1()


def test_under_vllm_e_waits_four_units_and_misses(found: dict[str, dict[str, ExampleFate]]) -> None:
    # In turn: A, D and E on one instance, B and C on the other. A runs 0-3.5, D 3.5-5, so E starts at 5, 4 units after
    # it came, and its first token is out at 7.
    fates = found["vllm-v0"]
    assert {name: fate.instance for name, fate in fates.items()} == {
        "A": "0",
        "B": "1",
        "C": "1",
        "D": "0",
        "E": "0",
    }
    assert {name: fate.ttft_s for name, fate in fates.items()} == {
        "A": 3.5,
        "B": 1.0,
        "C": 2.0,
        "D": 5.0,
        "E": 6.0,
    }
    assert [name for name, fate in sorted(fates.items()) if fate.missed] == ["E"]


def test_under_ascendra_nothing_is_missed(found: dict[str, dict[str, ExampleFate]]) -> None:
    # A goes to LP, and B by the first ticket to HP, 0-1. E takes the next ticket at 1 and runs there 1-3. LP computes A
    # a unit at a time; at 3 it has half a unit of it left and holds C and D: it runs D, of no more than 0.5 slack, and
    # hands off C, which HP runs 3-4. A and D are done by 5.
    fates = found["ascendra"]
    assert not any(fate.missed for fate in fates.values())
    assert {name: fate.instance for name, fate in fates.items()} == {
        "A": "lp-0",
        "B": "hp-0",
        "C": "hp-0",
        "D": "lp-0",
        "E": "hp-0",
    }
    assert [name for name, fate in fates.items() if fate.moved] == ["C"]
    assert {name: fates[name].ttft_s for name in "BCE"} == {"B": 1.0, "C": 4.0, "E": 2.0}


def test_it_is_told_as_a_table() -> None:
    part = example_part()
    assert "hand-off threshold -0.35" in part.tables[0].title
    rows = {row[0]: row for row in part.tables[0].rows}
    assert rows["E"] == ["E", 2.0, 6.0, "0", "missed", 2.0, "hp-0", ""]
    assert rows["C"][5:] == [4.0, "hp-0", "handed off"]
