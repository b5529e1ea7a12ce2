"""Long answers: bounds on the bytes in progress for one owner, and on a reader's time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar, cast

import msgspec
from aiohttp import web

from weft.bounds import NestedShares, Owner, Refusals
from weft.cloud_hub.auth.access import Charged
from weft.cloud_hub.reads.views import LaneOf
from weft.hub_api.answers import ApiError
from weft.hub_api.operations import OF_NAME
from weft.network.http_server import Handler
from weft.protocols.lane import Lane, format_log_id
from weft.protocols.shard.shard_state import ShardState

AT_ONCE = 16
"""Number of answers of maximum size that may be in progress for all readers together."""
AT_ONCE_OF_TENANT = 8
AT_ONCE_OF_OWNER = 4
WAITING_MAX = 64
"""Maximum number of requests of one owner that wait until its earlier answers are read."""
WAITING_OF_TENANT_MAX = 4 * WAITING_MAX
WAITING_TOTAL_MAX = 16 * WAITING_MAX
WAIT_S = 10.0
BOUND = "limits.response"
"""Setting under which refusals are counted: shares are multiples of the longest answer."""
JSON = "application/json"
PIECE_BYTES = 256 << 10
PIECE_S = 10.0
"""Longest time that a reader may take for a piece: slower ones are disconnected."""
LEAST_BYTES_PER_S = 64 << 10
"""Least rate of a reader over a whole answer, beside ``PIECE_S``."""
MORE_S = 60.0
"""Longest time for what makes an answer longer than ``limits.response``: names and escapes, and one more record."""
PART_BYTES = 128
"""Memory of a part of an answer beside its bytes."""


Part = bytes | memoryview | msgspec.Raw


class LongAnswer(NamedTuple):
    """A document in parts. Joining megabytes alone would block the event loop too long.

    A part is dropped when it was sent: nothing else may hold the list.
    """

    parts: list[Part]
    content_type: str = JSON
    headers: Mapping[str, str] = {}


def pieces(parts: list[Part]) -> Iterator[bytes]:
    """Yield the bytes of all parts in pieces of ``PIECE_BYTES`` at most. Parts are taken out of the list."""
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
    """Units of one answer in progress: at first those of the longest, then those of what is left of it to send."""

    def __init__(self, answers: Answers, reader: Charged, units: int) -> None:
        self._answers, self.reader, self._units = answers, reader, units

    def holds(self, units: int) -> None:
        """Count what the answer holds now, which may be more than what it was expected to."""
        more, self._units = units - self._units, units
        self._answers.count(self.reader, more)

    async def send(self, parts: list[Part], write: Callable[[bytes], Awaitable[None]]) -> None:
        """Write parts in pieces, and count down. The list is empty afterwards.

        Raises:
            TimeoutError: the reader takes too long for a piece or for the whole.
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
        """Tenant -> owner -> those who wait for room, each in the order of their turns."""

    @property
    def bytes(self) -> int:
        """Return the maximum bytes of the answers in progress."""
        return self._shares.used

    @contextlib.asynccontextmanager
    async def room(self, reader: Charged) -> AsyncIterator[AnswerRoom]:
        """Wait until the reader may have another answer in progress.

        Raises:
            ApiError: 429: it did not read its earlier ones.
        """
        if not self._shares.take(reader.tenant, reader.owner, self._bytes_max):
            await self._wait(reader)
        with self._taken(reader) as room:
            yield room

    @contextlib.asynccontextmanager
    async def turn(self, reader: Charged) -> AsyncIterator[AnswerRoom]:
        """Wait as ``room`` does, but as long as it takes: for a reader that has a place."""
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
        """Count units more of a reader, or fewer, and let others in."""
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
            429, "too many answers are under way", "read them before asking for more, and ask for less at once"
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
        """Return the longest time that a reader may take for an answer of so many bytes. An answer is bounded but for
        one more record, which buys no time."""
        return PIECE_S + min(size / LEAST_BYTES_PER_S, MORE_S + self._bytes_max / LEAST_BYTES_PER_S)

    async def send(
        self, request: web.Request, answer: LongAnswer | web.Response, room: AnswerRoom
    ) -> web.StreamResponse:
        """Send an answer in pieces, and disconnect a reader that does not read them."""
        if isinstance(answer, web.Response):
            assert isinstance(answer.body, bytes), "answers are documents"
            answer = LongAnswer([answer.body])
        parts = answer.parts
        size = sum(map(len, parts))
        if request.method != "GET" or size <= PIECE_BYTES:
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
    """Return the response of a handler, whose operation has the type of the answer."""
    # With the end of a line: people read it on a terminal.
    return web.Response(body=msgspec.json.encode(answer) + b"\n", status=status, content_type=JSON, headers=headers)


