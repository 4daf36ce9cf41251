"""The sums and the tables of `bench/gain/regret.py`, by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bench.gain.regret_runs import Cell
from bench.gain.regret_tables import TAILS, CellFindings, league, lower_bound, summary, tables

Values = Sequence[float | None]


def found(classes: str, load: float = 1.0, workload: str = "chat", **by_name: Values) -> CellFindings:
    """`mine` is the subject, all but `oracle` and itself are rivals."""
    names = frozenset(by_name) - {"mine", "oracle"}
    knowing = frozenset(by_name) & {"oracle"}
    return CellFindings(Cell(workload, "a100", load, classes), "mine", names, knowing, by_name)


def test_the_lower_bound_of_a_mean() -> None:
    # Mean 3, standard deviation sqrt(2.5), over 5: 3 - 2.13185 x sqrt(0.5).
    assert lower_bound([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(3 - 2.13185 * 0.70711, abs=1e-4)
    assert lower_bound([0.4, 0.4, 0.4]) == pytest.approx(0.4)
    assert lower_bound([0.4]) == 0.4


def test_goodput_is_compared_as_a_share() -> None:
    cell = found("one", vllm=[0.5, 0.7], edf=[0.9, 0.8], mine=[0.8, 0.8], oracle=[0.95, 0.95])
    row = cell.row()
    assert (row["best_preset"], row["bound"]) == ("edf", "oracle")
    assert row["loss"] == 0.05  # 0.1 and 0
    # Standard deviation 0.0707, over the root of 2: 0.05; t of two values is 6.314.
    assert row["loss_lower_95"] == pytest.approx(0.05 - 6.314 * 0.05, abs=1e-4)
    assert row["gap_to_bound"] == 0.15
    assert cell.gain("vllm") == pytest.approx(0.8 / 0.6)


def test_times_are_compared_as_ratios() -> None:
    cell = found("none", vllm=[10.0, 12.0], sjf=[4.0, 5.0], mine=[5.0, 5.0])
    assert cell.row()["best_preset"] == "sjf"
    assert cell.losses("sjf") == [0.25, 0.0]
    assert cell.gain("vllm") == pytest.approx(11 / 5)
    assert cell.row()["bound"] is None, "nobody there knows the lengths"


def test_who_lacks_a_value_is_not_the_best() -> None:
    cell = found("none", vllm=[10.0, 12.0], shedder=[1.0, None], mine=[5.0, 5.0])
    assert cell.row()["best_preset"] == "vllm"
    nobody = found("none", vllm=[None], mine=[5.0])
    assert nobody.row()["best_preset"] is None
    assert "loss" not in nobody.row()
    assert summary([cell, nobody])["cells_without_loss"] == [nobody.cell.name]


def test_a_cell_in_which_the_subject_lets_some_go_is_not_forgotten() -> None:
    cell = found("none", vllm=[10.0], mine=[None])
    assert summary([cell])["cells_without_loss"] == [cell.cell.name]
    one_of_two = found("none", vllm=[10.0, 10.0], mine=[9.0, None])
    assert summary([one_of_two])["cells_without_loss"] == [one_of_two.cell.name]


def test_the_subject_is_no_rival_of_itself_and_may_be_the_bound() -> None:
    row = found("one", vllm=[0.5], mine=[0.8], oracle=[0.7]).row()
    assert (row["best_preset"], row["loss"]) == ("vllm", pytest.approx(-0.3))
    assert (row["bound"], row["gap_to_bound"]) == ("mine", 0.0)


def test_the_figures_of_the_whole() -> None:
    cells = [
        found("one", 0.5, vllm=[0.99], mine=[0.98], oracle=[1.0]),
        found("one", 1.2, vllm=[0.2], mine=[0.6], oracle=[0.7]),
        found("two", 1.2, vllm=[0.0], mine=[0.5], oracle=[0.5]),
        found("none", 1.2, vllm=[12.0], mine=[3.0], oracle=[2.0]),
    ]
    told = summary(cells)
    assert told["cells"] == 4
    assert told["worst_vs_best_preset"] == 0.01
    assert told["worst_cell"] == "chat/a100/0.5/one"
    assert [row["cell"] for row in told["losing_cells"]] == ["chat/a100/0.5/one"]
    assert told["median_gap_to_bound"] == pytest.approx((0.02 + 0.1) / 2)  # of 0.02, 0.1, 0 and 0.5
    # 0.6 / 0.2 = 3; goodput of 0 counts as 0.001, so 500.
    assert told["goodput_gain_vs_vllm_saturated"] == [251.5, 3.0, 500.0]
    assert told["mean_jct_gain_vs_vllm_saturated"] == [4.0, 4.0, 4.0]
    assert told["low_load_loss"] == 0.01
    assert {key: aim["met"] for key, aim in told["aims"].items()} == dict.fromkeys(told["aims"], True)


def test_what_was_not_measured_is_null_and_no_aim_of_it_is_met() -> None:
    told = summary([found("none", 1.0, vllm=[4.0], mine=[8.0])])
    assert told["goodput_gain_vs_vllm_saturated"] is None
    assert told["low_load_loss"] is None
    assert told["aims"]["low_load_loss"] == {"aim": "<= 0.02", "found": None, "met": None}
    assert told["aims"]["worst_vs_best_preset"]["met"] is False


ORACLE = "shortest-oracle"


def row(cell: Cell, **values: Sequence[float | None]) -> dict[str, object]:
    """`headway` beside `vllm`, `sjf` and an oracle, whose name is no keyword."""
    named = {ORACLE if name == "oracle" else name: each for name, each in values.items()}
    return CellFindings(cell, "headway", frozenset({"vllm", "sjf"}), frozenset({ORACLE}), named).row()


ROWS = [
    row(Cell("chat", "a100", 0.5, "none"), headway=[10.1], vllm=[10.0], sjf=[10.2], oracle=[9.0]),
    row(Cell("chat", "a100", 1.0, "none"), headway=[40.0], vllm=[60.0], sjf=[50.0], oracle=[30.0]),
    row(Cell("chat", "a100", 1.0, "one"), headway=[0.7], vllm=[0.1], sjf=[0.75], oracle=[0.8]),
    row(Cell("code", "a100", 1.0, "one"), headway=[0.9], vllm=[0.1], sjf=[0.6], oracle=[0.9]),
    row(Cell("code", "h100", 1.0, "one"), headway=[0.5], vllm=[None], sjf=[None], oracle=[None]),
]


def test_machines_have_tables_of_their_own_and_who_has_no_value_a_dash() -> None:
    parts = tables("headway", ROWS).split("\n\n")
    assert parts[0].splitlines() == list(league(ROWS))
    assert [parts[1], parts[4]] == ["`a100`", "`h100`"]
    assert parts[6].endswith("| `code` | 1 | 0.500 / – / – / – |")
    assert len(parts[5].splitlines()) == 2  # no loss, so no line


def test_a_league_of_all_has_the_tail_beside_the_mean_by_load() -> None:
    def at(load: float, jct_s: float, p99_s: float) -> dict[str, object]:
        tails = {name: dict.fromkeys(TAILS, value) for name, value in (("vllm", 8.0), ("headway", p99_s))}
        names = frozenset({"vllm"})
        values = {"headway": [jct_s], "vllm": [4.0]}
        return CellFindings(
            Cell("chat", "a100", load, "none"), "headway", names, frozenset(), values, tails
        ).row()

    asked = row(Cell("chat", "a100", 1.2, "one"), headway=[0.7], vllm=[0.1], sjf=[0.75])
    lines = list(league([at(1.0, 2.0, 16.0), at(1.2, 1.0, 4.0), at(1.2, 4.0, 16.0), asked]))
    assert lines[0].startswith("| policy; loads 1, 1.2 | mean JCT | p99 JCT |")
    # At 1.2 a quarter and all of stock's: a half in the geometric mean; half of its tail and twice that: as much.
    assert lines[2:] == [
        "| `headway` | 0.50 / 0.50 | 2.00 / 1.00 | 2.00 / 1.00 | 2.00 / 1.00 | – / 0.70 |",
        "| `vllm` | 1.00 / 1.00 | 1.00 / 1.00 | 1.00 / 1.00 | 1.00 / 1.00 | – / 0.10 |",
        "| `sjf` | – / – | – / – | – / – | – / – | – / 0.75 |",
    ]
