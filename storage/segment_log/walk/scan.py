"""Scan of a whole segment, as in recovery: its rebuilt index, and its damaged or torn parts."""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.protocols.batch import BatchHeader
from weft.protocols.segment import HEADER_BYTES, ClockNotice, EntryKind, GapNotice, Kept, Owner
from weft.storage.segment_log.state.index import SegmentIndex
from weft.storage.segment_log.walk.entry import Entry
from weft.storage.segment_log.walk.frames import SegmentBytes
from weft.storage.segment_log.walk.walker import Damage, Torn, walk


@dataclass
class Scan:
    """Findings of a walk over a segment."""

    end: int = HEADER_BYTES
    """End of the entries that count. A segment that may be torn is cut here."""
    index: SegmentIndex = field(default_factory=SegmentIndex)
    next_seqs: dict[int, int] = field(default_factory=dict)
    """Stream -> the highest next seq that a mark, batch or notice implies."""
    begins: dict[int, int] = field(default_factory=dict)
    """Stream -> the first number in the segment."""
    damage: list[tuple[int, int]] = field(default_factory=list)
    """Byte ranges without valid entries although they had been synced."""
    last_mark: int = HEADER_BYTES
    """Offset of the last commit mark."""
    unmarked: set[int] = field(default_factory=set)
    """Streams with entries after the last mark: the next mark must name them."""
    torn_bytes: int = 0
    """Bytes after ``end`` up to the last non-zero one."""
    unreadable_bytes: int = 0
    """Bytes of the damage with blocks that the device cannot read, in a segment that was not sealed."""
    hidden_max: int = 0
    """Maximum number of records of each stream that were there without later evidence of them; see ``exact``."""
    exact: set[int] = field(default_factory=set)
    """Streams named by new records, marks or ``KEPT`` entries after the last damage: their ``next_seqs`` are right
    nevertheless. Notices and moved records have old numbers and are no evidence."""
    last_origin: int = 0
    """Highest origin number in a batch."""
    _resumed: set[tuple[int, bool]] = field(default_factory=set)

    def accept(self, entry: Entry) -> None:
        """Add an entry."""
        value = entry.value
        self.end = entry.end
        if isinstance(value, BatchHeader):
            moved = entry.kind is EntryKind.MOVED
            lane = (value.stream, moved)
            point = bool(self.damage) and lane not in self._resumed
            self._resumed.add(lane)
            self.index.add_batch(value, entry.offset, entry.end - entry.offset, point=point, moved=moved)
            self._saw(value.stream, value.base_seq, value.end_seq)
            self.last_origin = max(self.last_origin, value.origin)
            if not moved:
                self.unmarked.add(value.stream)
                self.exact.add(value.stream)
        elif isinstance(value, Kept):
            self.index.kept = value.lanes
            for kept in value.lanes:
                self._saw(kept.stream, kept.next_seq, kept.next_seq)
                self.exact.add(kept.stream)
        elif isinstance(value, Owner):
            self.index.owner = value
        elif isinstance(value, GapNotice):
            self.index.add_gap(value)
            self._saw(value.stream, value.first, value.end)
            self.unmarked.add(value.stream)
        elif isinstance(value, ClockNotice):
            self.index.add_clocks([value])
        elif isinstance(value, list):
            self.index.add_origins(value)
        elif isinstance(value, dict):
            self.last_mark = entry.offset
            self.unmarked.clear()
            for stream, named in value.items():
                self.index.streams[stream] = named.name
                self._saw(stream, named.next_seq, named.next_seq)
                self.exact.add(stream)

    def _saw(self, stream: int, first: int, end: int) -> None:
        self.begins.setdefault(stream, first)
        self.next_seqs[stream] = max(self.next_seqs.get(stream, 0), end)

    def hurt(self, damage: Damage, *, may_be_torn: bool) -> None:
        """Add damage."""
        self.damage.append((damage.offset, damage.end))
        if may_be_torn and damage.is_unreadable:
            self.unreadable_bytes += damage.end - damage.offset
        self.hidden_max += damage.hidden_max
        # Entries behind it need index points of their own, and numbers named before it may be out of date.
        self._resumed.clear()
        self.exact.clear()


def scan_segment(source: SegmentBytes, *, may_be_torn: bool) -> Scan:
    """Read all entries of a segment after its header.

    Args:
        may_be_torn: as for ``walk``.

    Raises:
        UnsupportedVersion: a sound entry that only a later release understands.
        OSError: the file cannot be read.
    """
    scan = Scan()
    for item in walk(source, may_be_torn=may_be_torn):
        if isinstance(item, Damage):
            scan.hurt(item, may_be_torn=may_be_torn)
        elif isinstance(item, Torn):
            scan.torn_bytes = item.end - item.offset
        elif item.kind is not EntryKind.FOOTER:
            # A footer only repeats the entries; one found here is from a sealing that a crash interrupted.
            scan.accept(item)
    return scan
