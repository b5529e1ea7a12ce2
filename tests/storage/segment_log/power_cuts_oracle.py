"""What a log must still say after anything: kept beside the log while it runs, and held against it afterwards."""

from __future__ import annotations

import random
import struct
from array import array
from dataclasses import dataclass, field
from typing import NamedTuple

from weft.protocols import batch
from weft.protocols.batch import HeaderPairs
from weft.protocols.lane import NodeName
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapNotice, GapReason
from weft.storage.segment_log import SegmentLog
from weft.storage.segment_log.settings import DEFAULT_POLICY, StreamPolicy


class Violation(BaseException):
    """A promise of the log was broken. No ``Exception``: the log turns those of its disk into a failure of its own."""


class Known(NamedTuple):
    """A record as it was given to the log."""

    time: int
    key: bytes
    payload: bytes
    headers: HeaderPairs
    flags: int


@dataclass
class Lane:
    """One stream as its writers know it."""

    records: list[Known] = field(default_factory=list)
    """Everything appended; the index is the sequence number."""
    acked: int = 0
    """Everything below was said to be durable."""
    ends: tuple[int, ...] = (0,)
    """Where commits ended: no batch goes across these."""
    released: RangeSet = field(default_factory=RangeSet)
    """In some life of the log: these may be gone without a word."""
    noticed: RangeSet = field(default_factory=RangeSet)
    """Durable gap notices, once seen."""
    dropped: RangeSet = field(default_factory=RangeSet)
    """By an operator's word."""
    policy: StreamPolicy = DEFAULT_POLICY
    may_rot: bool = False
    may_be_unreadable: bool = False
    """How many of its records there were the disk cannot say, so it continues after all that there may have been."""

    def fork(self) -> Lane:
        copies = (self.released.copy(), self.noticed.copy(), self.dropped.copy())
        return Lane(self.records, self.acked, self.ends, *copies, self.policy, self.may_rot, self.may_be_unreadable)

    def acknowledge(self, end: int, durable_end: int) -> None:
        """Everything below ``end`` was said to be durable, and the log's last batch ends at ``durable_end``."""
        self.acked = max(self.acked, end)
        if durable_end > self.ends[-1]:
            self.ends += (durable_end,)

    def excuses(self, gap: GapNotice) -> bool:
        """Return whether the log may give up these records that were not released."""
        policy = self.policy
        if gap.reason == GapReason.OPERATOR:
            return self.dropped.covers(gap.first, gap.end)
        return {
            GapReason.BUDGET: policy.when_full == "drop_oldest",
            GapReason.EXPIRED: policy.retain_s is not None and policy.replicated,
            GapReason.CORRUPTION: self.may_rot,
        }[GapReason(gap.reason)]

    @property
    def forgets(self) -> bool:
        """Return whether old records may go without notice, and those before them come back: no hub waits for them."""
        return not self.policy.replicated


class Led(NamedTuple):
    """Records of one commit: a log with some of the follower's has all of the leader's."""

    leader: str
    end: int
    follower: str
    begin: int


def demand(holds: bool, promise: str, *facts: object) -> None:
    if not holds:
        raise Violation(": ".join([promise, *map(str, facts)]))


Owned = tuple[NodeName | None, dict[str, int]]
"""Whose a log is, and the first number of each stream under that name."""


