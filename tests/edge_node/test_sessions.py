"""Sessions that stay: bounds, and what a restart or a crash leaves of them."""

from pathlib import Path

from edge_node.sessions import SessionLimits
from protocols.mqtt.packets import PubAck, PubComp, Publish, PubRec, PubRel
from protocols.mqtt.reason_codes import ReasonCode
from tests.edge_node.mqtt_harness import Node, RawClient, running, until


async def stay(node: Node, client_id: str, *filters: tuple[str, int]) -> RawClient:
    """A client of a session that outlives its connection."""
    client = await RawClient.connect(node.port, client_id, clean_start=False)
    if filters:
        await client.subscribe(*filters)
    return client


async def leave(node: Node, client: RawClient) -> None:
    left = node.counters.connections - 1
    await client.close()
    await until(lambda: node.counters.connections == left)


async def test_the_session_longest_away_is_forgotten_first(tmp_path: Path) -> None:
    async with running(tmp_path, limits=SessionLimits(sessions_max=2)) as node:
        for client_id in ("a", "b"):
            await leave(node, await stay(node, client_id, ("t", 0)))
        await leave(node, await stay(node, "a"))
        await leave(node, await stay(node, "c"))
        assert node.counters.sessions_evicted == 1
        assert (await stay(node, "a")).welcome.session_present
        assert not (await stay(node, "b")).welcome.session_present


async def test_a_clean_session_leaves_nothing_behind(tmp_path: Path) -> None:
    """[MQTT-3.1.2-6]"""
    async with running(tmp_path) as node:
        client = await RawClient.connect(node.port)
        await client.subscribe(("t/#", 1), ("$share/g/t", 1))
        await leave(node, client)
        assert not node.broker.subscriptions.plan(b"t").live
        assert (node.counters.sessions, node.counters.subscriptions, node.broker.sessions.groups) == (0, 0, [])


async def test_subscriptions_over_the_limit_fail_and_known_ones_change(tmp_path: Path) -> None:
    """[MQTT-3.8.4-3] [MQTT-3.9.3-2]"""
    async with running(tmp_path, limits=SessionLimits(filters_max=2)) as node:
        client = await RawClient.connect5(node.port)
        assert await client.subscribe(("a", 1), ("b", 1), ("c", 1)) == (1, 1, ReasonCode.QUOTA_EXCEEDED)
        assert await client.subscribe(("a", 0)) == (0,)
        assert node.counters.subscriptions_refused == 1


async def test_what_was_published_before_a_subscription_is_not_for_it(tmp_path: Path) -> None:
    async with running(tmp_path, limits=SessionLimits(inflight_max=1, queue_bytes_max=500)) as node:
        client = await stay(node, "c", ("plant/a", 1))
        device = await RawClient.connect(node.port, "device")
        for number in range(1, 6):  # the session falls behind
            device.send(Publish(b"plant/a", b"%d" % number, 1, number), Publish(b"plant/b", b"early", 1, number + 100))
            assert [await device.receive(), await device.receive()] == [PubAck(number), PubAck(number + 100)]
        assert node.counters.sessions_behind == 1
        got = [await client.receive()]
        await client.subscribe(("plant/b", 1))
        device.send(Publish(b"plant/b", b"late", 1, 200))
        assert await device.receive() == PubAck(200)
        while got[-1].payload != b"late":
            client.send(PubAck(got[-1].packet_id))
            got.append(await client.receive())
        assert [packet.payload for packet in got] == [b"1", b"2", b"3", b"4", b"5", b"late"]


async def test_a_crash_keeps_what_the_protocol_promised(tmp_path: Path) -> None:
    """[MQTT-4.1.0-1] [MQTT-4.3.3-2] [MQTT-4.4.0-1]: identifiers of both directions, over a database that was not
    written."""
    async with running(tmp_path, kill=True) as node:
        client = await stay(node, "c", ("plant/#", 2))
        device = await stay(node, "device")
        device.send(Publish(b"plant/a", b"1", 2, 9), Publish(b"plant/a", b"2", 2, 10))
        assert [await device.receive(), await device.receive()] == [PubRec(9), PubRec(10)]
        device.send(PubRel(9))
        assert await device.receive() == PubComp(9)
        assert [(await client.receive()).packet_id for _ in range(2)] == [1, 2]
        client.send(PubRec(1))
        assert await client.receive() == PubRel(1)
    async with running(tmp_path) as node:
        device = await stay(node, "device")
        device.send(Publish(b"plant/a", b"2", 2, 10, dup=True), PubRel(10))
        assert [await device.receive(), await device.receive()] == [PubRec(10), PubComp(10)]
        assert len(await node.stored()) == 2, "it was stored before the crash"
        client = await stay(node, "c")
        assert client.welcome.session_present
        assert [await client.receive(), await client.receive()] == [
            PubRel(1), Publish(b"plant/a", b"2", 2, 2, dup=True),
        ]  # fmt: skip
        client.send(PubComp(1), PubRec(2))
        assert await client.receive() == PubRel(2)
        assert await client.silent()


async def test_a_slow_session_reads_the_log_and_then_goes_on_live(tmp_path: Path) -> None:
    limits = SessionLimits(inflight_max=10, queue_bytes_max=3000)
    async with running(tmp_path, limits=limits) as node:
        client = await stay(node, "c", ("#", 1))
        device = await RawClient.connect(node.port, "device")
        topics = (b"plant/a", b"only/sessions")
        for number in range(1, 301):
            device.send(Publish(topics[number % 2], b"%d" % number, 1, number))
        assert [await device.receive() for _ in range(300)] == [PubAck(number) for number in range(1, 301)]
        got: dict[bytes, list[int]] = {topic: [] for topic in topics}
        for _ in range(300):
            packet = await client.receive()
            got[packet.topic].append(int(packet.payload))
            client.send(PubAck(packet.packet_id))
        assert got == {topics[0]: list(range(2, 301, 2)), topics[1]: list(range(1, 301, 2))}
        outbound = node.broker.sessions.all()[0].outbound
        await until(lambda: outbound.catch_up is None)
        assert node.counters.deliveries_dropped == 0
