from __future__ import annotations

import sqlite3
import time
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.edge_node.sessions.store.helpers import Owner
from weft.bounds import Refusals, user_or_address
from weft.config.limits import EdgeLimits
from weft.edge_node.sessions.database import Database
from weft.edge_node.sessions.records import StateCounters
from weft.edge_node.sessions.retained import RetainedMessages, TopicTree, create_tables
from weft.protocols.mqtt.packets import NO_PROPERTIES, Properties
from weft.protocols.topics import matches

SECOND = 1_000_000_000
LEVELS = st.lists(st.sampled_from(["a", "b", "", "$x"]), min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = (
    st.tuples(st.lists(st.sampled_from(["a", "b", "", "+", "$x"]), max_size=3), st.sampled_from([[], ["#"]]))
    .map(lambda parts: "/".join([*parts[0], *parts[1]]))
    .filter(bool)
)


class Shelf:
    """Retained messages over a real file, with a clock that stands."""

    def __init__(self, directory: Path, limits: EdgeLimits | None = None) -> None:
        self.now = 1_000 * SECOND
        self.owner = Owner()
        self.counters = StateCounters()
        self.database = Database(str(directory), create_tables, self.owner.post)
        self.messages = RetainedMessages(
            self.database, limits or EdgeLimits(), self.counters, Refusals(lambda: self.now / SECOND), lambda: self.now
        )

    def put(
        self, topic: str, payload: bytes = b"x", properties: Properties = NO_PROPERTIES, user: str | None = None
    ) -> bool:
        owner = user_or_address(user, "")
        return self.messages.set(topic.encode(), payload, 1, properties, self.now, owner)

    def topics(self, topic_filter: str = "#") -> set[str]:
        return {message.topic.decode() for message in self.messages.match(topic_filter)}

    def limit_pages(self, pages: int) -> None:
        def limit(database: sqlite3.Connection) -> None:
            database.execute(f"PRAGMA max_page_count = {pages}")

        self.database.run(limit)

    def durable(self) -> BaseException | None:
        return self.owner.outcome(self.messages.on_durable)


@given(topics=st.sets(LEVELS, max_size=12), gone=st.sets(LEVELS, max_size=4), topic_filter=FILTERS)
def test_a_filter_finds_what_it_matches(topics: set[str], gone: set[str], topic_filter: str) -> None:
    tree = TopicTree()
    for topic in topics | gone:
        tree.add(topic.encode())
    for topic in gone:
        tree.remove(topic.encode())
    kept = topics - gone
    assert sorted(tree.match(topic_filter)) == sorted(t.encode() for t in kept if matches(topic_filter, t))


@given(
    topics=st.sets(LEVELS), taken=st.sets(LEVELS), added=st.sets(LEVELS), topic_filter=FILTERS, at=st.integers(0, 20)
)
def test_a_search_outlives_changes_of_the_tree(
    topics: set[str], taken: set[str], added: set[str], topic_filter: str, at: int
) -> None:
    tree = TopicTree()
    for topic in topics:
        tree.add(topic.encode())
    search = tree.walk(topic_filter)
    found = list(islice(search, at))
    for topic in taken & topics:
        tree.remove(topic.encode())
    for topic in added - topics:
        tree.add(topic.encode())
    found += search
    stays = {topic.encode() for topic in topics - taken if matches(topic_filter, topic)}
    ever = {topic.encode() for topic in topics | added if matches(topic_filter, topic)}
    assert stays <= {topic for topic in found if topic is not None} <= ever


def test_a_step_of_a_search_looks_at_one_node() -> None:
    """However many topics there are: who searches decides after each step whether to continue."""
    tree, nodes = TopicTree(), 3009
    for number in range(3000):
        tree.add(b"r/%d/%d" % (number % 7, number))
    for topic_filter, matching in (("#", 3000), ("+/+/+", 3000), ("+/+/+/x", 0), ("+/+/1/+", 0), ("r/3/#", 429)):
        steps = list(tree.walk(topic_filter))
        assert len(steps) - steps.count(None) == matching
        assert len(steps) <= nodes
        assert next(tree.walk(topic_filter)) is None, "the root alone was looked at"


def test_a_tree_forgets_what_was_taken_out() -> None:
    tree = TopicTree()
    for topic in (b"a/b/c", b"a/b", b"a/x"):
        tree.add(topic)
    for topic in (b"a/b", b"a/b/c", b"a/x"):
        tree.remove(topic)
    assert not tree._root.children


def test_the_last_message_of_a_topic_survives_a_restart(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    properties = Properties(content_type="text/plain", user_properties=(("a", "b"),), correlation_data=b"\0\xff")
    shelf.put("plant/1", b"old")
    shelf.put("plant/1", b"\0new", properties)
    shelf.put("plant/2")
    shelf.put("plant/ü")
    shelf.messages.clear(b"plant/2")
    shelf.messages.clear(b"never/there")
    assert shelf.durable() is None
    again = Shelf(tmp_path)
    (found,) = again.messages.match("plant/1")
    assert (found.topic, found.payload, found.qos, found.properties) == (b"plant/1", b"\0new", 1, properties)
    assert found.stored_ns == shelf.now
    assert again.topics() == {"plant/1", "plant/ü"}
    assert len(again.messages) == again.counters.retained == 2
    assert again.counters.retained_bytes == shelf.counters.retained_bytes


def test_durable_says_so_at_once_when_nothing_waits(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    reports: list[object] = []
    shelf.messages.on_durable(reports.append)
    assert reports == [None]
    shelf.put("a")
    shelf.messages.on_durable(reports.append)
    assert reports == [None]
    shelf.owner.wait_for(lambda: len(reports) == 2)
    assert reports == [None, None]


def test_topics_of_the_server_are_not_found_by_a_wildcard(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    for topic in ("$SYS/uptime", "a", "a/$b"):
        shelf.put(topic)
    assert shelf.topics("#") == {"a", "a/$b"}
    assert shelf.topics("+/uptime") == set()
    assert shelf.topics("$SYS/#") == {"$SYS/uptime"}


def test_expired_messages_are_gone_also_from_the_file(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    shelf.put("soon", properties=Properties(message_expiry_interval=10))
    shelf.put("later", properties=Properties(message_expiry_interval=20))
    shelf.put("renewed", properties=Properties(message_expiry_interval=10))
    shelf.put("renewed")
    shelf.now += 10 * SECOND
    assert shelf.topics() == {"later", "renewed"}
    assert shelf.counters.retained_expired == 1
    assert shelf.durable() is None
    assert Shelf(tmp_path).topics() == {"later", "renewed"}


def test_many_renewals_of_a_message_that_expires_do_not_pile_up(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    for _ in range(1000):
        shelf.now += 1
        shelf.put("a", properties=Properties(message_expiry_interval=3600))
    assert len(shelf.messages._deadlines) < 100


@pytest.mark.parametrize(
    "limits", [EdgeLimits(retained=2, retained_bytes=9000, user_share=1), EdgeLimits(retained_bytes=1900, user_share=1)]
)
def test_a_limit_refuses_what_is_new_and_keeps_what_is_there(tmp_path: Path, limits: EdgeLimits) -> None:
    shelf = Shelf(tmp_path, limits)
    assert shelf.put("a")
    assert shelf.put("b")
    assert not shelf.put("c")
    assert shelf.put("a", b"y")
    assert shelf.counters.retained_refused == 1
    shelf.messages.clear(b"b")
    assert shelf.put("c")
    assert shelf.topics() == {"a", "c"}
    assert not shelf.put("a", bytes(10_000))
    assert shelf.messages.match("a")[0].payload == b"y"


def test_a_full_disk_is_told_to_whoever_waits_and_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shelf = Shelf(tmp_path)
    shelf.limit_pages(20)
    shelf.put("large", bytes(1 << 20))
    error = shelf.durable()
    assert "full" in str(error)
    assert "cannot be written" in caplog.text
    assert shelf.database.failed is None
    shelf.limit_pages(100_000)
    shelf.put("small", b"kept with the large one")
    assert shelf.durable() is None
    assert "can be written again" in caplog.text
    assert Shelf(tmp_path).topics() == {"large", "small"}


@pytest.mark.slow
def test_a_hundred_thousand_messages_load_in_seconds(tmp_path: Path) -> None:
    limits = EdgeLimits(retained=100_000, retained_bytes=128 << 20, user_share=1)
    shelf = Shelf(tmp_path, limits)
    for number in range(100_000):
        shelf.put(f"plant/{number % 100}/machine/{number}", b"21.5" * 10)
    assert shelf.durable() is None
    shelf.database.close()
    started, cpu = time.perf_counter(), time.process_time()
    again = Shelf(tmp_path, limits)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    assert len(again.messages) == 100_000
    assert len(again.messages.match("plant/7/#")) == 1000
    print(f"100,000 retained messages: {seconds:.2f} s, {cpu:.2f} s of them CPU")
    assert cpu < 5  # 0.7 s on a quiet machine, and twice that on a busy one


@pytest.mark.parametrize("restarts", [False, True])
def test_retained_messages_of_one_owner_leave_room_for_those_of_others(tmp_path: Path, restarts: bool) -> None:
    limits = EdgeLimits(retained=10, user_share=0.3)
    shelf = Shelf(tmp_path, limits)
    assert [shelf.put(f"m/{number}", user="mallory") for number in range(3)] == [True] * 3
    if restarts:
        assert shelf.durable() is None
        shelf.database.close()
        shelf = Shelf(tmp_path, limits)
    assert not shelf.put("m/3", user="mallory")
    assert shelf.put("m/2", b"again", user="mallory"), "in place of its own"
    assert shelf.put("a/1", user="alice")
    assert not shelf.put("a/1", user="mallory"), "the topic keeps the message that it had"
    assert shelf.put("m/0", user="alice"), "and is alice's from now on"
    assert shelf.put("m/3", user="mallory")
    assert shelf.topics() == {"m/0", "m/1", "m/2", "m/3", "a/1"}
    shelf.database.close()


def test_of_full_retained_messages_the_owner_with_most_loses_its_oldest(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, EdgeLimits(retained_bytes=5 * 900, user_share=1))
    for number in range(4):
        assert shelf.put(f"m/{number}", user="mallory")
    assert shelf.put("a/1", user="alice")
    assert shelf.put("a/2", user="alice")
    assert shelf.topics() == {"m/1", "m/2", "m/3", "a/1", "a/2"}
    assert not shelf.put("m/4", user="mallory"), "nobody has more than mallory"
    assert shelf.put("m/1", b"bigger", user="bob"), "its own topic is not what makes room"
    assert shelf.topics() == {"m/1", "m/2", "m/3", "a/1", "a/2"}
    assert shelf.counters.retained_evicted == 1
    assert shelf.durable() is None
    shelf.database.close()
    assert Shelf(tmp_path).topics() == {"m/1", "m/2", "m/3", "a/1", "a/2"}
