"""Bytes of a client that cannot be handled yet: the beginning of a frame, bytes sent ahead of its turn, and incomplete
bodies."""

from __future__ import annotations

from weft.bounds import Bound, Owner
from weft.edge_node.servers.clients.held import Held
from weft.protocols.amqp.frames import HEAD_BYTES, frame_end


class AmqpInbox(Held):
    """Store of such bytes of one client, charged to its owner.

    Args:
        bound: bytes of all clients.
        owner: the address, until there is a user.
    """

    __slots__ = ("_needed", "content_bytes", "partial")

    def __init__(self, bound: Bound, owner: Owner) -> None:
        super().__init__(bound, owner)
        self._needed = HEAD_BYTES
        """Length of ``partial`` from which on it is examined again."""
        self.partial = bytearray()
        """The beginning of an incomplete frame."""
        self.content_bytes = 0
        """Bytes of incomplete bodies on all channels."""

    def keep(self, tail: bytes, frame_bytes_max: int) -> None:
        """Keep the beginning of a frame.

        Raises:
            AmqpError: the frame is too long.
        """
        self.partial += tail
        end = frame_end(self.partial, 0, frame_bytes_max)
        self._needed = HEAD_BYTES if end is None else end

    def complete(self, data: bytes, frame_bytes_max: int) -> tuple[bytes, int]:
        """Complete the frame from the start of the next read.

        Returns:
            (the whole frame, or ``b""`` when it still lacks bytes; bytes of ``data`` taken).

        Raises:
            AmqpError: as ``keep``.
        """
        at = 0
        while True:
            lacking = self._needed - len(self.partial)
            piece = data[at : at + lacking]
            at += len(piece)
            if len(piece) < lacking:
                self.partial += piece
                return b"", at
            if self._needed > HEAD_BYTES:
                whole = bytes(self.partial) + piece
                self.partial = bytearray()
                self._needed = HEAD_BYTES
                return whole, at
            self.keep(piece, frame_bytes_max)

    def settle(self) -> bool:
        """Charge the bytes held now. Return whether the owner may have so many; if not, nothing is charged."""
        return self.charge(len(self.partial) + len(self.ahead) + self.content_bytes)

    def clear(self) -> None:
        """Drop all bytes: the connection has ended."""
        self.partial, self.content_bytes = bytearray(), 0
        super().clear()
