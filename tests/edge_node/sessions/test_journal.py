"""The journal of deliveries: what is sent after it, and what it does when it is full."""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections.abc import Iterator

import pytest

from tests.edge_node.sessions.room import StoredNode, record
from tests.storage.segment_log.helpers import put
from weft.bounds import FanOutCap
from weft.config.limits import EdgeLimits
from weft.config.streams import State
from weft.edge_node.sessions.journal import DeliveryJournal, RecentPublishes, SessionJournal
from weft.edge_node.sessions.records import Sent, StateSettings
from weft.edge_node.subscriptions.message import Outbox
from weft.protocols.batch import Flag, records
from weft.protocols.mqtt.encoder import PUBACK
from weft.protocols.mqtt.packets import Will
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


# --- resent


@pytest.fixture
def resent_node() -> StoredNode:
    node = StoredNode()
    node.state.journal.opened(record())
    return node


def publish(
    node: StoredNode, *messages: tuple[int, bytes], client_id: str = "pi", qos: int = 1, commit: bool = True
) -> None:
    """One read of messages (packet identifier, payload) to one topic."""
    flags = {index: int(Flag.PUBLISHED_QOS0) for index, (packet_id, _) in enumerate(messages) if not packet_id}
    if qos == 2:
        flags = dict.fromkeys(range(len(messages)), int(Flag.PUBLISHED_QOS2))
    with node.state.journal.together():
        payloads = [payload for _, payload in messages]
        node.log.append(node.log.stream("telemetry"), 1, [b"t"] * len(messages), payloads, None, flags)
        ids = [packet_id for packet_id, _ in messages if packet_id]
        if qos == 1:
            node.state.journal.published(client_id, b"".join(PUBACK + each.to_bytes(2, "big") for each in ids))
        else:
            node.state.journal.received(client_id, ids)
    if commit:
        node.commit()


async def known(node: StoredNode, packet_id: int, payload: bytes, topic: bytes = b"t", client_id: str = "pi") -> bool:
    return await node.state.resent.recognise(client_id, packet_id, topic, payload)


@pytest.mark.parametrize("life", ["same", "killed", "saved and killed"])
async def test_a_repeat_is_the_same_client_identifier_topic_and_payload(resent_node: StoredNode, life: str) -> None:
    publish(resent_node, (1, b"a"), (2, b"b"), (300, b"c"))
    if life == "saved and killed":
        resent_node.save()
    if life != "same":
        resent_node.kill()
    assert await known(resent_node, 1, b"a")
    assert await known(resent_node, 300, b"c")
    assert not await known(resent_node, 2, b"a")  # another publish of the same read
    assert not await known(resent_node, 3, b"a")
    assert not await known(resent_node, 1, b"a", topic=b"u")
    assert not await known(resent_node, 1, b"a", client_id="other")
    assert not await known(resent_node, 1, b"")
    assert resent_node.counters.resent_recognised == 2


@pytest.mark.parametrize("restart", [False, True])
async def test_an_identifier_used_again_hides_what_it_was_used_for(resent_node: StoredNode, restart: bool) -> None:
    publish(resent_node, (1, b"a"), (2, b"b"), (3, b"c"))
    publish(resent_node, (1, b"new"))
    publish(resent_node, (2, b"b"), qos=2)
    if restart:
        resent_node.kill()
    assert not await known(resent_node, 1, b"a")
    assert await known(resent_node, 1, b"new")
    assert not await known(resent_node, 2, b"b")  # QoS 2 now: its own handshake says what is a repeat
    assert await known(resent_node, 3, b"c")


async def test_messages_without_an_identifier_in_between_do_not_confuse(resent_node: StoredNode) -> None:
    publish(resent_node, (0, b"x"), (1, b"a"), (0, b"b"), (2, b"b"), (0, b"y"))
    assert await known(resent_node, 1, b"a")
    assert await known(resent_node, 2, b"b")
    assert not await known(resent_node, 1, b"b")
    assert not await known(resent_node, 1, b"x")


