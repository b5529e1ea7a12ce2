"""Edges: what the API answers about them."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from weft.hub_api.answers import Count, GapView, LogId, Moment, NextAfter, OfShards
from weft.hub_api.operation import OF_STREAM, TENANT, Name, Operation, Parameter, after, choice, limit


class EdgeAlarm(msgspec.Struct, frozen=True, kw_only=True):
    """A reason that holds lanes of an edge back."""

    reason: str
    lanes: Count
    stream: str
    """Stream of the lane that is held back the most."""
    log: LogId | None
    since: Moment | None
    why: str
    what_to_do: str


class DiskOfEdge(msgspec.Struct, frozen=True, kw_only=True):
    """The disk of an edge, as it last reported: its log and the budget, not the file system."""

    reported: Moment
    """Time of that report. Edges report changes, at most every 30 s."""
    used_bytes: Count
    budget_bytes: Count
    free_bytes: Count
    """Bytes left for records that no hub has yet."""
    bytes_per_second: Count | None
    """Growth of the log in the hour before; null if that was not known yet."""
    outage_seconds_left: Count | None
    """Time for which the free bytes last at that rate, from `reported` on: 0 when the log is full or has stopped, null
    when nothing was received or the rate was not known yet."""


class TimeAlone(msgspec.Struct, frozen=True, kw_only=True):
    """A time in which records that an edge of a pair acknowledged were on one disk, by its clock."""

    since: Moment
    until: Moment | None
    """Null while it lasts."""


class CopyOfEdge(msgspec.Struct, frozen=True, kw_only=True):
    """A copy of the log of an edge that is away, by the word of its peer."""

    at: str
    """Edge that has the copy."""
    reported: Moment
    log: LogId
    complete_to: Moment | None
    """Time by the clock of the edge that is away up to which copy and hub have all that it took in; null if it is
    unknown."""
    vouched: bool
    """True if they have all that it acknowledged, until whenever it was."""
    records: Count
    """Records of the copy that the hub is not known to have yet: `weft edge take-over` brings them."""


class PairOfEdge(msgspec.Struct, frozen=True, kw_only=True):
    """The pair of an edge, by its own word and its peer's. Nothing at the hub depends on it."""

    times_alone: list[TimeAlone]
    """The latest, at most eight."""
    copies: list[CopyOfEdge]


class FunctionOfEdge(msgspec.Struct, frozen=True, kw_only=True):
    """The functions of a derived stream at an edge, with figures since the edge started."""

    stream: str
    kinds: str
    """Names of the functions, in their order; cut where they are many."""
    rows_in: Count
    rows_out: Count
    errors: Count
    """Rows that were rejected, and restarts of the functions after an error."""
    last_error: str | None
    """The error, as a sentence; null if there is none."""


class EdgeOfHub(msgspec.Struct, frozen=True, kw_only=True):
    """An edge that the hub knows."""

    tenant: str
    edge: str
    shard: Count
    logs: list[LogId]
    """The one last heard of first, at most eight."""
    streams: Count
    last_seen: Moment | None
    """Time at which the hub last stored anything from the edge."""
    groups: list[str] | UnsetType = UNSET
    """Declared groups of the edge."""
    connected_since: Moment | None
    """Null when the edge is linked to no process of the hub, as far as is known (`links_unknown_at`)."""
    connected_at: str | UnsetType | None = UNSET
    """Name of the process; null without a link."""
    software: str | None
    """Null when the edge is not linked, and was not linked to this process since it started."""
    clock_off_seconds: float | UnsetType | None = UNSET
    """Seconds that the edge's clock was ahead when it linked; null for an edge without a link to this process, or
    without a time source."""
    missing_records: Count
    lost_records: Count | UnsetType = UNSET
    """Records that the edge gave up: its log was full, they were too old, or it was damaged. Their gaps are in
    `lanes`. Absent while it is not known."""
    complete_up_to: Moment | None
    retired: bool
    disk: DiskOfEdge | UnsetType | None = UNSET
    """Null for an edge that has not reported its disk: its release does not, or it has not linked since the process
    started."""
    pair: PairOfEdge | UnsetType = UNSET
    """Absent for an edge that has told nothing of a pair, and of which no other one has a copy."""
    alarms: list[EdgeAlarm]


