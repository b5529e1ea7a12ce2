"""Retained messages that take a while to be sent: what changes meanwhile, and who else has to wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.edge_node.servers.mqtt.harness import BrokerNode, RawClient, running
from tests.edge_node.sessions.window.clients import Clients
from tests.support.waiting import until
from weft.bounds import RoundRobin, scheduling
from weft.edge_node.sessions import session as retained_delivery
from weft.edge_node.sessions.session import TURN_BYTES_MAX, TURN_MESSAGES_MAX, TURN_STEPS_MAX, RetainedDelivery
from weft.edge_node.subscriptions.message import Message
from weft.edge_node.subscriptions.subscriptions import ClientSubscription, DeliveryOptions
from weft.protocols.mqtt.decoder import decode
from weft.protocols.mqtt.packets import (
    PingReq,
    PingResp,
    Properties,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    Subscription,
    Unsubscribe,
)

TOPICS = 30
WINDOW = 5


async def rest(
    node: BrokerNode, client: RawClient, publisher: RawClient, first: list[Publish]
) -> dict[bytes, list[bytes]]:
    """Topic -> the payloads that a client is still sent, in order, as it acknowledges them."""

    async def receive() -> dict[bytes, list[bytes]]:
        found: dict[bytes, list[bytes]] = {}
        while (message := await client.receive()).topic != b"end":
            found.setdefault(message.topic, []).append(message.payload)
            client.send(PubAck(message.packet_id))
        return found

    client.send(*(PubAck(message.packet_id) for message in first))
    receiving = asyncio.create_task(receive())
    (window,) = (session.window for session in node.mqtt.sessions.all() if session.client_id == "slow")
    retained = node.mqtt.session_context.retained
    await until(lambda: not (retained.is_sending(window) or window.in_flight.deliveries))
    publisher.send(Publish(b"end", b"", 1, 1))
    return await receiving


async def begun(port: int, topic_filter: str = "t/+") -> tuple[RawClient, list[Publish]]:
    """A client that has been sent the first few of the retained messages, and has not acknowledged them."""
    client = await RawClient.connect5(port, "slow", receive_maximum=WINDOW)
    await client.subscribe((topic_filter, 1), ("end", 1))
    return client, [await client.receive() for _ in range(WINDOW)]


async def publish(client: RawClient, payload: bytes, *, retain: bool = True, **properties: int) -> None:
    for number in range(TOPICS):
        client.send(Publish(b"t/%d" % number, payload, 1, number + 1, retain, False, Properties(**properties)))  # type: ignore[arg-type]
    for _ in range(TOPICS):
        assert isinstance(await client.receive(), PubAck)


async def test_a_topic_ends_on_its_last_message(tmp_path: Path) -> None:
    """[MQTT-4.6.0-6] [MQTT-3.3.1-9]: one that is published while the retained ones are sent is the newer one"""
    async with running(tmp_path) as node:
        publisher = await RawClient.connect5(node.port, "publisher")
        await publish(publisher, b"old")
        client, first = await begun(node.port)
        await publish(publisher, b"new")
        found = await rest(node, client, publisher, first)
        assert found == {b"t/%d" % number: [b"new"] for number in range(TOPICS)}, "each once: as it is published"


@pytest.mark.parametrize("how", ["cleared", "expired"])
async def test_what_is_gone_meanwhile_is_not_sent(tmp_path: Path, how: str) -> None:
    """[MQTT-3.3.1-6] [MQTT-3.3.2-5]"""
    later_ns = 0
    async with running(tmp_path, wall_clock=lambda: time.time_ns() + later_ns) as node:
        publisher = await RawClient.connect5(node.port, "publisher")
        await publish(publisher, b"old", message_expiry_interval=1000)
        client, first = await begun(node.port)
        if how == "cleared":
            await publish(publisher, b"")
        else:
            later_ns = 2000 * 10**9
        found = await rest(node, client, publisher, first)
        assert {payload for payloads in found.values() for payload in payloads} <= {b""}


async def test_what_is_retained_by_the_read_that_subscribes_comes_once(tmp_path: Path) -> None:
    """[MQTT-3.3.1-9]: a client gets its own message as any other, and not as a retained one besides"""
    async with running(tmp_path) as node:
        client = await RawClient.connect(node.port)
        wanted = (Subscription("a", 0), Subscription("b", 0))
        client.send(Subscribe(1, wanted), Publish(b"b", b"x", retain=True), PingReq())
        answers = {type(answer): answer for answer in [await client.receive() for _ in range(3)]}
        assert answers == {SubAck: SubAck(1, (0, 0)), PingResp: PingResp(), Publish: Publish(b"b", b"x")}
        (session,) = node.mqtt.sessions.all()
        await until(lambda: not node.mqtt.session_context.retained.is_sending(session.window))
        client.send(Publish(b"a", b"end"))
        assert await client.receive() == Publish(b"a", b"end")


async def test_unsubscribing_ends_it(tmp_path: Path) -> None:
    """[MQTT-3.10.4-2]: no message more for a filter that was taken out, though others continue"""
    async with running(tmp_path) as node:
        publisher = await RawClient.connect5(node.port, "publisher")
        await publish(publisher, b"old")
        client, first = await begun(node.port)
        client.send(Unsubscribe(7, ("t/+",)))
        await client.receive()
        await client.subscribe(("t/29", 1))
        assert await rest(node, client, publisher, first) == {b"t/29": [b"old"]}


# --- turns


def packets(written: list[bytes]) -> int:
    data, at, count = b"".join(written), 0, 0
    while at < len(data):
        decoded = decode(data, at, 1 << 24, 4)
        assert decoded is not None
        at, count = decoded[1], count + 1
    return count


class Slow:
    """A feed of one client, and how much it has been sent."""

    def __init__(self, count: int, payload: bytes = b"x", searched: int = 0) -> None:
        self.searched, self.steps = searched, 0
        self.clients, self.matched = Clients(inflight_max=10), list[str]()
        self.window, self.connection = self.clients.window(persistent=True)
        self.messages = [Message(b"t/%d" % number, payload, 0, retain=True) for number in range(count)]
        self.retained = RetainedDelivery(
            self._match, lambda _, message: message, RoundRobin(self.clients.outbox.flush, 0)
        )

    def _match(self, topic_filter: str, _: int) -> Iterable[Message | None]:
        self.matched.append(topic_filter)
        for message in [*[None] * self.searched, *self.messages]:
            self.steps += 1
            yield message

    def subscribe(self, *filters: str) -> None:
        """As a read with SUBSCRIBE does."""
        for text in filters:
            self.retained.send(self.window, ClientSubscription(self.window, text, Subscription(text, 0), None), 0)
        self.read()

    def read(self) -> None:
        """As a read does whatever the client sends."""
        self.clients.answered(self.window)

    @property
    def is_done(self) -> bool:
        return not self.retained.is_sending(self.window)

    @property
    def sent(self) -> int:
        return packets(self.connection)


async def test_others_have_their_turn() -> None:
    """A client that subscribes to fifty thousand messages does not keep all others waiting"""
    slow = Slow(3 * TURN_MESSAGES_MAX)
    slow.subscribe("#")
    for turn in range(1, 4):
        assert slow.sent == turn * TURN_MESSAGES_MAX
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert slow.is_done
    assert slow.sent == len(slow.messages)


async def test_a_turn_has_only_so_many_bytes() -> None:
    slow = Slow(100, bytes(TURN_BYTES_MAX // 4))
    slow.subscribe("#")
    assert slow.sent == 4
    await asyncio.sleep(0)
    assert slow.sent == 8


async def test_a_client_that_sends_much_meanwhile_is_sent_no_more() -> None:
    slow = Slow(10 * TURN_MESSAGES_MAX)
    slow.subscribe("#")
    for _ in range(100):
        slow.read()
    assert slow.sent == TURN_MESSAGES_MAX
    await asyncio.sleep(0)
    assert slow.sent == 2 * TURN_MESSAGES_MAX, "one turn at a time, however often it was asked for"


async def test_a_client_that_does_not_read_is_not_written_to() -> None:
    slow = Slow(4 * TURN_MESSAGES_MAX)
    slow.subscribe("#")
    slow.window.pause(slow.connection)
    for _ in range(3):
        await asyncio.sleep(0)
    assert slow.sent == TURN_MESSAGES_MAX
    slow.window.resume(slow.connection)
    slow.read()
    assert slow.sent == 2 * TURN_MESSAGES_MAX


async def test_nothing_is_sent_to_a_client_that_has_gone() -> None:
    slow = Slow(4 * TURN_MESSAGES_MAX)
    slow.subscribe("#")
    slow.window.lose()
    slow.retained.forget(slow.window)
    again = slow.clients.connect(slow.window)
    await asyncio.sleep(0)
    assert again == []
    assert slow.sent == TURN_MESSAGES_MAX


async def test_a_filter_that_waits_is_not_sent_twice() -> None:
    """A packet of 160 KB holds one filter forty thousand times"""
    slow = Slow(1)
    slow.subscribe(*["a", "#"] * 20_000)
    await until(lambda: slow.is_done)
    assert slow.matched == ["a", "#"]
    assert slow.sent == 2


async def test_one_filter_is_looked_up_a_turn() -> None:
    slow = Slow(0)
    slow.subscribe("a", "b", "c")
    for turn in range(1, 4):
        assert len(slow.matched) == turn
        await asyncio.sleep(0)
    assert slow.is_done


async def test_a_search_that_finds_nothing_is_spread_over_turns() -> None:
    """A filter that ends on a level that no topic has looks at all topics, and matches none"""
    slow = Slow(1, searched=3 * TURN_STEPS_MAX)
    slow.subscribe("+/+/nothing")
    for turn in range(1, 4):
        assert (turn - 1) * TURN_STEPS_MAX < slow.steps <= turn * TURN_STEPS_MAX
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert slow.is_done
    assert slow.sent == 1


async def test_clients_that_search_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many look up everything, the event loop is left to others after the time of a round"""
    monkeypatch.setattr(scheduling, "ROUND_S", 0.0)
    slow = Slow(5 * TURN_MESSAGES_MAX)
    others = [slow.clients.window() for _ in range(3)]
    for window, connection in others:
        slow.retained.send(window, ClientSubscription(window, "#", Subscription("#", 0), None), 0)
        slow.clients.answered(window)
        assert connection
    before = [packets(connection) for _, connection in others]
    for turn in range(1, 4):
        await asyncio.sleep(0)
        assert [packets(connection) for _, connection in others] == [
            each + TURN_MESSAGES_MAX * (number < turn) for number, each in enumerate(before)
        ]
    for _ in range(20):
        await asyncio.sleep(0)
    assert not any(slow.retained.is_sending(window) for window, _ in others)


async def test_what_would_wait_for_the_journal_waits_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retained_delivery, "HELD_WAIT_S", 0)
    slow = Slow(2 * TURN_MESSAGES_MAX)
    slow.subscribe("#")
    slow.window.send(Message(b"t", b"", 2), DeliveryOptions(slow.window, 2), 2)
    slow.clients.outbox.flush()
    assert slow.window.held
    for _ in range(10):
        await asyncio.sleep(0)
    assert slow.sent == TURN_MESSAGES_MAX
    slow.clients.journal.sync()
    await until(lambda: slow.is_done)
    assert slow.sent == len(slow.messages) + 1, "and the one that waited for the journal"
