"""What a check came to, for people."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headway.planner.deploy import command
from headway.planner.verify import KEYS, Verified
from headway.results import COLUMNS
from headway.results.tables import MISSING

GOODPUT = "goodput"


def verify_table(verified: Verified) -> RenderableType:
    """Predicted beside achieved, with the errors; then what was served how."""
    table = Table(box=SIMPLE_HEAD, header_style="", title="in this machine's engine", title_justify="left")
    for heading in ("", "predicted", "achieved", "error", "by the\nprofile alone", "at the\nclient"):
        table.add_column(heading, justify="right" if heading else "left", vertical="bottom")
    errors = [verified.errors(each) for each in (verified.predicted, verified.by_profile)]
    for key in KEYS:
        if verified.achieved[key] is not None:
            shown = (_value(verified.predicted[key]), _value(verified.achieved[key]))
            off = [_error(key, each[key]) for each in errors]
            table.add_row(Text(COLUMNS[key].heading), *shown, *off, _value(verified.at_client[key]))
    served = verified.served
    lines = (
        f"{verified.requests:,} requests at {verified.rate_rps:.3g} a second; serving makes steps "
        f"{served.step_factor:.2f} times as long as profiled and {served.step_s * 1e3:.1f} ms more, and adds "
        f"{served.first_token_s * 1e3:.1f} ms to the first token (as every other one tells; the rest is compared); "
        "the client sent its requests up to "
        f"{verified.client_late_s * 1e3:.0f} ms late",
        f"deployed: {command(verified.words)}",
    )
    return Group(table, *map(Text, lines))


def _value(value: float | None) -> str:
    return MISSING if value is None else f"{value:.3f}"


def _error(key: str, error: float | None) -> str:
    if error is None:
        return MISSING
    return f"{error:+.3f}" if key == GOODPUT else f"{error:+.1%}"
