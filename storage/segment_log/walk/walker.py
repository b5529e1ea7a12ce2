"""The one rule that distinguishes an entry, damage and a torn end, for all readers of segment files.

Every commit is one write that begins with a ``STREAMS`` entry (the *commit mark*), and the writer begins a commit only
after the fsync of the previous one. So bytes that are not a valid entry may be

- *torn*: part of the last commit, whose fsync never returned. Nothing of that commit was acknowledged, so all bytes
  after the bad ones may be cut too.
- *damaged*: a commit mark follows somewhere after them. Then their commit had been synced, and its records
  acknowledged. Cutting there would lose acknowledged records silently; only the bad bytes are lost, and the following
  entries count.
- *unreadable*: the device fails to read a block (EIO) that may hold entries. A crash does not cause that, so it is
  damage, even without a later mark. The lost entries are unknown; their number is bounded by the block's length.

A commit whose batches must not be separated has a ``WHOLE`` entry before them. If the bytes that it claims are torn
anywhere, the log ends before it. Damage, which concerns synced bytes, loses only the bad bytes there too.

Only the newest segment can be torn, and only while it is not sealed. Its first entry cannot be torn: a segment gets its
name when its opening is on the disk.

One case cannot be distinguished: readable damage to the very last commit of an unsealed segment looks like a torn one.
A mark names the streams that the previous commit wrote, with their next seq, so that a lost entry can never cause a
sequence number to be assigned twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from weft.protocols import batch
from weft.protocols.errors import CodecError
from weft.protocols.segment import ENTRY_HEADER_BYTES, HEADER_BYTES, EntryKind, Whole
from weft.storage.segment_log.settings import BATCH_RECORDS_MAX
from weft.storage.segment_log.walk.entry import Entry, read_entry
from weft.storage.segment_log.walk.frames import SegmentBytes
from weft.storage.segment_log.walk.search import find_entry, hides_entries, last_nonzero

_BATCH_BYTES_MIN = ENTRY_HEADER_BYTES + batch.HEADER_BYTES


class Damage(NamedTuple):
    """Synced bytes without a valid entry. The walk continues after them."""

    offset: int
    end: int
    is_unreadable: bool = False
    """True if the device cannot read some of them."""
    hidden_max: int = 0
    """Maximum number of records of each stream that were there without later evidence of them."""


class Torn(NamedTuple):
    """Rest of a commit whose fsync never returned: the log ends at ``offset``. Always the last of a walk."""

    offset: int
    end: int
    """Offset after the last non-zero byte."""


Item = Entry | Damage | Torn


def walk(
    source: SegmentBytes,
    offset: int = HEADER_BYTES,
    *,
    may_be_torn: bool,
    is_growing: bool = False,
    searches_zeros: bool = True,
) -> Iterator[Item]:
    """Yield the items of a segment from ``offset`` on, in order; a footer is the last entry.

    Args:
        offset: beginning of an entry.
        may_be_torn: it is the log's newest segment and not sealed. Otherwise entries must reach to ``source.end``.
        is_growing: another process may be writing the file. It writes bytes in order, so bytes that seem to be missing
            before existing ones are read a second time.
        searches_zeros: look for entries behind zeros. A reader that has read the whole file and waits at its end does
            not need this: a search reads all reserved space.

    Raises:
        UnsupportedVersion: a sound entry that only a later release understands.
        OSError: the file cannot be read.
    """
    ahead = _Ahead(offset)
    while True:
        entry = read_entry(source, offset)
        if entry is not None:
            if may_be_torn and isinstance(entry.value, Whole):
                bad = _first_missing(source, entry.end, entry.value.length)
                if bad is not None and is_growing:
                    source.look_again()
                    bad = _first_missing(source, entry.end, entry.value.length)
                if bad is not None and not searches_zeros and not any(source.piece(bad, ENTRY_HEADER_BYTES)):
                    return
                if bad is not None and not _look_ahead(source, bad, may_be_torn=True).is_proven:
                    yield Torn(offset, last_nonzero(source, offset))
                    return
            yield entry
            if entry.kind is EntryKind.FOOTER:
                # A crash interrupted the sealing of this segment, or this is the end of a sealed one.
                return
            offset = entry.end
            continue
        if not ahead.has_seen(offset):
            if not searches_zeros and not any(source.piece(offset, ENTRY_HEADER_BYTES)):
                return
            ahead = _look_ahead(source, offset, may_be_torn=may_be_torn)
            if is_growing and ahead.holes:
                source.look_again()
                if read_entry(source, offset) is not None:
                    ahead = _Ahead(offset)
                    continue
        hole = ahead.holes.get(offset)
        if hole is None:
            yield from _end(source, offset, ahead, may_be_torn=may_be_torn)
            return
        if not ahead.is_proven and offset != HEADER_BYTES:
            yield Torn(offset, last_nonzero(source, offset))
            return
        yield hole
        offset = hole.end


def _first_missing(source: SegmentBytes, start: int, length: int) -> int | None:
    """Return the offset of the first invalid bytes among entries that belong together; None if all are valid.

    Nothing is checked if a mark or a footer follows, as for every commit except the last: then all had been synced.
    """
    end = start + length
    if end + ENTRY_HEADER_BYTES <= source.end:
        following = read_entry(source, end)
        if following is not None and following.kind in (EntryKind.STREAMS, EntryKind.FOOTER):
            return None
    while start < end:
        entry = read_entry(source, start)
        if entry is None:
            return start
        start = entry.end
    return None


@dataclass
class _Ahead:
    """Findings of a search from a first hole on."""

    end: int
    """Offset at which the search ended: at a mark, or after the last entry."""
    holes: dict[int, Damage] = field(default_factory=dict)
    is_proven: bool = False
    """True if the holes had been synced."""
    is_last: bool = False
    """True if no entry follows ``end``."""

    def has_seen(self, offset: int) -> bool:
        """Return whether the findings decide about bad bytes at ``offset``."""
        return offset in self.holes or (self.is_last and offset == self.end)


def _look_ahead(source: SegmentBytes, offset: int, *, may_be_torn: bool) -> _Ahead:
    """Search for the evidence about bad bytes at ``offset``: a mark or a footer anywhere after them."""
    start, spans = offset, []
    is_marked = is_last = False
    while True:
        entry = read_entry(source, offset)
        if entry is not None:
            if not may_be_torn or entry.kind in (EntryKind.STREAMS, EntryKind.FOOTER):
                is_marked = True
                break
            offset = entry.end
            continue
        following = find_entry(source, offset)
        if following is None:
            is_last = True
            break
        spans.append((offset, following))
        offset = following
    is_proven = is_marked or (may_be_torn and hides_entries(source, start))
    is_exact = is_marked and len(spans) == 1 and _is_one_entry(source, *spans[0])
    holes = {}
    for first, end in spans:
        is_unreadable = source.is_unreadable(first, end)
        hidden = _hidden_max(first, end) if may_be_torn and is_unreadable and not is_exact else 0
        holes[first] = Damage(first, end, is_unreadable, hidden)
    return _Ahead(offset, holes, is_proven, is_last)


def _end(source: SegmentBytes, offset: int, ahead: _Ahead, *, may_be_torn: bool) -> Iterator[Damage | Torn]:
    """Yield the item after the last entry, if there is one."""
    if not may_be_torn:
        if offset < source.end:
            yield Damage(offset, source.end, source.is_unreadable(offset, source.end))
        return
    if hides_entries(source, offset):
        end = source.unreadable.end
        yield Damage(offset, end, is_unreadable=True, hidden_max=_hidden_max(offset, end))
        return
    if ahead.is_proven:
        # Unreadable blocks have turned the earlier holes into damage; nothing shows any longer what was synced here.
        return
    end = last_nonzero(source, offset)
    if offset == HEADER_BYTES:
        yield Damage(offset, end)
    elif end > offset:
        yield Torn(offset, end)


def _hidden_max(start: int, end: int) -> int:
    # Compressed, any number of equal records takes almost no bytes: only batches have a minimum size.
    return -(-(end - start) // _BATCH_BYTES_MIN) * BATCH_RECORDS_MAX


def _is_one_entry(source: SegmentBytes, start: int, end: int) -> bool:
    """Return whether a single entry was lost, which cannot hide a number if a mark follows."""
    try:
        head = source.peek(start)
    except CodecError:
        return False
    return head is not None and start + ENTRY_HEADER_BYTES + head.length == end
