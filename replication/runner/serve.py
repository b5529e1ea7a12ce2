"""The hub's end: one WebSocket, one ``Receiver``, one handler."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import select
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import aiohttp
from aiohttp import WSMessage, WSMsgType, web

from weft.protocols.batch import BatchHeader, check
from weft.protocols.chunk_index import GapRange
from weft.protocols.errors import CodecError
from weft.protocols.link import (
    Canary,
    Clock,
    ConfigState,
    DownOpen,
    Frame,
    Hello,
    LaneOpen,
    LaneOrigins,
    NodeReport,
    Outcomes,
    PairReport,
    PullState,
    RefuseCode,
)
from weft.protocols.ranges import RangeSet
from weft.replication.events import (
    BatchesReceived,
    ClockReceived,
    ConnectionLost,
    GapReceived,
    HelloReceived,
    LaneClosedReceived,
    LaneOpenReceived,
    LinkRefused,
    MarksReceived,
    OriginsReceived,
    ReceiverEvent,
    RecordRefused,
)
from weft.replication.flow_control import ReceiverSettings
from weft.replication.liveness import SECOND
from weft.replication.receiver import BEAT_LOOK_S, Receiver

# Messages of a WebSocket that a client of the HTTP server has opened, taken in turns.

FRAMES_AT_ONCE = 64
"""Messages, pings and pongs of one client after which the event loop serves others. One read has room for 43,690 of
them, an eighth of a second of the loop; the library hands them out, and answers pings, without a pause."""
_PING, _PONG, _BINARY = WSMsgType.PING, WSMsgType.PONG, WSMsgType.BINARY  # an enum finds its members slowly
_ENDS = (WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR)


def has_left(socket: web.WebSocketResponse) -> bool:
    """Return whether the client has closed the connection, though not all that it sent was read. The kernel knows on
    Linux; elsewhere only what was read tells."""
    tcp = socket.get_extra_info("socket")
    if tcp is None or tcp.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(tcp.fileno(), getattr(select, "POLLRDHUP", 0))
    return bool(poll.poll(0))


class SocketReader:
    """The receiving side of a WebSocket. One task uses it at a time.

    Args:
        socket: made with ``autoping=False``.
    """

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self._socket = socket
        self._count = 0

    async def next(self) -> WSMessage:
        """Return the next message that is no ping and no pong (RFC 6455, section 5.5.2), or the end of the connection.
        Pings are answered."""
        while True:
            message = await self._socket.receive()
            self._count += 1
            if self._count % FRAMES_AT_ONCE == 0:
                await asyncio.sleep(0)
            if message.type is _PING:
                with contextlib.suppress(ConnectionError):  # the next message says that the connection has ended
                    await self._socket.pong(message.data)
            elif message.type is not _PONG:
                return message

    async def close(self, code: int, reason: bytes, seconds: float) -> None:
        """Send a closing frame, and end the connection when the client has answered it, or after some seconds. What it
        sent before its answer is dropped."""
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(seconds):
                await self._socket.send_frame(code.to_bytes(2, "big") + reason, WSMsgType.CLOSE)
                while (await self._socket.receive()).type not in _ENDS:
                    self._count += 1
                    if self._count % FRAMES_AT_ONCE == 0:
                        await asyncio.sleep(0)
        await self._socket.close()


MESSAGE_SLACK_BYTES = 2 << 20
"""Longest WebSocket message beyond the largest batch: a HELLO or a WELCOME with every range it may have."""
CLOSE_TIMEOUT_S = 2.0
"""Longest time in which a peer has to read the rest and answer a close frame."""

_CHECKS = ThreadPoolExecutor(1, "batch-checks")
"""Checks of long batches, one at a time: each may take as much memory as a batch takes uncompressed, several times."""

log = logging.getLogger(__name__)


def _check(batches: list[tuple[BatchHeader, memoryview]], record_bytes_max: int) -> CodecError | None:
    try:
        for header, batch in batches:
            check(batch, header, record_bytes_max)
    except CodecError as error:
        return error
    return None


class LinkHandler(Protocol):
    """A hub's part of one connection (``cloud_hub.links.edge_link.EdgeLink``, which may not be imported here).

    Calls come one at a time, in the order of the frames.

    Every call may raise ``LinkRefused``. Any other exception closes the link as OVERLOADED: the edge connects again.
    """

    def connected(self, session: LinkSession) -> None:
        """Take the session, before anything is read from the edge."""
        ...

    async def open(self, hello: Hello) -> None:
        """Accept the link, or raise ``LinkRefused``."""
        ...

    async def open_lane(self, opening: LaneOpen) -> None:
        """Begin to open a lane; ``LinkSession.lane_opened`` or ``close_lane`` answers, now or later."""
        ...

    def close_lane(self, lane: int, refusal: str = "") -> None:
        """Handle the closing of a lane, by the edge or for a refused record; ``refusal`` says why."""
        ...

    def add_origins(self, frame: LaneOrigins) -> None:
        """Add further origins of a lane's batches."""
        ...

    async def clock(self, clock: Clock) -> None:
        """Apply a measurement of the edge's clock."""

    def config_state(self, state: ConfigState) -> None:
        """Take what the edge says about the configuration that it was given."""

    def data(self, lane: int, batches: list[tuple[BatchHeader, memoryview]]) -> None:
        """Accept verified batches, which are not durable yet.

        The handler must acknowledge again batches that are durable already, or the edge's window never opens.
        """

    async def gap(self, lane: int, gap: GapRange) -> None:
        """Accept a notice of records that can never come; it is acknowledged like records."""

    def marks(self, time: int, lanes: list[tuple[int, int]]) -> None:
        """Accept marks, each (lane, seq): all records that the lane received up to ``time`` are below ``seq``. They
        need no acknowledgement."""

    def last_words(self, time: int, lanes: list[tuple[int, int]], renamed_to: str) -> None:
        """Accept the last marks of a sender that stops, and the new name of its log, if it has one."""

    async def room(self) -> None:
        """Wait until there is room for more. Called after each message; nothing is read from the edge until it
        returns."""

    async def down(self, frame: DownOpen | Outcomes) -> None:
        """Take a word about messages to the edge."""

    def pull_state(self, state: PullState) -> None:
        """Take a word about records that the edge was asked for."""

    def report(self, report: NodeReport | PairReport) -> None:
        """Take what the edge says of its disk and its functions."""

    async def canary(self, canary: Canary) -> None:
        """Take a question of the edge; ``LinkSession.prove`` answers once something written from now on is durable."""

    def closed(self, reason: str) -> None:
        """Handle the end of the connection; called exactly once for every end, even if ``open`` was not called.

        Args:
            reason: for people; the edge may have written parts of it.
        """


