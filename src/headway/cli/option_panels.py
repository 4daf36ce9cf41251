"""Options that `--help` lists under headings of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer


def options_under(heading: str) -> Callable[..., Any]:
    """Makes the options that `--help` lists under `heading`."""

    def option(metavar: str | None = None, text: str | None = None, flag: str | None = None) -> Any:
        names = () if flag is None else (flag,)
        return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=heading)

    return option
