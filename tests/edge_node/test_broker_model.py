"""The broker against a small model of one, in random steps, over real sockets, log and database.

The model says, for each client, which messages it must have been given in the end: nothing lost, nothing doubled at
QoS 2, in order of publication for each topic. Times are not modelled; every step waits until its effect is there.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from edge_node.outbound_ports import MESSAGE_OVERHEAD_BYTES
from edge_node.sessions import SessionLimits
from protocols.mqtt.packets import (
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscription,
    UnsubAck,
    Unsubscribe,
)
from protocols.topics import matches
from tests.edge_node.mqtt_harness import Node, RawClient, running, until

T = TypeVar("T")

TOPICS = [b"plant/a", b"plant/b", b"other/a", b"other/b"]
"""Two that a stream keeps and two that only sessions may want."""
FILTERS = ["plant/a", "plant/+", "other/#", "#"]
CLIENTS = ["c0", "c1"]
ROOM = 13 * (MESSAGE_OVERHEAD_BYTES + 90)
"""Of a client's queue: one ``publish`` fits, so that a session in memory loses nothing, and two do not."""


@dataclass
class Model:
    """What one client is owed, and what it has."""

    persistent: bool = True
    connection: RawClient | None = None
    subscriptions: dict[str, int] = field(default_factory=dict)
    owed: list[tuple[bytes, bytes, int]] = field(default_factory=list)
    """(topic, payload, QoS) at QoS 1 and 2, in order of publication."""
    had: list[tuple[bytes, bytes, int]] = field(default_factory=list)
    open2: dict[int, bytes] = field(default_factory=dict)
    """QoS 2 deliveries that were answered by PUBREC and not released yet."""

    def granted(self, topic: bytes) -> int:
        return max((qos for text, qos in self.subscriptions.items() if matches(text, topic.decode())), default=-1)


class BrokerModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.directory = Path(tempfile.mkdtemp(prefix="weft-model-"))
        self.models = {client_id: Model() for client_id in CLIENTS}
        self.numbers = itertools.count(1)
        self.retained: dict[bytes, bytes] = {}

    def go(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(work, 5))

    @initialize()
    def start(self) -> None:
        self.go(self._start())

    def teardown(self) -> None:
        self.go(self._stop())
        self.loop.close()
        shutil.rmtree(self.directory)

    async def _start(self) -> None:
        self.stack = AsyncExitStack()
        limits = SessionLimits(inflight_max=3, queue_bytes_max=ROOM)
        self.node: Node = await self.stack.enter_async_context(
            running(self.directory, patterns={"plant": ["plant/#"]}, limits=limits, sys_interval_s=None)
        )
        self.publisher = await RawClient.connect(self.node.port, "publisher")

    async def _stop(self) -> None:
        for model in self.models.values():
            if model.connection is not None:
                await model.connection.close()
        await self.publisher.close()
        await self.stack.aclose()

    # --- steps

    @rule(client=st.sampled_from(CLIENTS), persistent=st.booleans(), version=st.sampled_from([4, 5]))
    def connect(self, client: str, persistent: bool, version: int) -> None:
        """[MQTT-3.1.2-4] [MQTT-3.1.2-5] [MQTT-3.1.2-6] [MQTT-3.2.2-2] [MQTT-3.1.4-3]"""
        self.go(self._connect(client, persistent, version))

    async def _connect(self, client: str, persistent: bool, version: int) -> None:
        model = self.models[client]
        old, existed = model.connection, bool(model.persistent and self._known(client))
        if version == 5:
            expiry = 1000 if persistent else 0
            new = await RawClient.connect5(
                self.node.port, client, clean_start=not persistent, session_expiry_interval=expiry
            )
        else:
            new = await RawClient.connect(self.node.port, client, clean_start=not persistent)
        assert new.welcome.session_present == (existed and persistent)
        if not (existed and persistent):
            self.models[client] = model = Model()
        model.persistent, model.connection = persistent, new
        if old is not None:
            await old.close()

    def _known(self, client: str) -> bool:
        return any(session.client_id == client for session in self.node.broker.sessions.all())

    @precondition(lambda self: any(model.connection for model in self.models.values()))
    @rule(client=st.sampled_from(CLIENTS), text=st.sampled_from(FILTERS), qos=st.sampled_from([0, 1, 2]))
    def subscribe(self, client: str, text: str, qos: int) -> None:
        """[MQTT-3.8.4-3] [MQTT-3.9.3-1]"""
        model = self.models[client]
        if model.connection is not None:
            self.go(self._drain(client))
            options = Subscription(text, qos, retain_handling=2 if model.connection.version == 5 else 0)
            assert self.go(model.connection.subscribe(options)) == (qos,)
            model.subscriptions[text] = qos

    @rule(client=st.sampled_from(CLIENTS), text=st.sampled_from(FILTERS))
    def unsubscribe(self, client: str, text: str) -> None:
        """[MQTT-3.10.4-4] [MQTT-3.11.3-1]"""
        model = self.models[client]
        if model.connection is not None:
            self.go(self._drain(client))
            model.connection.send(Unsubscribe(7, (text,)))
            answer = self.go(model.connection.receive())
            assert isinstance(answer, UnsubAck)
            if model.connection.version == 5:
                assert answer.codes == (0 if text in model.subscriptions else 0x11,)
            model.subscriptions.pop(text, None)

    @rule(topic=st.sampled_from(TOPICS), qos=st.sampled_from([0, 1, 1, 2]), count=st.sampled_from([1, 2, 12]))
    def publish(self, topic: bytes, qos: int, count: int) -> None:
        """[MQTT-4.3.2-2] [MQTT-4.3.3-2] [MQTT-4.6.0-6]"""
        self.go(self._publish(topic, qos, count))

    async def _publish(self, topic: bytes, qos: int, count: int) -> None:
        for client, model in self.models.items():
            if model.connection is not None and not model.persistent:
                await self._drain(client)
        for _ in range(count):
            number = next(self.numbers)
            payload, packet_id = b"%d " % number + bytes(80), number % 60_000 + 1
            self.publisher.send(Publish(topic, payload, qos, packet_id if qos else 0))
            for model in self.models.values():
                granted = min(qos, model.granted(topic))
                if granted > 0 and (model.connection is not None or model.persistent):
                    model.owed.append((topic, payload, granted))
            if qos == 1:
                assert await self.publisher.receive() == PubAck(packet_id)
            elif qos == 2:
                assert await self.publisher.receive() == PubRec(packet_id)
                self.publisher.send(PubRel(packet_id))
                assert await self.publisher.receive() == PubComp(packet_id)

    @rule(client=st.sampled_from(CLIENTS))
    def read_all(self, client: str) -> None:
        """[MQTT-4.3.2-3] [MQTT-4.3.3-3] [MQTT-4.4.0-1] [MQTT-4.4.0-2] [MQTT-4.6.0-1]"""
        model = self.models[client]
        if model.connection is not None:
            self.go(self._drain(client))

    @rule(client=st.sampled_from(CLIENTS), count=st.integers(1, 3), answer=st.booleans())
    def read_some_and_break(self, client: str, count: int, answer: bool) -> None:
        """[MQTT-4.4.0-1]"""
        self.go(self._break(client, count, answer))

    async def _break(self, client: str, count: int, answer: bool) -> None:
        model = self.models[client]
        if model.connection is None:
            return
        if len(model.owed) >= count and not model.open2:
            for _ in range(count):
                packet = await model.connection.receive()
                if answer and isinstance(packet, Publish | PubRel):
                    self._take(model, packet)
        await self._away(client)

    @rule(client=st.sampled_from(CLIENTS))
    def disconnect(self, client: str) -> None:
        """[MQTT-3.14.4-1]"""
        model = self.models[client]
        if model.connection is not None:
            self.go(self._drain(client))
            model.connection.send(Disconnect())
            self.go(self._away(client))

    async def _away(self, client: str) -> None:
        model = self.models[client]
        assert model.connection is not None
        await model.connection.close()
        model.connection = None
        sessions = self.node.broker.sessions
        await until(lambda: not any(each.client_id == client and each.connected for each in sessions.all()))
        if not model.persistent:
            self.models[client] = Model(persistent=False)

    @rule()
    def restart(self) -> None:
        """[MQTT-4.1.0-1] [MQTT-3.1.2-23]"""
        self.go(self._restart())

    async def _restart(self) -> None:
        for client in CLIENTS:
            if self.models[client].connection is not None:
                await self._drain(client)
                await self._away(client)
        await self._stop()
        await self._start()

    # --- what a client does with what it gets

    async def _drain(self, client: str) -> None:
        """Read and answer until nothing is owed, and the broker has nothing more to say."""
        model = self.models[client]
        connection = model.connection
        assert connection is not None
        while True:
            outbound = next(
                session.outbound for session in self.node.broker.sessions.all() if session.client_id == client
            )
            if not model.owed and not model.open2 and not outbound.inflight and outbound.catch_up is None:
                break
            self._take(model, await connection.receive())
            await asyncio.sleep(0)
        connection.send(PingReq())
        while not isinstance(packet := await connection.receive(), PingResp):
            self._take(model, packet)

    def _take(self, model: Model, packet: Any) -> None:
        assert model.connection is not None
        if isinstance(packet, PubRel):
            model.open2.pop(packet.packet_id, None)
            model.connection.send(PubComp(packet.packet_id))
            return
        assert isinstance(packet, Publish), packet
        if not packet.qos:
            return
        delivery = (packet.topic, packet.payload, packet.qos)
        if packet.qos == 2 and packet.packet_id in model.open2:
            assert packet.dup
            assert model.open2[packet.packet_id] == packet.payload
            model.connection.send(PubRec(packet.packet_id))
            return
        of_topic = [each for each in model.owed if each[0] == packet.topic and each[2] == packet.qos]
        if delivery in model.had and packet.dup and packet.qos == 1:
            pass  # its PUBACK was lost with a connection: at least once
        else:
            assert of_topic, f"{delivery} is nothing that the client is owed"
            assert of_topic[0] == delivery, "out of order"
            model.owed.remove(delivery)
            model.had.append(delivery)
        if packet.qos == 1:
            model.connection.send(PubAck(packet.packet_id))
        else:
            model.open2[packet.packet_id] = packet.payload
            model.connection.send(PubRec(packet.packet_id))

    @invariant()
    def nothing_is_dropped(self) -> None:
        if hasattr(self, "node"):
            assert self.node.counters.deliveries_lost == 0


BrokerModel.TestCase.settings = settings(
    max_examples=15, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
TestBrokerModel = BrokerModel.TestCase
