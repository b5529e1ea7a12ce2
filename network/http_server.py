"""HTTP servers with bounds on connections: otherwise anyone who reaches the port could use up the process's file
descriptors and its memory, and block its other listeners.

aiohttp waits without limit for the head of a request, and needs the head before it can ask for a token. What it does
with a request before and after the application's code is decided here, for each server of a process (`connection_of`);
the list is in docs/security.md, "What libraries do by themselves".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from aiohttp import StreamReader, hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from weft.bounds.bound import Owner, Refusals, address_owner
from weft.bounds.browsers import MISDIRECTED_REQUEST
from weft.bounds.scheduling import RoundRobin
from weft.config.units import Address
from weft.network.accepting import Acceptor, listening_sockets
from weft.network.admission import Admission, NetworkConnection

# Connections of an address are counted whether they are busy or not, and the one idle longest is closed. A refusal at
# ``accept`` would keep out a good client while most of them are idle.
IDLE_S_MAX = 30.0
"""Longest wait of a connection for its (next) request, longer than Prometheus' usual interval."""
LOOK_INTERVAL_S = 1.0
BACKLOG = 64
"""Connections that the system accepts ahead of the process: as many may be open beyond the bound for a moment."""

LINE_INTERVAL_S = 1.0
"""Minimum interval between two log lines about bad requests: anyone who reaches the port can send them."""
LINE_MAX = 300
"""Longest such line."""

REFUSALS = frozenset({400, 401, 403, 404, 405, 417, MISDIRECTED_REQUEST})
"""Statuses behind which a connection ends: a flood of requests that are refused pays for a connection each time."""
AT_ONCE = 16
"""Requests that begin in one turn of the event loop, some 2 ms of work; those that wait take turns by address."""

HEAD_LINE_BYTES_MAX = 8190
"""Longest first line of a request; as long is the name, and the value, of a field of its head."""
HEAD_FIELDS_MAX = 128
"""Maximum number of fields of a head and of a trailer, together."""
PARSED_BYTES_MAX = 64 << 10
"""Half of the bytes of a body that wait for the handler before no more is parsed. They are in 4,096 chunks at most:
some 4 ms of the loop, where a read of the socket may have ten times as many."""
LINGER_S, LINGER_BYTES_MAX = 2.0, 4 << 20
"""Time for which, and bytes of a body until which, an answered request is read on: without it the system would reset
the connection, and a client that still sends might not get its answer."""
SOFTWARE = "weft"
"""Value of the field Server. aiohttp's own tells strangers the versions of Python and of the library."""

LISTENER = "https"
"""Name of a listener with TLS, for log lines."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
logger = logging.getLogger(__name__)


class Bound(NamedTuple):
    """A maximum number of connections, and the setting that has it."""

    most: int
    setting: str


class PeerGoneError(ConnectionError):
    """A peer closed its connection before it had its answer."""


class BadRequests(logging.Filter):
    """A filter that logs a request which is not HTTP as one short line, at a limited rate, and does not log a peer that
    leaves before its answer ends, which is normal. Errors of Weft's own code keep their traceback.

    Args:
        monotonic: seconds.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._next_line = 0.0
        self._unlogged = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write the line."""
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if isinstance(error, PeerGoneError):
            return False
        if not isinstance(error, HttpProcessingError):
            return True
        now = self._monotonic()
        if now < self._next_line:
            self._unlogged += 1
            return False
        self._next_line = now + LINE_INTERVAL_S
        more = f" ({self._unlogged:,} such requests before this one)" if self._unlogged else ""
        line = " ".join(f"{record.getMessage()}: {error}".split())
        record.msg, record.args, self._unlogged = f"{line[:LINE_MAX]}{more}", None, 0
        record.exc_info = record.exc_text = None
        record.levelno, record.levelname = logging.WARNING, logging.getLevelName(logging.WARNING)
        return True


class _Turns:
    """Turns of requests before they begin. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._round_robin = RoundRobin(lambda: None, pause_s=0.0, turns_max=AT_ONCE)
        self._begun = 0

    async def next(self, owner: Owner) -> None:
        """Wait until a request of the owner may begin."""
        loop = asyncio.get_running_loop()
        if self._begun < AT_ONCE and not len(self._round_robin):
            if not self._begun:
                loop.call_soon(self._begin_anew)
            self._begun += 1
            return
        await self._round_robin.turn(owner)

    def _begin_anew(self) -> None:
        self._begun = 0


