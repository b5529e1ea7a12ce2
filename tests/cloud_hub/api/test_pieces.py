"""A long answer goes out in pieces that are its bytes."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from weft.cloud_hub.http.answers import PIECE_BYTES, pieces
from weft.cloud_hub.reads.views import Part

SIZES = st.lists(
    st.sampled_from([0, 1, 2, 100_000, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 600_000]), max_size=8
)


@given(SIZES)
def test_pieces_are_the_bytes_of_all_parts_and_none_is_long(sizes: list[int]) -> None:
    parts = [bytes([number]) * size for number, size in enumerate(sizes, 1)]
    left: list[Part] = [msgspec.Raw(part) if number % 2 else part for number, part in enumerate(parts)]
    found = list(pieces(left))
    assert not left, "what was sent is not held"
    assert b"".join(found) == b"".join(parts)
    assert all(len(piece) == PIECE_BYTES for piece in found[:-1])
    assert all(0 < len(piece) <= PIECE_BYTES for piece in found)
