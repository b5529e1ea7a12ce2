"""Wrong passwords and handshakes that never end take nothing from devices."""

from __future__ import annotations

import asyncio
import base64
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from examples.demo.fabric import free_port
from tests.cloud_hub.http.test_application import EDGE, records
from tests.cloud_hub.live import EdgeLog, running_link
from tests.edge_node.servers.mqtt.harness import RawClient
from tests.hostile.edge import GuardedEdge
from tests.hostile.good_client import GoodClient, at_most
from tests.support.certificates import Authority, Pem
from tests.support.processes import Node, memory_bytes
from tests.support.slices import SLICE
from tests.support.speed import Stopwatch
from tests.support.waiting import PATIENCE_S
from weft.commands.running import get_status
from weft.network.tls import ClientTlsFiles
from weft.protocols.amqp.frames import PROTOCOL_HEADER
from weft.protocols.amqp.methods import commands, write_method
from weft.protocols.amqp.typed_values import Symbol
from weft.protocols.amqp1 import SASL, described, encode, fields
from weft.protocols.mqtt.packets import ConnAck, Connect, Disconnect, ReasonCode

pytestmark = pytest.mark.processes


# --- A flood of wrong passwords by any protocol locks out no device, and holds up no acknowledgement


ATTACKERS = {"mqtt": 400}
"""Connections at a time by protocol; 200 of the others. A password takes some 15 ms of a processor to check."""
FLOOD_S = 2.0
TELL = {"capabilities": {"authentication_failure_close": True}}

Attempt = Callable[[GuardedEdge, str, str, list[bytes]], Awaitable[None]]


async def attempt(edge: GuardedEdge, user: str, password: str) -> int:
    """Connect, and return the code of CONNACK."""
    client = await RawClient.open(edge.mqtt_port)
    try:
        client.send(Connect("", username=user, password=password.encode()))
        answer = await client.receive()
        if isinstance(answer, ConnAck) and answer.code == ReasonCode.SUCCESS:
            client.send(Disconnect())
        return int(answer.code) if isinstance(answer, ConnAck) else -1
    finally:
        await client.close()


async def seconds_to_connect(edge: GuardedEdge, user: str) -> float:
    stopwatch = Stopwatch(edge.pid)
    assert await attempt(edge, user, user) == ReasonCode.SUCCESS
    return stopwatch.seconds()


async def mqtt(edge: GuardedEdge, user: str, password: str, answers: list[bytes]) -> None:
    answers.append(b"CONNACK %d" % await attempt(edge, user, password))


async def answer_to(port: int, data: bytes, ends: bytes) -> bytes:
    """Return what the node sends until something has come, or it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    found = b""
    try:
        writer.write(data)
        async with asyncio.timeout(PATIENCE_S):
            while ends not in found and (more := await reader.read(1 << 16)):
                found += more
        return found
    finally:
        writer.transport.abort()


async def amqp(edge: GuardedEdge, user: str, password: str, answers: list[bytes]) -> None:
    login = commands.Connection.StartOk(TELL, "PLAIN", f"\0{user}\0{password}")
    closes = b"\0\x0a\0\x32"  # connection.close
    answer = await answer_to(edge.amqp_port, PROTOCOL_HEADER + write_method(login, 0), closes)
    answers.extend(each for each in (b"ACCESS_REFUSED", b"RESOURCE_ERROR") if each in answer)


async def amqp1(edge: GuardedEdge, user: str, password: str, answers: list[bytes]) -> None:
    response = f"\0{user}\0{password}".encode()
    body = described(0x41, fields([encode(Symbol("PLAIN")), encode(response)]))
    login, ends = (len(body) + 8).to_bytes(4, "big") + b"\x02\x01\0\0" + body, b"\0\x53\x44\xc0\x03\x01\x50"
    outcome = (await answer_to(edge.amqp_port, SASL + login, ends)).partition(ends)[2]
    answers.extend(name for code, name in ((1, b"not authenticated"), (4, b"later")) if outcome == bytes((code,)))


async def http(edge: GuardedEdge, user: str, password: str, answers: list[bytes]) -> None:
    """As many passwords on one connection as the node takes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", edge.posts_port)
    try:
        async with asyncio.timeout(PATIENCE_S):
            for number in range(10):
                login = base64.b64encode(f"{user}:{password} {number}".encode())
                writer.write(b"GET /v1/x HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Basic %b\r\n\r\n" % login)
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r", 1)[0])
                await reader.readexactly(length)
                answers.append(head[9:12])
    except asyncio.IncompleteReadError:
        pass
    finally:
        writer.transport.abort()


REFUSALS = {
    b"CONNACK 3",
    b"CONNACK 4",
    b"CONNACK 5",
    b"CONNACK -1",
    b"ACCESS_REFUSED",
    b"RESOURCE_ERROR",
    b"not authenticated",
    b"later",
    b"401",
    b"503",
}


class Bounds(NamedTuple):
    """Seconds that others may have to wait."""

    new: float
    """For one that was never seen, from the same address."""
    remembered: float
    acknowledged: float


OF_MQTT, OF_OTHERS = Bounds(2, 0.5, 1), Bounds(8, 3, 5)


@asynccontextmanager
async def flood(edge: GuardedEdge, way: Attempt) -> AsyncIterator[list[bytes]]:
    """Wrong passwords of a user that exists and of some that do not, until the block ends. Yields the answers."""
    answers: list[bytes] = []

    async def attack(number: int) -> None:
        attempts = 0
        while True:
            attempts += 1
            user = ("alice", f"made-up-{number % 10}")[number % 2]
            with suppress(OSError, TimeoutError):
                await way(edge, user, f"wrong {number} {attempts}", answers)
            await asyncio.sleep(0.1)

    attackers = [asyncio.create_task(attack(number)) for number in range(ATTACKERS.get(way.__name__, 200))]
    await asyncio.sleep(1)
    try:
        yield answers
    finally:
        for each in attackers:
            each.cancel()
        await asyncio.gather(*attackers, return_exceptions=True)


