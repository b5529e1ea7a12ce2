"""Whatever a power cut leaves: a QoS 2 message is stored once, and a resent QoS 1 message is recognised.

Two devices publish; the broker between them and the log is as small as it can be; the disk forgets and tears.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.edge_node.sessions.store.helpers import StoredNode, record
from tests.storage.fakes import FakeFileSystem, eio
from weft.config.streams import State
from weft.edge_node.sessions.records import SessionRecord, StateSettings
from weft.protocols.batch import Flag, records
from weft.protocols.mqtt.encoder import PUBACK
from weft.storage.segment_log import LogFailed, LogFull, LogSettings

CLIENTS = ("a", "b")
STREAMS = ("one", "two", "three")
LOG = LogSettings(segment_bytes=4096, budget_bytes=64 * 4096, tail_bytes=1500, pending_bytes_max=1 << 16)


class Device:
    """A client with a persistent session: what it has not had acknowledged it sends again, with DUP, in order."""

    def __init__(self) -> None:
        self.next_id = 0
        self.unacknowledged: dict[int, tuple[int, bytes]] = {}
        """Packet identifier -> (QoS, payload)."""
        self.taken: set[int] = set()
        """QoS 2 identifiers whose PUBREC has come: PUBREL is sent again, not PUBLISH."""

    def new_id(self) -> int:
        while True:
            self.next_id = self.next_id % 7 + 1  # few, so that they are used again soon
            if self.next_id not in self.unacknowledged:
                return self.next_id


class ExactlyOnce(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.node = StoredNode(
            log_settings=LOG, settings=StateSettings(state=State(backlog_buffer_bytes=2000), reserve_bytes=2048)
        )
        self.loop = asyncio.new_event_loop()
        self.devices = {name: Device() for name in CLIENTS}
        self.sessions: dict[str, SessionRecord] = {}
        self.life = 0
        self.counter = 0
        self.sent: dict[bytes, tuple[str, ...]] = {}
        """Payload -> the streams it belongs in."""
        self.acknowledged: set[bytes] = set()
        for name in CLIENTS:
            self.sessions[name] = record(name)
            self.node.state.journal.opened(self.sessions[name])
        self.node.commit()

    # --- the broker

    def store(self, name: str, publishes: list[tuple[int, int, bytes]], dup: bool) -> None:
        """One read of (QoS, packet identifier, payload)."""
        session, journal, log = self.sessions[name], self.node.state.journal, self.node.log
        device, life = self.devices[name], self.life
        fresh, recognised = [], []
        for qos, packet_id, payload in publishes:
            if qos == 2 and packet_id in session.received:
                continue
            if dup and self.run(
                self.node.state.resent.recognise(name, packet_id, self.sent[payload][0].encode(), payload)
            ):
                assert self.stored(payload)
                if qos == 2:
                    recognised.append(packet_id)
                continue
            fresh.append((qos, packet_id, payload))
        new_ids = [packet_id for qos, packet_id, _ in fresh if qos == 2] + recognised
        try:
            with journal.together():
                groups: dict[str, list[tuple[int, bytes]]] = {}
                for qos, _, payload in fresh:
                    for stream in self.sent[payload]:
                        groups.setdefault(stream, []).append((qos, payload))
                for stream, of_stream in groups.items():
                    flags = {i: int(Flag.PUBLISHED_QOS2) for i, (qos, _) in enumerate(of_stream) if qos == 2}
                    # The topic of every message is its first stream's name.
                    keys = [self.sent[payload][0].encode() for _, payload in of_stream]
                    log.append(log.stream(stream), 1, keys, [payload for _, payload in of_stream], None, flags)
                if new_ids:
                    journal.received(name, new_ids)
                acks = b"".join(PUBACK + packet_id.to_bytes(2, "big") for qos, packet_id, _ in fresh if qos == 1)
                if acks:
                    journal.published(name, acks)
        except (LogFull, LogFailed):
            return
        session.received.update(new_ids)

        def durable(error: BaseException | None) -> None:
            if error is not None or life != self.life:
                return
            for qos, packet_id, payload in publishes:
                if device.unacknowledged.get(packet_id) != (qos, payload):
                    continue
                if qos == 1:
                    del device.unacknowledged[packet_id]
                    self.acknowledged.add(payload)
                else:
                    device.taken.add(packet_id)

        log.on_durable(durable)

    def release(self, name: str, packet_ids: list[int]) -> None:
        session, device, life = self.sessions[name], self.devices[name], self.life
        with suppress(LogFull, LogFailed):
            self.node.state.journal.released(name, packet_ids)
            session.received.difference_update(packet_ids)

            def durable(error: BaseException | None) -> None:
                if error is None and life == self.life:
                    for packet_id in packet_ids:
                        device.taken.discard(packet_id)
                        qos_and_payload = device.unacknowledged.pop(packet_id, None)
                        if qos_and_payload is not None:
                            self.acknowledged.add(qos_and_payload[1])

            self.node.log.on_durable(durable)

    def run(self, coroutine: Coroutine[Any, Any, bool]) -> bool:
        """Run it while the log's writer and the owner's callbacks continue."""

        async def pumped() -> bool:
            task = asyncio.ensure_future(coroutine)
            while not task.done():
                await asyncio.sleep(0)
                self.node.commit()
            return task.result()

        return self.loop.run_until_complete(pumped())

    # --- what happens

    @rule(
        name=st.sampled_from(CLIENTS),
        publishes=st.lists(
            st.tuples(
                st.sampled_from([1, 2]),
                st.sampled_from(STREAMS).map(lambda name: (name,)),
                st.sampled_from([1, 30, 700]),
            ),
            min_size=1,
            max_size=4,
        ),
    )
    def publish(self, name: str, publishes: list[tuple[int, tuple[str, ...], int]]) -> None:
        device, read = self.devices[name], []
        for qos, streams, size in publishes:
            if len(device.unacknowledged) >= 6:
                break
            self.counter += 1
            payload = b"%d:" % self.counter + random.Random(self.counter).randbytes(size)
            self.sent[payload] = streams
            packet_id = device.new_id()
            device.unacknowledged[packet_id] = (qos, payload)
            read.append((qos, packet_id, payload))
        if read:
            self.store(name, read, dup=False)

    @rule(name=st.sampled_from(CLIENTS))
    def pubrel(self, name: str) -> None:
        taken = sorted(self.devices[name].taken)
        if taken:
            self.release(name, taken)

    @rule()
    def commit_once(self) -> None:
        self.node.log.committer.run_once()

    @rule()
    def save(self) -> None:
        self.node.save()

    @rule(call=st.sampled_from(["write_at", "sync", "create", "rename"]), seed=st.integers(0, 1 << 32))
    def power_cut_during_a_commit(self, call: str, seed: int) -> None:
        disk = self.node.disk
        left: list[FakeFileSystem] = []

        def fail(name: str, path: str) -> OSError | None:
            if name != call:
                return None
            if not left:
                left.append(disk.power_cut(random.Random(seed)))
            return eio()

        disk.fail = fail
        self.node.log.committer.run_once()
        disk.fail = lambda name, path: None
        self.life += 1
        self.node.stop_database()
        self.node.disk = left[0] if left else disk.power_cut(random.Random(seed))
        self.node.start()
        self.reconnect()

    @rule(seed=st.integers(0, 1 << 32))
    def power_cut(self, seed: int) -> None:
        self.life += 1
        self.node.stop_database()
        self.node.disk = self.node.disk.power_cut(random.Random(seed))
        self.node.start()
        self.reconnect()

    @rule()
    def kill(self) -> None:
        self.life += 1
        self.node.kill()
        self.reconnect()

    @rule(name=st.sampled_from(CLIENTS))
    def resume(self, name: str) -> None:
        """The connection is lost and comes back: everything without an answer is sent again."""
        self.resend(name)

    def reconnect(self) -> None:
        found = self.node.sessions()
        assert set(found) == set(CLIENTS)
        for name in CLIENTS:
            device, session = self.devices[name], found[name]
            self.sessions[name] = session
            # PUBREC came for these, so they must be known, or the PUBLISH would be lost or the PUBREL fail.
            assert device.taken <= session.received | {
                packet_id for packet_id in device.taken if self.stored(device.unacknowledged[packet_id][1])
            }
            for packet_id in session.received:
                qos, payload = device.unacknowledged.get(packet_id, (2, b""))
                if qos == 2 and payload:
                    assert self.stored(payload), "said to be received and not in the log"
        for payload in self.acknowledged:
            assert self.stored(payload)
        for name in CLIENTS:
            self.resend(name)

    def resend(self, name: str) -> None:
        device = self.devices[name]
        again = [
            (qos, packet_id, payload)
            for packet_id, (qos, payload) in device.unacknowledged.items()
            if packet_id not in device.taken
        ]
        for publish in again:
            self.store(name, [publish], dup=True)
        if device.taken:
            self.release(name, sorted(device.taken))

    # --- what is there

    def stored(self, payload: bytes) -> bool:
        return self.count(payload) > 0

    def count(self, payload: bytes) -> int:
        return self.contents().count(payload)

    def contents(self) -> list[bytes]:
        log, found = self.node.log, []
        numbers = log.streams()
        for name in STREAMS:
            seq = 0
            while name in numbers and (batches := log.read(numbers[name], seq, 1 << 20)):
                for data in batches:
                    for each in records(data):
                        found.append(each.payload)
                        seq = each.seq + 1
        return found

    def teardown(self) -> None:
        if not hasattr(self, "node"):
            return
        try:
            self.kill()
            for _ in range(3):
                self.node.commit()
                for name in CLIENTS:
                    self.resend(name)
            self.node.commit()
            assert not any(device.unacknowledged for device in self.devices.values())
            contents = self.contents()
            for payload, streams in self.sent.items():
                assert contents.count(payload) == len(streams), payload[:20]
        finally:
            self.node.stop_database()
            self.loop.close()


ExactlyOnce.TestCase.settings = settings(
    max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestExactlyOnce = ExactlyOnce.TestCase
