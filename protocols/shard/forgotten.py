"""Streams that an operator deleted: FORGET records, and what a shard's state keeps of such a stream."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from weft.protocols.fields import Nanoseconds, unpack

FORGET_LEVEL = 2
"""Fold level from which on the log may have FORGET records. Below it they change nothing."""
FORGOTTEN_MAX = 16_384
"""Maximum number of deleted streams with records in one shard: a state keeps the next offset of each for good."""
BY_MAX, REASON_MAX = 128, 512
"""Maximum numbers of characters of a FORGET record."""


class ForgetBody(msgspec.Struct, frozen=True, array_like=True):
    """Body of a FORGET record."""

    by: Annotated[str, Meta(max_length=BY_MAX)]
    """The person who deleted the stream."""
    reason: Annotated[str, Meta(max_length=REASON_MAX)]
    tabled: bool
    """True when all of the shard's records of the stream were table rows, or skipped."""


class Forgotten(msgspec.Struct, frozen=True, array_like=True):
    """The deletion of a stream, until a lane of the stream is in the state again."""

    time: Nanoseconds
    """Moment by the hub's clock."""
    by: str
    reason: str
    tabled: bool


_BODY = msgspec.msgpack.Decoder(ForgetBody)


def forgotten(body: bytes, created: int) -> Forgotten:
    """Return what a FORGET record says.

    Args:
        created: moment of the record by the hub's clock, nanoseconds since 1970.

    Raises:
        Corrupt: the body is malformed.
    """
    told = unpack(_BODY, body, "a FORGET record")
    return Forgotten(created, told.by, told.reason, told.tabled)
