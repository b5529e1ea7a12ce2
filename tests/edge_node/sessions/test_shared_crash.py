"""Shared subscriptions across the end of a node: at QoS 2 a message is one member's, and nothing is lost at QoS 1."""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.edge_node.servers.mqtt.harness import BrokerNode, RawClient, running
from tests.support.slices import SLICE
from tests.support.waiting import until
from weft.config.limits import EdgeLimits
from weft.protocols.mqtt.packets import PubAck, PubComp, Publish, PubRec, PubRel

SHARED = "$share/g/plant/+"
SELDOM_S = 1e9
"""Between two notes of positions: only what deliveries themselves note is there after a crash."""


@asynccontextmanager
async def node_of(directory: Path, **options: Any) -> AsyncIterator[BrokerNode]:
    limits = EdgeLimits(inflight=options.pop("inflight_max", 20))
    async with running(directory, limits=limits, positions_interval_s=SELDOM_S, sys_interval_s=None, **options) as node:
        yield node


async def member(node: BrokerNode, client_id: str, qos: int | None = None, *, stays: bool = True) -> RawClient:
    client = await RawClient.connect(node.port, client_id, clean_start=not stays)
    if qos is not None:
        await client.subscribe((SHARED, qos))
    return client


async def leave(node: BrokerNode, client: RawClient) -> None:
    left = node.counters.connections - 1
    await client.close()
    await until(lambda: node.counters.connections == left)


async def publish(node: BrokerNode, *payloads: bytes) -> None:
    """At QoS 2, stored when this returns."""
    device = await RawClient.connect(node.port, "device")
    for packet_id, payload in enumerate(payloads, 1):
        device.send(Publish(b"plant/a", payload, 2, packet_id))
        assert await device.receive() == PubRec(packet_id)
    await leave(node, device)


async def receive(client: RawClient, *payloads: bytes) -> list[Publish]:
    """Messages, in order; not answered."""
    packets = [await client.receive() for _ in payloads]
    assert [packet.payload for packet in packets] == list(payloads)
    return packets


async def complete(client: RawClient, *payloads: bytes) -> None:
    """Messages at QoS 2, in order."""
    packets = await receive(client, *payloads)
    client.send(*(PubRec(packet.packet_id) for packet in packets))
    for packet in packets:
        assert await client.receive() == PubRel(packet.packet_id)
        client.send(PubComp(packet.packet_id))


async def take(client: RawClient, last: bytes | None = None) -> list[bytes]:
    """What a client gets until nothing more comes, and not before ``last`` has come; acknowledged."""
    taken: list[bytes] = []
    while (last is not None and last not in taken) or not await client.silent():
        packet = await client.receive()
        if isinstance(packet, PubRel):
            client.send(PubComp(packet.packet_id))
        else:
            taken.append(packet.payload)
            client.send(PubRec(packet.packet_id) if packet.qos == 2 else PubAck(packet.packet_id))
    return taken


@pytest.mark.parametrize("kill", [False, True], ids=["stop", "kill"])
async def test_what_a_member_has_at_qos_2_is_nobody_else_s_after_the_node(tmp_path: Path, kill: bool) -> None:
    """[MQTT-4.8.2-5]: neither what it has completed nor what it has in flight."""
    async with node_of(tmp_path, kill=kill) as node:
        done, pending = await member(node, "done", 2), await member(node, "pending", 2)
        await publish(node, b"1", b"2", b"3", b"4")
        await complete(done, b"1", b"3")
        await receive(pending, b"2", b"4")
    async with node_of(tmp_path) as node:
        done = await member(node, "done")
        assert await take(done) == []
        assert await take(await member(node, "pending"), b"4") == [b"2", b"4"]
        await publish(node, b"5")
        assert await take(done, b"5") == [b"5"]


async def test_what_a_member_completed_is_nobody_else_s_though_its_session_is_gone(tmp_path: Path) -> None:
    """[MQTT-4.8.2-5]: a member of no lasting session has no journal of its own."""
    async with node_of(tmp_path, kill=True) as node:
        passing = await member(node, "passing", 2, stays=False)
        stays = await member(node, "stays", 2)
        await publish(node, b"1", b"2")
        await complete(passing, b"1")
        await complete(stays, b"2")
    async with node_of(tmp_path) as node:
        assert await take(await member(node, "stays")) == []


