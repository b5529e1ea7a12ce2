"""A producer lane: histories of sends, lost connections and other attempts over the link against a model hub."""

from __future__ import annotations

import contextlib
import random
import sys
from functools import partial

import pytest

from spark_sinks.errors import SinkError
from spark_sinks.sinks.stream import recovery
from spark_sinks.sinks.stream.lane import (
    Batch,
    BatchEncoder,
    Claim,
    LaneFact,
    Position,
    ProducerLane,
    Row,
    Superseded,
    ends_text,
    parse_position,
)
from spark_sinks.sinks.stream.link import Link, ProducerSettings
from spark_sinks.sinks.stream.recovery import StoredHub, begin
from tests.spark_sinks.sinks.stream.model_hub import ManyLanesHub, ModelStore, OneLaneHub, payload_of
from tests.spark_sinks.sinks.stream.model_hub import payload_of as model_spread_payload_of
from tests.support.slices import SLICE
from weft.protocols.lane import Lane

LANE = Lane("default", "spark-q", 7, "clean")
ROWS = [Position(offset, ordinal) for offset in range(60) for ordinal in range(1 + offset % 3)]
"""What the query makes of the source: the same at every attempt."""


ALWAYS = 1e9
"""Seconds of patience, of a clock that stands still."""


class Died(Exception):
    """The task is gone, at any moment."""


def attempt(hub: OneLaneHub, chance: random.Random, dies: float = 0.0) -> None:
    """A task that gets all rows from the first on, as after a lost checkpoint, in batches of its own."""
    settings = ProducerSettings(("http://hub", "http://other"), LANE.stream, "q", "/nowhere", patience_s=ALWAYS)
    link = Link(
        settings, lambda _: hub.epoch, lambda: 0.0, lambda: hub.clock, connect=hub.connect, sleep=lambda _: None
    )
    lane = ProducerLane(LANE)
    try:
        link.open(lane)
        lane.resume(ROWS[lane.end - 1] if lane.end else None)
        encoder, at = BatchEncoder(1, 1 << 20), 0
        while at < len(ROWS):
            if chance.random() < dies:
                raise Died
            taken = ROWS[at : at + chance.randint(1, 12)]
            at += len(taken)
            rows = [Row(each, 1, b"k", payload_of(each), ()) for each in taken if lane.wants(each)]
            if rows:
                lane.add(encoder.encode(rows, lane.end), rows[-1].position)
                link.send(lane)
            assert lane.acked <= len(hub.held), "what counts as durable is durable"
        link.wait_until_durable()
        assert hub.held == ROWS
    except Superseded:
        pass
    finally:
        link.abandon()


def history(seed: int) -> None:
    """Attempts come, go and overlap; the hub loses connections with all that was on them."""
    chance = random.Random(seed)
    hub = OneLaneHub(chance, ROWS, chance.choice([0.05, 0.2]))
    for _ in range(chance.randrange(4)):
        if chance.random() < 0.4:
            hub.meanwhile = partial(_other, hub, chance)
        _other(hub, chance)
    hub.faults, hub.meanwhile = 0.0, None
    attempt(hub, chance)
    assert hub.held == ROWS, "an attempt that is left alone completes the stream"


def _other(hub: OneLaneHub, chance: random.Random) -> None:
    with contextlib.suppress(Died):
        attempt(hub, chance, dies=chance.choice([0.0, 0.2]))


def test_attempts_that_fail_and_overlap_leave_each_row_once() -> None:
    _many(range(30))


@pytest.mark.search
def test_attempts_that_fail_and_overlap_leave_each_row_once_in_many_histories() -> None:
    _many(SLICE.seeds(ci=200, night=3000))


@pytest.mark.parametrize(
    ("name", "fault"),
    [("wants", lambda _lane, _position: True), ("is_durable", True)],
    ids=["rows that the lane has are sent again", "what was sent counts as durable"],
)
def test_a_planted_fault_is_found(name: str, fault: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProducerLane, name, fault)
    with pytest.raises((AssertionError, ValueError)):
        _many(range(100))


def _many(seeds: range) -> None:
    for seed in seeds:
        history(seed)


def open_lane(held: int, last: Position | None) -> ProducerLane:
    lane = ProducerLane(LANE)
    lane.offer(5)
    lane.opened([(0, held)] if held else [])
    lane.resume(last)
    return lane


def test_a_lane_with_holes_is_none_of_ours() -> None:
    lane = ProducerLane(LANE)
    with pytest.raises(SinkError, match="has holes"):
        lane.opened([(0, 4), (6, 9)])


def test_a_hub_that_went_back_is_told_instead_of_filled_with_other_rows() -> None:
    lane = open_lane(4, Position(3, 0))
    lane.add(Batch(4, 6, b""), Position(5, 0))
    lane.acknowledged([(0, 6)])
    with pytest.raises(SinkError, match=r"has 4 records .* acknowledged 6 before"):
        lane.opened([(0, 4)])


def test_an_end_between_batches_is_another_tasks() -> None:
    lane = open_lane(0, None)
    lane.add(Batch(0, 10, b""), Position(9, 0))
    with pytest.raises(Superseded):
        lane.opened([(0, 7)])


def test_what_is_not_durable_is_read_again_on_the_next_connection() -> None:
    lane = open_lane(0, None)
    lane.add(Batch(0, 2, b"first"), Position(1, 0))
    lane.add(Batch(2, 5, b"second"), Position(4, 0))
    assert (list(lane.snapshot.held), lane.snapshot.end) == ([(0, 5)], 5)
    assert (lane.read(0, 5), lane.read(0, 100), lane.read(3, 1)) == ([b"first"], [b"first", b"second"], [b"second"])
    lane.opened([(0, 2)])
    assert (list(lane.snapshot.held), lane.read(0, 100)) == ([(2, 5)], [b"second"])
    lane.acknowledged([(0, 5)])
    assert (list(lane.snapshot.held), lane.is_durable) == ([], True)


