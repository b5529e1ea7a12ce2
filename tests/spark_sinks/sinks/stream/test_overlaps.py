"""Tasks of several spreads that overlap, fail and come back: histories over the link against a hub in memory."""

from __future__ import annotations

import contextlib
import random
import sys
from functools import partial

import pytest

from spark_sinks.sinks.stream import recovery
from spark_sinks.sinks.stream.lane import (
    BatchEncoder,
    Claim,
    LaneFact,
    Position,
    ProducerLane,
    Row,
    Superseded,
    ends_text,
)
from spark_sinks.sinks.stream.link import Link, ProducerSettings
from spark_sinks.sinks.stream.recovery import StoredHub, begin
from tests.spark_sinks.sinks.stream.model_spread import ManyLanesHub, ModelStore, payload_of
from tests.support.slices import SLICE

SHARD = 5
"""A source shard with edges of its own under spreads of 1, of 2 and 4, and of 8."""
POSITIONED = (("weft.position", "5:0:0"),)
ROWS = [Position(offset, ordinal) for offset in range(24) for ordinal in range(1 + offset % 2)]


class Died(Exception):
    """The task is gone, at any moment."""


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
            made = [Row(each, 1, b"k", payload_of(each), POSITIONED) for each in taken if lane.wants(each)]
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
    while at < len(ROWS):
        rows = ROWS[at : at + chance.randint(1, 20)]
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


def history(seed: int) -> None:
    chance = random.Random(seed)
    hub = ManyLanesHub(chance, ROWS, chance.choice([0.0, 0.05, 0.2]))
    for _ in range(chance.randint(1, 3)):
        spreads = [chance.choice([1, 1, 2, 4, 8]) for _ in range(chance.randint(1, 3))]
        hub.turns.run(*(partial(mortal, hub, each, chance, chance.choice([0.0, 0.1])) for each in spreads))
        if chance.random() < 0.5:
            hub.delete_old()
    hub.faults = 0.0
    query(hub, chance.choice([1, 2, 8]), chance)
    assert hub.count == len(ROWS), "a query that is left alone completes the stream"


def _many(seeds: range) -> None:
    for seed in seeds:
        history(seed)


def test_overlapping_tasks_of_several_spreads_leave_each_row_once() -> None:
    _many(range(12))


@pytest.mark.search
def test_overlapping_tasks_of_several_spreads_leave_each_row_once_in_many_histories() -> None:
    _many(SLICE.seeds(ci=200, night=5000))


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
def test_a_planted_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, value = FAULTS[name]
    monkeypatch.setattr(owner, attribute, value)
    with pytest.raises(AssertionError):
        _many(range(300))
