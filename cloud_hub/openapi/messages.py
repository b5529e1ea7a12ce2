"""Types of the answers about messages to edges."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from weft.cloud_hub.openapi.common import Count, MissingShard, Moment


class PublishedTo(msgspec.Struct, frozen=True, kw_only=True):
    """One edge's part of a publication: stored (`number`), refused (`status`), or left to another process (`url`)."""

    edge: str
    number: Count | UnsetType = UNSET
    accepted: Moment | UnsetType = UNSET
    expires: Moment | UnsetType = UNSET
    status: Count | UnsetType = UNSET
    """HTTP status that the error has as an answer of its own."""
    error: str | UnsetType = UNSET
    advice: str | UnsetType = UNSET
    url: str | UnsetType = UNSET
    """Process that owns the edge's shard: nothing was stored here."""


class PublishedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An entry for each edge. Stored messages are durable."""

    tenant: str
    topic: str
    messages: list[PublishedTo]
    group: str | UnsetType = UNSET
    """With `group` of the request."""
    next_after: str | UnsetType | None = UNSET
    """`after` of the next request to the group; null after its last edge."""
    missing_shards: list[MissingShard] | UnsetType = UNSET
    """Shards that cannot be read, whose edges of the group may be left out."""


class WaitingMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message without an outcome."""

    number: Count
    accepted: Moment
    expires: Moment
    topic: str
    bytes: Count
    expired: bool
    by: str | None
    """Name of the token that published it."""


class MessageOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a message."""

    number: Count
    accepted: Moment
    topic: str
    outcome: str
    """`published`, `expired`, `refused` or `unknown`."""
    reason: str | None
    time: Moment


class MessagesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Messages to one edge; only `edge` and `url` when another process owns the edge's shard."""

    edge: str
    tenant: str | UnsetType = UNSET
    waiting: list[WaitingMessage] | UnsetType = UNSET
    trouble: str | UnsetType | None = UNSET
    """The edge's reason why messages wait."""
    outcomes: list[MessageOutcome] | UnsetType = UNSET
    """The newest first, at most 1,000."""
    url: str | UnsetType = UNSET
    """Process that owns the edge's shard, if `redirect` was asked for."""
