"""Batches of the log, decoded for picking records out of them, and the journal read back."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.edge_node.sessions.store.helpers import StoredNode, record
from tests.storage.segment_log.helpers import commit_all
from weft.edge_node.sessions.backlog import TOPICS_MAX, DecodedBatch
from weft.edge_node.sessions.records import Ended, Snapshot, Unsubscribed
from weft.edge_node.sessions.session_store import read_journal
from weft.edge_node.streams import SESSION_JOURNAL_STREAM


@pytest.fixture
def node() -> Iterator[StoredNode]:
    node = StoredNode()
    yield node
    node.stop_database()


def batch(node: StoredNode) -> DecodedBatch:
    """Records 2 to 7 of a stream: topics a, b, a, b, ... with headers and flags on one."""
    stream = node.log.stream("telemetry")
    node.log.append(stream, 1, [b"z"] * 2, [b"", b""])
    commit_all(node.log)
    keys, payloads = [b"a", b"b"] * 3, [b"%d" % number * 10 for number in range(2, 8)]
    node.log.append(stream, 1, keys, payloads, {1: (("name", "value"),)}, {1: 8})
    commit_all(node.log)
    (data,) = node.log.read(stream, 2, 1 << 20)
    return DecodedBatch(data)


def test_a_record_is_as_it_was_appended(node: StoredNode) -> None:
    found = batch(node)
    assert (found.base_seq, found.end_seq) == (2, 8)
    assert found.record(3) == (3, b"b", b"3" * 10, 8, (("name", "value"),), 1)
    assert found.record(7) == (7, b"b", b"7" * 10, 0, (), 1)


def test_wanted_records_are_picked_a_page_at_a_time(node: StoredNode) -> None:
    found = batch(node)
    asked: list[bytes] = []

    def wants(topic: bytes) -> bool:
        asked.append(topic)
        return topic == b"b"

    for limits, seqs, following in (((9, 1 << 20), [3, 5, 7], 8), ((2, 1 << 20), [3, 5], 7), ((9, 5), [3], 5)):
        records, next_seq = found.pick(2, wants, *limits)
        assert ([each.seq for each in records], next_seq) == (seqs, following)
        assert sorted(asked) == [b"a", b"b"], "once for each topic"
        asked.clear()
    assert found.pick(2, lambda _: False, 9, 1 << 20) == ([], 8)


def test_a_page_is_looked_through_for_a_bounded_number_of_topics(node: StoredNode) -> None:
    stream = node.log.stream("wide")
    node.log.append(stream, 1, [b"%d" % number for number in range(1_000)], [b""] * 1_000)
    commit_all(node.log)
    (data,) = node.log.read(stream, 0, 1 << 20)
    found, asked, seq = DecodedBatch(data), list[bytes](), 0
    while seq < 1_000:
        before = len(asked)
        _, seq = found.pick(seq, lambda topic: asked.append(topic) or topic == b"7", 9, 1 << 20)  # type: ignore[func-returns-value]
        assert len(asked) - before <= TOPICS_MAX
    assert asked == [b"%d" % number for number in range(1_000)]


def test_the_journal_is_read_in_order_up_to_an_end(node: StoredNode, caplog: pytest.LogCaptureFixture) -> None:
    stream = node.log.stream(SESSION_JOURNAL_STREAM)
    node.state.journal.opened(record("pi"))
    node.state.journal.unsubscribed("pi", "t")
    node.commit()
    node.log.append(stream, 1, [b"pi", b"pi"], [b"\xc1", b"\x91\x63"])  # damaged, and of a later release
    node.state.journal.ended("pi")
    node.commit()
    with caplog.at_level(logging.ERROR):
        found = list(read_journal(node.log, stream, 0, 5))
    assert [type(entry) for _, entry in found] == [Snapshot, Unsubscribed, Ended]
    assert {key for key, _ in found} == {"pi"}
    assert caplog.text.count("a change of the session of MQTT client") == 1
    assert [type(entry) for _, entry in read_journal(node.log, stream, 1, 2)] == [Unsubscribed]
    assert list(read_journal(node.log, stream, 5, 5)) == []
