"""What MQTT 5.0 adds, over real sockets."""

import asyncio
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties

from tests.edge_node.servers.mqtt.harness import BrokerNode, RawClient, SyncGate, running
from tests.support.waiting import PATIENCE_S, until
from weft.edge_node.access.identity import AccessDenied, Denial
from weft.edge_node.ingest.routing import UnroutedPolicy
from weft.protocols.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ReasonCode,
    Subscribe,
    Subscription,
    Will,
)


async def gone(node: BrokerNode, *clients: RawClient) -> None:
    """Close connections, and wait until the broker knows."""
    left = node.counters.connections - len(clients)
    for client in clients:
        await client.close()
    await until(lambda: node.counters.connections == left)


async def test_connack_says_what_the_server_can_and_names_the_nameless(tmp_path: Path) -> None:
    """[MQTT-3.1.3-7] [MQTT-3.2.2-16] [MQTT-3.2.2-21]"""
    async with running(tmp_path, receive_maximum=20, keep_alive_s_max=60, message_bytes=5000) as node:
        client = await RawClient.connect5(node.port, "", clean_start=False, keep_alive_s=600)
        said = client.welcome.properties
        assert (said.receive_maximum, said.server_keep_alive, said.maximum_packet_size) == (20, 60, 5000)
        assert said.topic_alias_maximum == 64
        other = await RawClient.connect5(node.port, "")
        assert said.assigned_client_identifier
        assert said.assigned_client_identifier != other.welcome.properties.assigned_client_identifier


async def test_the_door_refuses_with_a_reason(tmp_path: Path) -> None:
    """[MQTT-3.1.4-2] [MQTT-3.2.2-8]"""
    async with running(tmp_path) as node:
        node.authenticator.refuse = AccessDenied(Denial.WRONG, "no")
        client = await RawClient.open(node.port)
        client.version = 5
        client.send(Connect("c", version=5), PingReq())
        answer = await client.receive()
        assert isinstance(answer, ConnAck)
        assert answer.code == ReasonCode.BAD_USER_NAME_OR_PASSWORD
        assert await client.receive() is None


async def test_the_old_connection_is_told_of_a_take_over(tmp_path: Path) -> None:
    """[MQTT-3.1.4-3] [MQTT-3.14.0-1]"""
    async with running(tmp_path) as node:
        old = await RawClient.connect5(node.port, "c", session_expiry_interval=100)
        new = await RawClient.connect5(node.port, "c", clean_start=False)
        assert new.welcome.session_present
        assert (await old.receive()).code == ReasonCode.SESSION_TAKEN_OVER
        assert await old.receive() is None


