"""The node's control socket, ``<data_dir>/control.sock``: requests of an operator to a running node.

``POST /drop``: drop a backlog (``weft log drop``). ``POST /acknowledge``: end the alarms of links (``weft link
acknowledge``). ``POST /links``: report, pause or resume links (``weft link``). ``POST /reload``: read the configuration
again (``weft edge reload``). ``POST /replay``: compute a derived stream again (``weft edge replay``). ``POST
/take-over``: send the copy of the peer's records to the hubs (``weft edge take-over``). A user who may write the
data_dir can do the same to a stopped node, so only the node's user and root may use the socket, and none of it is on
the network.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import stat
import struct
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from weft.edge_node.control.client import (
    ACKNOWLEDGE_PATH,
    DROP_PATH,
    LINKS_PATH,
    RELOAD_PATH,
    REPLAY_PATH,
    REPLY_S_MAX,
    TAKE_OVER_PATH,
    AcknowledgeReply,
    DropReply,
    DropRequest,
    LinksReply,
    LinksRequest,
    ReloadReply,
    ReplayReply,
    ReplayRequest,
    TakeOverReply,
    socket_path,
)
from weft.edge_node.streams import STATE_STREAMS
from weft.network.http_server import connection_of
from weft.protocols.lane import format_log_id
from weft.protocols.ranges import RangeSet
from weft.storage.segment_log import LogError, LogFull, SegmentLog

logger = logging.getLogger(__name__)

# Not the node's HTTP pages: these have no users, may be open to the plant's network, and may be off. A request to drop
# carries a number, never "all": what was taken in after the operator's question stays, and a repetition is harmless.
REQUEST_BYTES_MAX = 4096
SHUTDOWN_TIMEOUT_S = 1.0
_BACKLOG = 4
_UCRED = struct.Struct("3i")
"""Layout of struct ucred of unix(7): process, user, group."""


class OrderRefused(Exception):
    """A refused request: the status and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Control:
    """A server of an operator's requests for one log; ``start`` listens, ``close`` ends. Belongs to the event loop's
    thread."""

    def __init__(
        self,
        directory: str,
        log: SegmentLog,
        *,
        reply_s_max: float = REPLY_S_MAX,
        acknowledge: Callable[[], list[str]] = list,
        reload: Callable[[], Awaitable[ReloadReply]] | None = None,
        replay: Callable[[ReplayRequest], Awaitable[ReplayReply]] | None = None,
        links: Callable[[LinksRequest], Awaitable[LinksReply]] | None = None,
        take_over: Callable[[], Awaitable[TakeOverReply]] | None = None,
    ) -> None:
        """Serve the log in ``directory``, which this process has locked.

        Args:
            acknowledge: ends the alarms of links, and returns them.
            reload: reads the configuration again; its answer has an error when the node keeps its settings.
            replay: begins a replay, or reports its progress.
            links: reports, pauses or resumes links.
            take_over: sends the copy of the peer's records to the hubs; None without a pair.
        """
        self._take_over_peer = take_over
        self._reload_configuration = reload
        self._replay_stream = replay
        self._order_links = links
        self._acknowledge_alarms = acknowledge
        self._path = socket_path(directory)
        self._log = log
        self._reply_s_max = reply_s_max
        self._server: asyncio.AbstractServer | None = None
        self._runner: web.AppRunner | None = None
        self._work: asyncio.Task[RangeSet] | None = None

    async def start(self) -> None:
        """Listen. If no socket can be created, log a warning: the node must then be stopped to drop records."""
        try:
            listening = _listen(self._path)
        except OSError as error:
            logger.warning(
                "cannot listen at %s (%s): `weft log drop` works only while this node is stopped",
                self._path,
                error.strerror or error,
            )
            return
        app = web.Application(client_max_size=REQUEST_BYTES_MAX)
        app.router.add_post(DROP_PATH, self._drop)
        app.router.add_post(ACKNOWLEDGE_PATH, self._acknowledge)
        app.router.add_post(RELOAD_PATH, self._reload)
        app.router.add_post(REPLAY_PATH, self._replay)
        app.router.add_post(LINKS_PATH, self._links)
        app.router.add_post(TAKE_OVER_PATH, self._take_over)
        self._runner = web.AppRunner(app, shutdown_timeout=SHUTDOWN_TIMEOUT_S)
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: connection_of(server), sock=listening)

    async def close(self) -> None:
        """Stop listening. Records whose notices are not durable by then may stay or be dropped; no client has an answer
        about them."""
        if self._server is None or self._runner is None:
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        self._server.close()
        if self._work is not None:
            await asyncio.wait({self._work}, timeout=SHUTDOWN_TIMEOUT_S)
            self._work.cancel()
        await self._runner.cleanup()

    async def _drop(self, request: web.Request) -> web.Response:
        try:
            _check_peer(request)
            ranges = await self._drop_backlog(_decode(await request.read()))
            return _reply(200, DropReply([*ranges]))
        except OrderRefused as error:
            return _reply(error.status, DropReply(error=str(error)))

    async def _acknowledge(self, request: web.Request) -> web.Response:
        try:
            _check_peer(request)
        except OrderRefused as error:
            return _answer(error.status, AcknowledgeReply(error=str(error)))
        ended = self._acknowledge_alarms()
        for sentence in ended:
            logger.warning("an operator has acknowledged: %s", sentence)
        return _answer(200, AcknowledgeReply(ended))

    async def _reload(self, request: web.Request) -> web.Response:
        try:
            _check_peer(request)
        except OrderRefused as error:
            return _answer(error.status, ReloadReply(error=str(error)))
        if self._reload_configuration is None:
            return _answer(409, ReloadReply(error="the node was started without a configuration file: restart it"))
        reply = await self._reload_configuration()
        return _answer(409 if reply.error else 200, reply)

    async def _replay(self, request: web.Request) -> web.Response:
        try:
            _check_peer(request)
            order = msgspec.json.decode(await request.read(), type=ReplayRequest)
        except OrderRefused as error:
            return _answer(error.status, ReplayReply(error=str(error)))
        except msgspec.MsgspecError as error:
            return _answer(400, ReplayReply(error=f"expected stream and into: {error}"))
        if self._replay_stream is None:
            return _answer(409, ReplayReply(error="the node has no derived streams"))
        reply = await self._replay_stream(order)
        return _answer(409 if reply.error else 200, reply)

    async def _links(self, request: web.Request) -> web.Response:
        try:
            _check_peer(request)
            order = msgspec.json.decode(await request.read(), type=LinksRequest)
        except OrderRefused as error:
            return _answer(error.status, LinksReply(error=str(error)))
        except msgspec.MsgspecError as error:
            return _answer(400, LinksReply(error=f"expected action and link: {error}"))
        if self._order_links is None:
            return _answer(409, LinksReply(error="the node has no links"))
        reply = await self._order_links(order)
        if order.action != "status" and not reply.error:
            logger.warning("an operator let links %s: %s", order.action, order.link or ", ".join(reply.links))
        return _answer(409 if reply.error else 200, reply)

    async def _take_over(self, request: web.Request) -> web.Response:
        try:
            _check_peer(request)
        except OrderRefused as error:
            return _answer(error.status, TakeOverReply(error=str(error)))
        if self._take_over_peer is None:
            return _answer(409, TakeOverReply(error="the node is of no pair: set `pair` in its configuration"))
        reply = await self._take_over_peer()
        return _answer(409 if reply.error else 200, reply)

    async def _drop_backlog(self, order: DropRequest) -> RangeSet:
        log = self._log
        if order.log_id != format_log_id(log.log_id):
            raise OrderRefused(
                409, f"the node writes log {format_log_id(log.log_id)}, not {order.log_id}: run this again"
            )
        number = None if order.stream in STATE_STREAMS else log.streams().get(order.stream)
        if number is None:
            raise OrderRefused(404, f"the log has no stream {order.stream}")
        if self._work is not None and not self._work.done():
            raise OrderRefused(503, "the node is still dropping records for an earlier request. Run this again later")
        work = self._work = asyncio.create_task(self._work_on(number, order))
        done, _ = await asyncio.wait({work}, timeout=self._reply_s_max)
        if not done:
            raise OrderRefused(
                504,
                "timed out waiting for the disk. The records are still present, and are dropped as soon as the disk "
                "accepts the gap notices; see `weft edge status`",
            )
        if work.cancelled():
            raise OrderRefused(
                503, "the node is shutting down. The records are either dropped, with a gap notice, or still there"
            )
        try:
            return work.result()
        except LogFull as error:
            raise OrderRefused(507, str(error)) from None
        except (LogError, OSError) as error:
            raise OrderRefused(500, f"it is uncertain whether records were dropped: {error}") from None

    async def _work_on(self, number: int, order: DropRequest) -> RangeSet:
        # In a thread: it searches for the ends of batches, on the disk.
        ranges = await asyncio.to_thread(self._log.drop_backlog, number, 0, order.below)
        await self._log.durable()
        if ranges:
            logger.warning("dropped %d records of %s on an operator's order", ranges.count(), order.stream)
        return ranges


