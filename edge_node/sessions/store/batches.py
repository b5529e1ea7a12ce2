"""Batches of the log, decoded for picking records out of them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from struct import Struct

from weft.edge_node.subscriptions.log_records import LogRecord
from weft.protocols import batch
from weft.protocols.batch import HeaderPairs
from weft.protocols.columns import read_u32s

_RECORD_BYTES = 16
"""Key index, payload offset and time of a record."""
_BATCH_BYTES = 1000
LONG_BYTES = 32 << 10
"""Mean length from which on records are cut out once for all readers."""
TOPICS_MAX = 128
"""Maximum number of distinct topics of a page: a check of one takes 3 to 10 µs (``SessionReader.wants``)."""
_TIME = Struct("<q")


class DecodedBatch:
    """One batch; payloads are cut out only for requested records."""

    __slots__ = ("_flags", "_headers", "_key_index", "_keys", "_long", "_offsets", "_payload", "_times", "base_seq",
                 "bytes", "end_seq")  # fmt: skip

    def __init__(self, data: bytes) -> None:
        """Decode a batch of the log.

        Raises:
            CodecError: it is damaged.
        """
        header = batch.decode_header(data)
        columns = batch.decode_columns(data, header)
        self.base_seq = header.base_seq
        self.end_seq = header.end_seq
        self._keys: Sequence[bytes] = columns.keys
        self._key_index: array[int] = read_u32s(columns.key_index)
        self._offsets: array[int] = read_u32s(columns.payload_offsets)
        self._payload = memoryview(columns.payload)
        self._headers = columns.headers
        self._flags = bytes(columns.flags)
        self._times = columns.times
        is_long = header.raw_length > LONG_BYTES * header.count
        self._long: dict[int, LogRecord] | None = {} if is_long else None
        """Offset -> the record that was cut out, if they are long: a thousand sessions may read the same."""
        self.bytes = header.raw_length * (1 + is_long) + _RECORD_BYTES * header.count + _BATCH_BYTES
        """Approximate memory of the batch."""

    def pick(
        self, seq: int, wants: Callable[[bytes], bool], records_max: int, bytes_max: int
    ) -> tuple[list[LogRecord], int]:
        """Return the wanted records from ``seq`` on, a number of the batch.

        Args:
            wants: called once for each distinct topic, for at most ``TOPICS_MAX``.

        Returns:
            The records, and the seq at which to continue.
        """
        found: list[LogRecord] = []
        base, last, index, keys = self.base_seq, self.end_seq, self._key_index, self._keys
        asked: dict[int, bool] = {}
        for at in range(seq - base, last - base):
            wanted = asked.get(key := index[at])
            if wanted is None:
                if len(asked) == TOPICS_MAX:
                    return found, base + at
                wanted = asked[key] = wants(keys[key])
            if not wanted:
                continue
            record = self.record(base + at)
            bytes_max -= len(record.payload)
            if found and (bytes_max < 0 or len(found) >= records_max):
                return found, record.seq
            found.append(record)
        return found, last

    def record(self, seq: int) -> LogRecord:
        """Return one record of the batch."""
        at = seq - self.base_seq
        found = None if self._long is None else self._long.get(at)
        if found is None:
            payload = bytes(self._payload[self._offsets[at] : self._offsets[at + 1]])
            headers: HeaderPairs = self._headers.get(at, ())
            flags = self._flags[at] if self._flags else 0
            found = LogRecord(seq, self._keys[self._key_index[at]], payload, flags, headers, self.time(seq))
            if self._long is not None:
                self._long[at] = found
        return found

    def headers(self, seq: int) -> HeaderPairs:
        """Return the headers of a record."""
        return self._headers.get(seq - self.base_seq, ())

    def payload_bytes(self, seq: int) -> int:
        """Return the length of a record's payload."""
        at = seq - self.base_seq
        return self._offsets[at + 1] - self._offsets[at]

    def time(self, seq: int) -> int:
        """Return the time of a record, ns since 1970."""
        found: int = _TIME.unpack_from(self._times, 8 * (seq - self.base_seq))[0]
        return found
