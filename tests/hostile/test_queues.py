"""One user by AMQP has the node work hard, holds what it never ends, or wants the queues of others."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.edge_node.servers.amqp.harness import RawClient
from tests.hostile.edge import RULES, GuardedEdge
from tests.hostile.flood import flood
from tests.hostile.good_client import GoodClient, at_most
from tests.hostile.queue_attacks import ATTACKS
from tests.support import forked
from tests.support.slices import SLICE
from tests.support.waiting import PATIENCE_S, wait_until
from weft.protocols.amqp.content import write_content
from weft.protocols.amqp.frames import BODY, HEADER, HEARTBEAT_FRAME, PROTOCOL_HEADER, ReplyCode, frame
from weft.protocols.amqp.methods import Method, commands, write_method
from weft.protocols.amqp.typed_values import Symbol
from weft.protocols.amqp1 import SASL, described, encode, fields, ubyte, uint

pytestmark = pytest.mark.processes


# --- An AMQP client has queues do much; the acknowledgements of others wait no longer than for its turns


ATTACK_S = 1.5
SETTLE_S = 0.8
LONGEST_S = 0.4
"""Wait that is allowed on a slow, busy machine."""


def attack(edge: GuardedEdge, good: GoodClient, name: str) -> None:
    """Make an attack, and look at the waits of the well-behaved client meanwhile."""
    with forked.Popen(
        [sys.executable, "-m", "tests.hostile.queue_attacks", name, str(edge.amqp_port), str(ATTACK_S)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        good.take()
        process.communicate("go\n")
    assert process.returncode == 0
    time.sleep(SETTLE_S)  # what the attack left to do
    during, last = good.take(), good.take()  # a wait that is not over counts, too
    at_most(LONGEST_S, max(during.longest, last.longest), during, last)


@pytest.mark.search
@pytest.mark.parametrize("name", SLICE.some(list(ATTACKS), ci=4))
def test_others_do_not_wait_for_what_one_client_has_queues_do(edge_with_amqp: GuardedEdge, name: str) -> None:
    with GoodClient(edge_with_amqp, "device") as good:
        attack(edge_with_amqp, good, name)


# --- Another user's queues are neither destroyed, blocked, squatted nor seen. The node reads its rules from disk


Basic, Exchange, Queue = commands.Basic, commands.Exchange, commands.Queue


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedEdge]:
    """One node for all attacks."""
    node = GuardedEdge(tmp_path_factory.mktemp("attacked"), amqp=True)
    node.start()
    try:
        yield node
    finally:
        node.stop()


async def connect(edge: GuardedEdge, user: str) -> RawClient:
    notified = {"consumer_cancel_notify": True}
    return await RawClient.connect(edge.amqp_port, user=user.encode(), password=user.encode(), capabilities=notified)


async def refused(client: RawClient, method: Method) -> None:
    client.send(method, channel=1)
    error: Any = await client.channel_error()
    assert error.reply_code == ReplyCode.ACCESS_REFUSED


async def looked_at(client: RawClient, queue: str) -> int:
    return int((await client.ask(Queue.Declare(queue=queue, passive=True), Queue.DeclareOk)).message_count)


def publish(key: str, body: bytes) -> bytes:
    return write_method(Basic.Publish(exchange="", routing_key=key), 1) + write_content(1, b"\0\0", body, 1 << 17)


async def test_the_attacker_gets_nowhere(edge: GuardedEdge) -> None:
    alice, mallory = await connect(edge, "alice"), await connect(edge, "mallory")
    await alice.ask(Queue.Declare(queue="secret.auto", auto_delete=True), Queue.DeclareOk)
    await alice.ask(Exchange.Declare(exchange="secret.fan", exchange_type="fanout"), Exchange.DeclareOk)
    await mallory.ask(Queue.Declare(queue="public.q"), Queue.DeclareOk)
    alice.send(publish("secret.auto", b"x") * 5)
    for method in (
        Basic.Consume(queue="secret.auto"),
        Basic.Consume(queue="secret.auto", exclusive=True),
        Basic.Get(queue="secret.auto"),
        Queue.Declare(queue="secret.auto", passive=True),
        Queue.Declare(queue="secret.auto", auto_delete=True),
        Queue.Declare(queue="secret.next", durable=True),
        Queue.Purge(queue="secret.auto"),
        Queue.Delete(queue="secret.auto"),
        Queue.Bind(queue="public.q", exchange="secret.fan"),
        Exchange.Declare(exchange="secret.new", exchange_type="direct"),
    ):
        await refused(mallory, method)
    await mallory.close()
    assert await looked_at(alice, "secret.auto") == 5
    await alice.close()


async def test_rules_that_are_read_again_hold_for_consumers_that_are_there(edge: GuardedEdge) -> None:
    (edge.folder / "acl").write_text(f"{RULES}queue read secret.#\n")
    edge.restart()
    alice, mallory = await connect(edge, "alice"), await connect(edge, "mallory")
    await alice.ask(Queue.Declare(queue="secret.jobs", auto_delete=True), Queue.DeclareOk)
    await mallory.ask(Basic.Consume(queue="secret.jobs", consumer_tag="tag", exclusive=True), Basic.ConsumeOk)
    (edge.folder / "acl").write_text(RULES)
    os.kill(edge.pid, signal.SIGHUP)
    assert (await mallory.expect(Basic.Cancel)).consumer_tag == "tag"
    await alice.ask(Basic.Consume(queue="secret.jobs"), Basic.ConsumeOk)
    await alice.close()
    await mallory.close()


# --- One user by AMQP has the node work hard, holds what it never ends, or reads nothing; others are served


UNDISTURBED_S = 0.7
FACTOR = 10
"""The well-behaved client's p99 may be so many times the undisturbed one."""
LEAST_S = 0.04
"""Undisturbed p99 below which the comparison would measure the machine."""
MIB = 1 << 20
LOGIN = commands.Connection.StartOk({}, "PLAIN", "\0mallory\0mallory")
BEGINNING = (
    PROTOCOL_HEADER
    + write_method(LOGIN, 0)
    + write_method(commands.Connection.TuneOk(2047, 128 << 10, 0), 0)
    + write_method(commands.Connection.Open("/"), 0)
)
ON_CHANNEL = BEGINNING + write_method(commands.Channel.Open(), 1)
PUBLISH = write_method(commands.Basic.Publish(0, "amq.topic", "public.x"), 1)


