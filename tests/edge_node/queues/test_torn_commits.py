"""Commits of which a power cut leaves the beginning: the state of queues stands first in them."""

from __future__ import annotations

import msgspec

from tests.edge_node.queues.room import OWNER, Room
from weft.edge_node.queues.definitions import QueueDefinition, queue_arguments
from weft.edge_node.queues.state import Changes


async def test_a_queue_whose_declaration_outlived_messages_before_it_keeps_what_comes_later() -> None:
    room = Room()
    room.queues.declarations.declare_queue(room.client, "first", durable=True)
    room.publish(b"a", key="first")
    await room.settle_down()
    # What a torn commit leaves: it was declared behind 40 messages of the same commit, of which the log has none.
    definition = QueueDefinition(
        2, "q", True, False, False, queue_arguments({}, durable=True, exclusive=False), *OWNER, since=41
    )
    room.log.append(
        room.log.streams()["weft-queues-state"], 0, [b""], [msgspec.msgpack.encode(Changes(queues=[definition]))]
    )
    room.commit()
    room.power_cut()
    room.publish(b"b", b"c")
    await room.settle_down()
    assert room.confirmed() == [b"b", b"c"]
    room.power_cut()
    assert await room.drain() == [b"b", b"c"]
    assert await room.drain("first") == [b"a"]
