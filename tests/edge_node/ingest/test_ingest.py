"""Tests of ``edge_node/ingest/ingest.py``."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.edge_node.servers.mqtt.harness import RawClient, Somebody, running
from tests.support.waiting import until
from weft.bounds import Owner, OwnerKind
from weft.edge_node.counters import Counters
from weft.edge_node.ingest import routing
from weft.edge_node.ingest.ingest import (
    ANSWERS_IN_TURN,
    ANSWERS_MAX,
    ANSWERS_S_MAX,
    COST_MAX,
    REST_BYTES_MAX,
    REST_MESSAGES_MAX,
    REST_S_MAX,
    REST_S_MIN,
    TICK_BYTES_MAX,
    BackPressure,
    Pause,
    Rests,
    TickBatch,
)
from weft.edge_node.ingest.record import (
    WRITE_COST,
    Destination,
    Gathering,
    NodeRecord,
    NodeSource,
    Route,
    Source,
    queued_run,
)
from weft.edge_node.subscriptions import subscriptions
from weft.edge_node.subscriptions.message import PUBLISHER
from weft.protocols.batch import Flag, HeaderPairs, HeaderValue
from weft.protocols.mqtt.packets import Properties, PubAck, Publish, Subscription
from weft.protocols.ranges import PackedHeaders, packed_headers
from weft.storage.segment_log import LogFull, StreamPolicy


async def test_streams_that_share_topics_keep_their_records_apart(tmp_path: Path) -> None:
    async with running(tmp_path, patterns={"one": ["a/+"], "both": ["a/+", "b"]}) as node:
        for topic, payload in ((b"a/1", b"1"), (b"b", b"2"), (b"a/2", b"3")):
            gathered, flags = Gathering(), Flag.RETAINED if payload == b"3" else 0
            gathered.add(node.context.routing.route(topic), topic, payload, NodeSource(None), flags)
            node.context.ingest.store(gathered)
        assert [(record.payload, record.flags) for record in await node.stored("one")] == [
            (b"1", 0),
            (b"3", Flag.RETAINED),
        ]
        assert [(record.payload, record.flags) for record in await node.stored("both")] == [
            (b"1", 0),
            (b"2", 0),
            (b"3", Flag.RETAINED),
        ]


async def test_what_is_remembered_of_topics_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "TOPICS_MAX", 10)
    monkeypatch.setattr(subscriptions, "TOPICS_MAX", 10)
    async with running(tmp_path) as node:
        topics = node.context.routing.everybody
        stream = (node.log.stream("telemetry"),)
        for number in range(100):
            kept, unrouted = topics.route(b"plant/a/%d" % number), topics.route(b"none/%d" % number)
            assert kept is not None
            assert unrouted is not None
            assert (kept.streams, unrouted.streams) == (stream, (node.log.stream("unrouted"),))
            assert len(topics.plain) <= 10
            assert len(node.context.subscriptions.known) <= 10
        long = b"plant/a/" + b"x" * 600
        assert topics.route(long) is not None
        assert long not in topics.plain


async def test_who_gets_a_topic_is_found_anew_after_every_change(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        topics = node.context.routing.everybody
        client = await RawClient.connect(node.port, "c", clean_start=False)

        def look(topic: bytes) -> tuple[bool, bool]:
            target = topics.route(topic)
            assert target is not None
            return bool(target.live), target.kept_for_sessions

        assert look(b"other") == (False, False)
        await client.subscribe(("other", 0))
        assert look(b"other") == (True, False)
        await client.subscribe(("other", 1))
        assert look(b"other") == (True, True), "a session that survives its connection wants it at QoS 1"
        assert look(b"plant/a") == (False, False)


async def test_a_known_topic_finds_new_subscribers_after_a_client_has_gone(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        gone, publisher = await RawClient.connect(node.port, "gone"), await RawClient.connect(node.port, "publisher")
        publisher.send(Publish(b"other/a", b"nobody yet", 1, 1))
        assert await publisher.receive() == PubAck(1)
        await gone.close()
        await until(lambda: node.counters.connections == 1)
        subscriber = await RawClient.connect(node.port, "subscriber")
        await subscriber.subscribe(("other/#", 0))
        publisher.send(Publish(b"other/a", b"for you"))
        assert await subscriber.receive() == Publish(b"other/a", b"for you")


async def test_clients_that_published_nothing_have_nothing_to_forget(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        node.authenticator.may = lambda _what, _topic: True
        owner = node.context.routing
        one, two = (owner.routes_of(Somebody(node.authenticator, name)) for name in ("one", "two"))
        assert one.route(b"plant/a") is not None
        assert owner.remembering == {one}
        node.authenticator.may = lambda _what, _topic: False
        node.mqtt.sessions.permissions_changed()
        assert owner.remembering == set()
        assert one.route(b"plant/a") is None
        assert two.route(b"plant/a") is None
        node.authenticator.may = lambda _what, _topic: True
        assert two.route(b"plant/a") is not None
        owner.leave(two)
        assert owner.remembering == set()


async def test_properties_become_headers_in_every_stream(tmp_path: Path) -> None:
    """[MQTT-3.3.2-17] [MQTT-3.3.2-18]"""
    async with running(tmp_path, patterns={"one": ["a"], "two": ["a"]}) as node:
        device = await RawClient.connect5(node.port)
        properties = Properties(user_properties=(("unit", "mm"), ("unit", "cm")), content_type="text")
        device.send(Publish(b"a", b"x", 1, 1, properties=properties), Publish(b"a", b"y", 1, 2))
        assert [await device.receive(), await device.receive()] == [PubAck(1), PubAck(2)]
        for stream in ("one", "two"):
            headers = [record.headers for record in await node.stored(stream)]
            assert headers == [(("unit", "mm"), ("unit", "cm"), ("weft.content-type", "text")), ()]


async def test_the_log_names_the_publisher_where_a_session_does_not_want_its_own_messages(tmp_path: Path) -> None:
    """[MQTT-3.8.3-3]"""
    async with running(tmp_path) as node:
        client = await RawClient.connect5(node.port, "c", session_expiry_interval=100)
        await client.subscribe(Subscription("plant/a", 1, no_local=True))
        client.send(Publish(b"plant/a", b"own", 1, 1), Publish(b"plant/b", b"", 1, 2))
        assert [await client.receive(), await client.receive()] == [PubAck(1), PubAck(2)]
        assert [record.headers for record in await node.stored()] == [((PUBLISHER, "c"),), ()]


@pytest.mark.parametrize("clean_start", [True, False])
async def test_a_full_stream_refuses_whoever_publishes_to_it(tmp_path: Path, clean_start: bool) -> None:
    async with running(tmp_path, patterns={"small": ["s"], "large": ["l"]}) as node:
        small = node.log.stream("small")
        node.log.set_policy(small, StreamPolicy(retain_bytes=8000))
        client = await RawClient.connect(node.port, "c", clean_start=clean_start)
        acknowledged = 0
        while True:
            client.send(Publish(b"s", random.Random(acknowledged).randbytes(500), 1, acknowledged + 1))
            if await client.receive() is None:
                break
            acknowledged += 1
        assert 5 < acknowledged < 16
        assert node.log.stream_bytes(small) <= 8000
        assert len(await node.stored("small")) == acknowledged
        client = await RawClient.connect(node.port, "c", clean_start=clean_start)
        client.send(Publish(b"l", b"x", 1, 1))
        assert await client.receive() == PubAck(1)


async def test_what_belongs_together_is_refused_as_a_whole_when_one_stream_is_full(tmp_path: Path) -> None:
    async with running(tmp_path, patterns={"drops": ["a"], "small": ["b"], "both": ["a", "b"]}) as node:
        log, store = node.log, node.context.ingest.store
        log.set_policy(log.stream("drops"), StreamPolicy("drop_oldest", retain_bytes=5000))
        log.set_policy(log.stream("small"), StreamPolicy(retain_bytes=5000))

        def read_of(size: int) -> Gathering:
            gathered = Gathering()
            for topic in (b"a", b"b"):
                gathered.add(
                    node.context.routing.route(topic), topic, random.Random(size).randbytes(size), NodeSource(None)
                )
            return gathered

        with log.together(20_000):
            store(read_of(4000))
        await node.durable()
        before = [(log.next_seq(log.stream(name)), log.ranges(log.stream(name)).count()) for name in ("drops", "both")]
        with pytest.raises(LogFull, match="stream small takes"), log.together(20_000):
            store(read_of(2000))
        await node.durable()
        after = [(log.next_seq(log.stream(name)), log.ranges(log.stream(name)).count()) for name in ("drops", "both")]
        assert after == before == [(1, 1), (2, 2)]
        # No client would send a will again: it is taken.
        with log.together(20_000):
            node.context.ingest.publish(NodeRecord(b"b", bytes(2000)))


# --- back pressure


class Disk:
    """The two things that back-pressure asks of a log, in the test's hand."""

    def __init__(self) -> None:
        self.pending_bytes = 0
        self.waiting: list[Callable[[BaseException | None], None]] = []

    def on_durable(self, callback: Callable[[BaseException | None], None]) -> None:
        self.waiting.append(callback)

    def commit(self, left: int, error: BaseException | None = None) -> None:
        self.pending_bytes = left
        waiting, self.waiting = self.waiting, []
        for callback in waiting:
            callback(error)