def header(channel: int, size: int) -> bytes:
    return frame(HEADER, channel, b"\0\x3c\0\0" + size.to_bytes(8, "big") + b"\0\0")


# --- floods: what is sent once, and what is repeated


def heartbeats() -> tuple[bytes, bytes]:
    return BEGINNING, HEARTBEAT_FRAME * 50_000


def channels() -> tuple[bytes, bytes]:
    pairs = (commands.Channel.Open(), commands.Channel.Close(200, "", 0, 0))
    return BEGINNING, b"".join(write_method(each, number) for number in range(1, 2_000) for each in pairs)


def flows() -> tuple[bytes, bytes]:
    return ON_CHANNEL, write_method(commands.Channel.Flow(True), 1) * 20_000


def empty_publishes() -> tuple[bytes, bytes]:
    return ON_CHANNEL, (PUBLISH + header(1, 0)) * 20_000


def tiny_bodies() -> tuple[bytes, bytes]:
    return ON_CHANNEL, PUBLISH + header(1, 20_000) + frame(BODY, 1, b"x") * 20_000


def new_topics() -> tuple[bytes, bytes]:
    keys = (commands.Basic.Publish(0, "amq.topic", f"public.x.{number}") for number in range(10_000))
    return ON_CHANNEL, b"".join(write_method(each, 1) + header(1, 1) + frame(BODY, 1, b"x") for each in keys)


def strangers() -> tuple[bytes, bytes]:
    """Passwords that are wrong: a connection ends after one."""
    wrong = commands.Connection.StartOk({}, "PLAIN", "\0alice\0wrong")
    return b"", PROTOCOL_HEADER + write_method(wrong, 0)


def _frame1(body: bytes, channel: int = 0, kind: int = 0) -> bytes:
    return (len(body) + 8).to_bytes(4, "big") + bytes((2, kind)) + channel.to_bytes(2, "big") + body


def _opened1() -> bytes:
    login = described(0x41, fields([encode(Symbol("PLAIN")), encode(b"\0mallory\0mallory")]))
    opened = described(0x10, fields([encode("mallory"), encode("host")]))
    return SASL + _frame1(login, kind=1) + b"AMQP\0\1\0\0" + _frame1(opened)


def _begin1() -> bytes:
    return described(0x11, fields([encode(None), uint(0), uint(1_000_000), uint(1_000_000)]))


def empty_frames() -> tuple[bytes, bytes]:
    return _opened1(), _frame1(b"") * 50_000


def sessions() -> tuple[bytes, bytes]:
    return _opened1(), (_frame1(_begin1(), 1) + _frame1(described(0x17, fields([])), 1)) * 5_000


