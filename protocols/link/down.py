"""Frames of the feature ``down``: messages from a hub to an edge's local topics, and what became of them
(docs/reference/formats/link.md).

A hub sends messages only after DOWN_OPEN. It sends a message again on each connection until it has an outcome, so the
edge has to recognise those that it has stored.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from weft.protocols.fields import U32, Nanoseconds, Seq

DOWN = "down"
MESSAGE_BYTES_MAX = 256 << 10
"""Longest payload of a message."""
TOPIC_CHARACTERS_MAX = 1024
REASON_CHARACTERS_MAX = 300
IN_FLIGHT_MAX = 64
"""Maximum number of messages, and of outcomes, in one frame, and of messages without an outcome on a connection."""
IN_FLIGHT_BYTES_MAX = 1 << 20
"""Maximum bytes of payload of the messages without an outcome on a connection."""


class OutcomeKind(IntEnum):
    """Outcomes of a message at an edge. The numbers are on the wire and in logs."""

    PUBLISHED = 1
    """It is in the edge's log, and its subscribers get it from there."""
    EXPIRED = 2
    """Its time was over before the edge could store it. It is not published."""
    REFUSED = 3
    """The edge does not take it: the reason says why."""
    UNKNOWN = 4
    """The edge's log knows later messages and nothing of this one: it was stored too long ago, or never."""
    WAITING = 5
    """The edge has no room for it yet: the reason says why. Another outcome follows."""


class DownOpen(msgspec.Struct, frozen=True, array_like=True):
    """An edge's readiness for messages on this connection."""

    next: Seq
    """One past the highest number of a message of this hub that the edge has an outcome of; 0 without one."""


class DownMessage(msgspec.Struct, frozen=True, array_like=True):
    """One message for local topics of the edge."""

    number: Seq
    """Number of the message among those of the cluster to this edge, ascending."""
    accepted: Nanoseconds
    """Time at which the hub accepted it, ns since 1970 by its clock: later than that of each earlier message."""
    left: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    """Time until it expires, ns. Relative, because the edge's clock may be wrong; 0 if it has expired."""
    topic: Annotated[str, Meta(max_length=TOPIC_CHARACTERS_MAX)]
    payload: Annotated[bytes, Meta(max_length=MESSAGE_BYTES_MAX)]
    qos: Annotated[int, Meta(ge=0, le=1)] = 1


class Messages(msgspec.Struct, frozen=True, array_like=True):
    """Messages in the order of their numbers."""

    messages: Annotated[list[DownMessage], Meta(max_length=IN_FLIGHT_MAX)]


class MessageOutcome(msgspec.Struct, frozen=True, array_like=True):
    """The outcome of one message. Durable at the edge, except for WAITING."""

    number: Seq
    accepted: Nanoseconds
    """The message's own, so that a number that a restored store gives again is recognised."""
    outcome: U32
    """An ``OutcomeKind``, or a later release's number."""
    reason: Annotated[str, Meta(max_length=REASON_CHARACTERS_MAX)] = ""


class Outcomes(msgspec.Struct, frozen=True, array_like=True):
    """Outcomes of messages, which the hub need not send again."""

    outcomes: Annotated[list[MessageOutcome], Meta(max_length=IN_FLIGHT_MAX)]
