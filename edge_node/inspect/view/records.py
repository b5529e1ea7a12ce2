"""Selection of records from batches of the log, without creating unwanted ones."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from weft.protocols import batch
from weft.protocols.batch import Buffer, Flag, Record
from weft.protocols.columns import read_u32s
from weft.protocols.topics import matches


@dataclass(frozen=True)
class Choice:
    """A choice of records."""

    topic_filter: str | None = None
    """An MQTT topic filter."""
    since_ns: int | None = None
    """Earliest time of receipt, ns since 1970."""
    from_seq: int = 0
    """Least sequence number."""

    def takes_key(self, key: bytes) -> bool:
        """Return whether records of a topic are wanted. Keys that are not a topic match no filter."""
        if self.topic_filter is None:
            return True
        try:
            topic = key.decode()
        except UnicodeDecodeError:
            return False
        return bool(topic) and matches(self.topic_filter, topic)


def choose(body: Buffer, choice: Choice) -> Iterator[Record]:
    """Yield the wanted records of a batch that was checked before, in their order.

    Raises:
        CodecError: the batch does not match its header.
    """
    header = batch.decode_header(body)
    columns = batch.decode_columns(body, header)
    takes = [choice.takes_key(key) for key in columns.keys]
    if not any(takes):
        return
    times = array("q", bytes(columns.times))
    key_index, offsets = read_u32s(columns.key_index), read_u32s(columns.payload_offsets)
    payload, since = memoryview(columns.payload), choice.since_ns
    for at in range(max(0, choice.from_seq - header.base_seq), header.count):
        if takes[key_index[at]] and (since is None or times[at] >= since):
            yield Record(
                header.base_seq + at, times[at], columns.keys[key_index[at]],
                bytes(payload[offsets[at] : offsets[at + 1]]), columns.headers.get(at, ()),
                Flag(columns.flags[at]) if columns.flags else Flag(0),
            )  # fmt: skip
