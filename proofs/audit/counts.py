"""Counts of present, doubled or missing numbers, by runs instead of rows."""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from weft.proofs.audit.report import DAMAGE_LISTED_MAX
from weft.protocols.checksum import crc32c
from weft.protocols.chunk_index import GapRange, LastWord
from weft.protocols.lane import Lane, format_log_id
from weft.protocols.payloads import PayloadKind
from weft.protocols.ranges import SEQ_END, Range, RangeSet
from weft.protocols.segment import GapReason
from weft.storage.cluster import Cluster

K = TypeVar("K", bound=Hashable)
LaneKey = tuple[str, str]
"""(edge, log id in hexadecimal): a lane within one stream."""
Array = np.ndarray[Any, np.dtype[Any]]


class SeqCounts(Generic[K]):
    """Per key the seen sequence numbers (or offsets), and the count of those seen again."""

    def __init__(self) -> None:
        self.held: dict[K, RangeSet] = defaultdict(RangeSet)
        self.doubled: dict[K, int] = defaultdict(int)

    def add(self, key: K, first: int, end: int) -> None:
        """Count ``[first, end)``."""
        held = self.held[key]
        fresh = sum(stop - start for start, stop in held.missing(first, end))
        self.doubled[key] += end - first - fresh
        held.add(first, end)

    def merge(self, other: SeqCounts[K]) -> None:
        """Add the counts of another one. The order of merges does not matter."""
        for key, ranges in other.held.items():
            for first, end in ranges:
                self.add(key, first, end)
        for key, count in other.doubled.items():
            self.doubled[key] += count

    def add_rows(self, keys: Sequence[K], codes: Array, numbers: Array) -> None:
        """Count many numbers at once; the cost in Python is per run, not per number.

        Args:
            keys: the keys that the codes stand for.
            codes: an index into ``keys`` per row.
            numbers: u64 per row.
        """
        for code, first, end in runs(codes, numbers):
            self.add(keys[code], first, end)


class OriginCounts(Generic[K]):
    """Per key the number of rows of each origin; rows of devices are not counted."""

    def __init__(self) -> None:
        self.counts: dict[K, Counter[str]] = defaultdict(Counter)

    def merge(self, other: OriginCounts[K]) -> None:
        """Add the counts of another one."""
        for key, counts in other.counts.items():
            self.counts[key].update(counts)

    def add_rows(self, keys: Sequence[K], codes: Array, column: pa.Array) -> None:
        """Count the rows of a column of origins.

        Args:
            keys: the keys that the codes stand for.
            codes: an index into ``keys`` per row.
        """
        if column.null_count == len(column):
            return
        named = np.asarray(column.is_valid())
        texts, origins = coded(column.drop_null())
        pairs, counts = np.unique(np.stack((codes[named], origins)), axis=1, return_counts=True)
        for key, origin, count in zip(*pairs.tolist(), counts.tolist(), strict=True):
            self.counts[keys[key]][texts[origin]] += count


def runs(codes: Array, numbers: Array) -> Iterator[tuple[int, int, int]]:
    """Yield (code, first, end) of maximal runs; a number that occurs twice is in two runs."""
    if not len(codes):
        return
    order = np.lexsort((numbers, codes))
    codes, numbers = codes[order], numbers[order]
    breaks = np.flatnonzero((codes[1:] != codes[:-1]) | (numbers[1:] != numbers[:-1] + np.uint64(1))) + 1
    starts, stops = np.concatenate(([0], breaks)), np.concatenate((breaks, [len(codes)]))
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        yield int(codes[start]), int(numbers[start]), int(numbers[stop - 1]) + 1


def unsigned(column: pa.Array) -> Array:
    """Return a column of integers as u64. Sequence numbers from 2**63 on are stored in it as negative ones."""
    return np.asarray(column.to_numpy(zero_copy_only=False), np.int64).view(np.uint64)


