"""The one rule that tells an entry, damage and a torn end from each other, for everything that reads segment files.

Every commit is one write that begins with a ``STREAMS`` entry (the *commit mark*), and the writer begins a commit only
after the fsync of the one before. So bytes that are no valid entry may be

- *torn*: part of the last commit, whose fsync never returned. Nothing of that commit was acknowledged, and whatever
  follows the bad bytes may go with them.
- *damaged*: a commit mark stands somewhere after them. Then the commit they belong to had been synced, and its records
  acknowledged. Cutting there would throw away acknowledged records in silence; the bad bytes alone are lost, and what
  follows them counts.
- *unreadable*: the device fails to read a block (EIO) where entries may stand. No crash leaves that, so it is damage,
  also with no mark after it. What stood there is not known; what may have stood there is bounded by its length.

A commit whose batches must not be parted has a ``WHOLE`` entry before them. Torn anywhere in what that claims, the log
ends before it. Damage, which takes bytes that had been synced, takes no more than them there either.

Only the newest segment can be torn, and only while it is not sealed. Its first entry cannot: a segment gets its name
when its opening is on the disk.

The one case that cannot be distinguished is readable damage to the very last commit of an unsealed segment: it reads as
torn. A mark names the streams that the commit before it wrote, with their next seq, so that no lost entry can make a
sequence number be given out twice.
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
    """Bytes that hold no entry although what stood there had been synced. The walk goes on behind them."""

    offset: int
    end: int
    is_unreadable: bool = False
    """True if the device cannot read some of them."""
    hidden_max: int = 0
    """Most records of each stream that stood there with nothing that follows to tell of them."""


class Torn(NamedTuple):
    """Rest of a commit whose fsync never returned: the log ends at ``offset``. Always the last of a walk."""

    offset: int
    end: int
    """Offset behind the last byte that is not zero."""


Item = Entry | Damage | Torn


def walk(
    source: SegmentBytes,
    offset: int = HEADER_BYTES,
    *,
    may_be_torn: bool,
    is_growing: bool = False,
    searches_zeros: bool = True,
) -> Iterator[Item]:
    """Yield what stands in a segment from ``offset`` on, in order; a footer is the last entry.

    Args:
        offset: where an entry begins.
        may_be_torn: it is the log's newest segment and not sealed. Otherwise entries must reach to ``source.end``.
        is_growing: another process may be writing the file. Bytes are written in their order: what seems to be missing
            before others that are there is looked at a second time.
        searches_zeros: look for entries behind zeros. A reader that has seen the whole file and waits at its end may
            do without: a search reads all the space that is reserved.

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
                # A crash came while the segment was sealed, or this is the end of one that was.
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
    """Return the offset of the first bytes that are no entry, of those that belong together; None when all are there.

    Nothing is looked at when a mark or a footer follows, as in every commit but the last: then all had been synced.
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
    """Findings of a look ahead from a first hole."""

    end: int
    """Offset at which the look ended: at a mark, or where nothing follows any more."""
    holes: dict[int, Damage] = field(default_factory=dict)
    is_proven: bool = False
    """True if the holes had been synced."""
    is_last: bool = False
    """True if no entry follows ``end``."""

    def has_seen(self, offset: int) -> bool:
        """Return whether it is known what to make of bad bytes at ``offset``."""
        return offset in self.holes or (self.is_last and offset == self.end)


def _look_ahead(source: SegmentBytes, offset: int, *, may_be_torn: bool) -> _Ahead:
    """Look for what decides about the bad bytes at ``offset``: a mark or a footer anywhere after them."""
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
    """Yield what stands behind the last entry, if anything does."""
    if not may_be_torn:
        if offset < source.end:
            yield Damage(offset, source.end, source.is_unreadable(offset, source.end))
        return
    if hides_entries(source, offset):
        end = source.unreadable.end
        yield Damage(offset, end, is_unreadable=True, hidden_max=_hidden_max(offset, end))
        return
    if ahead.is_proven:
        # What the device cannot read made damage of the holes before; no byte says any more what was synced here.
        return
    end = last_nonzero(source, offset)
    if offset == HEADER_BYTES:
        yield Damage(offset, end)
    elif end > offset:
        yield Torn(offset, end)


def _hidden_max(start: int, end: int) -> int:
    # Compressed, any number of equal records takes next to nothing: only batches have a least size.
    return -(-(end - start) // _BATCH_BYTES_MIN) * BATCH_RECORDS_MAX


def _is_one_entry(source: SegmentBytes, start: int, end: int) -> bool:
    """Return whether a single entry was lost, which cannot hide a number when a mark follows."""
    try:
        head = source.peek(start)
    except CodecError:
        return False
    return head is not None and start + ENTRY_HEADER_BYTES + head.length == end