def with_members(answer: msgspec.Struct, name: str, members: list[Part]) -> list[Part]:
    """Return an answer in parts.

    Args:
        name: name of a list, which is empty in the answer.
        members: its members as JSON, with commas between.
    """
    # The bytes are nowhere else: in a text, a quotation mark is escaped.
    head, begin, rest = msgspec.json.encode(answer).partition(f'"{name}":['.encode())
    return [head + begin, *members, rest + b"\n"]


def routes(**handlers: Handler) -> list[web.RouteDef]:
    """Return the routes of operations, with the handler of each below its name."""
    return [web.route(OF_NAME[name].key[0], OF_NAME[name].path, handler) for name, handler in handlers.items()]


# Pages of long lists, made in slices, so that any number of lanes or streams never blocks the event loop.

T = TypeVar("T")
ViewT = TypeVar("ViewT")
LOG_DIGITS = 16
SLICE_LANES = 2_000
SLICE_S = 0.002
"""Time after which a walk yields to others."""


class Page(NamedTuple, Generic[ViewT]):
    """A run of views."""

    views: list[ViewT]
    """Encoded: each is a ``msgspec.Raw``, which an answer with it takes over as it is."""
    is_whole: bool
    """True when all views fitted."""


async def lanes_after(
    states: Sequence[ShardState], tenant: str, stream: str, after: str | None, limit: int
) -> tuple[list[LaneOf], bool]:
    """Return lanes of a stream in the order of edge and log, and whether there are more.

    Args:
        after: end of the previous page (``position``).

    Raises:
        ValueError: ``after`` is not such a place.
    """
    floor = None if after is None else _parsed(after)
    found: list[tuple[str, int, int]] = []
    by_shard = {state.shard: state for state in states}
    for state in states:
        names = state.stream_lane_names(tenant, stream)
        for start in range(0, len(names), SLICE_LANES):
            some = [(lane.edge, lane.log_id, state.shard) for lane in names[start : start + SLICE_LANES]]
            more = [each for each in some if each[:2] > floor] if floor is not None else some
            found = sorted([*found, *more])[: limit + 1]
            await asyncio.sleep(0)
    lanes = []
    for edge, log_id, shard in found[:limit]:
        lane = Lane(tenant, edge, log_id, stream)
        held = by_shard[shard].lanes.get(lane)
        if held is not None:  # it has not left the state meanwhile
            lanes.append((shard, lane, held))
    return lanes, len(found) > limit


def position(lane: LaneOf) -> str:
    """Return the place of a lane in the list, for ``after``."""
    return f"{lane[1].edge}/{format_log_id(lane[1].log_id)}"


def _parsed(after: str) -> tuple[str, int]:
    edge, slash, log = after.rpartition("/")
    if not slash or len(log) != LOG_DIGITS:
        raise ValueError("expected EDGE/LOG")
    return edge, int(log, 16)


async def encoded(
    items: Sequence[T], view: Callable[[T], ViewT], bytes_max: int, clock: Callable[[], float] = time.perf_counter
) -> Page[ViewT]:
    """Return views of items, as many as fit, but at least one."""
    views: list[ViewT] = []
    size, began = 0, clock()
    for item in items:
        data = msgspec.json.encode(view(item))
        size += len(data)
        if views and size > bytes_max:
            return Page(views, False)
        views.append(cast(ViewT, msgspec.Raw(data)))
        if clock() - began >= SLICE_S:
            await asyncio.sleep(0)
            began = clock()
    return Page(views, True)


# Places of readers whose answers continue: shares of them for each reader and each tenant.


class ReaderPlaces:
    """Belongs to the event loop's thread.

    Args:
        most: readers at once; half of them at most of one tenant, and an eighth of one owner.
        what: what they do, for the refusal: "listen to changes".
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
