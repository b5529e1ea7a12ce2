"""What is written to one client: in order, whatever waits for a turn, for the socket, or for the end of a read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.bounds import FAN_OUT_MAX, FanOutCap, user_or_address
from weft.edge_node.counters import Counters
from weft.edge_node.servers.clients.output import (
    BACKLOG_BYTES_MAX,
    LONG_BYTES,
    PIECE_BYTES,
    PIECE_BYTES_MAX,
    TURNS_MAX,
    WAITING_FACTOR,
    Output,
    Writes,
)
from weft.edge_node.subscriptions.message import Outbox

WAITING_MAX = 100_000
OWNER = user_or_address("mallory", "")


class Transport:
    """A transport that takes what it gets as long as its socket does."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.limit = 0

    def set_write_buffer_limits(self, high: int) -> None:
        self.limit = high

    def write(self, data: bytes) -> None:
        self.written.append(bytes(data))


class Listening:
    """A connection that notes what its output says of the client."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def falls_behind(self) -> None:
        self.said.append("behind")

    def catches_up(self) -> None:
        self.said.append("level")


class Room:
    """Outputs and the loop's turns, which come when the test says so."""

    def __init__(self) -> None:
        self.fan_out_cap, self.counters = FanOutCap(), Counters()
        self.writes = Writes(self.fan_out_cap, self.counters, WAITING_MAX)
        self.waiting: list[Callable[[], None]] = []
        cast(Any, self.writes).round_robin = self

    def __len__(self) -> int:
        return len(self.waiting)

    def wait(self, _: object, work: Callable[[], None]) -> None:
        self.waiting.append(work)

    def turn(self) -> bool:
        """Give one waiting output its turn."""
        if self.waiting:
            self.waiting.pop(0)()
        return bool(self.waiting)

    def output(self) -> tuple[Output, Transport, Listening]:
        transport, client = Transport(), Listening()
        return Output(cast(Any, transport), self.writes, client, OWNER), transport, client


ACTIONS = st.one_of(
    st.tuples(st.just("write"), st.sampled_from([1, 10, 600, LONG_BYTES, LONG_BYTES + 1, 3 * PIECE_BYTES])),
    st.tuples(st.just("write_all"), st.lists(st.sampled_from([1, 30, 3000, LONG_BYTES, 100_000]), max_size=4)),
    st.tuples(st.sampled_from(["cork", "uncork", "block", "unblock", "fan_out_cap", "alone", "turn"]), st.none()),
)


@given(st.lists(ACTIONS, max_size=40), st.booleans())
def test_all_is_written_once_and_in_order(actions: list[tuple[str, Any]], finishes: bool) -> None:
    room = Room()
    output, transport, _ = room.output()
    sent, number, is_blocked = b"", 0, False

    def data(size: int) -> bytes:
        nonlocal number, sent
        number += 1
        made = (b"%d," % number * size)[:size]
        sent += made
        return made

    for name, value in actions:
        before = len(transport.written)
        if name == "write":
            output.write(data(value))
        elif name == "write_all":
            output.write_all([data(size) for size in value])
        elif name == "fan_out_cap":
            room.fan_out_cap.is_reached = True
        elif name == "alone":
            room.fan_out_cap.is_reached = False
        elif name == "turn":
            room.turn()
        else:
            is_blocked = name == "block" or (is_blocked and name != "unblock")
            getattr(output, name)()
        written = transport.written[before:]
        assert all(len(each) <= PIECE_BYTES_MAX for each in written)
        if is_blocked and name != "block":
            assert not written
        if room.fan_out_cap.is_reached and name != "turn":
            assert not written
    room.fan_out_cap.is_reached = False
    if not finishes or not output.finish():
        output.uncork()
        output.unblock()
        while room.turn():
            pass
    assert b"".join(transport.written) == sent
    assert room.writes.backlog == 0
    assert room.counters.bytes_sent == len(sent)
    output.drop()
    while room.turn():
        pass
    assert b"".join(transport.written) == sent


def test_a_long_payload_is_written_in_pieces_with_turns_of_others_between_them() -> None:
    room = Room()
    (one, wire, _), (other, wire_2, _) = room.output(), room.output()
    payload = b"x" * (4 * PIECE_BYTES)
    room.writes.piece_bytes = PIECE_BYTES
    one.write_all([b"head", payload])
    other.write_all([b"head", payload])
    assert not wire.written
    room.turn()
    room.turn()
    assert [len(each) for each in wire.written] == [len(each) for each in wire_2.written] == [PIECE_BYTES]


