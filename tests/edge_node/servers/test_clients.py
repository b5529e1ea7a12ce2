"""What is read from clients and written to them: in order, bounded, and whole."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from weft.bounds import FAN_OUT_MAX, Bound, FanOutCap, Owner, OwnerKind, Quota, Refusals, user_or_address
from weft.config.limits import EdgeLimits
from weft.edge_node.counters import Counters
from weft.edge_node.ingest.ingest import Pause
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
from weft.edge_node.servers.clients.reading import KEEPS, ReadBuffer, Reading
from weft.edge_node.subscriptions.message import Outbox

# --- Reading of a connection: any order of pauses and of what ends them loses nothing, and leaves no client unread


WRITE_TIMEOUT_S = 60.0
SERVED_MAX = 1_000
"""Turns after which a client that is not read is one that waits without end."""


class Transport:
    def __init__(self) -> None:
        self.is_paused = self.is_aborted = False

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def abort(self) -> None:
        self.is_aborted = True


class AskedNode:
    """What a reading asks of the node, with its answers due when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.turns_waited_for: deque[Callable[[], None]] = deque()
        self.commits: deque[Callable[[Any], None]] = deque()
        self.writes_waited_for: deque[Callable[[], None]] = deque()
        self.admits = True
        self.writes_are_full = False
        self.publishers: set[object] = set()
        self.counters = SimpleNamespace(write_timeouts=0)
        self.settings = SimpleNamespace(limits=EdgeLimits(write_timeout_s=WRITE_TIMEOUT_S))
        self.pacing = SimpleNamespace(reads_until=-1.0, admits=lambda _: self.admits)
        self.round_robin = SimpleNamespace(wait=lambda _, resume: self.turns_waited_for.append(resume))
        self.ingest = SimpleNamespace(
            batch=SimpleNamespace(store=lambda: None),
            on_durable=self.commits.append,
            back_pressure=SimpleNamespace(join=self.publishers.add, leave=self.publishers.discard),
        )

    @property
    def writes(self) -> Any:
        return SimpleNamespace(
            is_full=self.writes_are_full, when_short=lambda _, resume: self.writes_waited_for.append(resume)
        )

    def clock(self) -> float:
        return self.now


class Readings(RuleBasedStateMachine):
    """A connection that handles some bytes in a turn, and asks elsewhere where it finds a question."""

    def __init__(self) -> None:
        super().__init__()
        self.node = AskedNode()
        self.transport = Transport()
        self.arrived, self.handled = b"", b""
        self.turn_bytes = 8
        self.is_open = True
        self.is_held_by_disk = self.is_behind = False
        self.reported: list[bool] = []

    @initialize(keeps=st.sampled_from([KEEPS, KEEPS | Pause.ACKS]), turn_bytes=st.integers(1, 9))
    def begin(self, keeps: int, turn_bytes: int) -> None:
        owner = Owner(OwnerKind.USER, "ann")
        self.keeps, self.turn_bytes = keeps, turn_bytes
        self.held = ReadBuffer(Bound(Quota("all", 1 << 30, 1 << 30, "bytes"), Refusals(lambda: 0.0)), owner)
        self.reading = Reading(self.node, self.held, self._read_ahead, keeps, self.reported.append)  # type: ignore[arg-type]
        self.reading.begin(self.transport)  # type: ignore[arg-type]
        self.reading.join()
        assert self.node.publishers == {self.reading}

    def _read_ahead(self, now: float) -> None:
        assert self.is_open
        self._read(self.held.take(), now)

    def _read(self, data: bytes, now: float) -> None:
        self.reading.heard = now
        left = self.turn_bytes
        while data and not self.reading.pause & self.keeps:
            self.handled, asks, data = self.handled + data[:1], data[:1] == b"?", data[1:]
            left -= 1
            if asks:
                self.reading.hold(Pause.RESULT)
            elif not left and data:
                self.reading.end_turn()
        self.held.ahead = data + self.held.ahead
        self.reading.handled(LONG_BYTES + 1)

    # --- what happens to a connection

    @rule(data=st.text("ab?", min_size=1, max_size=20), admits=st.booleans(), full=st.booleans())
    def arrives(self, data: str, admits: bool, full: bool) -> None:
        if not self.is_open:
            return  # one that is paused may still get what was read before
        self.node.admits, self.node.writes_are_full = admits, full
        self.arrived += data.encode()
        if self.reading.admits(self.node.now):
            self._read(data.encode(), self.node.now)
        else:
            self.held.ahead += data.encode()
            self.reading.put_off()

    @rule(what=st.sampled_from(["disk", "socket", "acknowledgements"]))
    def pauses_or_goes_on(self, what: str) -> None:
        getattr(self, f"_{what}")()

    def _disk(self) -> None:
        if self.is_open:  # back-pressure knows no connection that has left
            self.is_held_by_disk = not self.is_held_by_disk
            (self.reading.hold if self.is_held_by_disk else self.reading.release)(Pause.DISK)

    def _socket(self) -> None:
        self.is_behind = not self.is_behind
        (self.reading.falls_behind if self.is_behind else self.reading.catches_up)()

    def _acknowledgements(self) -> None:
        (self.reading.release if self.reading.pause & Pause.ACKS else self.reading.hold)(Pause.ACKS)

    @precondition(lambda self: self.reading.pause & Pause.RESULT)
    @rule(in_turn=st.booleans(), admits=st.booleans())
    def answer(self, in_turn: bool, admits: bool) -> None:
        self.node.admits = admits
        (self.reading.resume_in_turn if in_turn else self.reading.resume)(Pause.RESULT)
        assert admits or not in_turn or self.reading.pause & Pause.FAIRNESS
        assert admits or not in_turn or not self.reading.pause & Pause.RESULT

    @precondition(lambda self: self.node.turns_waited_for)
    @rule()
    def turn(self) -> None:
        self.node.turns_waited_for.popleft()()

    @precondition(lambda self: self.node.commits)
    @rule()
    def commit(self) -> None:
        self.node.commits.popleft()(None)

    @precondition(lambda self: self.node.writes_waited_for)
    @rule()
    def written(self) -> None:
        self.node.writes_waited_for.popleft()()

    @rule(seconds=st.floats(0, WRITE_TIMEOUT_S))
    def time_passes(self, seconds: float) -> None:
        self.node.now += seconds
        before = self.node.counters.write_timeouts
        is_stuck = self.reading.is_stuck(self.node.now)
        assert is_stuck == (self.is_behind and self.node.now >= self.reading.write_until)
        assert self.node.counters.write_timeouts == before + is_stuck

    @rule(chance=st.integers(0, 9))
    def closes(self, chance: int) -> None:
        if chance:
            return
        self.is_open = False
        self.held.clear()
        self.reading.end()
        self.arrived = self.handled
        assert not self.node.publishers

    # --- what is true at all times

    @invariant()
    def what_came_is_handled_in_order_or_waits(self) -> None:
        assert self.handled + self.held.ahead == self.arrived

    @invariant()
    def the_transport_is_read_while_nothing_is_waited_for(self) -> None:
        if self.is_open:
            assert self.transport.is_paused == bool(self.reading.pause)
            assert bool(self.reading.pause & Pause.DISK) == self.is_held_by_disk

    @invariant()
    def what_waits_waits_for_something(self) -> None:
        if self.held.ahead:
            assert self.reading.pause & self.keeps

    def teardown(self) -> None:
        if not hasattr(self, "reading"):
            return
        self.node.admits, self.node.writes_are_full = True, False
        if self.is_held_by_disk and self.is_open:
            self._disk()
        if self.is_behind:
            self._socket()
        self.reading.release(Pause.ACKS)
        for _ in range(SERVED_MAX):
            node = self.node
            if self.reading.pause & Pause.RESULT:
                self.reading.resume()
            elif node.commits:
                self.commit()
            elif node.turns_waited_for:
                self.turn()
            elif node.writes_waited_for:
                self.written()
            else:
                break
        self.what_came_is_handled_in_order_or_waits()
        if self.is_open:
            assert self.handled == self.arrived
            assert not self.reading.pause
            assert not self.transport.is_paused
        assert not self.reported or self.reported[-1] is False or not self.is_open