class Device:
    held = False

    def hold(self, reason: Pause) -> None:
        assert reason is Pause.DISK
        self.held = True

    def release(self, reason: Pause) -> None:
        self.held = False


def test_everybody_is_held_until_half_of_the_bound_is_free() -> None:
    disk, first, second = Disk(), Device(), Device()
    pressure = BackPressure(disk, 100)  # type: ignore[arg-type]
    pressure.join(first)
    disk.pending_bytes = 100
    pressure.appended()
    assert not first.held
    disk.pending_bytes = 101
    pressure.appended()
    pressure.appended()
    pressure.join(second)
    assert first.held
    assert second.held
    assert len(disk.waiting) == 1
    disk.commit(left=51)
    assert first.held
    disk.commit(left=50)
    assert not first.held
    assert not second.held
    assert pressure.pauses == 1


@pytest.mark.parametrize("error", [OSError("disk")])
def test_a_failed_log_holds_nobody(error: OSError) -> None:
    disk, device = Disk(), Device()
    pressure = BackPressure(disk, 100)  # type: ignore[arg-type]
    pressure.join(device)
    disk.pending_bytes = 1000
    pressure.appended()
    assert device.held
    disk.commit(left=1000, error=error)
    assert not device.held


def test_who_has_left_is_not_called() -> None:
    disk, device = Disk(), Device()
    pressure = BackPressure(disk, 100)  # type: ignore[arg-type]
    pressure.join(device)
    pressure.leave(device)
    pressure.leave(device)
    disk.pending_bytes = 1000
    pressure.appended()
    assert not device.held


