"""The pure part of a producer lane: a state machine of sends, lost connections, and other attempts, against a model
hub."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spark_sinks.errors import SinkError
from spark_sinks.sinks.stream.lane import Batch, LinkLaneState, ProducerLane, Superseded
from spark_sinks.sinks.stream.positions import Position, parse_position
from weft.protocols.lane import Lane

LANE = Lane("default", "spark-q", 7, "clean")
ROWS = [Position(offset, ordinal) for offset in range(60) for ordinal in range(1 + offset % 3)]
"""What the query makes of the source: the same at every attempt."""


class LaneMachine(RuleBasedStateMachine):
    """Attempts come and go; the hub takes what it is sent in order, or loses a connection with all that was on it."""

    def __init__(self) -> None:
        super().__init__()
        self.hub: list[Position] = []
        self.wire: list[tuple[int, list[Position]]] = []
        """Batches sent on this connection that the hub has not committed: first number, rows."""
        self.rows: dict[int, list[Position]] = {}
        self.next = 0

    @initialize()
    def begin(self) -> None:
        self._attempt()

    def _attempt(self) -> None:
        self.lane = ProducerLane(LANE)
        self.wire, self.next, self.rows = [], 0, {}
        self._connect()
        self.lane.resume(self.hub[-1] if self.hub else None)

    def _connect(self) -> None:
        self.lane.opening(1)
        self.lane.opened([(0, len(self.hub))] if self.hub else [])

    @rule(count=st.integers(1, 12))
    def add_rows(self, count: int) -> None:
        """The task takes rows, passes over what the lane has, and makes a batch of the others."""
        taken = ROWS[self.next : self.next + count]
        self.next += len(taken)
        wanted = [position for position in taken if self.lane.wants(position)]
        if wanted:
            first = self.lane.end
            self.rows[first] = wanted
            self.lane.add(Batch(first, first + len(wanted), b"", len(wanted)), wanted[-1])

    @precondition(lambda self: self.lane.next_to_send is not None)
    @rule()
    def send(self) -> None:
        batch = self.lane.next_to_send
        assert batch is not None
        self.lane.note_sent()
        self.wire.append((batch.first, self.rows[batch.first]))

    @precondition(lambda self: self.wire)
    @rule(acked=st.booleans())
    def commit(self, acked: bool) -> None:
        first, positions = self.wire.pop(0)
        self.hub += positions[len(self.hub) - first :]
        if acked:
            self.lane.acknowledged([(0, len(self.hub))])

    @rule()
    def lose_connection(self) -> None:
        """What was on the way is gone, or had been committed without an acknowledgement."""
        self.wire.clear()
        self.lane.lost()
        self._connect()

    @rule()
    def new_attempt(self) -> None:
        """The task dies, or its micro-batch is repeated after a lost checkpoint, from the first row."""
        self._attempt()

    @rule(count=st.integers(1, 5))
    def another_attempt_overtakes(self, count: int) -> None:
        """Another task sends rows; this one notices when it comes again, and never writes between them."""
        before = len(self.hub)
        self.hub += ROWS[before : before + count]
        self.wire.clear()
        self.lane.lost()
        try:
            self._connect()
        except Superseded:
            self._attempt()

    @invariant()
    def the_stream_is_a_prefix_of_the_rows(self) -> None:
        assert self.hub == ROWS[: len(self.hub)]

    @invariant()
    def what_counts_as_durable_is_durable(self) -> None:
        assert self.lane.acked <= len(self.hub)
        assert self.lane.in_flight >= sum(len(positions) for _, positions in self.wire)

    def teardown(self) -> None:
        """However it went, one more attempt that is left alone completes the stream."""
        self._attempt()
        self.add_rows(len(ROWS))
        while self.lane.next_to_send is not None:
            self.send()
        while self.wire:
            self.commit(acked=True)
        assert self.hub == ROWS
        assert self.lane.is_durable


LaneMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLaneMachine = LaneMachine.TestCase


def open_lane(held: int, last: Position | None) -> ProducerLane:
    lane = ProducerLane(LANE)
    lane.opening(5)
    lane.opened([(0, held)] if held else [])
    lane.resume(last)
    return lane


def test_a_lane_with_holes_is_none_of_ours() -> None:
    lane = ProducerLane(LANE)
    with pytest.raises(SinkError, match="has holes"):
        lane.opened([(0, 4), (6, 9)])


def test_a_hub_that_went_back_is_told_instead_of_filled_with_other_rows() -> None:
    lane = open_lane(4, Position(3, 0))
    lane.add(Batch(4, 6, b"", 1), Position(5, 0))
    lane.note_sent()
    lane.acknowledged([(0, 6)])
    lane.lost()
    with pytest.raises(SinkError, match=r"has 4 records .* acknowledged 6 before"):
        lane.opened([(0, 4)])


def test_an_end_between_batches_is_another_tasks() -> None:
    lane = open_lane(0, None)
    lane.add(Batch(0, 10, b"", 1), Position(9, 0))
    lane.lost()
    with pytest.raises(Superseded):
        lane.opened([(0, 7)])


def test_nothing_is_sent_while_the_lane_is_closed() -> None:
    lane = open_lane(0, None)
    lane.add(Batch(0, 2, b"", 9), Position(1, 0))
    lane.note_sent()
    assert (lane.in_flight, lane.next_to_send) == (9, None)
    lane.lost()
    assert (lane.state, lane.in_flight, lane.next_to_send) == (LinkLaneState.CLOSED, 0, None)
    lane.opened([])
    assert lane.next_to_send is not None


@pytest.mark.parametrize("text", [None, "", "1:2", "1:2:3:4", "a:1:2", "-1:2:3", 5])
def test_what_no_sink_wrote_is_no_position(text: object) -> None:
    assert parse_position(text) is None


def test_positions_are_read_back() -> None:
    assert parse_position(Position(1 << 60, 7).text(3)) == (3, Position(1 << 60, 7))