def coded(column: pa.Array) -> tuple[list[Any], Array]:
    """Return the distinct values of a column, and for each row the index of its value."""
    encoded = column.dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False)


def lanes_of(batch: pa.RecordBatch) -> tuple[list[LaneKey], Array]:
    """Return the lanes of rows, and for each row the index of its lane."""
    names = pc.binary_join_element_wise(batch.column("_edge"), batch.column("_log"), "/")
    values, codes = coded(names)
    return [(edge, log) for edge, _, log in (value.rpartition("/") for value in values)], codes


def without(ranges: RangeSet, others: RangeSet) -> RangeSet:
    """Return the numbers of ``ranges`` that are not in ``others``."""
    return ranges.minus(others)


# The part of an audit that all its tasks share.


@dataclass(frozen=True)
class Scope:
    """One stream, and the state of its table when the audit began. It is sent to executors with each task."""

    cluster: Cluster
    tenant: str
    stream: str
    positions: Mapping[int, int] = field(default_factory=dict)
    """Shard -> position of the table; 0 for all shards without a table."""
    skips: Mapping[int, RangeSet] = field(default_factory=dict)
    """Shard -> offsets that an operator skipped."""
    unsummed: Mapping[int, RangeSet] = field(default_factory=dict)
    """Shard -> offsets whose payloads and times are not compared: those of ``skips`` and of declared deletions."""
    only_latest: bool = False
    """True if the table is a latest table that replaces the table of all rows."""
    payload: PayloadKind = PayloadKind.BYTES
    """Payload kind of the table."""
    payload_columns: tuple[str, ...] = ()
    """Columns of the table with the payloads; none if they are not compared."""

    def is_ours(self, tenant: str, stream: str) -> bool:
        """Return whether tenant and stream are those of the audit."""
        return (tenant, stream) == (self.tenant, self.stream)


# Comparison of payloads in log and table: sums of checksums, by blocks of offsets.

PAYLOAD_BLOCK_OFFSETS = 1024
"""Number of offsets whose payloads are compared by one sum of checksums."""
DIFFERENCES_LISTED_MAX = 20

Sums = Counter[tuple[int, int]]
"""(shard, block of offsets) -> sum of the checksums of its payloads."""


def add_payloads(sums: Sums, batch: pa.RecordBatch, scope: Scope) -> None:
    """Add the payloads of rows below the table's position that were not skipped; nothing if payloads are not
    compared."""
    if not scope.payload_columns:
        return
    names = ("_shard", "_offset", "_seq", *scope.payload_columns)
    for shard, offset, seq, *parts in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
        if offset < scope.positions.get(shard, 0) and offset not in scope.unsummed.get(shard, ()):
            # The checksum includes the number: if two rows of a lane had swapped payloads, the sum of payloads alone
            # would agree.
            crc = crc32c(struct.pack("<Qq", offset, seq))
            for part in parts:
                crc = crc32c(part.encode() if isinstance(part, str) else part or b"", crc)
            sums[shard, offset // PAYLOAD_BLOCK_OFFSETS] += crc


def payload_problems(log: Sums, table: Sums) -> list[str]:
    """Return the blocks whose payloads differ, one sentence each."""
    differing = sorted(block for block in log.keys() | table.keys() if log[block] != table[block])
    return [
        f"shard {shard}: payloads of offsets {block * PAYLOAD_BLOCK_OFFSETS} to "
        f"{(block + 1) * PAYLOAD_BLOCK_OFFSETS - 1} differ between log and table"
        for shard, block in differing[:DIFFERENCES_LISTED_MAX]
    ]


# Comparison of times in log and table: sums of hashes, by blocks of offsets.
#
# Every audit compares them, so nothing here runs per row in Python, and the blocks are so large that the sums of a
# billion records are small beside the counts of its lanes.

BLOCK_OFFSETS = 1 << 16
"""Number of offsets whose times are compared by one sum."""
_WORD = (1 << 64) - 1
_MULTIPLIERS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)
"""Odd numbers with their bits well mixed: the golden ratio's, and two primes of xxHash."""


