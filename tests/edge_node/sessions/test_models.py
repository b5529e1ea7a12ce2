"""Whatever power and disk do: sessions and what was acknowledged are as a small model has them."""

from __future__ import annotations

import asyncio
import copy
import random
import sqlite3
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.edge_node.sessions.room import StoredNode, record
from tests.storage.fakes import FakeFileSystem, eio
from tests.storage.segment_log.helpers import commit_all
from weft.config.streams import State
from weft.edge_node.sessions.records import Sent, SessionRecord, StateSettings
from weft.protocols.batch import Flag, records
from weft.protocols.mqtt.encoder import PUBACK
from weft.protocols.mqtt.packets import Subscription, Will
from weft.storage.segment_log import LogFailed, LogFull, LogSettings

# --- Whatever happens to power, disk and database: a session is as it was after one of its changes, and after none
# that was not yet durable when it was said to be


CLIENTS = st.sampled_from(["a", "b", "c"])
IDS = st.lists(st.integers(1, 9), min_size=1, max_size=3, unique=True)
FILTERS = st.sampled_from(["x", "y/#", "+"])
LOG = LogSettings(segment_bytes=4096, budget_bytes=64 * 4096, tail_bytes=1500, pending_bytes_max=1 << 16)
MESSAGES = 50
"""Records of the stream that deliveries are of; all of them durable."""

Sessions = dict[str, SessionRecord]


class JournalMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.node = StoredNode(log_settings=LOG, settings=StateSettings(reserve_bytes=2048))
        self.stream = self.node.log.stream("telemetry")
        self.node.log.append(self.stream, 1, [b"t"] * MESSAGES, [b"x"] * MESSAGES)
        commit_all(self.node.log)
        self.sessions: Sessions = {}
        self.history: list[Sessions] = [{}]
        """After each change, since the last one that is known to be durable."""
        self.life = 0

    def changed(self) -> None:
        self.history.append(copy.deepcopy(self.sessions))
        at, life = self.history[-1], self.life

        def durable(error: BaseException | None) -> None:
            if error is None and life == self.life:
                # By identity: everything before it is out of the question now.
                index = next((i for i, each in enumerate(self.history) if each is at), None)
                if index is not None:
                    del self.history[:index]

        self.node.log.on_durable(durable)

    # --- changes

    @rule(name=CLIENTS, version=st.sampled_from([3, 4, 5]))
    def open(self, name: str, version: int) -> None:
        session = copy.deepcopy(self.sessions.get(name)) or record(name)
        session.version, session.will = version, Will(b"t", b"%d" % version)
        with suppress(LogFull, LogFailed):
            self.node.state.journal.opened(session)
            self.sessions[name] = session
            self.changed()

    @rule(name=CLIENTS)
    def end(self, name: str) -> None:
        with suppress(LogFull, LogFailed):
            self.node.state.journal.ended(name)
            self.sessions.pop(name, None)
            self.changed()

    @rule(
        name=CLIENTS,
        text=FILTERS,
        qos=st.integers(0, 2),
        identifier=st.none() | st.integers(1, 9),
        began=st.integers(0, MESSAGES),
    )
    def subscribe(self, name: str, text: str, qos: int, identifier: int | None, began: int) -> None:
        options = Subscription(text, qos, qos == 1, qos == 2, qos)
        with suppress(LogFull, LogFailed):
            self.node.state.journal.subscribed(name, options, identifier, {self.stream: began})
            if name in self.sessions:
                self.sessions[name].subscriptions[text] = options
                self.sessions[name].identifiers.pop(text, None)
                self.sessions[name].identifiers |= {text: identifier} if identifier else {}
                self.sessions[name].began[text] = {self.stream: began}
                self.forget_passed(name)
            self.changed()

    @rule(name=CLIENTS, text=FILTERS)
    def unsubscribe(self, name: str, text: str) -> None:
        with suppress(LogFull, LogFailed):
            self.node.state.journal.unsubscribed(name, text)
            if name in self.sessions:
                self.sessions[name].subscriptions.pop(text, None)
                self.sessions[name].began.pop(text, None)
                self.sessions[name].identifiers.pop(text, None)
            self.changed()

    @rule(name=CLIENTS, packet_ids=IDS)
    def release(self, name: str, packet_ids: list[int]) -> None:
        with suppress(LogFull, LogFailed):
            self.node.state.journal.released(name, packet_ids)
            if name in self.sessions:
                self.sessions[name].received -= set(packet_ids)
            self.changed()

    @rule(name=CLIENTS, packet_ids=IDS)
    def receive(self, name: str, packet_ids: list[int]) -> None:
        """Of topics that belong to no stream: the records of others are ``test_exactly_once_model``'s."""
        with suppress(LogFull, LogFailed):
            self.node.state.journal.received(name, packet_ids)
            if name in self.sessions:
                self.sessions[name].received |= set(packet_ids)
            self.changed()

    @rule(name=CLIENTS, packet_id=st.integers(1, 9), seq=st.integers(0, MESSAGES - 1))
    def send(self, name: str, packet_id: int, seq: int) -> None:
        sent = Sent(self.stream, seq, 2)
        with suppress(LogFull, LogFailed):
            self.node.state.journal.sent(name, {packet_id: sent})
            if name in self.sessions:
                self.sessions[name].inflight.pop(packet_id, None)
                self.sessions[name].inflight[packet_id] = sent
            self.changed()

    @rule(name=CLIENTS, packet_id=st.integers(1, 9), complete=st.booleans())
    def answer(self, name: str, packet_id: int, complete: bool) -> None:
        journal = self.node.state.journal
        with suppress(LogFull, LogFailed):
            (journal.completed if complete else journal.pubrec)(name, [packet_id])
            session = self.sessions.get(name)
            sent = session.inflight.get(packet_id) if session else None
            if session and sent and complete:
                del session.inflight[packet_id]
                if sent.seq >= session.positions.get(sent.stream, 0):
                    session.done.add((sent.stream, sent.seq))
            elif session and sent:
                session.inflight[packet_id] = Sent(sent.stream, sent.seq, sent.qos, True)
            self.changed()

    @rule(name=CLIENTS, seq=st.integers(0, MESSAGES))
    def move(self, name: str, seq: int) -> None:
        with suppress(LogFull, LogFailed):
            self.node.state.journal.positions(name, {self.stream: seq})
            if name in self.sessions:
                self.sessions[name].positions[self.stream] = seq
                self.sessions[name].done = {each for each in self.sessions[name].done if each[1] >= seq}
                self.forget_passed(name)
            self.changed()

    def forget_passed(self, name: str) -> None:
        session = self.sessions[name]
        position = session.positions.get(self.stream, 0)
        session.began = {text: began for text, began in session.began.items() if began[self.stream] > position}

    @rule(name=CLIENTS, at=st.integers(0, 9))
    def lose(self, name: str, at: int) -> None:
        with suppress(LogFull, LogFailed):
            self.node.state.journal.lost(name, at)
            if name in self.sessions:
                self.sessions[name].lost_at = at
            self.changed()

    @rule(name=CLIENTS)
    def publish_will(self, name: str) -> None:
        with suppress(LogFull, LogFailed):
            self.node.state.journal.will_published(name)
            if name in self.sessions:
                self.sessions[name].will = None
            self.changed()

    # --- what happens

    @rule()
    def commit(self) -> None:
        self.node.log.committer.run_once()

    @rule()
    def save(self) -> None:
        assert self.node.save() is None

    @rule()
    def the_database_is_full_for_a_while(self) -> None:
        database = self.node.state._database
        _limit_pages(database, 1)
        error = self.node.save()
        _limit_pages(database, 1 << 30)
        assert error is None or "full" in str(error)

    @rule(call=st.sampled_from(["write_at", "sync", "create"]), seed=st.integers(0, 1 << 32))
    def power_cut_during_a_commit(self, call: str, seed: int) -> None:
        disk = self.node.disk
        left: list[FakeFileSystem] = []

        def fail(name: str, path: str) -> OSError | None:
            if name == call and not left:
                left.append(disk.power_cut(random.Random(seed)))
            return eio() if name == call else None

        disk.fail = fail
        self.node.log.committer.run_once()
        disk.fail = lambda name, path: None
        self.restart(left[0] if left else disk.power_cut(random.Random(seed)))

    @rule(seed=st.integers(0, 1 << 32))
    def power_cut(self, seed: int) -> None:
        self.restart(self.node.disk.power_cut(random.Random(seed)))

    def restart(self, disk) -> None:  # type: ignore[no-untyped-def]
        self.life += 1
        self.node.stop_database()
        self.node.disk = disk
        self.node.start()
        found = self.node.sessions()
        assert found in self.history
        for name, session in found.items():  # the order of sending, which dicts do not compare
            orders = [list(each[name].inflight) for each in self.history if name in each]
            assert list(session.inflight) in orders
        self.sessions = copy.deepcopy(found)
        self.history = [copy.deepcopy(found)]

    def teardown(self) -> None:
        if hasattr(self, "node"):
            self.node.stop_database()