# --- Records for queues name their queues, whatever their headers are kept as


PAIRS: HeaderPairs = (("unit", "C"), ("amqp.delivery-mode", 2))


class Queue:
    width = 1
    is_of_topic = False

    def __init__(self, number: int) -> None:
        self.header: tuple[str, HeaderValue] = ("weft.queues", number)

    def admit(self, _headers: HeaderPairs, _size: int) -> Queue:
        return self

    def admit_all(self, _size: int) -> Queue:
        return self

    def withdraw(self) -> None: ...


@pytest.mark.parametrize("headers", [(), PAIRS, packed_headers(PAIRS)], ids=["none", "plain", "packed"])
def test_every_record_names_its_own_queues(headers: HeaderPairs) -> None:
    gathered, queues = Gathering(), [Queue(1), Queue(2)]
    for number in (0, 0, 1, 0):
        route = Route(Destination((), False, False), live=False, marked=False, queues=queues[number])
        gathered.add(route, b"a", b"1", NodeSource(None), 0, headers)
    run = queued_run(gathered, {})
    assert [run.headers[at] for at in range(4)] == [(*headers, ("weft.queues", number)) for number in (1, 1, 2, 1)]
    for pairs in run.headers.values():
        if isinstance(pairs, PackedHeaders):
            assert msgspec.msgpack.decode(pairs.packed) == [list(pair) for pair in pairs]


# --- tick batch


ROUTE = Route(Destination((1,), False, False), live=False, marked=False)
OTHER = Route(Destination((2,), False, False), live=False, marked=False)


