"""Orders to a running link over real sockets, and its count of bytes on the wire."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import random
import socket
import struct
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial
from zoneinfo import ZoneInfo

import pytest

from tests.replication.loopback import Hub
from tests.replication.model import CLOCK, WALL, ModelLog
from tests.support.epochs import MemoryEpochs
from tests.support.waiting import PATIENCE_S, until, wait_until
from weft.protocols.batch import columns_from_lists, encode
from weft.replication.events import LinkState, LinkStatus
from weft.replication.flow_control import SenderSettings
from weft.replication.liveness import SECOND
from weft.replication.policy import LINE_RATE, MESSAGE_BYTES_MIN, BudgetRule, Order, PolicyRules, SendPolicy
from weft.replication.runner import LinkIdentity, LinkSettings, run_link
from weft.replication.runner.control import (
    QUEUE_NS,
    SAVES_A_MONTH,
    SIOCOUTQNSD,
    Drain,
    LineQueue,
    LinkControl,
    received_bytes,
)

IDENTITY = LinkIdentity("default", "edge-1", 99, "test")
MONTH = "2026-11-01"
NEAR_ITS_END = 1_796_083_140 * SECOND  # 2026-11-30 23:59 UTC


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    hub = Hub()
    await hub.start()
    yield hub
    await hub.stop()


@contextlib.asynccontextmanager
async def link(
    log: ModelLog, url: str, control: LinkControl, ping_interval: int = SECOND // 10
) -> AsyncIterator[LinkStatus]:
    status = LinkStatus("cloud")
    sender = SenderSettings(ping_interval=ping_interval, mark_interval=SECOND // 20)
    settings = LinkSettings(urls=(url,), retry_min_s=0.01, retry_max_s=0.05, sender=sender)
    task = asyncio.create_task(run_link(log, IDENTITY, settings, MemoryEpochs(), status, control=control))
    try:
        yield status
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_a_paused_link_stays_connected_and_sends_nothing_until_it_is_resumed(hub: Hub) -> None:
    stored: list[bool] = []
    control = LinkControl(
        PolicyRules(), wall_clock=time.time_ns, is_paused=True, save=lambda is_paused, _: stored.append(is_paused)
    )
    log = ModelLog({1: "telemetry"})
    log.append(1, 10)
    async with link(log, hub.url, control) as status:
        await until(lambda: status.state is LinkState.CONNECTED and status.ping_seconds is not None)
        log.append(1, 10)
        await until(lambda: status.pending_records == 20)
        assert status.is_paused
        assert "weft link resume" in status.hold
        assert not hub.stored
        await control.pause(False)
        await until(lambda: len(hub.stored) == 20)
        await until(lambda: status.pending_records == 0 and not status.hold)
        assert status.delivery_seconds is not None
        assert status.pending_bytes == status.drain_seconds == 0
        assert status.connections == 1
    assert stored == [False]


async def test_another_policy_counts_on_the_open_connection(hub: Hub) -> None:
    control = LinkControl(PolicyRules(), wall_clock=time.time_ns)
    log = ModelLog({1: "telemetry"})
    async with link(log, hub.url, control) as status:
        await until(lambda: status.state is LinkState.CONNECTED)
        control.adopt(PolicyRules(every=SECOND // 2, order=Order.FRESH_FIRST))
        began = time.monotonic()
        for _ in range(3):
            log.append(1, 1)
            await until(lambda: sum(hub.stored.values()) == log.ends[1])
        assert time.monotonic() - began > 0.9, "two intervals; from one to the next, a late look would make it less"
        control.adopt(PolicyRules())
        assert status.connections == 1


async def test_two_links_with_their_own_policies_bring_everything_once(hub: Hub) -> None:
    other = Hub("cluster-2")
    await other.start()
    log = ModelLog({1: "telemetry", 2: "alarms"})
    for _ in range(50):
        log.append(1, 20, size=200)
    log.append(2, 5)
    slow = LinkControl(PolicyRules(rate=20_000, priorities=(("alarms", 100),)), wall_clock=time.time_ns)
    fresh = LinkControl(PolicyRules(order=Order.FRESH_FIRST), wall_clock=time.time_ns)
    async with link(log, hub.url, fresh), link(log, other.url, slow) as status:
        await until(lambda: len(hub.stored) == 1005)
        await until(lambda: len(other.stored) == 1005)
        await slow.pause(True)
        log.append(1, 10)
        await until(lambda: len(hub.stored) == 1015)
        await until(lambda: status.pending_records == 10)
    assert set(hub.stored.values()) == set(other.stored.values()) == {1}
    await other.stop()


class Proxy:
    """What the operator of the network counts: the bytes of both directions."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        for source, target in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._copy(source, target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                self.bytes += len(data)
                target.write(data)
        target.close()


