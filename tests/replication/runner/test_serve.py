"""When a hub acknowledges: at once, but not many times a second for a few records. What it says meanwhile."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any, cast

from aiohttp import WSMessage, WSMsgType
from msgspec.structs import replace

from tests.cloud_hub import virtual_time
from tests.replication.model import WALL, make_batch
from tests.replication.test_receiver import HELLO, Peer
from weft.protocols.link import BEATS, Ack, Data, Pong
from weft.protocols.ranges import RangeSet
from weft.replication.flow_control import ReceiverSettings
from weft.replication.liveness import SECOND
from weft.replication.runner.serve import Beats, LinkSession

PERIOD_S = 0.04
"""Time from one commit of the hub to the next."""
ACK_INTERVAL_S = ReceiverSettings().ack_interval / SECOND


class Socket:
    """A socket, and the times of what goes over it to the peer."""

    close_code = 1000

    def __init__(self) -> None:
        self.times: list[float] = []
        self.messages: list[bytes] = []
        self.waiting: asyncio.Queue[bytes] = asyncio.Queue()
        """Messages of the peer."""

    async def receive(self) -> WSMessage:
        return WSMessage(WSMsgType.BINARY, await self.waiting.get(), None)

    async def send_bytes(self, data: bytes) -> None:
        self.times.append(asyncio.get_running_loop().time())
        self.messages.append(data)


class Taker:
    """A hub that takes what comes; the test commits."""

    def connected(self, session: LinkSession) -> None:
        pass

    def data(self, lane: int, batches: object) -> None:
        pass

    async def room(self) -> None:
        pass

    def closed(self, reason: str) -> None:
        pass


async def acknowledged(peer: Peer, commits: int) -> Socket:
    """Let a hub commit a record some times, while the edge sends more, and return what the edge heard."""
    socket, handler = Socket(), Taker()
    session = LinkSession(
        cast("Any", socket), cast("Any", handler), peer.receiver, ReceiverSettings(), virtual_time.now_ns, beats=Beats()
    )
    running = asyncio.create_task(session.run())
    for seq in range(4, 4 + commits):
        session.acknowledge(1, RangeSet([(seq, seq + 1)]))
        socket.waiting.put_nowait(peer.encoded(Data(1, make_batch(0, seq + commits, 1))))
        await asyncio.sleep(PERIOD_S)
    await asyncio.sleep(ACK_INTERVAL_S)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return socket


def peer_with(batches: list[bytes], settings: ReceiverSettings | None = None) -> Peer:
    peer = Peer(settings).opened()
    peer.say(Data(1, b"".join(batches)))
    return peer


def test_frequent_commits_are_acknowledged_together() -> None:
    """On a line that is paid by the byte an acknowledgement costs as much as some messages."""
    peer = peer_with([make_batch(0, 4 + at, 1) for at in range(50)])
    socket = virtual_time.run(acknowledged(peer, 50))
    assert socket.times[0] == 0, "the first goes at once"
    assert len(socket.times) <= 2 + 50 * PERIOD_S / ACK_INTERVAL_S
    heard = RangeSet()
    for message in socket.messages:
        for frame in peer._decoder.decode(message):
            assert isinstance(frame, Ack)
            heard.update(RangeSet.from_wire(frame.ranges))
    assert list(heard) == [(4, 54)], "and the last one is not forgotten"


def test_an_edge_that_would_soon_wait_for_room_is_answered_at_once() -> None:
    batches = [make_batch(0, 4 + at, 1) for at in range(50)]
    window = 3 * sum(map(len, batches)) // 2
    peer = peer_with(batches, ReceiverSettings(window_bytes=window))
    socket = virtual_time.run(acknowledged(peer, 50))
    assert [round(time / PERIOD_S, 6) for time in socket.times[:10]] == list(range(10))


async def left_waiting(peer: Peer, seconds: float) -> Socket:
    """Let a hub take a record and not commit it for a while; return what the edge heard."""
    socket, handler = Socket(), Taker()
    beats = Beats()
    session = LinkSession(
        cast("Any", socket), cast("Any", handler), peer.receiver, ReceiverSettings(), virtual_time.now_ns, beats=beats
    )
    running = asyncio.create_task(session.run())
    socket.waiting.put_nowait(peer.encoded(Data(1, make_batch(0, 4, 1))))
    await asyncio.sleep(seconds)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert beats._next is None, "without links there is no timer"
    return socket


def test_an_edge_whose_records_wait_hears_a_beat_within_a_second_and_a_half() -> None:
    peer = Peer().opened(replace(HELLO, features=[BEATS]))
    socket = virtual_time.run(left_waiting(peer, 31))
    gaps = [later - earlier for earlier, later in pairwise([0, *socket.times])]
    assert len(gaps) >= 20
    assert max(gaps) <= 1.5
    assert [peer._decoder.decode(each) for each in socket.messages[:2]] == [[Pong(0, WALL)], [Pong(0, WALL)]]
