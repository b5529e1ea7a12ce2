"""View of a node's log from another process, while the node runs or later. Nothing is locked, nothing is written."""

from __future__ import annotations

import math
import os
import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from weft.protocols import batch
from weft.protocols import segment as format_
from weft.protocols.batch import BatchHeader, Buffer, Flag, Record, read_u32s
from weft.protocols.lane import NodeName, Origin, by_number, origin_text
from weft.protocols.segment import (
    HEADER_BYTES,
    EntryKind,
    Footer,
    GapNotice,
    Owner,
    StreamEntry,
    file_name,
    parse_file_name,
)
from weft.protocols.topics import matches
from weft.storage.filesystem import FileSystem
from weft.storage.segment_log.encryption import disk_of
from weft.storage.segment_log.scan import Damage, Item, Torn, walk
from weft.storage.segment_log.segment_bytes import (
    Entry,
    SegmentBytes,
    find_entry,
    find_footer,
    find_header,
    last_nonzero,
    read_entry,
)

# One segment file, read while its node may be writing or deleting it.

_WINDOW_BYTES = 256 << 10
_EARLY_BYTES = 256 << 10
_CHUNK_BYTES = 256 << 10
_CHUNK_GROWTH = 4

Wants = Callable[[int], bool]
"""Function from a stream number to whether its batches are wanted with their bodies."""


def wants_none(_number: int) -> bool:
    """Refuse all bodies: for readers that need only headers and notices."""
    return False


