"""Reassembly of a packet that is split between reads.

A read is parsed in place. Only a packet that spans reads is joined, so nothing else is copied, and a large packet that
comes in many reads is joined once.
"""

from __future__ import annotations

from weft.protocols.mqtt.decoder import FIXED_HEADER_BYTES_MAX, packet_end


class Reassembly:
    """The beginning of at most one packet, at most ``packet_bytes_max`` bytes."""

    __slots__ = ("_held", "_packet_bytes_max", "_parts", "_total")

    def __init__(self, packet_bytes_max: int) -> None:
        self._packet_bytes_max = packet_bytes_max
        self._parts: list[bytes] = []
        self._held = 0
        self._total: int | None = None
        """Bytes of the packet, known when its fixed header is complete."""

    def __bool__(self) -> bool:
        return bool(self._parts)

    @property
    def held(self) -> int:
        """Return the bytes kept."""
        return self._held if self._parts else 0

    def keep(self, tail: bytes) -> None:
        """Keep the beginning of the packet at the end of a read.

        Raises:
            MalformedPacket: the packet is, or will be, over the limit.
        """
        place = packet_end(tail, 0, self._packet_bytes_max)
        self._parts = [tail]
        self._held = len(tail)
        self._total = place[1] if place else None

    def complete(self, data: bytes) -> tuple[bytes, int]:
        """Complete the packet from the start of the next read.

        Returns:
            (the whole packet, or ``b""`` while it still lacks bytes; number of bytes of ``data`` used).

        Raises:
            MalformedPacket: as ``keep``.
        """
        if self._total is None:
            head = self._parts[0] + data[: FIXED_HEADER_BYTES_MAX - self._held]
            place = packet_end(head, 0, self._packet_bytes_max)
            if place is None:  # then all of data is in head
                self.keep(head)
                return b"", len(data)
            self._total = place[1]
        lacking = self._total - self._held
        if lacking > len(data):
            self._parts.append(data)
            self._held += len(data)
            return b"", len(data)
        packet = b"".join((*self._parts, data[:lacking]))
        self._parts = []
        return packet, lacking