@pytest.mark.search
@pytest.mark.parametrize("way", [mqtt, *SLICE.some([amqp, amqp1, http], ci=1)], ids=lambda each: each.__name__)
async def test_a_flood_of_wrong_passwords_locks_no_device_out(edge_with_amqp: GuardedEdge, way: Attempt) -> None:
    edge, bounds = edge_with_amqp, OF_MQTT if way is mqtt else OF_OTHERS
    with GoodClient(edge, "alice") as good:
        async with flood(edge, way) as answers:
            at_most(bounds.new, await seconds_to_connect(edge, "device"), "never seen before")
            at_most(bounds.remembered, await seconds_to_connect(edge, "device"), "remembered")
            at_most(bounds.remembered, await seconds_to_connect(edge, "alice"), "although it is her that is attacked")
            await asyncio.sleep(FLOOD_S)  # what is measured
        at_most(bounds.acknowledged, good.take().p99)
    assert len(answers) >= (20 if way is mqtt else 5)  # after ten wrong passwords, those of a user have to wait
    assert set(answers) <= REFUSALS


@pytest.mark.slow
async def test_what_was_found_right_is_remembered_over_a_restart(edge: GuardedEdge) -> None:
    for user in ("device", "alice"):
        await seconds_to_connect(edge, user)
    await asyncio.sleep(6)  # it is on disk by then
    edge.restart()
    async with flood(edge, mqtt):
        at_most(0.5, await seconds_to_connect(edge, "device"))
        at_most(0.5, await seconds_to_connect(edge, "alice"), "although it is her that is attacked")
        at_most(2, await seconds_to_connect(edge, "mallory"), "never seen before")


# --- Handshakes that never end, that are none, or that come in floods take nothing from the links of a hub with TLS


CONFIG = """\
listen: 127.0.0.1:{port}
store: store
shards: 1
processes: 1
commit_interval: 50ms
tables: null
tls: {{certificate: hub.crt, key: hub.key, half_open: 64, connect_timeout: 2s}}
"""
MOST_S = 0.6
"""Longest wait for an acknowledgement during an attack: a few commits, on a machine with other work."""
ATTACK_S = 4
HALF = "\\x16\\x03\\x01\\x02\\x00\\x01\\x00"
ATTACKS = {
    "half a greeting, a thousand times": f"keep.append(s); s.sendall(b'{HALF}')",
    "no greeting at all": "keep.append(s)",
    "HTTP without TLS": "s.sendall(b'GET /v1/link HTTP/1.1\\r\\n\\r\\n'); s.close()",
    "noise": "s.sendall(bytes(range(256)) * 64); s.close()",
    "whole handshakes and nothing behind them": "context.wrap_socket(s).close()",
}
ATTACKER = """\
import socket, ssl, sys, time
context = ssl.create_default_context(); context.check_hostname = False; context.verify_mode = ssl.CERT_NONE
keep, end = [], time.monotonic() + {seconds}
while time.monotonic() < end:
    try:
        s = socket.create_connection(("127.0.0.1", {port}), 5)
        {act}
    except OSError:
        pass
    del keep[:-1000]
    time.sleep(0.001)
"""


async def longest_wait(log: EdgeLog, seq: int, seconds: float, hub: int) -> tuple[int, float]:
    """Append a record every 20 ms; the next number, and the longest wait for an acknowledgement."""
    loop, longest = asyncio.get_running_loop(), 0.0
    end, stopwatch = loop.time() + seconds, Stopwatch(hub)
    while loop.time() < end:
        stopwatch.start()
        log.append(*records(seq, [b"a"]))
        seq += 1
        await log.until_released(seq)
        longest = max(longest, stopwatch.seconds())
        await asyncio.sleep(0.02)
    return seq, longest


@pytest.mark.slow
@pytest.mark.parametrize("act", ATTACKS.values(), ids=[name.replace(" ", "-") for name in ATTACKS])
async def test_a_link_hardly_notices(act: str, tmp_path: Path) -> None:
    port, authority = free_port(), Authority(tmp_path)
    own = authority.sign("hub")
    config = tmp_path / "hub.yaml"
    config.write_text(CONFIG.format(port=port))
    hub = Node("hub", config, popen=subprocess.Popen)  # its memory is measured
    try:
        await attacked(hub, port, authority, own, act)
    finally:
        hub.stop()


async def attacked(hub: Node, port: int, authority: Authority, own: Pem, act: str) -> None:
    trust, log, node = ClientTlsFiles(ca_file=authority.path), EdgeLog(), hub.process.pid
    somewhere: Any = None
    async with running_link(somewhere, log, EDGE, url=f"https://127.0.0.1:{port}", tls=trust) as link:
        seq, usual = await longest_wait(log, 0, 1.0, node)
        before = memory_bytes(node)
        attacker = subprocess.Popen([sys.executable, "-c", ATTACKER.format(seconds=ATTACK_S, port=port, act=act)])
        _, longest = await longest_wait(log, seq, ATTACK_S, node)
        attacker.wait()
        assert memory_bytes(node) - before < 64 << 20
        assert link.connections == 1
        facts = await asyncio.to_thread(get_status, f"127.0.0.1:{port}", "/v1/status", None, own.certificate)
        assert len(facts["links"]) == 1
        print(f"longest wait {usual:.3f} s before, {longest:.3f} s during")
        at_most(MOST_S, longest)
