"""Conditional PUTs to one key that overlap on purpose: each is half sent before any of them is finished.

A server that checks the condition when a request begins, and writes when it has ended, keeps its promises for requests
in sequence and breaks them here. An ordinary client cannot time its requests like this.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

TIMEOUT_S = 30.0
SETTLE_S = 0.03
"""Time for a server to begin with requests that are half sent."""
_HEAD_BYTES_MAX = 1 << 16


class Answer(NamedTuple):
    """A server's answer."""

    status: int
    fields: Mapping[str, str]
    """Headers, by their names in lower case."""


async def put_overlapping(url: str, bodies: Sequence[bytes], headers: Sequence[tuple[str, str]]) -> list[Answer]:
    """Put every body under one signed URL, all of them half sent before the first is finished.

    Args:
        url: signed for PUT, with the host as only header.
        headers: names and values, the condition among them.

    Raises:
        OSError: a connection could not be made, broke, or took too long (``TimeoutError``).
        ValueError: an answer is not HTTP.
    """
    async with asyncio.timeout(TIMEOUT_S):
        connections = [await _connect(url) for _ in bodies]
        try:
            for (_, writer), body in zip(connections, bodies, strict=True):
                fields = (*headers, ("Content-Length", str(len(body))))
                await _send(writer, _head(url, "PUT", fields) + body[: len(body) // 2])
            await asyncio.sleep(SETTLE_S)
            rests = [
                _send(writer, body[len(body) // 2 :]) for (_, writer), body in zip(connections, bodies, strict=True)
            ]
            await asyncio.gather(*rests)
            return [await _answer(reader) for reader, _ in connections]
        finally:
            for _, writer in connections:
                writer.close()


async def ask(url: str) -> Answer:
    """Send a GET. Raises as ``put_overlapping``."""
    async with asyncio.timeout(TIMEOUT_S):
        reader, writer = await _connect(url)
        try:
            writer.write(_head(url, "GET", ()))
            return await _answer(reader)
        finally:
            writer.close()


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    # A server may refuse at once and close; its answer is read anyway.
    with contextlib.suppress(ConnectionError):
        writer.write(data)
        await writer.drain()


async def _connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    return await asyncio.open_connection(parts.hostname, port, ssl=secure or None, limit=_HEAD_BYTES_MAX)


def _head(url: str, method: str, headers: Sequence[tuple[str, str]]) -> bytes:
    parts = urlsplit(url)
    target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    lines = [f"{method} {target} HTTP/1.1", f"Host: {parts.netloc}", "Connection: close"]
    return "\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers), "", ""]).encode("ascii")


async def _answer(reader: asyncio.StreamReader) -> Answer:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise ValueError("the server closed the connection without an answer") from error
    first, *lines = head.split("\r\n")
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    status = first.split(" ")[1:2]
    if not status or not status[0].isdecimal():
        raise ValueError(f"{first[:80]!r} is no answer in HTTP")
    return Answer(int(status[0]), fields)
