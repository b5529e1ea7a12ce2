"""A flood of wrong passwords by any protocol locks out no device, and holds up no acknowledgement."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

import pytest

from tests.edge_node.servers.mqtt.harness import RawClient
from tests.hostile.edge import GuardedEdge
from tests.hostile.good_client import GoodClient
from tests.hostile.waits import at_most
from tests.support.slices import SLICE
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import PATIENCE_S
from weft.protocols.amqp.frames import PROTOCOL_HEADER
from weft.protocols.amqp.methods import commands, write_method
from weft.protocols.amqp.typed_values import Symbol
from weft.protocols.amqp1 import SASL, described, encode, fields
from weft.protocols.mqtt.packets import ConnAck, Connect, Disconnect, ReasonCode

pytestmark = pytest.mark.processes
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
