"""What tests of sessions share: a log on the fake disk, a real database, all parts over them, and clients' windows."""

from __future__ import annotations

import queue
import shutil
import sqlite3
import tempfile
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.storage.fakes import FakeFileSystem
from tests.storage.segment_log.helpers import Clock, commit_all, open_log
from tests.support.waiting import PATIENCE_S
from weft.bounds import FanOutCap, Refusals, RoundRobin
from weft.config.limits import EdgeLimits
from weft.config.streams import State
from weft.edge_node.access.identity import ALL, Permission
from weft.edge_node.counters import Counters
from weft.edge_node.ingest.ingest import Ingest, TickBatch
from weft.edge_node.ingest.record import NodeRecord
from weft.edge_node.ingest.routing import Router, Routing, Unrouted
from weft.edge_node.sessions import broker_state
from weft.edge_node.sessions.broker_state import BrokerState
from weft.edge_node.sessions.packets_out import WindowContext, Wire
from weft.edge_node.sessions.records import Sent, SessionRecord, StateCounters, StateSettings
from weft.edge_node.sessions.session import Session
from weft.edge_node.sessions.sessions import PersistedState, Sessions, make_context, make_delivery
from weft.edge_node.sessions.window import ClientWindow
from weft.edge_node.streams import SESSION_TOPICS_STREAM
from weft.edge_node.subscriptions.limits import MESSAGE_OVERHEAD_BYTES, QueueBudget
from weft.edge_node.subscriptions.message import Message, Outbox
from weft.edge_node.subscriptions.subscriptions import ClientSubscription, FanOut, Subscriptions
from weft.protocols.batch import Flag
from weft.protocols.mqtt.packets import Connect, Properties, ReasonCode, Subscription
from weft.storage.segment_log import LogSettings, SegmentLog

# --- What the tests of the broker's state share: a log on the fake disk, a real database, and an owner's thread


LOG = LogSettings(segment_bytes=1 << 16, budget_bytes=8 << 20, tail_bytes=4000, pending_bytes_max=1 << 20)
SETTINGS = StateSettings(state=State(save_interval_s=3600), reserve_bytes=4096)


class Owner:
    """The owner's thread: callbacks that other threads post wait here until the test runs them."""

    def __init__(self) -> None:
        self._posted: queue.Queue[Callable[[], None]] = queue.Queue()

    def post(self, callback: Callable[[], None]) -> None:
        self._posted.put(callback)

    def run(self) -> None:
        """Run what was posted so far."""
        while not self._posted.empty():
            self._posted.get()()

    def wait_for(self, done: Callable[[], bool]) -> None:
        while not done():
            self._posted.get(timeout=PATIENCE_S)()

    def outcome(self, start: Callable[[Callable[[BaseException | None], None]], None]) -> BaseException | None:
        """Start something that calls back, and wait for what it says."""
        outcomes: list[BaseException | None] = []
        start(outcomes.append)
        self.wait_for(lambda: bool(outcomes))
        return outcomes[0]


@dataclass
class StoredNode:
    """A node's log and state. ``restart`` and ``power_cut`` stand for what happens to nodes."""

    directory: str = field(default_factory=lambda: tempfile.mkdtemp(prefix="weft-state-"))
    disk: FakeFileSystem = field(default_factory=FakeFileSystem)
    settings: StateSettings = SETTINGS
    log_settings: LogSettings = LOG
    owner: Owner = field(default_factory=Owner)
    clock: Clock = field(default_factory=Clock)
    log: SegmentLog = field(init=False)
    state: BrokerState = field(init=False)
    counters: StateCounters = field(init=False)

    def __post_init__(self) -> None:
        weakref.finalize(self, shutil.rmtree, self.directory, ignore_errors=True)
        self.start()

    def start(self, log_id: int = 0xABCD) -> None:
        self.log = open_log(self.disk, self.log_settings, clock=self.clock, log_id=log_id)
        self.counters = StateCounters()
        self.state = BrokerState(
            self.directory,
            self.log,
            self.settings,
            self.counters,
            wall_clock=self.clock.wall,
            post=self.owner.post,
            refusals=Refusals(lambda: self.clock.wall() / 1e9),
        )

    def commit(self) -> None:
        commit_all(self.log)
        self.owner.run()

    def save(self) -> BaseException | None:
        """Fold what is durable into the database."""
        return self.owner.outcome(self.state._compaction.start)

    def kill(self, database_pages: int | None = None) -> None:
        """SIGKILL and start again.

        Args:
            database_pages: what the database finds room for when it recovers; None for no limit.
        """
        self.stop_database()
        self.disk.kill_process()
        with pytest.MonkeyPatch.context() as patch:
            if database_pages is not None:
                create = broker_state._create_tables

                def limited(database: sqlite3.Connection) -> None:
                    create(database)
                    database.execute(f"PRAGMA max_page_count = {database_pages}")

                patch.setattr(broker_state, "_create_tables", limited)
            self.start()

    def stop_database(self) -> None:
        self.state._database.close()
        self.owner = Owner()  # what was posted to a dead process is not heard

    def sessions(self) -> dict[str, SessionRecord]:
        """What recovery found."""
        return {record.client_id: record for record in self.state.journal.recover()}


