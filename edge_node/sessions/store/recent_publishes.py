"""The last publishes of one session, by packet identifier, in a few bytes each."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from weft.edge_node.sessions.store.entries import Run


class Found(NamedTuple):
    """Place of the last publish with a packet identifier, if it is in the log."""

    runs: tuple[Run, ...]
    """The records of its read; empty when its publishes must not be recognised."""
    qos: int
    rank: int
    """Number of the read's ``publishes`` at this QoS that came before it."""
    publishes: int


_Read = tuple[int, bytes, tuple[Run, ...]]
"""(QoS, packet identifiers, runs)"""


class RecentPublishes:
    """Reads of one session, oldest first: packet identifiers (two bytes each) and the runs of their records.

    A reused packet identifier hides its earlier publish.
    """

    __slots__ = ("_reads", "count")

    def __init__(self) -> None:
        self._reads: deque[_Read] = deque()
        self.count = 0
        """Number of packet identifiers, repeated ones included."""

    def add(self, qos: int, packet_ids: bytes, runs: tuple[Run, ...], window: int) -> None:
        """Remember a read of publishes, and keep older reads within the last ``window`` publishes.

        Args:
            runs: empty when these must not be recognised, and only hide older publishes with their identifiers.
        """
        self._reads.append((qos, packet_ids, runs))
        self.count += len(packet_ids) // 2
        while len(self._reads) > 1 and self.count - len(self._reads[0][1]) // 2 >= window:
            self.count -= len(self._reads.popleft()[1]) // 2

    def find(self, packet_id: int) -> Found | None:
        """Return the last publish with a packet identifier; None when none is remembered."""
        wanted = packet_id.to_bytes(2, "big")
        for qos, packet_ids, runs in reversed(self._reads):
            at = packet_ids.rfind(wanted)
            while at > 0 and at % 2:
                at = packet_ids.rfind(wanted, 0, at + 1)
            if at >= 0:
                return Found(runs, qos, at // 2, len(packet_ids) // 2)
        return None

    def clip(self, ends: Mapping[int, int]) -> None:
        """Forget publishes beyond the ends that a crash left the streams with.

        They are not in the log, and other records will get their sequence numbers.
        """
        self._reads = deque((qos, packet_ids, clip_runs(runs, ends)) for qos, packet_ids, runs in self._reads)

    def pack(self) -> bytes:
        """Return the publishes in the form that the database stores."""
        return msgspec.msgpack.encode(list(self._reads))

    @classmethod
    def unpack(cls, data: bytes) -> RecentPublishes:
        """Return the publishes that ``pack`` wrote.

        Raises:
            msgspec.DecodeError, msgspec.ValidationError: the data has another form.
        """
        recent = cls()
        recent._reads = deque(_DECODER.decode(data))
        recent.count = sum(len(packet_ids) // 2 for _, packet_ids, _ in recent._reads)
        return recent


_DECODER = msgspec.msgpack.Decoder(list[_Read])


def clip_runs(runs: tuple[Run, ...], ends: Mapping[int, int]) -> tuple[Run, ...]:
    """Return the part of the runs below the ends of their streams. A run keeps its place, if only with a count of 0."""
    return tuple(
        (stream, first, max(0, min(count, ends.get(stream, 0) - first))) for stream, first, count in runs
    )  # fmt: skip
