"""HTTP exchanges: parameters, body and author of requests; JSON of answers; bounds on unread bytes of an owner and on a
reader's time."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import msgspec
from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware

from weft.bounds import NestedShares, Owner, Refusals
from weft.cloud_hub.auth.access import Access, Charged
from weft.cloud_hub.clock import ADVICE, HubClock
from weft.cloud_hub.reads.views import Part
from weft.hub_api.answers import ApiError
from weft.hub_api.operation import BODY_BYTES_MAX, SHOWN_CHARACTERS, TENANT, Operation, Reader, reader_of
from weft.hub_api.operations import OF_NAME, OPERATIONS
from weft.hub_api.rights import Right
from weft.network.http_server import Handler
from weft.storage.cluster_log import Author

AT_ONCE = 16
"""Number of answers of maximum size that may be in progress for all readers together."""
AT_ONCE_OF_TENANT = 8
AT_ONCE_OF_OWNER = 4
WAITING_MAX = 64
"""Maximum number of requests of one owner that wait until it has read its earlier answers."""
WAITING_OF_TENANT_MAX = 4 * WAITING_MAX
WAITING_TOTAL_MAX = 16 * WAITING_MAX
WAIT_S = 10.0
BOUND = "limits.response"
"""Name of the bound under which refusals are counted: shares are multiples of the longest answer."""
JSON = "application/json"
PIECE_BYTES = 256 << 10
PIECE_S = 10.0
"""Longest time for a reader to read a piece. Slower ones are disconnected."""
LEAST_BYTES_PER_S = 64 << 10
"""Lowest rate of a reader over a whole answer, in addition to ``PIECE_S``."""
MORE_S = 60.0
"""Longest additional time for the part of an answer beyond ``limits.response``: names, escapes and one more record."""
PART_BYTES = 128
"""Memory of a part of an answer in addition to its bytes."""


class LongAnswer(NamedTuple):
    """A document in parts: joining megabytes would block the event loop for too long.

    Each part is freed when it was sent, so nothing else may hold the list.
    """

    parts: list[Part]
    content_type: str = JSON
    headers: Mapping[str, str] = {}


def pieces(parts: list[Part]) -> Iterator[bytes]:
    """Yield the bytes of all parts in pieces of ``PIECE_BYTES`` at most, and remove the parts from the list."""
    waiting: list[memoryview] = []
    room = PIECE_BYTES
    parts.reverse()
    while parts:
        part, at = parts.pop(), 0
        while len(part) - at >= room:
            waiting.append(memoryview(part)[at : at + room])
            yield b"".join(waiting)
            at, waiting, room = at + room, [], PIECE_BYTES
        if at < len(part):
            waiting.append(memoryview(part)[at:])
            room -= len(part) - at
    if waiting:
        yield b"".join(waiting)


class AnswerRoom:
    """Bytes that one answer in progress reserves: at first those of the longest answer, then those left to send."""

    def __init__(self, answers: Answers, reader: Charged, units: int) -> None:
        self._answers, self.reader, self._units = answers, reader, units

    def holds(self, units: int) -> None:
        """Reserve the bytes that the answer has, which may exceed the longest answer."""
        more, self._units = units - self._units, units
        self._answers.count(self.reader, more)

    async def send(self, parts: list[Part], write: Callable[[bytes], Awaitable[None]]) -> None:
        """Write parts in pieces, and release their bytes. The list is empty afterwards.

        Raises:
            TimeoutError: the reader takes too long for a piece or for the whole answer.
        """
        size = sum(map(len, parts))
        left = size + PART_BYTES * len(parts)
        is_released = max(map(len, parts)) <= PIECE_BYTES  # a longer part stays until its end was sent
        self.holds(left)
        now = asyncio.get_running_loop().time
        ends_at = now() + self._answers.longest_s(size)
        async with asyncio.timeout(PIECE_S) as limit:
            for piece in pieces(parts):
                limit.reschedule(min(now() + PIECE_S, ends_at))
                await write(piece)
                if is_released:
                    left = max(left - len(piece), 0)
                    self.holds(left)
                if parts:
                    await asyncio.sleep(0)  # the write alone yields only for a reader that is slower than the node


class Answers:
    """Bounds on the answers that readers have not read yet.

    Args:
        bytes_max: longest answer.
    """

    def __init__(self, bytes_max: int, refusals: Refusals) -> None:
        self._bytes_max = bytes_max
        self._refusals = refusals
        self._shares: NestedShares[Owner] = NestedShares(
            AT_ONCE * bytes_max, AT_ONCE_OF_TENANT * bytes_max, AT_ONCE_OF_OWNER * bytes_max
        )
        self._waiting: NestedShares[Owner] = NestedShares(WAITING_TOTAL_MAX, WAITING_OF_TENANT_MAX, WAITING_MAX)
        self._queues: dict[Owner, dict[Owner, dict[asyncio.Future[None], None]]] = {}
        """Tenant -> owner -> waiting requests, in the order of their turns."""

    @property
    def bytes(self) -> int:
        """Return the maximum bytes of all answers in progress."""
        return self._shares.used

    @contextlib.asynccontextmanager
    async def room(self, reader: Charged) -> AsyncIterator[AnswerRoom]:
        """Wait, for ``WAIT_S`` at most, until the reader may have another answer in progress.

        Raises:
            ApiError: 429: it has not read its earlier answers.
        """
        if not self._shares.take(reader.tenant, reader.owner, self._bytes_max):
            await self._wait(reader)
        with self._taken(reader) as room:
            yield room

    @contextlib.asynccontextmanager
    async def turn(self, reader: Charged) -> AsyncIterator[AnswerRoom]:
        """Wait as ``room`` does, without a limit of time, for a reader that has a place."""
        if not self._shares.take(reader.tenant, reader.owner, self._bytes_max):
            await self._queue(reader)
        with self._taken(reader) as room:
            yield room

    @contextlib.contextmanager
    def _taken(self, reader: Charged) -> Iterator[AnswerRoom]:
        room = AnswerRoom(self, reader, self._bytes_max)
        try:
            yield room
        finally:
            room.holds(0)

    def count(self, reader: Charged, units: int) -> None:
        """Add units to the account of a reader, or subtract them, and admit waiting requests."""
        self._shares.hold(reader.tenant, reader.owner, units)
        if units < 0:
            while any(self._let_in(tenant) for tenant in list(self._queues)):
                pass

    async def _wait(self, reader: Charged) -> None:
        if self._waiting.take(reader.tenant, reader.owner):
            try:
                async with asyncio.timeout(WAIT_S):
                    await self._queue(reader)
                return
            except TimeoutError:
                pass
            finally:
                self._waiting.free(reader.tenant, reader.owner)
        self._refusals.note(BOUND, reader.owner, "refused a request. It asks for more answers than it reads")
        raise ApiError(
            429, "too many answers of yours are unread", "read them before the next request, and request less at once"
        )

    async def _queue(self, reader: Charged) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        owners = self._queues.setdefault(reader.tenant, {})
        owners.setdefault(reader.owner, {})[turn] = None
        try:
            await turn
        except BaseException:
            if turn in self._queues.get(reader.tenant, {}).get(reader.owner, {}):
                self._drop(reader.tenant, reader.owner, turn)
            elif not turn.cancelled():  # its turn came before it gave up
                self.count(reader, -self._bytes_max)
            raise

    def _let_in(self, tenant: Owner) -> bool:
        """Give room to the next of a tenant, whose other owners and then other tenants come before it is next again.
        Return whether there was room and one who waits."""
        owners = self._queues[tenant]
        if not self._shares.fits_tenant(tenant, self._bytes_max):
            return False
        owner = next((each for each in owners if self._shares.take(tenant, each, self._bytes_max)), None)
        if owner is None:
            return False
        turn = next(iter(owners[owner]))
        self._queues[tenant] = self._queues.pop(tenant)
        owners[owner] = owners.pop(owner)
        self._drop(tenant, owner, turn)
        if turn.cancelled():  # it gave up, and does not know yet
            self._shares.free(tenant, owner, self._bytes_max)
        else:
            turn.set_result(None)
        return True

    def _drop(self, tenant: Owner, owner: Owner, turn: asyncio.Future[None]) -> None:
        owners = self._queues[tenant]
        del owners[owner][turn]
        if not owners[owner]:
            del owners[owner]
        if not owners:
            del self._queues[tenant]

    def longest_s(self, size: int) -> float:
        """Return the longest time for a reader to read an answer of some bytes. The record by which an answer may
        exceed its bound adds no time."""
        return PIECE_S + min(size / LEAST_BYTES_PER_S, MORE_S + self._bytes_max / LEAST_BYTES_PER_S)

    async def send(
        self, request: web.Request, answer: LongAnswer | web.Response, room: AnswerRoom
    ) -> web.StreamResponse:
        """Send an answer in pieces. Disconnect a reader that is too slow."""
        if isinstance(answer, web.Response):
            assert isinstance(answer.body, bytes), "answers are documents"
            answer = LongAnswer([answer.body])
        parts = answer.parts
        size = sum(map(len, parts))
        if request.method == "HEAD" or size <= PIECE_BYTES:
            return web.Response(body=b"".join(parts), content_type=answer.content_type, headers=answer.headers)
        stream = web.StreamResponse(headers={**answer.headers, "Content-Type": answer.content_type})
        stream.content_length = size
        try:
            async with asyncio.timeout(PIECE_S):
                await stream.prepare(request)
            await room.send(parts, stream.write)
            async with asyncio.timeout(PIECE_S):
                await stream.write_eof()
        except TimeoutError:
            self.note_slow(request, room.reader.owner)
        return stream

    def note_slow(self, request: web.Request, owner: Owner) -> None:
        """Disconnect a reader that does not read."""
        self._refusals.note(BOUND, owner, "disconnected it in an answer. It reads too slowly or not at all")
        if request.transport is not None:
            request.transport.abort()


def answered(answer: msgspec.Struct, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return the response with an answer of its operation's type, as JSON."""
    # With the end of a line: people read it on a terminal.
    return web.Response(body=msgspec.json.encode(answer) + b"\n", status=status, content_type=JSON, headers=headers)