class NotedSource:
    """A source that notes its answers and refusals."""

    def __init__(self, publisher: str, owner: Owner | None = None) -> None:
        self.publisher: str | None = publisher
        self.owner = owner
        self.reported: list[bytes | str] = []

    def acknowledge(self, answers: bytes) -> None:
        self.reported.append(answers)

    def refuse(self, error: BaseException) -> None:
        self.reported.append(str(error))


class Store:
    """Where turns end: keeps what is stored, and makes it durable when a test says so."""

    def __init__(self) -> None:
        self.stored: list[list[bytes]] = []
        """Payloads by append."""
        self.full_for: set[Source] = set()
        self.waiting: list[Callable[[BaseException | None], None]] = []

    def store_each(self, gathered: Gathering) -> dict[Source, Exception]:
        refused: dict[Source, Exception] = {}
        for run in gathered.groups.values():
            refused.update({source: LogFull("full") for source in run.sources if source in self.full_for})
            self.stored.append([p for p, s in zip(run.payloads, run.sources, strict=True) if s not in refused])
        return refused

    def on_durable(self, callback: Callable[[BaseException | None], None]) -> None:
        self.waiting.append(callback)


class Loop:
    """A loop whose turns end when a test says so."""

    def __init__(self) -> None:
        self.time = 10.0
        self.ready: list[Callable[[], None]] = []

    def end_turn(self) -> None:
        ready = self.ready.copy()
        self.ready.clear()
        for callback in ready:
            callback()


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def batch(loop: Loop, store: Store) -> TickBatch:
    batch = TickBatch(loop.ready.append, lambda: loop.time, Counters())
    batch.stores_in(store)
    return batch


def publish(batch: TickBatch, client: NotedSource, payload: bytes, answer: bytes = b"", route: Route = ROUTE) -> None:
    batch.add(route, b"t", payload, client)
    if answer:
        batch.answer(client, answer)
    batch.gathered()


def commit(batch: TickBatch, store: Store, error: Exception | None = None) -> None:
    """Call back as the log does after a commit."""
    waiting, store.waiting = store.waiting, []
    for callback in waiting:
        callback(error)
    batch.committed()


def test_reads_of_a_turn_are_one_append_and_each_client_gets_its_own_answers(
    loop: Loop, batch: TickBatch, store: Store
) -> None:
    one, two = NotedSource("one"), NotedSource("two")
    publish(batch, one, b"1", b"a1")
    publish(batch, two, b"2", b"a2")
    publish(batch, one, b"3", b"a3")
    assert store.stored == []
    loop.end_turn()
    assert store.stored == [[b"1", b"2", b"3"]]
    assert one.reported == two.reported == [], "nothing is durable yet"
    commit(batch, store)
    assert (one.reported, two.reported) == ([b"a1a3"], [b"a2"])


def test_turns_of_one_commit_are_answered_by_one_write_for_each_client(
    loop: Loop, batch: TickBatch, store: Store
) -> None:
    client, other = NotedSource("one"), NotedSource("two")
    for number in (b"1", b"2", b"3"):
        publish(batch, client, number, b"a" + number)
        publish(batch, other, number)
        loop.end_turn()
    assert len(store.stored) == 3
    commit(batch, store)
    assert client.reported == [b"a1a2a3"]
    assert other.reported == [], "nothing was asked of it"


