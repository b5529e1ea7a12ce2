"""Sessions that stay: bounds, and what a restart or a crash leaves of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.edge_node.servers.mqtt.harness import BrokerNode, RawClient, SyncGate, running
from tests.edge_node.sessions.room import Room, RoomClient, close_all
from tests.support.waiting import until
from weft.config.limits import EdgeLimits
from weft.edge_node.sessions.window import WindowState
from weft.edge_node.subscriptions.limits import MESSAGE_OVERHEAD_BYTES
from weft.protocols.mqtt.decoder import decode
from weft.protocols.mqtt.packets import (
    ConnAck,
    Connect,
    ConnectRefused,
    PacketIds,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ReasonCode,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
)
from weft.storage.segment_log import LogFull


async def stay(node: BrokerNode, client_id: str, *filters: tuple[str, int]) -> RawClient:
    """A client of a session that outlives its connection."""
    client = await RawClient.connect(node.port, client_id, clean_start=False)
    if filters:
        await client.subscribe(*filters)
    return client


async def leave(node: BrokerNode, client: RawClient) -> None:
    left = node.counters.connections - 1
    await client.close()
    await until(lambda: node.counters.connections == left)


async def test_the_session_longest_away_is_forgotten_first(tmp_path: Path) -> None:
    async with running(tmp_path, limits=EdgeLimits(sessions=2, user_share=1)) as node:
        for client_id in ("a", "b"):
            await leave(node, await stay(node, client_id, ("t", 0)))
        await leave(node, await stay(node, "a"))
        await leave(node, await stay(node, "c"))
        assert node.counters.sessions_evicted == 1
        assert (await stay(node, "a")).welcome.session_present
        assert not (await stay(node, "b")).welcome.session_present


async def test_when_all_sessions_are_connected_further_clients_are_refused(tmp_path: Path) -> None:
    async with running(tmp_path, limits=EdgeLimits(sessions=1, user_share=1)) as node:
        client = await RawClient.connect(node.port, "one")
        refused = await RawClient.open(node.port)
        refused.version = 5
        refused.send(Connect("two", version=5))
        assert (await refused.receive()).code == ReasonCode.QUOTA_EXCEEDED
        assert node.counters.sessions_refused == 1
        again = await RawClient.connect(node.port, "one")
        assert await client.receive() is None
        await again.close()
        await until(lambda: node.counters.connections == 0)
        assert (await RawClient.connect(node.port, "two")).welcome.code == 0


async def test_a_clean_session_leaves_nothing_behind(tmp_path: Path) -> None:
    """[MQTT-3.1.2-6]"""
    async with running(tmp_path) as node:
        client = await RawClient.connect(node.port)
        await client.subscribe(("t/#", 1), ("$share/g/t", 1))
        await leave(node, client)
        assert not node.context.subscriptions.recipients(b"t").live
        assert (node.counters.sessions, node.counters.subscriptions, node.mqtt.session_context.shared.all()) == (
            0,
            0,
            [],
        )


async def test_subscriptions_over_the_limit_fail_and_known_ones_change(tmp_path: Path) -> None:
    """[MQTT-3.8.4-3] [MQTT-3.9.3-2]"""
    async with running(tmp_path, limits=EdgeLimits(subscriptions=2)) as node:
        client = await RawClient.connect5(node.port)
        assert await client.subscribe(("a", 1), ("b", 1), ("c", 1)) == (1, 1, ReasonCode.QUOTA_EXCEEDED)
        assert await client.subscribe(("a", 0)) == (0,)
        assert node.counters.subscriptions_refused == 1


async def test_what_was_published_before_a_subscription_is_not_for_it(tmp_path: Path) -> None:
    async with running(tmp_path, limits=EdgeLimits(inflight=1, session_queue_bytes=500)) as node:
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
            PubRel(1),
            Publish(b"plant/a", b"2", 2, 2, dup=True),
        ]
        client.send(PubComp(1), PubRec(2))
        assert await client.receive() == PubRel(2)
        assert await client.silent()


@pytest.mark.parametrize("kill", [False, True], ids=["stop", "kill"])
async def test_deliveries_that_a_restart_left_in_flight_count_in_the_shared_budget(tmp_path: Path, kill: bool) -> None:
    async with running(tmp_path, kill=kill) as node:
        client = await stay(node, "c", ("plant/#", 2))
        device = await RawClient.connect(node.port, "device")
        for number in range(1, 101):
            device.send(Publish(b"plant/a", b"x", 2, number), PubRel(number))
        got = [await client.receive() for _ in range(100)]
        assert node.mqtt.session_context.windows.budget.used == 100 * (MESSAGE_OVERHEAD_BYTES + 1)
    async with running(tmp_path) as node:
        budget = node.mqtt.session_context.windows.budget
        assert budget.used == 100 * MESSAGE_OVERHEAD_BYTES, "payloads count once they are read from the log"
        client = await stay(node, "c")
        assert [(await client.receive()).packet_id for _ in got] == [packet.packet_id for packet in got]
        assert budget.used == 100 * (MESSAGE_OVERHEAD_BYTES + 1)
        client.send(*(PubRec(packet.packet_id) for packet in got))
        for packet in got:
            assert await client.receive() == PubRel(packet.packet_id)
            client.send(PubComp(packet.packet_id))
        await until(lambda: budget.used == 0)


@pytest.mark.parametrize("kill", [False, True], ids=["stop", "kill"])
async def test_what_was_published_before_a_subscription_is_not_for_it_after_the_node_either(
    tmp_path: Path, kill: bool
) -> None:
    limits = EdgeLimits(inflight=1, session_queue_bytes=500)
    async with running(tmp_path, limits=limits, kill=kill) as node:
        client = await stay(node, "c", ("plant/a", 1))
        device = await RawClient.connect(node.port, "device")
        for number in range(1, 6):  # the session falls behind
            device.send(Publish(b"plant/a", b"%d" % number, 1, number), Publish(b"plant/b", b"early", 1, number + 100))
            assert [await device.receive(), await device.receive()] == [PubAck(number), PubAck(number + 100)]
        assert (await client.receive()).payload == b"1"
        await client.subscribe(("plant/b", 1), ("plant/+", 1))
        await client.subscribe(("plant/b", 1))
        device.send(Publish(b"plant/b", b"late", 1, 200))
        assert await device.receive() == PubAck(200)
    async with running(tmp_path, limits=limits) as node:
        client = await stay(node, "c")
        got: list[Any] = []
        while not got or got[-1].payload != b"late":
            got.append(await client.receive())
            client.send(PubAck(got[-1].packet_id))
        assert [packet.payload for packet in got] == [b"1", b"2", b"3", b"4", b"5", b"late"]
        window = node.mqtt.sessions.all()[0].window
        await until(lambda: window.catch_up is None and not window.in_flight.deliveries)
        node.mqtt.sessions.note_positions()
        assert list(node.mqtt.session_context.persistence._starts.all_of("c")) == [], "it no longer matters"


@pytest.mark.parametrize("kill", [False, True], ids=["stop", "kill"])
async def test_a_shared_subscription_begins_when_it_was_made(tmp_path: Path, kill: bool) -> None:
    """What is published right after SUBACK is the group's, though the node ends before it has noted more."""
    async with running(tmp_path, kill=kill) as node:
        device = await RawClient.connect(node.port, "device")
        device.send(Publish(b"plant/a", b"early", 1, 1))
        assert await device.receive() == PubAck(1)
        await leave(node, await stay(node, "c", ("$share/g/plant/a", 1)))
        device.send(Publish(b"plant/a", b"late", 1, 2))
        assert await device.receive() == PubAck(2)
    async with running(tmp_path) as node:
        client = await stay(node, "c")
        assert (await client.receive()).payload == b"late"
        assert await client.silent()


