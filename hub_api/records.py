"""Records, rows, series, tails, traces and queries: what the API answers of a stream's content."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from weft.hub_api.answers import Count, GapView, LogId, Moment, OfShards
from weft.hub_api.operation import (
    BODY_BYTES_MAX,
    EVENTS,
    OF_ONE_STREAM,
    OF_STREAM,
    READING,
    STREAM,
    TENANT,
    TIME,
    Duration,
    Name,
    Number,
    Operation,
    Parameter,
    ShardNumber,
    choice,
    limit,
)


class RecordOfStream(msgspec.Struct, frozen=True, kw_only=True):
    """A record."""

    shard: Count
    offset: Count
    edge: str
    log: LogId
    stream: str
    seq: Count
    """Number of the record in its lane: (edge, log, stream, seq) is its name, which never changes."""
    time: Moment
    """Settled time of the edge; column `_time` of tables."""
    clock: str
    received: Moment
    """Time at which the hub received it."""
    key: str
    resent: bool
    """True when the device marked the message as possibly sent before."""
    edge_time: Moment | UnsetType = UNSET
    """The edge's own stamp, when it differs from `time`."""
    origin: str | UnsetType = UNSET
    """The function that made the record."""
    payload: str | UnsetType = UNSET
    """Payload that is text, or JSON in a stream of JSON; otherwise `payload_base64` is set, also for a text above 1 MiB
    whose JSON is more than twice as long."""
    payload_base64: str | UnsetType = UNSET
    headers: list[tuple[str, Any]] | UnsetType = UNSET
    """Pairs of name and value."""


class RecordsAnswer(OfShards, frozen=True, kw_only=True):
    """Records in the order of their offsets, shard by shard, and where to continue."""

    tenant: str
    stream: str
    records: list[RecordOfStream]
    next_offset: dict[str, int]
    """Shard -> `offset` to continue with."""
    next_chunk: dict[str, int]
    """Shard -> `chunk` to continue from, where the shard had more than one request reads."""
    removed_until: Moment | UnsetType = UNSET
    """Time at which the hub received the newest row that retention removed."""
    only_latest: Literal[True] | UnsetType = UNSET
    """The stream has no table of all rows: records that left the log are in no answer."""
    next_shard: Count | UnsetType = UNSET
    """`from_shard` to continue with, when the request had no room for the shards from this one on."""


class RowsAnswer(msgspec.Struct, frozen=True):
    """Rows of one shard as JSON, for a look."""

    rows: list[dict[str, Any]]
    """Columns of each row that are not null, by name: times as RFC 3339, and bytes as text.

    Bytes that are no text are under the name of the column and `_base64`.
    """
    next_offset: Count | None
    """`offset` to continue with. Null while the search for the first row continues."""
    next_chunk: Count | None
    end_offset: Count


class SeriesRow(msgspec.Struct, frozen=True):
    """A number of a record, or what an interval of them makes."""

    time: Moment
    """Time of the record, or the interval's begin."""
    edge: str
    key: str
    field: str
    """Path of the number in the payload; `value` for a payload that is a number."""
    value: float | None
    """Null if records of the edge are missing: charts draw a gap there."""
    count: Count
    """Number of values that it was made of."""


class SeriesAnswer(OfShards, frozen=True, kw_only=True):
    """Numbers of a stream over time."""

    tenant: str
    stream: str
    rows: list[SeriesRow]
    """Rows in the order of time."""
    complete_up_to: Moment | None
    """Time up to which the stream is complete: later rows may still arrive. Null while it is not known."""
    is_whole: bool
    """False when a bound was reached, or a shard cannot be read: ask for a shorter span, one edge or fewer keys."""


class SqlColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A column of an answer."""

    name: str
    type: str
    """Type in SQL, as DuckDB writes it."""


class SqlTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table that a query read."""

    name: str
    """`streams.NAME` for the table of all rows, `latest.NAME` for a latest table."""
    version: int
    """Version of the Delta table."""


class SqlAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that a query in SQL has made."""

    columns: list[SqlColumn]
    rows: list[list[Any]]
    """Values in the order of the columns: times as RFC 3339, bytes in base64, maps as lists of pairs."""
    is_whole: bool
    """False when there are more rows than the limit, or than an answer may have bytes."""
    tables: list[SqlTable]


class TailEvent(msgspec.Struct, frozen=True, kw_only=True):
    """New records of a stream, or the reason of the end."""

    records: list[RecordOfStream] = []
    position: str
    """Position behind the event, to continue with."""
    error: str | UnsetType = UNSET
    """Reason of the end. It is the last event."""
    advice: str | UnsetType = UNSET


class ChunkOfRecord(msgspec.Struct, frozen=True):
    """The chunk of the log that has a record."""

    shard: Count
    n: Count
    key: str
    """Key of the object in the store."""


class RowOfRecord(msgspec.Struct, frozen=True):
    """The row of a record in the stream's table."""

    file: str
    """Path of the file in the table's folder."""
    number: Count
    """Number of the row in the file, from 0."""


