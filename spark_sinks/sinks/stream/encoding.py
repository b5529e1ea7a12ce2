"""Rows of a lane as batches."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import zstandard

from spark_sinks.errors import SinkError
from spark_sinks.sinks.stream.lane import Batch
from spark_sinks.sinks.stream.positions import Position, witness_text
from spark_sinks.source.history import Witness
from weft.protocols import batch
from weft.protocols.batch import ClockReading, ClockState
from weft.protocols.columns import KEY_BYTES_MAX, HeaderPairs
from weft.protocols.message_headers import LINEAGE, POSITION, POSITION_BEHIND, POSITION_CHUNK, stored_name

ORIGIN = 1
"""Number of the query's origin in its lanes."""
STREAM_NUMBER = 1
BATCH_BYTES = 512 << 10
"""Payload, key and header bytes from which a batch is full."""
BATCH_ROWS = 4096
_ROW_BYTES = 64
_COMPRESSION_LEVEL = 3


class Row(NamedTuple):
    """One row to send."""

    position: Position
    time: int
    """Nanoseconds since 1970."""
    key: bytes
    payload: bytes
    headers: HeaderPairs
    """Own headers of the row, by the names under which they are stored."""

    @property
    def bytes(self) -> int:
        """Return roughly the row's size in a batch."""
        headers = sum(len(name) + len(str(value)) for name, value in self.headers)
        return len(self.key) + len(self.payload) + headers + _ROW_BYTES

    def at_chunk(self, witness: Witness | None) -> Row:
        """Return the row with the source chunk of its position."""
        if witness is None:
            return self
        return self._with(POSITION_CHUNK, witness_text(witness))

    def behind(self, ends: str) -> Row:
        """Return the row with the ends of the source shard's other lanes, as ``ends_text`` writes them."""
        return self._with(POSITION_BEHIND, ends) if ends else self

    def _with(self, name: str, value: str) -> Row:
        position, *others = self.headers
        return self._replace(headers=(position, (name, value), *others))


def headers_of(position: Position, shard: int, own: Sequence[tuple[str, str]], lineage: str | None) -> HeaderPairs:
    """Return the headers of a record: its position, its lineage, and the row's own."""
    pairs = [(POSITION, position.text(shard))]
    if lineage is not None:
        pairs.append((LINEAGE, lineage))
    return (*pairs, *((stored_name(name), value) for name, value in own))


class BatchEncoder:
    """Encoder of one task. Rows of one source record stay in one batch if they fit, so that the hub stores all or none
    of them."""

    def __init__(self, boot: int, batch_bytes_max: int) -> None:
        self._clock = ClockReading(boot, 0, ClockState.SYNCED)
        self._compressor = zstandard.ZstdCompressor(level=_COMPRESSION_LEVEL)
        self._bytes_max = batch_bytes_max

    def encode(self, rows: Sequence[Row], first: int) -> Batch:
        """Return the batch of rows that begins at sequence number ``first``.

        Raises:
            SinkError: a row is longer than the hub or the format allows.
        """
        for row in rows:
            if len(row.key) > KEY_BYTES_MAX:
                raise SinkError(
                    f"{_named(row)} has a key of {len(row.key)} bytes; at most {KEY_BYTES_MAX} are possible"
                )
        columns = batch.columns_from_lists(
            struct.pack(f"<{len(rows)}q", *(row.time for row in rows)),
            [row.key for row in rows],
            [row.payload for row in rows],
            {index: row.headers for index, row in enumerate(rows)},
        )
        try:
            data = batch.encode(STREAM_NUMBER, first, columns, self._clock, self._compressor, origin=ORIGIN)
        except ValueError as error:
            raise SinkError(f"{_named(rows[0])} cannot be sent: {error}") from error
        if len(data) > self._bytes_max:
            raise SinkError(
                f"{_named(rows[0])} begins a batch of {len(data)} bytes, and the hub takes {self._bytes_max}. Make the "
                "rows shorter, or raise the hub's limits.batch"
            )
        return Batch(first, first + len(rows), data)


def _named(row: Row) -> str:
    return f"the row of source offset {row.position.offset}, number {row.position.ordinal},"
