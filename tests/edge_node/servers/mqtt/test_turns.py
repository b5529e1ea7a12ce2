"""What arrives in one turn of the event loop, from several connections and in odd pieces."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.edge_node.servers.mqtt.harness import BrokerNode, RawClient, SyncGate, running
from tests.support.waiting import until
from weft.config.limits import EdgeLimits
from weft.config.streams import State
from weft.edge_node.ingest import ingest
from weft.edge_node.servers.clients import context
from weft.edge_node.servers.clients.context import READS_S_MAX, ReadPacing
from weft.edge_node.servers.mqtt.connection import cost
from weft.edge_node.sessions.records import StateSettings
from weft.protocols.mqtt.encoder import encode
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
    SubAck,
    Subscribe,
    Subscription,
    Will,
)
from weft.storage.segment_log import LogSettings, StreamPolicy


@pytest.fixture(params=[True, False], ids=["clean", "journaled"])
def clean_start(request: pytest.FixtureRequest) -> bool:
    """Whether sessions end with their connections: then reads are stored together, else one by one."""
    value: bool = request.param
    return value


async def fleet(node: BrokerNode, count: int, **fields: Any) -> list[RawClient]:
    """Clients that have published before, as a fleet has."""
    clients = [await RawClient.connect(node.port, f"device{number}", **fields) for number in range(count)]
    for client in clients:
        client.send(Publish(b"plant/a/first", b"first", 1, 1))
        assert await client.receive() == PubAck(1)
    return clients


def counted(node: BrokerNode, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of appends from now on."""
    lengths: list[int] = []
    append = node.log.append

    def note(*arguments: Any) -> int:
        lengths.append(len(arguments[2]))
        return append(*arguments)

    monkeypatch.setattr(node.log, "append", note)
    return lengths


async def payloads(node: BrokerNode, stream: str = "telemetry") -> list[bytes]:
    return [record.payload for record in await node.stored(stream) if record.payload != b"first"]


async def test_one_append_for_all_that_a_turn_brings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as node:
        clients = await fleet(node, 20)
        lengths = counted(node, monkeypatch)
        for number, client in enumerate(clients):
            client.send(Publish(b"plant/a/x", b"%d" % number, 1, 7))
        assert [await client.receive() for client in clients] == [PubAck(7)] * 20
        assert sum(lengths) == 20
        assert len(lengths) <= 3, "one for each turn of the loop, and the sockets were ready at about the same time"
        assert sorted(await payloads(node), key=int) == [b"%d" % number for number in range(20)]


async def test_nothing_is_acknowledged_before_it_is_on_disk(tmp_path: Path) -> None:
    gate = SyncGate()
    async with running(tmp_path, filesystem=gate) as node:
        clients = await fleet(node, 3)
        with gate.held():
            for client in clients:
                client.send(Publish(b"plant/a/x", b"x", 1, 7))
            await until(gate.reached.is_set)
            for client in clients:
                assert await client.silent()
        assert [await client.receive() for client in clients] == [PubAck(7)] * 3


async def test_a_failed_commit_closes_the_connections_whose_publishes_it_held(tmp_path: Path) -> None:
    gate = SyncGate()
    async with running(tmp_path, filesystem=gate) as node:
        *clients, bystander = await fleet(node, 4)
        gate.error = OSError(5, "the disk is gone")
        for client in clients:
            client.send(Publish(b"plant/a/x", b"x", 1, 7))
        assert [await client.receive() for client in clients] == [None] * 3
        bystander.send(PingReq())
        assert await bystander.receive() == PingResp()


