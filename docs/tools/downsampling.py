"""Generator of downsampling.md: the functions that reduce data, run on the real data of the demo, with pictures.

Every number on the page is computed here, by the functions of an edge node and in exact arithmetic.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any, NamedTuple

import msgspec
import zstandard

from docs.tools.plots import Panel, plot
from examples.demo.devices import TELEMETRY, lines
from weft.config.functions.step import Deadband, Sample, SwingingDoor
from weft.config.functions.windows import Window
from weft.config.units import format_duration
from weft.functions.aggregates import error_of, lttb
from weft.functions.chain import Outputs
from weft.functions.contract import Context, Function, Row
from weft.functions.thinning import DeadbandFunction, SampleFunction, SwingingDoorFunction
from weft.functions.windows import WindowFunction
from weft.protocols.batch import ClockReading, ClockState, columns_from_lists, encode

_SECOND = 10**9
_HOUR_S = 3600
_BATCH_ROWS = 1000
_DAY = 86_400 * _SECOND
_GENERATED = "<!-- Written by docs/tools/downsampling.py from the code and the demo's data. Edit the code. -->"


class Signal(NamedTuple):
    """A real series and how it is reduced here."""

    name: str
    title: str
    unit: str
    rows: list[Row]
    delta: float
    window_s: int
    """Length of the windows of which the envelope is taken."""
    shown: slice
    """Part of it that the picture shows."""


class Box(NamedTuple):
    """Envelope of a window."""

    start: int
    end: int
    low: float
    high: float


class Result(NamedTuple):
    """Outcome of a function on a signal."""

    label: str
    setting: str
    kept: list[int]
    """Indexes of the rows that came out, in order."""
    size: int
    """Bytes of what came out, as batches of the log."""
    bound: float | None
    error: Fraction
    """Largest distance of a row from the signal rebuilt from the kept ones."""
    is_held: bool
    """True where the signal is rebuilt by holding the last value, and false where by straight lines."""
    boxes: list[Box] = []
    """Envelopes of windows, in place of kept rows."""


def pages() -> dict[str, str]:
    """Return file name below ``docs`` -> content, of the page and its pictures."""
    found: dict[str, str] = {}
    sections: list[str] = []
    for signal in _signals():
        results = list(_results(signal))
        found[f"pictures/{signal.name}.svg"] = _picture(signal, results)
        image = f"![{signal.title}](pictures/{signal.name}.svg)"
        sections += [f"## {signal.title}", "", *_table(signal, results), "", image, ""]
    return {"downsampling.md": "\n".join([_HEAD, *sections, _FOOT]), **found}


_HEAD = f"""\
# Downsampling on real data
{_GENERATED}

What [deadband](functions/deadband.md), [swinging_door](functions/swinging_door.md) and
[windows](functions/window.md) leave of real signals, and how far the signal that is rebuilt from it is off. The data
comes with the demo (`examples/demo/data`, MIT licence); each row is a JSON message with what a device measured.

Sizes are those of batches of up to 1,000 rows, as they are in the log and on a link. They count times, compression,
and the headers that state the bounds. Errors are the largest of all rows, in exact arithmetic. A deadband's signal is
rebuilt by holding the last value, the others by straight lines between the rows. The pictures show a part of each
signal: what was raw is grey, what is left is red, and the band is the bound.

The envelope of a [window](functions/window.md) is its least, greatest, first and last value: one row for each window.
Its bound is half of the widest range, which the rows themselves say, around the middle.

[sample](functions/sample.md) is for comparison. It keeps about as many rows as the swinging door, and what it
loses is known only here, where the raw signal is.
"""
_FOOT = """
## How to read it

- A deadband suits values that rarely change, and everything that needs its rows at once: it holds nothing back.
- A swinging door suits what rises and falls evenly. Where a signal is noise and steps, it keeps more rows than a
  deadband of the same bound: a line through a noisy row is off soon.
- LTTB is for pictures: a fixed number of points for each window, with its ends and extremes. The error of a window is
  known when the window is over. A short spike has its peak, and slopes that it did not have.