class Oracle:
    """All lanes of one log."""

    def __init__(self) -> None:
        self.lanes: dict[str, Lane] = {}
        self.leading: str | None = None
        """The stream whose batches stand first in their commits."""
        self._led: list[Led] = []
        self.owners: list[Owned] = []
        """What the log may say of whose it is: one, or two while it is renamed; nothing when it has no owner."""

    def fork(self) -> Oracle:
        """What would be known after a power cut now. The records are shared until ``adopt``."""
        other = Oracle()
        other.lanes = {name: lane.fork() for name, lane in self.lanes.items()}
        other.leading, other._led = self.leading, list(self._led)
        other.owners = list(self.owners)
        return other

    def lane(self, name: str) -> Lane:
        return self.lanes.setdefault(name, Lane())

    def belongs_together(self, begins: dict[str, int]) -> None:
        """These streams' records from there on were appended for one commit."""
        leader = self.leading
        if leader in begins:
            assert leader is not None
            end = len(self.lane(leader).records)
            self._led += [Led(leader, end, name, begin) for name, begin in begins.items() if name != leader]

    def check_reopened(self, log: SegmentLog) -> None:
        """Check after a restart that nothing acknowledged is missing and every record there was appended."""
        numbers = log.streams()
        self.check_owner(log)
        for name, lane in self.lanes.items():
            if name not in numbers:
                demand(lane.acked == 0, "a stream with acknowledged records is gone", name, lane.acked)
                continue
            end = log.durable_end(numbers[name])
            demand(end == log.next_seq(numbers[name]), "the next number is not the durable end", name)
            demand(end >= lane.acked, "acknowledged records are gone from the end", name, end, lane.acked)
            invented = end > len(lane.records) and not lane.may_be_unreadable
            demand(not invented, "records that nobody appended", name, end, len(lane.records))
        ends = {name: log.durable_end(number) for name, number in numbers.items()}
        for led in self._led:
            whole = ends.get(led.follower, 0) <= led.begin or ends.get(led.leader, 0) >= led.end
            demand(whole, "what leads a commit is gone, what follows it is there", led)
        self._led.clear()
        demand(set(numbers) <= set(self.lanes), "streams that nobody declared", set(numbers) - set(self.lanes))

    def check_owner(self, log: SegmentLog) -> None:
        """The log is whose it was, from the numbers on that it was given with."""
        if self.owners:
            names = {number: name for name, number in log.streams().items()}
            found = (log.owner, {names[number]: begin for number, begin in log.begins().items()})
            demand(found in self.owners, "the log is another's, or from other numbers on", found, self.owners)
            self.owners = [found]

    def adopt(self, log: SegmentLog) -> None:
        """From now on what survived without an ack counts: readers may have acted on it."""
        numbers = log.streams()
        for name, lane in self.lanes.items():
            end = log.durable_end(numbers[name]) if name in numbers else 0
            lane.records = lane.records[:end]
            lane.acknowledge(end, end)

    def check(self, log: SegmentLog, chance: random.Random) -> None:
        """Every durable number is held, noticed or was released; what is held reads as it was appended, once."""
        for name, number in log.streams().items():
            lane, held, end = self.lanes[name], log.ranges(number), log.durable_end(number)
            gaps = RangeSet()
            for gap in log.gaps(number):
                demand(gap.end <= end, "a gap notice beyond the end", name, gap, end)
                demand(lane.excuses(gap), "a gap that nothing excuses", name, gap, lane.policy)
                gaps.add(gap.first, gap.end)
            for first, stop in gaps:
                demand(not _overlaps(held, first, stop), "records are held that a notice gives up", name, first, stop)
            reported = gaps.copy()
            reported.update(lane.released)
            for first, stop in lane.noticed:
                demand(reported.covers(first, stop), "a gap notice is gone", name, first, stop)
            reported.update(held)
            if lane.forgets:
                reported.add(0, end)
            demand(reported.covers(0, end), "records are missing without a notice", name, reported.missing(0, end))
            lane.noticed.update(gaps)
            gone = log.snapshot(number).gone
            for first, stop in gone:
                demand(not _overlaps(held, first, stop), "what is said to be gone is held", name, first, stop)
                excused = lane.forgets or lane.released.covers(first, stop)
                demand(excused, "what nobody released is said to be gone rightly", name, first, stop)
            self._check_reads(log, number, lane, held, chance)

    def _check_reads(self, log: SegmentLog, number: int, lane: Lane, held: RangeSet, chance: random.Random) -> None:
        found = RangeSet()
        seq, bytes_max = 0, chance.choice((1, 600, 1 << 20))
        while batches := log.read(number, seq, bytes_max):
            for data in batches:
                header = batch.verify(data)
                demand(header.base_seq >= seq, "a record is read twice", header)
                demand(header.end_seq <= len(lane.records), "a batch that nobody appended", header)
                _same(data, header, lane.records)
                found.add(header.base_seq, header.end_seq)
                seq = header.end_seq
        for first, end in held:
            demand(found.covers(first, end), "what is held cannot be read", list(held), list(found))
        for gap in log.gaps(number):
            # A batch is read whole, also the part of it that was released and forgotten.
            demand(not _overlaps(found, gap.first, gap.end), "what a notice gives up is read", gap, list(found))


def _overlaps(ranges: RangeSet, first: int, end: int) -> bool:
    return sum(stop - start for start, stop in ranges.missing(first, end)) < end - first


def _same(data: bytes, header: batch.BatchHeader, records: list[Known]) -> None:
    expected = records[header.base_seq : header.end_seq]
    columns = batch.decode_columns(data, header)
    index, offsets = array("I"), array("I")
    index.frombytes(columns.key_index)
    offsets.frombytes(columns.payload_offsets)
    lengths = [0]
    for record in expected:
        lengths.append(lengths[-1] + len(record.payload))
    same = (
        bytes(columns.times) == struct.pack(f"<{len(expected)}q", *(record.time for record in expected))
        and [columns.keys[at] for at in index] == [record.key for record in expected]
        and offsets.tolist() == lengths
        and bytes(columns.payload) == b"".join(record.payload for record in expected)
        and {at: pairs for at, pairs in columns.headers.items() if pairs}
        == {at: record.headers for at, record in enumerate(expected) if record.headers}
        and (list(columns.flags) if columns.flags else [0] * len(expected)) == [record.flags for record in expected]
    )
    demand(same, "records read differently from what was appended", header)
