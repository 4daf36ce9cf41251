"""Any value against a setting: a line for each series, single points for published ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headway.results.svg import INK, draw, line_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SIZE_IN = (4.6, 3.1)
_LEVEL_STYLE: dict[str, Any] = {"color": INK, "linewidth": 1.0, "linestyle": ":"}
_PUBLISHED_SIZE = 9

Points = Sequence[tuple[float, float | None]]
"""(setting, value); None is left out of its line."""


def settings_svg(
    title: str,
    curves: Mapping[str, Points],
    *,
    x_label: str,
    y_label: str,
    published: Mapping[str, tuple[float, float]] | None = None,
    level: float | None = None,
    doubling: bool = True,
) -> str:
    """A chart whose x axis is labelled at the settings themselves; logarithmic to base 2 where they are `doubling`.

    A `published` point has the colour of the curve of its name, is hollow, and is named "(paper)" in the legend;
    `level` is a dotted line, as at no gain.
    """
    published = published or {}

    def paint(axes: Axes) -> None:
        axes.set_title(title)
        for index, (name, points) in enumerate(curves.items()):
            drawn = [(x, y) for x, y in points if y is not None]
            axes.plot([x for x, _ in drawn], [y for _, y in drawn], markersize=4, **line_style(index))
            if name in published:
                axes.plot(*published[name], **_published_style(index))
        if level is not None:
            axes.axhline(level, **_LEVEL_STYLE)
        if doubling:
            axes.set_xscale("log", base=2)
        _label_settings(axes, sorted({x for points in curves.values() for x, _ in points}))
        axes.set_ylim(bottom=0)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)

    return draw(title, _SIZE_IN, paint, _legend(list(curves), published))


def _published_style(index: int) -> dict[str, Any]:
    style = {"color": line_style(index)["color"], "linestyle": "", "marker": line_style(index)["marker"]}
    return {
        **style,
        "clip_on": False,
        "markersize": _PUBLISHED_SIZE,
        "markerfacecolor": "none",
        "markeredgewidth": 1.6,
    }


def _label_settings(axes: Axes, settings: Sequence[float]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.xaxis.set_major_locator(FixedLocator(list(settings)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _legend(names: Sequence[str], published: Mapping[str, tuple[float, float]]) -> list[tuple[Any, str]]:
    from matplotlib.lines import Line2D

    entries: list[tuple[Any, str]] = []
    for index, name in enumerate(names):
        entries.append((Line2D([], [], **line_style(index)), name))
        if name in published:
            entries.append((Line2D([], [], **_published_style(index)), f"{name} (paper)"))
    return entries
