from __future__ import annotations

import pytest

from tests.edge_node.sessions.store.helpers import StoredNode, record
from weft.config.limits import EdgeLimits
from weft.config.streams import State
from weft.edge_node.sessions.journal import RecentPublishes, SessionJournal
from weft.edge_node.sessions.records import StateSettings
from weft.protocols.batch import Flag
from weft.protocols.mqtt.encoder import PUBACK


@pytest.fixture
def node() -> StoredNode:
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
async def test_a_repeat_is_the_same_client_identifier_topic_and_payload(node: StoredNode, life: str) -> None:
    publish(node, (1, b"a"), (2, b"b"), (300, b"c"))
    if life == "saved and killed":
        node.save()
    if life != "same":
        node.kill()
    assert await known(node, 1, b"a")
    assert await known(node, 300, b"c")
    assert not await known(node, 2, b"a")  # another publish of the same read
    assert not await known(node, 3, b"a")
    assert not await known(node, 1, b"a", topic=b"u")
    assert not await known(node, 1, b"a", client_id="other")
    assert not await known(node, 1, b"")
    assert node.counters.resent_recognised == 2


@pytest.mark.parametrize("restart", [False, True])
async def test_an_identifier_used_again_hides_what_it_was_used_for(node: StoredNode, restart: bool) -> None:
    publish(node, (1, b"a"), (2, b"b"), (3, b"c"))
    publish(node, (1, b"new"))
    publish(node, (2, b"b"), qos=2)
    if restart:
        node.kill()
    assert not await known(node, 1, b"a")
    assert await known(node, 1, b"new")
    assert not await known(node, 2, b"b")  # QoS 2 now: its own handshake says what is a repeat
    assert await known(node, 3, b"c")


async def test_messages_without_an_identifier_in_between_do_not_confuse(node: StoredNode) -> None:
    publish(node, (0, b"x"), (1, b"a"), (0, b"b"), (2, b"b"), (0, b"y"))
    assert await known(node, 1, b"a")
    assert await known(node, 2, b"b")
    assert not await known(node, 1, b"b")
    assert not await known(node, 1, b"x")


async def test_a_repeat_that_comes_before_the_disk_is_done_waits_for_it(node: StoredNode) -> None:
    publish(node, (1, b"a"), commit=False)
    waiting = known(node, 1, b"a")
    node.log.on_durable(lambda _: None)
    import asyncio

    task = asyncio.ensure_future(waiting)
    await asyncio.sleep(0)
    assert not task.done()
    node.commit()
    assert await task


async def test_an_ended_session_begins_anew(node: StoredNode) -> None:
    publish(node, (1, b"a"))
    node.state.journal.ended("pi")
    node.state.journal.opened(record())
    node.commit()
    assert not await known(node, 1, b"a")
    node.kill()
    assert not await known(node, 1, b"a")


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
