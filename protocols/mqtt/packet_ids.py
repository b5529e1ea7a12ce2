"""A set of packet identifiers in at most 8 KiB, so that all 65,535 of them may be open and memory stays bounded."""

from __future__ import annotations

import re
from collections.abc import Iterator

PACKET_IDS_MAX = 65_535
_NOT_EMPTY = re.compile(rb"[^\0]")


class PacketIds:
    """A set of numbers 0 to 65,535; empty sets take no room."""

    __slots__ = ("_bits", "_count")

    def __init__(self) -> None:
        self._bits = bytearray()
        self._count = 0

    def add(self, packet_id: int) -> bool:
        """Add a number. Return False when it was there already."""
        if not self._bits:
            self._bits = bytearray((PACKET_IDS_MAX + 1) // 8)
        mask = 1 << (packet_id & 7)
        if self._bits[packet_id >> 3] & mask:
            return False
        self._bits[packet_id >> 3] |= mask
        self._count += 1
        return True

    def discard(self, packet_id: int) -> None:
        """Remove a number; do nothing when it is not there."""
        if packet_id in self:
            self._bits[packet_id >> 3] &= ~(1 << (packet_id & 7))
            self._count -= 1

    def __contains__(self, packet_id: int) -> bool:
        return bool(self._bits) and bool(self._bits[packet_id >> 3] & 1 << (packet_id & 7))

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers, ascending. The cost depends only on their count: when clients reconnect, thousands of
        sessions with one number each are walked at a time."""
        for found in _NOT_EMPTY.finditer(self._bits):
            first, byte = found.start() << 3, found[0][0]
            yield from (first | bit for bit in range(8) if byte >> bit & 1)

    def __len__(self) -> int:
        return self._count
