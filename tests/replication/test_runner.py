"""The shells over real sockets: reconnect, fail-over, refusal, silence, back-pressure."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import logging
import random
import re
import socket
import ssl
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.replication.loopback import Hub
from tests.replication.model import CLOCK, WALL, ModelLog
from tests.support.certificates import Authority
from tests.support.epochs import MemoryEpochs
from tests.support.waiting import PATIENCE_S, until
from weft.network.reload import read_token
from weft.protocols.batch import columns_from_lists, encode
from weft.protocols.chunk_index import GapRange, Mark
from weft.protocols.link import BEATS, FrameEncoder, LaneOpened, NodeReport, RefuseCode, Welcome
from weft.replication.events import LinkState, LinkStatus
from weft.replication.flow_control import LatestReport, ReceiverSettings, SenderSettings
from weft.replication.liveness import SECOND
from weft.replication.runner import LINK_PATH, LinkIdentity, LinkRefused, LinkSettings, run_link
from weft.replication.source import LaneSnapshot

IDENTITY = LinkIdentity("default", "edge-1", 99, "test")


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    hub = Hub()
    await hub.start()
    yield hub
    await hub.stop()


class Link:
    """A running link and what a test asks about it."""

    def __init__(self, log: ModelLog, *urls: str, **settings: object) -> None:
        self.log = log
        self.status = LinkStatus("cloud")
        self.epochs = MemoryEpochs()
        sender = SenderSettings(silence=SECOND // 2, ping_interval=SECOND // 10, mark_interval=SECOND // 20)
        options = {"retry_min_s": 0.01, "retry_max_s": 0.05, "sender": sender, **settings}
        self.settings = LinkSettings(urls=urls, **options)  # type: ignore[arg-type]

    async def __aenter__(self) -> Link:
        self._task = asyncio.create_task(
            run_link(self.log, IDENTITY, self.settings, self.epochs, self.status, rng=random.Random(1))
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        assert self.status.state is LinkState.STOPPED


def drained(log: ModelLog) -> bool:
    return all(log.safe[lane].covers(0, log.ends[lane]) for lane in log.streams)


async def test_what_was_logged_before_and_after_connecting_arrives_once_and_is_released(hub: Hub) -> None:
    log = ModelLog({1: "telemetry", 2: "alarms"})
    log.append(1, 500)
    async with Link(log, hub.url) as link:
        await until(lambda: drained(log))
        log.append(1, 3)
        log.append(2, 2)
        log.lose(2, 4)
        await until(lambda: drained(log))
        await until(lambda: (2, 6) in [(lane, mark.seq) for lane, mark in hub.marks])
        await until(lambda: link.status.pending_records == 0)
        assert link.status.state is LinkState.CONNECTED
        assert link.status.cluster_id == "cluster-1"
        assert link.status.records_acked >= 505
    assert hub.stored == Counter([(1, seq) for seq in range(503)] + [(2, 0), (2, 1)])
    assert hub.gaps == [(2, GapRange(2, 6, 1))]
    await until(lambda: hub.closed == 1)


async def test_it_trusts_the_systems_authorities_and_no_others(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await hub.stop()
    authority = Authority(tmp_path)
    server = authority.sign("localhost")
    hub.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    hub.tls.load_cert_chain(server.certificate, server.key)
    await hub.start()
    log = ModelLog({1: "telemetry"})
    log.append(1, 5)
    async with Link(log, hub.url) as link:
        await until(lambda: "the hub's certificate is refused" in link.status.last_error)
    assert not hub.hellos
    monkeypatch.setenv("SSL_CERT_FILE", authority.path)  # how an administrator names them for a process
    async with Link(log, hub.url):
        await until(lambda: drained(log))
    assert sum(hub.stored.values()) == 5


@contextlib.asynccontextmanager
async def redirecting(to: str) -> AsyncIterator[str]:
    """The URL of a server that redirects links."""

    async def redirect(_request: web.Request) -> web.StreamResponse:
        raise web.HTTPTemporaryRedirect(to + LINK_PATH)

    application = web.Application()
    application.router.add_get(LINK_PATH, redirect)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def test_a_redirect_of_http_is_told_and_not_followed(hub: Hub) -> None:
    log = ModelLog({1: "telemetry"})
    log.append(1, 5)
    async with redirecting(hub.url) as url, Link(log, url) as link:
        await until(lambda: link.status.state is LinkState.REFUSED)
        assert f"the server redirects to '{hub.url}' (307)" in link.status.last_error
        assert "write that URL in `to`" in link.status.last_error
        await until(lambda: link.status.attempts_failed >= 3)
    assert not hub.hellos
    assert not drained(log)


async def test_it_comes_back_when_the_hub_was_restarted(hub: Hub) -> None:
    log = ModelLog({1: "telemetry"})
    async with Link(log, hub.url) as link:
        log.append(1, 10)
        await until(lambda: drained(log))
        await hub.stop()
        await until(lambda: link.status.state is not LinkState.CONNECTED)
        log.append(1, 10)
        await until(lambda: link.status.pending_records == 10)
        assert link.status.next_try is not None or link.status.state is LinkState.CONNECTING
        assert link.status.last_error
        await hub.start()
        await until(lambda: drained(log))
        assert link.epochs.proposed == sorted(set(link.epochs.proposed))
        await until(lambda: link.status.attempts_failed == 0)
    assert set(hub.stored.values()) == {1}
    assert len(hub.stored) == 20


async def test_the_next_url_is_tried_when_one_fails(hub: Hub) -> None:
    log = ModelLog({1: "telemetry"})
    log.append(1, 10)
    async with Link(log, "http://127.0.0.1:1", hub.url) as link:
        await until(lambda: drained(log))
        assert link.status.url == hub.url


async def test_a_wrong_token_is_told_and_a_new_one_is_read_without_a_restart(
    hub: Hub, tmp_path_factory: pytest.TempPathFactory
) -> None:
    hub.token = "good"
    path = tmp_path_factory.mktemp("token") / "token"
    path.write_text("bad\n")
    log = ModelLog({1: "telemetry"})
    log.append(1, 1)
    async with Link(log, hub.url, token=lambda: read_token(str(path))) as link:
        await until(lambda: link.status.state is LinkState.REFUSED)
        assert "does not accept the token" in link.status.last_error
        path.write_text("good\n")
        await until(lambda: drained(log))


async def test_a_missing_token_file_is_told(hub: Hub) -> None:
    async with Link(ModelLog({1: "telemetry"}), hub.url, token=lambda: read_token("/nonexistent/token")) as link:
        await until(lambda: link.status.state is LinkState.WAITING)
        assert "/nonexistent/token" in link.status.last_error


async def test_an_identity_conflict_stops_the_quick_retries_and_proposes_no_higher_epoch(hub: Hub) -> None:
    hub.refusal = LinkRefused(RefuseCode.IDENTITY_CONFLICT, "edge-1 is linked from elsewhere", "use a new data_dir")
    async with Link(ModelLog({1: "telemetry"}), hub.url, conflict_retry_s=0.2) as link:
        await until(lambda: link.status.state is LinkState.CONFLICT)
        assert link.status.last_error == "edge-1 is linked from elsewhere; use a new data_dir"
        await until(lambda: len(hub.hellos) == 2)
        assert link.epochs.proposed == [1, 1]


async def test_an_epoch_that_a_hub_took_is_not_proposed_again_after_a_conflict(hub: Hub) -> None:
    log = ModelLog({1: "telemetry"})
    async with Link(log, hub.url, conflict_retry_s=0.05) as link:
        await until(lambda: link.status.connections == 1)
        hub.sessions[0].refuse(RefuseCode.IDENTITY_CONFLICT, "a connection with epoch 2 has taken over", "stop it")
        await until(lambda: link.status.connections == 2)
        assert link.epochs.proposed == [1, 2]


async def test_a_hub_that_lost_what_it_acknowledged_is_an_alarm(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    log = ModelLog({1: "telemetry"})
    log.append(1, 500)
    log.lose(1, 10)
    async with Link(log, hub.url) as link:
        await until(lambda: drained(log))
        for connections in (2, 3):
            hub.held[1].remove(500, 510)  # the node tells its gaps again: no alarm
            if connections == 3:
                hub.held[1].remove(100, 300)  # its store was restored
            hub.sessions[-1].refuse(RefuseCode.OVERLOADED, "going down", "another node takes over")
            await until(lambda: link.status.connections == connections)
            await until(lambda: hub.held[1].covers(0, 510))
            assert ("has lost" in link.status.last_error) is (connections == 3)
        assert "has lost 200 records that it had acknowledged, from seq 100 on" in link.status.last_error
    assert "link cloud: hub cluster-1 has lost 200 records" in caplog.text


async def test_nothing_is_sent_before_it_is_noted_that_the_hub_is_given_it(hub: Hub) -> None:
    log = ModelLog({1: "telemetry"})
    log.append(1, 10)
    log.give_error = OSError("no space left")
    async with Link(log, hub.url) as link:
        await until(lambda: len(hub.hellos) >= 3)
        assert link.status.last_error == "the positions given to this hub cannot be saved: no space left"
        assert not hub.stored
        assert not hub.marks
        log.give_error = None
        await until(lambda: drained(log))
    assert log.given == {"cluster-1": {1: 10}}
    assert set(hub.stored.values()) == {1}


async def test_to_look_how_old_the_backlog_is_gives_nothing_away() -> None:
    log = ModelLog({1: "telemetry"})
    log.append(1, 5)
    async with Link(log, "http://127.0.0.1:1") as link:
        await until(lambda: link.status.pending_seconds > 0)
    assert not log.given


async def test_a_hub_that_says_nothing_is_given_up(hub: Hub) -> None:
    hub.answers = False
    log = ModelLog({1: "telemetry"})
    log.append(1, 1)
    async with Link(log, hub.url) as link:
        await until(lambda: "was silent" in link.status.last_error)
        hub.answers = True
        await until(lambda: drained(log))


class Upgraded:
    """A server that answers as a hub until its WELCOME, and then does what the test says."""

    def __init__(self, then: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> None:
        self.connections = 0
        self._then = then

    async def __aenter__(self) -> Upgraded:
        listener = socket.create_server(("127.0.0.1", 0))
        # A short queue of the kernel, so that what is not read stays with the sender.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 256 << 10)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self._server = await asyncio.start_server(self._serve, sock=listener, limit=1000)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        head = await reader.readuntil(b"\r\n\r\n")
        key = re.search(rb"Sec-WebSocket-Key: (\S+)", head)[1]  # type: ignore[index]
        accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
        writer.write(b"HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: upgrade\r\n")
        writer.write(b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n")
        await reader.readexactly(40)  # HELLO, and the lane
        taken = Welcome(1, "c", 64 << 20, 1 << 20, 0, "t", [BEATS])
        message = FrameEncoder().encode([taken, LaneOpened(1, [])])
        writer.write(bytes([0x82, 126]) + len(message).to_bytes(2, "big") + message)
        await self._then(reader, writer)


AHEAD = SenderSettings(window_bytes=64 << 20, window_start_bytes=64 << 20)
"""A sender that sends all it has."""


def long_log(batches: int) -> ModelLog:
    """Return a log of batches of half a megabyte that do not compress."""
    log = ModelLog({1: "telemetry"})
    for seq in range(batches):
        payload = random.Random(seq).randbytes(500_000)
        times = struct.pack("<q", WALL)
        log.batches[1].append(encode(1, seq, columns_from_lists(times, [b"t"], [payload]), CLOCK))
        log.ends[1] += 1
    return log


@pytest.mark.parametrize("patience", [{"silence": SECOND // 4}, {"beat_timeout": SECOND // 4}])
async def test_a_hub_that_takes_nothing_more_and_says_nothing_is_given_up(patience: dict[str, Any]) -> None:
    """The link is stuck in a write then."""

    async def stop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError):  # the end of the test
            await asyncio.Event().wait()

    log = long_log(40)
    async with Upgraded(stop) as server:
        async with Link(log, server.url, sender=replace(AHEAD, **patience)) as link:
            await until(lambda: server.connections == 2, 8)
            assert "was silent" in link.status.last_error
            assert link.status.bytes_sent < 18_000_000


async def test_a_hub_that_a_slow_line_brings_a_long_message_is_not_given_up() -> None:
    """It can say nothing of what it does not have yet."""
    arrived = 0

    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal arrived
        with contextlib.suppress(asyncio.CancelledError):  # the end of the test
            while data := await reader.read(1 << 20):
                arrived += len(data)
                await asyncio.sleep(0.05)  # the line's rate

    async with Upgraded(trickle) as server:
        async with Link(long_log(40), server.url, sender=replace(AHEAD, beat_timeout=SECOND // 2)):
            await until(lambda: arrived > 5_000_000, 30)
            assert server.connections == 1


async def test_a_slow_hub_is_not_taken_for_a_silent_one_and_holds_the_sender_back(hub: Hub) -> None:
    hub.settings = ReceiverSettings(
        window_bytes=20_000, batch_bytes_max=20_000, silence=2 * SECOND, ping_interval=SECOND // 10
    )
    hub.may_take.clear()
    log = ModelLog({1: "telemetry"})
    for _ in range(100):
        log.append(1, 50)
    async with Link(log, hub.url) as link:
        await until(lambda: link.status.unacked_bytes > 0)
        await asyncio.sleep(1.0)  # twice the sender's patience: real silence of a real hub cannot be hurried
        assert link.status.unacked_bytes <= 20_000
        assert link.status.bytes_sent < 25_000
        assert link.status.state is LinkState.CONNECTED
        hub.may_take.set()
        await until(lambda: drained(log))
        assert link.status.connections == 1


async def test_a_hub_that_refuses_an_open_link_is_heard(hub: Hub) -> None:
    log = ModelLog({1: "telemetry"})
    async with Link(log, hub.url) as link:
        await until(lambda: link.status.connections == 1)
        hub.sessions[0].refuse(RefuseCode.OVERLOADED, "going down", "another node takes over")
        await until(lambda: "going down" in link.status.last_error)
        await until(lambda: link.status.connections == 2)
    await until(lambda: hub.closed == 2)


async def test_the_age_of_what_is_pending_is_known_while_nobody_is_connected() -> None:
    log = ModelLog({1: "telemetry"})
    log.append(1, 5)
    async with Link(log, "http://127.0.0.1:1") as link:
        await until(lambda: link.status.pending_records == 5 and link.status.pending_seconds > 1e6)
        assert link.status.last_error == (
            "http://127.0.0.1:1: cannot connect (Connection refused). Check that the hub runs, and its host and port"
        )


async def test_an_edge_that_goes_away_before_it_is_answered_is_no_error_of_the_hub(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ended = asyncio.Event()

    class Slow(Hub):
        async def _link(self, request: web.Request) -> web.StreamResponse:
            assert request.transport is not None
            request.transport.close()
            try:
                return await super()._link(request)
            finally:
                ended.set()

    hub = Slow()
    await hub.start()
    try:
        with caplog.at_level(logging.INFO):
            async with Link(ModelLog({1: "s"}), hub.url):
                await asyncio.wait_for(ended.wait(), PATIENCE_S)
                await asyncio.sleep(0)
            await hub.stop()
    finally:
        await hub.stop()
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert errors == []


async def test_an_edge_that_goes_silent_is_closed_by_the_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.replication.runner.serve.CLOSE_TIMEOUT_S", 0.1)
    hub.settings = ReceiverSettings(silence=SECOND // 5, ping_interval=SECOND // 20)
    reader, writer = await asyncio.open_connection("127.0.0.1", hub.port)
    writer.write(
        f"GET {LINK_PATH} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    async with asyncio.timeout(PATIENCE_S):
        assert b"101" in await reader.readline()
        while await reader.read(1000):
            pass
    writer.close()


# --- The bytes of an idle link on the wire, with TLS: counted at a proxy that a real link goes through


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


class IdleCostCounter:
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
    counter = IdleCostCounter(runner.addresses[0][1])
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