class Beats:
    """Beats of the links of a process. They share a timer: 10,000 timers a second would cost more than the beats."""

    def __init__(self) -> None:
        self._sessions: dict[LinkSession, None] = {}
        self._next: asyncio.TimerHandle | None = None

    @contextlib.contextmanager
    def of(self, session: LinkSession) -> Iterator[None]:
        """Give a link beats while its edge waits."""
        self._sessions[session] = None
        if self._next is None:
            self._next = asyncio.get_running_loop().call_later(BEAT_LOOK_S, self._look)
        try:
            yield
        finally:
            del self._sessions[session]
            if not self._sessions and self._next is not None:
                self._next.cancel()
                self._next = None

    def _look(self) -> None:
        self._next = asyncio.get_running_loop().call_later(BEAT_LOOK_S, self._look)
        for session in self._sessions:
            session.beat()


class LinkSession:
    """Machine, handler and socket of one connection.

    A handler calls ``lane_opened``, ``close_lane``, ``acknowledge`` and ``refuse``, on the event loop's thread; they do
    nothing once the link, or the lane, is closed.
    """

    def __init__(
        self,
        socket: web.WebSocketResponse,
        handler: LinkHandler,
        receiver: Receiver,
        settings: ReceiverSettings,
        clock: Callable[[], int],
        *,
        beats: Beats,
    ) -> None:
        self._socket, self._beats = socket, beats
        self._handler = handler
        self._receiver = receiver
        self._silence_s = settings.silence / SECOND
        self._ack_interval_s = settings.ack_interval / SECOND
        self._clock = clock
        self._wake = asyncio.Event()
        self._reason = ""
        self._loop = asyncio.get_running_loop()
        self._acks_from = 0.0
        """Time from which the next acknowledgement may go, by the loop's clock."""
        self._later: asyncio.TimerHandle | None = None

    @property
    def unpaid_cost(self) -> int:
        """Return what ``control_cost`` would return."""
        return self._receiver.control_cost

    def control_cost(self) -> int:
        """Return the cost of the frames since the last call that the window does not count."""
        cost, self._receiver.control_cost = self._receiver.control_cost, 0
        return cost

    @property
    def edge_has_left(self) -> bool:
        """Return whether the edge has closed the connection, though not all that it sent was read."""
        return has_left(self._socket)

    @property
    def window_is_half_used(self) -> bool:
        """Return whether the edge will soon have to wait for an acknowledgement."""
        return self._receiver.window_is_half_used

    def acknowledge(self, lane: int, ranges: RangeSet) -> None:
        """Acknowledge to the edge that ``ranges`` of ``lane`` (records or gaps) are durable."""
        self._receiver.acknowledge(lane, ranges)
        if self._wake.is_set():  # by an acknowledgement of the same commit, mostly
            return
        if self._loop.time() >= self._acks_from or self._receiver.window_is_half_used:
            self._acks_from = self._loop.time() + self._ack_interval_s
            self._wake.set()
        elif self._later is None:
            self._later = self._loop.call_at(self._acks_from, self._send_later)

    def _send_later(self) -> None:
        self._later, self._acks_from = None, self._loop.time() + self._ack_interval_s
        self._wake.set()

    def lane_opened(self, lane: int, held: RangeSet) -> None:
        """Answer the edge that a lane is open, with its durable ranges."""
        self._receiver.lane_opened(lane, held)
        self._wake.set()

    def close_lane(self, lane: int, code: RefuseCode, message: str, advice: str) -> None:
        """Answer the edge that one lane is closed, with the reason. The others continue."""
        self._receiver.close_lane(lane, code, message, advice)
        self._wake.set()

    def send_frame(self, frame: Frame) -> None:
        """Send a frame of a feature that the edge announced."""
        self._receiver.send_frame(frame)
        self._wake.set()

    def prove(self, number: int, waited_s: float) -> None:
        """Answer a canary: a chunk that was begun after it is durable. It had waited for ``waited_s`` before that."""
        self._receiver.prove(number, int(waited_s * SECOND), self._clock())

    def beat(self) -> None:
        """Send the edge a sign of life, if it waits for something and has heard nothing for a second."""
        if self._receiver.beat(self._clock()):
            self._wake.set()

    def refuse(self, code: RefuseCode, message: str, advice: str, url: str = "") -> None:
        """Send the edge the reason, and close."""
        self._ended(f"refused: {message}; {advice}")
        self._receiver.refuse(code, message, advice, url)
        self._wake.set()

    async def run(self) -> None:
        """Run until either side is done. The writer ends when the machine is closed and has nothing left to send."""
        self._handler.connected(self)
        reader = asyncio.create_task(self._read())
        writer = asyncio.create_task(self._write())
        try:
            with self._beats.of(self):
                await self._watch({reader, writer})
            if self._receiver.closed and not writer.done():
                self._wake.set()
                await asyncio.wait({writer}, timeout=CLOSE_TIMEOUT_S)
        finally:
            reader.cancel()
            writer.cancel()
            if self._later is not None:
                self._later.cancel()
            results = await asyncio.gather(reader, writer, return_exceptions=True)
            self._look_back(results)
            self._handler.closed(self._reason)

    async def _watch(self, tasks: set[asyncio.Task[None]]) -> None:
        """Wait until a task ends or a timeout has closed the link. Pass the time to the machine, for pings and silence.

        There is one timer for the link. When it fires, it checks whether the deadline has moved: most links send
        something long before.
        """
        while (deadline := self._receiver.deadline()) is not None:
            wait_s = min(max(0, deadline - self._clock()) / SECOND, self._silence_s)
            done, _ = await asyncio.wait(tasks, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            if done:
                return
            self._receiver.handle_timeout(self._clock())
            if self._receiver.has_to_answer:
                self._wake.set()

    def _ended(self, reason: str) -> None:
        """Note why the connection ends; later reasons follow from the first."""
        self._reason = self._reason or reason

    def _look_back(self, results: Iterable[BaseException | None]) -> None:
        for event in self._receiver.events():
            if isinstance(event, ConnectionLost):
                self._ended(event.reason)
        for result in results:
            if isinstance(result, aiohttp.ClientError | ConnectionError):
                self._ended(f"the connection broke: {result}")
            elif isinstance(result, Exception):
                log.error("a link failed", exc_info=result)
                self._ended("the hub met an internal error")
        if self._socket.close_code == aiohttp.WSCloseCode.ABNORMAL_CLOSURE or self._socket.close_code is None:
            self._ended("the connection broke: the edge or the network disappeared without closing the connection")
        self._ended(f"the edge closed the connection (WebSocket code {self._socket.close_code})")

    async def _read(self) -> None:
        """Read messages."""
        messages = SocketReader(self._socket)
        while not self._receiver.closed:
            message = await messages.next()
            if message.type is not _BINARY:
                return
            self._receiver.receive_data(message.data, self._clock())
            self._receiver.live.pause()
            if self._receiver.has_to_answer:  # a message with only data needs no answer from the writer yet
                self._wake.set()
            try:
                await self._handle_all()
                while self._receiver.is_busy:
                    await self._resume()
                    await self._handle_all()
            except LinkRefused as refusal:
                self.refuse(refusal.code, refusal.message, refusal.advice, refusal.url)
            except Exception:
                log.exception("a link's handler failed")
                self.refuse(RefuseCode.OVERLOADED, "the hub failed to store the data", "nothing: the edge tries again")
            self._receiver.live.resume(self._clock())

    async def _resume(self) -> None:
        """Process more of a message, after the turns of the others."""
        error: CodecError | None = None
        if self._receiver.unchecked:
            loop = asyncio.get_running_loop()
            receiver = self._receiver
            error = await loop.run_in_executor(_CHECKS, _check, receiver.unchecked, receiver.record_bytes_max)
        else:
            await asyncio.sleep(0)
        self._receiver.process_more(error)
        if self._receiver.has_to_answer:
            self._wake.set()

    async def _handle_all(self) -> None:
        for event in self._receiver.events():
            # A refused link accepts nothing more, but the reason of its end must still reach the handler.
            if self._receiver.closed and not isinstance(event, ConnectionLost):
                continue
            # Nearly all events are these two: a coroutine for each would add to the cost of every batch.
            if isinstance(event, BatchesReceived):
                self._handler.data(event.lane, event.batches)
            elif isinstance(event, MarksReceived):
                if event.last:
                    self._handler.last_words(event.time, event.lanes, event.renamed_to)
                else:
                    self._handler.marks(event.time, event.lanes)
            else:
                await self._handle(event)
        if not self._receiver.closed:
            await self._handler.room()

    async def _handle(self, event: ReceiverEvent) -> None:
        match event:
            case GapReceived():
                await self._handler.gap(event.lane, event.gap)
            case HelloReceived():
                await self._handler.open(event.hello)
                self._receiver.welcome()
                self._wake.set()
            case LaneOpenReceived():
                await self._handler.open_lane(event.opening)
            case LaneClosedReceived():
                self._handler.close_lane(event.lane)
            case RecordRefused():
                self._handler.close_lane(event.lane, event.reason)
            case OriginsReceived():
                self._handler.add_origins(event.frame)
            case ClockReceived():
                await self._handler.clock(event.clock)
            case ConfigState():
                self._handler.config_state(event)
            case DownOpen() | Outcomes():
                await self._handler.down(event)
            case PullState():
                self._handler.pull_state(event)
            case Canary():
                await self._handler.canary(event)
            case NodeReport() | PairReport():
                self._handler.report(event)
            case ConnectionLost():
                self._ended(event.reason)

    async def _write(self) -> None:
        while True:
            self._wake.clear()
            data = self._receiver.data_to_send()
            if data:
                await self._socket.send_bytes(data)
            elif self._receiver.closed:
                return
            else:
                await self._wake.wait()


async def serve_link(
    request: web.Request,
    handler: LinkHandler,
    settings: ReceiverSettings,
    cluster_id: str,
    *,
    beats: Beats,
    software: str = "weft",
    clock: Callable[[], int] = time.monotonic_ns,
    wall_clock: Callable[[], int] = time.time_ns,
) -> web.StreamResponse:
    """Answer a request for ``LINK_PATH`` (its token was checked before) and run the link until it ends.

    Memory per connection is bounded by the largest batch, one decoded message, and what the handler keeps.
    """
    socket = web.WebSocketResponse(
        max_msg_size=settings.batch_bytes_max + MESSAGE_SLACK_BYTES,
        compress=False,
        timeout=CLOSE_TIMEOUT_S,
        autoping=False,
    )
    try:
        await socket.prepare(request)
    except ConnectionError:
        # An edge that stops while it connects is not an error of this hub; aiohttp would log it with a traceback.
        log.debug("a link ended before it started: the edge disconnected")
        return web.Response(status=400)
    receiver = Receiver(settings, cluster_id, software, wall_clock, clock(), in_turns=True)
    try:
        await LinkSession(socket, handler, receiver, settings, clock, beats=beats).run()
    finally:
        with contextlib.suppress(TimeoutError, ConnectionError, aiohttp.ClientError):
            await asyncio.wait_for(socket.close(), 2 * CLOSE_TIMEOUT_S)
    return socket