def routes(**handlers: Handler) -> list[web.RouteDef]:
    """Return the routes of operations, given a handler for each name."""
    return [web.route(OF_NAME[name].key[0], OF_NAME[name].path, handler) for name, handler in handlers.items()]


# Places of readers whose answers continue: shares of them for each reader and each tenant.


class ReaderPlaces:
    """Belongs to the event loop's thread.

    Args:
        most: maximum number of readers at once. One tenant has at most half of them, one owner an eighth.
        what: their activity, for the refusal: "listen to changes".
    """

    def __init__(self, refusals: Refusals, most: int, what: str) -> None:
        self._refusals, self._most, self._what = refusals, most, what
        self.owners: Counter[Owner] = Counter()
        self._tenants: Counter[str] = Counter()

    @property
    def of_owner(self) -> int:
        """Return the number of places for one owner."""
        return self._most // 8

    @contextlib.contextmanager
    def taken(self, owner: Owner, tenant: str) -> Iterator[None]:
        """Hold a place.

        Raises:
            ApiError: 429: there is none.
        """
        is_full = self.owners.total() >= self._most or self._tenants[tenant] >= self._most // 2
        if is_full or self.owners[owner] >= self.of_owner:
            self._refusals.note(BOUND, owner, f"refused one more answer that continues: too many {self._what}")
            raise ApiError(429, f"too many {self._what}", "close other pages, or ask now and then", retry_s=30)
        self.owners[owner] += 1
        self._tenants[tenant] += 1
        try:
            yield
        finally:
            # Without zeros, so that names that left are forgotten.
            self.owners = +(self.owners - Counter([owner]))
            self._tenants = +(self._tenants - Counter([tenant]))


