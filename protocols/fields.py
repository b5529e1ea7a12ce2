"""Integers and lists that a peer or a disk can choose, with their bounds, and the one way to unpack msgpack.

The bounds are part of the types, so a decoder refuses what would later overflow a table's signed 64-bit column, a
range set or an allocation. msgspec checks a list's length before it makes the list.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from weft.protocols.errors import Corrupt
from weft.protocols.ranges import SEQ_END

_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1

U32 = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
U64 = Annotated[int, Meta(ge=0)]
"""Msgpack itself has no larger integers."""
Seq = Annotated[int, Meta(ge=0, le=SEQ_END)]
"""A sequence number or offset, or one past the last."""
Epoch = Annotated[int, Meta(ge=0, le=_INT64_MAX)]
Nanoseconds = Annotated[int, Meta(ge=_INT64_MIN, le=_INT64_MAX)]
"""A time or a difference of times; the tables keep them in signed 64 bits."""

LIST_ITEMS_MAX = 1 << 20
"""Longest list in the index of a segment or a chunk."""
RANGES_MAX = 1 << 16
"""Maximum number of ranges of one lane in one message. Holes are few, and a set with more may be sent in part: the rest
is offered once more and trimmed."""
TOPICS_MAX = 256
"""Maximum number of topic patterns of one stream."""

Ranges = Annotated[list[tuple[Seq, Seq]], Meta(max_length=RANGES_MAX)]
"""Half-open ranges in a message, ascending. ``RangeSet.from_wire`` checks their order."""
StoredRanges = Annotated[list[tuple[Seq, Seq]], Meta(max_length=LIST_ITEMS_MAX)]
"""Half-open ranges in an index, ascending; more than a full segment or chunk can have."""
Topics = Annotated[list[str], Meta(max_length=TOPICS_MAX)]

_Value = TypeVar("_Value")


def unpack(decoder: msgspec.msgpack.Decoder[_Value], body: bytes | bytearray | memoryview, what: str) -> _Value:
    """Decode msgpack that others wrote.

    Args:
        what: names the value in the error, with its article.

    Raises:
        Corrupt: not msgpack, not of the decoder's type, out of bounds, not UTF-8, or nested too deeply.
    """
    try:
        return decoder.decode(body)
    # Text that is not UTF-8 and deep nesting surface as Python's own errors, not as msgspec's.
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt(f"{what} does not decode: {error}") from error