@pytest.mark.parametrize("kill", [False, True], ids=["stop", "kill"])
async def test_retained_messages_in_flight_are_sent_again_as_they_were(tmp_path: Path, kill: bool) -> None:
    """[MQTT-4.4.0-1]: with their identifiers, their content and RETAIN, whatever is retained now"""
    async with running(tmp_path, kill=kill) as node:
        device = await RawClient.connect5(node.port, "device")
        for packet_id, topic in enumerate((b"plant/a", b"plant/b", b"other"), 1):
            properties = Properties(content_type="text", message_expiry_interval=1000)
            device.send(Publish(topic, b"kept", 2, packet_id, retain=True, properties=properties), PubRel(packet_id))
            assert [(await device.receive()).packet_id for _ in range(2)] == [packet_id] * 2
        client = await RawClient.connect5(node.port, "c", clean_start=False, session_expiry_interval=100)
        await client.subscribe(("plant/+", 2), ("other", 1), identifier=7)
        sent = [await client.receive() for _ in range(3)]
        assert all(packet.retain and packet.payload == b"kept" for packet in sent)
        done = next(packet for packet in sent if packet.topic == b"plant/b")
        client.send(PubRec(done.packet_id))
        assert await client.receive() == PubRel(done.packet_id)
        device.send(Publish(b"plant/a", b"newer", 1, 9, retain=True), Publish(b"other", b"", 1, 10, retain=True))
        assert [(await device.receive()).packet_id for _ in range(2)] == [9, 10]
    async with running(tmp_path) as node:
        again = await RawClient.connect5(node.port, "c", clean_start=False, session_expiry_interval=100)
        resent = {}
        for _ in range(3):
            packet = await again.receive()
            resent[packet.packet_id] = packet
        for packet in sent:
            if packet is done:
                assert resent[packet.packet_id] == PubRel(packet.packet_id)
                continue
            found = resent[packet.packet_id]
            assert (found.topic, found.payload, found.qos, found.retain, found.dup) == (
                packet.topic,
                b"kept",
                packet.qos,
                True,
                True,
            )
            assert found.properties.content_type == "text"
            assert found.properties.subscription_identifiers == (7,)
            assert found.properties.message_expiry_interval > 900
        assert {(await again.receive()).payload, (await again.receive()).payload} == {b"newer", b""}
        assert await again.silent(), "nobody else's, and once"
        other = await stay(node, "other", ("#", 1))
        retained = [await other.receive(), await other.receive()]
        assert {packet.topic: packet.payload for packet in retained} == {b"plant/a": b"newer", b"plant/b": b"kept"}


