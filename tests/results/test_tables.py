import json
from dataclasses import fields, replace
from io import StringIO

import pytest
from rich.console import Console

from headway.results import COLUMNS, Comparison, Summary, compare, summarize, terminal_table, to_json
from headway.results.metrics import Group
from headway.results.tables import MISSING, Heading, Sheet, SheetCell, sheets

from .examples import make, shed, worked_run

WORKED = summarize(worked_run())


def only(**summaries: Summary) -> Comparison:
    return Comparison(summaries, {}, "")


def column(key: str, *values: float | None) -> tuple[Heading, list[SheetCell]]:
    """The column of `key`, for policies with these values and else the same."""
    summaries = {f"p{i}": replace(WORKED, **{key: value}) for i, value in enumerate(values)}  # type: ignore[arg-type]
    for sheet in sheets(only(**summaries)):
        for number, heading in enumerate(sheet.headings):
            if heading.key == key:
                return heading, [cells[number] for _, cells in sheet.rows]
    raise AssertionError(key)


def texts(key: str, *values: float | None) -> list[str]:
    return [cell.text for cell in column(key, *values)[1]]


def best(key: str, *values: float | None) -> list[bool]:
    return [cell.best for cell in column(key, *values)[1]]


def printed(comparison: Comparison, width: int = 100) -> str:
    out = StringIO()
    Console(file=out, width=width).print(terminal_table(comparison))
    return out.getvalue()


def test_every_key_is_in_one_sheet_and_goodput_comes_first() -> None:
    found = sheets(only(vllm=replace(WORKED, programs=0)))
    assert [sheet.title for sheet in found] == list(Group)
    assert sorted(heading.key for sheet in found for heading in sheet.headings) == sorted(COLUMNS)
    assert found[0].headings[0].key == "goodput"


def test_programs_have_a_sheet_where_there_are_some() -> None:
    assert [sheet.title for sheet in sheets(only(vllm=WORKED))] == list(Group)[:-1]


@pytest.mark.parametrize(
    ("key", "values", "shown"),
    [
        ("mean_jct_s", (12.5, 3.0), ["12.50", "3.00"]),
        ("mean_jct_s", (1234.5, 0.25), ["1,234.5", "0.2"]),
        ("goodput", (0.5, 0.0625), ["0.500", "0.062"]),
        ("mean_jct_s", (1234.5, 0.004), ["1,234.500", "0.004"]),
        ("mean_jct_s", (1234.5, 0.00004), ["1,234.500", "0.000"]),
        ("goodput", (1.0, 0.0), ["1.00", "0.00"]),
        ("goodput", (None, None), [MISSING, MISSING]),
        ("finished", (1234567, 2), ["1,234,567", "2"]),
        ("scheduler_us_per_step", (31.25, None), ["31.2", MISSING]),
        ("throughput_rps", (0.0, 0.0), ["0", "0"]),
    ],
)
def test_numbers_are_shown_to_a_few_digits(
    key: str, values: tuple[float | None, ...], shown: list[str]
) -> None:
    assert texts(key, *values) == shown


@pytest.mark.parametrize(
    ("values", "unit", "shown"),
    [
        ((0.25, 0.0625), "ms", ["250.0", "62.5"]),
        ((0.25, 1.5), "s", ["0.250", "1.500"]),  # one unit a column
        ((0.25, None), "ms", ["250", MISSING]),
        ((0.0, None), "s", ["0", MISSING]),
        ((None, None), "s", [MISSING, MISSING]),
    ],
)
def test_seconds_are_shown_as_milliseconds_where_all_are_small(
    values: tuple[float | None, ...], unit: str, shown: list[str]
) -> None:
    heading, cells = column("p99_ttft_s", *values)
    assert heading.unit == unit
    assert [cell.text for cell in cells] == shown


@pytest.mark.parametrize(
    ("key", "values", "marked"),
    [
        ("p99_ttft_s", (3.0, 2.0, 4.0), [False, True, False]),  # lower is better
        ("goodput", (0.7, 0.9, None), [False, True, False]),  # higher is better
        ("goodput", (0.9, 0.9, 0.1), [True, True, False]),  # a tie
        ("goodput", (0.90001, 0.90002, 0.1), [True, True, False]),  # a tie as far as one can see
        ("goodput", (0.90001, 0.90002), [False, False]),  # no difference to be seen
        ("goodput", (0.9, None), [False, False]),  # nothing to be better than
        ("preemptions", (1, 2), [False, False]),  # neither direction is better
        ("shed", (0, 2), [True, False]),
    ],
)
def test_the_best_value_of_a_column_is_marked(
    key: str, values: tuple[float | None, ...], marked: list[bool]
) -> None:
    assert best(key, *values) == marked


def test_arrows_point_to_the_better_side() -> None:
    arrows = {heading.key: heading.arrow for sheet in sheets(only(v=WORKED)) for heading in sheet.headings}
    assert (arrows["goodput"], arrows["mean_tbt_s"], arrows["requests"]) == ("↑", "↓", "")


def latency_sheets(comparison: Comparison) -> list[Sheet]:
    return [sheet for sheet in sheets(comparison) if sheet.headings[0].key == "mean_ttft_s"]


def test_latencies_are_not_ranked_where_they_are_not_comparable() -> None:
    # headway is twice as fast on `a`, and sheds `b`
    records = {
        "vllm": [make("a"), make("b", finished_s=60.0)],
        "headway": [make("a", finished_s=3.0), shed(make("b"))],
    }
    comparison = compare({policy: summarize(mine) for policy, mine in records.items()}, records)
    whole, common = latency_sheets(comparison)
    assert whole.note == comparison.note != ""
    assert not any(cell.best for _, cells in whole.rows for cell in cells)
    assert common.title == "Latency of requests finished under all policies (1)"
    place = [heading.key for heading in common.headings].index("mean_jct_s")
    assert [cells[place] for _, cells in common.rows] == [SheetCell("6.00", False), SheetCell("3.00", True)]
    text = " ".join(printed(comparison).split())
    assert comparison.note in text
    assert common.title in text


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140])
@pytest.mark.parametrize("policy", ["vllm", "a-policy-with-a-very-long-name-that-nobody-would-type-in"])
def test_the_terminal_table_fits_and_cuts_nothing_off(width: int, policy: str) -> None:
    text = printed(only(**{policy: WORKED, "other": WORKED}), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    words = text.split()
    for sheet in sheets(only(**{policy: WORKED})):
        for heading, cell in zip(sheet.headings, sheet.rows[0][1], strict=True):
            assert words.count(cell.text) >= 2, heading.key
            assert set(heading.text.split()) <= set(words), heading.key


def test_policy_names_are_no_markup() -> None:
    assert "[bold]x[/bold]" in printed(only(**{"[bold]x[/bold]": WORKED}))


def test_json_is_policy_to_summary() -> None:
    found = json.loads(to_json({"vllm": WORKED, "headway": summarize([])}))
    assert list(found) == ["vllm", "headway"]
    assert list(found["vllm"]) == [field.name for field in fields(Summary)]
    assert found["vllm"] == WORKED.to_dict()
    assert found["headway"]["goodput"] is None
