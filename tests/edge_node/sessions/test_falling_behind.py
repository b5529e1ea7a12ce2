"""Clients that fall behind: between the message at which they do, and the turn in which they begin to read."""

from __future__ import annotations

import asyncio
from collections import Counter

from tests.edge_node.sessions.room import Room, RoomClient
from weft.config.limits import EdgeLimits
from weft.edge_node.ingest.routing import Router
from weft.protocols.mqtt.decoder import decode
from weft.protocols.mqtt.packets import Publish


def payloads(client: RoomClient) -> list[bytes]:
    data, at, found = b"".join(client), 0, list[bytes]()
    while (decoded := decode(data, at, 1 << 24, 5)) is not None:
        packet, at = decoded
        found += [packet.payload] if isinstance(packet, Publish) else []
    return found


def acknowledge(client: RoomClient) -> None:
    assert client.session is not None
    window = client.session.window
    for packet_id in list(window.in_flight.deliveries):
        window.in_flight.puback(packet_id)
    window.pump()
    client.room.outbox.flush()


async def all_read(room: Room, client: RoomClient) -> None:
    """Until a client that acknowledges everything has nothing more to read."""
    assert client.session is not None
    window = client.session.window
    while window.catch_up is not None or window.in_flight.deliveries or window.queued:
        room.node.commit()
        acknowledge(client)
        await asyncio.sleep(0)


def with_alarms(room: Room) -> None:
    patterns = {"telemetry": ["plant/#"], "alarms": ["alarm/+"]}
    added = room.ingest.routing.reroute(Router(patterns, room.node.log.stream))
    room.sessions.add_streams({stream: room.node.log.next_seq(stream) for stream in added})


async def test_a_member_of_a_share_gets_its_own_copies_as_well() -> None:
    room = Room(limits=EdgeLimits(inflight=2, session_queue_bytes=1200))
    client = room.connect("c")
    for text in ("plant/#", "$share/g/plant/#"):
        room.subscribe(client, text)
    sent = [b"%d" % number for number in range(6)]
    room.publish(b"plant/a", *sent)
    acknowledge(client)  # makes room, which the shared subscription takes before the client's reader begins
    await all_read(room, client)
    for _ in range(50):  # the shared one has a reader of its own
        room.node.commit()
        await asyncio.sleep(0)
        acknowledge(client)
    assert Counter(payloads(client)) == dict.fromkeys(sent, 2)


async def test_a_stream_that_is_put_back_is_read_from_its_end_on() -> None:
    room = Room()
    with_alarms(room)
    client = room.connect("c")
    room.subscribe(client, "alarm/+")
    room.publish(b"alarm/a", b"old")
    await all_read(room, client)
    assert payloads(client) == [b"old"]
    for is_last in (False, True):  # without the stream, and with the client between
        room.leave(client)
        room = room.stopped()
        client = client if is_last else room.connect("c")
    with_alarms(room)
    room.publish(b"alarm/a", b"new")
    client = room.connect("c")
    await all_read(room, client)
    assert payloads(client) == [b"new"]


async def test_a_stream_that_comes_before_the_turn_is_read_from_its_end_on() -> None:
    room = Room(limits=EdgeLimits(inflight=1, session_queue_bytes=800))
    room.node.log.append(room.node.log.stream("alarms"), 1, [b"alarm/a"], [b"old"])
    client = room.connect("c")
    for text in ("alarm/+", "plant/#"):
        room.subscribe(client, text)
    sent = [b"%d" % number for number in range(6)]
    room.publish(b"plant/a", *sent)
    with_alarms(room)
    room.publish(b"alarm/a", b"new")
    await all_read(room, client)
    assert payloads(client) == [*sent, b"new"]


async def test_what_is_left_to_the_log_is_in_no_account_soon_after() -> None:
    room = Room(limits=EdgeLimits(inflight=1, session_queue_bytes=100_000))
    member = room.connect("m", expiry=0)
    room.subscribe(member, "$share/g/plant/#")
    room.publish(b"plant/a", *[bytes(1_000)] * 200)
    await asyncio.sleep(0.1)  # no acknowledgement comes, and no room
    assert room.context.windows.budget.used < 2_000
