"""An outage of nine hours at 1,000 messages a second, drained over a line of a megabyte a second by real machines."""

from __future__ import annotations

import pytest

from tests.replication.long_log import LongLog
from tests.replication.model import ModelHub, Pair
from weft.protocols.ranges import RangeSet
from weft.replication.events import BatchesReceived, GapReceived
from weft.replication.liveness import SECOND
from weft.replication.policy import Order, PolicyRules, SendPolicy

OUTAGE_S = 9 * 3600
LINE_BYTES = 1_000_000
"""Bytes that the line carries in a second, compressed."""


class CountingHub(ModelHub):
    """A hub that counts records by their numbers and does not look into them."""

    def __init__(self) -> None:
        super().__init__()
        self.count = self.repeated = 0

    def commit(self, lane: int, event: BatchesReceived | GapReceived) -> RangeSet:
        assert isinstance(event, BatchesReceived)
        held, ranges = self.records.setdefault(lane, RangeSet()), RangeSet()
        for header, _ in event.batches:
            new = sum(end - first for first, end in held.missing(header.base_seq, header.end_seq))
            self.count, self.repeated = self.count + new, self.repeated + header.count - new
            held.add(header.base_seq, header.end_seq)
            ranges.add(header.base_seq, header.end_seq)
        return ranges


@pytest.mark.search(turns=4)
@pytest.mark.parametrize("order", list(Order))
def test_nine_hours_of_outage_drain_with_nothing_lost_or_doubled(
    order: Order, capsys: pytest.CaptureFixture[str]
) -> None:
    log, hub = LongLog({1: "telemetry"}, size=2), CountingHub()
    log.append_many(1, OUTAGE_S, 1000)
    policy = SendPolicy(PolicyRules(order=order, history_share=0.2))
    pair = Pair(log, hub, policy=policy)
    late_max = seconds = 0
    while not log.safe[1].covers(0, log.ends[1]) or seconds < 5:
        seconds += 1
        log.append(1, 1000)
        pair.advance(pair.now + SECOND)
        room = LINE_BYTES
        while room > 0:
            pair.pump_sender()
            if not pair.upward:
                break
            room -= len(pair.upward[0])
            pair.deliver_up()
            while pair.uncommitted:
                pair.acknowledge()
            pair.deliver_down()
        assert not pair.sender.closed
        if seconds > 5:
            end = log.safe[1].end
            late_max = max(late_max, log.ends[1] - end)
        for mark in pair.marks.get(1, [])[-1:]:
            assert hub.records[1].covers(0, mark.seq)
        pair.events.clear()
    assert hub.repeated == 0
    assert hub.count == log.ends[1]
    with capsys.disabled():
        print(f"\n{order}: {hub.count:,} records in {seconds} s, {pair.sent_bytes / hub.count:.1f} bytes each")
        print(f"the newest record at the hub was at most {late_max / 1000:.0f} s behind")
    if order is Order.FRESH_FIRST:
        assert late_max <= 2000
