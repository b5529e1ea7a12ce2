"""Settings of windows: the rows of each, the time at which it closes, and its results."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from weft.config.functions.fields import FIELDS_MAX
from weft.config.functions.settings import FunctionSettings
from weft.config.values import Count, Duration, Expression, MiB, Size, Zone

By = Annotated[tuple[str, ...], Meta(min_length=1, max_length=16)]
Emit = Annotated[dict[str, Expression], Meta(min_length=1, max_length=FIELDS_MAX)]
"""Name of a field -> aggregate of an expression."""

Length = Annotated[Duration, Meta(ge=0.001, le=366 * 86_400)]
DAY_S = 86_400.0


class Windowing(FunctionSettings, frozen=True, kw_only=True):
    """Windows over the rows of a stream."""

    every_s: Annotated[
        Length | None,
        Meta(
            description="Distance between the starts of windows, counted from 1970 in UTC: `every: 1m` has windows "
            "from each full minute to the next."
        ),
    ] = field(default=None, name="every")
    size_s: Annotated[
        Length | None,
        Meta(
            description="Length of a window, a multiple of `every`: windows then overlap (hopping). "
            "Unset: as long as `every`."
        ),
    ] = field(default=None, name="size")
    gap_s: Annotated[
        Length | None,
        Meta(
            description="Silence that ends a session. A window then holds the rows of one group that follow each "
            "other faster. Not together with `every`."
        ),
    ] = field(default=None, name="gap")
    longest_s: Annotated[
        Length,
        Meta(description="Longest session. A row beyond it begins a new one."),
    ] = field(default=DAY_S, name="longest")
    offset_s: Annotated[
        Duration,
        Meta(
            ge=0,
            description="Shift of the starts against full multiples of `every`: `every: 1d` with `offset: 5h` has "
            "days from 05:00 UTC.",
        ),
    ] = field(default=0.0, name="offset")
    zone: Annotated[
        Zone | None,
        Meta(
            description="Time zone by whose clocks windows start, such as Europe/Berlin; for windows of 2h or more "
            "that divide a day, or of whole days. A day in which clocks are set has 23 or 25 hours. Unset: UTC."
        ),
    ] = None
    time: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(
            description="Field with the time of the event: ISO 8601 text, or a number. "
            "Unset: the time at which the node received the record.",
        ),
    ] = None
    time_zone: Annotated[
        Zone,
        Meta(
            description="Time zone of texts in the `time` field that name no offset. Where its clocks show a time "
            "twice, the first is taken."
        ),
    ] = "UTC"
    time_unit: Annotated[
        Literal["s", "ms", "us", "ns"],
        Meta(description="Unit of a number in the `time` field, counted since 1970."),
    ] = "s"
    lateness_s: Annotated[
        Duration,
        Meta(
            ge=0,
            le=366 * DAY_S,
            description="How much older a row may be than the newest of its group. A window closes when an event "
            "of its group is this much later than its end. Only with `time`.",
        ),
    ] = field(default=0.0, name="lateness")
    idle_s: Annotated[
        Length | None,
        Meta(
            description="Silence of a group after which its windows close. Unset: the length of a window (or "
            "`gap`) and `lateness`. Only with `time`."
        ),
    ] = field(default=None, name="idle")
    ahead_s: Annotated[
        Duration,
        Meta(
            ge=0,
            description="How far the time of an event may be after the time at which the node received it. Rows "
            "beyond it go to the errors: a wrong clock would close the windows of its group early. "
            "Only with `time`.",
        ),
    ] = field(default=DAY_S, name="ahead")
    late_rows: Annotated[
        Literal["errors", "drop"],
        Meta(
            description="Destination of rows that arrive after all their windows closed. `late` counts them either "
            "way. `errors` keeps them in the stream of errors."
        ),
    ] = "errors"
    by: Annotated[
        By,
        Meta(
            description="Grouping of the rows: `key` (the topic), `none` (all rows), or names of topic levels and "
            "fields: `by: [line, machine]`. Each group has its own windows."
        ),
    ] = ("key",)
    keys_max: Annotated[
        Count, Meta(le=1_000_000, description="Maximum number of groups. Rows of further groups go to the errors.")
    ] = 20_000
    windows_max: Annotated[
        Count,
        Meta(
            le=10_000_000,
            description="Maximum number of open windows of all groups; for hopping windows, of their parts of length "
            "`every`. One group may have a hundredth of them, and at least 100, or as many as its `size` and "
            "`lateness` need. Rows beyond go to the errors.",
        ),
    ] = 100_000
    memory_bytes: Annotated[
        Size,
        Meta(
            ge=1 << 10,
            description="Most memory for the rows that `lttb` and `sql` keep, of all open windows together. Rows "
            "beyond go to the errors, and their windows are incomplete.",
        ),
    ] = field(default=64 * MiB, name="memory")

    @property
    def new_key(self) -> tuple[str, ...] | None:
        """Return the names whose values make the key of a result; None where it is the topic."""
        return None if self.by == ("key",) else () if self.by == ("none",) else self.by


class Window(Windowing, frozen=True, kw_only=True):
    """Aggregates of windows, one row for each window and group."""

    emit: Annotated[
        Emit,
        Meta(
            description="Fields of the result: name -> aggregate, such as `rms_max: max(rms)`. Aggregates are "
            "`count`, `sum`, `mean`, `min`, `max`, `first`, `last`, `stddev`, `median`, "
            "`quantile(x, 0.99)`, `envelope` and `lttb(x, 100)`."
        ),
    ]
    accuracy: Annotated[
        float,
        Meta(
            ge=0.001,
            le=0.1,
            description="Largest relative error of quantiles. A tenth of it takes ten times the memory.",
        ),
    ] = 0.01
    rows_max: Annotated[
        Count,
        Meta(
            le=1_000_000,
            description="Maximum number of rows in a window, or in a part of length `every`, that `lttb` reads. "
            "Rows beyond go to the errors, and the window is incomplete.",
        ),
    ] = 10_000


class Sql(Windowing, frozen=True, kw_only=True):
    """A SELECT over the rows of each window, run when the window closes."""

    select: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=16_384,
            description="One SELECT of SQLite over the table `input`: the fields of the rows, the topic's levels, "
            "`key` and `time` (seconds since 1970).",
        ),
    ]
    rows_max: Annotated[
        Count,
        Meta(
            le=1_000_000,
            description="Maximum number of rows of a window, or of a part of length `every`. Topics have equal shares. "
            "Rows beyond go to the errors, and the window is incomplete.",
        ),
    ] = 10_000
    bytes_max: Annotated[
        Size,
        Meta(
            ge=4096,
            le=16 << 20,
            description="Maximum size of these rows. Rows beyond go to the errors, and the window is incomplete.",
        ),
    ] = field(default=4 << 20, name="size_max")
    steps_max: Annotated[
        Count,
        Meta(
            description="Maximum work of one SELECT, in steps of SQLite's virtual machine: about 20 million a second. "
            "A SELECT beyond it is stopped, and an error is written in place of its rows."
        ),
    ] = 10_000_000
    results_max: Annotated[
        Count,
        Meta(le=100_000, description="Maximum number of rows that one SELECT returns. More are an error."),
    ] = 1_000
