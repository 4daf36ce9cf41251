"""The picture of `bench/fidelity.py`: simulated against real."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headway.results.plots import seconds_text
from headway.results.svg import INK, draw, line_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

SIZE_IN = (4.6, 4.4)
HEADROOM = 1.5

Cells = Mapping[str, Mapping[str, Mapping[str, Any]]]


def fidelity_svg(cells: Cells, metrics: Sequence[str]) -> str:
    """Every cell and metric as a point, real across and simulated up, on log axes; on the line both agree.

    `cells` is {policy: {load: {"real": {metric: seconds}, "simulated": {...}}}}; a colour a metric.
    """
    points = {
        metric: [
            (cell["real"][metric], cell["simulated"][metric])
            for row in cells.values()
            for cell in row.values()
        ]
        for metric in metrics
    }
    values = [value for pairs in points.values() for pair in pairs for value in pair]
    ends = (min(values) / HEADROOM, max(values) * HEADROOM)

    def paint(axes: Axes) -> None:
        axes.set_title("Simulated against real")
        axes.plot(ends, ends, color=INK, linewidth=0.8)
        for index, pairs in enumerate(points.values()):
            axes.plot(*zip(*pairs, strict=True), **_style(index))
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(*ends)
        axes.set_ylim(*ends)
        _label(axes.xaxis)
        _label(axes.yaxis)
        axes.set_xlabel("real")
        axes.set_ylabel("simulated")

    return draw("Simulated against real", SIZE_IN, paint, _legend(metrics))


def _label(axis: Axis) -> None:
    """Ticks at 1, 2 and 5 of each decade, named as a reader would."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: seconds_text(value)))
    axis.set_minor_formatter(NullFormatter())


def _style(index: int) -> dict[str, Any]:
    return {**line_style(index), "linestyle": "", "markersize": 5}


def _legend(metrics: Sequence[str]) -> list[tuple[Any, str]]:
    from matplotlib.lines import Line2D

    return [(Line2D([], [], **_style(index)), metric) for index, metric in enumerate(metrics)]
