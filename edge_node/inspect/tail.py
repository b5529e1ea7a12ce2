"""The records of a node's log, in the order in which they became durable, and new ones as they become durable: ``weft
edge tail``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from weft.edge_node.inspect.view import (
    Choice,
    Commit,
    Cursor,
    DamagedBytes,
    Durability,
    LogDirectory,
    LogPlace,
    SegmentView,
    choose,
)
from weft.protocols.batch import BatchHeader, Buffer, Record
from weft.protocols.errors import CodecError
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import HEADER_BYTES, EntryKind, GapNotice
from weft.storage.segment_log.scan import Torn
from weft.storage.segment_log.segment_bytes import Entry

# The start of a tail, found from the log's end backwards, so that it starts at once for a log of any length.

LAST_MAX = 1_000_000
"""Maximum number of records that may be requested from the end."""


@dataclass(frozen=True)
class Start:
    """A request for the newest ``last`` records, or for all that ``choice`` selects."""

    choice: Choice = field(default_factory=Choice)
    last: int | None = None


class TailStart(NamedTuple):
    """The start of reading."""

    place: LogPlace | None
    """Place in the log; None for its beginning."""
    skip: int
    """Number of the wanted records from there on that were not requested."""


def find_beginning(directory: LogDirectory, wants: Callable[[str], bool], start: Start) -> TailStart:
    """Walk backwards until every requested record is ahead.

    Raises:
        NoLog: there is no log.
        OSError: a file cannot be read.
        UnsupportedVersion: a later release wrote the log.
    """
    positions = directory.require()
    search = _Search(wants, start)
    if search.is_from_beginning:
        return TailStart(None, 0)
    for position in reversed(positions):
        view = directory.open(position)
        if view is None:
            continue
        try:
            offset = search.look_through(view, is_newest=position == positions[-1])
        finally:
            view.close()
        if offset is not None:
            return TailStart(LogPlace(position, offset), search.surplus)
    return TailStart(None, search.surplus)


class _Search:
    def __init__(self, wants: Callable[[str], bool], start: Start) -> None:
        self._wants = wants
        self._start = start
        self._found = 0

    @property
    def is_from_beginning(self) -> bool:
        choice = self._start.choice
        return self._start.last is None and choice.since_ns is None and choice.from_seq == 0

    @property
    def surplus(self) -> int:
        return max(0, self._found - self._start.last) if self._start.last is not None else 0

    def look_through(self, view: SegmentView, *, is_newest: bool) -> int | None:
        """Return the offset from which all requested records follow; None when more of them may be before this
        segment."""
        if view.footer is not None:
            lanes = (*view.footer.lanes, *view.footer.moved)
            if not any(self._wants(view.name_of(lane.stream)) for lane in lanes):
                return None
        if self._start.last == 0:
            return view.end if view.footer is not None else self._end(view)
        for first, end in view.chunks_backward():
            if self._is_far_enough(view, first, end, is_newest=is_newest):
                return first
        return None

    @staticmethod
    def _end(view: SegmentView) -> int:
        end = HEADER_BYTES
        for first, limit in view.chunks_backward():
            for item in view.walk(first, end=limit):
                end = item.offset if isinstance(item, Torn) else item.end
            if end > HEADER_BYTES:
                break
        return end

    def _is_far_enough(self, view: SegmentView, first: int, end: int, *, is_newest: bool) -> bool:
        choice, is_older = self._start.choice, False
        needs_bodies = self._start.last is not None and choice.topic_filter is not None
        for entry in view.walk(first, lambda _: needs_bodies, is_newest=is_newest, end=end):
            if not isinstance(entry, Entry) or entry.kind is not EntryKind.BATCH:
                continue
            header = entry.value
            assert isinstance(header, BatchHeader)
            if not self._wants(view.name_of(header.stream)):
                continue
            if self._start.last is not None:
                self._found += _count(entry.body, choice) if needs_bodies else header.count
            # After a wall clock was set back, older records may be missed that a longer search would find.
            is_older = is_older or header.first_time < (choice.since_ns or 0) or header.base_seq < choice.from_seq
        return is_older if self._start.last is None else self._found >= self._start.last


def _count(body: Buffer, choice: Choice) -> int:
    try:
        return sum(1 for _ in choose(body, choice))
    except CodecError:
        return 0


POLL_INTERVAL_S = 0.25
"""Interval at which a follower checks the directory: one listing and one short read."""
UNPROVEN_WAIT_S_MAX = 3.0
"""Longest time that a reader without ``follow`` waits for the last commit to be durable, before it ends without that
commit."""
_CLOCK_STEP_NS = 10 * 10**9


class TailRecord(NamedTuple):
    """A record."""

    stream: str
    record: Record
    origin: str | None = None
    """Text of the function that created it; None for a device's record."""


class TailGap(NamedTuple):
    """A gap notice: its records can never come."""

    stream: str
    notice: GapNotice


class Missing(NamedTuple):
    """Records ``[first, end)`` that a follower could not show: deleted before it reached them, or damaged."""

    stream: str
    first: int
    end: int


