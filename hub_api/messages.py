"""Messages to edges: bodies, answers and operations."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from weft.hub_api.answers import Count, MissingShard, Moment
from weft.hub_api.operation import OF_MESSAGES, TENANT, Name, Operation, Parameter
from weft.hub_api.rights import Scope
from weft.protocols.lane import NAME_CHARACTERS_MAX
from weft.protocols.link import TOPIC_CHARACTERS_MAX


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
    """Process that owns the edge's shard; this process stored nothing."""


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

    tenant: str | UnsetType = UNSET
    edge: str
    waiting: list[WaitingMessage] | UnsetType = UNSET
    trouble: str | UnsetType | None = UNSET
    """The edge's reason why messages wait."""
    outcomes: list[MessageOutcome] | UnsetType = UNSET
    """The newest first, at most 1,000."""
    url: str | UnsetType = UNSET
    """Process that owns the edge's shard, if `redirect` was asked for."""


EDGES_MAX = 500
"""Maximum number of edges that one request publishes to; a larger group needs several requests."""


KEY_CHARACTERS_MAX = 255


EXPIRES_S = 3600.0


class MessageRequest(msgspec.Struct, forbid_unknown_fields=True):
    topic: Annotated[str, Meta(max_length=TOPIC_CHARACTERS_MAX)]
    edge: str | None = None
    edges: Annotated[list[str], Meta(max_length=EDGES_MAX)] = []
    group: str | None = None
    after: Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX)] = ""
    """With ``group``: ``next_after`` of the answer before."""
    payload: str | None = None
    payload_base64: str | None = None
    expires_s: Annotated[float, Meta(gt=0, le=EXPIRY_NS_MAX / 1e9)] = EXPIRES_S
    qos: Annotated[int, Meta(ge=0, le=1)] = 1
    redirect: bool = False
    """True to get the URL of the process that owns an edge's shard, instead of a message stored by this one."""


EXPIRY_NS_MAX = 7 * 86_400 * 10**9
"""Longest time that a message may wait."""


PUBLISHERS = (Scope.PUBLISH, Scope.ADMIN)


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "messages",
        "get",
        "/v1/messages",
        "Return an edge's messages: those that wait, and the outcomes of others.",
        "Waiting messages by number, and at most 1,000 outcomes, the newest first. A process remembers outcomes "
        "since it took over the shard; the stream `weft-down` has all. Needs the right `publish` for the edge.",
        MessagesAnswer,
        PUBLISHERS,
        parameters=(
            Parameter("edge", Name, "Name of the edge.", required=True),
            TENANT,
            Parameter("redirect", str, "If given, the answer may be the URL of the process that knows the edge."),
        ),
        errors=OF_MESSAGES,
    ),
    Operation(
        "publish",
        "post",
        "/v1/messages",
        "Publish a message to edges. The hub answers when it is durable.",
        "The answer has an entry for each edge: the number of its message, or an error. At most 1,000 messages and "
        "4 MiB wait for one edge (429), and a request may be for 16 MiB (413). After 503, whether the message was "
        "stored is unknown: repeat the request with the same `Idempotency-Key`. Needs the right `publish` for the "
        "edges.",
        PublishedAnswer,
        PUBLISHERS,
        parameters=(
            TENANT,
            Parameter(
                "Idempotency-Key",
                Annotated[str, Meta(pattern=f"^[ -~]{{0,{KEY_CHARACTERS_MAX}}}$")],
                "Name of the request. A repeated request with the same name stores nothing.",
                "header",
            ),
        ),
        errors=OF_MESSAGES | {408, 409, 413, 415},
        body=MessageRequest,
    ),
)
"""Operations, in the order of the document."""
