"""Links to other regions: bodies, answers and operations."""

from __future__ import annotations

import msgspec

from weft.hub_api.answers import Count, Moment
from weft.hub_api.operation import OF_CHANGES, Operation, Parameter, Reason
from weft.hub_api.rights import Right, Scope


class RegionOrder(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request: whether the records for a region wait."""

    paused: bool
    reason: Reason = ""
    """For the record of administrative acts."""


class RegionLinkOfStore(msgspec.Struct, frozen=True, kw_only=True):
    """The link of a shard to another region, as its process last wrote it to the store."""

    region: str
    shard: Count
    state: str
    """State of the link, such as `connected`; `paused` by an operator, `not begun`, or `no news` for 15 minutes."""
    error: str
    lag_records: Count | None
    """Records that the region is not known to have; null until the link has caught up once."""
    lag_bytes: Count | None
    """Approximate bytes of these records, as they are stored."""
    lag_seconds: float | None
    """Age of the oldest chunk with such records."""
    left_seconds: float | None
    """Remaining time for which the log keeps the oldest chunk that the region lacks; 0 if it may be gone, null if the
    region lacks nothing or the hub has no `retain_log`."""
    streams: list[StreamOfRegionLink]
    """Streams that are behind, the longest first, 16 at most."""
    streams_behind: Count
    """Number of all streams that are known to be behind."""
    hold: str
    """The setting by which records wait, and until when; empty while they do not."""
    next: Count | None
    """First chunk that the region is not known to have."""
    lost_chunks: list[RunOfChunks]
    """Chunks that were collected before the region had their records."""
    peer: str | None
    """Cluster id of the region's hub; null before the first acknowledgement."""
    process: str | None
    """Name of the process that runs the link."""
    seen_seconds_ago: float | None


class StreamOfRegionLink(msgspec.Struct, frozen=True, kw_only=True):
    """The records of a stream in one shard that a region lacks."""

    tenant: str
    stream: str
    lag_records: Count
    """Records from the first one on that the region is not known to have."""
    lag_bytes: Count | None
    """Approximate bytes of these records, as they are stored; null while unknown."""
    lag_seconds: float
    """Age of the oldest chunk with such records, or somewhat more."""


class RunOfChunks(msgspec.Struct, frozen=True, kw_only=True):
    """Chunks from the first up to before the end."""

    first: Count
    end: Count


class RegionsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The regions of the configuration, and the links of all shards to them."""

    regions: list[RegionLinkOfStore]
    """Links, by region and shard."""
    configured: list[RegionOfHub]


class RegionOfHub(msgspec.Struct, frozen=True, kw_only=True):
    """A region of the configuration of the process that answers."""

    region: str
    paused: bool
    """True while an operator lets the records for it wait."""
    pin_seconds: float
    """Longest time for which the log keeps what the region lacks, beyond what it keeps anyway."""
    budget: BudgetOfRegion | None
    """The month's bytes; null without the setting."""


class BudgetOfRegion(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes that the links of all shards and hosts to a region may use in a month together."""

    bytes: Count
    used_bytes: Count
    """Bytes that processes have reserved for their links, of which each may still have a thousandth of the budget."""
    kept_bytes: Count
    """Part of the budget that keeps the links alive until the month's end."""
    used_up: bool
    """True while records wait for the next month."""
    ends: Moment
    """End of the month."""


class RegionOrderAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An order to the links of a region, as declared."""

    region: str
    paused: bool


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "regions",
        "get",
        "/v1/regions",
        "Return the links of all shards to other regions.",
        "One entry for each pair of shard and region, as the shard's process last wrote it to the store, at most "
        "five minutes ago. A link without an entry of the last 15 minutes has the state `no news`.",
        RegionsAnswer,
        (Scope.ADMIN,),
        errors=frozenset({401, 403, 421, 503}),
        right=Right.STATUS,
        command="weft hub region status",
    ),
    Operation(
        "pause_region",
        "put",
        "/v1/regions/{region}",
        "Have the records for a region wait, or continue.",
        "The answer comes when the order is durable; the links of all processes follow some seconds later. While "
        "paused, the log keeps what the region lacks, for the setting `pin` at most. Refused with 404 for an "
        "unknown region, and with 409 if it is to continue and is not paused.",
        RegionOrderAnswer,
        (Scope.GRANTED,),
        errors=OF_CHANGES | {404},
        body=RegionOrder,
        parameters=(
            Parameter(
                "region",
                str,
                "Its name in the configuration.",
                "path",
                required=True,
                advice="GET /v1/regions names them",
            ),
        ),
        right=Right.NODES,
        command="weft hub region pause",
    ),
)
"""Operations, in the order of the document."""
