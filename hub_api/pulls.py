"""Pulls, windows of records that the hub asks edges for: bodies, answers and operations."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from weft.hub_api.answers import Count, LogId, Moment, SeqRange
from weft.hub_api.operation import TENANT, Name, Operation, Parameter
from weft.hub_api.rights import Scope


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
    """Reason of the state, or why no records arrive at present."""
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


PULL_BYTES_MAX = 1 << 30


PULL_EXPIRES_S, PULL_EXPIRES_S_MAX = 86_400.0, 30 * 86_400.0


class PullWindow(msgspec.Struct, forbid_unknown_fields=True, rename={"first": "from", "end": "to"}):
    """The body of a request: which records of which edge."""

    edge: str
    """An edge that has linked before."""
    stream: str
    """Stream at the edge."""
    first: Annotated[str, Meta(max_length=64)]
    """Start of the window: a time, or nanoseconds since 1970, by the edge's clock."""
    end: Annotated[str, Meta(max_length=64)]
    """End of the window, which it leaves out, and which is over."""
    bytes_max: Annotated[int, Meta(ge=1, le=1 << 40)] = PULL_BYTES_MAX
    """Bytes as stored at the edge beyond which it refuses."""
    expires_s: Annotated[float, Meta(gt=0, le=PULL_EXPIRES_S_MAX)] = PULL_EXPIRES_S
    """Seconds after which the request expires."""


PULLERS = (Scope.PULL, Scope.ADMIN)


_OF_PULLS = frozenset({400, 401, 403, 404, 421, 503})


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "pulls",
        "get",
        "/v1/pulls",
        "Return pulls of the tenant, the latest first.",
        "At most 200. Pulls that are over are listed for a week. Only those of streams for which the token has the "
        "right `pull`.",
        PullsAnswer,
        PULLERS,
        parameters=(
            TENANT,
            Parameter("edge", Name, "Only pulls from this edge."),
            Parameter("id", str, "Only this pull."),
        ),
        errors=_OF_PULLS,
    ),
    Operation(
        "pull",
        "post",
        "/v1/pulls",
        "Request the records of a time window from an edge. The hub answers when the request is durable.",
        "The window has ended, and lasts at most 31 days, by the edge's clock. An edge has at most 8 running pulls "
        "and a tenant 64; a tenant may request 120 an hour (429). Needs the right `pull` for the stream.",
        PullAnswer,
        PULLERS,
        parameters=(TENANT,),
        errors=_OF_PULLS | {408, 409, 413, 415, 429},
        body=PullWindow,
        status=202,
    ),
    Operation(
        "cancel_pull",
        "delete",
        "/v1/pulls/{id}",
        "Cancel a pull. Records that have arrived stay.",
        "The answer comes when the cancellation is durable. A pull that is over stays as it is. Needs the right "
        "`pull` for its stream.",
        PullAnswer,
        PULLERS,
        parameters=(Parameter("id", str, "Its id.", "path", required=True), TENANT),
        errors=_OF_PULLS | {409},
    ),
)
"""Operations, in the order of the document."""
