"""Feeds, which send to one client until it leaves: the common part of streams and topics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from weft.bounds import Owner
from weft.edge_node.access.identity import Identity
from weft.edge_node.servers.http.exchange import Way
from weft.edge_node.servers.http.out.events import Wrapping

if TYPE_CHECKING:
    from weft.edge_node.servers.http.out.websocket import WebSocketWrapping

KEYS_MAX = 10_000
"""Maximum number of keys for which a feed remembers its client's permission."""


class Feed:
    """A ``Taker``. Belongs to the event loop's thread.

    Args:
        head: head of the answer, which is sent first.
        socket: the wrapping of a WebSocket, if it is one.
        ended: called once when it has ended.
    """

    def __init__(  # noqa: PLR0917
        self,
        head: bytes,
        wrapping: Wrapping,
        socket: WebSocketWrapping | None,
        identity: Identity,
        owner: Owner,
        ended: Callable[[Feed], None],
    ) -> None:
        self.owner = owner
        self._head = head
        self._wrapping = wrapping
        self._socket = socket
        self._identity = identity
        self._ended = ended
        self._way: Way | None = None
        self._may: dict[bytes, bool] = {}
        self.is_over = False
        self.is_paused = False

    def begin(self, way: Way) -> None:
        """Send the head; subclasses send the rest."""
        self._way = way
        way.send(self._head)

    def received(self, data: bytes) -> None:
        """Handle the client's input: pings and the end of a WebSocket; other input is ignored."""
        if self._socket is None or self.is_over:
            return
        answer, is_over = self._socket.received(data)
        if answer and not self.is_paused:
            self._write([answer])
        if is_over:
            self.stop()

    def pause(self) -> None:
        """Stop sending until ``resume``."""
        self.is_paused = True

    def resume(self) -> None:
        """Resume sending."""
        self.is_paused = False

    def recheck(self) -> None:
        """Check again what the client may read."""
        self._may.clear()
        if not self._identity.admitted:
            self.stop()
            self._close()

    def stop(self) -> None:
        """End the feed. Further calls do nothing."""
        if self.is_over:
            return
        self.is_over = True
        if (closing := self._wrapping.end()) and not self.is_paused:
            self._write([closing])
        if self._socket is not None:
            self._socket.forget()
        self._close()
        self._ended(self)

    def _write(self, parts: Sequence[bytes]) -> None:
        if self._way is not None:
            self._way.send_all(parts)

    def _close(self) -> None:
        if self._way is not None:
            self._way.close()

    def may_read(self, key: bytes) -> bool:
        """Return whether access rules let the client read messages of a topic."""
        if self._identity.unrestricted:
            return True
        found = self._may.get(key)
        if found is None:
            if len(self._may) >= KEYS_MAX:
                self._may.clear()
            found = self._may[key] = self._identity.may_read(key)
        return found
