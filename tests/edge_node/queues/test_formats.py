"""Records of queues that a later release wrote: passed over where they may be, refused where they must be."""

from __future__ import annotations

import msgspec
import pytest

from tests.edge_node.queues.room import Room
from weft.edge_node.queues.state import VERSION, Changes
from weft.protocols.errors import UnsupportedVersion


def write(room: Room, elements: list[object]) -> None:
    stream = room.log.streams()["weft-queues-state"]
    room.log.append(stream, room.clock.wall(), [b""], [msgspec.msgpack.encode(elements)])


async def room_with_a_message() -> Room:
    room = Room()
    room.queues.declarations.declare_queue(room.client, "q", durable=True)
    room.publish(b"1")
    await room.settle_down()
    return room


async def test_elements_of_a_later_release_are_passed_over() -> None:
    room = await room_with_a_message()
    known = msgspec.to_builtins(Changes(exchanges_gone=["gone"]))
    write(room, [*known, "a later element", {"and": "another"}])
    room.commit()
    room.power_cut()
    assert await room.drain() == [b"1"]


async def test_a_later_version_is_refused_with_what_to_do() -> None:
    room = await room_with_a_message()
    write(room, [VERSION + 1])
    room.commit()
    with pytest.raises(UnsupportedVersion, match="install that again"):
        room.power_cut()
