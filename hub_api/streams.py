"""Streams, their lanes and their completeness: what the API answers about them."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from weft.hub_api.answers import Count, GapView, LogId, MissingShard, Moment, NextAfter, OfShards, OpenGapView, SeqRange
from weft.hub_api.operation import OF_ONE_STREAM, OF_STREAM, STREAM, TENANT, Operation, after, limit


class MarkView(msgspec.Struct, frozen=True):
    """All records that the edge received up to `time` have numbers below `seq`."""

    time: Moment
    seq: Count


class RetiredView(msgspec.Struct, frozen=True):
    """The end of a lane."""

    since: Moment
    by: str
    """`age` or `operator`."""
    reason: str


class TableColumn(msgspec.Struct, frozen=True):
    """A column of a table."""

    name: str
    type: str
    """Delta's name of the type."""


class TableOfStream(msgspec.Struct, frozen=True, kw_only=True):
    """The table of a stream."""

    path: str
    """Path in the store."""
    kind: Literal["all", "latest"] | UnsetType = UNSET
    """`all` for the table of all rows, `latest` for a latest table that replaces it."""
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
    files: Count | UnsetType | None = UNSET
    """Files of the table of all rows, as of the last look for small ones; null: unknown."""
    bytes: Count | UnsetType | None = UNSET
    """Bytes of these files."""
    made_by: str | UnsetType | None = UNSET
    """Name of the hub process that makes it, or of another maker; null: unknown."""
    vacuumed_at: Moment | UnsetType | None = UNSET
    """Time at which a vacuum last ended that removed files, as of the last look for small ones; null: unknown."""


class HeldBackReason(msgspec.Struct, frozen=True, kw_only=True):
    """A reason why completeness does not advance."""

    edge: str
    """Name, or the pattern of an expected edge; empty when the reason is no edge."""
    log: LogId | None
    reason: str
    """The reference page lists the reasons."""
    severity: Literal["info", "warning", "error"] | UnsetType = UNSET
    """Urgency for an operator: nothing, a look or an act."""
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
    """Edges that the moment waits for, at most three; the completeness names all."""
    skipped: Count
    """Offsets that an operator removed from the table."""
    table: TableOfStream | None
    """Null when this node does not know it."""


class StreamAnswer(StreamOf, frozen=True, kw_only=True):
    """One stream."""

    missing_shards: list[MissingShard] | UnsetType = UNSET
    """Absent when every shard could be read."""


class StreamsAnswer(OfShards, frozen=True, kw_only=True):
    """Streams of a tenant, by name."""

    streams: list[StreamOf]
    next_after: NextAfter


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
    """The newest mark; records below it may still be in flight."""
    last_word: MarkView | None
    """Mark of an edge that stopped in order; null while it runs."""
    retired: RetiredView | None
    open_gap: OpenGapView | None
    topics: list[str]
    """Topic patterns of the stream at the edge."""
    payload: str
    """`bytes`, `text` or `json`."""


class LanesAnswer(OfShards, frozen=True, kw_only=True):
    """Lanes of a stream, by edge and log."""

    tenant: str
    stream: str
    lanes: list[LaneOfStream]
    next_after: NextAfter


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
    """Sequence numbers that are not held yet."""


class LaneName(msgspec.Struct, frozen=True):
    """A lane of the stream."""

    edge: str
    log: LogId


class SkippedRun(LaneName, frozen=True):
    """Records of one lane."""

    first: Count
    end: Count


class SkippedOffsets(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets that an operator removed from the table."""

    shard: Count
    first_offset: Count
    end_offset: Count
    since: Moment
    reason: str
    records: list[SkippedRun]


class CompletenessAnswer(OfShards, frozen=True, kw_only=True):
    """Time up to which a stream is complete, the lanes that it covers, and what prevents a later one."""

    tenant: str
    stream: str
    complete_up_to: Moment | None
    """Null while a lane that counts, or an expected edge, has not reported, and while a shard is missing."""
    covers: list[LaneName]
    """Lanes of this page that the time covers."""
    held_back_by: list[HeldBackReason]
    held_back_by_more: Count
    """Number of reasons that are left out."""
    open_gaps: list[OpenGapView]
    open_gaps_more: Count
    """Number of open gaps that are left out."""
    skipped: list[SkippedOffsets]
    lanes: list[LaneCompleteness]
    next_after: NextAfter
    removed_until: Moment | UnsetType = UNSET
    """Time at which the hub received the newest row that retention removed."""
    only_latest: Literal[True] | UnsetType = UNSET
    """The stream has no table of all rows: records that left the log are in no answer."""


LANE_PATTERN = "^[a-z0-9][a-z0-9_-]{0,63}/[0-9a-f]{16}$"


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "streams",
        "get",
        "/v1/streams",
        "Return the tenant's streams, by name.",
        "Streams that the token may read, each with its records, table, rate, and the moment up to which it is "
        "complete. Figures that this process does not know are null. Needs the right `read`.",
        StreamsAnswer,
        parameters=(TENANT, after(), limit("streams")),
    ),
    Operation(
        "stream",
        "get",
        OF_ONE_STREAM,
        "Return one stream.",
        "As in the list of streams, as of now. `next_offset` names the shards, each with the offset of its next "
        "record. Needs the right `read` for the stream.",
        StreamAnswer,
        parameters=(STREAM, TENANT),
        errors=OF_STREAM,
    ),
    Operation(
        "lanes",
        "get",
        f"{OF_ONE_STREAM}/lanes",
        "Return the lanes of a stream, by edge and log.",
        "For each lane the sequence numbers that are accounted for, its gaps with their reasons, and its marks. "
        "Ranges have `first` and `end`, one past the last. Needs the right `read` for the stream.",
        LanesAnswer,
        parameters=(STREAM, TENANT, after(LANE_PATTERN), limit("lanes")),
        errors=OF_STREAM,
    ),
    Operation(
        "completeness",
        "get",
        f"{OF_ONE_STREAM}/completeness",
        "Return up to when a stream is complete, and what it lacks.",
        "`complete_up_to` is the earliest moment of the lanes that count, in whole microseconds. It never moves "
        "back. `held_back_by` has at most 100 reasons, `open_gaps` at most 100 losses of unknown size. The list "
        "that `after` continues is `lanes`, with `covers`. Needs the right `read` for the stream.",
        CompletenessAnswer,
        parameters=(STREAM, TENANT, after(LANE_PATTERN), limit("lanes")),
        errors=OF_STREAM,
    ),
)
"""Operations, in the order of the document."""