async def test_a_full_stream_refuses_those_who_publish_to_it_and_nobody_else(tmp_path: Path) -> None:
    async with running(tmp_path, patterns={"small": ["s"], "large": ["plant/#"], "both": ["s", "plant/#"]}) as node:
        node.log.set_policy(node.log.stream("small"), StreamPolicy(retain_bytes=8000))
        clients = await fleet(node, 6)
        big, small, large, mixed, early, _ = clients
        early.send(Publish(b"s", b"begun", 1, 7))
        assert await early.receive() == PubAck(7)
        big.send(Publish(b"s", random.randbytes(9000), 1, 7), Publish(b"plant/a/x", b"after", 1, 8))
        small.send(Publish(b"s", b"fits", 1, 7))
        large.send(Publish(b"plant/a/x", b"large", 1, 7))
        mixed.send(Publish(b"plant/a/x", b"mixed", 1, 7), Publish(b"s", random.randbytes(9000), 1, 8))
        assert await big.receive() is None
        assert await small.receive() == PubAck(7)
        assert await large.receive() == PubAck(7)
        assert await mixed.receive() is None, "some of its read could not be stored"
        assert await payloads(node, "small") == [b"begun", b"fits"]


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_disconnect_behind_a_publish_leaves_it_stored(tmp_path: Path, clean_start: bool, qos: int) -> None:
    async with running(tmp_path) as node:
        (client,) = await fleet(node, 1, clean_start=clean_start)
        client.send(Publish(b"plant/a/x", b"last", qos, 7 if qos else 0), Disconnect())
        while await client.receive() is not None:
            pass  # an acknowledgement, where the turn was over before the DISCONNECT
        assert await payloads(node) == [b"last"]


async def test_a_will_comes_after_what_its_client_published_in_the_same_turn(tmp_path: Path, clean_start: bool) -> None:
    async with running(tmp_path) as node:
        client = await RawClient.connect(
            node.port, "c", clean_start=clean_start, will=Will(b"plant/a/will", b"will", 1, False)
        )
        client.send(Publish(b"plant/a/x", b"first", 1, 1))
        assert await client.receive() == PubAck(1)
        client.send(Publish(b"plant/a/x", b"last", 1, 2))
        client.writer.write(b"\xff\xff")  # malformed: the connection ends with its will
        while await client.receive() is not None:
            pass
        assert await payloads(node) == [b"last", b"will"]


async def test_a_client_displaced_before_the_commit_gets_no_answer_and_its_record_stays(tmp_path: Path) -> None:
    gate = SyncGate()
    async with running(tmp_path, filesystem=gate) as node:
        (client,) = await fleet(node, 1)
        with gate.held():
            client.send(Publish(b"plant/a/x", b"x", 1, 7))
            await until(gate.reached.is_set)
            again = await RawClient.connect(node.port, "device0")
            assert await client.receive() is None
        again.send(Publish(b"plant/a/x", b"y", 1, 7))
        assert await again.receive() == PubAck(7)
        assert await payloads(node) == [b"x", b"y"]