@pytest.mark.parametrize("text", [None, "", "1:2", "1:2:3:4", "a:1:2", "-1:2:3", 5])
def test_what_no_sink_wrote_is_no_position(text: object) -> None:
    assert parse_position(text) is None


def test_positions_are_read_back() -> None:
    assert parse_position(Position(1 << 60, 7).text(3)) == (3, Position(1 << 60, 7))


# --- Tasks of several spreads that overlap, fail and come back: histories over the link against a hub in memory


SHARD = 5
"""A source shard with edges of its own under spreads of 1, of 2 and 4, and of 8."""
POSITIONED = (("weft.position", "5:0:0"),)
OVERLAPS_ROWS = [Position(offset, ordinal) for offset in range(24) for ordinal in range(1 + offset % 2)]


def batch(
    hub: ManyLanesHub, chance: random.Random, rows: list[Position], *, spread: int, fact: LaneFact | None, dies: float
) -> LaneFact:
    """A task of one micro-batch."""
    settings = ProducerSettings(("http://hub",), "clean", "q", "/nowhere", spread=spread, patience_s=1e9)
    store = ModelStore(settings, hub)
    link = store.link(settings.edge_of(SHARD))
    try:
        lane = begin(settings, store, link, SHARD, fact)
        encoder, at = BatchEncoder(1, 1 << 20), 0
        while at < len(rows):
            if chance.random() < dies:
                raise Died
            taken = rows[at : at + chance.randint(1, 8)]
            at += len(taken)
            made = [Row(each, 1, b"k", model_spread_payload_of(each), POSITIONED) for each in taken if lane.wants(each)]
            if made:
                made[-1] = made[-1].behind(lane.behind)
                lane.add(encoder.encode(made, lane.end), made[-1].position)
                link.send(lane)
        link.wait_until_durable()
        return lane.fact
    finally:
        link.abandon()


def query(hub: ManyLanesHub, spread: int, chance: random.Random, dies: float = 0.0) -> None:
    """A driver that sends all rows from the first on, with the facts of each micro-batch for the next one. Spark tries
    a failed task again, with the same facts."""
    fact, at = None, 0
    while at < len(OVERLAPS_ROWS):
        rows = OVERLAPS_ROWS[at : at + chance.randint(1, 20)]
        for _ in range(3):
            with contextlib.suppress(Superseded):
                fact = batch(hub, chance, rows, spread=spread, fact=fact, dies=dies)
                break
        else:
            return  # as a query whose task failed too often
        at += len(rows)


def mortal(hub: ManyLanesHub, spread: int, chance: random.Random, dies: float) -> None:
    with contextlib.suppress(Died):
        query(hub, spread, chance, dies)


def overlaps_history(seed: int) -> None:
    chance = random.Random(seed)
    hub = ManyLanesHub(chance, OVERLAPS_ROWS, chance.choice([0.0, 0.05, 0.2]))
    for _ in range(chance.randint(1, 3)):
        spreads = [chance.choice([1, 1, 2, 4, 8]) for _ in range(chance.randint(1, 3))]
        hub.turns.run(*(partial(mortal, hub, each, chance, chance.choice([0.0, 0.1])) for each in spreads))
        if chance.random() < 0.5:
            hub.delete_old()
    hub.faults = 0.0
    query(hub, chance.choice([1, 2, 8]), chance)
    assert hub.count == len(OVERLAPS_ROWS), "a query that is left alone completes the stream"


def _overlaps_many(seeds: range) -> None:
    for seed in seeds:
        overlaps_history(seed)


def test_overlapping_tasks_of_several_spreads_leave_each_row_once() -> None:
    _overlaps_many(range(12))


@pytest.mark.search
def test_overlapping_tasks_of_several_spreads_leave_each_row_once_in_many_histories() -> None:
    _overlaps_many(SLICE.seeds(ci=200, night=5000))


def newest_on_each_connection(self: ProducerLane, clock: int) -> int:
    if self.claim is Claim.NEXT:
        self.claim = Claim.TAKE_OVER
    return own_offer(self, clock)


def sealed_by_the_clock(self: ProducerLane, clock: int) -> int:
    if self.claim is Claim.SEAL:
        self.claim = Claim.NEWEST
    return own_offer(self, clock)


def others_first(
    settings: ProducerSettings, hub: StoredHub, link: Link, shard: int, fact: LaneFact | None
) -> ProducerLane:
    """As ``begin``, in the order in which it must not be."""
    others = recovery.others_of(settings, hub, shard)
    lane = ProducerLane(settings.spread_lane(shard), 0, Claim.TAKE_OVER)
    link.open(lane)
    lane.behind = ends_text({each.log_id: end for each, end in others.items()})
    return recovery._resumed(hub, lane, shard, fact, others)


own_offer = ProducerLane.offer
FAULTS: dict[str, tuple[object, str, object]] = {
    "the other lanes are taken over first": (sys.modules[__name__], "begin", others_first),
    "the first lane can be claimed again": (ProducerLane, "offer", sealed_by_the_clock),
    "lanes of other spreads are not looked at": (recovery, "_stopped", lambda *_, **__: 0),
    "the clock claims a lane again on each connection": (ProducerLane, "offer", newest_on_each_connection),
    "facts outlive a take-over": (ProducerLane, "is_next", True),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_of_overlaps_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, value = FAULTS[name]
    monkeypatch.setattr(owner, attribute, value)
    with pytest.raises(AssertionError):
        _overlaps_many(range(300))
