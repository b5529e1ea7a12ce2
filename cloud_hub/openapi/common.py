"""Types that several answers of the API have in common."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

Moment = Annotated[str, Meta(description="RFC 3339 in UTC with nanoseconds; a time outside the calendar is a number.")]
LogId = Annotated[str, Meta(pattern="^[0-9a-f]{16}$", description="Id of an edge's log. A new disk is a new log.")]
Count = Annotated[int, Meta(ge=0)]


class Problem(msgspec.Struct, frozen=True):
    """The body of every answer whose status is 400 or above, as RFC 9457 has it."""

    type: str
    """URI of the kind of problem, relative to the hub: what this document says of the status."""
    title: str
    """The kind in words, the same for each problem of the type."""
    status: Annotated[int, Meta(ge=400, le=599)]
    """Status of the answer."""
    detail: str
    """The mistake or the failure."""
    advice: str
    """The remedy."""


class MissingShard(msgspec.Struct, frozen=True):
    """A shard that cannot be read. What it holds is not in the answer, and not known."""

    shard: Count
    trouble: str


class OfShards(msgspec.Struct, frozen=True, kw_only=True):
    """An answer about all shards."""

    missing_shards: list[MissingShard] | UnsetType = UNSET
    """Absent when every shard could be read."""
    as_of: Moment | UnsetType = UNSET
    """Oldest moment that a part of the answer is of; absent when it is of now, and in answers about one stream."""


class Listing(OfShards, frozen=True, kw_only=True):
    """A page of a list."""

    next_after: str | None
    """`after` of the next page; null at the end of the list."""


class SeqRange(msgspec.Struct, frozen=True):
    """Sequence numbers from `first` to before `end`."""

    first: Count
    end: Count


class GapView(SeqRange, frozen=True):
    """Sequence numbers whose records never come."""

    reason: str
    """`budget`, `corruption`, `expired`, `absent`, `operator` or `renamed`; a number for one of a later release."""


class MarkView(msgspec.Struct, frozen=True):
    """Everything that the edge took in up to `time` has a number below `seq`."""

    time: Moment
    seq: Count


class RetiredView(msgspec.Struct, frozen=True):
    """The end of a lane."""

    since: Moment
    by: str
    """`age` or `operator`."""
    reason: str


class OpenGapView(msgspec.Struct, frozen=True):
    """A loss whose number of records is unknown."""

    edge: str
    log: LogId
    first: Count
    """Sequence number from which on records may be missing."""
    records: Count | None
    """Number of lost records; null: unknown."""
    since: Moment | None
    """The records were taken in after this moment; null when no mark ever came."""
    until: Moment
    other_lanes: Count
    """Number of further lanes that are joined to this gap."""
    why: str
