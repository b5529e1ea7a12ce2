"""Answers of one connection, sent in the order of its requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from weft.edge_node.servers.http.exchange import Exchange
from weft.edge_node.servers.http.server import Server


class Replies:
    """Exchanges whose answers are not sent yet.

    Args:
        send: writes bytes to the client; its second argument ends the connection after them.
    """

    __slots__ = ("_is_flushing", "_send", "_server", "pending")

    def __init__(self, server: Server, send: Callable[[bytes, bool], None]) -> None:
        self._server = server
        self._send = send
        self._is_flushing = False
        self.pending: deque[Exchange] = deque()

    def answered(self) -> None:
        """Send the answer; if more than one is due, send all of the turn in one write."""
        if len(self.pending) <= 1:
            self._flush()
        elif not self._is_flushing:
            self._is_flushing = True
            self._server.context.call_soon(self._flush)

    def _flush(self) -> None:
        """Send the answers that do not wait for earlier ones."""
        self._is_flushing = False
        data, closes = [], False
        while self.pending and self.pending[0].ready and not closes:
            exchange = self.pending.popleft()
            closes = not exchange.request.keeps_alive
            self._server.count(exchange.status)
            data.append(exchange.rendered(self._server.answers))
        if data:
            self._send(data[0] if len(data) == 1 else b"".join(data), closes)
