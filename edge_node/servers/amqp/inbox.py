"""Bytes of a client that cannot be handled yet: the beginning of a frame, what it sent ahead of its turn, and bodies of
which frames are missing."""

from __future__ import annotations

from weft.bounds import Bound, Owner
from weft.protocols.amqp.frames import HEAD_BYTES, frame_end

FREE_BYTES = 4096
"""Bytes of one client that are not counted: those of the small messages that devices send."""


class Inbox:
    """Holds such bytes of one client, charged to its owner.

    Args:
        bound: bytes of all clients.
        owner: the address, until there is a user.
    """

    __slots__ = ("_bound", "_needed", "ahead", "charged", "content_bytes", "owner", "partial")

    def __init__(self, bound: Bound, owner: Owner) -> None:
        self._bound = bound
        self._needed = HEAD_BYTES
        """Bytes from which on ``partial`` is worth another look."""
        self.owner = owner
        self.partial = bytearray()
        """The beginning of a frame that is not whole."""
        self.ahead = b""
        """Bytes that came while the connection waits, for its turn or for an answer from elsewhere."""
        self.content_bytes = 0
        """Bytes of bodies of which frames are missing, on all channels."""
        self.charged = 0

    def keep(self, tail: bytes, frame_bytes_max: int) -> None:
        """Keep the beginning of a frame.

        Raises:
            AmqpError: the frame is longer than may be.
        """
        self.partial += tail
        end = frame_end(self.partial, 0, frame_bytes_max)
        self._needed = HEAD_BYTES if end is None else end

    def complete(self, data: bytes, frame_bytes_max: int) -> tuple[bytes, int]:
        """Take what the frame lacks from the start of the next read.

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

    def take(self) -> bytes:
        """Take out what came ahead; it is charged until ``settle``."""
        ahead, self.ahead = self.ahead, b""
        return ahead

    def belongs_to(self, owner: Owner) -> None:
        """Charge another owner from now on."""
        self._charge(0)
        self.owner = owner

    def settle(self) -> bool:
        """Charge what is held now. Return whether the owner may have that much; if not, nothing is charged."""
        held = len(self.partial) + len(self.ahead) + self.content_bytes
        return self._charge(held if held > FREE_BYTES else 0)

    def clear(self) -> None:
        """Hold nothing any more: the connection has ended."""
        self.ahead, self.partial, self.content_bytes = b"", bytearray(), 0
        self._charge(0)

    def _charge(self, size: int) -> bool:
        if size == self.charged:
            return True
        if self.charged:
            self._bound.free(self.owner, self.charged)
            self.charged = 0
        if not size:
            return True
        if not self._bound.take(self.owner, size):
            self._bound.refuse(self.owner, size)
            return False
        self.charged = size
        return True