class EdgeAnswer(EdgeOfHub, frozen=True, kw_only=True):
    """One edge, with its functions."""

    stream_names: list[str] | UnsetType = UNSET
    """Streams of its lanes by name, at most 64; empty while its shard is held by an earlier release."""
    functions: list[FunctionOfEdge] | None
    """At most 32; null if unknown: the edge is not linked, or its release does not report them."""
    functions_more: Count
    """Number of derived streams that are left out."""
    links_unknown_at: list[str] | UnsetType = UNSET
    """Processes whose links are not known here; absent when all are."""


class EdgesAnswer(OfShards, frozen=True, kw_only=True):
    """Edges by tenant and name."""

    edges: list[EdgeOfHub]
    next_after: NextAfter
    links_unknown_at: list[str] | UnsetType = UNSET
    """Processes whose links are not known here; absent when all are."""


class LossOfEdge(GapView, frozen=True, kw_only=True):
    """A gap of one of an edge's lanes."""

    stream: str
    log: LogId


class LossesOfEdge(msgspec.Struct, frozen=True, kw_only=True):
    """Gaps of one edge that no record fills."""

    tenant: str
    edge: str
    shard: Count
    last_seen: Moment | None
    """Time at which the hub last stored anything from the edge."""
    retired: bool
    losses: list[LossOfEdge]
    """At most eight, those with the most records first. The lanes of each stream have all."""
    losses_more: Count
    """Number of other gaps of the edge."""
    records: Count
    """Number of records in all of its gaps."""


class LossesAnswer(OfShards, frozen=True, kw_only=True):
    """Edges with losses, by tenant and name."""

    edges: list[LossesOfEdge]
    next_after: NextAfter


SHARDS_OF = ALL_SHARDS, OWN_SHARDS = "all", "own"


EDGE = Parameter("edge", Name, "Name of the edge.", "path", required=True)


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "edges",
        "get",
        "/v1/edges",
        "Return edges that the hub knows, by tenant and name.",
        "From the first record of an edge until all its lanes have left the hub, connected or not. Links to other "
        "processes are known some 15 s late. Every alarm of an edge has a reason and a remedy. Needs the right "
        "`edges`.",
        EdgesAnswer,
        parameters=(
            Parameter("tenant", Name, "Only edges of this tenant. An admin gets those of all without it."),
            choice("shards", SHARDS_OF, "`own`: only edges of this process's own shards."),
            after(),
            limit("edges"),
        ),
    ),
    Operation(
        "losses",
        "get",
        "/v1/losses",
        "Return the gaps of all edges that no record fills.",
        "Edges that lack records for good, by tenant and name. A gap has the reason `budget`, `expired`, `corruption` "
        "or `operator`, or `absent` while another sender may still have its records. Its numbers are those of the "
        "lane; `/v1/streams/{stream}/trace` gives the times of the records on both sides. Needs the right `edges`.",
        LossesAnswer,
        parameters=(
            Parameter("tenant", Name, "Only edges of this tenant. An admin gets those of all without it."),
            after(),
            limit("edges"),
        ),
    ),
    Operation(
        "edge",
        "get",
        "/v1/edges/{edge}",
        "Return one edge, with its functions.",
        "As in the list of edges, with at most 32 of its functions and what the edge counted since its start. "
        "`functions` is null while the edge is not linked. Needs the right `edges`.",
        EdgeAnswer,
        parameters=(EDGE, TENANT),
        errors=OF_STREAM,
    ),
)
"""Operations, in the order of the document."""