TestReadings = Readings.TestCase


@pytest.fixture
def reading() -> tuple[Reading, AskedNode, Transport, ReadBuffer]:
    node, transport = AskedNode(), Transport()
    held = ReadBuffer(
        Bound(Quota("all", 1 << 20, 1 << 20, "bytes"), Refusals(lambda: 0.0)), Owner(OwnerKind.USER, "ann")
    )
    found = Reading(node, held, lambda _: None)  # type: ignore[arg-type]
    found.begin(transport)  # type: ignore[arg-type]
    return found, node, transport, held


def test_a_client_s_turn_while_publishers_wait_for_the_disk_comes_after_it(
    reading: tuple[Reading, AskedNode, Transport, ReadBuffer],
) -> None:
    found, node, transport, held = reading
    held.ahead = b"x"
    found.await_turn()
    found.hold(Pause.DISK)
    node.turns_waited_for.popleft()()
    assert found.pause == Pause.DISK | Pause.FAIRNESS
    found.release(Pause.DISK)
    assert transport.is_paused
    node.turns_waited_for.popleft()()
    assert not transport.is_paused


def test_a_connection_about_to_end_waits_for_disk_and_socket_alone(
    reading: tuple[Reading, AskedNode, Transport, ReadBuffer],
) -> None:
    found, _, transport, _ = reading
    found.hold(Pause.RESULT)
    found.falls_behind()
    found.last_words()
    assert found.pause == Pause.WRITE
    found.catches_up()
    assert not transport.is_paused


def test_a_fault_of_a_turn_ends_the_connection() -> None:
    """As one of a read does in asyncio: otherwise it stays open, and its client waits without end."""

    def failing(now: float) -> None:
        raise RuntimeError("a fault of the node")

    node, transport = AskedNode(), Transport()
    held = ReadBuffer(
        Bound(Quota("all", 1 << 20, 1 << 20, "bytes"), Refusals(lambda: 0.0)), Owner(OwnerKind.USER, "ann")
    )
    found = Reading(node, held, failing)  # type: ignore[arg-type]
    found.begin(transport)  # type: ignore[arg-type]
    found.await_turn()
    with pytest.raises(RuntimeError):
        node.turns_waited_for.popleft()()
    assert transport.is_aborted


# --- What is written to one client: in order, whatever waits for a turn, for the socket, or for the end of a read


WAITING_MAX = 100_000
OWNER = user_or_address("mallory", "")


class OutputTransport:
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

    def output(self) -> tuple[Output, OutputTransport, Listening]:
        transport, client = OutputTransport(), Listening()
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
    transports = [OutputTransport() for _ in range(2 * TURNS_MAX)]
    for transport in transports:
        Output(cast(Any, transport), writes, Listening(), OWNER).write(b"x" * (LONG_BYTES + 1))
    await asyncio.sleep(0)
    assert sum(map(len, (transport.written for transport in transports))) <= TURNS_MAX
    for _ in range(8 * TURNS_MAX):
        await asyncio.sleep(0)
    assert all(sum(map(len, transport.written)) == LONG_BYTES + 1 for transport in transports)
