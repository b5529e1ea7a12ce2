"""Reading a log forward, commit by commit, across its segments and beyond its end as it grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from weft.edge_node.inspect.view.directory import LogDirectory
from weft.edge_node.inspect.view.groups import EntryGroup, walk_groups
from weft.edge_node.inspect.view.segment_view import SegmentView
from weft.protocols.batch import BatchHeader
from weft.protocols.segment import HEADER_BYTES, Footer, GapNotice
from weft.storage.segment_log.walk.entry import Entry
from weft.storage.segment_log.walk.walker import Damage


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
