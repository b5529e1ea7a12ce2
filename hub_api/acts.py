"""Administrative acts, and changes as they come: answers and operations."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from weft.hub_api.answers import Count, Moment
from weft.hub_api.operation import EVENTS, TENANT, Operation, after, limit
from weft.hub_api.rights import Right, Scope


class ActLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the record of administrative acts: an entry of the cluster log."""

    entry: Annotated[int, Meta(ge=1)]
    """Its number. The lines are in the order in which the acts were written."""
    at: Moment | None
    """Time by the clock of the writer."""
    by: str
    """The person or the token that decided, as the writer names it."""
    origin: str
    """User and machine of the writer, as it claims, or the address of a client of the API; empty if unknown."""
    command: str
    """The command line, or method and path of a request; empty if unknown."""
    act: str
    """`declared` or `withdrew` a fact; `began` or `ended` another act; `unusable` for a damaged line."""
    kind: str
    """Kind of the fact; `act` for other acts."""
    name: str
    """Name of the fact, of several the first, or the id that the two lines of another act have in common."""
    target: str
    """The part of the hub that an act that began changes, or the names of all facts where one line has several."""
    reason: str
    """Reason from the author. For an act that ended: `done`, or `failed` with the reason."""


class ActsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Lines in their order."""

    acts: list[ActLine]
    last: Count
    """Number of the last line that this process knows."""
    next_after: str | None


class ChangeEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Data of one event: what changed since the previous one. The first one confirms that the stream is open."""

    streams: list[str]
    """Streams of the tenant that have new records."""
    streams_more: Count
    """Number of streams that are left out."""
    edges: list[str]
    """Edges of the tenant whose link to this process began or ended."""
    edges_more: Count
    """Number of edges that are left out."""
    acts: Count | UnsetType = UNSET
    """Number of the last administrative act; absent without the right `acts`."""


ACTS_DEFAULT, ACTS_MAX = 100, 200
"""Number of acts of an answer: each is a GET of the store."""


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "acts",
        "get",
        "/v1/acts",
        "Return the record of administrative acts: lines after one, or the newest ones.",
        "Lines in the order in which they were written, at most 200; without `after`, the newest. A process knows a "
        "line two seconds after it was written. `next_after` is null at the end.",
        ActsAnswer,
        (Scope.ADMIN,),
        parameters=(after("^[0-9]{1,19}$"), limit("lines", ACTS_MAX, ACTS_DEFAULT)),
        errors=frozenset({400, 401, 403, 421, 503}),
        right=Right.ACTS,
        command="weft hub acts",
    ),
    Operation(
        "changes",
        "get",
        "/v1/changes",
        "Stream changes, as server-sent events, until the client disconnects.",
        "Names of streams with new records and of edges whose link began or ended, compared every two seconds. The "
        "first event comes at once, and a comment every 15 s without news. Events are not kept: a client that "
        "reconnects reads the state again. A process serves 64 listeners, 32 of a tenant and 8 of a token (429). A "
        "listener that does not read for 10 s is disconnected. Needs the right `read`; edges are left out without "
        "the right `edges`.",
        ChangeEvent,
        parameters=(TENANT,),
        errors=frozenset({400, 401, 403, 421, 429}),
        content_type=EVENTS,
    ),
)
"""Operations, in the order of the document."""
