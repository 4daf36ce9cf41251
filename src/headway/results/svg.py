"""Draws charts as SVG with one style: equal input gives equal bytes, and colours follow the page."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#7F7F7F")
"""Colours that colour-blind readers can distinguish, visible on white and on black.

Source: Okabe and Ito 2008, Color Universal Design; their yellow and black vanish on one of the two backgrounds.
"""

DASHES: tuple[Any, ...] = ("solid", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
MARKERS = "osD^vPX"

INK, _GRID = "#010203", "#040506"  # placeholders for colours that follow the page's light or dark mode
_THEME = {INK: "currentColor", _GRID: "var(--grid, #d5dae1)"}

_MAX_LABEL = 40
_CHARACTERS_PER_IN = 14  # characters of legend text at the font size below
_LEGEND_HANDLE_CHARACTERS = 6

_ROOT_STYLE = "font-family: system-ui, sans-serif; stroke-linejoin: round; stroke-linecap: butt"

_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "text.usetex": False,
    "text.parse_math": False,  # a policy name may contain any character
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": _GRID,
    "axes.facecolor": "none",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": _GRID,
    "grid.linewidth": 0.6,
    "xtick.color": _GRID,
    "ytick.color": _GRID,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
}


def line_style(index: int) -> dict[str, Any]:
    """Colour, dashes and marker of the policy at `index`: fixed by its place, different for the first 28."""
    turn = index // len(PALETTE)
    return {
        "color": PALETTE[index % len(PALETTE)],
        "linestyle": DASHES[turn % len(DASHES)],
        "marker": MARKERS[index % len(MARKERS)],
    }


def draw(
    title: str,
    size_in: tuple[float, float],
    paint: Callable[[Axes], None],
    legend: Sequence[tuple[Any, str]] = (),
) -> str:
    """An SVG element of `size_in` inches, painted on one pair of axes, with its legend below.

    It has no date, no version and no outside reference. `title` is its accessible name and also makes its inner ids
    unique, so two charts of a page need different titles.
    """
    import matplotlib
    from matplotlib.figure import Figure

    style: Any = {**_STYLE, "svg.hashsalt": title}
    with matplotlib.rc_context(style), warnings.catch_warnings():
        # The reader's browser renders the text, so a glyph missing in matplotlib's own font is no loss.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=size_in, layout="constrained")
        paint(figure.add_subplot())
        if legend:
            _add_legend(figure, legend)
        return _to_svg(figure, title)


def _add_legend(figure: Figure, entries: Sequence[tuple[Any, str]]) -> None:
    """Name the entries below the chart, in as many columns as the longest name allows."""
    names = [name if len(name) <= _MAX_LABEL else f"{name[: _MAX_LABEL - 1]}…" for _, name in entries]
    room = figure.get_figwidth() * _CHARACTERS_PER_IN
    columns = max(1, int(room / (max(map(len, names)) + _LEGEND_HANDLE_CHARACTERS)))
    handles = [handle for handle, _ in entries]
    legend = figure.legend(handles, [""] * len(names), loc="outside lower left", ncols=columns)
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_text(name)  # set afterwards: a label that starts with "_" would be left out


def _to_svg(figure: Figure, title: str) -> str:
    out = StringIO()
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    figure.savefig(out, format="svg", metadata=nothing, transparent=True)
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]  # an element for a page needs no XML prologue
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)  # names like "axes_1" would be repeated on a page of charts
    svg = re.sub(
        r"\s*<defs>\s*<style[^>]*>[^<]*</style>\s*</defs>", "", svg, count=1
    )  # would style the whole page
    svg = re.sub(r'(<text style="[^"]*?)font-family: [^;"]*; ', r"\1", svg)
    for stand_in, colour in _THEME.items():
        svg = svg.replace(f": {stand_in}", f": {colour}")
    name = escape(title)
    head, _, rest = svg.partition(">")
    head += f' role="img" aria-label="{name}" style="{_ROOT_STYLE}"'
    return f"{head}>\n <title>{name}</title>{rest.rstrip()}\n"


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
    """A chart whose x axis is labelled at the settings themselves; logarithmic to base 2 if they are `doubling`.

    A `published` point has the colour of the curve with its name, is hollow, and is named "(paper)" in the legend;
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
