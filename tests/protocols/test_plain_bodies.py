"""The fast look at a batch's body says yes only where the full one does."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from weft.protocols import batch
from weft.protocols.batch import columns_from_lists, decode_body, encode_body, ends_of, is_plainly_sound
from weft.protocols.errors import Corrupt

RECORDS = st.lists(
    st.tuples(st.integers(-(1 << 63), (1 << 63) - 1), st.binary(max_size=9), st.binary(max_size=40)),
    min_size=1,
    max_size=12,
)


def body_of(records: list[tuple[int, bytes, bytes]]) -> bytes:
    times = struct.pack(f"<{len(records)}q", *(time for time, _, _ in records))
    return encode_body(columns_from_lists(times, [key for _, key, _ in records], [data for _, _, data in records]))


@given(RECORDS)
def test_what_is_sound_is_seen_to_be(records: list[tuple[int, bytes, bytes]]) -> None:
    assert is_plainly_sound(memoryview(body_of(records)), len(records), records[0][0], records[-1][0])


@given(RECORDS, st.data())
def test_it_never_says_yes_to_what_does_not_decode(
    records: list[tuple[int, bytes, bytes]], draw: st.DataObject
) -> None:
    body = bytearray(body_of(records))
    for _ in range(draw.draw(st.integers(1, 3), "changes")):
        at = draw.draw(st.integers(0, len(body) - 1))
        body[at] = draw.draw(st.integers(0, 255))
    cut = bytes(body)[: draw.draw(st.integers(0, len(body)))] if draw.draw(st.booleans()) else bytes(body)
    count = draw.draw(st.integers(0, len(records) + 1))
    if is_plainly_sound(cut, count, records[0][0], records[-1][0]):
        columns = decode_body(cut, count, headers=False, flags=False)
        assert ends_of(columns.times, count) == (records[0][0], records[-1][0])


@given(st.binary(max_size=200), st.integers(0, 8))
@example(bytes(200), 1)
def test_it_refuses_any_other_bytes_without_an_error(body: bytes, count: int) -> None:
    if is_plainly_sound(body, count, 0, 0):
        decode_body(body, count, headers=False, flags=False)


@pytest.mark.parametrize("column", ["headers", "flags"])
def test_batches_with_further_columns_are_checked_in_full(column: str) -> None:
    columns = columns_from_lists(struct.pack("<q", 5), [b"k"], [b"p"], {0: (("unit", "C"),)}, {0: 1})
    if column == "headers":
        columns = columns._replace(flags=b"")
    else:
        columns = columns._replace(headers={})
    data = bytearray(batch.encode(1, 0, columns, batch.ClockReading(1, 1, batch.ClockState.SYNCED)))
    batch.check(bytes(data), batch.decode_header(data))
    data[-1] ^= 1
    with pytest.raises(Corrupt):
        batch.check(bytes(data), batch.decode_header(data))
