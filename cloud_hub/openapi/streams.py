"""Types of the answers about streams."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from weft.cloud_hub.openapi.common import (
    Count,
    GapView,
    Listing,
    LogId,
    MarkView,
    MissingShard,
    Moment,
    OfShards,
    OpenGapView,
    RetiredView,
    SeqRange,
)


class TableColumn(msgspec.Struct, frozen=True):
    """A column of a table."""

    name: str
    type: str
    """Delta's name of the type."""


class TableOfStream(msgspec.Struct, frozen=True):
    """The table of a stream."""

    path: str
    """Path in the store."""
    version: int
    """Newest version; -1 before the first."""
    columns: list[TableColumn]
    lag_records: Count
    """Records in the log that are no rows yet."""
    committed_at: Moment | None
    """Time at which this node last moved rows."""
    error: str | None
    """Error of the last round."""
    is_stopped: bool
    """True while the table waits behind records that cannot become rows."""
    removed_until: Moment | UnsetType | None = UNSET
    """Time at which the hub received the newest row that retention removed; null if it removed none."""
    kind: Literal["all", "latest"] | UnsetType = UNSET
    """`all` for the table of all rows, `latest` for a latest table that stands instead of it."""
    files: Count | UnsetType | None = UNSET
    """Files of the table of all rows, as of the last look for small ones; null: unknown."""
    bytes: Count | UnsetType | None = UNSET
    """Bytes of these files."""
    made_by: str | UnsetType | None = UNSET
    """Name of the hub process that makes it, or of another maker; null: unknown."""
    vacuumed_at: Moment | UnsetType | None = UNSET
    """Time at which a vacuum last ended that removed files, as of the last look for small ones; null: unknown."""


class HeldBackReason(msgspec.Struct, frozen=True, kw_only=True):
    """A reason why the moment stands still."""

    edge: str
    """Name, or the pattern of an expected edge; empty when the reason is no edge."""
    log: LogId | None
    reason: str
    """The reference page lists the reasons."""
    severity: Literal["info", "warning", "error"] | UnsetType = UNSET
    """Nothing, a look or an act, as the reason asks of people."""
    since: Moment | None
    complete_up_to: Moment | None
    why: str
    what_to_do: str


class StreamOf(msgspec.Struct, frozen=True, kw_only=True):
    """A stream of a tenant."""

    tenant: str
    stream: str
    records: Count
    """Records that the log holds."""
    records_per_second: float | None
    """Mean of the last one to two minutes; null while unknown."""
    table_rows: Count | None
    """Records that are rows of the table; null when this node does not know it."""
    next_offset: dict[str, int]
    """Shard -> offset behind its last record."""
    lanes: Count
    edges: Count
    fields: list[str]
    """Named topic levels."""
    payload: str
    """`bytes`, `text` or `json`."""
    complete_up_to: Moment | None
    """Moment up to which every edge's records are here or under a gap notice; null while unknown."""
    held_back_by: list[HeldBackReason] | UnsetType = UNSET
    """Edges that the moment waits for, at most three; the completeness names all. Absent in releases without."""
    skipped: Count
    """Offsets that an operator took out of the table."""
    table: TableOfStream | None
    """Null when this node does not know it."""


class StreamAnswer(StreamOf, frozen=True, kw_only=True):
    """One stream."""

    missing_shards: list[MissingShard] | UnsetType = UNSET
    """Absent when every shard could be read."""


class StreamsAnswer(Listing, frozen=True, kw_only=True):
    """Streams of a tenant, by name."""

    streams: list[StreamOf]


class LaneOfStream(msgspec.Struct, frozen=True, kw_only=True):
    """The hub's knowledge of one log of an edge."""

    edge: str
    log: LogId
    shard: Count
    epoch: Count
    ranges: list[SeqRange]
    """Sequence numbers that are accounted for."""
    gaps: list[GapView]
    """Those among them that have no record."""
    mark: MarkView | None
    """The newest mark that is proven."""
    newest_mark: MarkView | None
    """The newest mark; records below it may be on their way."""
    last_word: MarkView | None
    """Mark of an edge that stopped in order; null while it runs."""
    retired: RetiredView | None
    open_gap: OpenGapView | None
    topics: list[str]
    """Topic patterns of the stream at the edge."""
    payload: str
    """`bytes`, `text` or `json`."""


class LanesAnswer(Listing, frozen=True, kw_only=True):
    """Lanes of a stream, by edge and log."""

    tenant: str
    stream: str
    lanes: list[LaneOfStream]


