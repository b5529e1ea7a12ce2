"""Partial counts of an audit: the findings of one or several tasks.

Parts are merged in any order, with the same result. They hold runs of numbers, not rows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from weft.proofs.audit.counts import Array, K, LaneKey, OriginCounts, SeqCounts, runs
from weft.proofs.audit.report import DAMAGE_LISTED_MAX
from weft.proofs.audit.scope import Scope
from weft.proofs.audit.times import TimeSums, merge_times
from weft.protocols.chunk import GapRange
from weft.protocols.lane import Lane, format_log_id
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapReason

TABLE_PLACE = -1
"""Place of damage in the table, before that of every shard."""


class Stretch(NamedTuple):
    """Chunks of a shard with consecutive records of the stream."""

    shard: int
    first_n: int
    last_n: int
    base: int
    """Offset of the first record."""
    end: int


class Damage(NamedTuple):
    """An unreadable part of log or table."""

    shard: int
    """``TABLE_PLACE`` for the table."""
    n: int
    """Number of the chunk, or of the file."""
    sentence: str


class Part:
    """Counts of one task or more."""

    def __init__(self) -> None:
        self.table: SeqCounts[LaneKey] = SeqCounts()
        self.offsets: SeqCounts[int] = SeqCounts()
        """Per shard the offsets of the table's rows."""
        self.log: SeqCounts[LaneKey] = SeqCounts()
        """Records in existing chunks."""
        self.below: dict[LaneKey, RangeSet] = defaultdict(RangeSet)
        """Records in existing chunks below the table's position."""
        self.collected: SeqCounts[LaneKey] = SeqCounts()
        """Rows of the table that count as records of deleted chunks."""
        self.indexed: dict[LaneKey, RangeSet] = defaultdict(RangeSet)
        self.named: dict[str, dict[str, RangeSet]] = defaultdict(partial(defaultdict, RangeSet))
        """Log id -> tenant/edge -> numbers in the log and the table of this stream under that name, of any tenant. A
        record is one number of one log, so a number under two names is stored twice."""
        self.explained: dict[str, RangeSet] = defaultdict(RangeSet)
        """Log id -> numbers that the hub has under some name, of any tenant, or whose loss some name explains. A gap
        with the reason `renamed` explains nothing: it only says that another name has the numbers."""
        self.gaps: dict[LaneKey, dict[int, RangeSet]] = defaultdict(partial(defaultdict, RangeSet))
        """Lane -> reason -> numbers."""
        self.resent: Counter[LaneKey] = Counter()
        self.origins: OriginCounts[LaneKey] = OriginCounts()
        self.chunks: Counter[int] = Counter()
        self.stretches: list[Stretch] = []
        self.watermarks: dict[int, int] = {}
        """Shard -> number below which chunks may be gone, if the collector deleted chunks of a task."""
        self.log_payloads: Counter[tuple[int, int]] = Counter()
        self.table_payloads: Counter[tuple[int, int]] = Counter()
        self.log_times: TimeSums = {}
        self.table_times: TimeSums = {}
        self.damage: list[Damage] = []

    def note(self, shard: int, n: int, sentence: str) -> None:
        """Record damage; if there is more than can be listed, the first places are kept."""
        self.damage.append(Damage(shard, n, sentence))
        if len(self.damage) > 2 * DAMAGE_LISTED_MAX:
            self.damage = self.listed_damage()

    def listed_damage(self) -> list[Damage]:
        """Return the damage by its place."""
        return sorted(self.damage)[:DAMAGE_LISTED_MAX]

    def take_lane(self, scope: Scope, lane: Lane, ranges: Iterable[tuple[int, int]], gaps: Iterable[GapRange]) -> None:
        """Add a lane's part of a chunk or snapshot."""
        if lane.stream != scope.stream:
            return
        log_id, ranges = format_log_id(lane.log_id), list(ranges)
        self.named[log_id][f"{lane.tenant}/{lane.edge}"].update(ranges)
        explained = self.explained[log_id]
        explained.update(ranges)
        for gap in gaps:
            if gap.reason != GapReason.RENAMED:
                explained.add(gap.first, gap.end)
            if lane.tenant == scope.tenant:
                self.gaps[lane.edge, log_id][gap.reason].add(gap.first, gap.end)

    def add_below(self, keys: Sequence[LaneKey], codes: Array, seqs: Array, is_below: Array) -> None:
        """Record the rows of the log below the table's position."""
        for code, first, end in runs(codes[is_below], seqs[is_below]):
            self.below[keys[code]].add(first, end)

    def take_section(self, shard: int, n: int, base: int, end: int) -> None:
        """Record that chunk n has offsets ``[base, end)`` of the stream."""
        last = self.stretches[-1] if self.stretches else None
        if last is not None and last.shard == shard and last.end == base and last.last_n < n:
            self.stretches[-1] = last._replace(last_n=n, end=end)
        else:
            self.stretches.append(Stretch(shard, n, n, base, end))

    def merge(self, other: Part) -> None:
        """Add the counts of another part."""
        for name in ("table", "offsets", "log", "collected", "origins"):
            getattr(self, name).merge(getattr(other, name))
        for name in ("below", "indexed", "explained"):
            _merge_ranges(getattr(self, name), getattr(other, name))
        for log_id, names in other.named.items():
            _merge_ranges(self.named[log_id], names)
        for lane, reasons in other.gaps.items():
            _merge_ranges(self.gaps[lane], reasons)
        merge_times(self.log_times, other.log_times)
        merge_times(self.table_times, other.table_times)
        for name in ("resent", "chunks", "log_payloads", "table_payloads"):
            getattr(self, name).update(getattr(other, name))
        for stretch in other.stretches:
            last = self.stretches[-1] if self.stretches else None
            if last is not None and (last.shard, last.end) == (stretch.shard, stretch.base) and last < stretch:
                self.stretches[-1] = last._replace(last_n=stretch.last_n, end=stretch.end)
            else:
                self.stretches.append(stretch)
        for shard, watermark in other.watermarks.items():
            self.watermarks[shard] = max(watermark, self.watermarks.get(shard, 0))
        for damage in other.damage:
            self.note(*damage)


def _merge_ranges(into: dict[K, RangeSet], other: dict[K, RangeSet]) -> None:
    for key, ranges in other.items():
        into[key].update(ranges)