class SegmentView:
    """One open segment file; it stays readable after its name is deleted. ``close`` it. For one thread."""

    def __init__(self, filesystem: FileSystem, path: str, position: int) -> None:
        """Open the file.

        Raises:
            FileNotFoundError: it was deleted since it was listed.
            OSError: it cannot be read.
            UnsupportedVersion: a later release wrote it.
        """
        self.path = path
        self.position = position
        """Log position of its first byte."""
        self._file = filesystem.open(path, read_only=True)
        self._opened = _identity(path)
        self.footer: Footer | None = None
        """Index, once the segment is sealed."""
        self.end = 0
        """Offset at which entries end at the latest."""
        self.look_again()
        self.header = find_header(self.source(), position)
        """Header; None when it is damaged."""
        self._names: dict[int, str] = {}
        self._origins: dict[int, Origin] = {}
        self._named = False
        self._marks_end = HEADER_BYTES

    def close(self) -> None:
        """Release the file."""
        self._file.close()

    def look_again(self) -> None:
        """Check whether the node has sealed the segment, or given it another length, since the last check."""
        size = self._file.size()
        if self.footer is None and (found := find_footer(self.source(size), size)) is not None:
            self.end, self.footer = found
        elif self.footer is None:
            self.end = size

    def is_written_at(self, offset: int) -> bool:
        """Return whether ``offset`` has other bytes than the zeros of reserved space: one short read."""
        return any(self._file.read_at(offset, format_.ENTRY_HEADER_BYTES))

    @property
    def is_same_file(self) -> bool:
        """Return whether the name still refers to the open file."""
        try:
            return _identity(self.path) == self._opened
        except FileNotFoundError:
            return False

    def source(self, end: int | None = None) -> SegmentBytes:
        """Return the present file up to ``end``, through a window of its own."""
        end = self.end if end is None else end
        return SegmentBytes(self._file, self.position, end, window_bytes=_WINDOW_BYTES, unreadable_as_zeros=True)

    def walk(
        self,
        offset: int,
        wants: Wants = wants_none,
        *,
        is_newest: bool = True,
        end: int | None = None,
        searches_zeros: bool = True,
    ) -> Iterator[Item]:
        """Yield the entries from ``offset`` on, by the rule of recovery (``walk``), without the footer.

        Bodies are copies, of wanted batches only.

        Args:
            is_newest: whether the log has no later segment.
            end: entries that begin here or later are left out.
            searches_zeros: as for the rule.

        Raises:
            OSError: the file cannot be read.
            UnsupportedVersion: an entry of a later release.
        """
        is_open = self.footer is None
        items = walk(
            self.source(),
            max(offset, HEADER_BYTES),
            may_be_torn=is_open and is_newest,
            is_growing=is_open,
            searches_zeros=searches_zeros,
        )
        for item in items:
            if end is not None and item.offset >= end:
                return
            if not isinstance(item, Entry):
                yield item
            elif item.kind is not EntryKind.FOOTER:
                is_wanted = isinstance(item.value, BatchHeader) and wants(item.value.stream)
                body = bytes(item.body) if is_wanted else b""
                yield Entry(item.kind, item.offset, item.end, item.value, body)

    def first_entry_from(self, offset: int) -> int | None:
        """Return the offset of the first sound entry at or after ``offset``; None without one."""
        if offset <= HEADER_BYTES:
            return HEADER_BYTES
        return find_entry(self.source(), offset - 1)

    def chunks_backward(self) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of ever larger pieces of the written part, from the end to the beginning.

        Each starts at a sound entry. Together they cover everything after the header.
        """
        end = self.end if self.footer is not None else self.written_end()
        length = _CHUNK_BYTES
        while end > HEADER_BYTES:
            start = self.first_entry_from(max(HEADER_BYTES, end - length))
            length *= _CHUNK_GROWTH
            if start is not None and start < end:
                yield start, end
                end = start

    def written_end(self) -> int:
        """Return the offset after the last byte that is not zero: the space from there on is reserved, not written."""
        return last_nonzero(self.source(), 0)

    def names(self) -> dict[int, str]:
        """Return the streams that the index and the segment's first entry name. Later marks may name more."""
        if not self._named:
            self._named = True
            first = read_entry(self.source(), HEADER_BYTES)
            if first is not None and isinstance(first.value, dict):
                self.learn(first.value)
            if self.footer is not None:
                self._names |= self.footer.streams
                self._origins |= by_number(self.footer.origins)
        return self._names

    def owner(self) -> NodeName | None:
        """Return the segment's name of the log's owner; None without one."""
        if self.footer is not None:
            return self.footer.owner.name if self.footer.owner is not None else None
        # The opening has it, so this reads only a few entries.
        for item in self.walk(0, searches_zeros=False):
            if isinstance(item, Entry) and isinstance(item.value, Owner):
                return item.value.name
        return None

    def next_seqs(self) -> dict[int, int]:
        """Return the next sequence number of each stream at the start of the segment, from its first entry."""
        first = read_entry(self.source(), HEADER_BYTES)
        value = first.value if first is not None else None
        return {number: entry.next_seq for number, entry in value.items()} if isinstance(value, dict) else {}

    def size(self) -> int:
        """Return the bytes of the file."""
        return self._file.size()

    def name_of(self, number: int) -> str:
        """Return a stream's name, searched from mark to mark if need be: streams are named before they are used."""
        names = self.names()
        if number not in names:
            self._read_marks(lambda: number in names)
        # Recovery's name of a stream whose naming entries were all lost.
        return names.get(number, f"unnamed-{number}")

    def origin_text(self, number: int) -> str | None:
        """Return the text of an origin, searched as the streams' names are: the segment's opening has all origins known
        then, and commits add new ones."""
        self.names()
        if number and number not in self._origins:
            self._read_marks(lambda: number in self._origins)
        return origin_text(number, self._origins)

    def early_names(self) -> dict[int, str]:
        """Return the streams that the index or the first marks name: all except those declared late in the segment."""
        if self.footer is None:
            self._read_marks(lambda: self._marks_end >= _EARLY_BYTES)
        return self.names()

    def all_names(self) -> dict[int, str]:
        """Return the streams that any mark of the segment names."""
        if self.footer is None:
            self._read_marks(lambda: False)
        return self.names()

    def _read_marks(self, is_enough: Callable[[], bool]) -> None:
        for item in self.walk(self._marks_end, searches_zeros=False):
            if isinstance(item, Torn):
                return
            self._marks_end = item.end
            if isinstance(item, Entry):
                self._learn(item)
            if is_enough():
                return

    def learn(self, streams: dict[int, StreamEntry]) -> None:
        """Add the streams that a mark names."""
        self.names().update({number: entry.name for number, entry in streams.items()})

    def _learn(self, entry: Entry) -> None:
        if isinstance(entry.value, dict):
            self.learn(entry.value)
        elif isinstance(entry.value, list):
            self._origins |= by_number(entry.value)

    def age_s(self, clock: Callable[[], float] = time.time) -> float:
        """Return the seconds since the file was last written to, by the machine's clock; a deleted file counts as
        old."""
        try:
            return max(0.0, clock() - os.stat(self.path).st_mtime)
        except FileNotFoundError:
            return math.inf


