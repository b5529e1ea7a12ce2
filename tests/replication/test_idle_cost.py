"""The bytes of an idle link on the wire, with TLS: counted at a proxy that a real link goes through."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from aiohttp import web

from tests.replication.loopback import Hub
from tests.replication.model import ModelLog
from tests.support.certificates import Authority
from tests.support.epochs import MemoryEpochs
from tests.support.waiting import until
from weft.protocols.chunk_index import Mark
from weft.protocols.link import NodeReport
from weft.replication.events import LinkState, LinkStatus
from weft.replication.flow_control import LatestReport, ReceiverSettings, SenderSettings
from weft.replication.liveness import SECOND
from weft.replication.runner import LINK_PATH, LinkIdentity, LinkSettings, run_link
from weft.replication.source import LaneSnapshot

PACKET_BYTES = 52
"""IPv4 and TCP headers with timestamps."""
MONTH_S = 30 * 24 * 3600
STREAMS = 20
FASTER = 100
"""Factor by which the intervals of this test are shorter than the defaults."""


class IdleLog(ModelLog):
    """A log without new records, on a clock that continues."""

    def states(self, lanes: Iterable[int]) -> dict[int, LaneSnapshot]:
        now = time.time_ns()
        return {lane: self.state(lane)._replace(mark=Mark(now, self.ends[lane])) for lane in lanes}


class Counter:
    """A proxy. Each piece that it reads is at least one TCP segment, and each is acknowledged by a packet at worst."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.pieces: list[int] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        for source, target in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._copy(source, target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 16):
            self.pieces.append(len(data))
            target.write(data)
        target.close()


@pytest.mark.slow
async def test_an_idle_link_with_20_streams_costs_less_than_20_mb_a_month(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = Authority(tmp_path)
    server = authority.sign("localhost")
    at_hub = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    at_hub.load_cert_chain(server.certificate, server.key)
    at_edge = ssl.create_default_context(cafile=authority.path)
    hub = Hub()
    hub.settings = ReceiverSettings(ping_interval=75 * SECOND // FASTER)
    app = web.Application()
    app.router.add_get(LINK_PATH, hub._link)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=at_hub).start()
    counter = Counter(runner.addresses[0][1])
    proxy = await asyncio.start_server(counter.connect, "127.0.0.1", 0)
    usual, reported = SenderSettings(), LatestReport()
    reported.report = NodeReport(1 << 20, 1 << 30, 1 << 29, 0, None, [], 0)
    sender = SenderSettings(
        mark_interval=usual.mark_interval // FASTER,
        ping_interval=usual.ping_interval // FASTER,
        canary_interval=usual.canary_interval // FASTER,
        report=reported,
    )
    log = IdleLog({key: f"stream-{key}" for key in range(1, STREAMS + 1)})
    settings = LinkSettings((f"https://localhost:{proxy.sockets[0].getsockname()[1]}",), sender=sender)
    status = LinkStatus("cloud")
    link = asyncio.create_task(
        run_link(log, LinkIdentity("default", "edge-1", 99, "test"), settings, MemoryEpochs(), status, tls=at_edge)
    )
    await until(lambda: status.state is LinkState.CONNECTED and len(hub.marks) == STREAMS)
    await asyncio.sleep(usual.ping_interval / SECOND / FASTER)
    counter.pieces.clear()
    marks, began, now = len(hub.marks), time.time_ns(), time.monotonic()
    await asyncio.sleep(4.5)  # real bytes of a real connection take real time
    await until(lambda: len(hub.marks) - marks >= 7 * STREAMS and (status.canary_time or 0) > began)
    pieces, seconds = list(counter.pieces), time.monotonic() - now
    link.cancel()
    await asyncio.gather(link, return_exceptions=True)
    proxy.close()
    await runner.cleanup()
    # Every segment with its headers, and a packet of its own that acknowledges it: a PONG often does that for a PING.
    a_month = (sum(pieces) + 2 * PACKET_BYTES * len(pieces)) * MONTH_S / (seconds * FASTER)
    with capsys.disabled():
        print(f"\nan idle link, {STREAMS} streams: {a_month / 1e6:.1f} MB a month ({pieces[:6]} bytes with TLS)")
    assert a_month < 20e6
