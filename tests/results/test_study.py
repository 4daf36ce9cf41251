from __future__ import annotations

import csv
import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from headway.errors import ConfigError
from headway.results.study import (
    Chart,
    Study,
    StudyPart,
    StudyTable,
    csv_text,
    markdown,
    render_study,
    terminal_study,
    write_study,
)
from tests.results.page import Page

TABLE = StudyTable(
    name="gains",
    title="Gains",
    measured_on="simulated, abacus",
    headings=["group", "cap", "ours", "paper", "swaps"],
    rows=[["a|b", 64, 1.23456, 1.38, 7], ["<c>", 128, None, 1.4, 12345]],
    note="More is better.",
    keys=2,
)
DETAIL = replace(TABLE, name="details", title="All of them", note="", detail=True)
STUDY = Study(
    name="paper",
    title="A paper, repeated",
    facts=[("hardware", "abacus <1>")],
    parts=[
        StudyPart(
            title="Throughput",
            text=["It gains & loses."],
            tables=[TABLE, DETAIL],
            charts=[Chart(name="fig3", svg="<svg><title>drawn</title></svg>")],
        )
    ],
    data={"quick": True},
)


def shown(width: int) -> str:
    console = Console(width=width, file=StringIO())
    console.print(terminal_study(STUDY))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_cells_are_shown_with_as_many_digits_as_the_table_says() -> None:
    assert TABLE.text_rows() == [["a|b", "64", "1.23", "1.38", "7"], ["<c>", "128", "–", "1.40", "12345"]]
    assert replace(TABLE, decimals=4).text_rows()[0][2] == "1.2346"


def test_markdown_names_hardware_notes_and_measurement() -> None:
    text = markdown(STUDY)
    assert text.startswith(
        "# A paper, repeated\n\n- hardware: abacus <1>\n\n## Throughput\n\nIt gains & loses.\n"
    )
    assert "### Gains\n\n*simulated, abacus*\n\nMore is better.\n\n| group | cap | ours |" in text
    assert "| --- | --- | ---: | ---: | ---: |\n| a\\|b | 64 | 1.23 |" in text
    assert "### All of them\n\n*simulated, abacus*\n\n| group" in text


def test_csv_keeps_the_values_whole_and_says_how_they_were_measured() -> None:
    rows = list(csv.reader(csv_text(TABLE).splitlines()))
    assert rows == [
        ["group", "cap", "ours", "paper", "swaps", "measured on"],
        ["a|b", "64", "1.23456", "1.38", "7", "simulated, abacus"],
        ["<c>", "128", "", "1.4", "12345", "simulated, abacus"],
    ]


def test_a_terminal_shows_all_but_details() -> None:
    text = shown(width=100)
    assert "Throughput" in text
    assert "It gains & loses." in text
    assert "Gains [simulated, abacus]" in text
    assert "More is better." in text
    assert "All of them" not in text
    assert text.count("group") == 1


def test_what_is_too_wide_goes_on_below_under_the_same_first_columns() -> None:
    lines = shown(width=31).splitlines()
    assert max(map(len, lines)) <= 31
    heads = [line.split() for line in lines if "group" in line]
    assert heads == [["group", "cap", "ours"], ["group", "cap", "paper"], ["group", "cap", "swaps"]]
    assert sum("a|b" in line for line in lines) == 3
    assert not any("…" in line for line in lines)


def test_the_page_escapes_what_it_shows_and_folds_details() -> None:
    page = Page(render_study(STUDY))
    assert "abacus <1>" in page.text
    assert "It gains & loses." in page.text
    assert [tag for tag, _ in page.tags].count("details") == 1
    assert [tag for tag, _ in page.tags].count("table") == 2
    assert "drawn" in page.text
    assert "script" not in {tag for tag, _ in page.tags}
    assert render_study(STUDY) == render_study(STUDY)


def test_a_study_is_written_once_in_every_form(tmp_path: Path) -> None:
    page = write_study(STUDY, tmp_path / "new")
    assert page == tmp_path / "new" / "paper.html"
    assert {path.name for path in page.parent.iterdir()} == {
        *("paper.html", "paper.md", "paper.json", "gains.csv", "details.csv", "fig3.svg")
    }
    assert json.loads((page.parent / "paper.json").read_text()) == {"quick": True}
    assert (page.parent / "fig3.svg").read_text().startswith("<svg>")


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        write_study(STUDY, tmp_path / "file")