- An envelope loses no extreme and takes the fewest rows; where within a window a value was is not known.
- A bound below the noise of a sensor keeps nearly everything. Look at the noise first, then choose.
"""


def _signals() -> list[Signal]:
    return [
        Signal(
            "machine-temperature",
            "Temperature of a machine, every 5 minutes for 79 days",
            "°F",
            _csv_rows("machine_temperature_system_failure.csv.gz"),
            2.0,
            6 * _HOUR_S,
            slice(3600, 4500),
        ),
        Signal(
            "office-temperature",
            "Temperature of an office, hourly for 10 months",
            "°F",
            _csv_rows("ambient_temperature_system_failure.csv.gz"),
            1.0,
            24 * _HOUR_S,
            slice(3000, 3500),
        ),
        Signal(
            "humidity",
            "Humidity beside a Raspberry Pi, every 6 seconds for a day",
            "%",
            _device_rows("iot-device-01", "humidity"),
            0.5,
            600,
            slice(2000, 3200),
        ),
        Signal(
            "carbon-monoxide",
            "Carbon monoxide beside a Raspberry Pi, every 6 seconds for a day",
            "ppm",
            _device_rows("iot-device-01", "co"),
            0.0002,
            600,
            slice(2000, 3200),
        ),
    ]


def _csv_rows(name: str) -> list[Row]:
    readings = csv.DictReader(lines(name))
    pairs = ((_time_of(each["timestamp"]), {"value": float(each["value"])}) for each in readings)
    return [Row(time, b"x", msgspec.json.encode(values), values, (), at) for at, (time, values) in enumerate(pairs)]


def _time_of(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * _SECOND


def _device_rows(device: str, field: str) -> list[Row]:
    messages = (json.loads(line) for line in lines(TELEMETRY))
    of_device = (each for each in messages if each["device"] == device)
    return [
        Row(round(each["ts"] * _SECOND), b"x", msgspec.json.encode(each), {"value": each["data"][field]}, (), at)
        for at, each in enumerate(of_device)
    ]


def _results(signal: Signal) -> Iterator[Result]:
    context = Context("", (), lambda _: {}, ())
    delta = signal.delta
    deadband = Deadband(field_="value", delta=delta)
    yield _run(signal, "deadband", f"delta: {delta:g}", DeadbandFunction(deadband, context), bound=delta, is_held=True)
    door = SwingingDoor(field_="value", delta=delta, max_silence_s=7 * 86_400.0)
    pivots = _run(signal, "swinging_door", f"delta: {delta:g}", SwingingDoorFunction(door, context), bound=delta)
    yield pivots
    yield _windows(signal, len(pivots.kept))
    yield _envelopes(signal, context)
    every = round(len(signal.rows) / len(pivots.kept))
    yield _run(signal, "sample", f"every: {every}", SampleFunction(Sample(every=every), context))


def _run(
    signal: Signal, label: str, setting: str, function: Function, bound: float | None = None, *, is_held: bool = False
) -> Result:
    kept = _through(function, signal.rows)
    size = _stored(kept)
    numbers = sorted(row.seq for row in kept)
    return Result(label, setting, numbers, size, bound, _error(signal.rows, numbers, is_held=is_held), is_held)


def _through(function: Function, rows: Sequence[Row]) -> list[Row]:
    """Return what a function makes of rows, as a node would give them, and of the time after the last."""
    out, made = Outputs(), list[Row]()
    for row in rows:
        while (due := function.due()) is not None and due < row.time:
            made += function.tick(due, out)
        made += function.process([msgspec.structs.replace(row)], out)
    while (due := function.due()) is not None:
        made += function.tick(due, out)
    assert not out.rejected
    return made


def _windows(signal: Signal, count: int) -> Result:
    """Choose about as many points as another function, by LTTB in windows of a day or of an hour."""
    span = signal.rows[-1].time - signal.rows[0].time
    length, name = (_DAY, "1d") if span > 10 * _DAY else (_DAY // 24, "1h")
    windows = [list(rows) for _, rows in itertools.groupby(signal.rows, key=lambda row: row.time // length)]
    points = max(4, round(count / len(windows)))
    kept, bound = [], 0.0
    for rows in windows:
        times, values = [row.time for row in rows], [row.values["value"] for row in rows]
        chosen = lttb(times, values, points)
        bound = max(bound, error_of(times, values, chosen))
        kept += [rows[at].seq for at in chosen]
    kept.sort()
    size = _stored([signal.rows[at] for at in kept])
    return Result("lttb", f"every: {name}, {points} points", kept, size, bound, _error(signal.rows, kept), False)


def _envelopes(signal: Signal, context: Context) -> Result:
    settings = Window(every_s=float(signal.window_s), emit={"value": "envelope(value)"})
    rows = _through(WindowFunction(settings, context._replace(stream="x", inputs=("raw",))), signal.rows)
    found = {}
    for row in rows:
        row.payload = msgspec.json.encode(row.values)
        window = row.time // (signal.window_s * _SECOND)
        found[window] = (row.values["value_min"], row.values["value_max"])
    worst, bound = Fraction(0), Fraction(0)
    for row in signal.rows:
        low, high = map(Fraction, found[row.time // (signal.window_s * _SECOND)])
        bound = max(bound, (high - low) / 2)
        worst = max(worst, abs(Fraction(row.values["value"]) - (low + high) / 2))
    length = signal.window_s * _SECOND
    boxes = [Box(window * length, (window + 1) * length, *values) for window, values in found.items()]
    setting = f"every: {format_duration(signal.window_s)}, envelope"
    # A double that is not below the half.
    stated = float(bound) if Fraction(float(bound)) >= bound else math.nextafter(float(bound), math.inf)
    return Result("window", setting, [0] * len(rows), _stored(rows), stated, worst, False, boxes)


def _stored(rows: Sequence[Row]) -> int:
    """Return the bytes that rows take as batches."""
    size = 0
    clock = ClockReading(1, 0, ClockState.SYNCED)
    for first in range(0, len(rows), _BATCH_ROWS):
        some = rows[first : first + _BATCH_ROWS]
        columns = columns_from_lists(
            array("q", [row.time for row in some]).tobytes(),
            [row.key for row in some],
            [row.payload or b"" for row in some],
            {at: row.headers for at, row in enumerate(some) if row.headers},
        )
        size += len(encode(1, 0, columns, clock, zstandard.ZstdCompressor(level=1)))
    return size


def _error(rows: Sequence[Row], kept: list[int], *, is_held: bool = False) -> Fraction:
    """Return how far the rows are from the signal that is rebuilt from the kept ones."""
    found: list[tuple[float, int, int, int]] = []
    for left, right in itertools.pairwise([*kept, len(rows)]):
        first, time = rows[left].values["value"], rows[left].time
        # After the last kept row there is no line: its value holds.
        is_flat = is_held or right == len(rows) or rows[right].time <= time
        end = left if is_flat else right
        slope = 0.0 if is_flat else (rows[end].values["value"] - first) / (rows[end].time - time)
        for row in rows[left + 1 : right]:
            found.append((abs(first + slope * (row.time - time) - row.values["value"]), left, end, row.seq))
    # Exactly, of those that doubles cannot tell from the worst.
    worst = max((each[0] for each in found), default=0.0)
    near = [_distance(rows[left], rows[end], rows[at]) for off, left, end, at in found if off >= worst * (1 - 1e-6)]
    return max(near, default=Fraction(0))


def _distance(left: Row, end: Row, row: Row) -> Fraction:
    first, slope = Fraction(left.values["value"]), Fraction(0)
    if end is not left:
        slope = (Fraction(end.values["value"]) - first) / (end.time - left.time)
    return abs(first + slope * (row.time - left.time) - Fraction(row.values["value"]))


def _table(signal: Signal, results: list[Result]) -> Iterator[str]:
    total, size = len(signal.rows), _stored(signal.rows)
    payloads = sum(len(row.payload or b"") for row in signal.rows)
    yield f"{total:,} rows with {payloads:,} bytes of payload; {size:,} bytes as batches. In {signal.unit}."
    yield ""
    yield "| function | settings | rows kept | of all | bytes saved | bound | largest error | held |"
    yield "|---|---|---:|---:|---:|---:|---:|---|"
    for each in results:
        held = "none stated" if each.bound is None else "yes" if each.error <= Fraction(each.bound) else "**no**"
        bound = "" if each.bound is None else f"{each.bound:.4g}"
        cells = (
            f"`{each.label}`",
            f"`{each.setting}`",
            f"{len(each.kept):,}",
            f"{len(each.kept) / total:.1%}",
            f"{1 - each.size / size:.1%}",
            bound,
            f"{float(each.error):.4g}",
            held,
        )
        yield f"| {' | '.join(cells)} |"


def _picture(signal: Signal, results: list[Result]) -> str:
    rows = signal.rows[signal.shown]
    first, last = rows[0].seq, rows[-1].seq

    def points(numbers: Any) -> list[tuple[float, float]]:
        return [
            ((signal.rows[at].time - rows[0].time) / _SECOND / 3600, signal.rows[at].values["value"]) for at in numbers
        ]

    def hours(time: int) -> float:
        return (time - rows[0].time) / _SECOND / 3600

    panels = [
        Panel(
            f"{each.label} ({each.setting})",
            [],
            None,
            False,
            [
                (hours(box.start), hours(box.end), box.low, box.high)
                for box in each.boxes
                if box.end > rows[0].time and box.start <= rows[-1].time
            ],
        )
        if each.boxes
        else Panel(
            f"{each.label} ({each.setting}): {sum(first <= at <= last for at in each.kept)} of {len(rows)} rows",
            points(_around(each.kept, first, last)),
            each.bound if each.label in ("deadband", "swinging_door") else None,
            each.is_held,
        )
        for each in results
    ]
    return plot(points(range(first, last + 1)), panels, unit=signal.unit)


def _around(kept: list[int], first: int, last: int) -> list[int]:
    """Return the kept rows of a part, and those beside it, to which the lines at its ends lead."""
    return kept[max(bisect_right(kept, first) - 1, 0) : bisect_left(kept, last) + 1]