def _listen(path: str) -> socket.socket:
    """Listen in place of a socket left by an earlier node: the lock on the folder proves that it is gone.

    Raises:
        OSError: the socket cannot be created, or its name is too long (`sun_path` of unix(7): 107 bytes).
    """
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            os.unlink(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Linux creates the name with the socket's own mode. Elsewhere it has no such mode, but no process can connect
        # before it listens.
        with contextlib.suppress(OSError):
            os.fchmod(listening.fileno(), 0o600)
        listening.bind(path)
        os.chmod(path, 0o600)
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening


def _check_peer(request: web.Request) -> None:
    """Refuse other users. The socket's mode already excludes them, but modes can be changed.

    Raises:
        Refused: the request is another user's.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return
    connected = request.transport.get_extra_info("socket") if request.transport is not None else None
    if connected is None:
        raise OrderRefused(403, "the user who asks is unknown")
    with socket.socket(fileno=os.dup(connected.fileno())) as own:
        _, user, _ = _UCRED.unpack(own.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    if user not in (0, os.geteuid()):
        raise OrderRefused(
            403, f"the node accepts requests from its own user alone, not from the user with the id {user}"
        )


def _decode(body: bytes) -> DropRequest:
    try:
        return msgspec.json.decode(body, type=DropRequest)
    except msgspec.MsgspecError as error:
        raise OrderRefused(400, f"expected log_id, stream and below: {error}") from None


def _answer(
    status: int, reply: AcknowledgeReply | LinksReply | ReloadReply | ReplayReply | TakeOverReply
) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(reply), content_type="application/json")


def _reply(status: int, reply: DropReply) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(reply), content_type="application/json")