async def test_a_repeat_that_comes_before_the_disk_is_done_waits_for_it(resent_node: StoredNode) -> None:
    publish(resent_node, (1, b"a"), commit=False)
    waiting = known(resent_node, 1, b"a")
    resent_node.log.on_durable(lambda _: None)
    import asyncio

    task = asyncio.ensure_future(waiting)
    await asyncio.sleep(0)
    assert not task.done()
    resent_node.commit()
    assert await task


async def test_an_ended_session_begins_anew(resent_node: StoredNode) -> None:
    publish(resent_node, (1, b"a"))
    resent_node.state.journal.ended("pi")
    resent_node.state.journal.opened(record())
    resent_node.commit()
    assert not await known(resent_node, 1, b"a")
    resent_node.kill()
    assert not await known(resent_node, 1, b"a")


async def test_only_so_many_are_remembered() -> None:
    node = StoredNode(settings=StateSettings(state=State(resent_window=10, resent_total=15)))
    for name in ("a", "b"):
        node.state.journal.opened(record(name))
        for number in range(1, 101):
            publish(node, (number, b"%d" % number), client_id=name)
    assert await known(node, 91, b"91", client_id="b")
    assert not await known(node, 90, b"90", client_id="b")
    assert not await known(node, 100, b"100", client_id="a")  # it published longer ago
    assert node.counters.resent_remembered == 10
    assert node.counters.resent_forgotten == 10
    node.kill()
    assert node.counters.resent_remembered == 10


async def test_which_streams_suppress() -> None:
    node = StoredNode(settings=StateSettings(suppressed=frozenset({5, 6})))
    assert node.state.resent.suppresses([5, 6])
    assert not node.state.resent.suppresses([5, 7])
    assert not node.state.resent.suppresses([])


def test_a_window_keeps_whole_reads_that_reach_into_it() -> None:
    recent = RecentPublishes()
    for number in range(10):
        recent.add(1, bytes([0, number, 0, 100 + number]), ((1, number, 2),), 5)
    assert recent.count == 6
    assert recent.find(6) is None
    found = recent.find(107)
    assert found is not None
    assert (found.runs, found.rank, found.publishes) == (((1, 7, 2),), 1, 2)
    assert RecentPublishes.unpack(recent.pack()).find(107) == found


def test_identifiers_are_looked_for_where_they_begin() -> None:
    recent = RecentPublishes()
    recent.add(1, b"\x01\x02\x03\x04", ((1, 0, 2),), 9)
    assert recent.find(0x0203) is None
    recent.add(1, b"\x02\x03\x04\x02\x03\x00", ((1, 2, 3),), 9)
    found = recent.find(0x0203)
    assert found is not None
    assert found.rank == 0


def journal_keeps_its_port(node: StoredNode) -> SessionJournal:
    return node.state.journal


@pytest.mark.parametrize("restart", [False, True])
async def test_a_user_that_publishes_much_forgets_its_own(restart: bool) -> None:
    settings = StateSettings(limits=EdgeLimits(user_share=0.5), state=State(resent_window=10, resent_total=40))
    node = StoredNode(settings=settings)
    device, hostile = "user:device/d", [f"user:mallory/{number}" for number in range(5)]
    for name in (device, *hostile):
        node.state.journal.opened(record(name))
    publish(node, (1, b"the device's"), client_id=device)
    for number, name in enumerate(hostile * 10):
        publish(node, (number + 1, b"%d" % number), client_id=name)
    if restart:
        node.kill()
    assert await known(node, 1, b"the device's", client_id=device)
    assert node.counters.resent_remembered <= 1 + 20
    if not restart:
        assert await known(node, 50, b"49", client_id=hostile[4])


# --- A process killed in the middle of a commit: at every byte of it, what is left fits together


