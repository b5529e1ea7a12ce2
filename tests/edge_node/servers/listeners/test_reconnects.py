"""A node with exactly as many clients as it may have: those that come back get in, others are refused with a reason."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.edge_node.servers.mqtt.harness import RawClient
from tests.edge_node.servers.mqtt.test_listeners import running
from tests.support.waiting import until
from weft.config.units import Address
from weft.edge_node.node import EdgeNode
from weft.network import admission
from weft.protocols.mqtt.packets import ConnAck, Connect, Disconnect, PingReq, PingResp, ReasonCode

CLIENTS, HALF_OPEN = 10, 5
TEXT = f"""
listeners: {{mqtt: {{bind: "127.0.0.1:0"}}}}
limits: {{connections: {CLIENTS}, half_open: {HALF_OPEN * 4}}}
"""
ATTEMPTS = 10


@asynccontextmanager
async def full_node(directory: Path, text: str = TEXT) -> AsyncIterator[tuple[EdgeNode, int, list[RawClient]]]:
    async with running(directory, text) as node:
        address = node.addresses["mqtt"]
        assert isinstance(address, Address)
        clients = [await RawClient.connect5(address.port, f"c{n}") for n in range(CLIENTS)]
        yield node, address.port, clients
        for client in clients:
            client.writer.transport.abort()


async def is_there(client: RawClient) -> bool:
    client.send(PingReq())
    return bool(await client.receive() == PingResp())


@pytest.mark.parametrize("leave", ["close", "reset"])
async def test_all_come_back_at_once(tmp_path: Path, leave: str) -> None:
    """Under new names, so that none takes over its old connection."""
    async with full_node(tmp_path) as (node, port, clients):
        for attempt in range(ATTEMPTS):
            for client in clients:
                client.writer.transport.abort() if leave == "reset" else client.writer.close()
            clients[:] = await asyncio.gather(
                *(RawClient.connect5(port, f"again-{attempt}-{n}") for n in range(CLIENTS))
            )
            assert all([await is_there(client) for client in clients])
        assert node.counters.connections_refused == 0
        assert node.counters.connections == CLIENTS


async def test_all_take_over_their_old_connections(tmp_path: Path) -> None:
    """Devices whose network failed: their old connections look alive."""
    async with full_node(tmp_path) as (node, port, clients):
        for _ in range(ATTEMPTS):
            old = clients[:]
            clients[:] = await asyncio.gather(*(RawClient.connect5(port, f"c{n}") for n in range(CLIENTS)))
            for client in old:
                said = await client.receive()
                assert (type(said), said.code) == (Disconnect, ReasonCode.SESSION_TAKEN_OVER)
            assert all([await is_there(client) for client in clients])
        assert node.counters.takeovers == ATTEMPTS * CLIENTS
        assert node.counters.connections == CLIENTS


async def test_one_more_waits_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "WAIT_S", 10.0)
    async with full_node(tmp_path) as (node, port, clients):
        late = await RawClient.open(port)
        late.version = 5
        late.send(Connect("late", version=5))
        await until(lambda: node.listener_counters.connections_half_open == 1)
        assert await late.silent()
        clients.pop().writer.close()
        assert (await late.receive()).code == ReasonCode.SUCCESS
        clients.append(late)
        assert node.counters.connections == CLIENTS


@pytest.mark.parametrize(("version", "code"), [(4, 3), (5, ReasonCode.QUOTA_EXCEEDED)])
async def test_one_more_is_told_why_it_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, version: int, code: int
) -> None:
    """v3 [MQTT-3.2.2-5], v5 [MQTT-3.2.2-7]: with one line in the log for many"""

    async def refusal(port: int) -> ConnAck:
        late = await RawClient.open(port)
        late.version = version
        late.send(Connect("late", version=version))
        answer = await late.receive()
        assert isinstance(answer, ConnAck)
        assert await late.receive() is None
        return answer

    async with full_node(tmp_path) as (node, port, clients):
        answers = await asyncio.gather(*(refusal(port) for _ in range(HALF_OPEN)))
        assert [answer.code for answer in answers] == [code] * HALF_OPEN
        assert node.counters.connections_refused == HALF_OPEN
        assert caplog.text.count("raise limits.connections for more") == 1
        assert all([await is_there(client) for client in clients])
        clients.pop().writer.close()
        clients.append(await RawClient.connect5(port, "late"))


async def test_a_flood_of_silent_connections_takes_no_place(tmp_path: Path) -> None:
    """Connections that never say who they are have a bound of their own, and are given up for newer ones."""
    text = TEXT.replace(f"half_open: {HALF_OPEN * 4}", f"half_open: {HALF_OPEN}")
    async with full_node(tmp_path, text) as (node, port, clients):
        flood = []
        for n in range(ATTEMPTS):
            flood += [await asyncio.open_connection("127.0.0.1", port) for _ in range(CLIENTS)]
            assert node.counters.connections <= CLIENTS + HALF_OPEN
            clients.pop(0).writer.close()
            clients.append(await RawClient.connect5(port, f"again-{n}"))
        assert node.counters.connections_refused == 0
        assert node.listener_counters.half_open_evicted >= ATTEMPTS * (CLIENTS - HALF_OPEN)
        assert all([await is_there(client) for client in clients])
        for _, writer in flood:
            writer.transport.abort()
