"""Links that speak the project's own frames: a raw one for attacks, and a well-behaved one that measures."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import struct
import threading
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from types import TracebackType
from typing import TypeVar

import aiohttp
import zstandard

from tests.hostile.good_client import Waits, summary
from tests.hostile.hub import GOOD, HOSTILE, GuardedHub
from tests.support.speed import Stopwatch
from tests.support.waiting import PATIENCE_S
from weft.protocols import batch
from weft.protocols.batch import ClockReading, ClockState, Columns, HeaderPairs
from weft.protocols.link import (
    Ack,
    Data,
    Frame,
    FrameDecoder,
    FrameEncoder,
    Hello,
    LaneClosed,
    LaneOpen,
    LaneOpened,
    Marks,
    Refuse,
    Welcome,
)
from weft.replication.runner import LINK_PATH

INTERVAL_S = 0.02
BOOT = 7
_log_ids = itertools.count(1)
_FrameT = TypeVar("_FrameT")


def records(
    first: int,
    count: int = 1,
    *,
    lane: int = 1,
    key: bytes = b"plant/a/b/telemetry",
    payload: bytes = b'{"value": 21.5}',
    headers: dict[int, HeaderPairs] | None = None,
    level: int | None = None,
) -> bytes:
    """Return a batch of like records; compressed as a whole only with a level."""
    times = struct.pack(f"<{count}q", *[time.time_ns()] * count)
    return encoded(first, batch.columns_from_lists(times, [key] * count, [payload] * count, headers), lane, level)


def sparse(first: int, count: int, key: bytes, *, lane: int = 1, level: int = 19) -> bytes:
    """Return a batch of a great many empty records with one key: nothing compresses better."""
    times = struct.pack("<q", time.time_ns()) * count
    return encoded(first, Columns(times, bytes(4 * count), [key], bytes(4 * count + 4), b"", {}, b""), lane, level)


def encoded(first: int, columns: Columns, lane: int = 1, level: int | None = None) -> bytes:
    """Return a batch of these columns."""
    compressor = None if level is None else zstandard.ZstdCompressor(level=level)
    return batch.encode(lane, first, columns, ClockReading(BOOT, 1, ClockState.SYNCED), compressor)


class LinkEnded(Exception):
    """The hub closed the connection without the frame that was waited for."""


class RawLink:
    """One connection of a peer that sends what it likes."""

    def __init__(
        self, socket: aiohttp.ClientWebSocketResponse, tenant: str, edge: str, log_id: int, level: int
    ) -> None:
        self.socket = socket
        self.tenant, self.edge, self.log_id = tenant, edge, log_id
        self.encoder, self._decoder = FrameEncoder(level), FrameDecoder()
        self._heard: list[Frame] = []

    async def send(self, *frames: Frame) -> None:
        """Send frames as one message."""
        await self.send_raw(self.encoder.encode(list(frames)))

    async def send_raw(self, data: bytes) -> None:
        """Send a message as it is."""
        await self.socket.send_bytes(data)

    async def hear(self, *kinds: type[_FrameT], timeout_s: float = PATIENCE_S) -> _FrameT:
        """Return the next frame of one of these kinds; others are dropped.

        Raises:
            LinkEnded: the hub closed first.
            TimeoutError: none came.
        """
        async with asyncio.timeout(timeout_s):
            while True:
                while self._heard:
                    frame = self._heard.pop(0)
                    if isinstance(frame, kinds):
                        return frame
                message = await self.socket.receive()
                if message.type is not aiohttp.WSMsgType.BINARY:
                    raise LinkEnded(f"{message.type} {message.data!r}")
                self._heard += self._decoder.decode(message.data)

    def hello(self) -> Hello:
        """Return the HELLO of the link's edge."""
        return Hello(1, self.tenant, self.edge, self.log_id, BOOT, time.time_ns(), "test")

    async def greet(self) -> Welcome | Refuse:
        """Say HELLO and return the answer."""
        await self.send(self.hello())
        return await self.hear(Welcome, Refuse)

    def opening(
        self,
        lane: int = 1,
        stream: str = "telemetry",
        topics: Sequence[str] = (),
        *,
        epoch: int = 1,
        log_id: int | None = None,
    ) -> LaneOpen:
        """Return the offer of a lane."""
        log = self.log_id if log_id is None else log_id
        return LaneOpen(lane, self.tenant, self.edge, log, stream, epoch, [], list(topics))

    async def open(self, *openings: LaneOpen, timeout_s: float = PATIENCE_S) -> list[LaneOpened | LaneClosed | Refuse]:
        """Offer lanes and return the answers, one for each, or those up to the refusal of the link."""
        await self.send(*openings)
        answers: list[LaneOpened | LaneClosed | Refuse] = []
        while len(answers) < len(openings):
            answers.append(await self.hear(LaneOpened, LaneClosed, Refuse, timeout_s=timeout_s))
            if isinstance(answers[-1], Refuse):
                break
        return answers

    async def deliver(self, *batches: bytes, lane: int = 1, timeout_s: float = PATIENCE_S) -> Ack | LaneClosed | Refuse:
        """Send batches of a lane and return the first answer."""
        await self.send(Data(lane, b"".join(batches)))
        return await self.hear(Ack, LaneClosed, Refuse, timeout_s=timeout_s)

    async def mark(self, seq: int, lanes: Iterable[int] = (1,)) -> None:
        """Say that lanes are complete up to now below a number."""
        await self.send(Marks(time.time_ns(), [(lane, seq) for lane in lanes]))