def record(client_id: str = "pi", **fields: object) -> SessionRecord:
    return SessionRecord(client_id=client_id, version=5, expiry_interval=3600, **fields)  # type: ignore[arg-type]


# --- A client's window without sockets, log or journal


ROOM = MESSAGE_OVERHEAD_BYTES + 1
"""What a message of one byte takes."""


class Socket(list[bytes]):
    """A connection: what was written to it, and why it was closed."""

    closed: ReasonCode | None = None

    def send(self, data: bytes) -> None:
        self.append(data)

    def send_all(self, parts: Sequence[bytes]) -> None:
        self.append(b"".join(parts))

    def displace(self, code: ReasonCode) -> None:
        self.closed = code


class Journal:
    """The journal of deliveries, which is durable when ``sync`` says so."""

    def __init__(self) -> None:
        self.noted: list[tuple[object, ...]] = []
        self.full = False
        self._waiting: list[Callable[[], None]] = []

    def sending(self, client_id: str, deliveries: Mapping[int, Sent]) -> None:
        self.noted.append(("sending", client_id, dict(deliveries)))

    def completed(self, client_id: str, packet_ids: Sequence[int]) -> None:
        self.noted.append(("completed", client_id, list(packet_ids)))

    def before_sending(
        self, client_id: str, deliveries: Mapping[int, Sent], shares: Collection[str], send: Callable[[], None]
    ) -> bool:
        self.noted.append(("before_sending", client_id, dict(deliveries), sorted(shares)))
        return self._wait(send)

    def before_pubrel(self, client_id: str, packet_id: int, send: Callable[[], None]) -> bool:
        self.noted.append(("before_pubrel", client_id, packet_id))
        return self._wait(send)

    def _wait(self, send: Callable[[], None]) -> bool:
        if not self.full:
            self._waiting.append(send)
        return not self.full

    def sync(self) -> None:
        waiting, self._waiting = self._waiting, []
        for send in waiting:
            send()


class Clients:
    """What the windows of a test share, and the subscriptions of each to ``t`` at QoS 2."""

    def __init__(self, budget_bytes: int = 1 << 20, inflight_max: int = 2, bytes_max: int = 1 << 20) -> None:
        self.counters, self.budget, self.outbox = Counters(), QueueBudget(budget_bytes), Outbox(FanOutCap())
        self.journal = Journal()
        self.behind: list[tuple[str, int, int]] = []
        self.context = WindowContext(
            self.counters,
            self.budget,
            self.outbox,
            self.journal,  # type: ignore[arg-type]
            self.wall_clock,
            inflight_max,
            bytes_max,
        )

    def wall_clock(self) -> int:
        return 1_000_000_000

    def fall_behind(self, window: ClientWindow, first: Message | None) -> None:
        assert first is not None
        self.behind.append((window.client_id, first.stream, first.seq))

    def window(self, *, version: int = 4, persistent: bool = False) -> tuple[ClientWindow, Socket]:
        """A client that is there, and has its CONNACK."""
        window = ClientWindow("c", Wire(version), self.context, self.fall_behind)
        window.introduce(None, persistent=persistent)
        return window, self.connect(window, version=version)

    def connect(self, window: ClientWindow, receive_maximum: int = 65_535, *, version: int = 4) -> Socket:
        connection = Socket()
        window.open(connection)
        window.greet(Wire(version), receive_maximum)
        window.pump()
        self.outbox.flush()
        return connection

    def fan_out_to(self, window: ClientWindow) -> FanOut:
        subscriptions = Subscriptions()
        subscriptions.add(ClientSubscription(window, "t", Subscription("t", 2), None))
        return FanOut(subscriptions, self.outbox)

    def answered(self, window: ClientWindow) -> None:
        """As a read ends that may have brought answers."""
        window.pump()
        self.outbox.flush()


# --- All the parts of sessions over a log on the fake disk and a real database, without MQTT connections and clocks


QOS_FLAGS = (int(Flag.PUBLISHED_QOS0), 0, int(Flag.PUBLISHED_QOS2))
NODES: list[StoredNode] = []
"""Nodes of the test at hand, for ``close_all``."""


def close_all() -> None:
    """End the databases of all rooms, and remove their folders."""
    while NODES:
        node = NODES.pop()
        node.stop_database()
        shutil.rmtree(node.directory, ignore_errors=True)


class Wheel:
    """When each session is to be asked."""

    def __init__(self) -> None:
        self.due: dict[Any, float] = {}

    def set(self, session: Any, when: float) -> None:
        self.due[session] = when

    def cancel(self, session: Any) -> None:
        self.due.pop(session, None)


