"""Parameters of requests, and long answers: bounds on the bytes in progress for one owner, and on a reader's time."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from aiohttp import web

from weft.bounds import Owner, Refusals, Shares
from weft.cloud_hub.api import views
from weft.cloud_hub.api.access import ApiError

DIGITS_MAX = 20
"""Longest number. Python refuses numbers of some thousand digits with an error of its own."""
AT_ONCE = 16
"""Number of answers of maximum size that may be in progress for all readers together."""
AT_ONCE_OF_OWNER = 4
WAITING_MAX = 64
"""Maximum number of requests of one owner that wait until its earlier answers are read."""
WAIT_S = 10.0
BOUND = "limits.response"
"""Setting under which refusals are counted: shares are multiples of the longest answer."""
JSON = "application/json"
PIECE_BYTES = 256 << 10
PIECE_S = 10.0
"""Longest time that a reader may take for a piece: slower ones are disconnected."""


Part = bytes | memoryview | msgspec.Raw


class LongAnswer(NamedTuple):
    """A document in parts. Joining megabytes alone would block the event loop too long."""

    parts: Sequence[Part]
    content_type: str = JSON
    headers: Mapping[str, str] = {}


def pieces(parts: Iterable[Part]) -> Iterator[bytes]:
    """Yield the bytes of all parts in pieces of ``PIECE_BYTES`` at most."""
    waiting: list[memoryview] = []
    room = PIECE_BYTES
    for part in parts:
        at = 0
        while len(part) - at >= room:
            waiting.append(memoryview(part)[at : at + room])
            yield b"".join(waiting)
            at, waiting, room = at + room, [], PIECE_BYTES
        if at < len(part):
            waiting.append(memoryview(part)[at:])
            room -= len(part) - at
    if waiting:
        yield b"".join(waiting)


class Answers:
    """Bounds on the answers that readers have not read yet.

    Args:
        bytes_max: longest answer.
    """

    def __init__(self, bytes_max: int, refusals: Refusals) -> None:
        self._bytes_max = bytes_max
        self._refusals = refusals
        self._shares: Shares[Owner] = Shares(AT_ONCE * bytes_max, AT_ONCE_OF_OWNER * bytes_max)
        self._waiting: Counter[Owner] = Counter()
        self._freed = asyncio.Condition()

    @property
    def bytes(self) -> int:
        """Return the maximum bytes of the answers in progress."""
        return self._shares.used

    @contextlib.asynccontextmanager
    async def room(self, owner: Owner) -> AsyncIterator[None]:
        """Wait until the owner may have another answer in progress.

        Raises:
            ApiError: 429: it did not read its earlier ones.
        """
        if not self._shares.take(owner, self._bytes_max):
            await self._wait(owner)
        try:
            yield
        finally:
            self._shares.free(owner, self._bytes_max)
            async with self._freed:
                self._freed.notify_all()

    async def _wait(self, owner: Owner) -> None:
        if self._waiting[owner] < WAITING_MAX:
            self._waiting[owner] += 1
            try:
                async with asyncio.timeout(WAIT_S), self._freed:
                    await self._freed.wait_for(lambda: self._shares.take(owner, self._bytes_max))
                return
            except TimeoutError:
                pass
            finally:
                self._waiting[owner] -= 1
                if not self._waiting[owner]:
                    del self._waiting[owner]
        self._refusals.note(BOUND, owner, "refused a request. It asks for more answers than it reads")
        raise ApiError(
            429, "too many answers are under way", "read them before asking for more, and ask for less at once"
        )

    async def send(self, request: web.Request, answer: LongAnswer | web.Response, owner: Owner) -> web.StreamResponse:
        """Send an answer in pieces, and disconnect a reader that does not read them."""
        if isinstance(answer, web.Response):
            assert isinstance(answer.body, bytes), "answers are documents"
            answer = LongAnswer([answer.body])
        size = sum(map(len, answer.parts))
        if request.method != "GET" or size <= PIECE_BYTES:
            body = b"".join(answer.parts)
            return web.Response(body=body, content_type=answer.content_type, headers=answer.headers)
        stream = web.StreamResponse(headers={**answer.headers, "Content-Type": answer.content_type})
        stream.content_length = size
        try:
            async with asyncio.timeout(PIECE_S) as limit:
                await stream.prepare(request)
                for piece in pieces(answer.parts):
                    limit.reschedule(asyncio.get_running_loop().time() + PIECE_S)
                    await stream.write(piece)
                    await asyncio.sleep(0)  # the write alone yields only for a reader that is slower than the node
                await stream.write_eof()
        except TimeoutError:
            self._refusals.note(BOUND, owner, "disconnected it in an answer. It reads too slowly or not at all")
            if request.transport is not None:
                request.transport.abort()
        return stream


def integer(request: web.Request, name: str, default: int, least: int, most: int) -> int:
    """Return a number from the query.

    Raises:
        ApiError: 400.
    """
    text = request.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal()) or len(text) > DIGITS_MAX or not least <= int(text) <= most:
        raise ApiError(400, f"{name}={text[: 2 * DIGITS_MAX]!r}", f"expected a number from {least} to {most}")
    return int(text)


def choice(request: web.Request, name: str, known: Sequence[str]) -> str:
    """Return one of several words from the query; the first if it is missing.

    Raises:
        ApiError: 400.
    """
    text = request.query.get(name, known[0])
    if text not in known:
        raise ApiError(400, f"{name}={text[: 2 * DIGITS_MAX]!r}", f"expected {' or '.join(known)}")
    return text


def moment(request: web.Request, name: str) -> int | None:
    """Return a time from the query, nanoseconds since 1970; None if it is missing.

    Raises:
        ApiError: 400.
    """
    text = request.query.get(name)
    if text is None:
        return None
    try:
        return views.parse_moment(text)
    except ValueError:
        found = text[: 2 * DIGITS_MAX]
        raise ApiError(400, f"{name}={found!r} is not a time", "write 2026-01-31T12:00:00Z, or nanoseconds") from None
