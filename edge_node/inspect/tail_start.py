"""The start of a tail, found from the log's end backwards, so that it starts at once for a log of any length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from weft.edge_node.inspect.view import LogDirectory, LogPlace, SegmentView
from weft.edge_node.inspect.view.records import Choice, choose
from weft.protocols.batch import BatchHeader, Buffer
from weft.protocols.errors import CodecError
from weft.protocols.segment import HEADER_BYTES, EntryKind
from weft.storage.segment_log.walk.entry import Entry
from weft.storage.segment_log.walk.walker import Torn

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
