"""Plots of signals as SVG, the same bytes each time."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

_RAW, _KEPT, _BAND = "#9aa0a6", "#c5221f", "#fce8e6"


class Panel(NamedTuple):
    """Panel with the kept rows of a function over the raw signal."""

    title: str
    points: list[tuple[float, float]]
    bound: float | None
    """Distance within which the signal is promised to be; None draws no band."""
    is_held: bool
    """True where each value holds until the next point."""
    boxes: Sequence[tuple[float, float, float, float]] = ()
    """Envelopes: beginning, end, least and greatest value."""


def plot(raw: Sequence[tuple[float, float]], panels: Sequence[Panel], *, unit: str) -> str:
    """Return an SVG with the raw signal and what is left of it, a panel below another.

    Args:
        raw: hours and values.
        panels: what to draw over it.
        unit: of the values.
    """
    # Here and not above: other pages are made without it.
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # Text as text and fixed ids: the same file wherever it is made. The font is the reader's.
    with mpl.rc_context(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "weft",
            "font.family": "sans-serif",
            "font.size": 9,
            "path.simplify": True,
            "path.simplify_threshold": 0.3,
        }
    ):
        figure: Any = Figure(figsize=(8.5, 1.75 * len(panels) + 0.4), layout="constrained")
        every = figure.subplots(len(panels), 1, sharex=True, sharey=True)
        for axes, panel in zip(every, panels, strict=True):
            _draw(axes, raw, panel)
            axes.set_ylabel(unit)
        every[-1].set_xlabel("hours")
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return _shorter(file.getvalue())


def _draw(axes: Any, raw: Sequence[tuple[float, float]], panel: Panel) -> None:
    x, y = [each[0] for each in panel.points], [each[1] for each in panel.points]
    style = "steps-post" if panel.is_held else "default"
    if panel.bound is not None:
        low, high = [each - panel.bound for each in y], [each + panel.bound for each in y]
        axes.fill_between(x, low, high, step="post" if panel.is_held else None, color=_BAND, linewidth=0)
    for start, end, low_edge, high_edge in panel.boxes:
        axes.fill_between([start, end], low_edge, high_edge, color=_BAND, edgecolor=_KEPT, linewidth=0.6)
    axes.plot([each[0] for each in raw], [each[1] for each in raw], color=_RAW, linewidth=0.7)
    axes.plot(x, y, color=_KEPT, linewidth=0.8, drawstyle=style, marker=".", markersize=2.5)
    axes.set_title(panel.title, loc="left", fontsize=9)
    axes.set_xlim(raw[0][0], raw[-1][0])
    axes.spines[["top", "right"]].set_visible(False)


def _shorter(svg: str) -> str:
    """Return a picture with two digits after the point, and one style for all dots."""
    svg = re.sub(r"(\d+\.\d{2})\d+", r"\1", svg)
    svg = svg.replace(f' style="fill: {_KEPT}; stroke: {_KEPT}"', "")
    svg = svg.replace(f'" style="stroke: {_KEPT}"/>\n', f'" style="fill: {_KEPT}; stroke: {_KEPT}"/>\n')
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"
