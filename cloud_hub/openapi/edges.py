"""Types of the answers about edges, and about who asks."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from weft.cloud_hub.openapi.common import Count, Listing, LogId, Moment


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
    """The disk of an edge, as it last said: its log and the budget, not the file system."""

    told: Moment
    """Time at which it said so. Reports come with changes, at most each 30 s."""
    used_bytes: Count
    budget_bytes: Count
    free_bytes: Count
    """Bytes left for records that no hub has yet."""
    bytes_per_second: Count | None
    """Growth of the log in the hour before; null if that was not known yet."""
    outage_seconds_left: Count | None
    """Time for which the free bytes last at that rate, from `told` on: 0 when the log is full or has stopped, null when
    nothing came in or the rate was not known yet."""


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
    """Sentence about what is wrong with them; null if nothing is."""


class EdgeOfHub(msgspec.Struct, frozen=True, kw_only=True):
    """An edge that the hub knows."""

    tenant: str
    edge: str
    shard: Count
    logs: list[LogId]
    """The one last heard of first, at most eight."""
    streams: Count
    last_seen: Moment | None
    """Time at which the hub last stored anything that the edge said."""
    connected_since: Moment | None
    """Null when the edge is linked to no process of the hub, as far as is known (`links_unknown_at`)."""
    connected_at: str | UnsetType | None = UNSET
    """Name of the process; null without a link. Absent in releases without."""
    software: str | None
    """Null when the edge is not linked, and was not linked to this process since it started."""
    groups: list[str] | UnsetType = UNSET
    """Declared groups of the edge. Absent in releases without."""
    clock_off_seconds: float | UnsetType | None = UNSET
    """Seconds that the edge's clock was ahead when it linked; null for an edge without a link to this process, or
    without a time source. Absent in releases without."""
    missing_records: Count
    complete_up_to: Moment | None
    retired: bool
    disk: DiskOfEdge | UnsetType | None = UNSET
    """Null for an edge that says nothing of its disk: its release does not, or it has not been linked since the process
    started. Absent in releases without."""
    alarms: list[EdgeAlarm]


class EdgeAnswer(EdgeOfHub, frozen=True, kw_only=True):
    """One edge, with its functions."""

    functions: list[FunctionOfEdge] | None
    """At most 32; null where they are not known: the edge is not linked, or its release does not tell."""
    functions_more: Count
    """Number of derived streams that are left out."""
    links_unknown_at: list[str] | UnsetType = UNSET
    """Processes whose links are not known here; absent when all are."""


class EdgesAnswer(Listing, frozen=True, kw_only=True):
    """Edges by tenant and name."""

    edges: list[EdgeOfHub]
    links_unknown_at: list[str] | UnsetType = UNSET
    """Processes whose links are not known here; absent when all are."""


class WhoAmI(msgspec.Struct, frozen=True, kw_only=True):
    """The rights of a request, by its token."""

    token: str | None
    """Name of the token; null when the hub has no tokens, and with a certificate."""
    scope: str
    """`edge`, `reader`, `publish`, `pull`, `admin`, or `granted` for `rights` one by one; `anonymous` when the hub has
    no tokens."""
    tenant: str | None
    """Tenant of requests without `tenant`."""
    edge: str | None
    """The edge that may link with the token."""
    until: Moment | UnsetType | None = UNSET
    """End of the token; null for none. Absent in releases without."""
    certificate: str | UnsetType | None = UNSET
    """Common name of the client certificate that the request came with, where it gives the rights; null for a token.
    Absent in releases without."""
    rights: list[str] | UnsetType = UNSET
    """Rights of the token, such as `read:press-*`; empty when the hub has no tokens. Absent in releases without."""
    software: str | UnsetType = UNSET
    """Release of the hub, such as `weft 0.1.0`. Absent in releases without."""
    link_protocol: int | UnsetType = UNSET
    """Version of the protocol of links that the hub speaks. Absent in releases without."""