async def test_access_rules_have_reason_codes(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        node.authenticator.may = lambda what, text: (
            "secret" not in text and not (what == "read" and text == "plant/hidden")
        )
        client = await RawClient.connect5(node.port)
        assert await client.subscribe(("secret/#", 1), ("#", 1)) == (ReasonCode.NOT_AUTHORIZED, 1)
        client.send(
            Publish(b"secret/1", b"", 1, 1),
            Publish(b"secret/1", b"", 2, 2),
            Publish(b"secret/1", b""),
            Publish(b"plant/hidden", b"", 1, 3),
            PubRel(2),
        )
        answers = [await client.receive() for _ in range(4)]
        denied = ReasonCode.NOT_AUTHORIZED
        assert PubAck(1, denied) in answers
        assert PubRec(2, denied) in answers
        assert PubAck(3) in answers
        assert [record.key for record in await node.stored()] == [b"plant/hidden"]
        assert node.counters.publishes_denied == 3


@pytest.mark.parametrize(
    ("unrouted", "nobody"), [("live", ReasonCode.NO_MATCHING_SUBSCRIBERS), ("keep", ReasonCode.SUCCESS)]
)
async def test_an_acknowledgement_says_when_nothing_takes_a_message(
    tmp_path: Path, unrouted: UnroutedPolicy, nobody: ReasonCode
) -> None:
    """A message that the log keeps is taken, also where no client is subscribed (MQTT 5.0 section 3.4.2.1)."""
    async with running(tmp_path, unrouted=unrouted) as node:
        client = await RawClient.connect5(node.port)
        client.send(Publish(b"none", b"", 1, 1), Publish(b"none", b"", 2, 2), Publish(b"plant/a", b"", 1, 3))
        assert [await client.receive() for _ in range(3)] == [PubAck(1, nobody), PubRec(2, nobody), PubAck(3)]


async def test_subscription_options_and_identifiers(tmp_path: Path) -> None:
    """[MQTT-3.8.3-3] [MQTT-3.3.1-12] [MQTT-3.3.1-13] [MQTT-3.3.4-3] [MQTT-3.3.4-4] [MQTT-3.3.4-5]"""
    async with running(tmp_path) as node:
        client = await RawClient.connect5(node.port)
        await client.subscribe(Subscription("a/#", 1, no_local=True), identifier=5)
        await client.subscribe(Subscription("a/b", 0, retain_as_published=True), identifier=268_435_455)
        other = await RawClient.connect5(node.port, "other")
        client.send(Publish(b"a/own", b""))
        other.send(Publish(b"a/b", b"1", retain=True), Publish(b"a/c", b"2", 1, 1, retain=True))
        both = await client.receive()
        assert (both.payload, both.retain) == (b"1", True)
        assert sorted(both.properties.subscription_identifiers) == [5, 268_435_455]
        one = await client.receive()
        assert (one.payload, one.retain, one.properties.subscription_identifiers) == (b"2", False, (5,))


@pytest.mark.parametrize(("handling", "first", "again"), [(0, 1, 1), (1, 1, 0), (2, 0, 0)])
async def test_retain_handling(tmp_path: Path, handling: int, first: int, again: int) -> None:
    """[MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11] [MQTT-3.8.4-4]"""
    async with running(tmp_path) as node:
        device = await RawClient.connect5(node.port, "device")
        device.send(Publish(b"plant/a", b"kept", 1, 1, retain=True))
        assert await device.receive() == PubAck(1)
        client = await RawClient.connect5(node.port)
        for count in (first, again):
            await client.subscribe(Subscription("plant/+", 0, retain_handling=handling))
            client.send(PingReq())
            found = {type(packet): packet for packet in [await client.receive() for _ in range(count + 1)]}
            assert PingResp in found
            assert found.get(Publish) == (Publish(b"plant/a", b"kept", retain=True) if count else None)


async def test_a_retained_message_is_replaced_and_cleared_and_survives(tmp_path: Path) -> None:
    """[MQTT-3.3.1-5] [MQTT-3.3.1-6] [MQTT-3.3.1-7] [MQTT-3.3.1-8]"""
    async with running(tmp_path) as node:
        device = await RawClient.connect(node.port, "device")
        for packet_id, (topic, payload) in enumerate([(b"a", b"1"), (b"a", b"2"), (b"b", b"3"), (b"b", b"")], 1):
            device.send(Publish(topic, payload, 1, packet_id, retain=True))
            assert await device.receive() == PubAck(packet_id)
    async with running(tmp_path) as node:
        client = await RawClient.connect(node.port)
        assert await client.subscribe(("#", 1)) == (1,)
        assert await client.receive() == Publish(b"a", b"2", 1, 1, retain=True)
        assert await client.silent()


async def test_topic_aliases_both_ways(tmp_path: Path) -> None:
    """[MQTT-3.3.2-8] [MQTT-3.3.2-9] [MQTT-3.3.2-12] [MQTT-3.1.2-26] [MQTT-3.1.2-27]"""
    async with running(tmp_path) as node:
        client = await RawClient.connect5(node.port, topic_alias_maximum=1)
        await client.subscribe(("#", 0))
        alias = Properties(topic_alias=64)
        client.send(Publish(b"a", b"1", properties=alias), Publish(b"", b"2", properties=alias), Publish(b"b", b"3"))
        got = [await client.receive() for _ in range(3)]
        assert [(each.topic, each.payload, each.properties.topic_alias) for each in got] == [
            (b"a", b"1", 1),
            (b"", b"2", 1),
            (b"b", b"3", None),
        ]
        client.send(Publish(b"a", b"", properties=Properties(topic_alias=65)))
        assert (await client.receive()).code == ReasonCode.TOPIC_ALIAS_INVALID


async def test_a_message_too_large_for_a_client_is_as_if_sent(tmp_path: Path) -> None:
    """[MQTT-3.1.2-24] [MQTT-3.1.2-25]"""
    async with running(tmp_path) as node:
        client = await RawClient.connect5(node.port, maximum_packet_size=40, receive_maximum=1)
        await client.subscribe(("plant/#", 1))
        device = await RawClient.connect(node.port, "device")
        device.send(Publish(b"plant/a", bytes(100), 1, 1), Publish(b"plant/a", b"small", 1, 2))
        assert (await client.receive()).payload == b"small"
        assert node.counters.deliveries_too_large == 1


async def test_receive_maximum_holds_both_ways(tmp_path: Path) -> None:
    """[MQTT-3.3.4-8] [MQTT-3.3.4-9]"""
    async with running(tmp_path) as node:
        client = await RawClient.connect5(node.port, receive_maximum=1)
        await client.subscribe(("plant/#", 2))
        device = await RawClient.connect(node.port, "device")
        device.send(*[Publish(b"plant/a", b"%d" % n, 2, n) for n in (1, 2)])
        assert (await client.receive()).payload == b"1"
        assert await client.silent()
        client.send(PubRec(1, ReasonCode.UNSPECIFIED_ERROR))
        assert (await client.receive()).payload == b"2"


@pytest.mark.parametrize("qos", [1, 2])
async def test_who_sends_past_the_receive_maximum_is_not_read(tmp_path: Path, qos: int) -> None:
    """[MQTT-3.3.4-7]: until answers have gone out; then everything is taken once and in order, and the client
    stays connected"""
    gate, packet_ids = SyncGate(), range(1, 3001)
    async with running(tmp_path, filesystem=gate, receive_maximum=20) as node:
        client = await RawClient.connect5(node.port)
        with gate.held():
            client.send(*[Publish(b"plant/a", b"%500d" % n, qos, n) for n in packet_ids])
            await until(lambda: node.counters.receive_maximum_pauses == 1)
            assert await client.silent()
            assert node.counters.publishes_received < 1500, "what was not read stays in the socket"
            bystander = await RawClient.connect5(node.port, "bystander")
            bystander.send(PingReq())
            assert await bystander.receive() == PingResp()
        answer = PubAck if qos == 1 else PubRec
        assert [await client.receive() for _ in packet_ids] == [answer(n) for n in packet_ids]
        if qos == 2:
            client.send(*[PubRel(n) for n in packet_ids])
            assert [await client.receive() for _ in packet_ids] == [PubComp(n) for n in packet_ids]
        client.send(PingReq())
        assert await client.receive() == PingResp()
        assert [record.payload for record in await node.stored()] == [b"%500d" % n for n in packet_ids]


async def test_who_keeps_to_the_receive_maximum_is_never_held_back(tmp_path: Path) -> None:
    async with running(tmp_path, receive_maximum=20) as node:
        client = await RawClient.connect5(node.port)
        client.send(*[Publish(b"$SYS/x", b"x", 1, n) for n in range(1, 21)])
        codes = [(await client.receive()).code for _ in range(20)]
        assert codes == [ReasonCode.NOT_AUTHORIZED] * 20, "which takes a byte more"
        for _ in range(10):
            client.send(*[Publish(b"plant/a", b"x", 1 + n % 2, n) for n in range(1, 21)])
            for _ in range(20):
                if isinstance(answer := await client.receive(), PubRec):
                    client.send(PubRel(answer.packet_id))
            assert [type(await client.receive()) for _ in range(10)] == [PubComp] * 10
        assert node.counters.receive_maximum_pauses == 0
        assert len(await node.stored()) == 200


async def test_expiry_counts_down_and_survives_the_log(tmp_path: Path) -> None:
    """[MQTT-3.3.2-5] [MQTT-3.3.2-6]"""
    async with running(tmp_path) as node:
        client = await RawClient.connect5(node.port, "c", session_expiry_interval=100)
        await client.subscribe(("plant/#", 1))
        await gone(node, client)
        device = await RawClient.connect5(node.port, "device")
        for packet_id, interval in ((1, 0), (2, 1), (3, 100)):
            properties = Properties(message_expiry_interval=interval, response_topic="r", correlation_data=b"\0c")
            device.send(Publish(b"plant/a", b"%d" % interval, 1, packet_id, properties=properties))
            assert (await device.receive()).packet_id == packet_id
        await asyncio.sleep(1.1)  # the wall clock is what expiry is about
        client = await RawClient.connect5(node.port, "c", clean_start=False, session_expiry_interval=100)
        packet = await client.receive()
        assert packet.payload == b"100"
        assert packet.properties.message_expiry_interval in (98, 99)
        assert (packet.properties.response_topic, packet.properties.correlation_data) == ("r", b"\0c")
        assert node.counters.messages_expired == 2


async def test_a_delayed_will_waits_for_its_time_or_the_sessions_end(tmp_path: Path) -> None:
    """[MQTT-3.1.2-8] [MQTT-3.1.2-10] [MQTT-3.1.3-9]"""
    async with running(tmp_path) as node:
        watcher = await RawClient.connect5(node.port, "watcher")
        await watcher.subscribe(("will/#", 1))

        async def visit(name: str, expiry: int, **fields: object) -> RawClient:
            will = Will(b"will/" + name.encode(), b"", 0, False, Properties(will_delay_interval=1))
            return await RawClient.connect5(node.port, name, will=will, session_expiry_interval=expiry, **fields)

        await gone(node, await visit("delayed", 100), await visit("ended", 0), await visit("back", 100))
        assert (await watcher.receive()).topic == b"will/ended", "the session's end is the latest time"
        back = await visit("back", 100, clean_start=False)
        assert (await watcher.receive()).topic == b"will/delayed"
        back.send(Disconnect(ReasonCode.DISCONNECT_WITH_WILL, Properties(session_expiry_interval=0)))
        assert (await watcher.receive()).topic == b"will/back"
        await visit("anew", 100)
        await visit("anew", 100, clean_start=True)
        assert (await watcher.receive()).topic == b"will/anew", "a clean start ends the session"
        assert await watcher.silent()


async def test_a_session_ends_when_its_time_is_over(tmp_path: Path) -> None:
    """[MQTT-3.1.2-23] [MQTT-4.1.0-2] [MQTT-3.14.2-2]"""
    async with running(tmp_path) as node:
        short = await RawClient.connect5(node.port, "short", session_expiry_interval=1)
        changed = await RawClient.connect5(node.port, "changed", session_expiry_interval=1)
        changed.send(Disconnect(0, Properties(session_expiry_interval=0xFFFFFFFF)))
        assert await changed.receive() is None
        await gone(node, short)
        await until(lambda: node.counters.sessions == 1)
        assert node.counters.sessions_expired == 1
        assert (await RawClient.connect5(node.port, "changed", clean_start=False)).welcome.session_present
        assert not (await RawClient.connect5(node.port, "short", clean_start=False)).welcome.session_present


async def test_a_shared_subscription_gives_each_message_to_one_member(tmp_path: Path) -> None:
    """[MQTT-4.8.2-4] [MQTT-4.8.2-5] [MQTT-4.8.2-6]"""
    async with running(tmp_path) as node:
        members = [await RawClient.connect5(node.port, f"m{n}", receive_maximum=2) for n in range(2)]
        for member in members:
            await member.subscribe(("$share/g/plant/#", 1))
        device = await RawClient.connect(node.port, "device")
        device.send(*[Publish(b"plant/a", b"%d" % n, 1, n) for n in range(1, 6)])
        got = [[(await member.receive()).payload for _ in range(2)] for member in members]
        assert sorted([*got[0], *got[1]]) == [b"1", b"2", b"3", b"4"], "in turn, and no more than each can take"
        await gone(node, members[1])
        members[0].send(PubAck(1), PubAck(2))
        more = [await members[0].receive() for _ in range(2)]
        members[0].send(*[PubAck(each.packet_id) for each in more])
        more.append(await members[0].receive())
        assert sorted(each.payload for each in more) == sorted([*got[1], b"5"]), "what the other did not acknowledge"


async def test_a_shared_subscription_of_sessions_loses_nothing_while_nobody_is_there(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        member = await RawClient.connect5(node.port, "m", session_expiry_interval=100)
        await member.subscribe(("$share/g/plant/#", 1), ("$share/g/other", 1))
        await gone(node, member)
        device = await RawClient.connect(node.port, "device")
        for number in range(1, 4):
            device.send(Publish(b"plant/a", b"%d" % number, 1, number))
            assert await device.receive() == PubAck(number)
        await node.durable()
    async with running(tmp_path) as node:
        member = await RawClient.connect5(node.port, "m", clean_start=False, session_expiry_interval=100)
        assert member.welcome.session_present
        assert [(await member.receive()).payload for _ in range(3)] == [b"1", b"2", b"3"]


async def test_sys_topics_are_for_those_who_ask_by_name(tmp_path: Path) -> None:
    """[MQTT-4.7.2-1] [MQTT-4.7.2-2]"""
    async with running(tmp_path, sys_interval_s=0.05) as node:
        everything = await RawClient.connect(node.port, "everything")
        await everything.subscribe(("#", 0), ("+/broker/version", 0))
        client = await RawClient.connect(node.port, "client")
        await client.subscribe(("$SYS/broker/version", 0), ("$SYS/broker/clients/connected", 0))
        found: dict[bytes, bytes] = {}
        while found.get(b"$SYS/broker/clients/connected") != b"2":
            packet = await client.receive()
            found[packet.topic] = packet.payload
        assert found[b"$SYS/broker/version"] == b"weft"
        assert await everything.silent()


async def test_a_protocol_error_is_named_before_the_end(tmp_path: Path) -> None:
    """[MQTT-4.13.1-1] [MQTT-4.13.2-1]"""
    async with running(tmp_path) as node:
        client = await RawClient.connect5(node.port)
        client.send(Subscribe(1, ()))
        answer = await client.receive()
        assert isinstance(answer, Disconnect)
        assert answer.code in (ReasonCode.PROTOCOL_ERROR, ReasonCode.MALFORMED_PACKET)
        assert await client.receive() is None


async def test_paho_speaks_version_5(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        loop = asyncio.get_running_loop()
        messages: asyncio.Queue[paho.MQTTMessage] = asyncio.Queue()
        granted = asyncio.Event()
        client = paho.Client(CallbackAPIVersion.VERSION2, "c", protocol=paho.MQTTv5)
        client.on_message = lambda _c, _u, message: loop.call_soon_threadsafe(messages.put_nowait, message)
        client.on_connect = lambda client, *_: client.subscribe("plant/#", 2)
        client.on_subscribe = lambda *_: loop.call_soon_threadsafe(granted.set)
        client.connect_async("127.0.0.1", node.port)
        client.loop_start()
        await asyncio.wait_for(granted.wait(), PATIENCE_S)
        properties = PahoProperties(PacketTypes.PUBLISH)
        properties.UserProperty = [("unit", "mm")]
        properties.MessageExpiryInterval = 30
        for qos in (0, 1, 2):
            client.publish("plant/a", b"%d" % qos, qos, properties=properties)
        got = [await asyncio.wait_for(messages.get(), PATIENCE_S) for _ in range(3)]
        assert sorted((message.payload, message.qos) for message in got) == [(b"0", 0), (b"1", 1), (b"2", 2)]
        assert {message.properties.UserProperty[0] for message in got} == {("unit", "mm")}
        client.disconnect()
        await asyncio.to_thread(client.loop_stop)
