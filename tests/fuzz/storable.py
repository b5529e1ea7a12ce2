"""What decoders make of messages must be something that the log takes: it would refuse others' messages with it."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from weft.protocols.batch import (
    HEADER_PAIRS_MAX,
    ClockReading,
    ClockState,
    HeaderPairs,
    columns_from_lists,
    encode,
    records,
)

NOW = 1_700_000_000_000_000_000
CLOCK = ClockReading(0, 0, ClockState.SYNCED)


def check_storable(found: Sequence[tuple[bytes, bytes, HeaderPairs]]) -> None:
    """Encode records as one batch, and read them again."""
    if not found:
        return
    keys, payloads, headers = zip(*found, strict=True)
    times = struct.pack(f"<{len(found)}q", *[NOW] * len(found))
    pairs = {index: each for index, each in enumerate(headers) if each}
    assert all(len(each) <= HEADER_PAIRS_MAX for each in headers)
    again = records(encode(1, 1, columns_from_lists(times, keys, payloads, pairs), CLOCK))
    for (key, payload, own), record in zip(found, again, strict=True):
        assert (record.key, record.payload) == (key, payload)
        assert repr(record.headers) == repr(tuple(own))
