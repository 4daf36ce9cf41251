from __future__ import annotations

import pytest

from headway.errors import ConfigError
from headway.lab.grid import GridCell, PolicyGrid, parse_loads, parse_policies


def test_policies_as_they_are_written() -> None:
    assert parse_policies("sjf") == ("sjf",)
    assert parse_policies(" vllm, sjf ,,edf") == ("vllm", "sjf", "edf")
    for text in ("", " , ,"):
        with pytest.raises(ConfigError, match=f"policies is '{text}'; accepted: names of the preset table"):
            parse_policies(text)


@pytest.mark.parametrize(
    ("text", "loads"),
    [
        ("1", (1.0,)),
        ("0.5", (0.5,)),
        ("2,0.5, 1", (0.5, 1.0, 2.0)),
        ("0.5..1.5", (0.5, 0.75, 1.0, 1.25, 1.5)),
        ("1..2", (1.0, 1.25, 1.5, 1.75, 2.0)),
    ],
)
def test_loads_as_they_are_written(text: str, loads: tuple[float, ...]) -> None:
    assert parse_loads(text) == loads


def test_loads_are_rounded_as_folders_are_named() -> None:
    assert parse_loads("0.1..0.4", 4) == (0.1, 0.2, 0.3, 0.4)
    assert parse_loads("1..2", 4) == (1.0, 1.33333, 1.66667, 2.0)


@pytest.mark.parametrize(
    ("text", "steps", "complaint"),
    [
        ("", None, "rate_scale is ''; accepted: a number above 0"),
        ("0", None, "rate_scale is '0'"),
        ("-1", None, "rate_scale is '-1'"),
        ("nan", None, "rate_scale is 'nan'"),
        ("inf", None, "rate_scale is 'inf'"),
        ("1,,2", None, "rate_scale is '1,,2'"),
        ("1,1", None, "accepted: loads that differ"),
        ("1,1.0000001", None, "accepted: loads that differ"),
        ("1..1.000001", 5, "which gives 5 loads; accepted: loads that differ"),
        ("2..1", 5, "accepted: A..B with A below B"),
        ("1..", 5, "rate_scale is '1..'"),
        ("1..2..3", 5, "rate_scale is '1..2..3'"),
        ("1", 5, "steps is 5, but rate_scale is '1'; accepted with a range, as 0.5..1.5"),
        ("1,2", 3, "steps is 3, but rate_scale is '1,2'"),
        ("1..2", 1, "steps is 1; accepted with a range of loads: 2 to 1000"),
        ("1..2", 5000, "steps is 5000"),
    ],
)
def test_what_is_no_load_is_said(text: str, steps: int | None, complaint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_loads(text, steps)
    assert complaint in str(raised.value)


def test_every_policy_at_every_load_with_every_seed() -> None:
    grid = PolicyGrid(policies=("a", "b"), loads=(0.5, 1.0), num_seeds=2)
    cells = grid.cells()
    assert cells[:4] == [
        GridCell("a", 0.5, 0),
        GridCell("b", 0.5, 0),
        GridCell("a", 1.0, 0),
        GridCell("b", 1.0, 0),
    ]
    assert len(set(cells)) == 8
    assert str(cells[0]) == "a at rate scale 0.5, seed 0"


@pytest.mark.parametrize(("policies", "seeds"), [((), 1), (("a", "a"), 1), (("a",), 0)])
def test_a_grid_needs_different_policies_and_a_seed(policies: tuple[str, ...], seeds: int) -> None:
    with pytest.raises(ConfigError):
        PolicyGrid(policies=policies, num_seeds=seeds)