class TimeSum(NamedTuple):
    """Sums over the rows of a block, as 64 bits."""

    rows: int = 0
    """Sum of hashes of the offsets: equal sums mean the same rows."""
    contents: int = 0
    """Sum of hashes of offset, sequence number and time together."""

    def plus(self, other: TimeSum) -> TimeSum:
        """Return the sums over the rows of both."""
        return TimeSum(self.rows + other.rows & _WORD, self.contents + other.contents & _WORD)


TimeSums = dict[tuple[int, int], TimeSum]
"""(shard, block of offsets) -> sums. A block without a row has none."""


def add_times(sums: TimeSums, batch: pa.RecordBatch, scope: Scope) -> None:
    """Add the times of rows below the table's position that were not skipped."""
    shards, codes = coded(batch.column("_shard"))
    offsets, seqs = unsigned(batch.column("_offset")), unsigned(batch.column("_seq"))
    times = unsigned(batch.column("_time").cast(pa.int64()))
    for code, shard in enumerate(shards):
        wanted = (codes == code) & (offsets < np.uint64(scope.positions.get(shard, 0)))
        if shard in scope.unsummed and len(offsets):
            wanted &= ~_are_in(offsets, scope.unsummed[shard])
        if wanted.any():
            merge_times(sums, _summed(shard, offsets[wanted], seqs[wanted], times[wanted]))


def _are_in(offsets: Array, ranges: RangeSet) -> npt.NDArray[np.bool_]:
    """Return a mask of the offsets in a set, vectorised because a declared deletion may have a million ranges."""
    near = ranges.within(int(offsets.min()), int(offsets.max()) + 1)
    if not near:
        return np.zeros(len(offsets), np.bool_)
    starts, ends = np.array(near, np.uint64).T
    at = np.searchsorted(starts, offsets, "right").astype(np.int64) - 1
    found: npt.NDArray[np.bool_] = (at >= 0) & (offsets < ends[np.maximum(at, 0)])
    return found


def merge_times(sums: TimeSums, others: TimeSums) -> None:
    """Add other sums. The order of merges does not matter."""
    for block, each in others.items():
        sums[block] = each.plus(sums.get(block, TimeSum()))