async def test_a_retained_message_on_its_way_is_for_nobody_else(tmp_path: Path) -> None:
    async with running(tmp_path, kill=True) as node:
        away = await stay(node, "away", ("#", 1), ("$share/g/#", 1))
        await leave(node, away)
        device = await RawClient.connect(node.port, "device")
        device.send(Publish(b"plant/a", b"kept", 1, 1, retain=True))
        assert await device.receive() == PubAck(1)
        client = await stay(node, "c", ("plant/#", 1))
        assert (await client.receive()).retain
        await node.durable()
    async with running(tmp_path) as node:
        away = await stay(node, "away")
        got = [await away.receive() for _ in range(2)]  # of the filter, and of the group
        assert [(packet.payload, packet.retain) for packet in got] == [(b"kept", False)] * 2
        for packet in got:
            away.send(PubAck(packet.packet_id))
        assert await away.silent()


async def test_a_session_that_a_clean_start_ended_does_not_come_back(tmp_path: Path) -> None:
    """v3 [MQTT-3.1.2-6], v5 [MQTT-3.1.2-4]: CONNACK waits until that is durable"""
    gate = SyncGate()
    async with running(tmp_path, filesystem=gate) as node:
        await leave(node, await stay(node, "c"))
        with gate.held():
            client = await RawClient.open(node.port)
            client.send(Connect("c"))
            await until(gate.reached.is_set)
            assert await client.silent()
        assert await client.receive() == ConnAck(False, 0)


async def test_connack_is_the_first_packet_also_of_who_is_displaced(tmp_path: Path) -> None:
    """v5 [MQTT-3.14.0-1] [MQTT-3.2.0-1]"""
    gate = SyncGate()
    async with running(tmp_path, filesystem=gate) as node:
        with gate.held():
            packet = Connect("c", version=5, clean_start=False, properties=Properties(session_expiry_interval=100))
            first, second = await RawClient.open(node.port), await RawClient.open(node.port)
            first.version = second.version = 5
            first.send(packet)
            await until(lambda: node.counters.sessions == 1)
            second.send(packet)
            assert await first.receive() is None
        answer = await second.receive()
        assert (type(answer), answer.code) == (ConnAck, 0)
        second.send(PingReq())
        assert await second.receive() == PingResp()


