"""The journal of deliveries: what is sent after it, and what it does when it is full."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.edge_node.sessions.store.helpers import StoredNode, record
from tests.storage.segment_log.helpers import put
from weft.bounds import FanOutCap
from weft.edge_node.sessions.journal import DeliveryJournal
from weft.edge_node.sessions.records import Sent
from weft.edge_node.subscriptions.message import Outbox
from weft.storage.segment_log import LogFull


@pytest.fixture
def node() -> Iterator[StoredNode]:
    node = StoredNode()
    yield node
    node.stop_database()


def full(*_: object) -> None:
    raise LogFull("no room")


def test_what_must_be_noted_first_is_sent_after_the_commit_with_the_shares(node: StoredNode) -> None:
    stream, sent = node.log.stream("telemetry"), list[str]()
    put(node.log, stream, b"x")
    shares: list[str] = []

    def note_share(name: str) -> None:
        assert node.log.appended_together() is not None, "in one commit with the delivery"
        shares.append(name)

    journal = DeliveryJournal(node.log, node.state.journal, note_share, Outbox(FanOutCap()))
    node.state.journal.opened(record())
    assert journal.before_sending("pi", {1: Sent(stream, 0, 2)}, ["$share/g/t"], lambda: sent.append("publish"))
    assert journal.before_pubrel("pi", 1, lambda: sent.append("pubrel"))
    assert (sent, shares) == ([], ["$share/g/t"])
    node.commit()
    assert sent == ["publish", "pubrel"]
    node.kill()
    assert node.sessions()["pi"].inflight == {1: Sent(stream, 0, 2, True)}


def test_a_share_that_cannot_be_noted_takes_the_delivery_with_it(node: StoredNode) -> None:
    journal = DeliveryJournal(node.log, node.state.journal, full, Outbox(FanOutCap()))
    assert not journal.before_sending("pi", {}, ["$share/g/t"], lambda: pytest.fail("sent"))
    node.commit()


def test_what_a_restart_may_miss_is_passed_over_when_there_is_no_room(
    node: StoredNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = DeliveryJournal(node.log, node.state.journal, full, Outbox(FanOutCap()))
    monkeypatch.setattr(node.state.journal, "_append", full)
    journal.sending("pi", {1: Sent(1, 0, 1)})
    node.state.journal.flush()
    journal.completed("pi", [1])
    assert not journal.before_pubrel("pi", 1, lambda: pytest.fail("sent"))


def test_deliveries_of_a_step_come_before_any_later_change(node: StoredNode) -> None:
    stream = node.log.stream("telemetry")
    put(node.log, stream, b"x")
    put(node.log, stream, b"y")
    journal = DeliveryJournal(node.log, node.state.journal, full, Outbox(FanOutCap()))
    node.state.journal.opened(record())
    journal.sending("pi", {1: Sent(stream, 0, 1)})
    journal.sending("pi", {2: Sent(stream, 1, 1)})
    journal.completed("pi", [1])
    node.state.journal.flush()
    node.commit()
    node.kill()
    assert node.sessions()["pi"].inflight == {2: Sent(stream, 1, 1)}