def test_a_client_is_behind_when_its_socket_takes_nothing_and_level_when_most_was_written() -> None:
    room = Room()
    output, _, client = room.output()
    output.block()
    output.write(b"x" * (WAITING_MAX - 1))
    assert not client.said
    output.write(b"xx")
    output.write(b"xx")
    assert client.said == ["behind"]
    output.unblock()
    while room.turn():
        pass
    assert client.said == ["behind", "level"]


def test_a_client_that_only_waits_for_its_turn_has_more_room() -> None:
    room = Room()
    output, _, client = room.output()
    output.write(b"x" * 2 * WAITING_FACTOR * WAITING_MAX)  # one message is taken, however long it is
    assert not client.said
    output.write(b"x")
    assert client.said == ["behind"]
    output, _, client = room.output()
    for _ in range(WAITING_FACTOR):
        output.write(b"x" * WAITING_MAX)
    assert not client.said


def test_small_packets_that_wait_are_kept_as_one() -> None:
    room = Room()
    output, transport, _ = room.output()
    output.block()
    for _ in range(10_000):
        output.write(b"packet")
    assert output._waiting is not None
    assert len(output._waiting) == 1
    room.writes.piece_bytes = PIECE_BYTES
    output.unblock()
    room.turn()
    assert len(transport.written[0]) == PIECE_BYTES
    while room.turn():
        pass
    assert b"".join(transport.written) == b"packet" * 10_000


def test_a_message_in_many_parts_is_one_message() -> None:
    room = Room()
    output, _, client = room.output()
    output.write_all([b"x" * 30_000] * (WAITING_FACTOR * WAITING_MAX // 10_000))
    assert not client.said


def test_the_last_words_wait_for_no_long_message() -> None:
    room = Room()
    output, transport, _ = room.output()
    output.write(b"x" * (WAITING_MAX - 3))
    output.write(b"bye")
    assert output.finish()
    assert transport.written[-1].endswith(b"bye")
    output, transport, _ = room.output()
    output.write(b"x" * (WAITING_MAX + 1))
    assert not output.finish()
    assert not transport.written


def test_those_who_send_much_wait_until_less_waits_for_turns() -> None:
    room, reported = Room(), list[str]()
    made = [room.output()[0] for _ in range(3)]
    for output in made:
        output.write(b"x" * (BACKLOG_BYTES_MAX // 2))
    assert room.writes.is_full
    room.writes.when_short(OWNER, lambda: reported.append("short"))
    made[0].block()  # what waits for a socket is not the node's to write
    assert not room.writes.is_full
    made[1].drop()
    assert room.writes.backlog == BACKLOG_BYTES_MAX // 2
    room.writes._look()
    assert not reported, "it is not their turn yet"
    while room.turn():
        pass
    assert reported == ["short"]


def test_nothing_is_written_to_a_closed_transport() -> None:
    room = Room()
    output, transport, _ = room.output()
    output.write(b"x" * 2 * LONG_BYTES)
    output.drop()
    while room.turn():
        pass
    assert not transport.written


def test_a_crowd_waits_and_is_over_with_the_step() -> None:
    room = Room()
    outbox, made = Outbox(room.fan_out_cap), [room.output() for _ in range(FAN_OUT_MAX + 10)]
    for output, _, _ in made:
        outbox.add(lambda output=output: output.write(b"packet"))  # type: ignore[misc]
    outbox.flush()
    assert sum(bool(transport.written) for _, transport, _ in made) == FAN_OUT_MAX
    assert not room.fan_out_cap.is_reached
    while room.turn():
        pass
    assert all(transport.written == [b"packet"] for _, transport, _ in made)


def test_a_crowd_is_over_when_one_of_them_fails() -> None:
    room = Room()
    outbox = Outbox(room.fan_out_cap)
    outbox.add(lambda: 1 / 0)  # type: ignore[arg-type]  # the last to be flushed
    for _ in range(FAN_OUT_MAX):
        outbox.add(lambda: None)
    with pytest.raises(ZeroDivisionError):
        outbox.flush()
    assert not room.fan_out_cap.is_reached


async def test_a_round_has_so_many_turns() -> None:
    writes = Writes(FanOutCap(), Counters(), WAITING_MAX)
    transports = [Transport() for _ in range(2 * TURNS_MAX)]
    for transport in transports:
        Output(cast(Any, transport), writes, Listening(), OWNER).write(b"x" * (LONG_BYTES + 1))
    await asyncio.sleep(0)
    assert sum(map(len, (transport.written for transport in transports))) <= TURNS_MAX
    for _ in range(8 * TURNS_MAX):
        await asyncio.sleep(0)
    assert all(sum(map(len, transport.written)) == LONG_BYTES + 1 for transport in transports)