async def test_a_session_belongs_to_whom_the_door_let_in(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        node.authenticator.username = "by-certificate"
        client = await RawClient.connect(node.port, "c", clean_start=False, username="said", password=b"x")
        await leave(node, client)
    async with running(tmp_path) as node:
        (session,) = node.mqtt.sessions.all()
        assert session.username == "by-certificate"


async def test_users_that_would_not_be_let_in_any_more_are_closed(tmp_path: Path) -> None:
    """v5 [MQTT-4.13.2-1]: DISCONNECT 0x87, and the will, as of any connection that the server closes"""
    async with running(tmp_path) as node:
        will = Will(b"alarm/gone", b"", 0)
        old = await RawClient.connect(node.port, "old", username="bob", password=b"x", will=will)
        new = await RawClient.connect5(node.port, "new", username="bob", password=b"x")
        stays = await RawClient.connect5(node.port, "stays", username="ann", password=b"x")
        node.authenticator.removed.add("bob")
        node.mqtt.sessions.permissions_changed()
        assert await old.receive() is None
        assert (await new.receive()).code == ReasonCode.NOT_AUTHORIZED
        assert await new.receive() is None
        assert await stays.silent()
        assert (node.counters.clients_expelled, node.counters.wills_published) == (2, 1)


async def test_changed_rules_hold_for_subscriptions_that_are_open(tmp_path: Path) -> None:
    """Also for shared ones, and for what was kept for a session that is away."""
    async with running(tmp_path) as node:
        forbidden: set[str] = set()
        node.authenticator.may = lambda what, topic: what != "read" or topic not in forbidden
        plain = await stay(node, "plain", ("plant/#", 1))
        shared = await stay(node, "shared", ("$share/g/plant/#", 1))
        away = await stay(node, "away", ("plant/#", 1))
        device = await RawClient.connect(node.port, "device")
        device.send(Publish(b"plant/a", b"1", 1, 1))
        for client in (plain, shared, away):
            packet = await client.receive()
            assert packet.payload == b"1"
            client.send(PubAck(packet.packet_id))
        await leave(node, away)
        device.send(Publish(b"plant/a", b"2", 1, 2))
        for client in (plain, shared):
            assert (await client.receive()).payload == b"2"
        forbidden.add("plant/a")
        node.mqtt.sessions.permissions_changed()
        device.send(Publish(b"plant/a", b"3", 1, 3), Publish(b"plant/b", b"4", 1, 4), Publish(b"plant/a", b"5", 0))
        for client in (plain, shared, await stay(node, "away")):
            assert (await client.receive()).payload == b"4"
            assert await client.silent()


async def test_a_slow_session_reads_the_log_and_then_goes_on_live(tmp_path: Path) -> None:
    limits = EdgeLimits(inflight=10, session_queue_bytes=3000)
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
        window = node.mqtt.sessions.all()[0].window
        await until(lambda: window.catch_up is None)
        assert node.counters.deliveries_dropped == 0


@pytest.mark.parametrize("topic", [b"plant/a", b"none/a"], ids=["stream", "unrouted"])
async def test_a_slow_clean_session_loses_nothing_that_the_log_keeps(tmp_path: Path, topic: bytes) -> None:
    """Also of `unrouted`, and each message once although a copy for a session that stays is in another stream."""
    limits = EdgeLimits(inflight=10, session_queue_bytes=3000)
    async with running(tmp_path, limits=limits) as node:
        client = await RawClient.connect(node.port, "c")
        await client.subscribe(("#", 2))
        device = await RawClient.connect(node.port, "device")

        async def publish(first: int, end: int) -> None:
            for number in range(first, end):
                device.send(Publish(topic, b"%d" % number, 1, number))
            assert [await device.receive() for _ in range(first, end)] == [PubAck(n) for n in range(first, end)]

        await publish(1, 201)
        stays = await stay(node, "stays", (topic.decode(), 1))
        await publish(201, 401)
        assert node.counters.deliveries_dropped == 0
        (window,) = (each.window for each in node.mqtt.sessions.all() if each.client_id == "c")
        got: list[int] = []
        while len(got) < 400:
            packet = await client.receive()
            got.append(int(packet.payload))
            client.send(PubAck(packet.packet_id))
        assert sorted(got) == list(range(1, 401))
        for part in (range(1, 201), range(201, 401)):
            assert [number for number in got if number in part] == list(part)
        await until(lambda: window.catch_up is None)
        assert await client.silent()
        assert (await stays.receive()).payload == b"201"
        assert node.counters.deliveries_lost == 0


async def test_what_nothing_keeps_is_dropped_for_a_slow_client(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limits = EdgeLimits(inflight=10, session_queue_bytes=3000)
    async with running(tmp_path, limits=limits, unrouted="live") as node:
        client = await RawClient.connect(node.port, "c")
        await client.subscribe(("#", 2))
        device = await RawClient.connect(node.port, "device")
        for number in range(1, 301):
            device.send(Publish(b"none/a", b"%d" % number, 1, number))
        assert [await device.receive() for _ in range(300)] == [PubAck(number) for number in range(1, 301)]
        dropped = node.counters.deliveries_dropped
        got = [await client.receive() for _ in range(10)]
        for packet in got:
            client.send(PubAck(packet.packet_id))
        got += [await client.receive() for _ in range(300 - dropped - 10)]
        assert [int(packet.payload) for packet in got] == list(range(1, 301 - dropped))
        assert dropped > 200
    assert caplog.text.count("acknowledges too slowly") == 1


@pytest.mark.parametrize("level", ["plant", "none"], ids=["stream", "unrouted"])
async def test_a_new_filter_of_a_slow_clean_session_gets_nothing_older(tmp_path: Path, level: str) -> None:
    limits = EdgeLimits(inflight=1, session_queue_bytes=1000)
    async with running(tmp_path, limits=limits) as node:
        client = await RawClient.connect(node.port, "c")
        await client.subscribe((f"{level}/a", 1))
        device = await RawClient.connect(node.port, "device")

        async def publish(first: int, end: int) -> None:
            for number in range(first, end):
                device.send(Publish(f"{level}/{'ab'[number % 2]}".encode(), b"%d" % number, 1, number))
            assert [await device.receive() for _ in range(first, end)] == [PubAck(n) for n in range(first, end)]

        await publish(1, 5)
        first = await client.receive()
        await client.subscribe((f"{level}/b", 1))  # while a message waits
        await publish(5, 50)  # and now the session falls behind
        assert node.counters.deliveries_dropped == 0
        await client.subscribe((f"{level}/+", 1))  # while it is behind
        await publish(50, 60)
        got = [int(first.payload)]
        client.send(PubAck(first.packet_id))
        while got[-1] < 59:
            packet = await client.receive()
            got.append(int(packet.payload))
            client.send(PubAck(packet.packet_id))
        assert got == [2, 4, *range(5, 60)]
        node.mqtt.sessions.note_positions()
        assert not node.mqtt.session_context.persistence._starts.knows("c")


async def test_a_slow_clean_session_does_not_read_its_own_messages_from_the_log(tmp_path: Path) -> None:
    """[MQTT-3.8.3-3]"""
    limits = EdgeLimits(inflight=1, session_queue_bytes=1000)
    async with running(tmp_path, limits=limits) as node:
        client = await RawClient.connect5(node.port, "c")
        await client.subscribe(Subscription("plant/a", 1, no_local=True))
        device = await RawClient.connect(node.port, "device")
        for number in range(1, 41):
            device.send(Publish(b"plant/a", b"other %d" % number, 1, number))
            assert await device.receive() == PubAck(number)
        delivered = [await client.receive()]
        client.send(Publish(b"plant/a", b"own", 1, 1))  # while it reads the log
        assert await client.receive() == PubAck(1)
        device.send(Publish(b"plant/a", b"last", 1, 41))
        while delivered[-1].payload != b"last":
            client.send(PubAck(delivered[-1].packet_id))
            delivered.append(await client.receive())
        assert [packet.payload for packet in delivered] == [*(b"other %d" % n for n in range(1, 41)), b"last"]


@pytest.mark.parametrize("topic", ["plant/a", "none/a"], ids=["stream", "unrouted"])
async def test_members_of_a_shared_subscription_that_are_slow_lose_nothing_of_a_stream(
    tmp_path: Path, topic: str
) -> None:
    limits = EdgeLimits(inflight=5, session_queue_bytes=2000)
    async with running(tmp_path, limits=limits) as node:
        members = [await RawClient.connect(node.port, name) for name in ("one", "two")]
        for member in members:
            await member.subscribe(("$share/g/#", 1))
        device = await RawClient.connect(node.port, "device")
        for number in range(1, 201):
            device.send(Publish(topic.encode(), b"%d" % number, 1, number))
        assert [await device.receive() for _ in range(200)] == [PubAck(number) for number in range(1, 201)]
        assert node.counters.deliveries_dropped == 0
        got: list[int] = []
        while len(got) < 200:
            await until(lambda: any(member.has_data for member in members))
            member = next(each for each in members if each.has_data)
            packet = await member.receive()
            got.append(int(packet.payload))
            member.send(PubAck(packet.packet_id))
        assert sorted(got) == list(range(1, 201))


async def test_a_session_is_noted_at_the_cost_of_what_is_open(tmp_path: Path) -> None:
    """Thousands of clients that connect again with a QoS 2 publish each must not cost 65,535 questions each"""

    class Asked(PacketIds):
        def __contains__(self, packet_id: int) -> bool:
            raise AssertionError(f"asked for {packet_id}")

    async with running(tmp_path) as node:
        await RawClient.connect(node.port, "c", clean_start=False)
        (session,) = node.mqtt.sessions.all()
        session.received = Asked()
        for packet_id in (1, 10, 65_535):
            session.received.add(packet_id)
        assert session.record({}, set(), {}).received == {1, 10, 65_535}
        session.received = PacketIds()


async def test_a_packet_changes_who_gets_what_once(tmp_path: Path) -> None:
    changes = 0

    def changed() -> None:
        nonlocal changes
        changes += 1

    async with running(tmp_path) as node:
        node.context.subscriptions.watch(changed)
        client = await RawClient.connect(node.port, "c", clean_start=False)
        for taken in (range(10), range(5, 500)):
            node.context.subscriptions.recipients(b"t/1")
            before = changes
            await client.subscribe(*((f"t/{number}", 1) for number in taken))
            assert changes == before + 1
        assert node.context.subscriptions.recipients(b"t/1").live
        client.send(Unsubscribe(1, tuple(f"t/{number}" for number in range(500))))
        assert isinstance(await client.receive(), UnsubAck)
        assert changes == before + 2
        assert not node.context.subscriptions.recipients(b"t/1").live


async def test_more_filters_in_one_packet_than_a_session_may_have_are_refused_unseen(tmp_path: Path) -> None:
    async with running(tmp_path, limits=EdgeLimits(subscriptions=3)) as node:
        await RawClient.connect(node.port, "c", clean_start=False)
        (session,) = node.mqtt.sessions.all()
        wanted = [Subscription(text, 1) for text in ("a", "a", "b", "a", "c", "#/not/valid")]
        answers = node.mqtt.sessions.filters.subscribe_all(session, wanted, None)
        assert answers == [(1, True), (1, False), (1, True)] + [(ReasonCode.QUOTA_EXCEEDED, False)] * 3
        assert set(session.subscriptions) == {"a", "b"}
        assert node.counters.subscriptions_refused == 3


# --- The life of sessions without connections: what happens when, and what the next node finds


GONE = Will(b"plant/gone", b"gone", 1)
END = pytest.mark.parametrize("end", ["killed", "stopped"])


@pytest.fixture
def _close_rooms() -> Iterator[None]:
    yield
    close_all()


def payloads(client: RoomClient) -> list[bytes]:
    """What a client was sent."""
    data, at, found = b"".join(client), 0, []
    while at < len(data):
        decoded = decode(data, at, 1 << 24, 5)
        assert decoded is not None
        packet, at = decoded
        found.append(b"PUBREL" if isinstance(packet, PubRel) else packet.payload)  # type: ignore[attr-defined]
    return found


@pytest.mark.usefixtures("_close_rooms")
def test_a_client_that_comes_before_a_busy_node_has_ended_its_session_gets_a_new_one() -> None:
    room = Room()
    client = room.connect("c", expiry=100)
    room.leave(client)
    room.now += 101  # the wheel has not been looked at
    again = room.connect("c", expiry=100)
    assert again.session is not client.session
    assert (len(room.sessions), room.counters.sessions_expired) == (1, 1)
    room.later(1000)
    assert len(room.sessions) == 1, "what the wheel knew of the old one is forgotten"


@pytest.mark.usefixtures("_close_rooms")
async def test_a_session_waits_for_its_client_and_then_expires() -> None:
    room = Room()
    client = room.connect("c", expiry=100)
    room.subscribe(client, "plant/#")
    room.leave(client)
    room.publish(b"plant/a", b"1")
    room.later(99)
    again = room.connect("c", expiry=100)
    assert again.session is client.session
    assert again.session is not None
    assert again.session.window.state in (WindowState.BEHIND, WindowState.JOINING)
    room.node.commit()
    await until(lambda: payloads(again) == [b"1"])
    room.leave(again)
    room.later(101)
    assert (len(room.sessions), room.counters.sessions_expired, room.counters.subscriptions) == (0, 1, 0)
    assert again.session.ended
    assert room.context.windows.budget.used == 0


@pytest.mark.usefixtures("_close_rooms")
async def test_a_clean_start_forgets_and_a_takeover_displaces() -> None:
    """[MQTT-3.1.4-3] [MQTT-3.1.2-4]"""
    room = Room()
    first = room.connect("c")
    room.subscribe(first, "plant/#")
    second = room.connect("c")
    assert first.closed == ReasonCode.SESSION_TAKEN_OVER
    assert second.session is first.session
    third = room.connect("c", clean=True)
    assert third.session is not second.session
    assert not room.subscriptions.recipients(b"plant/a").live
    assert (len(room.sessions), room.counters.takeovers) == (1, 2)


@pytest.mark.usefixtures("_close_rooms")
async def test_a_will_comes_when_its_delay_is_over_or_the_session_ends() -> None:
    """[MQTT-3.1.3-9] [MQTT-3.1.2-8]"""
    room = Room()
    watcher = room.connect("watcher")
    room.subscribe(watcher, "plant/gone")
    late = Will(b"plant/gone", b"late", 1, False, Properties(will_delay_interval=50))
    room.leave(room.connect("delay", expiry=1000, will=late))
    room.leave(room.connect("session", expiry=20, will=late))
    room.leave(room.connect("goodbye", expiry=20, will=GONE), with_will=False)
    room.later(19)
    assert payloads(watcher) == []
    room.later(2)
    assert payloads(watcher) == [b"late"], "its session has ended"
    room.later(30)
    assert payloads(watcher) == [b"late"] * 2
    assert room.counters.will_bytes == 0


@pytest.mark.usefixtures("_close_rooms")
async def test_a_session_that_wants_its_own_will_gets_it() -> None:
    room = Room()
    client = room.connect("c", will=GONE)
    room.subscribe(client, "plant/gone")
    room.leave(client)
    room.node.commit()
    again = room.connect("c")
    await until(lambda: payloads(again) == [b"gone"])


@pytest.mark.usefixtures("_close_rooms")
@END
async def test_the_next_node_finds_what_was_promised(end: str) -> None:
    room = Room()
    client, share = room.connect("c"), room.connect("s")
    room.subscribe(client, "plant/+", 2)
    room.subscribe(share, "$share/g/plant/+", 2)
    room.publish(b"plant/a", b"one")
    room.publish(b"plant/b", b"two", qos=2)
    room.node.commit()
    assert client.session is not None
    client.session.window.in_flight.pubrec(2, 0)
    room.node.commit()
    assert payloads(client) == [b"one", b"two", b"PUBREL"]
    room = room.killed() if end == "killed" else room.stopped()
    assert room.context.windows.budget.used == 4 * 200
    assert {session.client_id for session in room.sessions.all()} == {"c", "s"}
    assert room.counters.subscriptions == 2
    again = room.connect("c")
    assert again.session is not None
    assert room.sessions.filters.subscribe(again.session, Subscription("plant/+", 2), None) == (2, False)
    await until(lambda: payloads(again) == [b"one", b"PUBREL"])
    again.session.window.in_flight.puback(1)
    again.session.window.in_flight.pubcomp(2)
    other = room.connect("s")
    await until(lambda: payloads(other) == [b"one", b"two"])
    assert other.session is not None
    assert list(other.session.window.in_flight.deliveries) == [1, 2]


@pytest.mark.usefixtures("_close_rooms")
@END
async def test_a_shared_subscription_goes_on_where_it_was(end: str) -> None:
    room = Room()
    client = room.connect("s")
    room.subscribe(client, "$share/g/plant/+", 1)
    room.publish(b"plant/a", b"1", b"2")
    room.node.commit()
    assert client.session is not None
    for packet_id in (1, 2):
        client.session.window.in_flight.puback(packet_id)
    room.sessions.note_positions()
    room.leave(client)
    room.publish(b"plant/a", b"3")
    room = room.killed() if end == "killed" else room.stopped()
    (shared,) = room.context.shared.all()
    assert shared.state(room.ingest.ends())[0][room.node.log.stream("telemetry")] == 2
    again = room.connect("s")
    await until(lambda: payloads(again) == [b"3"])
    assert again.session is not None
    room.sessions.end(again.session)
    room.node.commit()
    room.node.kill()
    assert list(room.node.state.journal.recover_shared()) == []


@pytest.mark.usefixtures("_close_rooms")
@END
async def test_a_subscription_gets_nothing_older_than_itself(end: str) -> None:
    room = Room()
    client = room.connect("c")
    room.publish(b"plant/old", b"old")
    room.node.commit()
    room.subscribe(client, "plant/+")
    room.leave(client)
    room.publish(b"plant/new", b"new")
    room = room.killed() if end == "killed" else room.stopped()
    again = room.connect("c")
    await until(lambda: payloads(again) == [b"new"])
    room.sessions.note_positions()


@pytest.mark.usefixtures("_close_rooms")
async def test_where_a_session_is_is_noted_once() -> None:
    room = Room()
    client = room.connect("c")
    room.subscribe(client, "plant/+")
    room.publish(b"plant/a", b"1")
    room.sessions.note_positions()
    noted = room.node.state.journal.bytes_noted
    room.sessions.note_positions()
    assert room.node.state.journal.bytes_noted == noted
    room.publish(b"plant/a", b"2")
    room.sessions.note_positions()
    assert room.node.state.journal.bytes_noted > noted


@pytest.mark.usefixtures("_close_rooms")
async def test_filters_have_bounds_and_are_counted_until_they_go() -> None:
    room = Room(limits=EdgeLimits(filters_bytes=2000, topic_levels=3, subscriptions_total=3, user_share=1))
    one, two = room.connect("one"), room.connect("two")
    assert room.subscribe(one, "a/b/c/d") == ReasonCode.TOPIC_FILTER_INVALID
    assert room.subscribe(one, "$share//a") == ReasonCode.TOPIC_FILTER_INVALID
    assert [room.subscribe(one, text) for text in ("a/b", "c/d", "e/f")] == [1, 1, ReasonCode.QUOTA_EXCEEDED]
    assert room.subscribe(one, "a/b", 2) == 2, "one that is there may change"
    assert [room.subscribe(two, text) for text in ("a", "b")] == [1, ReasonCode.QUOTA_EXCEEDED], "of all together"
    assert one.session is not None
    assert room.sessions.filters.unsubscribe(one.session, "x") == ReasonCode.NO_SUBSCRIPTION_EXISTED
    assert room.sessions.filters.unsubscribe(one.session, "a/b") == ReasonCode.SUCCESS
    assert room.subscribe(two, "b") == 1
    assert room.counters.subscriptions == 3


@pytest.mark.usefixtures("_close_rooms")
async def test_a_session_that_the_journal_cannot_take_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise LogFull("no room")

    room = Room()
    late = Will(b"plant/gone", b"late", 1, False, Properties(will_delay_interval=50))
    room.leave(room.connect("c", will=late))
    (session,) = room.sessions.all()
    before = (session.terms, session.absence, session.will, session.will_at)
    with monkeypatch.context() as patch:
        patch.setattr(room.node.state.journal, "opened", refuse)
        for client_id in ("c", "new"):
            with pytest.raises(LogFull):
                room.connect(client_id, expiry=5, will=GONE)
    assert (session.terms, session.absence, session.will, session.will_at) == before
    assert session.window.state is WindowState.AWAY
    assert room.sessions.all() == [session]
    room.later(51)
    assert room.counters.wills_published == 1


@pytest.mark.usefixtures("_close_rooms")
async def test_the_bound_of_wills_holds_for_all_of_them() -> None:
    room = Room(limits=EdgeLimits(wills_bytes=1200, user_share=1))
    room.connect("a", will=GONE)
    room.connect("b", will=GONE)
    with pytest.raises(ConnectRefused):
        room.connect("c", will=GONE)
    room.connect("b", will=GONE)
    assert room.counters.wills_refused == 1