def _summed(shard: int, offsets: Array, seqs: Array, times: Array) -> TimeSums:
    rows = _mixed(offsets, 0)
    # Each mix includes the previous one, so that two rows with swapped times do not give the same sum.
    contents = _mixed(_mixed(rows ^ seqs, 1) ^ times, 2)
    blocks, places = np.unique(offsets // np.uint64(BLOCK_OFFSETS), return_inverse=True)
    sums = np.zeros((len(blocks), 2), np.uint64)
    np.add.at(sums[:, 0], places, rows)
    np.add.at(sums[:, 1], places, contents)
    return {(shard, block): TimeSum(*pair) for block, pair in zip(blocks.tolist(), sums.tolist(), strict=True)}


def _mixed(numbers: Array, place: int) -> Array:
    """Return a hash of each number (the multiplications and shifts of splitmix64); overflow is intended."""
    mixed = (numbers + np.uint64(place + 1)) * np.uint64(_MULTIPLIERS[place])
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(_MULTIPLIERS[(place + 1) % 3])
    return mixed ^ (mixed >> np.uint64(32))


def time_problems(log: TimeSums, table: TimeSums) -> list[str]:
    """Return the blocks whose times differ, one sentence each; blocks with other rows are reported elsewhere."""
    differing = sorted(
        block
        for block in log.keys() & table.keys()
        if log[block].rows == table[block].rows and log[block].contents != table[block].contents
    )
    return [
        f"shard {shard}: _time or _seq of rows with offsets {block * BLOCK_OFFSETS} to "
        f"{(block + 1) * BLOCK_OFFSETS - 1} differ between log and table"
        for shard, block in differing[:DIFFERENCES_LISTED_MAX]
    ]


# Partial counts of an audit: the findings of one or several tasks.
#
# Parts are merged in any order, with the same result. They hold runs of numbers, not rows.

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


@dataclass
class NameOfLog:
    """The numbers of a stream under one name of an edge's log, and what that name says of others."""

    records: RangeSet = field(default_factory=RangeSet)
    lost: RangeSet = field(default_factory=RangeSet)
    """Numbers whose loss a gap notice explains."""
    before: RangeSet = field(default_factory=RangeSet)
    """Numbers under gaps `renamed`: another name has them."""
    words: dict[str, int] = field(default_factory=dict)
    """New name according to a last word -> the number at which it begins."""
    is_in_log: bool = False
    """False if the table alone has records: the hub has forgotten the lane, and its gaps."""

    def add_word(self, name: str, seq: int) -> None:
        """Take a last word that names the log's new name."""
        self.words[name] = max(seq, self.words.get(name, 0))

    def merge(self, other: NameOfLog) -> None:
        """Add what is known from elsewhere."""
        for name in ("records", "lost", "before"):
            getattr(self, name).update(getattr(other, name))
        for name, seq in other.words.items():
            self.add_word(name, seq)
        self.is_in_log |= other.is_in_log

    def accounted(self) -> RangeSet:
        """Return the numbers that it has, or whose loss it explains."""
        accounted = self.records.copy()
        accounted.update(self.lost)
        return accounted

    def lacked(self, names: Mapping[str, NameOfLog]) -> list[Range]:
        """Return the numbers that this name would have, as the log's name when they came, and has not.

        Args:
            names: all names of the log.
        """
        if not self.is_in_log:
            return []
        said = self.accounted()
        said.update(self.before)
        # What the next name took over is that one's to have. Both have to say so: a word may have been taken back, and
        # the hub may have lost what the next one said.
        ends = [
            seq
            for name, seq in self.words.items()
            if said.end <= seq and (of_next := names.get(name)) is not None and seq - 1 in of_next.before
        ]
        return said.missing(0, max(ends, default=SEQ_END))


def explained(names: Mapping[str, NameOfLog], name: str) -> RangeSet:
    """Return the numbers of a log that the hub has, or whose loss it can explain, as far as all names agree that may
    be the former one of ``name``.

    An edge chooses the id of its log and the name in its last word, so another edge can claim to be the former name and
    to have what the hub lacks. It cannot speak for the true one, which lacks it.
    """
    found = RangeSet(each for of_log in names.values() for each in of_log.accounted())
    for other, of_log in names.items():
        if other != name:
            found = found.minus(of_log.lacked(names))
    found.update(names[name].accounted())
    return found


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
        self.named: dict[str, dict[str, NameOfLog]] = defaultdict(partial(defaultdict, NameOfLog))
        """Log id -> tenant/edge -> what it has of this stream, of any tenant. A record is one number of one log, so a
        number under two names is stored twice."""
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

    def take_lane(
        self,
        scope: Scope,
        lane: Lane,
        ranges: Iterable[tuple[int, int]],
        gaps: Iterable[GapRange],
        last_word: LastWord | None,
    ) -> None:
        """Add a lane's part of a chunk or snapshot."""
        if lane.stream != scope.stream:
            return
        log_id = format_log_id(lane.log_id)
        name = self.named[log_id][f"{lane.tenant}/{lane.edge}"]
        name.is_in_log = True
        name.records.update(ranges)
        if last_word is not None and last_word.renamed_to:
            name.add_word(f"{lane.tenant}/{last_word.renamed_to}", last_word.seq)
        for gap in gaps:
            (name.before if gap.reason == GapReason.RENAMED else name.lost).add(gap.first, gap.end)
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
        for name in ("below", "indexed"):
            _merge_ranges(getattr(self, name), getattr(other, name))
        for log_id, names in other.named.items():
            for edge, of_log in names.items():
                self.named[log_id][edge].merge(of_log)
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
