"""A study on disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from headway.errors import ConfigError
from headway.results.study import Study
from headway.results.study_page import render_study
from headway.results.study_text import csv_text, markdown
from headway.whole_file import write_whole


def write_study(study: Study, folder: Path) -> Path:
    """Write tables (CSV, and all in one Markdown file), charts (SVG), the data (JSON) and the page; returns the page.

    Raises ConfigError if the folder cannot be written.
    """
    page = folder / f"{study.name}.html"
    files = {
        page.name: render_study(study),
        f"{study.name}.md": markdown(study),
        f"{study.name}.json": json_text(study.data),
        **{f"{table.name}.csv": csv_text(table) for table in study.tables},
        **{f"{chart.name}.svg": chart.svg for part in study.parts for chart in part.charts},
    }
    try:
        for name, content in files.items():
            write_whole(folder / name, content.encode())
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written ({error.strerror})") from error
    return page


def json_text(data: Mapping[str, object]) -> str:
    """What scripts read, indented."""
    return msgspec.json.format(msgspec.json.encode(data), indent=2).decode() + "\n"