# Parameters of requests are what the document says of them, also those that the handler of a request never reads.

LOOKED_AT_MAX = 16
"""Maximum number of unknown parameters of a request that are compared with the known ones."""
NEAR = 0.75
"""Similarity of two names from which one counts as a misspelling of the other."""
T = TypeVar("T", bound=msgspec.Struct)


class _Asked(NamedTuple):
    operation: Operation
    values: dict[str, Any]
    """Values of the parameters of the query, without the tenant, which is the business of ``Access``."""


_ASKED = web.RequestKey("asked", _Asked)


def asked(request: web.Request, of: type[T]) -> T:
    """Return the parameters in the query of a request.

    Args:
        of: struct with a field for each parameter that the operation declares, except the tenant.

    Raises:
        ApiError: 400: a required one is missing.
    """
    operation, values = request[_ASKED]
    for each in operation.parameters:
        if each.required and each.place == "query" and values[each.name] is None:
            raise ApiError(400, f"{each.name}= is missing", each.advice)
    return msgspec.convert(values, of)


class Asked:
    """Check of the parameters of requests before their handlers run. An unknown parameter is ignored, since clients of
    later releases may send it. One whose name is similar to a known one is refused: a misspelled filter must not be
    ignored."""

    def __init__(self, access: Access, operations: Iterable[Operation] = OPERATIONS) -> None:
        self._access = access
        self._operations = {
            each.key: (each, {named.name: reader_of(named) for named in each.parameters}) for each in operations
        }

    @property
    def middleware(self) -> Middleware:
        """Return the middleware. An outer one has to catch its ``ApiError``."""

        @web.middleware
        async def asked(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            resource = request.match_info.route.resource
            method = "GET" if request.method == "HEAD" else request.method
            if resource is not None and (found := self._operations.get((method, resource.canonical))) is not None:
                try:
                    request[_ASKED] = _Asked(found[0], _values(request, *found))
                except ApiError:
                    self._access.reader(request)  # a stranger gets 401, and learns nothing else
                    raise
            return await handler(request)

        return asked


def _values(request: web.Request, operation: Operation, readers: Mapping[str, Reader]) -> dict[str, Any]:
    values = dict[str, Any]()
    for each in operation.parameters:
        if each.place == "path":
            continue
        texts = (request.query if each.place == "query" else request.headers).getall(each.name, ())
        if len(texts) > 1:
            raise ApiError(400, f"{each.written.strip()} is given {len(texts)} times", "give it once")
        for other in each.beside if texts else ():
            if other in request.query:
                error, advice = f"{each.name}= has no meaning beside {other}=", f"leave out {each.name}= or {other}="
                raise ApiError(400, error, advice)
        if each.place == "query":
            values[each.name] = readers[each.name](texts[0]) if texts else each.default
    unknown = (name for name in dict.fromkeys(request.query) if name not in values)
    for name in islice(unknown, LOOKED_AT_MAX):
        if len(name) <= SHOWN_CHARACTERS and (near := get_close_matches(name, values, 1, NEAR)):
            raise ApiError(400, f"{name}= is not a parameter of this operation", f"did you mean {near[0]}=?")
    values.pop(TENANT.name, None)
    return values


# Bodies of requests, and pages of lists.

NOTHING_STORED = "nothing was stored; send it again"
BODY_S = 10.0
"""Longest time for a request's body to arrive."""
PLAIN = "identity"
"""Content-Encoding of an unencoded body (RFC 9110, section 8.4.1), the only one that the hub accepts."""
CODING_SHOWN_MAX = 40
"""Maximum number of characters of another coding in an error."""


async def read_body(request: web.Request, bytes_max: int, advice: str) -> bytes:
    """Return the body of a request.

    Args:
        advice: remedy for a body that is too long.

    Raises:
        ApiError: 408, 413, 415.
    """
    if (coding := request.headers.get(hdrs.CONTENT_ENCODING, PLAIN)).lower() != PLAIN:
        error = f"the hub accepts no Content-Encoding of a body, got {coding[:CODING_SHOWN_MAX]!r}"
        raise ApiError(415, error, "send the body without Content-Encoding")
    if (request.content_length or 0) > bytes_max:
        raise ApiError(413, f"the body has {request.content_length} bytes; the limit is {bytes_max}", advice)
    try:
        async with asyncio.timeout(BODY_S):
            body = await request.content.read(bytes_max + 1)
            while len(body) <= bytes_max and (more := await request.content.read(bytes_max + 1 - len(body))):
                body += more
                await asyncio.sleep(0)  # of tiny chunks, some thousand are parsed at each read
    except TimeoutError:
        raise ApiError(408, f"the body was not complete within {BODY_S:g} s", NOTHING_STORED) from None
    if len(body) > bytes_max:
        raise ApiError(413, f"the body has more than {bytes_max} bytes, the limit", advice)
    return body


class PageQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of a request for a page of a list."""

    after: str | None
    """``next_after`` of the page before; None for the first page."""
    limit: int


class Orders:
    """Authors and bodies of requests that change something."""

    def __init__(self, access: Access, clock: HubClock) -> None:
        self.access, self._clock = access, clock

    def author(self, request: web.Request, right: Right, reason: str = "", *, instead: str) -> Author:
        """Return the author of a change, after checking that the request may make it.

        Args:
            instead: the equivalent command, for the advice.

        Raises:
            ApiError: 401, 403, 421, and 503 while the clock of this machine is wrong.
        """
        self.access.operate(request, right)
        identity = self.access.reader(request)
        if identity is None and "Origin" in request.headers:
            # Only browsers send it, and any page opened on this machine could reach a loopback port.
            raise ApiError(403, "without tokens, this is not for browsers", f"use `{instead}`")
        if (wrong := self._clock.wrong()) is not None:
            raise ApiError(503, wrong, ADVICE)
        who = "the API" if identity is None else f"token {identity.name}"
        resource = request.match_info.route.resource
        way = request.path if resource is None else resource.canonical
        return Author(self._clock.now(), who, reason, request.remote or "", f"{request.method} {way}")

    async def body(self, request: web.Request, right: Right, bytes_max: int = BODY_BYTES_MAX) -> bytes:
        """Check a request's right, and return its body.

        Args:
            bytes_max: longest body.

        Raises:
            ApiError: 401, 403, 408, 413, 415, 421.
        """
        self.access.operate(request, right)
        return await read_body(request, bytes_max, "send a shorter body: split the request, or leave out fields")
