"""The flags that give requests of a trace targets, alike wherever a trace is sent to a server."""

from __future__ import annotations

from typing import Annotated

import typer

SloTtft = Annotated[
    float | None, typer.Option(metavar="S", help="Target for requests that name none: first token.")
]
SloTbt = Annotated[
    float | None, typer.Option(metavar="S", help="Target for requests that name none: between tokens.")
]