class User:
    """Identity of a user who may do everything."""

    unrestricted = admitted = True

    def __init__(self, username: str) -> None:
        self.username: str | None = username

    def may_publish(self, topic: bytes) -> bool:
        return True

    def may_subscribe(self, topic_filter: str) -> bool:
        return True

    def may_read(self, topic: bytes) -> bool:
        return True

    def queue_rights(self, topic: str) -> Permission:
        return ALL


class RoomClient(Socket):
    """A connection, which leaves its session when it is displaced."""

    def __init__(self, room: Room) -> None:
        super().__init__()
        self.room = room
        self.session: Session | None = None

    def displace(self, code: Any) -> None:
        super().displace(code)
        assert self.session is not None
        self.room.sessions.close(self.session)


class Room:
    """A node's sessions; ``killed`` and ``stopped`` are what the next node finds."""

    def __init__(self, node: StoredNode | None = None, limits: EdgeLimits = EdgeLimits()) -> None:
        if node is None:
            node = StoredNode()
            NODES.append(node)
        self.node = node
        self.limits = limits
        self.now = 0.0
        self.counters, self.wheel = Counters(), Wheel()
        self.subscriptions, self.outbox = Subscriptions(), Outbox(FanOutCap())
        fan_out = FanOut(self.subscriptions, self.outbox)
        routing = Routing(
            Router({"telemetry": ["plant/#"]}, node.log.stream),
            self.subscriptions,
            Unrouted("keep", node.log, self.counters),
            session_topics=node.log.stream(SESSION_TOPICS_STREAM),
        )
        self.ingest = Ingest(
            node.log,
            routing,
            fan_out,
            node.clock.wall,
            self.counters,
            TickBatch(lambda _: None, lambda: self.now, self.counters),
            pending_bytes_max=1 << 20,
        )
        self.retained: list[Message] = []
        state = node.state
        delivery = make_delivery(
            node.log,
            self.ingest,
            self.subscriptions,
            state.backlog,
            self.outbox,
            limits,
            state.refusals,
            self.counters,
            node.clock.wall,
        )
        self.context = make_context(
            PersistedState(node.log, state.journal, state.changes, state.retained),
            delivery,
            self.ingest,
            self.subscriptions,
            self.outbox,
            RoundRobin(self.outbox.flush),
            self._match,
            limits,
            self.counters,
            node.clock.wall,
        )
        self.sessions = Sessions(self.context, limits, self.counters, self.wheel, lambda: self.now)  # type: ignore[arg-type]
        self.sessions.restore()

    def _match(self, topic_filter: str, _: int) -> Iterable[Message | None]:
        return self.retained

    def connect(
        self,
        client_id: str,
        *,
        expiry: int = 1000,
        will: Any = None,
        clean: bool = False,
        user: str | None = None,
        address: str = "",
    ) -> RoomClient:
        """A client that has its CONNACK, and its session."""
        client, properties = RoomClient(self), Properties(session_expiry_interval=expiry)
        packet = Connect(client_id, version=5, clean_start=clean, will=will, properties=properties)
        client.session, _ = self.sessions.open(packet, client_id, None if user is None else User(user), client, address)
        self.sessions.resume(client.session, Wire(5), 65_535)
        return client

    def subscribe(self, client: RoomClient, text: str, qos: int = 1) -> int:
        assert client.session is not None
        code, _ = self.sessions.filters.subscribe(client.session, Subscription(text, qos), None)
        return code

    def subscribe_all(self, client: RoomClient, *filters: str) -> list[int]:
        assert client.session is not None
        wanted = [Subscription(text, 1) for text in filters]
        return [code for code, _ in self.sessions.filters.subscribe_all(client.session, wanted, None)]

    def publish(self, topic: bytes, *payloads: bytes, qos: int = 1) -> None:
        for payload in payloads:
            self.ingest.publish(NodeRecord(topic, payload, QOS_FLAGS[qos]))

    def leave(self, client: RoomClient, *, with_will: bool = True) -> None:
        assert client.session is not None
        self.sessions.close(client.session, with_will=with_will)

    def later(self, seconds: float) -> None:
        """Let time pass, and have everything done that is due."""
        self.now += seconds
        for session, when in list(self.wheel.due.items()):
            if when <= self.now:
                self.wheel.cancel(session)
                again = session.due(self.now)
                if again is not None:
                    self.wheel.set(session, again)

    def killed(self) -> Room:
        """The room after SIGKILL: what was appended is there, nothing was said to be over."""
        self.node.commit()
        self.node.kill()
        return Room(self.node, self.limits)

    def stopped(self) -> Room:
        """The room after an orderly stop."""
        self.sessions.stop()
        for session in self.sessions.all():
            if session.connected:
                self.sessions.close(session)
        self.sessions.stop_reading()
        return self.killed()
