"""Entry of a stream's list of functions: the name of a function and its settings."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, field

from weft.config.functions.settings import FIELDS_MAX, Fields, FunctionSettings, Select
from weft.config.functions.windows import Sql, Window
from weft.config.units import Count, Duration, Expression, MiB, OneOf, Path, Section, Size

# Settings of functions that reduce data with a stated bound.

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


# Settings of functions that run a user's own code.

Files = Annotated[tuple[str, ...], Meta(max_length=16, extra_json_schema={"x-unit": "path"})]


class Python(Section, frozen=True, kw_only=True):
    """A function of yours in a Python file. It runs in a process of its own, with limits on time and memory."""

    file: Annotated[
        Path,
        Meta(
            description="File with the code. It has `process(record, ctx)` or `process_batch(records, ctx)`, and "
            "maybe `setup(ctx)`. A change of the file is tried on the next records, and reverted if it fails."
        ),
    ]
    function: Annotated[
        Annotated[str, Meta(min_length=1, max_length=256)] | None,
        Meta(description="Name of the function in the file. Unset: `process`, or `process_batch` with `batch`."),
    ] = None
    batch: Annotated[
        bool,
        Meta(
            description="`true` calls the function with a list of records, and it returns a list with one entry for "
            "each. Right for models."
        ),
    ] = False
    files: Annotated[
        Files,
        Meta(
            description="Further files that the code opens or imports by their names, such as a model. A change of "
            "one is a new version."
        ),
    ] = ()
    timeout_s: Annotated[
        Duration,
        Meta(
            ge=0.01,
            le=3600,
            description="Longest time of one call. A record whose call takes longer goes to the stream of errors.",
        ),
    ] = field(default=1.0, name="timeout")
    start_timeout_s: Annotated[
        Duration, Meta(ge=0.1, le=3600, description="Longest time to load the file and to run `setup`.")
    ] = field(default=30.0, name="start_timeout")
    memory_bytes: Annotated[
        Size,
        Meta(
            ge=32 * MiB,
            description="Memory of the process. A record whose call needs more goes to the stream of errors.",
        ),
    ] = field(default=128 * MiB, name="memory")
    state_bytes: Annotated[
        Size,
        Meta(le=32 * MiB, description="Most that `ctx.state` may hold. It is kept in the log, and survives restarts."),
    ] = field(default=1 * MiB, name="state")


# Settings of the function that publishes alerts.

Template = Annotated[str, Meta(min_length=1, max_length=4096)]


class Alert(FunctionSettings, frozen=True, kw_only=True):
    """A message to a local MQTT topic when a condition becomes true. The records pass unchanged."""

    when: Annotated[Expression, Meta(description="Condition that begins an alert.")]
    until: Annotated[
        Expression | None,
        Meta(
            description="Condition that ends an alert, such as `temperature < 70` for an alert at 80. Unset: an alert "
            "ends with the first record for which `when` is false."
        ),
    ] = None
    topic: Annotated[
        Template,
        Meta(
            description="Topic of the message. `{key}`, names of topic levels and of fields in braces are replaced, as "
            'in `"alerts/{line}/{machine}"`.'
        ),
    ]
    payload: Annotated[
        Fields | Template | None,
        Meta(
            description="Payload: a mapping of names to expressions, sent as JSON, or a text with names in braces. "
            "Unset: JSON with `key`, `time` and `values`, the record's fields."
        ),
    ] = None
    cleared: Annotated[
        Fields | Template | None, Meta(description="Payload of a message for the end of an alert. Unset: none is sent.")
    ] = None
    every_s: Annotated[
        Annotated[Duration, Meta(ge=1)] | None,
        Meta(description="Time after which the message is sent again while the alert continues. Unset: it is not."),
    ] = field(default=None, name="every")
    qos: Annotated[int, Meta(ge=0, le=2, description="QoS of the message.")] = 1
    retain: Annotated[
        bool, Meta(description="`true` keeps the message for clients that subscribe later. Set `cleared` as well.")
    ] = False
    keys: Annotated[
        Count,
        Meta(
            description="Most keys in alert at a time. Beyond them the oldest alert is forgotten, and may be sent "
            "again."
        ),
    ] = 10_000

    @property
    def topics(self) -> tuple[str, ...]:
        """Return the topic, with names in braces."""
        return (self.topic,)


# Settings of the function that looks up fields in a file.

Columns = Annotated[tuple[str, ...], Meta(max_length=FIELDS_MAX)]


class Enrich(Section, frozen=True, kw_only=True):
    """Fields from a file with one row for each machine, device or other name in a record."""

    file: Annotated[
        Path,
        Meta(
            description="CSV file in UTF-8 whose first line names its columns, or an SQLite database. It is read "
            "again when it changes; an unusable file is ignored, and the previous one stays in use."
        ),
    ]
    on: Annotated[
        str, Meta(min_length=1, description="Field or topic level whose value is looked up, such as `machine`.")
    ]
    column: Annotated[
        str | None, Meta(description="Column that has the values of `on`. Unset: the column of the same name.")
    ] = None
    fields: Annotated[
        Columns,
        Meta(description="Columns to add to each record, as fields of their names. Unset: all others of the file."),
    ] = ()
    numbers: Annotated[
        Columns,
        Meta(
            description="Columns of a CSV file that hold numbers. All others are text. SQLite knows its types itself."
        ),
    ] = ()
    missing: Annotated[
        Literal["keep", "drop", "reject"],
        Meta(
            description="Treatment of a record whose value is not in the file. `keep` adds the fields as null. "
            "`drop` discards the record. `reject` sends it to the stream of errors."
        ),
    ] = "keep"
    table: Annotated[
        str | None, Meta(description="Table or view of an SQLite database. Unset: the only one that it has.")
    ] = None
    rows: Annotated[Count, Meta(description="Most rows that the file may have.")] = 100_000
    memory_bytes: Annotated[
        Size, Meta(ge=1 << 10, description="Most memory for the rows. A larger file is refused.")
    ] = field(default=32 * MiB, name="memory")


# Settings of ``redact``.

_NAMES = Meta(max_length=FIELDS_MAX)


class Redact(Section, frozen=True, kw_only=True):
    """Fields that the node removes, or replaces by a fixed text or a keyed hash. `redact: [a, b]` removes fields."""

    remove: Annotated[
        Annotated[tuple[str, ...], _NAMES], Meta(description="Fields to remove; a nested field is `owner.name`.")
    ] = ()
    replace: Annotated[
        Annotated[dict[str, str], _NAMES], Meta(description='Fields whose value becomes a fixed text: `plate: "***"`.')
    ] = {}
    hash: Annotated[
        Annotated[tuple[str, ...], _NAMES],
        Meta(
            description="Fields whose value becomes 32 hex digits: a hash (HMAC-SHA256) with the key in `key_file`. "
            "The same value has the same hash, so that rows can still be grouped."
        ),
    ] = ()
    headers: Annotated[
        Annotated[tuple[str, ...], _NAMES],
        Meta(description="User properties (headers) of messages to remove, by name."),
    ] = ()
    key_file: Annotated[
        Path | None,
        Meta(
            description="File with the key of `hash`, at least 16 bytes, such as `openssl rand -hex 32` prints. Only "
            "the node's user may be able to read it."
        ),
    ] = None


# Settings of ``route``.


class Rule(Section, frozen=True, kw_only=True):
    """A way out of the chain: rows for which `where` is true go to the stream `to`."""

    to: Annotated[str, Meta(min_length=1, description="Stream that gets the rows.")]
    where: Annotated[Expression | None, Meta(description="Expression that is true for the rows. Unset: all rows.")] = (
        None
    )
    copy: Annotated[
        bool, Meta(description="`true`: the rows also pass on, to the next rule and the functions that follow.")
    ] = False


class Route(FunctionSettings, frozen=True, kw_only=True):
    """Rules by which rows go to other streams. `route: [...]` is short for `route: {rules: [...]}`."""

    rules: Annotated[
        tuple[Rule, ...],
        Meta(
            min_length=1,
            max_length=64,
            description="Rules, tried in order for each row. The first rule that is true takes the row, unless it has "
            "`copy: true`. Rows that no rule takes pass to the next function.",
        ),
    ]

    @property
    def targets(self) -> tuple[str, ...]:
        """Return the streams that rows go to."""
        return tuple(dict.fromkeys(rule.to for rule in self.rules))


# Settings of Sparkplug B: the function that understands it, and the node as a host application.


class Sparkplug(FunctionSettings, frozen=True, kw_only=True):
    """Metrics of Sparkplug B with their names, datatypes and quality. It is the first function of its stream."""

    rows: Annotated[
        Literal["metric", "message"],
        Meta(
            description="`metric` makes a record of each metric: its name, value, time, datatype, quality. `message` "
            "makes one of each message, with the metrics as fields by their names."
        ),
    ] = "metric"
    rebirth: Annotated[
        bool,
        Meta(
            description="Whether edge nodes are asked for their births (`Node Control/Rebirth`). The node asks when a "
            "sequence number is missing, an alias is unknown, or data arrive before a birth."
        ),
    ] = True
    reorder_s: Annotated[
        Annotated[Duration, Meta(ge=0, le=3600)],
        Meta(
            description="Time to wait for a missing message before its edge node is asked for a birth, rounded up to "
            "whole seconds."
        ),
    ] = field(default=5.0, name="reorder")
    rebirth_every_s: Annotated[
        Annotated[Duration, Meta(ge=1)],
        Meta(
            description="Shortest time between two such requests to an edge node. A request that is older than this "
            "when it could be sent is dropped."
        ),
    ] = field(default=60.0, name="rebirth_every")
    certificates: Annotated[
        bool,
        Meta(
            description="`true` keeps each birth as a retained message below `$sparkplug/certificates/`, as a "
            "Sparkplug-aware MQTT server does."
        ),
    ] = False
    sources_max: Annotated[
        Count,
        Meta(
            description="Maximum number of edge nodes and devices whose births are remembered. Further births go to "
            "the stream of errors."
        ),
    ] = 1_000
    metrics_max: Annotated[
        Count,
        Meta(
            description="Maximum number of their metrics, which bounds the memory: each takes some 200 bytes and its "
            "name. An edge node with its devices has at most 20,000."
        ),
    ] = 100_000

    @property
    def reads(self) -> Literal["sparkplug"]:
        """Return the payload format that it reads itself."""
        return "sparkplug"

    @property
    def new_patterns(self) -> tuple[str, ...]:
        """Return the patterns of its rows' keys. The device is empty for the edge node's own metrics."""
        return ("{group}/{node}/{device}/#",) if self.rows == "metric" else ("{group}/{node}/{device}",)


class SparkplugHost(Section, frozen=True, kw_only=True):
    """The node as a host application of Sparkplug B."""

    host_id: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=128,
            pattern=r"^[^/+#\x00]+$",
            examples=["plant-historian"],
            description="Name under which the node reports that it is online, in the retained message "
            "`spBv1.0/STATE/{host_id}`. Edge nodes with this primary host send their data only while it is.",
        ),
    ]


_PLAIN = FunctionSettings()


class FunctionStep(OneOf, frozen=True, kw_only=True):
    """One function of a stream, by its name: `where: rms > 2.5`. A list entry has exactly one."""

    noun: ClassVar[str] = "function"
    beside: ClassVar[tuple[str, ...]] = ("missing",)

    @property
    def facts(self) -> FunctionSettings:
        """Return the settings that the checks read: the function's own, or those of one that only passes rows on."""
        _, settings = self.chosen
        return settings if isinstance(settings, FunctionSettings) else _PLAIN

    @property
    def takes_nulls(self) -> bool:
        """Return whether a field that is missing is null to the function's expressions."""
        return self.missing != "reject"

    where: Annotated[
        Expression | None, Meta(description="Keep the rows for which this expression is true; drop the others.")
    ] = None
    set_: Annotated[
        Fields | None, Meta(description="Fields to add or to replace: name -> expression. All other fields stay.")
    ] = field(default=None, name="set")
    select: Annotated[
        Select | None, Meta(description="Fields to keep, in this order: a list of names, or new name -> expression.")
    ] = None
    python: Annotated[
        Python | None,
        Meta(
            description="A function of yours in a Python file, in a process of its own.",
            extra_json_schema={"x-short": "file"},
        ),
    ] = None
    redact: Annotated[
        Redact | None,
        Meta(
            extra_json_schema={"x-short": "remove"},
            description="Fields to remove, to replace by a text, or to hash with a key. A list is short for `remove`.",
        ),
    ] = None
    route: Annotated[
        Route | None,
        Meta(
            extra_json_schema={"x-short": "rules"},
            description="Other streams that rows go to, by expressions. A list is short for `rules`.",
        ),
    ] = None
    sample: Annotated[Sample | None, Meta(description="Each n-th row, or one for each period.")] = None
    deadband: Annotated[
        Deadband | None, Meta(description="Rows that moved by more than a bound since the last kept one.")
    ] = None
    swinging_door: Annotated[
        SwingingDoor | None, Meta(description="Points of a line that passes all rows within a bound.")
    ] = None
    changes: Annotated[
        Changes | None,
        Meta(
            extra_json_schema={"x-short": "fields"},
            description="Rows that do not repeat the last kept one. A list of fields is short for `fields`.",
        ),
    ] = None
    dedupe: Annotated[Dedupe | None, Meta(description="Rows that do not repeat a recent message, by its identity.")] = (
        None
    )
    enrich: Annotated[Enrich | None, Meta(description="Fields from a CSV file or an SQLite database.")] = None
    alert: Annotated[
        Alert | None, Meta(description="A message to a local MQTT topic when a condition becomes true.")
    ] = None
    sparkplug: Annotated[
        Sparkplug | None,
        Meta(description="Parsed messages of Sparkplug B: births, data, deaths. The first function of its stream."),
    ] = None
    window: Annotated[
        Window | None,
        Meta(description="Aggregates of the rows of each minute, of each session, and so on: one row for each window."),
    ] = None
    sql: Annotated[
        Sql | None, Meta(description="A SELECT over the rows of each window, run when the window closes.")
    ] = None
    missing: Annotated[
        Literal["reject", "null"] | None,
        Meta(
            description="Treatment of a missing or null field in the expressions of `where`, `set`, `select`, "
            "`route`, `alert` and `window`. `reject`: the row goes to the errors. `null`: null, as in SQL: "
            "expressions of null are null, a null condition does not hold, and aggregates skip it."
        ),
    ] = "reject"
