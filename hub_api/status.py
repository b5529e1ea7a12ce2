"""State of the hub's processes: what the API answers about it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from weft.hub_api.answers import Count, LogId, Moment, OfShards, OpenGapView
from weft.hub_api.operation import SCOPES, Operation
from weft.hub_api.rights import Right, Scope


class ClockOfNode(msgspec.Struct, frozen=True):
    """The node's clock, by the store's time."""

    off_seconds: float
    """Least difference; positive: ahead."""
    trouble: str | None


class DiskOfStore(msgspec.Struct, frozen=True, kw_only=True):
    """The file system of a store in a folder, as the process has seen it since its start."""

    free_bytes: Count | None
    """Bytes that the hub's user may still write; null if they are not known."""
    bytes_per_day: float | None
    """Bytes by which these fall in a day, by all programs that write; negative if they rise. Null during the first
    hour."""
    seen_seconds: float
    """Time over which that was seen, at most a day."""
    seconds_left: float | None
    """Time until the disk is full at this rate; null if the rate is unknown, or not positive."""


class StoreOfNode(msgspec.Struct, frozen=True):
    """The store, as the process sees it."""

    trouble: str | None
    """Reason why it may not be used, as it is not in its place; null while it is."""
    disk: DiskOfStore | UnsetType | None = UNSET
    """Its disk; null for a bucket, which has no such bound."""


class CertificateInForce(msgspec.Struct, frozen=True):
    """The hub's certificate."""

    certificate: str
    """The file."""
    expires: str
    reload_failures: Count


class SkippedEntry(msgspec.Struct, frozen=True):
    """An entry of the cluster log that is damaged or missing."""

    entry: int
    why: str


class UnusableFact(msgspec.Struct, frozen=True):
    """A fact of the cluster log that this release cannot read."""

    kind: str
    name: str
    why: str


class EndOfToken(msgspec.Struct, frozen=True):
    """The end of a declared token."""

    token: str
    until: Moment


class ClusterLogPosition(msgspec.Struct, frozen=True, kw_only=True):
    """The process's place in the cluster log."""

    entry: int
    """Newest entry; -1 before the first."""
    seen_seconds_ago: float | None
    trouble: str | None
    tokens: Count
    next_end: EndOfToken | UnsetType | None = UNSET
    """The token that ends next and has no later secret; null if none ends."""
    ends: list[EndOfToken] | UnsetType = UNSET
    """Tokens that end within 30 days and have no later secret, the next first, at most 100."""
    skipped: list[SkippedEntry]
    unusable: list[UnusableFact]


class KeysOfIssuer(msgspec.Struct, frozen=True):
    """The keys of the issuer of JSON Web Tokens, as the process read them."""

    issuer: str
    key_set: str
    """URL or file of the key set."""
    keys: Count
    """Keys that count."""
    passed_over: Count
    """Keys for other uses or algorithms, and those that cannot be used."""
    read_seconds_ago: float | None
    """Null before they were read for the first time."""
    kept_until: Moment | None
    """Moment until which they count if they are not read again."""
    failing_seconds: float
    """Time since which they could not be read."""
    trouble: str | None
    """Reason for which the last attempt failed."""


class LastBackupOfStore(msgspec.Struct, frozen=True):
    """The last complete backup that the cluster log knows."""

    place: str
    up_to: Moment
    """Moment up to which it has everything."""


class PeerProcess(msgspec.Struct, frozen=True):
    """Another process of the node."""

    process: Count
    port: Count
    url: str | None


class WrittenByProcess(msgspec.Struct, frozen=True):
    """The work of the process since it started."""

    chunks: Count
    records: Count
    bytes: Count


class ShardOfProcess(msgspec.Struct, frozen=True):
    """A shard that the process serves."""

    shard: Count
    owner: str | None
    own: bool
    chunk: Count | None
    """Number of the last chunk; null before the first."""
    lanes: Count
    sessions: Count
    pending_bytes: Count
    trouble: str | None
    """The store's last failure."""
    written: WrittenByProcess


class TableProgress(msgspec.Struct, frozen=True):
    """The progress of a table with one shard."""

    shard: Count
    table: Count
    """Offset below which all records are rows."""
    log: Count
    """Offset behind the last record."""


class StoppedOffsets(msgspec.Struct, frozen=True):
    """Offsets whose records cannot become rows."""

    shard: Count
    first: Count
    end: Count
    reason: str


class TableMaker(msgspec.Struct, frozen=True):
    """The pipeline of Spark that makes a table."""

    name: str
    since: Moment


class TableOfNode(msgspec.Struct, frozen=True):
    """A table that the node writes."""

    tenant: str
    stream: str
    version: int
    shards: list[TableProgress]
    lag_records: Count
    rows_moved: Count
    committed_at: Moment | None
    error: str | None
    stopped: list[StoppedOffsets]
    made_by: TableMaker | None
    process: str | UnsetType | None = UNSET
    """Name of the hub process that makes the table; null: unknown, or a pipeline makes it."""
    kind: Literal["all", "latest"] | UnsetType = UNSET
    """`latest` if a latest table replaces the table of all rows."""
    files: Count | UnsetType | None = UNSET
    """Files of the table of all rows, as of the last look for small ones; null: unknown."""
    bytes: Count | UnsetType | None = UNSET
    """Bytes of these files."""
    vacuumed_at: Moment | UnsetType | None = UNSET
    """Time at which a vacuum last ended that removed files, as of the last look for small ones; null: unknown."""


