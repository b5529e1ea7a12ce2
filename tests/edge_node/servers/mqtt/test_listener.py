"""The end of a listener: connections are closed, and no client is blamed for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.edge_node.servers.mqtt.test_listeners import ListenerClient, running, stored
from tests.support.waiting import PATIENCE_S
from weft.config.limits import EdgeLimits
from weft.config.units import Address
from weft.edge_node.servers.clients.context import ClientSettings


async def test_the_end_of_the_node_ends_every_connection_and_publishes_no_will(tmp_path: Path) -> None:
    listeners = 'listeners: {mqtt: {bind: "127.0.0.1:0"}, ws: {bind: "127.0.0.1:0"}}'
    clients = []
    async with running(tmp_path, listeners) as node:
        for name in ("mqtt", "ws"):
            client = ListenerClient(node, name, client_id=name)
            client.paho.will_set("t/will", "gone")
            assert await client.enter() == "Success"
            clients.append(client)
        address = node.addresses["mqtt"]
    for client in clients:
        assert await asyncio.to_thread(client.lost.wait, PATIENCE_S)
        await client.close()
    assert stored(node) == 0
    assert isinstance(address, Address)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", address.port)


@pytest.mark.parametrize("message_bytes", [128, (17 << 20) + 1])
def test_packet_limits_that_cannot_work_are_refused(message_bytes: int) -> None:
    with pytest.raises(ValueError, match=r"limits\.message must be"):
        ClientSettings(patterns={}, limits=EdgeLimits(message_bytes=message_bytes))
