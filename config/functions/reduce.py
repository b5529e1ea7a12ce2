"""Settings of functions that reduce data with a stated bound."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from weft.config.values import Count, Duration, Section

NAMES_MAX = 64
Names = Annotated[tuple[str, ...], Meta(min_length=1, max_length=NAMES_MAX)]
By = Annotated[
    Names | None,
    Meta(
        description="Names of topic levels or fields (or `key`, the topic) that distinguish series. Unset: each topic "
        "is a series."
    ),
]
Missing = Annotated[
    Literal["pass", "reject", "drop"],
    Meta(
        description="Treatment of rows without the field, or with a value that the function cannot compare. "
        "`pass` keeps them, `reject` sends them to the stream of errors, `drop` leaves them out."
    ),
]
KeysMax = Annotated[
    Count,
    Meta(
        description="Number of series that the function remembers, which bounds its memory. Beyond it, the function "
        "forgets the series whose last kept row is the oldest, and keeps their next row as a first one."
    ),
]
Delta = Annotated[
    Annotated[float, Meta(ge=0, le=1e300)] | None,
    Meta(description="Largest difference to the last kept row that is left out, in the field's own unit."),
]
Relative = Annotated[
    Annotated[float, Meta(gt=0, le=1)] | None,
    Meta(
        description="Largest difference as a share of the last kept value: 0.01 is one per cent. With `delta` the "
        "larger of the two counts."
    ),
]


class Sample(Section, frozen=True, kw_only=True):
    """A sample of the rows: each n-th, or one for each period. Give `every` or `period`."""

    every: Annotated[
        Count | None, Meta(description="Keep the first of this many rows of a series, and drop the others.")
    ] = None
    period_s: Annotated[
        Annotated[Duration, Meta(gt=0)] | None,
        Meta(
            description="Keep the first row of a series in each period. Periods are counted from 1970 (UTC), so with "
            "`1m` they begin at full minutes."
        ),
    ] = field(default=None, name="period")
    by: By = None
    keys_max: KeysMax = 100_000


class Band(Section, frozen=True, kw_only=True):
    """Deadband of one field. At least one of `delta` and `relative`."""

    delta: Delta = None
    relative: Relative = None


class Deadband(Section, frozen=True, kw_only=True):
    """Rows that moved: a row is dropped while the field stays near its last kept value. Give `field` or `fields`."""

    field_: Annotated[str | None, Meta(description="Field with the number; dots go into a mapping: `motor.rpm`.")] = (
        field(default=None, name="field")
    )
    delta: Delta = None
    relative: Relative = None
    fields: Annotated[
        Annotated[dict[str, Band], Meta(max_length=NAMES_MAX)],
        Meta(description="Several fields, each with its own band. A row is kept when any of them moved."),
    ] = field(default_factory=dict)
    by: By = None
    max_silence_s: Annotated[
        Annotated[Duration, Meta(gt=0)] | None,
        Meta(
            description="Time since the last kept row of a series after which the next row is kept in any case. "
            "A longer silence then means a silent device. Unset: a series that does not move stays silent."
        ),
    ] = field(default=None, name="max_silence")
    missing: Missing = "pass"
    keys_max: KeysMax = 100_000


class SwingingDoor(Section, frozen=True, kw_only=True):
    """Points of a line that stays within `delta` of all rows: the others are dropped."""

    field_: Annotated[str, Meta(description="Field with the number; dots go into a mapping: `motor.rpm`.")] = field(
        name="field"
    )
    delta: Annotated[
        float,
        Meta(gt=0, le=1e300, description="Largest distance of a dropped row from the line, in the field's own unit."),
    ]
    time: Annotated[
        str | None,
        Meta(
            description="Field with the device's own time as a number, in any unit. Set it when devices send their "
            "readings in bursts. Unset: the time at which the node received the row."
        ),
    ] = None
    by: By = None
    max_silence_s: Annotated[
        Annotated[Duration, Meta(ge=1)],
        Meta(
            description="Longest time that a row is held back, and the longest silence of a series that has rows. The "
            "completeness of the stream lags by up to this time."
        ),
    ] = field(default=300.0, name="max_silence")
    missing: Missing = "pass"
    keys_max: KeysMax = 100_000


class Changes(Section, frozen=True, kw_only=True):
    """Rows that differ from the last kept row of their series; repeats are dropped."""

    fields: Annotated[
        Names | None, Meta(description="Fields that are compared. Unset: the whole payload, byte by byte.")
    ] = None
    by: By = None
    max_silence_s: Annotated[
        Annotated[Duration, Meta(gt=0)] | None,
        Meta(description="Time since the last kept row of a series after which the next row is kept, changed or not."),
    ] = field(default=None, name="max_silence")
    missing: Missing = "pass"
    keys_max: KeysMax = 100_000


class Dedupe(Section, frozen=True, kw_only=True):
    """Rows without repeats of the same message."""

    by: Annotated[
        Names | None,
        Meta(description="Fields (or topic levels) that identify a message together. Unset: its whole payload."),
    ] = None
    within_s: Annotated[
        Annotated[Duration, Meta(gt=0)],
        Meta(description="Time after a kept message during which messages with the same identity are dropped."),
    ] = field(name="within")
    across_keys: Annotated[
        bool,
        Meta(
            description="Whether messages on different topics can be the same. `false` suits numbers that each device "
            "counts for itself."
        ),
    ] = False
    missing: Missing = "pass"
    ids_max: Annotated[
        Count,
        Meta(
            description="Number of identities that the function remembers, which bounds its memory. Beyond it, it "
            "forgets the oldest before their time; repeats of those are kept."
        ),
    ] = 100_000