class TraceAnswer(OfShards, frozen=True, kw_only=True):
    """The path of one record from a device to a row."""

    tenant: str
    stream: str
    standing: Literal["here", "gone", "to_come", "never_comes", "unknown"]
    """The hub's knowledge of the number. With `never_comes`, `gap` is set; `unknown` is a lane that the hub does not
    know, or an offset without a record."""
    record: RecordOfStream | None
    """Null if it is not here, or not found yet. `origin` names the function and version that made it, and the header
    `weft.source` of what."""
    chunk: ChunkOfRecord | None
    """Null when the log no longer has it."""
    row: RowOfRecord | None
    """Null when the table had no row of it up to a minute ago."""
    next_chunk: Count | None
    """`chunk` of the next request, when the search has reached its bound."""
    next_shard: Count | None
    """`from_shard`, or `shard` beside `offset`, of the next request; null at the end of the search."""
    gap: GapView | UnsetType = UNSET


SQL_CHARACTERS_MAX = 16 << 10


SQL_ROWS_DEFAULT, SQL_ROWS_MAX = 1_000, 10_000


SQL_S, SQL_WAIT_S = 60.0, 30.0
"""Longest time of a query, and its longest wait for others, in seconds."""


class SqlQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request: a query in SQL."""

    query: Annotated[str, Meta(min_length=1, max_length=SQL_CHARACTERS_MAX)]
    """One SELECT over `streams.NAME`, `latest.NAME` and `weft.completeness`."""
    limit: Annotated[int, Meta(ge=1, le=SQL_ROWS_MAX)] = SQL_ROWS_DEFAULT
    """Most rows of the answer."""


RECORDS_DEFAULT, RECORDS_MAX = 100, 10_000
"""Number of records of an answer."""


SERIES_ROWS_DEFAULT, SERIES_ROWS_MAX = 5_000, 10_000


SERIES_VALUES = ("mean", "last", "min", "max")
"""Functions that make one value of those in an interval."""


SERIES_LATE_NS = 600 * 10**9
"""Longest time between the span's end and the receipt of a record of the answer, unless the request says another."""


ROWS_MAX = 1 << 16


ROW_FORMATS = ARROW_FORMAT, JSON_FORMAT = "arrow", "json"


ROW_COLUMNS = OWN_COLUMNS, TYPED_COLUMNS = "own", "typed"


JSON_ROWS_MAX = 1000