def _identity(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


# The segment files of a log directory, which may appear and disappear.


class NoLog(Exception):
    """An error: the directory holds no segment, because no node has run on it yet or it is another directory."""


class LogDirectory:
    """A log directory, inspected from outside. Nothing is kept open, locked or changed."""

    def __init__(self, path: str, filesystem: FileSystem | None = None) -> None:
        self.path = path
        self._filesystem = filesystem or disk_of(path)

    def positions(self) -> list[int]:
        """Return the first positions of the present segments, in log order.

        Raises:
            OSError: the directory cannot be read.
        """
        names = self._filesystem.list_names(self.path)
        return sorted(position for position in map(parse_file_name, names) if position is not None)

    def open(self, position: int) -> SegmentView | None:
        """Return a segment; None when it was deleted since it was listed.

        Raises:
            OSError: the file cannot be read.
            UnsupportedVersion: a later release wrote it.
        """
        try:
            return SegmentView(self._filesystem, os.path.join(self.path, file_name(position)), position)
        except FileNotFoundError:
            return None

    def require(self) -> list[int]:
        """Return ``positions``, at least one.

        Raises:
            NoLog: there is none.
            OSError: as ``positions``.
        """
        try:
            positions = self.positions()
        except (FileNotFoundError, NotADirectoryError):
            positions = []
        if not positions:
            raise NoLog(f"{self.path} holds no log: expected the data_dir of a node that has run")
        return positions

    def log_id(self) -> int | None:
        """Return the log's random number; None without a segment whose header is sound.

        Raises:
            OSError: as ``positions``.
        """
        for position in reversed(self.positions()):
            view = self.open(position)
            if view is not None:
                view.close()
                if view.header is not None:
                    return view.header.log_id
        return None

    def owner(self) -> NodeName | None:
        """Return the name that the log belongs to; None when no segment has it.

        Raises:
            OSError: as ``positions``, or a file cannot be read.
            UnsupportedVersion: a later release wrote the log.
        """
        for position in reversed(self.positions()):
            view = self.open(position)
            if view is not None:
                try:
                    owner = view.owner()
                finally:
                    view.close()
                if owner is not None:
                    return owner
        return None

    def names(self, *, thorough: bool = False) -> dict[int, str]:
        """Return number and name of each stream in the log.

        Args:
            thorough: also find streams that were declared late in the newest segment. Reads it all.

        Raises:
            NoLog, OSError: as ``require``.
        """
        for position in reversed(self.require()):
            view = self.open(position)
            if view is None:
                continue
            try:
                # A segment begins with the names of all streams; later ones are named at their beginning.
                return view.all_names() if thorough else view.early_names()
            finally:
                view.close()
        return {}


# The commits of a segment: the entries between two marks, and their proof by a later mark.

_HELD_BYTES_MAX = 1 << 20
_HELD_ITEMS_MAX = 1000
"""Approximate bound on the items of a group: many small commits are yielded together."""


class EntryGroup(NamedTuple):
    """Items that belong together: the last commit of a log that is open, else a run of commits."""

    items: list[Entry | Damage]
    """Items in log order."""
    end: int
    """File offset after the group."""
    is_proven: bool
    """True when later entries prove that the items were synced."""


def walk_groups(
    view: SegmentView, offset: int, wants: Wants, *, is_newest: bool, searches_zeros: bool = True
) -> Iterator[EntryGroup]:
    """Yield the entries of ``SegmentView.walk`` in groups, without unwanted batches and without a torn commit.

    The log ends where the node is writing now, or with a torn commit; the groups do not distinguish them.

    Args:
        is_newest: whether the log has no later segment.
    """
    is_open = is_newest and view.footer is None
    items: list[Entry | Damage] = []
    end = proven_end = offset
    proven = held_bytes = 0
    for item in view.walk(offset, wants, is_newest=is_newest, searches_zeros=searches_zeros):
        if isinstance(item, Torn):
            break
        is_mark = isinstance(item, Entry) and item.kind is EntryKind.STREAMS
        if is_mark or not is_open:
            proven, proven_end = len(items), end
            if held_bytes >= _HELD_BYTES_MAX or proven >= _HELD_ITEMS_MAX:
                yield EntryGroup(items, end, is_proven=True)
                items, proven, held_bytes = [], 0, 0
        end = item.end
        if isinstance(item, Damage):
            items.append(item)
        elif item.body or not isinstance(item.value, BatchHeader):
            items.append(item)
            held_bytes += len(item.body)
    if not is_open:
        yield EntryGroup(items, end, is_proven=True)
        return
    yield EntryGroup(items[:proven], proven_end, is_proven=True)
    yield EntryGroup(items[proven:], end, is_proven=False)


# Reading a log forward, commit by commit, across its segments and beyond its end as it grows.


class LogPlace(NamedTuple):
    """The place of an entry."""

    segment: int
    """First position of the segment."""
    offset: int
    """Offset in the segment's file."""


@dataclass
class DamagedBytes:
    """Synced bytes of a file that contain no valid entry."""

    file: str
    offset: int
    end: int


@dataclass
class Commit:
    """Wanted batches, notices and damage, in log order: one commit at the log's end, or a piece of older commits."""

    segment: int
    file: str
    items: list[tuple[str, Entry] | DamagedBytes] = field(default_factory=list)
    """(stream name, entry) of batches and notices."""
    origins: dict[int, str | None] = field(default_factory=dict)
    """Texts of the origins that the batches name, by number."""
    ends: dict[str, int] = field(default_factory=dict)
    """Stream -> sequence number after its last record here."""
    end: int = 0
    """File offset after the commit."""
    is_proven: bool = True
    """True when later entries prove that the commit was synced; otherwise ask ``Durability``."""
    age_s: float = 0.0
    """Seconds since the file was written to, by the machine's clock; 0 when the commit is proven."""
    log_began_anew: bool = False
    """True when the directory holds another log than before: numbers begin again."""
    was_overtaken: bool = False
    """True when segments between this commit and the one before were deleted before they were read."""


class Cursor:
    """A place in a log that moves forward. ``close`` it. For one thread; blocks on the disk only.

    Files that the node deletes while they are read stay readable to their end. Files deleted before they were reached
    are skipped, and the next commit reports it.
    """

    def __init__(
        self,
        directory: LogDirectory,
        place: LogPlace | None,
        wants: Callable[[str], bool],
        skips: Callable[[Footer], bool] = lambda _footer: False,
    ) -> None:
        """Start at ``place``, or at the beginning.

        Args:
            wants: the streams whose batches and notices are yielded.
            skips: decides by its index whether a sealed segment is skipped.
        """
        self._directory = directory
        self._wants = wants
        self._skips = skips
        self._place = place
        self._view: SegmentView | None = None
        self._began_anew = False
        self._is_fresh = True
        self._listed: list[int] = []
        self._overtaken = False

    def close(self) -> None:
        """Close the open file."""
        if self._view is not None:
            self._view.close()
            self._view = None

    def read(self) -> Iterator[Commit]:
        """Yield the commits between the place and the log's present end. Fetching the next commit moves the place past
        the last.

        Stop iterating at a commit that must not be shown yet: the next ``read`` yields it again.

        Raises:
            OSError: a file cannot be read.
            UnsupportedVersion: a later release wrote the log.
        """
        while True:
            newest = self._open_next()
            if self._view is None:
                return
            yield from self._commits(self._view, is_newest=newest)
            if newest:
                return
            self._leave()

    def _open_next(self) -> bool:
        """Open the next segment to read, if there is one. Return whether it is the newest."""
        positions = self._directory.positions()
        if (
            self._view is not None
            and positions
            and not self._view.is_same_file
            and positions[-1] <= self._view.position
        ):
            self.close()
            self._place, self._began_anew = None, True
        while self._view is None:
            following = [position for position in positions if self._place is None or position >= self._place.segment]
            if not following:
                return True
            self._view = self._directory.open(following[0])
            if self._view is None:
                # Deleted since it was listed.
                positions = self._directory.positions()
                self._place = LogPlace(following[0] + 1, HEADER_BYTES)
                self._overtaken = True
                continue
            if self._place is None or self._place.segment != following[0]:
                first = self._place.segment if self._place is not None else following[0]
                self._overtaken = self._overtaken or any(first <= known < following[0] for known in self._listed)
                self._place = LogPlace(following[0], HEADER_BYTES)
            self._is_fresh = True
        self._listed = positions
        self._view.look_again()
        return not positions or positions[-1] <= self._view.position

    def _leave(self) -> None:
        assert self._view is not None
        self._place = LogPlace(self._view.position + 1, HEADER_BYTES)
        self.close()

    def _commits(self, view: SegmentView, *, is_newest: bool) -> Iterator[Commit]:
        assert self._place is not None
        offset, is_fresh = self._place.offset, self._is_fresh
        self._is_fresh = False
        if view.footer is not None and is_fresh and self._skips(view.footer):
            return
        is_open = is_newest and view.footer is None
        if is_open and not is_fresh and not view.is_written_at(offset):
            return
        # Zeros may have entries behind them only at the first read of a segment, or where nothing else follows in it.
        searches_zeros = is_fresh or not is_newest
        groups = walk_groups(view, offset, self._is_wanted, is_newest=is_newest, searches_zeros=searches_zeros)
        for group in groups:
            commit = self._commit(view, group)
            if commit.items or commit.log_began_anew:
                yield commit
                # Only now it counts as consumed: otherwise the commit is yielded again, with its flags.
                self._began_anew = False
                self._overtaken = self._overtaken and not commit.items
            self._place = LogPlace(view.position, group.end)

    def _commit(self, view: SegmentView, group: EntryGroup) -> Commit:
        commit = Commit(
            view.position, view.path, end=group.end, log_began_anew=self._began_anew, was_overtaken=self._overtaken
        )
        for item in group.items:
            if isinstance(item, Damage):
                commit.items.append(DamagedBytes(view.path, item.offset, item.end))
            elif isinstance(item.value, dict):
                view.learn(item.value)
            elif isinstance(item.value, BatchHeader | GapNotice) and self._is_wanted(item.value.stream):
                name = view.name_of(item.value.stream)
                commit.items.append((name, item))
                if isinstance(item.value, BatchHeader):
                    if item.value.origin and item.value.origin not in commit.origins:
                        commit.origins[item.value.origin] = view.origin_text(item.value.origin)
                    commit.ends[name] = max(item.value.end_seq, commit.ends.get(name, 0))
        if not group.is_proven:
            commit.is_proven, commit.age_s = False, view.age_s()
        return commit

    def _is_wanted(self, number: int) -> bool:
        assert self._view is not None
        return self._wants(self._view.name_of(number))


# The durable part of a log's end: no reader gets a record that a power cut could still remove.
#
# Bytes can be read by other processes before the fsync that covers them has returned. A commit mark proves that
# everything before it was synced; only the node knows whether the last commit is durable. So it is shown
#
# - once the node reports it (the ends of its streams on its status page), where the node can be reached;
# - otherwise once it has not changed for ``SETTLED_S``;
# - at once when no node runs: recovery keeps what can be read.

SETTLED_S = 1.0
"""Time without a change after which a commit counts as synced: an fsync takes milliseconds on a healthy disk."""
_LOCKS = "/proc/locks"

DurableEnds = Callable[[], Mapping[str, int] | None]
"""Function that requests the sequence number after the last durable record of each stream from the node; None when it
does not answer."""


def is_locked(directory: str) -> bool | None:
    """Return whether a node runs on a data directory; None where the system does not report it.

    The lock is looked up rather than tried: holding it even for a moment could prevent a node's start.
    """
    try:
        lock = os.stat(os.path.join(directory, "lock"))
        with open(_LOCKS, encoding="ascii", errors="replace") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return False if os.path.exists(_LOCKS) else None
    except OSError:
        return None
    return any(_is_lock_of(line.split(), lock) for line in lines)


def _is_lock_of(fields: list[str], file: os.stat_result) -> bool:
    """Return whether a line of /proc/locks (proc(5)), such as ``1: FLOCK ADVISORY WRITE 25 fe:00:99 0 EOF``, describes
    this lock."""
    if len(fields) < 6 or fields[1] != "FLOCK":
        return False
    major, _, rest = fields[5].partition(":")
    minor, _, inode = rest.partition(":")
    # File systems without a device of their own (btrfs, overlayfs) have another number there than in stat.
    is_device = os.major(file.st_dev) == 0 or (int(major, 16), int(minor, 16)) == (
        os.major(file.st_dev),
        os.minor(file.st_dev),
    )
    return is_device and inode == str(file.st_ino)


class Durability:
    """Decision whether commits at the end of a log may be shown. For one reader."""

    def __init__(
        self,
        directory: str,
        durable_ends: DurableEnds | None = None,
        *,
        locked: Callable[[str], bool | None] = is_locked,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Decide for the log in ``directory``.

        Args:
            durable_ends: requests the node; None when its address is unknown.
        """
        self._directory = directory
        self._durable_ends = durable_ends
        self._locked = locked
        self._monotonic = monotonic
        self._seen: tuple[int, int] = (-1, -1)
        self._seen_at = 0.0

    def covers(self, commit: Commit) -> bool:
        """Return whether a commit without a mark after it is durable."""
        if commit.is_proven:
            return True
        ends = self._durable_ends() if self._durable_ends is not None and commit.ends else None
        if ends is not None:
            return all(ends.get(name, 0) >= end for name, end in commit.ends.items())
        # Checked last: a node in another container may run although its lock is not visible here.
        return self._locked(self._directory) is False or self._has_settled(commit)

    def _has_settled(self, commit: Commit) -> bool:
        place = (commit.segment, commit.end)
        if place != self._seen:
            self._seen, self._seen_at = place, self._monotonic() - min(commit.age_s, SETTLED_S)
        return self._monotonic() - self._seen_at >= SETTLED_S


# Selection of records from batches of the log, without creating unwanted ones.


@dataclass(frozen=True)
class Choice:
    """A choice of records."""

    topic_filter: str | None = None
    """An MQTT topic filter."""
    since_ns: int | None = None
    """Earliest time of receipt, ns since 1970."""
    from_seq: int = 0
    """Least sequence number."""

    def takes_key(self, key: bytes) -> bool:
        """Return whether records of a topic are wanted. Keys that are not a topic match no filter."""
        if self.topic_filter is None:
            return True
        try:
            topic = key.decode()
        except UnicodeDecodeError:
            return False
        return bool(topic) and matches(self.topic_filter, topic)


def choose(body: Buffer, choice: Choice) -> Iterator[Record]:
    """Yield the wanted records of a batch that was checked before, in their order.

    Raises:
        CodecError: the batch does not match its header.
    """
    header = batch.decode_header(body)
    columns = batch.decode_columns(body, header)
    takes = [choice.takes_key(key) for key in columns.keys]
    if not any(takes):
        return
    times = array("q", bytes(columns.times))
    key_index, offsets = read_u32s(columns.key_index), read_u32s(columns.payload_offsets)
    payload, since = memoryview(columns.payload), choice.since_ns
    for at in range(max(0, choice.from_seq - header.base_seq), header.count):
        if takes[key_index[at]] and (since is None or times[at] >= since):
            yield Record(
                header.base_seq + at,
                times[at],
                columns.keys[key_index[at]],
                bytes(payload[offsets[at] : offsets[at + 1]]),
                columns.headers.get(at, ()),
                Flag(columns.flags[at]) if columns.flags else Flag(0),
            )


__all__ = [
    "Commit",
    "Cursor",
    "DamagedBytes",
    "Durability",
    "LogDirectory",
    "LogPlace",
    "NoLog",
    "SegmentView",
    "is_locked",
]