def _limit_pages(database, pages: int) -> None:  # type: ignore[no-untyped-def]
    def job(db: sqlite3.Connection) -> None:
        db.execute(f"PRAGMA max_page_count = {pages}")

    with suppress(Exception):
        database.run(job)


JournalMachine.TestCase.settings = settings(
    max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestJournal = JournalMachine.TestCase


# --- Whatever a power cut leaves: a QoS 2 message is stored once, and a resent QoS 1 message is recognised
#
# Two devices publish; the broker between them and the log is as small as it can be; the disk forgets and tears.


EXACTLY_ONCE_MODEL_CLIENTS = ("a", "b")
STREAMS = ("one", "two", "three")


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
        self.devices = {name: Device() for name in EXACTLY_ONCE_MODEL_CLIENTS}
        self.sessions: dict[str, SessionRecord] = {}
        self.life = 0
        self.counter = 0
        self.sent: dict[bytes, tuple[str, ...]] = {}
        """Payload -> the streams it belongs in."""
        self.acknowledged: set[bytes] = set()
        for name in EXACTLY_ONCE_MODEL_CLIENTS:
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
        name=st.sampled_from(EXACTLY_ONCE_MODEL_CLIENTS),
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

    @rule(name=st.sampled_from(EXACTLY_ONCE_MODEL_CLIENTS))
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

    @rule(name=st.sampled_from(EXACTLY_ONCE_MODEL_CLIENTS))
    def resume(self, name: str) -> None:
        """The connection is lost and comes back: everything without an answer is sent again."""
        self.resend(name)

    def reconnect(self) -> None:
        found = self.node.sessions()
        assert set(found) == set(EXACTLY_ONCE_MODEL_CLIENTS)
        for name in EXACTLY_ONCE_MODEL_CLIENTS:
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
        for name in EXACTLY_ONCE_MODEL_CLIENTS:
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
                for name in EXACTLY_ONCE_MODEL_CLIENTS:
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
