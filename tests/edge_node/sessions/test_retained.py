"""Tests of ``edge_node/sessions/retained.py``."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.edge_node.servers.mqtt.harness import BrokerNode, RawClient, running
from tests.edge_node.sessions.room import Clients, Owner
from tests.support.waiting import until
from weft.bounds import Refusals, RoundRobin, scheduling, user_or_address
from weft.config.limits import EdgeLimits
from weft.edge_node.sessions import session as retained_delivery
from weft.edge_node.sessions.database import Database
from weft.edge_node.sessions.records import StateCounters
from weft.edge_node.sessions.retained import RetainedMessages, TopicTree, create_tables
from weft.edge_node.sessions.session import TURN_BYTES_MAX, TURN_MESSAGES_MAX, TURN_STEPS_MAX, RetainedDelivery
from weft.edge_node.subscriptions.message import Message
from weft.edge_node.subscriptions.subscriptions import ClientSubscription, DeliveryOptions
from weft.protocols.mqtt.decoder import decode
from weft.protocols.mqtt.packets import (
    NO_PROPERTIES,
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
from weft.protocols.topics import matches

SECOND = 1_000_000_000
LEVELS = st.lists(st.sampled_from(["a", "b", "", "$x"]), min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = (
    st.tuples(st.lists(st.sampled_from(["a", "b", "", "+", "$x"]), max_size=3), st.sampled_from([[], ["#"]]))
    .map(lambda parts: "/".join([*parts[0], *parts[1]]))
    .filter(bool)
)


class Shelf:
    """Retained messages over a real file, with a clock that stands."""

    def __init__(self, directory: Path, limits: EdgeLimits | None = None) -> None:
        self.now = 1_000 * SECOND
        self.owner = Owner()
        self.counters = StateCounters()
        self.database = Database(str(directory), create_tables, self.owner.post)
        self.messages = RetainedMessages(
            self.database, limits or EdgeLimits(), self.counters, Refusals(lambda: self.now / SECOND), lambda: self.now
        )

    def put(
        self, topic: str, payload: bytes = b"x", properties: Properties = NO_PROPERTIES, user: str | None = None
    ) -> bool:
        owner = user_or_address(user, "")
        return self.messages.set(topic.encode(), payload, 1, properties, self.now, owner)

    def topics(self, topic_filter: str = "#") -> set[str]:
        return {message.topic.decode() for message in self.messages.match(topic_filter)}

    def limit_pages(self, pages: int) -> None:
        def limit(database: sqlite3.Connection) -> None:
            database.execute(f"PRAGMA max_page_count = {pages}")

        self.database.run(limit)

    def durable(self) -> BaseException | None:
        return self.owner.outcome(self.messages.on_durable)


@given(topics=st.sets(LEVELS, max_size=12), gone=st.sets(LEVELS, max_size=4), topic_filter=FILTERS)
def test_a_filter_finds_what_it_matches(topics: set[str], gone: set[str], topic_filter: str) -> None:
    tree = TopicTree()
    for topic in topics | gone:
        tree.add(topic.encode())
    for topic in gone:
        tree.remove(topic.encode())
    kept = topics - gone
    assert sorted(tree.match(topic_filter)) == sorted(t.encode() for t in kept if matches(topic_filter, t))


@given(
    topics=st.sets(LEVELS), taken=st.sets(LEVELS), added=st.sets(LEVELS), topic_filter=FILTERS, at=st.integers(0, 20)
)
def test_a_search_outlives_changes_of_the_tree(
    topics: set[str], taken: set[str], added: set[str], topic_filter: str, at: int
) -> None:
    tree = TopicTree()
    for topic in topics:
        tree.add(topic.encode())
    search = tree.walk(topic_filter)
    found = list(islice(search, at))
    for topic in taken & topics:
        tree.remove(topic.encode())
    for topic in added - topics:
        tree.add(topic.encode())
    found += search
    stays = {topic.encode() for topic in topics - taken if matches(topic_filter, topic)}
    ever = {topic.encode() for topic in topics | added if matches(topic_filter, topic)}
    assert stays <= {topic for topic in found if topic is not None} <= ever


def test_a_step_of_a_search_looks_at_one_node() -> None:
    """However many topics there are: who searches decides after each step whether to continue."""
    tree, nodes = TopicTree(), 3009
    for number in range(3000):
        tree.add(b"r/%d/%d" % (number % 7, number))
    for topic_filter, matching in (("#", 3000), ("+/+/+", 3000), ("+/+/+/x", 0), ("+/+/1/+", 0), ("r/3/#", 429)):
        steps = list(tree.walk(topic_filter))
        assert len(steps) - steps.count(None) == matching
        assert len(steps) <= nodes
        assert next(tree.walk(topic_filter)) is None, "the root alone was looked at"


def test_a_tree_forgets_what_was_taken_out() -> None:
    tree = TopicTree()
    for topic in (b"a/b/c", b"a/b", b"a/x"):
        tree.add(topic)
    for topic in (b"a/b", b"a/b/c", b"a/x"):
        tree.remove(topic)
    assert not tree._root.children


def test_the_last_message_of_a_topic_survives_a_restart(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    properties = Properties(content_type="text/plain", user_properties=(("a", "b"),), correlation_data=b"\0\xff")
    shelf.put("plant/1", b"old")
    shelf.put("plant/1", b"\0new", properties)
    shelf.put("plant/2")
    shelf.put("plant/ü")
    shelf.messages.clear(b"plant/2")
    shelf.messages.clear(b"never/there")
    assert shelf.durable() is None
    again = Shelf(tmp_path)
    (found,) = again.messages.match("plant/1")
    assert (found.topic, found.payload, found.qos, found.properties) == (b"plant/1", b"\0new", 1, properties)
    assert found.stored_ns == shelf.now
    assert again.topics() == {"plant/1", "plant/ü"}
    assert len(again.messages) == again.counters.retained == 2
    assert again.counters.retained_bytes == shelf.counters.retained_bytes


def test_durable_says_so_at_once_when_nothing_waits(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    reports: list[object] = []
    shelf.messages.on_durable(reports.append)
    assert reports == [None]
    shelf.put("a")
    shelf.messages.on_durable(reports.append)
    assert reports == [None]
    shelf.owner.wait_for(lambda: len(reports) == 2)
    assert reports == [None, None]


def test_topics_of_the_server_are_not_found_by_a_wildcard(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    for topic in ("$SYS/uptime", "a", "a/$b"):
        shelf.put(topic)
    assert shelf.topics("#") == {"a", "a/$b"}
    assert shelf.topics("+/uptime") == set()
    assert shelf.topics("$SYS/#") == {"$SYS/uptime"}


def test_expired_messages_are_gone_also_from_the_file(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    shelf.put("soon", properties=Properties(message_expiry_interval=10))
    shelf.put("later", properties=Properties(message_expiry_interval=20))
    shelf.put("renewed", properties=Properties(message_expiry_interval=10))
    shelf.put("renewed")
    shelf.now += 10 * SECOND
    assert shelf.topics() == {"later", "renewed"}
    assert shelf.counters.retained_expired == 1
    assert shelf.durable() is None
    assert Shelf(tmp_path).topics() == {"later", "renewed"}


def test_many_renewals_of_a_message_that_expires_do_not_pile_up(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    for _ in range(1000):
        shelf.now += 1
        shelf.put("a", properties=Properties(message_expiry_interval=3600))
    assert len(shelf.messages._deadlines) < 100


@pytest.mark.parametrize(
    "limits", [EdgeLimits(retained=2, retained_bytes=9000, user_share=1), EdgeLimits(retained_bytes=1900, user_share=1)]
)
def test_a_limit_refuses_what_is_new_and_keeps_what_is_there(tmp_path: Path, limits: EdgeLimits) -> None:
    shelf = Shelf(tmp_path, limits)
    assert shelf.put("a")
    assert shelf.put("b")
    assert not shelf.put("c")
    assert shelf.put("a", b"y")
    assert shelf.counters.retained_refused == 1
    shelf.messages.clear(b"b")
    assert shelf.put("c")
    assert shelf.topics() == {"a", "c"}
    assert not shelf.put("a", bytes(10_000))
    assert shelf.messages.match("a")[0].payload == b"y"


def test_a_full_disk_is_told_to_whoever_waits_and_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shelf = Shelf(tmp_path)
    shelf.limit_pages(20)
    shelf.put("large", bytes(1 << 20))
    error = shelf.durable()
    assert "full" in str(error)
    assert "cannot be written" in caplog.text
    assert shelf.database.failed is None
    shelf.limit_pages(100_000)
    shelf.put("small", b"kept with the large one")
    assert shelf.durable() is None
    assert "can be written again" in caplog.text
    assert Shelf(tmp_path).topics() == {"large", "small"}


@pytest.mark.slow
def test_a_hundred_thousand_messages_load_in_seconds(tmp_path: Path) -> None:
    limits = EdgeLimits(retained=100_000, retained_bytes=128 << 20, user_share=1)
    shelf = Shelf(tmp_path, limits)
    for number in range(100_000):
        shelf.put(f"plant/{number % 100}/machine/{number}", b"21.5" * 10)
    assert shelf.durable() is None
    shelf.database.close()
    started, cpu = time.perf_counter(), time.process_time()
    again = Shelf(tmp_path, limits)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    assert len(again.messages) == 100_000
    assert len(again.messages.match("plant/7/#")) == 1000
    print(f"100,000 retained messages: {seconds:.2f} s, {cpu:.2f} s of them CPU")
    assert cpu < 5  # 0.7 s on a quiet machine, and twice that on a busy one


@pytest.mark.parametrize("restarts", [False, True])
def test_retained_messages_of_one_owner_leave_room_for_those_of_others(tmp_path: Path, restarts: bool) -> None:
    limits = EdgeLimits(retained=10, user_share=0.3)
    shelf = Shelf(tmp_path, limits)
    assert [shelf.put(f"m/{number}", user="mallory") for number in range(3)] == [True] * 3
    if restarts:
        assert shelf.durable() is None
        shelf.database.close()
        shelf = Shelf(tmp_path, limits)
    assert not shelf.put("m/3", user="mallory")
    assert shelf.put("m/2", b"again", user="mallory"), "in place of its own"
    assert shelf.put("a/1", user="alice")
    assert not shelf.put("a/1", user="mallory"), "the topic keeps the message that it had"
    assert shelf.put("m/0", user="alice"), "and is alice's from now on"
    assert shelf.put("m/3", user="mallory")
    assert shelf.topics() == {"m/0", "m/1", "m/2", "m/3", "a/1"}
    shelf.database.close()


def test_of_full_retained_messages_the_owner_with_most_loses_its_oldest(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, EdgeLimits(retained_bytes=5 * 900, user_share=1))
    for number in range(4):
        assert shelf.put(f"m/{number}", user="mallory")
    assert shelf.put("a/1", user="alice")
    assert shelf.put("a/2", user="alice")
    assert shelf.topics() == {"m/1", "m/2", "m/3", "a/1", "a/2"}
    assert not shelf.put("m/4", user="mallory"), "nobody has more than mallory"
    assert shelf.put("m/1", b"bigger", user="bob"), "its own topic is not what makes room"
    assert shelf.topics() == {"m/1", "m/2", "m/3", "a/1", "a/2"}
    assert shelf.counters.retained_evicted == 1
    assert shelf.durable() is None
    shelf.database.close()
    assert Shelf(tmp_path).topics() == {"m/1", "m/2", "m/3", "a/1", "a/2"}


# --- Retained messages that take a while to be sent: what changes meanwhile, and who else has to wait


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
