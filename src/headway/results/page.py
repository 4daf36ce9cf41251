"""Where pages come from: templates whose strings are escaped, but for charts drawn here."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Template


def page_template(name: str) -> Template:
    """The template of that file; a name it lacks is an error, and `svg` marks a chart of our own as safe."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        autoescape=True,
        loader=PackageLoader("headway.results", "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["svg"] = Markup  # our own charts, whose text is escaped where they are drawn
    return environment.get_template(name)
