"""Bounded integers and lists for data from peers and disks, the one way to unpack msgpack, and headers that are packed
once for many records.

The bounds are part of the types, so a decoder refuses values that would later overflow a table's signed 64-bit column,
a range set or an allocation. msgspec checks a list's length before it makes the list.
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
is offered again and trimmed."""
TOPICS_MAX = 256
"""Maximum number of topic patterns of one stream."""

Ranges = Annotated[list[tuple[Seq, Seq]], Meta(max_length=RANGES_MAX)]
"""Half-open ranges in a message, ascending. ``RangeSet.from_wire`` checks their order."""
StoredRanges = Annotated[list[tuple[Seq, Seq]], Meta(max_length=LIST_ITEMS_MAX)]
"""Half-open ranges in an index, ascending; more than a full segment or chunk can have."""
Topics = Annotated[list[str], Meta(max_length=TOPICS_MAX)]

_Value = TypeVar("_Value")


def unpack(decoder: msgspec.msgpack.Decoder[_Value], body: bytes | bytearray | memoryview, what: str) -> _Value:
    """Decode msgpack from another writer.

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


Pair = tuple[str, str | bytes | int | float | bool | None]
"""Name and value of a header, as in ``columns.HeaderPairs``."""

pack = msgspec.msgpack.Encoder().encode
"""Encoder of a record's headers for a batch."""


class PackedHeaders(tuple[Pair, ...]):
    """Headers with their encoding in a batch. ``packed_headers`` makes them."""

    packed: bytes
    extended: tuple[Pair, PackedHeaders] | None

    def plus(self, pair: Pair) -> PackedHeaders:
        """Return the headers with one more. The same pair as in the previous call returns the same object."""
        if self.extended is None or self.extended[0] is not pair:
            self.extended = pair, packed_headers((*self, pair))
        return self.extended[1]


def packed_headers(pairs: tuple[Pair, ...]) -> PackedHeaders:
    """Return headers that the log need not measure and encode for each record. This pays for more than a few records.

    Raises:
        ValueError: an integer of more than 64 bits.
    """
    for _, value in pairs:
        if type(value) is int and not _INT64_MIN <= value <= _INT64_MAX:
            raise ValueError(f"the header value {value} has more than 64 bits: store it as text")
    found = PackedHeaders(pairs)
    found.packed, found.extended = pack(pairs), None
    return found
