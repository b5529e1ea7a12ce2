"""Frames of the feature ``canary``: a question that the hub answers when its store has taken something since
(docs/reference/formats/link.md)."""

from __future__ import annotations

import msgspec

from weft.protocols.fields import U32, U64

CANARY = "canary"


class Canary(msgspec.Struct, frozen=True, array_like=True):
    """A question of the edge: is a chunk durable that was begun after this frame came?"""

    number: U32
    """Larger than that of every question before on this connection."""


class CanaryBack(msgspec.Struct, frozen=True, array_like=True):
    """The hub's answer, which goes with its next PONG: such a chunk is durable in the shard of the edge."""

    number: U32
    """Number of the newest question for which this is so."""
    waited: U64
    """Time for which the hub let the question wait for a chunk, and the answer for a message, ns."""