class LogReplaced(NamedTuple):
    """A marker that the folder has another log from here on; numbers begin again."""

    directory: str


Item = TailRecord | TailGap | Missing | DamagedBytes | LogReplaced
Wait = Callable[[float], bool]
"""Function that waits for some seconds and returns False at the end."""


def sleep(seconds: float) -> bool:
    """Wait for some seconds, without a way to end early."""
    time.sleep(seconds)
    return True


def newest_records(
    directory: LogDirectory, wants: Callable[[str], bool], start: Start, durability: Durability, wait: Wait = sleep
) -> Iterator[Item]:
    """Yield the present records of the log, from ``start`` on.

    It yields all records that were durable before the call, and ends at later ones.

    Raises:
        NoLog: there is no log.
        OSError: a file cannot be read.
        UnsupportedVersion: a later release wrote the log.
    """
    tail = _Tail(directory, wants, start)
    try:
        for commit in settled_commits(tail.cursor, durability, wait):
            yield from tail.items(commit)
    finally:
        tail.cursor.close()


def follow(
    directory: LogDirectory, wants: Callable[[str], bool], start: Start, durability: Durability, wait: Wait = sleep
) -> Iterator[Item]:
    """Yield ``newest_records``, and then new ones, across restarts of the node, until ``wait`` returns False."""
    tail = _Tail(directory, wants, start)
    try:
        while True:
            for commit in tail.cursor.read():
                if not durability.covers(commit):
                    break
                yield from tail.items(commit)
            else:
                tail.has_caught_up = True
            if not wait(POLL_INTERVAL_S):
                return
    finally:
        tail.cursor.close()


def settled_commits(cursor: Cursor, durability: Durability, wait: Wait = sleep) -> Iterator[Commit]:
    """Yield all durable commits, with those that become durable within ``UNPROVEN_WAIT_S_MAX``.

    Commits made after the end was first reached are left out, so that this ends on a busy node, too.
    """
    waited = 0.0
    while True:
        is_waiting = False
        for commit in cursor.read():
            is_waiting = not durability.covers(commit)
            if is_waiting:
                break
            yield commit
            if waited:
                return
        if not is_waiting or waited >= UNPROVEN_WAIT_S_MAX or not wait(POLL_INTERVAL_S):
            return
        waited += POLL_INTERVAL_S


class _Tail:
    """A converter from commits to shown items."""

    def __init__(self, directory: LogDirectory, wants: Callable[[str], bool], start: Start) -> None:
        beginning = find_beginning(directory, wants, start)
        self.cursor = Cursor(directory, beginning.place, wants)
        self.has_caught_up = False
        self._was_overtaken = False
        self._directory = directory
        self._choice = start.choice
        self._skip = beginning.skip
        self._is_counted = start.last is not None
        self._seen: dict[str, RangeSet] = {}
        self._noted: dict[str, RangeSet] = {}
        self._newest_ns = 0

    def items(self, commit: Commit) -> Iterator[Item]:
        """Yield the items of a commit, in log order."""
        if commit.log_began_anew:
            self._seen.clear()
            self._noted.clear()
            yield LogReplaced(self._directory.path)
        self._was_overtaken = self._was_overtaken or commit.was_overtaken
        for item in commit.items:
            if isinstance(item, DamagedBytes):
                yield item
                continue
            stream, entry = item
            if isinstance(entry.value, GapNotice):
                yield from self._gap(stream, entry.value)
            elif isinstance(entry.value, BatchHeader):
                yield from self._batch(stream, entry, entry.value, commit)

    def _gap(self, stream: str, notice: GapNotice) -> Iterator[Item]:
        since = self._choice.since_ns
        if self._is_counted or self.has_caught_up:
            # A notice older than the entries before it was carried forward, so that its segment could be deleted.
            since = max(since or 0, self._newest_ns - _CLOCK_STEP_NS)
        noted = self._noted.setdefault(stream, RangeSet())
        if (since is None or notice.time >= since) and not noted.covers(notice.first, notice.end):
            yield TailGap(stream, notice)
        noted.add(notice.first, notice.end)
        self._seen.setdefault(stream, RangeSet()).add(notice.first, notice.end)

    def _batch(self, stream: str, entry: Entry, header: BatchHeader, commit: Commit) -> Iterator[Item]:
        seen = self._seen.setdefault(stream, RangeSet())
        if entry.kind is EntryKind.MOVED and (self._is_counted or self.has_caught_up):
            return  # a copy of an earlier notice, made so that its segment could be deleted
        if (self.has_caught_up or self._was_overtaken) and len(seen) and header.base_seq > seen.end:
            yield Missing(stream, seen.end, header.base_seq)
            seen.add(seen.end, header.base_seq)
        try:
            for record in choose(entry.body, self._choice):
                if record.seq in seen:
                    continue
                if self._skip:
                    self._skip -= 1
                    continue
                yield TailRecord(stream, record, commit.origins.get(header.origin))
        except CodecError:
            yield DamagedBytes(commit.file, entry.offset, entry.end)
        seen.add(header.base_seq, header.end_seq)
        self._newest_ns = max(self._newest_ns, header.last_time)
