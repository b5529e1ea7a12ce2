"""The agreed end of a connection: connection.close from either side, and close-ok from the other (section 1.4.2.5)."""

from __future__ import annotations

import logging
from typing import Protocol

from weft.edge_node.ingest.ingest import Ingest
from weft.protocols.amqp.errors import AmqpError, ReplyCode
from weft.protocols.amqp.frames import METHOD, Frame
from weft.protocols.amqp.methods import Method, commands

_CLOSE, _CLOSE_OK = commands.Connection.Close.index, commands.Connection.CloseOk.index


class ClosingConnection(Protocol):
    """Interface of the connection for its closing."""

    @property
    def is_open(self) -> bool:
        """Return whether data can still be sent to the client."""
        ...

    def answer(self, method: Method, channel: int = 0) -> None:
        """Write one method."""

    def leave_channels(self) -> None:
        """End all channels."""

    def await_last_word(self) -> None:
        """Resume reading at once, and wait some seconds for close-ok."""

    def end(self, reason: str, level: int = logging.WARNING, *, lingers: bool = False) -> None:
        """Close the transport."""


class Closing:
    """Closing handshake with the other side. Once it has begun, no request of the client is accepted."""

    __slots__ = ("_connection", "_ingest", "is_begun")

    def __init__(self, connection: ClosingConnection, ingest: Ingest) -> None:
        self._connection = connection
        self._ingest = ingest
        self.is_begun = False

    def begin(self, error: AmqpError) -> None:
        """Send connection.close, with the reason."""
        self.is_begun = True
        connection = self._connection
        connection.answer(commands.Connection.Close(error.code, error.text, error.method >> 16, error.method & 0xFFFF))
        connection.leave_channels()
        connection.await_last_word()

    def handle(self, frame: Frame) -> None:
        """Wait for connection.close-ok among the frames that the client sent before it saw the close."""
        if frame.channel or frame.kind != METHOD:
            return
        index = int.from_bytes(frame.payload[:4], "big")
        if index == _CLOSE:
            self._connection.answer(commands.Connection.CloseOk())
        if index in (_CLOSE, _CLOSE_OK):
            self._connection.end("connection.close-ok", logging.DEBUG, lingers=True)

    def asked(self) -> None:
        """Answer connection.close when earlier publishes are durable: the answer tells a publisher without confirms
        that they are."""
        self._ingest.turn.store()
        if self.is_begun:
            return  # there was no room for it: an exception is on its way to the client
        self.is_begun = True
        self._connection.leave_channels()
        self._ingest.on_durable(self._durable)

    def _durable(self, error: BaseException | None) -> None:
        if not self._connection.is_open:
            return
        if error is not None:
            self.begin(AmqpError(ReplyCode.INTERNAL_ERROR, f"what was published could not be stored: {error}"))
        else:
            self._connection.answer(commands.Connection.CloseOk())
            self._connection.end("connection.close", logging.DEBUG, lingers=True)