class Month:
    """A budget's month: its clock, and what a process leaves to the next one."""

    def __init__(self, size: int) -> None:
        self.rules = PolicyRules(budget=BudgetRule(size, 1, ZoneInfo("UTC")))
        self.wall = NEAR_ITS_END
        self.counts: dict[str, int] = {}

    def control(self) -> LinkControl:
        def save(_is_paused: bool, counts: Mapping[str, int]) -> None:
            self.counts = dict(counts)

        return LinkControl(self.rules, wall_clock=lambda: self.wall, counts=self.counts, save=save)


async def test_a_budget_is_kept_over_restarts_and_kills_and_the_next_month_goes_on(hub: Hub) -> None:
    """Processes one after the other, of which half are killed: their last count is what they saved."""
    month = Month(2_000_000)
    proxy = Proxy(hub.port)
    server = await asyncio.start_server(proxy.connect, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    log = ModelLog({1: "telemetry"})
    for run in range(40):
        control = month.control()
        async with link(log, url, control, ping_interval=45 * SECOND) as status:
            await until(lambda status=status: status.state is LinkState.CONNECTED)  # type: ignore[misc]
            for _ in range(5):
                if len(hub.stored) < log.ends[1]:
                    break
                log.batches[1][:] = [incompressible(log.ends[1])]
                log.ends[1] += 1
                log.listeners[-1]([1])
                await until(lambda control=control: len(hub.stored) == log.ends[1] or control.policy.is_held)  # type: ignore[misc]
            # What is on the way when a process is killed takes no part: a count follows its bytes.
            step = 2_000_000 // SAVES_A_MONTH
            await until(lambda control=control: month.counts.get(MONTH, 0) > control.policy.count.used - step)  # type: ignore[misc]
        if run % 2:
            await control.save()
        if control.policy.is_held:
            break
    # The proxy sees no headers of packets, some 52 bytes for each: the count is a little above.
    assert proxy.bytes == pytest.approx(2_000_000, rel=0.02)
    assert month.counts[MONTH] == pytest.approx(2_000_000, rel=0.02)
    log.batches[1].append(incompressible(log.ends[1]))
    log.ends[1] += 1
    async with link(log, url, month.control(), ping_interval=45 * SECOND) as status:
        await until(lambda: "budget of data is used up; data waits until 2026-12-01 00:00 UTC" in status.hold)
        await until(lambda: status.state is LinkState.CONNECTED)
        assert len(hub.stored) < log.ends[1]
        month.wall += 120 * SECOND
        log.listeners[-1]([1])
        await until(lambda: len(hub.stored) == log.ends[1])
        await until(lambda: status.budget_used is not None and 20_000 < status.budget_used < 60_000)
    assert set(hub.stored.values()) == {1}
    server.close()


async def test_the_bytes_of_attempts_that_fail_are_saved_too() -> None:
    """Else a node that is killed and started again beside a dead hub would use them each time, and count none."""
    month = Month(1_000_000)
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    control = month.control()
    async with link(ModelLog({1: "telemetry"}), url, control):
        await until(lambda: control.policy.count.used > 5_000)
        step = 1_000_000 // SAVES_A_MONTH
        assert month.counts[MONTH] > control.policy.count.used - step - 2_000, "all but one part and one attempt"
    server.close()


def incompressible(seq: int) -> bytes:
    """A batch of 20 kB that no compression makes smaller."""
    payload = struct.pack("<Q", seq) + random.Random(seq).randbytes(20_000)
    return encode(1, seq, columns_from_lists(struct.pack("<q", WALL + seq), [b"t"], [payload]), CLOCK)


# --- The queue before a slow line: short with ``fresh_first``, left to the kernel otherwise


FRESH = PolicyRules(order=Order.FRESH_FIRST)
USUAL = 256 << 10


@pytest.fixture
def full() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection whose sender has more to send than its peer takes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
        with socket.create_connection(server.getsockname()) as ours, server.accept()[0] as theirs:
            ours.setblocking(False)
            for _ in range(64):
                try:
                    ours.send(bytes(64 << 10))
                except BlockingIOError:
                    break
            yield ours, theirs


def held_until(policy: SendPolicy, queue: LineQueue, now: int) -> int | None:
    policy.look(now, now)
    queue.look(policy, now)
    assert policy.is_held == (policy.deadline() is not None)
    return policy.deadline()


def test_data_waits_while_the_queue_before_the_line_is_long(full: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = full
    policy, queue = SendPolicy(FRESH), LineQueue(ours)
    queue.look(policy, SECOND)
    policy.line_rate = LINE_RATE  # loopback is no slow line
    until = held_until(policy, queue, SECOND + 1)
    assert until is not None
    assert SECOND < until < SECOND + QUEUE_NS
    theirs.setblocking(False)

    def is_drained() -> bool:
        with contextlib.suppress(BlockingIOError):
            while theirs.recv(1 << 20):
                pass
        return not any(fcntl.ioctl(ours.fileno(), SIOCOUTQNSD, bytes(4)))

    wait_until(is_drained, 10, "the queue to be empty")
    assert held_until(policy, queue, SECOND + 1 + QUEUE_NS) is None


def test_data_does_not_wait_in_another_order_or_before_a_fast_line(full: tuple[socket.socket, socket.socket]) -> None:
    ours, _ = full
    assert held_until(SendPolicy(PolicyRules()), LineQueue(ours), SECOND) is None
    fast = SendPolicy(FRESH)
    fast.line_rate = 100 << 20
    assert held_until(fast, LineQueue(ours), SECOND) is None
    assert held_until(SendPolicy(FRESH), LineQueue(None), SECOND) is None


def test_a_system_that_does_not_tell_its_queue_holds_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.replication.runner.control.SIOCOUTQNSD", SIOCOUTQNSD + 0x100)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        assert held_until(SendPolicy(FRESH), LineQueue(ours), SECOND) is None


def test_messages_last_a_quarter_of_a_second_on_the_line() -> None:
    policy = SendPolicy(FRESH)
    assert policy.message_bytes(USUAL) == LINE_RATE // 4
    policy.line_rate = 100
    assert policy.message_bytes(USUAL) == MESSAGE_BYTES_MIN
    policy.line_rate = 100 << 20
    assert policy.message_bytes(USUAL) == USUAL
    assert SendPolicy(PolicyRules()).message_bytes(USUAL) == USUAL


# --- What a link learns of the bytes in its socket


BUFFER_BYTES = 64 << 10


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        with socket.create_connection(server.getsockname()) as ours, server.accept()[0] as theirs:
            ours.setblocking(False)
            yield ours, theirs


def send(ours: socket.socket, size: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while size > 0:
            size -= ours.send(bytes(min(size, BUFFER_BYTES)))


def fill(ours: socket.socket, drain: Drain) -> None:
    """Send until the peer's machine takes no more."""
    send(ours, 32 * BUFFER_BYTES)
    assert drain.continues(again=False)
    wait_until(lambda: not drain.continues(again=True), 10, "the peer's buffer to be full")


def test_bytes_that_join_a_queue_are_none_that_leave(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, _ = pair
    drain = Drain(ours)
    fill(ours, drain)
    for _ in range(5):
        send(ours, 1000)
        assert not drain.continues(again=True), "the peer has stopped, whatever joins the queue"


def test_bytes_that_leave_slowly_go_on(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    drain = Drain(ours)
    fill(ours, drain)
    assert drain.continues(again=False)
    theirs.settimeout(PATIENCE_S)
    for _ in range(4):
        assert theirs.recv(BUFFER_BYTES)
    wait_until(partial(drain.continues, again=True), 10, "the peer's machine to take some of what waits")


def test_new_bytes_say_nothing_of_those_before(pair: tuple[socket.socket, socket.socket]) -> None:
    """A peer's machine that takes everything at once, and a peer that reads nothing: the last bytes always wait."""
    ours, _ = pair
    drain = Drain(ours)
    continues = []
    for _ in range(20):
        send(ours, 100)
        continues.append(drain.continues(again=True))
    assert not any(continues)


def test_what_has_all_left_does_not_go_on(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    drain = Drain(ours)
    send(ours, 100)
    assert theirs.recv(100)
    wait_until(lambda: not drain.continues(again=False), 10, "the acknowledgement")
    assert not Drain(None).continues(again=False)


def test_a_message_that_is_on_its_way_is_seen_byte_by_byte(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    drain = Drain(ours)
    send(theirs, 1)
    wait_until(lambda: received_bytes(ours) == 1, 10, "the byte")
    assert not drain.receives(again=False)
    assert not drain.receives(again=True)
    send(theirs, 1)
    wait_until(lambda: drain.receives(again=True), 10, "the second byte")
    assert not drain.receives(again=True)
    assert not Drain(None).receives(again=True)
