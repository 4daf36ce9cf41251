"""The flags that name a trace, alike in every command that reads one."""

from __future__ import annotations

import logging
from typing import Annotated

import typer


class _Stderr(logging.Handler):
    """Writes what is logged to stderr as it is, once for a trace however often it is read or drawn."""

    def __init__(self) -> None:
        super().__init__()
        self._written: set[tuple[str, str]] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line, unless the same was said of the same trace."""
        source = str(record.args[0]) if isinstance(record.args, tuple) and record.args else ""
        if (record.msg, source) not in self._written:
            self._written.add((record.msg, source))
            typer.echo(record.getMessage(), err=True)


def _shown(context: typer.Context, source: str) -> str:
    """Show what is understood of the traces that the command reads."""
    log = logging.getLogger("headway.traces")
    log.handlers = [_Stderr()]  # in place of one that a command left behind whose other flags were refused
    log.setLevel(logging.INFO)

    def end() -> None:
        log.handlers = []
        log.setLevel(logging.NOTSET)

    context.call_on_close(end)
    return source


Trace = Annotated[
    str,
    typer.Option(
        metavar="FILE|gen:SPEC|demo",
        help="Trace file (CSV, JSON, .gz), generated workload, or the demo's.",
        callback=_shown,
    ),
]
TimeUnit = Annotated[
    str | None,
    typer.Option(
        metavar="s|ms|us|ns",
        help="Unit of a trace's timestamps, where the file does not tell it (default: its format's).",
    ),
]