STEP_BYTES = 7
GONE = Will(b"t", b"gone", 1)


def contents(node: StoredNode, stream: int) -> list[bytes]:
    return [each.payload for data in node.log.read(stream, 0, 1 << 20) for each in records(data)]


def commit_and_cut(node: StoredNode) -> Iterator[int]:
    """Make the next commit, and restart the node after each prefix of it. Yield the prefixes' lengths."""
    start = node.log._state.segments[-1].end
    node.log.committer.run_once()
    end = node.log._state.segments[-1].end
    path = node.log._state.segments[-1].path
    node.stop_database()
    disk, directory = node.disk, node.directory
    for cut in [*range(start, end, STEP_BYTES), end]:
        left = copy.deepcopy(disk)
        left.kill_process()
        content = left.content(path)
        content[cut:] = bytes(len(content) - cut)
        node.disk, node.directory = left, tempfile.mkdtemp(prefix="weft-state-")
        shutil.copytree(directory, node.directory, dirs_exist_ok=True)
        node.start()
        yield cut - start
        node.stop_database()
        shutil.rmtree(node.directory)


async def test_at_every_byte_the_journal_and_the_records_agree() -> None:
    node = StoredNode()
    one, two = node.log.stream("one"), node.log.stream("two")
    node.state.journal.opened(record())
    put(node.log, one, b"before")
    node.save()
    put_first = node.log.append(two, 1, [b"t"], [b"of another client"])
    assert put_first == 0
    with node.state.journal.together():
        node.log.append(one, 1, [b"t"], [b"once"], None, {0: int(Flag.PUBLISHED_QOS2)})
        node.log.append(two, 1, [b"t"] * 2, [b"at least once", b"twice"])
        node.state.journal.received("pi", [5])
        node.state.journal.published("pi", PUBACK + b"\0\6" + PUBACK + b"\0\7")
    outcomes = set()
    for cut in commit_and_cut(node):
        known = {packet_id for packet_id in (5,) if packet_id in node.sessions()["pi"].received}
        for packet_id, payload in ((5, b"once"), (6, b"at least once"), (7, b"twice")):
            stored = payload in contents(node, one) + contents(node, two)
            recognised = await node.state.resent.recognise("pi", packet_id, b"t", payload)
            assert stored == (packet_id in known or recognised), (cut, payload)
            assert not await node.state.resent.recognise("pi", packet_id, b"t", b"of another client")
            outcomes.add((payload, stored, recognised))
    # All of it was seen: nothing there; the record alone; both.
    assert {(b"once", False, False), (b"once", True, False)} <= outcomes
    assert {(b"twice", False, False), (b"twice", True, True)} <= outcomes


@pytest.mark.parametrize("expiry", [0, 3600])
def test_at_every_byte_a_will_is_in_the_log_or_still_to_be_published(expiry: int) -> None:
    node = StoredNode()
    one, two = node.log.stream("one"), node.log.stream("two")
    session = record(will=GONE)
    session.expiry_interval = expiry
    node.state.journal.opened(session)
    put(node.log, one, b"before")
    node.save()
    with node.state.journal.together():
        node.log.append(one, 1, [b"t"], [b"gone"])
        node.log.append(two, 1, [b"t"], [b"gone"])
        node.state.journal.will_published("pi")
        if not expiry:
            node.state.journal.ended("pi")
    outcomes = set()
    for cut in commit_and_cut(node):
        found = node.sessions().get("pi")
        stored = sum(b"gone" in contents(node, stream) for stream in (one, two))
        if expiry:
            assert found is not None
        if stored == 2:
            # A kill before the journal's part of the commit is whole would have lost the records too.
            assert (found is None) if not expiry else (found is not None and found.will is None), cut
        else:
            assert found is not None
            assert (found.client_id, found.will, found.expiry_interval) == ("pi", GONE, expiry), cut
        outcomes.add(stored)
    assert {0, 2} <= outcomes
