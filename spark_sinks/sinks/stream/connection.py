"""A blocking WebSocket to a hub node, over a plain socket.

The connection can be left without a closing handshake. A hub treats the closing of a refused connection as proof that a
second node claims the lane, and stops the lane's completeness until an operator decides. A task that another one has
overtaken is not a second node, so it drops the connection without a handshake.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, InvalidStatus, WebSocketException
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.uri import parse_uri

from spark_sinks.errors import SinkError
from weft.replication.attempts.outcome import REASON_HEADER, ConnectionEnd, refused_by_server
from weft.replication.settings import LINK_PATH
from weft.replication.status import LinkState

MESSAGE_BYTES_MAX = 4 << 20
"""Longest message from a hub."""
_RECEIVE_BYTES = 64 << 10
_CLOSE_S = 2.0


class ConnectionFailed(Exception):
    """No connection, or the loss of one, with its outcome for the link."""

    def __init__(self, outcome: ConnectionEnd | str) -> None:
        self.outcome = ConnectionEnd(LinkState.WAITING, outcome) if isinstance(outcome, str) else outcome
        super().__init__(self.outcome.reason)


class Connection:
    """One WebSocket. Used by one thread.

    Args:
        url: ``http(s)://host:port``.
        token: sent as a bearer token.
        ca: certificate authorities in PEM; None trusts the system's.
        timeout_s: longest time for connecting, and for sending each piece.
        clock: monotonic seconds.

    Raises:
        ConnectionFailed: nothing answers, or not with a WebSocket.
        SinkError: the hub's certificate is refused: another try would not help.
    """

    def __init__(
        self, url: str, token: str | None, ca: str | None, timeout_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.url = url
        self._messages: deque[bytes] = deque()
        self._parts: list[bytes] = []
        scheme, _, rest = url.rstrip("/").partition("://")
        uri = parse_uri(f"{'wss' if scheme == 'https' else 'ws'}://{rest}{LINK_PATH}")
        self._protocol = ClientProtocol(uri, max_size=MESSAGE_BYTES_MAX)
        self._timeout_s, self._clock = timeout_s, clock
        try:
            self._socket = socket.create_connection((uri.host, uri.port), timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            raise ConnectionFailed(f"{url}: {error.strerror or error}") from error
        try:
            if uri.secure:
                context = ssl.create_default_context(cadata=ca)
                self._socket = context.wrap_socket(self._socket, server_hostname=uri.host)
            self._shake_hands(token)
        except ssl.SSLCertVerificationError as error:
            self.abandon()
            raise SinkError(
                f"{url}: the hub's certificate is refused ({error.verify_message}). Name the hub as its certificate "
                "does, and give its authority's certificate as ca_file"
            ) from error
        except OSError as error:
            self.abandon()
            raise ConnectionFailed(f"{url}: {error.strerror or error}") from error
        except BaseException:
            self.abandon()
            raise

    def _shake_hands(self, token: str | None) -> None:
        request = self._protocol.connect()
        if token is not None:
            request.headers["Authorization"] = f"Bearer {token}"
        self._protocol.send_request(request)
        self._flush()
        deadline = self._clock() + self._timeout_s
        while not self._protocol.handshake_exc and self._protocol.state.name == "CONNECTING":
            if not self._read(deadline - self._clock()):
                raise ConnectionFailed(f"{self.url}: no answer within {self._timeout_s:g} s")
        failure = self._protocol.handshake_exc
        if isinstance(failure, InvalidStatus):
            status, headers = failure.response.status_code, failure.response.headers
            challenge, told = (next(iter(headers.get_all(each)), None) for each in ("WWW-Authenticate", REASON_HEADER))
            raise ConnectionFailed(
                refused_by_server(
                    self.url, status, has_token=token is not None, argument="the sink's `hub`",
                    challenge=challenge, told=told,
                )
            )  # fmt: skip
        if failure is not None:
            raise ConnectionFailed(f"{self.url}: {failure}")

    def send(self, message: bytes) -> None:
        """Send one message. Blocks while the hub reads nothing.

        Raises:
            ConnectionFailed: the connection is over.
        """
        try:
            self._protocol.send_binary(message)
            self._flush()
        except (OSError, WebSocketException) as error:
            raise ConnectionFailed(f"{self.url}: {error}") from error

    def receive(self, wait_s: float) -> bytes | None:
        """Return the next message; None when none arrived within ``wait_s``. With 0 it looks only at what is here.

        Raises:
            ConnectionFailed: the connection is over, and every message was returned.
        """
        deadline = self._clock() + wait_s
        while not self._messages:
            if self._protocol.state.name != "OPEN":
                raise ConnectionFailed(f"{self.url}: the hub closed the connection")
            try:
                if not self._read(deadline - self._clock()):
                    return None
                if not self._messages:
                    self._flush_answers()
            except OSError as error:
                raise ConnectionFailed(f"{self.url}: {error}") from error
        return self._messages.popleft()

    def _flush_answers(self) -> None:
        """Send pongs. The answer to a closing waits for ``close``: earlier messages may be the reason to ``abandon``
        instead."""
        if self._protocol.state.name == "OPEN":
            self._flush()

    def close(self) -> None:
        """Close with a handshake, if the peer answers soon."""
        with contextlib.suppress(OSError, WebSocketException, ConnectionFailed):
            if self._protocol.state.name == "OPEN":
                self._protocol.send_close(1000)
            self._flush()
            deadline = self._clock() + _CLOSE_S
            while self._protocol.state.name == "CLOSING" and self._read(deadline - self._clock()):
                self._messages.clear()
        self.abandon()

    def abandon(self) -> None:
        """Drop the connection without a handshake."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def _flush(self) -> None:
        self._socket.settimeout(self._timeout_s)
        for data in self._protocol.data_to_send():
            if data:
                self._socket.sendall(data)
            else:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_WR)

    def _read(self, wait_s: float) -> bool:
        """Read the socket's bytes. Return False when none came in time."""
        self._socket.settimeout(max(wait_s, 0.0))
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except (TimeoutError, BlockingIOError, ssl.SSLWantReadError):
            return False
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        for event in self._protocol.events_received():
            if isinstance(event, Response) and isinstance(self._protocol.handshake_exc, InvalidHandshake):
                return True
            if isinstance(event, Frame):
                self._take(event)
        return True

    def _take(self, frame: Frame) -> None:
        if frame.opcode in (Opcode.BINARY, Opcode.TEXT, Opcode.CONT):
            self._parts.append(bytes(frame.data))
            if frame.fin:
                self._messages.append(b"".join(self._parts))
                self._parts = []