@pytest.mark.parametrize(
    ("end", "leaves"), [("", True), ("stop", True), ("stop", False), ("kill", True), ("kill", False)]
)
async def test_what_nobody_acknowledged_comes_again_alone(tmp_path: Path, end: str, leaves: bool) -> None:
    """At QoS 1 it is owed to the group, and what others completed at QoS 2 meanwhile is not given twice for it."""
    async with node_of(tmp_path, kill=end == "kill") as node:
        stays, passing = await member(node, "stays", 2), await member(node, "passing", 1, stays=False)
        await publish(node, b"1", b"2", b"3", b"4", b"5")
        await complete(stays, b"1", b"3", b"5")
        first, _ = await receive(passing, b"2", b"4")
        passing.send(PubAck(first.packet_id))
        if leaves:
            await leave(node, stays)
            await leave(node, passing)
        if not end:
            assert await take(await member(node, "stays"), b"4") == [b"4"]
            return
    async with node_of(tmp_path) as node:
        taken = await take(await member(node, "stays"), b"4")
        assert set(taken) - {b"2"} == {b"4"}, "an acknowledgement may not have been noted, a delivery must have been"
        assert len(taken) == len(set(taken))


async def test_a_group_that_reads_the_log_notes_what_it_gives(tmp_path: Path) -> None:
    async with node_of(tmp_path) as node:
        await leave(node, await member(node, "m", 2))
        await publish(node, *(b"%d" % number for number in range(10)))
    async with node_of(tmp_path, inflight_max=1, kill=True) as node:
        client = await member(node, "m")
        for number in range(4):
            await complete(client, b"%d" % number)
        await receive(client, b"4")
    async with node_of(tmp_path) as node:
        assert await take(await member(node, "m"), b"9") == [b"%d" % number for number in range(4, 10)]


async def test_what_the_session_of_a_member_leaves_is_not_lost_in_a_crash(tmp_path: Path) -> None:
    async with node_of(tmp_path, kill=True) as node:
        stays = await member(node, "stays", 2)
        ends = await member(node, "ends", 1)
        await publish(node, b"1", b"2", b"3", b"4")
        await complete(stays, b"1", b"3")
        await receive(ends, b"2", b"4")
        await leave(node, stays)
        await leave(node, ends)
        await RawClient.connect(node.port, "ends", clean_start=True)
    async with node_of(tmp_path) as node:
        assert await take(await member(node, "stays"), b"4") == [b"2", b"4"]


@pytest.mark.parametrize(
    "seed", [3, *(pytest.param(seed, marks=pytest.mark.search) for seed in SLICE.seeds(ci=1, night=10))]
)
async def test_members_come_and_go_and_nodes_end(tmp_path: Path, seed: int) -> None:
    """Every message reaches a member, and at QoS 2 exactly one member, once, in whatever order things happen."""
    chance, numbers = random.Random(seed), itertools.count(1)
    had: set[bytes] = set()
    owners: dict[bytes, str] = {}
    open2: dict[tuple[str, int], bytes] = {}
    released: set[bytes] = set()

    async def take_some(name: str, client: RawClient, most: int) -> None:
        while most and not await client.silent():
            packet = await client.receive()
            most -= 1
            if isinstance(packet, PubRel):
                released.add(open2.pop((name, packet.packet_id), b""))
                client.send(PubComp(packet.packet_id))
                continue
            had.add(packet.payload)
            if packet.qos == 2:
                assert owners.setdefault(packet.payload, name) == name
                assert packet.payload not in released
                open2[name, packet.packet_id] = packet.payload
            client.send(PubRec(packet.packet_id) if packet.qos == 2 else PubAck(packet.packet_id))

    async with node_of(tmp_path) as node:
        for name in ("a", "b"):
            await leave(node, await member(node, name, 2))
    published = 0
    for _ in range(4):
        async with node_of(tmp_path, kill=chance.random() < 0.7, inflight_max=3) as node:
            clients: dict[str, RawClient] = {}
            for _ in range(14):
                name, what = chance.choice(["a", "b", "passing"]), chance.random()
                if what < 0.4 and name not in clients:
                    stays = name != "passing"
                    clients[name] = await member(node, name, None if stays else 1, stays=stays)
                elif what < 0.15:
                    await leave(node, clients.pop(name))
                elif what < 0.7 and name in clients:
                    await take_some(name, clients[name], chance.randrange(1, 5))
                else:
                    more = chance.randrange(1, 6)
                    published += more
                    await publish(node, *(b"%d" % next(numbers) for _ in range(more)))
    async with node_of(tmp_path) as node:
        both = {name: await member(node, name) for name in ("a", "b")}
        while len(had) < published:
            try:
                await until(lambda: any(client.has_data for client in both.values()))
            except TimeoutError:
                raise AssertionError({b"%d" % number for number in range(1, published + 1)} - had) from None
            for name, client in both.items():
                await take_some(name, client, -1)
        for name, client in both.items():
            await take_some(name, client, -1)
    assert len(had) == published
