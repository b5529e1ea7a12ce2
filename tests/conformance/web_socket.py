"""The client side of WebSocket (RFC 6455) on a socket, as far as the tests need it: every frame is under control."""

from __future__ import annotations

import base64
import os
import struct

from tests.conformance.raw_client import connect_tcp

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10


class Refused(Exception):
    """The server did not switch protocols."""


class WebSocket:
    """A connection; ``sendall`` sends one binary frame, ``recv`` returns the payload of one."""

    def __init__(self, port: int, path: str = "/mqtt", subprotocols: str | None = "mqtt") -> None:
        self._socket = connect_tcp(port)
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [
            f"GET {path} HTTP/1.1",
            f"Host: 127.0.0.1:{port}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {key}",
            "Sec-WebSocket-Version: 13",
        ]
        if subprotocols is not None:
            lines.append(f"Sec-WebSocket-Protocol: {subprotocols}")
        self._socket.sendall("\r\n".join([*lines, "", ""]).encode())
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            byte = self._socket.recv(1)
            if not byte:
                raise Refused(head.decode())
            head += byte
        status, *fields = head.decode().strip().split("\r\n")
        if " 101 " not in f"{status} ":
            raise Refused(status)
        headers = {name.strip().lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        self.subprotocol = headers.get("sec-websocket-protocol")

    def fileno(self) -> int:
        return self._socket.fileno()

    def sendall(self, data: bytes, /) -> None:
        self.send_frame(BINARY, data)

    def send_frame(self, opcode: int, data: bytes, *, final: bool = True) -> None:
        """A frame, masked as a client's must be."""
        mask = os.urandom(4)
        length = len(data)
        if length < 126:
            size = bytes([0x80 | length])
        elif length < 1 << 16:
            size = b"\xfe" + struct.pack("!H", length)
        else:
            size = b"\xff" + struct.pack("!Q", length)
        masked = bytes(byte ^ mask[index % 4] for index, byte in enumerate(data))
        self._socket.sendall(bytes([final << 7 | opcode]) + size + mask + masked)

    def recv(self, _bytes_max: int, /) -> bytes:
        """The next data; nothing at the end. Frames must be binary [MQTT-6.0.0-1]."""
        while True:
            try:
                first, second = self._exactly(2)
                length = second & 127
                if length > 125:
                    length = int.from_bytes(self._exactly(2 if length == 126 else 8), "big")
                data = self._exactly(length)
            except (EOFError, ConnectionError):
                return b""
            opcode = first & 15
            if opcode == CLOSE:
                return b""
            if opcode in (BINARY, CONTINUATION) and data:
                return data
            assert opcode in (BINARY, CONTINUATION, PING, PONG), f"a frame with opcode {opcode}"

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self._socket.recv(count - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    def close(self) -> None:
        self._socket.close()
