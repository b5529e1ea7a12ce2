"""All the parts of sessions over a log on the fake disk and a real database, without MQTT connections and clocks."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from typing import Any

from tests.edge_node.sessions.store.helpers import StoredNode
from tests.edge_node.sessions.window.clients import Socket
from weft.bounds import FanOutCap, RoundRobin
from weft.config.limits import EdgeLimits
from weft.edge_node.access.identity import ALL, Permission
from weft.edge_node.counters import Counters
from weft.edge_node.ingest.ingest import Ingest, TickBatch
from weft.edge_node.ingest.record import NodeRecord
from weft.edge_node.ingest.routing import Router, Routing, Unrouted
from weft.edge_node.sessions.packets_out import Wire
from weft.edge_node.sessions.session import Session
from weft.edge_node.sessions.sessions import PersistedState, Sessions, make_context, make_delivery
from weft.edge_node.streams import SESSION_TOPICS_STREAM
from weft.edge_node.subscriptions.message import Message, Outbox
from weft.edge_node.subscriptions.subscriptions import FanOut, Subscriptions
from weft.protocols.batch import Flag
from weft.protocols.mqtt.packets import Connect, Properties, Subscription

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
