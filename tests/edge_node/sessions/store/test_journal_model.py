"""Whatever happens to power, disk and database: a session is as it was after one of its changes, and after none that
was not yet durable when it was said to be."""

from __future__ import annotations

import copy
import random
import sqlite3
from contextlib import suppress

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.edge_node.sessions.store.helpers import StoredNode, record
from tests.storage.fakes import FakeFileSystem, eio
from tests.storage.segment_log.helpers import commit_all
from weft.edge_node.sessions.records import Sent, SessionRecord, StateSettings
from weft.protocols.mqtt.packets import Subscription, Will
from weft.storage.segment_log import LogFailed, LogFull, LogSettings

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
