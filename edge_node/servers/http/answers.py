"""Answers as bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from email.utils import formatdate
from http import HTTPStatus

import msgspec

from weft.edge_node.servers.http.problem import Problem

JSON = "application/json"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_FIRST_LINES = {each.value: f"HTTP/1.1 {each.value} {each.phrase}\r\n".encode() for each in HTTPStatus}
_NO_BODY = (204, 304)
Fields = Sequence[tuple[str, str]]


class Answers:
    """Encoder of answers. Answers of the same second share their date.

    Args:
        wall_clock: nanoseconds since 1970.
    """

    __slots__ = ("_date", "_second", "_wall_clock")

    def __init__(self, wall_clock: Callable[[], int]) -> None:
        self._wall_clock = wall_clock
        self._second = -1
        self._date = b""

    def head(self, status: int, fields: Fields, *, keeps_alive: bool, is_http10: bool = False) -> bytes:
        """Return the first line and the fields of an answer, without the empty line."""
        second = self._wall_clock() // 1_000_000_000
        if second != self._second:
            self._second = second
            self._date = f"Server: weft\r\nDate: {formatdate(second, usegmt=True)}\r\n".encode()
        parts = [_FIRST_LINES[status], self._date]
        if not keeps_alive:
            parts.append(b"Connection: close\r\n")
        elif is_http10:
            parts.append(b"Connection: keep-alive\r\n")
        parts += [f"{name}: {value}\r\n".encode("latin-1", "replace") for name, value in fields]
        return b"".join(parts)

    def whole(
        self,
        status: int,
        body: bytes = b"",
        content_type: str = JSON,
        fields: Fields = (),
        *,
        keeps_alive: bool = True,
        is_http10: bool = False,
        is_head: bool = False,
    ) -> bytes:
        """Return an answer with its body.

        Args:
            is_head: whether the request was HEAD, whose answer has no body.
        """
        head = self.head(status, fields, keeps_alive=keeps_alive, is_http10=is_http10)
        if status in _NO_BODY:
            return head + b"\r\n"
        length = f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        return head + length if is_head else head + length + body


def influx_error(problem: Problem) -> bytes:
    """Return the body of a refusal to a client of InfluxDB."""
    return msgspec.json.encode({"code": problem.code, "message": str(problem), "error": str(problem)})