async def test_packets_in_any_pieces_are_answered_in_order(tmp_path: Path, clean_start: bool) -> None:
    async with running(tmp_path) as node:
        (client,) = await fleet(node, 1, clean_start=clean_start)
        data = b"".join(encode(Publish(b"plant/a/x", b"%d" % number, 1, number), 4) for number in range(1, 30))
        at = 0
        for size in (len(data) // 29, 3, 40, 1, 1, 1, 100, 7, len(data)):
            client.writer.write(data[at : at + size])
            await client.writer.drain()
            for _ in range(3):
                await asyncio.sleep(0)
            at += size
        assert [await client.receive() for _ in range(1, 30)] == [PubAck(number) for number in range(1, 30)]
        assert await payloads(node) == [b"%d" % number for number in range(1, 30)]


async def test_qualities_of_service_share_a_turn(tmp_path: Path, clean_start: bool) -> None:
    async with running(tmp_path) as node:
        (client,) = await fleet(node, 1, clean_start=clean_start)
        client.send(
            Publish(b"plant/a/x", b"0"),
            Publish(b"plant/a/x", b"1", 1, 7),
            Publish(b"plant/a/x", b"2", 2, 8),
            Publish(b"alarm/x", b"3", 1, 9),
            Publish(b"plant/a/x", b"2", 2, 8, dup=True),
            PubRel(8),
            Publish(b"plant/a/x", b"4", 2, 8),
        )
        answers = [await client.receive() for _ in range(6)]
        assert answers == [PubAck(7), PubRec(8), PubAck(9), PubRec(8), PubComp(8), PubRec(8)]
        assert await payloads(node) == [b"0", b"1", b"2", b"4"]
        assert await payloads(node, "alarms") == [b"3"]


async def test_a_retained_publish_is_answered_in_its_place(tmp_path: Path, clean_start: bool) -> None:
    async with running(tmp_path) as node:
        (client,) = await fleet(node, 1, clean_start=clean_start)
        numbers = range(1, 41)
        for number in numbers:
            client.send(Publish(b"plant/a/x", b"%d" % number, 1, number, retain=number % 3 == 0))
            if number % 7 == 0:
                await client.writer.drain()
                await asyncio.sleep(0)
        assert [await client.receive() for _ in numbers] == [PubAck(number) for number in numbers]
        assert await payloads(node) == [b"%d" % number for number in numbers]
        assert node.mqtt.retained.get(b"plant/a/x").payload == b"39"  # type: ignore[union-attr]


async def test_a_subscription_gets_nothing_that_came_before_it_in_the_turn(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        client, other = await fleet(node, 2)
        other.send(Publish(b"plant/a/x", b"before", 1, 7))
        client.send(
            Publish(b"plant/a/x", b"own before", 1, 7),
            Subscribe(8, (Subscription("plant/a/x", 0),)),
            Publish(b"plant/a/x", b"after", 1, 9),
        )
        found = [await client.receive() for _ in range(4)]
        assert Publish(b"plant/a/x", b"after") in found
        assert SubAck(8, (0,)) in found
        assert [each.payload for each in found if isinstance(each, Publish)] in ([b"after"], [b"before", b"after"])
        assert found.index(SubAck(8, (0,))) < found.index(Publish(b"plant/a/x", b"after"))


async def test_subscribers_see_each_publisher_in_order_across_streams(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        subscriber = await RawClient.connect(node.port, "subscriber")
        await subscriber.subscribe(("#", 1))
        clients = await fleet(node, 3)
        for _ in clients:
            subscriber.send(PubAck((await subscriber.receive()).packet_id))
        for number, client in enumerate(clients):
            client.send(
                *[
                    Publish((b"plant/a/x", b"alarm/x", b"other")[at % 3], b"%d %d" % (number, at), at % 2, 7 * (at % 2))
                    for at in range(6)
                ]
            )
        found: list[bytes] = []
        while len(found) < 18:
            packet = await subscriber.receive()
            if packet.qos:
                subscriber.send(PubAck(packet.packet_id))
            found.append(packet.payload)
        for number in range(3):
            assert [each for each in found if each.startswith(b"%d " % number)] == [
                b"%d %d" % (number, at) for at in range(6)
            ]


async def test_properties_reach_subscribers_as_they_were_published(tmp_path: Path) -> None:
    """[MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-18] [MQTT-3.3.2-20]"""
    async with running(tmp_path) as node:
        subscriber = await RawClient.connect5(node.port, "subscriber")
        await subscriber.subscribe(("plant/#", 0))
        device = await RawClient.connect5(node.port, "device")
        properties = Properties(
            payload_format_indicator=1,
            message_expiry_interval=100,
            content_type="text",
            response_topic="r",
            correlation_data=b"\0\xff",
            user_properties=(("mqtt.x", "1"), ("b", "2"), ("b", "3")),
        )
        device.send(Publish(b"plant/a", b"x", 1, 1, properties=properties))
        found = await subscriber.receive()
        assert found.properties == properties


async def test_a_refused_publish_is_answered_in_its_place(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        client = await RawClient.connect5(node.port, "c")
        denied = ReasonCode.NOT_AUTHORIZED
        for start in (1, 5):
            client.send(
                Publish(b"plant/a", b"x", 1, start),
                Publish(b"$SYS/x", b"x", 1, start + 1),
                Publish(b"plant/a", b"x", 1, start + 2),
                Publish(b"$SYS/x", b"x", 1, start + 3),
            )
        answers = [await client.receive() for _ in range(8)]
        assert answers == [PubAck(number) if number % 2 else PubAck(number, denied) for number in range(1, 9)]


async def test_a_publisher_waits_while_too_much_waits_for_the_disk(tmp_path: Path) -> None:
    gate = SyncGate()
    async with running(tmp_path, filesystem=gate, pending_bytes=20_000) as node:
        clients = await fleet(node, 4)
        with gate.held():
            for number in range(1, 40):
                for client in clients:
                    client.send(Publish(b"plant/a/x", bytes(1000), 1, number))
                await asyncio.sleep(0.002)
            await until(lambda: node.context.ingest.back_pressure.holding)
        for client in clients:
            assert [await client.receive() for _ in range(1, 40)] == [PubAck(number) for number in range(1, 40)]
        assert len(await payloads(node)) == 4 * 39


async def test_a_long_turn_is_stored_before_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or what thousands of clients send at once would be in memory and not counted."""
    monkeypatch.setattr(ingest, "TICK_BYTES_MAX", 5000)
    gate = SyncGate()
    async with running(tmp_path, filesystem=gate) as node:
        clients = await fleet(node, 30)
        lengths = counted(node, monkeypatch)
        for client in clients:
            client.send(Publish(b"plant/a/x", bytes(500), 1, 7), Publish(b"plant/a/x", bytes(500), 1, 8))
        for client in clients:
            assert [await client.receive(), await client.receive()] == [PubAck(7), PubAck(8)]
        assert sum(lengths) == 60
        assert max(lengths) <= 12


async def test_a_subscriber_that_does_not_publish_is_read_while_publishers_wait(tmp_path: Path) -> None:
    gate = SyncGate()
    async with running(tmp_path, filesystem=gate, pending_bytes=1000) as node:
        (client,) = await fleet(node, 1)
        subscriber = await RawClient.connect(node.port, "subscriber")
        with gate.held():
            client.send(Publish(b"plant/a/x", bytes(2000), 1, 7))
            subscriber.send(PingReq())
            assert await subscriber.receive() == PingResp()
            await until(lambda: node.context.ingest.back_pressure.holding)
            subscriber.send(PingReq())
            assert await subscriber.receive() == PingResp()
        assert await client.receive() == PubAck(7)


@pytest.mark.parametrize("topic_filter", ["f/#", "$share/g/f/#"])
@pytest.mark.parametrize("queue_bytes", [400, 700, 1000])
async def test_a_subscriber_that_falls_behind_in_a_turn_of_overlapping_streams_misses_nothing(
    tmp_path: Path, topic_filter: str, queue_bytes: int
) -> None:
    """Both topics are in the stream ``all``, in two runs: received by turns, they are one behind the other there."""
    patterns = {"all": ["f/#"], "alarms": ["f/{d}/alarm"]}
    limits = EdgeLimits(inflight=2, session_queue_bytes=queue_bytes)
    async with running(tmp_path, patterns=patterns, limits=limits) as node:
        slow = await RawClient.connect(node.port, "slow", clean_start=False)
        await slow.subscribe((topic_filter, 1))
        device = await RawClient.connect(node.port, "device")
        for number, topic in enumerate((b"f/1/t", b"f/1/alarm"), 1):
            device.send(Publish(topic, b"first", 1, number))
            assert await device.receive() == PubAck(number)
            slow.send(PubAck((await slow.receive()).packet_id))
        sent = [b"t0", b"a0", b"a1", b"a2", b"t1", b"t2"]
        topics = {b"t": b"f/1/t", b"a": b"f/1/alarm"}
        device.send(*[Publish(topics[each[:1]], each * 100, 1, 10 + at) for at, each in enumerate(sent)])
        assert [await device.receive() for _ in sent] == [PubAck(10 + at) for at in range(len(sent))]
        found: list[bytes] = []
        for _ in sent:
            message = await slow.receive()
            assert isinstance(message, Publish), f"missing beside {found}"
            slow.send(PubAck(message.packet_id))
            found.append(message.payload[:2])
        for kind in (b"t", b"a"):
            assert [each for each in found if each[:1] == kind] == [each for each in sent if each[:1] == kind]


@pytest.mark.parametrize("reads_s_max", [1e9, -1.0], ids=["at once", "in turns"])
async def test_packets_that_come_in_pieces_fill_a_turn_by_all_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads_s_max: float
) -> None:
    """Their last pieces alone are few: a turn would pass the bound of what may wait, and clients be refused."""
    monkeypatch.setattr(context, "READS_S_MAX", reads_s_max)
    mib, clients = 1 << 20, 20
    settings = LogSettings(segment_bytes=64 * mib, budget_bytes=1024 * mib, pending_bytes_max=4 * mib)
    gate = SyncGate()
    async with running(tmp_path, filesystem=gate, pending_bytes=4 * mib, log_settings=settings) as node:
        devices = await fleet(node, clients)
        received = node.counters.bytes_received
        packet = encode(Publish(b"plant/a/x", bytes(mib - 200), 1, 7), 4)
        for device in devices:
            device.writer.write(packet[:-1])
            await device.writer.drain()
        await until(lambda: node.counters.bytes_received >= received + clients * (len(packet) - 1))
        first = await RawClient.connect(node.port, "first")
        with gate.held():
            first.send(Publish(b"plant/a/x", b"x", 1, 1))
            await until(gate.reached.is_set)  # an idle log takes any turn, however long
            for device in devices:
                device.writer.write(packet[-1:])
            await until(lambda: node.context.ingest.back_pressure.pauses > 0)
        answers = [await device.receive() for device in devices]
        assert answers == [PubAck(7)] * clients


async def test_a_record_that_is_too_large_leaves_no_identifier_behind(tmp_path: Path) -> None:
    """The identifier would answer for it when the client sends it again."""
    mib = 1 << 20
    settings = LogSettings(segment_bytes=64 * mib, budget_bytes=1024 * mib)
    state = StateSettings(reserve_bytes=19 * mib)
    async with running(tmp_path, message_bytes=17 * mib, log_settings=settings, state_settings=state) as node:
        topic = b"plant/a/x"
        payload = bytes(17 * mib - 9 - len(topic))
        for again in (False, True):
            client = await RawClient.connect(node.port, "client", clean_start=False)
            client.send(Publish(topic, payload, 2, 7, dup=again))
            assert await client.receive() is None, "not stored and not acknowledged"
        assert await node.stored() == []


# --- The time that clients have, one by one and together


class Loop:
    """An event loop whose clock the test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due: list[Callable[[], None]] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[[], None]) -> object:
        self.due.append(callback)
        return object()

    def next(self) -> None:
        self.due.pop(0)()


def test_the_reads_of_one_iteration_have_a_time_together() -> None:
    loop = Loop()
    pacing = ReadPacing(loop)  # type: ignore[arg-type]
    assert pacing.admits(loop.now)
    loop.now += READS_S_MAX / 2
    assert pacing.admits(loop.now)
    loop.now += READS_S_MAX
    assert not pacing.admits(loop.now)
    loop.next()
    assert pacing.admits(loop.now), "the next iteration has a time of its own"


def test_a_packet_costs_what_it_makes_the_node_do() -> None:
    assert cost(Subscribe(1, tuple(Subscription(f"a/{number}", 0) for number in range(7)))) == 7
    assert cost(PingReq()) == 1
    assert cost(Publish(b"a", b"x" * 1000, 0)) == 0


# --- A user whose sessions change too often has to wait; others do not


SETTINGS = StateSettings(state=State(journal_bytes_per_user=2_000))
FILTERS = tuple(Subscription(f"plant/{number}/{'x' * 600}", 1) for number in range(200))
"""Some 40,000 bytes of journal in each turn: twenty seconds of changes."""


async def code_of_connect(node: BrokerNode, user: str, *, expiry: int) -> int:
    client = await RawClient.open(node.port)
    client.version = 5
    client.send(Connect(user, version=5, username=user, properties=Properties(session_expiry_interval=expiry)))
    answer = await client.receive()
    assert isinstance(answer, ConnAck)
    client.send(Disconnect())
    await client.close()
    return int(answer.code)


async def test_clients_of_a_user_whose_sessions_change_too_often_wait(tmp_path: Path) -> None:
    async with running(tmp_path, state_settings=SETTINGS) as node:
        busy = await RawClient.connect5(node.port, "busy", username="mallory", session_expiry_interval=100)
        busy.send(Subscribe(1, FILTERS))
        await until(lambda: node.counters.subscriptions >= 64)
        assert await busy.silent()
        assert node.counters.subscriptions < len(FILTERS), "the rest of the packet waits"
        assert await code_of_connect(node, "mallory", expiry=100) == ReasonCode.CONNECTION_RATE_EXCEEDED
        assert await code_of_connect(node, "mallory", expiry=0) == 0, "this one is not in the journal"
        assert await code_of_connect(node, "alice", expiry=100) == 0
        (refused,) = node.state.refusals
        assert (refused.bound, str(refused.owner)) == ("state.journal_per_user", "user mallory")