def test_what_many_get_is_stored_before_the_turn_ends(loop: Loop, batch: TickBatch, store: Store) -> None:
    """So the end of a turn delivers no more than a step may, however many clients publish."""
    wide, client = (
        Route(Destination((1,), False, False), live=COST_MAX // 4 - WRITE_COST, marked=False),
        NotedSource("one"),
    )
    for _ in range(4):
        publish(batch, client, b"1", b"a", wide)
    assert (store.stored, batch.is_heavy) == ([], False)
    publish(batch, client, b"1", b"a", wide)
    assert (store.stored, batch.is_heavy) == ([[b"1"] * 5], True)
    publish(batch, client, b"2", b"a", wide)
    loop.end_turn()
    assert store.stored == [[b"1"] * 5, [b"2"]]
    assert not batch.is_heavy
    commit(batch, store)
    assert client.reported == [b"aaaaaa"]


def test_answers_of_a_later_commit_wait_for_it(loop: Loop, batch: TickBatch, store: Store) -> None:
    client = NotedSource("one")
    publish(batch, client, b"1", b"a1")
    loop.end_turn()
    first, store.waiting = store.waiting, []
    publish(batch, client, b"2", b"a2")
    loop.end_turn()
    second, store.waiting = store.waiting, first
    commit(batch, store)
    assert client.reported == [b"a1"]
    store.waiting = second
    commit(batch, store)
    assert client.reported == [b"a1", b"a2"]


def test_a_failed_commit_refuses_whoever_it_would_have_answered_and_nobody_else(
    loop: Loop, batch: TickBatch, store: Store
) -> None:
    one, two, early = NotedSource("one"), NotedSource("two"), NotedSource("early")
    publish(batch, early, b"0", b"a0")
    loop.end_turn()
    commit(batch, store)
    publish(batch, one, b"1", b"a1")
    publish(batch, one, b"2", b"a2")
    publish(batch, two, b"3")
    loop.end_turn()
    commit(batch, store, LogFull("disk gone"))
    assert (early.reported, one.reported) == ([b"a0"], ["disk gone"])
    assert two.reported == [], "it was promised nothing"


def test_what_has_no_room_is_refused_and_not_acknowledged(loop: Loop, batch: TickBatch, store: Store) -> None:
    one, two = NotedSource("one"), NotedSource("two")
    store.full_for = {one}
    publish(batch, one, b"1", b"a1")
    publish(batch, two, b"2", b"a2")
    loop.end_turn()
    assert one.reported == ["full"]
    commit(batch, store)
    assert (one.reported, two.reported) == (["full"], [b"a2"])


def test_what_must_be_in_the_log_first_is_stored_before_the_end_of_the_turn(
    loop: Loop, batch: TickBatch, store: Store
) -> None:
    client = NotedSource("one")
    publish(batch, client, b"1", b"a1")
    batch.store()
    batch.store()
    publish(batch, client, b"2", b"a2")
    loop.end_turn()
    assert store.stored == [[b"1"], [b"2"]]
    loop.end_turn()
    assert len(store.stored) == 2


def test_each_destination_gets_a_run_of_its_own(loop: Loop, batch: TickBatch, store: Store) -> None:
    client = NotedSource("one")
    for payload, route in ((b"1", ROUTE), (b"2", OTHER), (b"3", ROUTE)):
        publish(batch, client, payload, b"a" + payload, route)
    loop.end_turn()
    assert store.stored == [[b"1", b"3"], [b"2"]]
    commit(batch, store)
    assert client.reported == [b"a1a2a3"]


def test_an_answer_needs_no_record(loop: Loop, batch: TickBatch, store: Store) -> None:
    client = NotedSource("one")
    batch.answer(client, b"a")
    batch.gathered()
    loop.end_turn()
    commit(batch, store)
    assert client.reported == [b"a"]


def test_a_long_turn_is_stored_before_its_end(batch: TickBatch, store: Store) -> None:
    client = NotedSource("one")
    batch.bytes = TICK_BYTES_MAX
    publish(batch, client, b"1")
    assert store.stored == []
    batch.bytes += 1
    publish(batch, client, b"2")
    assert store.stored == [[b"1", b"2"]]


def test_callbacks_of_the_end_of_a_turn_come_after_its_append(loop: Loop, batch: TickBatch, store: Store) -> None:
    client, seen = NotedSource("one"), list[int]()
    batch.at_end(lambda: seen.append(len(store.stored)))
    publish(batch, client, b"1")
    loop.end_turn()
    assert seen == [1]
    loop.end_turn()
    assert seen == [1]
    publish(batch, client, b"2")
    assert len(loop.ready) == 1, "the next turn has an end, too"


def test_a_mistake_in_storing_does_not_end_turns(loop: Loop, batch: TickBatch, store: Store) -> None:
    client = NotedSource("one")

    def fail(_gathered: Gathering) -> dict[Source, Exception]:
        raise RuntimeError("a mistake of ours")

    batch.stores_in(type("Broken", (), {"store_each": staticmethod(fail), "on_durable": store.on_durable})())
    publish(batch, client, b"1")
    with pytest.raises(RuntimeError, match="mistake"):
        loop.end_turn()
    batch.stores_in(store)
    publish(batch, client, b"2")
    loop.end_turn()
    assert store.stored == [[b"2"]]


def test_the_time_is_read_once_a_turn(loop: Loop, batch: TickBatch) -> None:
    client = NotedSource("one")
    publish(batch, client, b"1")
    loop.time = 11.0
    publish(batch, client, b"2")
    assert batch.now == 10.0
    loop.end_turn()
    publish(batch, client, b"3")
    assert batch.now == 11.0


class Faulty(NotedSource):
    """A source whose answers and refusals fail by a mistake of ours."""

    def acknowledge(self, answers: bytes) -> None:
        raise RuntimeError("cannot be answered")

    def refuse(self, error: BaseException) -> None:
        super().refuse(error)
        raise RuntimeError("cannot be refused")


def test_one_client_that_fails_takes_no_answer_from_the_others(loop: Loop, batch: TickBatch, store: Store) -> None:
    faulty, good = Faulty("faulty"), NotedSource("good")
    publish(batch, faulty, b"1", b"a1")
    publish(batch, good, b"2", b"a2")
    loop.end_turn()
    commit(batch, store)
    assert (faulty.reported, good.reported) == (["cannot be answered"], [b"a2"])


def test_one_client_that_fails_keeps_no_refusal_from_the_others(loop: Loop, batch: TickBatch, store: Store) -> None:
    faulty, good = Faulty("faulty"), NotedSource("good")
    publish(batch, faulty, b"1", b"a1")
    publish(batch, good, b"2", b"a2")
    loop.end_turn()
    commit(batch, store, OSError("the disk failed"))
    assert good.reported == ["the disk failed"]


def test_nobody_waits_for_what_a_mistake_left_half_stored(
    loop: Loop, batch: TickBatch, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Gathering) -> dict[Source, Exception]:
        raise RuntimeError("a mistake")

    monkeypatch.setattr(store, "store_each", fail)
    one, two = NotedSource("one"), NotedSource("two")
    publish(batch, one, b"1", b"a1")
    publish(batch, two, b"2")
    with pytest.raises(RuntimeError):
        loop.end_turn()
    assert (one.reported, two.reported) == (["a mistake"], ["a mistake"])


MANY, ONE = Owner(OwnerKind.USER, "many"), Owner(OwnerKind.USER, "one")


def answered(clients: list[NotedSource]) -> int:
    return sum(len(client.reported) for client in clients)


def test_a_fleets_answers_are_sent_in_steps_and_another_owner_waits_for_one(
    loop: Loop, batch: TickBatch, store: Store
) -> None:
    fleet = [NotedSource(f"c{number}", MANY) for number in range(3 * ANSWERS_MAX)]
    other = NotedSource("other", ONE)
    for client in (*fleet, other):
        publish(batch, client, b"1", b"a")
    loop.end_turn()
    commit(batch, store)
    assert (answered(fleet), other.reported) == (ANSWERS_MAX, [])
    loop.end_turn()
    assert other.reported == [b"a"]
    assert ANSWERS_MAX < answered(fleet) < 2 * ANSWERS_MAX + ANSWERS_IN_TURN
    while loop.ready:
        loop.end_turn()
    assert all(client.reported == [b"a"] for client in fleet)


def test_a_step_answers_as_many_if_each_client_has_an_owner_of_its_own(
    loop: Loop, batch: TickBatch, store: Store
) -> None:
    fleet = [NotedSource(f"c{number}", Owner(OwnerKind.USER, f"u{number}")) for number in range(3 * ANSWERS_MAX)]
    for client in fleet:
        publish(batch, client, b"1", b"a")
    loop.end_turn()
    commit(batch, store)
    loop.end_turn()
    assert answered(fleet) == 2 * ANSWERS_MAX


def test_later_commits_are_answered_behind_earlier_ones(loop: Loop, batch: TickBatch, store: Store) -> None:
    fleet = [NotedSource(f"c{number}", MANY) for number in range(ANSWERS_MAX + 2 * ANSWERS_IN_TURN)]
    for answer in (b"1", b"2", b"3"):
        for client in reversed(fleet):
            publish(batch, client, b"1", answer)
        batch.store()
        commit(batch, store)
    assert fleet[-1].reported == [b"1"], "the fleet has not had its first answers yet"
    while loop.ready:
        loop.end_turn()
    assert all(b"".join(map(bytes, client.reported)) == b"123" for client in fleet)  # type: ignore[arg-type]
    assert fleet[0].reported == [b"123"], "who has to wait is answered once"
    assert fleet[-1].reported == [b"1", b"23"]


def test_answers_that_take_long_end_the_step(loop: Loop, batch: TickBatch, store: Store) -> None:
    class Slow(NotedSource):
        def acknowledge(self, answers: bytes) -> None:
            super().acknowledge(answers)
            loop.time += ANSWERS_S_MAX / 100

    fleet: list[NotedSource] = [Slow(f"c{number}", MANY) for number in range(ANSWERS_MAX)]
    for client in fleet:
        publish(batch, client, b"1", b"a")
    loop.end_turn()
    commit(batch, store)
    assert answered(fleet) == 2 * ANSWERS_IN_TURN
    loop.end_turn()
    assert answered(fleet) == 4 * ANSWERS_IN_TURN


def test_who_ends_behind_its_answers_has_them_sent_at_once(loop: Loop, batch: TickBatch, store: Store) -> None:
    fleet = [NotedSource(f"c{number}", MANY) for number in range(2 * ANSWERS_MAX)]
    for client in fleet:
        publish(batch, client, b"1", b"a")
    loop.end_turn()
    commit(batch, store)
    batch.answer_all()
    assert all(client.reported == [b"a"] for client in fleet)
    for client in fleet:
        publish(batch, client, b"2", b"b")
    batch.store()
    commit(batch, store)
    assert answered(fleet) == len(fleet) + ANSWERS_MAX
    loop.end_turn()
    assert answered(fleet) == 2 * len(fleet), "one step is scheduled, and no second one"
    assert not loop.ready


class HeldLog:
    """A log that holds its next commit back until a time."""

    held_until = 0.0
    pending_bytes = 0

    def listen(self, callback: Callable[[], None]) -> None:
        self.committed = callback


def test_the_loop_rests_until_shortly_before_a_commit_that_is_held_back(
    loop: Loop, batch: TickBatch, store: Store
) -> None:
    log, slept = HeldLog(), list[float]()
    used = 1.0

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        loop.time += seconds

    rests = Rests(log, loop.ready.append, lambda: loop.time, lambda: used, sleep)  # type: ignore[arg-type]
    batch.rest_with(rests)
    device = NotedSource("device")

    def turn(messages: int = 1, route: Route = ROUTE) -> list[float]:
        slept.clear()
        for _ in range(messages):
            publish(batch, device, b"x", b"ack", route)
        loop.end_turn()
        loop.end_turn()
        loop.time += 0.001
        return list(slept)

    assert turn() == []  # a commit may begin at any time
    log.held_until = loop.time + 1
    assert turn() == [REST_S_MAX]
    log.held_until = loop.time + REST_S_MIN + 0.002
    assert turn() == [pytest.approx(0.002)]
    log.held_until = loop.time + 1.5 * REST_S_MIN
    assert turn() == []
    log.held_until = loop.time + 1
    assert turn(REST_MESSAGES_MAX + 1) == []
    assert turn(route=Route(Destination((1,), False, False), live=True, marked=False)) == []  # subscribers wait
    log.pending_bytes = REST_BYTES_MAX
    assert turn() == []  # a commit may begin early
    log.pending_bytes = 0
    used += 0.9
    assert turn() == []  # the loop has other work
    used += 0.0001
    assert turn() == [REST_S_MAX]
    used += 0.0001
    publish(batch, device, b"x", b"ack")
    loop.end_turn()
    log.committed()  # in the iteration of the rest: its answers are sent at the end of that iteration
    loop.end_turn()
    assert slept == [REST_S_MAX]
    loop.end_turn()
    assert slept == [REST_S_MAX] * 2
