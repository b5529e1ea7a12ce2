"""Pictures of the tutorial: a series with what is missing of it, lanes, and windows with their completeness.

They take pandas frames with the columns that Weft gives, so they serve streams of your own, too.
"""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib import dates
from matplotlib.figure import Figure

HERE, LATE, LOST, INK, LINE = "#81c995", "#fdd663", "#ee675c", "#3c4043", "#1a73e8"
SLACK = pd.Timedelta("1min")
FONT = {"font.size": 8, "axes.titlesize": 9, "axes.titlelocation": "left", "axes.edgecolor": "#9aa0a6"}


def draw_series(minutes: pd.DataFrame, lanes: pd.DataFrame, lost: pd.DataFrame, now: pd.Timestamp) -> Figure:
    """Return a panel for each edge: its readings, and the time of which readings are late or lost.

    Args:
        minutes: ``edge``, ``minute``, ``temperature``: one row for each minute that has readings.
        lanes: rows of ``spark_sinks.lanes``, one for each edge.
        lost: ``edge``, ``reason``, ``begins``, ``ends``: time between the records around each gap.
        now: the hub's clock.
    """
    with mpl.rc_context(FONT):
        figure = Figure(figsize=(9, 4.6), layout="constrained")
        panels: Any = figure.subplots(len(lanes), 1, sharex=True)
        for axes, lane in zip(panels, lanes.itertuples(), strict=True):
            mine = minutes[minutes["edge"] == lane.edge].set_index("minute")["temperature"]
            # Minutes without readings break the line.
            axes.plot(mine.asfreq("1min"), color=LINE, linewidth=0.9)
            _shade(axes, lane.complete_until, now, LATE, "not here yet")
            for gap in lost[lost["edge"] == lane.edge].itertuples():
                _shade(axes, gap.begins, gap.ends, LOST, f"lost: {gap.reason}")
            axes.set_title(lane.edge)
            axes.set_ylabel("°C")
            _plain(axes)
        _hours(panels[-1], lanes)
    return figure


def draw_lanes(lanes: pd.DataFrame, lost: pd.DataFrame, moment: pd.Timestamp, now: pd.Timestamp) -> Figure:
    """Return a bar for each lane, up to its own moment, and the stream's moment across them.

    Args:
        lanes: rows of ``spark_sinks.lanes``, one for each edge.
        lost: as for ``draw_series``.
        moment: ``complete_until(...).moment``.
        now: the hub's clock.
    """
    begin = (now - pd.Timedelta("1s")).normalize()
    with mpl.rc_context(FONT):
        figure = Figure(figsize=(9, 1.9), layout="constrained")
        axes: Any = figure.subplots()
        for place, lane in enumerate(lanes.itertuples()):
            bars = [(begin, lane.complete_until, HERE), (lane.complete_until, now, LATE)]
            gaps = lost[lost["edge"] == lane.edge].itertuples()
            for start, end, color in [*bars, *((gap.begins, gap.ends, LOST) for gap in gaps)]:
                axes.barh(place, end - start, left=start, height=0.6, color=color)
        axes.axvline(moment, color=INK, linewidth=1.5)
        side = "right" if moment - begin > (now - begin) / 2 else "left"
        text = f"complete until {moment:%H:%M} " if side == "right" else f" complete until {moment:%H:%M}"
        axes.text(moment, -0.45, text, ha=side, va="bottom", color=INK)
        axes.set_yticks(range(len(lanes)), lanes["edge"])
        axes.set_ylim(len(lanes) - 0.5, -0.9)
        _plain(axes)
        _hours(axes, lanes)
    return figure


def draw_windows(windows: pd.DataFrame, lost: pd.DataFrame, title: str) -> Figure:
    """Return a tile for each device and hour with its mean, green where complete; a red frame where records are lost.

    Args:
        windows: ``device``, ``edge``, ``window_start``, ``mean`` and ``_complete``.
        lost: as for ``draw_series``.
    """
    devices = sorted(windows["device"].unique())
    with mpl.rc_context(FONT):
        figure = Figure(figsize=(9, 1.7), layout="constrained")
        axes: Any = figure.subplots()
        for window in windows.rename(columns={"_complete": "is_complete"}).itertuples():
            hour, place = window.window_start.hour, devices.index(window.device)
            end = window.window_start + pd.Timedelta("1h")
            # The records around a gap lie a few seconds outside of it, and perhaps in other hours.
            is_inside = (lost["begins"] < end - SLACK) & (lost["ends"] > window.window_start + SLACK)
            hit = lost[(lost["edge"] == window.edge) & is_inside]
            color = HERE if window.is_complete else LATE
            axes.barh(
                place,
                0.92,
                left=hour + 0.04,
                height=0.84,
                color=color,
                edgecolor=LOST if len(hit) else color,
                linewidth=2 if len(hit) else 0,
            )
            axes.text(hour + 0.5, place, f"{window.mean:.1f}", ha="center", va="center", fontsize=6.5, color=INK)
        axes.set_xlim(0, 24)
        axes.set_xticks(range(0, 25, 3), [f"{hour:02}:00" for hour in range(0, 25, 3)])
        axes.set_yticks(range(len(devices)), devices)
        axes.set_ylim(len(devices) - 0.5, -0.5)
        axes.set_title(title)
        _plain(axes)
    return figure


def _shade(axes: Any, begin: pd.Timestamp, end: pd.Timestamp, color: str, label: str) -> None:
    if begin < end:
        axes.axvspan(begin, end, color=color, alpha=0.5, linewidth=0)
        axes.text(begin, 0.96, f" {label}", transform=axes.get_xaxis_transform(), va="top", color=INK)


def _hours(axes: Any, lanes: pd.DataFrame) -> None:
    day = lanes["complete_until"].min() - pd.Timedelta("1s")
    axes.set_xlim(day.normalize(), day.normalize() + pd.Timedelta("1d"))
    axes.xaxis.set_major_locator(dates.HourLocator(interval=3))
    axes.xaxis.set_major_formatter(dates.DateFormatter("%H:%M"))


def _plain(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(length=2)