class LatestOfNode(msgspec.Struct, frozen=True):
    """A latest table that the process makes."""

    tenant: str
    stream: str
    path: str
    """Path in the store."""
    key: list[str]
    version: int
    """Newest version; -1 before the first."""
    lag_records: Count
    unkeyed: Count
    """Records without a key."""
    error: str | None
    """Error of the last round."""
    instead: bool
    """True if it replaces the table of all rows."""
    gone: Count
    """Records that it lacks: the log deleted them before it read them, and no table of all rows has them."""


class IcebergOfNode(msgspec.Struct, frozen=True):
    """A table whose Iceberg metadata the process writes."""

    path: str
    """Path of the table in the store."""
    version: int
    """Version of the Delta table with the rows of the newest snapshot; -1 while this process has written none."""
    error: str | None
    """Error of the last round."""


class QualityRuleOfNode(msgspec.Struct, frozen=True):
    """A quality rule of a stream, as its table counts it."""

    name: str
    check: str
    """Text of the check."""
    tolerate: float
    """Share of the last rows that may fail."""
    state: Literal["good", "alarm", "unknown"]
    since: Moment | None
    """Moment from which on the process has seen the state."""
    why: str | None
    rows: Count | None
    """Rows that were checked; null for `fresh`."""
    failed: Count | None
    recent_rows: Count
    """Those of the last rows that the process saw coming."""
    recent_failed: Count


class VanishedFieldOfNode(msgspec.Struct, frozen=True):
    """A field that had values and has none any more."""

    field: str
    rows: Count
    """Rows since its last value."""


class QuarantineOfNode(msgspec.Struct, frozen=True):
    """A table with the rows of a stream that fail quality rules."""

    path: str
    """Path in the store."""
    version: int
    """Newest version; -1 before the first."""
    rows: Count
    error: str | None
    """Error of the last round."""


class QualityOfNode(msgspec.Struct, frozen=True):
    """The quality rules of a stream whose table the node writes."""

    tenant: str
    stream: str
    version: Count
    """Number of the entry of the cluster log that declared the rules."""
    rows: Count
    unchecked: Count
    """Records since the first check that were not checked."""
    rules: list[QualityRuleOfNode]
    vanished: list[VanishedFieldOfNode]
    quarantine: QuarantineOfNode | None


# Summaries of shards in the store have this and ``OpenGapOfLane``: members are only added, with a default.
class ConflictOfLane(msgspec.Struct, frozen=True):
    """A lane whose log a second node claims to own."""

    tenant: str
    edge: str
    log: LogId
    shard: Count
    stream: str
    since: Moment
    refused_epoch: Count
    why: str


class OpenGapOfLane(OpenGapView, frozen=True, kw_only=True):
    """A loss without a number, of a retired lane."""

    tenant: str
    stream: str
    shard: Count


class LostOfLane(msgspec.Struct, frozen=True):
    """Records of a lane that the hub had acknowledged and lacks."""

    tenant: str
    edge: str
    log: LogId
    shard: Count
    stream: str
    records: Count
    first_seq: Count


class LinkOfProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A link of an edge to this process."""

    connected_since: Moment
    tenant: str | UnsetType = UNSET
    edge: str | None
    """Null, and the rest absent, until the edge has identified itself."""
    log: LogId | UnsetType = UNSET
    epoch: Count | UnsetType | None = UNSET
    software: str | UnsetType = UNSET
    streams: list[str] | UnsetType = UNSET
    clock_off_seconds: float | UnsetType | None = UNSET
    """Seconds that the edge's clock was ahead; null when no time source keeps it right."""
    unkept_clock_off_seconds: float | UnsetType = UNSET
    """Seconds that it was ahead when no time source keeps it right."""


class StatusAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One process of a hub node."""

    software: str
    cluster_id: str
    store: StoreOfNode | UnsetType = UNSET
    clock: ClockOfNode
    level: int
    """Fold level of the cluster."""
    release_level: int
    name: str
    state: str
    """`joining`, `ready` or `leaving`."""
    tls: CertificateInForce | None
    process: Count
    processes: Count
    cluster_log: ClusterLogPosition
    jwt: KeysOfIssuer | UnsetType | None = UNSET
    """Null if no tokens of an issuer are accepted."""
    backup: LastBackupOfStore | UnsetType | None = UNSET
    """Null if none is known."""
    peers: list[PeerProcess]
    shards: list[ShardOfProcess]
    tables: list[TableOfNode]
    tables_more: Count
    tables_trouble: str | None
    latest_tables: list[LatestOfNode] | UnsetType = UNSET
    iceberg_tables: list[IcebergOfNode] | UnsetType = UNSET
    quality: list[QualityOfNode] | UnsetType = UNSET
    conflicts: list[ConflictOfLane]
    open_gaps: list[OpenGapOfLane]
    open_gaps_more: Count
    lost: list[LostOfLane]
    links: list[LinkOfProcess]


class TenantAtQuota(msgspec.Struct, frozen=True):
    """A tenant that has reached a quota, as the process that answers sees it."""

    tenant: str
    quota: str
    """Name of the quota: `bytes_per_second`, `records_per_second`, `links`, `lanes` or `streams`."""
    limit: Count
    wait_seconds: float
    """Time until its edges may send again; 0 for a number, at which what is new is refused."""
    edges: Count
    """Number of its linked edges."""


class TroublesAnswer(OfShards, frozen=True, kw_only=True):
    """Conflicts, open gaps and lost records of the shards of all processes, and tenants at a quota."""

    conflicts: list[ConflictOfLane]
    """Lanes whose logs a second node claims to own, at most 1,000."""
    conflicts_more: Count
    """Number of others."""
    open_gaps: list[OpenGapOfLane]
    """Losses of retired lanes whose number is unknown, the latest first."""
    open_gaps_more: Count
    """Number of others, at least."""
    lost: list[LostOfLane]
    """Acknowledged records that the hub lacks, at most 1,000 lanes. Those of other processes are some 15 s old."""
    lost_unknown_at: list[str] | UnsetType = UNSET
    """Processes whose lost records are not known here; absent when all are."""
    at_quota: list[TenantAtQuota] | UnsetType = UNSET
    """Tenants that have reached a quota at the process that answers, by name."""


class IntakeOfNode(msgspec.Struct, frozen=True, kw_only=True):
    """The rate of what links bring to a process, repetitions included."""

    records_per_second: float
    bytes_per_second: float
    """Bytes of batches, as the edges stored them."""
    seconds: float
    """Time before the entry that the rate covers, usually 60 to 90."""


class NodeOfStore(msgspec.Struct, frozen=True, kw_only=True):
    """A hub process that shares the store."""

    id: str
    """Unique to each start."""
    name: str
    host: str
    process: Count
    """Number among the processes of its machine."""
    url: str
    advertise: str | None
    """URL for edges; null if edges of other machines cannot be redirected to it."""
    state: str
    """`joining`, `ready`, `leaving`, `gone`, or `of another cluster`."""
    owns: list[Count]
    """Shards that it owns by its entry."""
    shards: list[Count]
    """Shards that it has loaded."""
    links: Count
    tables: Count | UnsetType | None = UNSET
    """Number of tables that it writes; null: none, or its release does not report it."""
    intake: IntakeOfNode | UnsetType | None = UNSET
    """Null: it has just started, is gone, or its release does not report it."""
    cluster_log: Count
    """Last entry of the cluster log that it knows."""
    cores: float
    load: float | UnsetType | None = UNSET
    """Cores that it used on average since the entry before; null: not known yet, or its release does not report it."""
    clock_off_seconds: float | UnsetType | None = UNSET
    """Least time by which its clock is ahead of the store's (negative: behind); null: its release does not report
    it."""
    software: str
    level: int
    """Highest level that its release knows."""
    seen_seconds_ago: float


class NodesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The hub processes that share the store, by machine and number."""

    nodes: list[NodeOfStore]


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "openapi",
        "get",
        "/v1/openapi.json",
        "Return this document.",
        "The OpenAPI 3.1 document of the release that answers. Releases add to it and remove nothing. A token of "
        "any scope opens it.",
        dict[str, Any],
        SCOPES,
        errors=frozenset({401, 403, 421}),
    ),
    Operation(
        "status",
        "get",
        "/v1/status",
        "Return the state of this process of the hub.",
        "Shards, tables, links, clock, store, certificate and cluster log as this process knows them now. Of the "
        "processes of a host, the first lists all tables, and the others those that they make. Beyond 1,000 tables "
        "only their number is given. Needs the right `status`.",
        StatusAnswer,
        (Scope.ADMIN,),
        errors=frozenset({401, 403, 421}),
    ),
    Operation(
        "nodes",
        "get",
        "/v1/nodes",
        "Return the processes of the hub on all machines.",
        "Each process as its entry in the store describes it, which this process reads every 5 s; "
        "`seen_seconds_ago` is the entry's age. The rates of `intake` are means of the 60 to 90 s before the entry.",
        NodesAnswer,
        (Scope.ADMIN,),
        errors=frozenset({401, 403, 421, 503}),
        right=Right.STATUS,
        command="weft hub nodes",
    ),
    Operation(
        "troubles",
        "get",
        "/v1/troubles",
        "Return conflicts, open gaps and lost records of all shards.",
        "Losses and conflicts that need an operator, whichever process is asked. Lists of other processes are some "
        "15 s old; `lost_unknown_at` names processes whose list is unknown. Lists are bounded, and `..._more` "
        "counts the rest. Needs the right `status`.",
        TroublesAnswer,
        (Scope.ADMIN,),
        errors=frozenset({401, 403, 421, 503}),
    ),
)
"""Operations, in the order of the document."""
