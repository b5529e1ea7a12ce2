"""Answers of one connection, which go out in the order of its requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from weft.edge_node.servers.http.exchange import Exchange
from weft.edge_node.servers.http.server import Server


class Replies:
    """Exchanges whose answers are not sent.

    Args:
        send: takes bytes for the client, and whether the connection ends after them.
    """

    __slots__ = ("_is_flushing", "_send", "_server", "pending")

    def __init__(self, server: Server, send: Callable[[bytes, bool], None]) -> None:
        self._server = server
        self._send = send
        self._is_flushing = False
        self.pending: deque[Exchange] = deque()

    def answered(self) -> None:
        """Send the answer, or with others of the same turn where more than one is due: one write for all of them."""
        if len(self.pending) <= 1:
            self._flush()
        elif not self._is_flushing:
            self._is_flushing = True
            self._server.context.call_soon(self._flush)

    def _flush(self) -> None:
        """Send the answers that are not behind others."""
        self._is_flushing = False
        data, closes = [], False
        while self.pending and self.pending[0].ready and not closes:
            exchange = self.pending.popleft()
            closes = not exchange.request.keeps_alive
            self._server.count(exchange.status)
            data.append(exchange.rendered(self._server.answers))
        if data:
            self._send(data[0] if len(data) == 1 else b"".join(data), closes)