@contextlib.asynccontextmanager
async def link_to(
    hub: GuardedHub, node: tuple[str, str] = HOSTILE, *, log_id: int | None = None, level: int = 3
) -> AsyncIterator[RawLink]:
    """Connect with a node's token; nothing is said yet. A fresh log unless one is named."""
    headers = {"Authorization": f"Bearer {hub.token(*node)}"}
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(hub.url + LINK_PATH, headers=headers, compress=0, max_msg_size=64 << 20) as socket,
    ):
        yield RawLink(socket, *node, next(_log_ids) if log_id is None else log_id, level)


class GoodLink(threading.Thread):
    """A well-behaved link in a thread of its own: a record at a time, and the time to its acknowledgement. A context.

    Args:
        log_id: of the link's log, which has to be another for each of an edge.
    """

    def __init__(self, hub: GuardedHub, node: tuple[str, str] = GOOD, log_id: int = 1 << 62) -> None:
        super().__init__(daemon=True)
        self._hub, self._node, self._log_id = hub, node, log_id
        self._stopping, self._ready = threading.Event(), threading.Event()
        self._waits: list[float] = []
        self._failure: BaseException | None = None
        self.sent = 0
        """Records that were acknowledged."""

    def run(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as failure:
            self._failure = failure
        self._ready.set()

    async def _run(self) -> None:
        async with link_to(self._hub, self._node, log_id=self._log_id) as link:
            assert isinstance(await link.greet(), Welcome)
            [answer] = await link.open(link.opening(topics=["plant/{line}/{machine}/telemetry"], epoch=time.time_ns()))
            assert isinstance(answer, LaneOpened), answer
            self.sent = answer.ranges[-1][1] if answer.ranges else 0
            self._ready.set()
            stopwatch = Stopwatch(self._hub.pid)
            while not self._stopping.is_set():
                stopwatch.start()
                # With each record the mark that an edge sends with it.
                await link.send(Data(1, records(self.sent)), Marks(time.time_ns(), [(1, self.sent + 1)]))
                heard = await link.hear(Ack, LaneClosed, Refuse, timeout_s=PATIENCE_S)
                assert isinstance(heard, Ack), heard
                self._waits.append(stopwatch.seconds())
                self.sent += 1
                await asyncio.sleep(INTERVAL_S)

    def __enter__(self) -> GoodLink:
        self.start()
        assert self._ready.wait(PATIENCE_S), "the well-behaved link was not taken"
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        self._stopping.set()
        self.join(PATIENCE_S)
        if kind is None and self._failure is not None:
            raise AssertionError("the well-behaved link was harmed") from self._failure

    def take(self) -> Waits:
        """Return the waits since the last call."""
        if self._failure is not None:
            raise AssertionError("the well-behaved link was harmed") from self._failure
        waits, self._waits = self._waits, []
        return summary(waits)
