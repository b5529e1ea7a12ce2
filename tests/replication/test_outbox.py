"""Batches on their way out: which neighbours become one."""

from __future__ import annotations

import struct

from weft.protocols import batch
from weft.protocols.batch import ClockReading, ClockState, decode_header
from weft.replication.sender import Outbox, Read

MOST = 8 << 20


def stored(first: int, boot: int, origin: int = 0) -> Read:
    times = struct.pack("<2q", 1000 * first, 1000 * first + 1)
    columns = batch.columns_from_lists(times, [b"key"] * 2, [b"a", b"b"])
    data = batch.encode(1, first, columns, ClockReading(boot, 1000 * first, ClockState.SYNCED), origin=origin)
    return decode_header(data), data


def test_neighbours_are_merged_with_the_last_run_whatever_came_before_it() -> None:
    """A read may begin with the end of another boot: that must not keep the rest apart."""
    outbox = Outbox(3)
    outbox.batch_bytes_max = MOST
    outbox.window.allow(MOST)
    found = [stored(0, 1), stored(2, 1), stored(4, 2), stored(6, 2), stored(8, 2), stored(10, 2, origin=5)]
    runs = [(header.base_seq, header.end_seq) for header, _ in outbox.merged(found, MOST)]
    assert runs == [(0, 4), (4, 10), (10, 12)]
    assert [header.boot_id for header, _ in outbox.merged(found, MOST)] == [1, 2, 2]


def test_a_run_ends_at_the_bytes_that_it_may_have() -> None:
    outbox = Outbox(3)
    outbox.batch_bytes_max = MOST
    outbox.window.allow(MOST)
    found = [stored(2 * number, 1) for number in range(6)]
    limit = 2 * found[0][0].raw_length
    assert [header.count for header, _ in outbox.merged(found, limit)] == [4, 4, 4]
