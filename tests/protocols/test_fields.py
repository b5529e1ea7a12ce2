"""Msgpack from others becomes a value of the type or ``Corrupt``, never anything else."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.protocols import ranges
from weft.protocols.errors import Corrupt
from weft.protocols.ranges import SEQ_END

TYPES = [ranges.U32, ranges.U64, ranges.Seq, ranges.Epoch, ranges.Nanoseconds, ranges.Ranges, ranges.Topics]


@pytest.mark.parametrize(
    ("kind", "smallest", "largest"),
    [
        (ranges.U32, 0, (1 << 32) - 1),
        (ranges.U64, 0, (1 << 64) - 1),
        (ranges.Seq, 0, SEQ_END),
        (ranges.Epoch, 0, (1 << 63) - 1),
        (ranges.Nanoseconds, -(1 << 63), (1 << 63) - 1),
    ],
)
def test_integers_keep_to_their_bounds(kind: type, smallest: int, largest: int) -> None:
    decoder: msgspec.msgpack.Decoder[int] = msgspec.msgpack.Decoder(kind)
    for value in (smallest, largest):
        assert ranges.unpack(decoder, msgspec.msgpack.encode(value), "a number") == value
    for value in (smallest - 1, largest + 1):
        if -(1 << 63) <= value < 1 << 64:
            with pytest.raises(Corrupt, match="a number"):
                ranges.unpack(decoder, msgspec.msgpack.encode(value), "a number")


@pytest.mark.parametrize("kind", TYPES, ids=str)
@given(st.binary(max_size=40))
def test_garbage_is_corrupt_or_a_value(kind: type, data: bytes) -> None:
    try:
        ranges.unpack(msgspec.msgpack.Decoder(kind), data, "a field")
    except Corrupt:
        pass


@pytest.mark.parametrize(
    "data", [b"\xa1\xff", b"\x91" * 100_000, b"\xc1", b""], ids=["text", "deep", "unused", "empty"]
)
def test_what_surfaces_as_other_errors_is_corrupt(data: bytes) -> None:
    class Text(msgspec.Struct, array_like=True):
        text: str

    for kind in (str, Text, object):
        decoder: msgspec.msgpack.Decoder[object] = msgspec.msgpack.Decoder(kind)
        with pytest.raises(Corrupt):
            ranges.unpack(decoder, data, "a field")