ARROW = "application/vnd.apache.arrow.stream"


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "records",
        "get",
        f"{OF_ONE_STREAM}/records",
        "Return records in the order of their offsets, from log and table.",
        "Shard by shard; `next_offset`, `next_chunk` and `next_shard` say where to continue. A request searches at "
        "most 256 chunks for the first record, and reads at most 512 chunks and 128 MiB. The table supplies records "
        "that have left the log, with times in whole microseconds; without a table the answer is 410. Needs the "
        "right `read` for the stream.",
        RecordsAnswer,
        parameters=(
            STREAM,
            TENANT,
            Parameter("shard", ShardNumber, "Only this shard."),
            Parameter("offset", Number, "From this offset on. Needs `shard`."),
            Parameter(
                "since",
                TIME,
                "Begin with the records that the hub received at this time: RFC 3339, or nanoseconds since 1970. "
                "Not with `offset` or `chunk`.",
                beside=("offset", "chunk"),
            ),
            Parameter("chunk", Number, "From this chunk on, which `next_chunk` of an answer names. Needs `shard`."),
            Parameter(
                "from_shard",
                ShardNumber,
                "From this shard on, which `next_shard` of an answer names. Not beside `shard`.",
                beside=("shard",),
            ),
            Parameter("edge", Name, "Only this edge."),
            limit("records", RECORDS_MAX, RECORDS_DEFAULT),
        ),
        errors=OF_STREAM | {410},
    ),
    Operation(
        "series",
        "get",
        f"{OF_ONE_STREAM}/series",
        "Return numbers of payloads over time, as rows for charts.",
        "Rows in the order of `time`, each the value of a record or of an interval. A row whose `value` is null "
        "stands where records of the edge are missing. A request reads at most 50,000 records and 32 MiB of "
        "payloads; `is_whole` is false if it met a bound. Needs the right `read` for the stream.",
        SeriesAnswer,
        parameters=(
            STREAM,
            TENANT,
            Parameter(
                "since",
                TIME,
                "Begin of the span: RFC 3339, or nanoseconds since 1970.",
                required=True,
                advice="a series begins at a time: since=2026-01-31T12:00:00Z",
            ),
            Parameter("until", TIME, "End of the span, which is not in it. Without it, up to the newest record."),
            Parameter(
                "late",
                Duration,
                "Time after `until` in which a record of the span may have arrived: 10m.",
                default=SERIES_LATE_NS,
            ),
            Parameter(
                "fields",
                str,
                "Paths of numbers in the payload, with commas between. Without it, the payload.",
                default="",
            ),
            Parameter("edge", Name, "Only this edge."),
            Parameter("key", str, "Only keys that match this filter of MQTT.", default="#"),
            Parameter(
                "step", Duration, "Length of an interval, which makes a row: 10s. 0s: a row for each value.", default=0
            ),
            choice("value", SERIES_VALUES, "What an interval makes of its values."),
            limit("rows", SERIES_ROWS_MAX, SERIES_ROWS_DEFAULT),
        ),
        errors=OF_STREAM,
    ),
    Operation(
        "tail",
        "get",
        f"{OF_ONE_STREAM}/tail",
        "Send new records as server-sent events, or as messages of a WebSocket.",
        "Each event has at most 200 records of one shard, and the position behind them. A client that continues "
        "from the last position, also as `Last-Event-ID`, gets each record once, from any process. A process serves "
        "2,048 readers, 1,024 of a tenant and 256 of a token (429). Needs the right `read` for the stream.",
        TailEvent,
        parameters=(
            STREAM,
            TENANT,
            Parameter("position", str, "From this position on, which an event names. Without it, from the end on."),
            Parameter("edge", Name, "Only this edge."),
            Parameter("key", str, "Only keys that match this filter of MQTT.", default="#"),
        ),
        errors=OF_STREAM,
        content_type=EVENTS,
    ),
    Operation(
        "rows",
        "get",
        f"{OF_ONE_STREAM}/rows",
        "Return rows of one shard, as a stream of Arrow or as JSON.",
        "Columns are those of the stream's table, rows in the order of their offsets. A request searches at most "
        "256 chunks, and reads at most 512 chunks and 128 MiB. An answer may therefore have no rows; the headers "
        "say where to continue. The table supplies rows that have left the log; without one the answer is 410. "
        "Needs the right `read` for the stream.",
        None,
        parameters=(
            STREAM,
            TENANT,
            Parameter(
                "shard",
                ShardNumber,
                "The shard.",
                required=True,
                advice="rows are read shard by shard: GET /v1/streams/NAME has the shards",
            ),
            Parameter("offset", Number, "From this offset on. Without it, from the first that the log has."),
            Parameter("chunk", Number, "Chunk to begin with, from `Weft-Next-Chunk` of an answer."),
            choice("format", ROW_FORMATS, f"`json` is for a look: at most {JSON_ROWS_MAX} rows and 1 MiB of them."),
            choice(
                "columns",
                ROW_COLUMNS,
                "`typed`: also the columns of the stream's declared schema, made of the payloads.",
            ),
            limit("rows", ROWS_MAX, ROWS_MAX, 0),
        ),
        errors=OF_STREAM | {410},
        content_type=ARROW,
        as_json=RowsAnswer,
        headers={
            "Weft-Next-Offset": "`offset` to continue with. Absent while the search for the first row continues.",
            "Weft-Next-Chunk": "`chunk` to continue with.",
            "Weft-End-Offset": "End of the shard when the request arrived.",
        },
    ),
    Operation(
        "trace",
        "get",
        f"{OF_ONE_STREAM}/trace",
        "Return the path of one record: lane and number, chunk, file and row.",
        "The record is named by `edge`, `log` and `seq`, or by `shard` and `offset`. A request searches at most 256 "
        "chunks: while `next_shard` is not null, ask again from there. It opens at most 64 files of the table; "
        "beyond that it answers 503, and `shard` with `offset` finds the record. Needs the right `read` for the "
        "stream.",
        TraceAnswer,
        parameters=(
            STREAM,
            TENANT,
            Parameter("edge", Name, "Edge of the record. With `log` and `seq`.", beside=("offset", "shard")),
            Parameter("log", LogId, "Log of the edge, sixteen hexadecimal digits.", beside=("offset", "shard")),
            Parameter("seq", Number, "Number of the record in its lane.", beside=("offset", "shard")),
            Parameter("shard", ShardNumber, "Shard of `offset`, instead of edge, log and seq."),
            Parameter("offset", Number, "Offset of the record. Needs `shard`."),
            Parameter("chunk", Number, "`next_chunk` of the answer before, to continue with the search."),
            Parameter("from_shard", ShardNumber, "`next_shard` of the answer before.", beside=("offset", "shard")),
        ),
        errors=OF_STREAM | {410},
    ),
    Operation(
        "sql",
        "post",
        "/v1/sql",
        "Answer a query in SQL over the tables of the tenant's streams.",
        "The answer has at most 10,000 rows, in the order that the query asks for. `is_whole` says whether these are "
        "all. A query reads at most 16 tables, for at most 60 s. Two run at one time, and one that waits longer than "
        "30 s is refused with 503. The hub needs `sql: true`. Needs the right `read` for the streams.",
        SqlAnswer,
        parameters=(TENANT,),
        errors=READING | {404, 408, 413, 415},
        body=SqlQuery,
        body_bytes_max=4 * BODY_BYTES_MAX,
        command="weft sql",
    ),
)
"""Operations, in the order of the document."""
