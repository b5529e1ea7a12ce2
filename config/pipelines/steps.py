"""Settings of a pipeline's steps."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from weft.config.pipelines.source import Names
from weft.config.values import Duration, Section, Zone

SQL_CHARACTERS_MAX = 65_536
WINDOW_START = "window_start"
SESSION_COLUMNS = ("session_start", "session_end")
VIEW_NAME = re.compile("[A-Za-z][A-Za-z0-9_]{0,62}")
"""Form of a name by which SQL reads rows."""
ViewName = Annotated[str, Meta(pattern=f"^{VIEW_NAME.pattern}$", extra_json_schema={"examples": ["readings", "warm"]})]
Function = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$",
        extra_json_schema={"examples": ["my_steps:clean"]},
    ),
]
Options = dict[str, Any]
SqlText = Annotated[str, Meta(min_length=1, max_length=SQL_CHARACTERS_MAX)]
Aggregates = Annotated[dict[str, SqlText], Meta(min_length=1, max_length=256)]


class WindowStep(Section, frozen=True, kw_only=True):
    """Aggregates of windows, one row for each window and group. `complete` says when windows are written."""

    every_s: Annotated[
        Duration,
        Meta(ge=1, le=366 * 86_400, description="Length of a window. Windows start at its multiples since 1970, UTC."),
    ] = field(name="every")
    gap_s: Annotated[
        Annotated[Duration, Meta(ge=0.001)] | None,
        Meta(
            description="Silence that ends a session, shorter than `every`. Rows are then sessions of each group, with "
            "`session_start` and `session_end`; they are cut where a window ends, and written while it goes on."
        ),
    ] = field(default=None, name="gap")
    offset_s: Annotated[
        Duration,
        Meta(
            ge=0,
            description="Shift of the starts against full multiples of `every`: `every: 8h` with `offset: 6h` has "
            "shifts from 06:00.",
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
            description="Field of `source.schema` with the time of the event, a `timestamp`. Windows are made by it, "
            "and written again when late events come. Unset: `_time`, when the edge node took the record in."
        ),
    ] = None
    late_s: Annotated[
        Annotated[Duration, Meta(ge=0, le=366 * 86_400)] | None,
        Meta(
            description="Longest time after its event at which a record is taken in, such as `6h` for devices that "
            "buffer up to six hours. A window is complete when the stream is so far. Unset: not known; `_complete` is "
            "then null where no edge node is missing. Only with `time`."
        ),
    ] = field(default=None, name="late")
    ahead_s: Annotated[
        Duration,
        Meta(
            ge=0,
            le=366 * 86_400,
            description="Longest time by which an event may be after the time at which its record was taken in. "
            "Records beyond it are in no window, and counted. Only with `time`.",
        ),
    ] = field(default=86_400.0, name="ahead")
    by: Annotated[Names | None, Meta(description="Columns that make a group. Unset: one group of all rows.")] = None
    emit: Annotated[
        Aggregates,
        Meta(description="Columns of the result: name -> SQL aggregate, such as `rms_max: max(rms)`."),
    ]

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the columns that name a row of the result."""
        return (WINDOW_START, *(self.by or ()), *(() if self.gap_s is None else SESSION_COLUMNS[:1]))


class Step(Section, frozen=True, kw_only=True):
    """One step: `sql`, `python` or `window`. Steps run in their order; each reads `input`, which is what the step
    before it made."""

    name: Annotated[
        ViewName | None, Meta(description="Name by which SQL of later steps may read the rows that this step makes.")
    ] = None
    sql: Annotated[
        SqlText | None,
        Meta(description="A SELECT of Spark SQL. The table `input` has the rows of the step before it."),
    ] = None
    python: Annotated[
        Function | None,
        Meta(
            description="Function `module:function` that takes a DataFrame and returns one. The module is installed, "
            "or a file in the folder of the pipeline."
        ),
    ] = None
    options: Annotated[
        Options, Meta(description="Arguments of the function, by name. Values are text, numbers, lists and mappings.")
    ] = field(default_factory=dict)
    mode: Annotated[
        Literal["stream", "batch"],
        Meta(
            description="Rows that the step gets. `stream`: the streaming DataFrame, on which Spark's operators with "
            "state work. `batch`: those of one micro-batch, as a plain DataFrame. All steps after it are `batch`, too."
        ),
    ] = "stream"
    window: Annotated[
        WindowStep | None,
        Meta(description="Aggregates of windows that know when they are complete. It is the last step."),
    ] = None

    @property
    def kinds(self) -> list[str]:
        """Return which of ``sql``, ``python`` and ``window`` are given; exactly one is right."""
        return [kind for kind in ("sql", "python", "window") if getattr(self, kind) is not None]
