"""Types of the answers about pulls: windows of records that the hub asks edges for."""

from __future__ import annotations

import msgspec

from weft.cloud_hub.openapi.common import Count, LogId, Moment, SeqRange


class PullAnswer(msgspec.Struct, frozen=True, kw_only=True, rename={"from_": "from"}):
    """One pull."""

    id: str
    tenant: str
    edge: str
    stream: str
    from_: Moment
    """Start of the window, by the edge's clock."""
    to: Moment
    """End of the window, which it leaves out."""
    state: str
    """`asked` or `sending`, and then `done`, `refused`, `failed`, `cancelled` or `expired`."""
    reason: str | None
    """Reason of the state, or why nothing comes at present."""
    linked_here: bool
    """True while the edge is linked to this process, and knows pulls."""
    records: Count
    """Records that the edge found, before it sent the first of them."""
    bytes: Count
    """Their bytes, as stored at the edge."""
    records_received: Count
    bytes_received: Count
    """An estimate by `records_received`."""
    rest_seconds: float | None
    """Estimated time for the rest."""
    kept_from: Moment | None
    """Time of the oldest record that the edge then had of the stream."""
    lost: list[SeqRange]
    """Numbers that the edge no longer had when it sent them, 64 ranges at most."""
    log: LogId | None
    """Log of the edge that the numbers belong to."""
    asked: Moment
    expires: Moment
    ended: Moment | None
    """Time of the last state."""
    by: str | None
    """Name of the token that asked."""


class PullsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Pulls of a tenant, the latest first."""

    tenant: str
    pulls: list[PullAnswer]
    more: Count
    """Pulls that are not in the answer."""
