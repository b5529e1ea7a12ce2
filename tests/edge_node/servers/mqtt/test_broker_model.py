"""The broker against a small model of one, in random steps, over real sockets, log and database.

The model says, for each client, which messages it must have been given in the end: nothing lost, nothing doubled at
QoS 2, in order of publication for each topic; each will once, when it is due. Every step waits until its effect is
there. Time passes in steps of its own: the broker's clocks are the model's. A kill is the copy of what stands on the
disk at that moment, from which the next node starts.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.edge_node.servers.mqtt.harness import BrokerNode, RawClient, running
from tests.support.waiting import PATIENCE_S, until
from weft.config.limits import EdgeLimits
from weft.config.streams import State
from weft.edge_node.sessions.records import StateSettings
from weft.edge_node.streams import SESSION_TOPICS_STREAM, UNROUTED_STREAM
from weft.edge_node.subscriptions.limits import MESSAGE_OVERHEAD_BYTES
from weft.protocols.batch import records
from weft.protocols.mqtt.packets import (
    Disconnect,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
)
from weft.protocols.topics import matches

T = TypeVar("T")

TOPICS = [b"plant/a", b"plant/b", b"other/a", b"other/b"]
"""Two that a stream keeps, and two that no stream matches and sessions may want."""
WILL_TOPIC = b"plant/will"
WILL_DELAY_S = 300
EXPIRY_S = 1000
EXPIRY_OF_OLD_VERSIONS_S = 2000
FILTERS = ["plant/a", "plant/+", "other/#", "#"]
CLIENTS = ["c0", "c1"]
ROOM = 13 * (MESSAGE_OVERHEAD_BYTES + 90)
"""Of a client's queue: one ``publish`` fits, so that a session in memory loses nothing, and two do not."""


@dataclass
class Model:
    """What one client is owed, and what it has."""

    persistent: bool = True
    expiry_s: int = 0
    gone_at: float = 0.0
    """When its session began to wait for it, by the model's clock."""
    will: Will | None = None
    will_since: float | None = None
    """When the delay of its will began; None while it is connected."""
    connection: RawClient | None = None
    subscriptions: dict[str, int] = field(default_factory=dict)
    owed: list[tuple[bytes, bytes, int]] = field(default_factory=list)
    """(topic, payload, QoS) at QoS 1 and 2, in order of publication."""
    had: list[tuple[bytes, bytes, int]] = field(default_factory=list)
    open2: dict[int, bytes] = field(default_factory=dict)
    """QoS 2 deliveries that were answered by PUBREC and not released yet."""

    def granted(self, topic: bytes) -> int:
        return max((qos for text, qos in self.subscriptions.items() if matches(text, topic.decode())), default=-1)


def connected(machine: BrokerModel) -> bool:
    """Whether any client is there."""
    return any(model.connection for model in machine.models.values())


def inhabited(machine: BrokerModel) -> bool:
    """Whether there is anything that the end of a node could harm."""
    return any(model.connection or model.subscriptions or model.will for model in machine.models.values())


class Loop(asyncio.SelectorEventLoop):
    """A loop whose clock can be set forward."""

    ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_s


class BrokerModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = Loop()
        self.acknowledged: set[bytes] = set()
        """Payloads that the publisher has an answer for."""
        self.wills: list[bytes] = []
        """Payloads of those that were due."""
        self.directory = Path(tempfile.mkdtemp(prefix="weft-model-"))
        self.models = {client_id: Model() for client_id in CLIENTS}
        self.numbers = itertools.count(1)

    def go(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(work, PATIENCE_S))

    @initialize()
    def start(self) -> None:
        self.go(self._start())

    def teardown(self) -> None:
        self.go(self._stop())
        self.loop.close()
        shutil.rmtree(self.directory)

    async def _start(self) -> None:
        self.stack = AsyncExitStack()
        limits = EdgeLimits(inflight=3, session_queue_bytes=ROOM, session_expiry_s=EXPIRY_OF_OLD_VERSIONS_S)
        self.node: BrokerNode = await self.stack.enter_async_context(
            running(
                self.directory,
                patterns={"plant": ["plant/#"]},
                limits=limits,
                sys_interval_s=None,
                state_settings=StateSettings(state=State(save_interval_s=1e9)),
                wall_clock=self._wall_clock,
            )
        )
        self.publisher = await RawClient.connect(self.node.port, "publisher")

    def _wall_clock(self) -> int:
        return time.time_ns() + round(self.loop.ahead_s * 1e9)

    async def _stop(self) -> None:
        for model in self.models.values():
            if model.connection is not None:
                await model.connection.close()
        await self.publisher.close()
        await self.stack.aclose()

    # --- steps

    @rule(
        client=st.sampled_from(CLIENTS),
        persistent=st.booleans(),
        version=st.sampled_from([4, 5]),
        delay_s=st.sampled_from([None, 0, WILL_DELAY_S]),
    )
    def connect(self, client: str, persistent: bool, version: int, delay_s: int | None) -> None:
        """[MQTT-3.1.2-4] [MQTT-3.1.2-5] [MQTT-3.1.2-6] [MQTT-3.2.2-2] [MQTT-3.1.4-3] [MQTT-3.1.3-9]"""
        self.go(self._connect(client, persistent, version, delay_s))

    async def _connect(self, client: str, persistent: bool, version: int, delay_s: int | None) -> None:
        await self._drain_those_in_memory()
        model = self.models[client]
        old, existed = model.connection, bool(model.persistent and self._known(client))
        if model.will is not None and not (existed and persistent and _delay_s(model.will)):
            if not model.persistent:
                model.subscriptions.clear()  # the session has ended before its will comes
            self._will_is_due(model)
        model.will, model.will_since = None, None
        will = None
        if delay_s is not None:
            properties = Properties(will_delay_interval=delay_s) if version == 5 and delay_s else Properties()
            will = Will(WILL_TOPIC, b"will %d" % next(self.numbers), 1, False, properties)
        if version == 5:
            expiry_s = EXPIRY_S if persistent else 0
            new = await RawClient.connect5(
                self.node.port, client, clean_start=not persistent, will=will, session_expiry_interval=expiry_s
            )
        else:
            expiry_s = EXPIRY_OF_OLD_VERSIONS_S if persistent else 0
            new = await RawClient.connect(self.node.port, client, clean_start=not persistent, will=will)
        assert new.welcome.session_present == (existed and persistent)
        if not (existed and persistent):
            self.models[client] = model = Model()
        model.persistent, model.connection, model.expiry_s, model.will = persistent, new, expiry_s, will
        if old is not None:
            await old.close()

    def _known(self, client: str) -> bool:
        return any(session.client_id == client for session in self.node.mqtt.sessions.all())

    @precondition(connected)
    @rule(client=st.sampled_from(CLIENTS), text=st.sampled_from(FILTERS), qos=st.sampled_from([0, 1, 2]))
    def subscribe(self, client: str, text: str, qos: int) -> None:
        """[MQTT-3.8.4-3] [MQTT-3.9.3-1]"""
        model = self.models[client]
        if model.connection is not None:
            self.go(self._drain(client))
            options = Subscription(text, qos, retain_handling=2 if model.connection.version == 5 else 0)
            assert self.go(model.connection.subscribe(options)) == (qos,)
            model.subscriptions[text] = qos

    @precondition(connected)
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
        await self._drain_those_in_memory()
        for _ in range(count):
            number = next(self.numbers)
            payload, packet_id = b"%d " % number + bytes(80), number % 60_000 + 1
            self.publisher.send(Publish(topic, payload, qos, packet_id if qos else 0))
            self._owe(topic, payload, qos)
            if qos:
                self.acknowledged.add(payload)
            if qos == 1:
                assert await self.publisher.receive() == PubAck(packet_id)
            elif qos == 2:
                assert await self.publisher.receive() == PubRec(packet_id)
                self.publisher.send(PubRel(packet_id))
                assert await self.publisher.receive() == PubComp(packet_id)

    def _owe(self, topic: bytes, payload: bytes, qos: int) -> None:
        for model in self.models.values():
            granted = min(qos, model.granted(topic))
            if granted > 0 and (model.connection is not None or model.persistent):
                model.owed.append((topic, payload, granted))

    @precondition(connected)
    @rule(client=st.sampled_from(CLIENTS))
    def read_all(self, client: str) -> None:
        """[MQTT-4.3.2-3] [MQTT-4.3.3-3] [MQTT-4.4.0-1] [MQTT-4.4.0-2] [MQTT-4.6.0-1]"""
        model = self.models[client]
        if model.connection is not None:
            self.go(self._drain(client))

    @precondition(connected)
    @rule(client=st.sampled_from(CLIENTS), count=st.integers(1, 3), answer=st.booleans())
    def read_some_and_break(self, client: str, count: int, answer: bool) -> None:
        """[MQTT-4.4.0-1]"""
        self.go(self._break(client, count, answer))

    async def _break(self, client: str, count: int, answer: bool) -> None:
        model = self.models[client]
        if model.connection is None:
            return
        await self._drain_those_in_memory(but=client)
        if len(model.owed) >= count and not model.open2:
            for _ in range(count):
                packet = await model.connection.receive()
                if answer and isinstance(packet, Publish | PubRel):
                    self._take(model, packet)
        await self._away(client)

    @precondition(connected)
    @rule(client=st.sampled_from(CLIENTS))
    def disconnect(self, client: str) -> None:
        """[MQTT-3.14.4-1]"""
        model = self.models[client]
        if model.connection is not None:
            self.go(self._drain(client))
            model.connection.send(Disconnect())
            model.will = None
            self.go(self._away(client))
            self.go(self.node.durable())  # nothing acknowledges DISCONNECT: killed before this, the will would come

    async def _away(self, client: str) -> None:
        model = self.models[client]
        assert model.connection is not None
        await model.connection.close()
        model.connection = None
        sessions = self.node.mqtt.sessions
        await until(lambda: not any(each.client_id == client and each.connected for each in sessions.all()))
        self._gone(client)

    def _gone(self, client: str) -> None:
        """A connection is no more: the will is due, or its delay begins; the session waits, or ends."""
        model = self.models[client]
        model.connection = None
        model.gone_at = self.loop.ahead_s
        if not model.persistent:
            model = self.models[client] = Model(persistent=False, will=model.will)
        if model.will is not None and (not model.persistent or not _delay_s(model.will)):
            self._will_is_due(model)
        elif model.will is not None:
            model.will_since = self.loop.ahead_s

    def _will_is_due(self, model: Model) -> None:
        """[MQTT-3.1.2-8] [MQTT-3.1.2-10]"""
        assert model.will is not None
        payload, model.will, model.will_since = model.will.payload, None, None
        self.wills.append(payload)
        self._owe(WILL_TOPIC, payload, 1)

    # --- time

    @rule(seconds=st.sampled_from([100, 400, 1100]))
    def time_passes(self, seconds: int) -> None:
        """[MQTT-3.1.2-23] [MQTT-4.1.0-2] [MQTT-3.1.2-8] [MQTT-3.1.3-9]"""
        self.go(self._drain_those_in_memory())
        self.loop.ahead_s += seconds
        self.go(self._time_has_passed())

    async def _time_has_passed(self) -> None:
        self._what_is_due()
        await until(lambda: self.node.counters.wills_waiting == 0 and not self._overdue())
        for client, model in self.models.items():
            away = model.persistent and model.connection is None
            assert not away or self._known(client) == bool(model.expiry_s)

    def _what_is_due(self) -> None:
        """A will when its delay or its session is over, in the order of their times."""
        now = self.loop.ahead_s
        due: list[tuple[float, int, str]] = []
        for client, model in self.models.items():
            if model.connection is None and model.expiry_s:
                due.append((model.gone_at + model.expiry_s, 1, client))
                if model.will is not None and model.will_since is not None:
                    due.append((min(model.will_since + _delay_s(model.will), due[-1][0]), 0, client))
        for when, ends, client in sorted(due):
            model = self.models[client]
            if when <= now and not ends:
                self._will_is_due(model)
            elif when <= now:
                self.models[client] = Model(persistent=False)

    def _overdue(self) -> bool:
        """Whether the broker still has to end a session, or to publish a will, whose time has come."""
        sessions, now = self.node.mqtt.sessions.all(), self.loop.time()
        return any((due := session.next_due()) is not None and due <= now for session in sessions)

    # --- the end of the node

    @precondition(inhabited)
    @rule(stay=st.booleans())
    def restart(self, stay: bool) -> None:
        """[MQTT-4.1.0-1] [MQTT-3.1.2-23]"""
        self.go(self._restart(stay))

    async def _restart(self, stay: bool) -> None:
        for client in CLIENTS:
            if self.models[client].connection is not None and not stay:
                await self._drain(client)
                await self._away(client)
        open_clients = [client for client in CLIENTS if self.models[client].connection is not None]
        old = self.node, self.stack
        self.node.close()
        await self._leave_behind(*old)
        await self._begin_anew(open_clients)

    @precondition(inhabited)
    @rule()
    def save(self) -> None:
        self.go(self.node.state.save())

    @precondition(inhabited)
    @rule(
        topic=st.sampled_from(TOPICS),
        qos=st.sampled_from([1, 2]),
        count=st.sampled_from([0, 1, 5]),
        turns=st.integers(0, 30),
    )
    def kill(self, topic: bytes, qos: int, count: int, turns: int) -> None:
        """At any moment: perhaps while messages come in.

        [MQTT-4.1.0-1] [MQTT-4.3.2-2] [MQTT-4.3.3-2] [MQTT-4.4.0-1] [MQTT-3.1.2-8]
        """
        self.go(self._kill(topic, qos, count, turns))

    async def _kill(self, topic: bytes, qos: int, count: int, turns: int) -> None:
        payloads = [b"%d " % next(self.numbers) + bytes(80) for _ in range(count)]
        self.publisher.send(*[Publish(topic, payload, qos, at) for at, payload in enumerate(payloads, 60_001)])
        for _ in range(turns):
            await asyncio.sleep(0)
        acknowledged = self._acknowledged(qos)
        left = Path(tempfile.mkdtemp(prefix="weft-model-"))
        for name in sorted(path.name for path in self.directory.glob("mqtt.sqlite3*")):
            shutil.copy(self.directory / name, left / name)
        shutil.copytree(self.directory, left, dirs_exist_ok=True, ignore=shutil.ignore_patterns("mqtt.sqlite3*"))
        open_clients = [client for client in CLIENTS if self.models[client].connection is not None]
        await self._leave_behind(self.node, self.stack)
        shutil.rmtree(self.directory)
        self.directory = left
        await self._begin_anew(open_clients, (topic, qos, payloads, acknowledged))

    def _acknowledged(self, qos: int) -> int:
        """How many publishes the publisher has an answer for."""
        data = bytes(self.publisher.reader._buffer)  # type: ignore[attr-defined]
        assert len(data) % 4 == 0
        assert set(data[::4]) <= {0x40 if qos == 1 else 0x50}
        return len(data) // 4

    async def _leave_behind(self, node: BrokerNode, stack: AsyncExitStack) -> None:
        for client in CLIENTS:
            model = self.models[client]
            if model.connection is not None:
                await model.connection.close()
                model.connection = None
        await self.publisher.close()
        await stack.aclose()

    async def _begin_anew(
        self, open_clients: list[str], coming: tuple[bytes, int, list[bytes], int] | None = None
    ) -> None:
        """A node starts where another has ended with these clients connected."""
        for client in CLIENTS:
            if client in open_clients and not self.models[client].persistent:
                self.models[client] = Model(persistent=False, will=self.models[client].will)
        await self._start()
        if coming is not None:
            topic, qos, payloads, acknowledged = coming
            stored = set(await self._stored())
            wanted = topic.startswith(b"plant/") or any(
                model.persistent and model.granted(topic) > 0 for model in self.models.values()
            )
            there = [payload for payload in payloads if payload in stored]
            assert there == payloads[: len(there)]
            assert len(there) >= acknowledged or not wanted
            self.acknowledged.update(payloads[:acknowledged])
            for payload in there:
                self._owe(topic, payload, qos)
        for client in open_clients:
            self._gone(client)
        await until(lambda: self.node.counters.wills_waiting == 0)
        kept = await self._stored("plant", UNROUTED_STREAM)
        assert self.acknowledged <= set(kept), "an acknowledged message is in no stream, wanted by sessions or not"
        assert len(kept) == len(set(kept))
        assert Counter(self.wills) == Counter(payload for payload in await self._stored() if payload[:4] == b"will")

    async def _stored(self, *names: str) -> list[bytes]:
        """What is in streams of the log; those that sessions read when none is named."""
        await self.node.durable()
        found = []
        for stream in map(self.node.log.stream, names or ("plant", SESSION_TOPICS_STREAM)):
            seq = 0
            while batches := self.node.log.read(stream, seq, 1 << 20):
                for data in batches:
                    for record in records(data):
                        found.append(record.payload)
                        seq = record.seq + 1
        return found

    # --- what a client does with what it gets

    async def _drain_those_in_memory(self, but: str = "") -> None:
        """What is to come must have room with sessions that the log does not keep."""
        for client, model in self.models.items():
            if model.connection is not None and not model.persistent and client != but:
                await self._drain(client)

    async def _drain(self, client: str) -> None:
        """Read and answer until nothing is owed, and the broker has nothing more to say."""
        model = self.models[client]
        connection = model.connection
        assert connection is not None
        window = next(each.window for each in self.node.mqtt.sessions.all() if each.client_id == client)

        def level() -> bool:
            return not model.owed and not model.open2 and not window.in_flight.deliveries and window.catch_up is None

        while True:
            await until(lambda: level() or connection.has_data)
            if not connection.has_data:
                break
            self._take(model, await connection.receive())
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


def _delay_s(will: Will) -> int:
    return will.properties.will_delay_interval or 0


BrokerModel.TestCase.settings = settings(
    max_examples=15, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
TestBrokerModel = BrokerModel.TestCase