def links() -> tuple[bytes, bytes]:
    ends = [described(0x28, fields([encode("x")])), described(0x29, fields([encode("public/x")]))]
    attach = described(
        0x12,
        fields([encode("l"), uint(0), encode(False), ubyte(2), ubyte(0), *ends, encode(None), encode(None), uint(0)]),
    )
    detach = described(0x16, fields([uint(0), encode(True)]))
    return _opened1() + _frame1(_begin1()), (_frame1(attach) + _frame1(detach)) * 5_000


FLOODS_1 = (empty_frames, sessions, links)
needs_proton = pytest.mark.skipif(
    importlib.util.find_spec("proton") is None, reason="python-qpid-proton is not installed"
)
FLOODS = (heartbeats, channels, flows, empty_publishes, tiny_bodies, new_topics, strangers)


@pytest.fixture(scope="module")
def flooded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedEdge]:
    """One node for all floods."""
    node = GuardedEdge(tmp_path_factory.mktemp("flooded"), amqp=True)
    node.start()
    try:
        yield node
    finally:
        node.stop()


@pytest.mark.slow
@pytest.mark.search
@pytest.mark.parametrize(
    "made",
    SLICE.some([*FLOODS, *(pytest.param(made, marks=needs_proton) for made in FLOODS_1)], ci=4),
    ids=lambda made: made.__name__,
)
def test_others_are_served_between_the_turns_of_one_user(
    flooded: GuardedEdge, tmp_path: Path, made: Callable[[], tuple[bytes, bytes]]
) -> None:
    edge = flooded
    once, again = made()
    (tmp_path / "frames").write_bytes(once + again)
    with GoodClient(edge, "device") as good:
        time.sleep(UNDISTURBED_S)  # what is measured
        undisturbed, before = good.take(), edge.memory_bytes()
        flood(edge.amqp_port, tmp_path / "frames", ATTACK_S, 8, len(once))
        attacked = good.take()
        at_most(FACTOR * max(undisturbed.p99, LEAST_S), attacked.p99, undisturbed, attacked)
        assert edge.memory_bytes() - before < 150 * MIB


# --- what is never ended, and never read


def connected(edge: GuardedEdge, count: int, data: bytes) -> list[socket.socket]:
    found = []
    for _ in range(count):
        each = socket.create_connection(("127.0.0.1", edge.amqp_port), timeout=PATIENCE_S)
        found.append(each)
        with contextlib.suppress(OSError):  # the node has closed it
            each.sendall(data)
    return found


def is_open(each: socket.socket) -> bool:
    each.setblocking(False)
    try:
        while data := each.recv(1 << 16):
            del data
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


@pytest.mark.slow
def test_a_user_has_a_share_of_the_memory_for_begun_messages(flooded: GuardedEdge) -> None:
    edge = flooded
    with GoodClient(edge, "device") as good:
        before = edge.memory_bytes()
        begun = ON_CHANNEL + PUBLISH + header(1, 1_000_000) + frame(BODY, 1, bytes(120_000)) * 7
        held = connected(edge, 150, begun)
        try:
            wait_until(lambda: sum(map(is_open, held)) < 50, 30, "the end of those beyond the share")
            assert edge.memory_bytes() - before < 100 * MIB
        finally:
            for each in held:
                each.close()
        good.take()
    assert 'bound="limits.user_share of limits.unfinished",owner="user mallory"' in edge.metrics()


STEPS = {
    "nothing": b"",
    "half a protocol header": b"AMQP",
    "a protocol header": PROTOCOL_HEADER,
    "half a start-ok": PROTOCOL_HEADER + write_method(LOGIN, 0)[:-9],
    "no tune-ok": PROTOCOL_HEADER + write_method(LOGIN, 0),
    "half a SASL frame": SASL + b"\0\0\1\0\2\1\0\0",
}


@pytest.mark.slow
def test_who_stops_at_a_step_of_the_handshake_keeps_no_one_out(tmp_path: Path) -> None:
    edge = GuardedEdge(tmp_path, "connect_timeout: 3s, half_open: 60, connections: 100", amqp=True)
    edge.start()
    held = [each for data in STEPS.values() for each in connected(edge, 30, data)]
    try:
        # A node that has not come to all of them yet may take who connects meanwhile for the oldest.
        wait_until(lambda: f"weft_edge_connections_accepted_total {len(held)}.0" in edge.metrics(), 20, "all of them")
        with GoodClient(edge, "device") as good:
            wait_until(lambda: not any(map(is_open, held)), 40, "the end of all that stopped")
            good.take()
    finally:
        for each in held:
            each.close()
        edge.stop()