class _Connection(web.RequestHandler):
    """One connection, with what is done around each answer: also around those that no application gives, such as to
    requests that are not HTTP."""

    __slots__ = ()

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send an answer, or its end, and read the rest of the request."""
        if not resp.prepared:
            resp.headers[hdrs.SERVER] = SOFTWARE
            if resp.status in REFUSALS:
                resp.force_close()
        answer, has_left = await super().finish_response(request, resp, start_time)
        if not has_left:
            await self._discard(request.content)
        return answer, has_left

    async def _discard(self, body: StreamReader) -> None:
        """Read the rest of a body. What is too long, or never ends, ends the connection: aiohttp closes it."""
        left = LINGER_BYTES_MAX
        with contextlib.suppress(TimeoutError, web.RequestPayloadError):
            async with asyncio.timeout(LINGER_S):
                while left > 0 and self.connected and not body.is_eof():
                    left -= len(await body.readany())
                    await asyncio.sleep(0)  # what was received already is there at once, piece by piece


def connection_of(server: web.Server) -> web.RequestHandler:
    """Return a connection for a server of the process, for a peer that has connected."""
    return _Connection(
        server,
        loop=asyncio.get_running_loop(),
        access_log=None,  # type: ignore[arg-type]  # as `AppRunner` has it; the annotation lacks it
        logger=logger,
        max_line_size=HEAD_LINE_BYTES_MAX,
        max_field_size=HEAD_LINE_BYTES_MAX,
        max_headers=HEAD_FIELDS_MAX,
        read_bufsize=PARSED_BYTES_MAX,
        # A body would be unpacked before anyone looks at the request's path or token, a thousand bytes from each one.
        auto_decompress=False,
        # What follows an answer would be read without turns and without a bound on its size.
        lingering_time=0.0,
    )


async def _name_software(_: web.BaseRequest, answer: web.StreamResponse) -> None:
    """Name the software in an answer that a handler sends piece by piece."""
    answer.headers[hdrs.SERVER] = SOFTWARE


class HttpServer:
    """A server of one application at one address. Belongs to the event loop's thread.

    A connection is idle while none of its requests is being handled: before the first, between two, while one waits for
    its turn, and while the peer is slow to read an answer. If too many are idle, the address with the most loses its
    longest idle one. An address that has too many, idle or not, loses its longest idle one as well, the new one at
    worst. A connection whose request is refused ends.

    Args:
        idle: bound on idle connections.
        of_address: bound on the connections of one address, without those that were ``admitted``.
        monotonic: seconds.
        shutdown_s: longest time that requests may take to end when the server closes.
        refusals: counter of connections closed because there are too many.
    """

    def __init__(
        self, idle: Bound, of_address: Bound, monotonic: Callable[[], float], refusals: Refusals, *, shutdown_s: float
    ) -> None:
        self._idle_bound = idle
        self._of_address = of_address
        self._monotonic = monotonic
        self._shutdown_s = shutdown_s
        self._refusals = refusals
        self._runner: web.AppRunner | None = None
        self._listening: list[asyncio.Server] = []
        self._acceptor: Acceptor | None = None
        self._looking: asyncio.Task[None] | None = None
        self._turns = _Turns()
        self._busy: dict[web.RequestHandler, Owner | None] = {}
        """Connections with a request under way, with their addresses; None if they no longer count for one."""
        self._busy_of: Counter[Owner] = Counter()
        """Number of busy connections by address."""
        self._idle: dict[Owner, dict[web.RequestHandler, float]] = {}
        """Idle connections by address, with the time at which they became idle; the longest idle first."""
        self._owners: dict[web.RequestHandler, Owner] = {}
        """Addresses of the idle connections."""

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Return host and port of each socket that listens."""
        if self._acceptor is not None:
            return self._acceptor.addresses
        return [each.getsockname()[:2] for server in self._listening for each in server.sockets]

    @property
    def connections(self) -> int:
        """Return the number of open connections."""
        return len(self._open())

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Note that a connection is busy. The application needs it as its outermost middleware."""
        connection = request.protocol
        if connection not in self._owners:  # its first request came with it
            self._note_idle(connection)
        owner = self._owners.get(connection)
        if owner is not None:
            await self._turns.next(owner)
        if connection.transport is None or connection.transport.is_closing():
            raise PeerGoneError
        self._forget(connection)
        self._busy[connection] = owner
        if owner is not None:
            self._busy_of[owner] += 1
        try:
            return await handler(request)
        except ConnectionError as error:
            if connection.transport is None or connection.transport.is_closing():
                raise PeerGoneError from error
            raise
        finally:
            self.admitted(connection)
            del self._busy[connection]
            self._note_idle(connection)

    def admitted(self, connection: web.RequestHandler) -> None:
        """Count a busy connection for its address no longer: another bound holds for it from now on."""
        owner = self._busy.get(connection)
        if owner is not None:
            self._busy[connection] = None
            self._busy_of[owner] -= 1
            if not self._busy_of[owner]:
                del self._busy_of[owner]

    async def start(
        self,
        application: web.Application,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        admission: Admission | None = None,
    ) -> None:
        """Listen. Raise ``OSError`` when the address cannot be used.

        Args:
            tls: context for TLS; None for plain HTTP.
            admission: bounds on TLS handshakes under way; required for TLS.
        """
        loop = asyncio.get_running_loop()
        logger.filters = [BadRequests(self._monotonic)]  # of all servers of the process
        application.on_response_prepare.append(_name_software)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=self._shutdown_s)
        await self._runner.setup()
        server = self._runner.server
        assert server is not None, "it is set up"

        def accept() -> web.RequestHandler:
            connection = connection_of(server)
            # The connection gets its transport, and so its address, in the next turn of the loop.
            loop.call_soon(loop.call_soon, self._note_idle, connection)
            return connection

        def accept_tls(_: asyncio.Transport, shaken: NetworkConnection) -> web.RequestHandler:
            shaken.closed()  # its handshake is over; from here on it counts as idle or busy
            connection = connection_of(server)
            loop.call_soon(self._note_idle, connection)
            return connection

        try:
            address = Address(host, port)
            if tls is None and address.to_resolve is not None:
                self._listening = [await loop.create_server(accept, host, port, backlog=BACKLOG)]
            elif tls is None:
                # The loop would take another free port for each family.
                sockets, _ = await listening_sockets(address)
                self._listening = [await loop.create_server(accept, sock=each, backlog=BACKLOG) for each in sockets]
            else:
                assert admission is not None
                self._acceptor = Acceptor(accept_tls, admission, name=LISTENER, bind=address, tls=tls)
                await self._acceptor.start()
                self._acceptor.accept()
        except OSError:
            await self.close()
            raise
        self._looking = asyncio.create_task(self._look_often(), name="idle-connections")

    def use_tls(self, tls: ssl.SSLContext) -> None:
        """Use another context for handshakes from now on; open connections stay."""
        if self._acceptor is not None:
            self._acceptor.tls = tls

    async def stop_listening(self) -> None:
        """Accept no more connections, and close no more idle ones."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        for each in self._listening:
            each.close()
        if self._acceptor is not None:
            self._acceptor.stop()

    async def close(self) -> None:
        """End the requests and connections."""
        await self.stop_listening()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def look(self) -> None:
        """Close the connections that have been idle too long, and forget those that have ended."""
        now = self._monotonic()
        for connection in self._open():
            if connection not in self._owners:  # it had no transport yet when it was accepted
                self._note_idle(connection)
        for connection, owner in list(self._owners.items()):
            if connection.transport is None:
                self._forget(connection)
            elif now - self._idle[owner][connection] >= IDLE_S_MAX:
                self._abort(connection)

    async def _look_often(self) -> None:
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            self.look()

    def _open(self) -> list[web.RequestHandler]:
        server = self._runner.server if self._runner is not None else None
        return server.connections if server is not None else []

    def _note_idle(self, connection: web.RequestHandler) -> None:
        if connection.transport is None or connection in self._busy:
            return
        self._forget(connection)
        owner = self._owners[connection] = _owner(connection.transport)
        self._idle.setdefault(owner, {})[connection] = self._monotonic()
        if len(self._idle[owner]) + self._busy_of[owner] > self._of_address.most:
            self._make_room(owner, self._of_address)
        if len(self._owners) > self._idle_bound.most:
            self._make_room(max(self._idle, key=lambda each: len(self._idle[each])), self._idle_bound)

    def _make_room(self, owner: Owner, bound: Bound) -> None:
        """Close the longest idle connection of an address, unless some of its connections have ended meanwhile."""
        ended = [each for each in self._idle[owner] if each.transport is None]
        for each in ended:
            self._forget(each)
        if not ended:
            advice = "closed the connection that was idle longest. Raise the setting if these are clients of yours"
            self._refusals.note(bound.setting, owner, advice)
            self._abort(next(iter(self._idle[owner])))

    def _abort(self, connection: web.RequestHandler) -> None:
        self._forget(connection)
        if connection.transport is not None:
            connection.transport.abort()

    def _forget(self, connection: web.RequestHandler) -> None:
        owner = self._owners.pop(connection, None)
        if owner is not None:
            del self._idle[owner][connection]
            if not self._idle[owner]:
                del self._idle[owner]


def _owner(transport: asyncio.Transport) -> Owner:
    peer = transport.get_extra_info("peername")
    return address_owner(peer[0] if isinstance(peer, tuple) else "")