class LaneCompleteness(msgspec.Struct, frozen=True, kw_only=True):
    """Moment up to which a lane is complete, and what it lacks."""

    edge: str
    log: LogId
    shard: Count
    complete_up_to: Moment | None
    complete_below_seq: Count
    newest_mark: MarkView | None
    gaps: list[GapView]
    open_gap: OpenGapView | None
    last_word: MarkView | None
    retired: RetiredView | None
    holes: list[SeqRange]
    """Sequence numbers that are still to come."""


class LaneName(msgspec.Struct, frozen=True):
    """A lane of the stream."""

    edge: str
    log: LogId


class SkippedRun(SeqRange, frozen=True):
    """Records of one lane."""

    edge: str
    log: LogId


class SkippedOffsets(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets that an operator took out of the table."""

    shard: Count
    first_offset: Count
    end_offset: Count
    since: Moment
    reason: str
    records: list[SkippedRun]


class CompletenessAnswer(Listing, frozen=True, kw_only=True):
    """Moment up to which a stream is complete, of which lanes that is said, and what stands in the way."""

    tenant: str
    stream: str
    complete_up_to: Moment | None
    """Null while a lane that counts, or an expected edge, has said nothing, and while a shard is missing."""
    covers: list[LaneName]
    """Lanes of this page of which the moment is said."""
    held_back_by: list[HeldBackReason]
    held_back_by_more: Count
    """Number of reasons that are left out."""
    open_gaps: list[OpenGapView]
    open_gaps_more: Count
    """Number of open gaps that are left out."""
    skipped: list[SkippedOffsets]
    lanes: list[LaneCompleteness]
    removed_until: Moment | UnsetType = UNSET
    """Time at which the hub received the newest row that retention removed."""
    only_latest: Literal[True] | UnsetType = UNSET
    """The stream has no table of all rows: records that left the log are in no answer."""


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
    """Time at which the hub took it in."""
    key: str
    resent: bool
    """True when the device said that it may have sent the message before."""
    edge_time: Moment | UnsetType = UNSET
    """The edge's own stamp, when it differs from `time`."""
    origin: str | UnsetType = UNSET
    """The function that made the record."""
    payload: str | UnsetType = UNSET
    """Payload that is text, or JSON in a stream of JSON; otherwise there is `payload_base64`."""
    payload_base64: str | UnsetType = UNSET
    headers: list[tuple[str, Any]] | UnsetType = UNSET
    """Pairs of name and value."""


class RecordsAnswer(OfShards, frozen=True, kw_only=True):
    """Records in the order of their offsets, shard by shard, and where to go on."""

    tenant: str
    stream: str
    records: list[RecordOfStream]
    next_offset: dict[str, int]
    """Shard -> `offset` to go on with."""
    next_chunk: dict[str, int]
    """Shard -> `chunk` to go on from, where the shard had more than one request reads."""
    next_shard: Count | UnsetType = UNSET
    """`from_shard` to go on with, when the request had no room for the shards from this one on."""
    removed_until: Moment | UnsetType = UNSET
    """Time at which the hub received the newest row that retention removed."""
    only_latest: Literal[True] | UnsetType = UNSET
    """The stream has no table of all rows: records that left the log are in no answer."""


class RowsAnswer(msgspec.Struct, frozen=True):
    """Rows of one shard as JSON, for a look."""

    rows: list[dict[str, Any]]
    """Columns of each row that are not null, by name: times as RFC 3339, and bytes as text.

    Bytes that are no text are under the name of the column and `_base64`.
    """
    next_offset: Count | None
    """`offset` to go on with. Null while the search for the first row goes on."""
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
    """Null where records of the edge are missing: charts draw a gap there."""
    count: Count
    """Number of values that it was made of."""


class SeriesAnswer(OfShards, frozen=True, kw_only=True):
    """Numbers of a stream over time."""

    tenant: str
    stream: str
    rows: list[SeriesRow]
    """Rows in the order of time."""
    complete_up_to: Moment | None
    """Time up to which the stream is complete: later rows may still come. Null while it is not known."""
    is_whole: bool
    """False when a bound was reached, or a shard cannot be read: ask for a shorter span, one edge or fewer keys."""


class TailEvent(msgspec.Struct, frozen=True, kw_only=True):
    """New records of a stream, or the reason of the end."""

    records: list[RecordOfStream] = []
    position: str
    """Position behind the event, to go on with."""
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
    """The way of one record from a device to a row."""

    tenant: str
    stream: str
    standing: Literal["here", "gone", "to_come", "never_comes", "unknown"]
    """The hub's knowledge of the number. `never_comes` has `gap` beside it; `unknown` is said of a lane that the hub
    does not know, and of an offset without a record."""
    gap: GapView | UnsetType = UNSET
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
