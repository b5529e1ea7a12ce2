"""Types of the answers about what happened: administrative acts, and changes as they come."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from weft.cloud_hub.openapi.common import Count, Moment


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
    """The words of the command, or method and path of a request; empty if unknown."""
    act: str
    """`declared` or `withdrew` a fact; `began` or `ended` another act; `unusable` for a damaged line."""
    kind: str
    """Kind of the fact; `act` for other acts."""
    name: str
    """Name of the fact, of several the first, or the id that the two lines of another act have in common."""
    target: str
    """The part of the hub that an act that began changes, or the names of all facts where one line has several."""
    reason: str
    """Reason that the person gave. For an act that ended: `done`, or `failed` with the reason."""


class ActsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Lines in their order."""

    acts: list[ActLine]
    last: Count
    """Number of the last line that this process knows."""
    next_after: str | None


class ChangeEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Data of one event: what changed since the one before. The first one says that the stream is open."""

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
