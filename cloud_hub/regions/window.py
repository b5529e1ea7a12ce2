"""The part of a shard's log that another region does not have yet, as far as it is read: a queue of chunks, by lane."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from weft.protocols.chunk import Chunk, GapRange, Mark, StreamSection
from weft.protocols.chunk_index.footer import StreamKey
from weft.protocols.lane import Lane
from weft.protocols.link import Clock
from weft.protocols.origin import ORIGINS_MAX, Origin
from weft.protocols.ranges import RangeSet
from weft.protocols.shard.folded import BOOTS_MAX
from weft.replication.source import OfferedLane


class Piece(NamedTuple):
    """Records of a lane in one chunk."""

    first: int
    end: int
    n: int


class RelayedLane:
    """A lane with something in the window, or with an open lane on the link."""

    def __init__(self, lane: Lane, number: int) -> None:
        self.lane = lane
        self.number = number
        """Its number on the link. A new one makes the region say again what it holds."""
        self.held = RangeSet()
        """Records in the window."""
        self.pieces: list[Piece] = []
        """The same by chunk, ascending by their numbers."""
        self.gaps: list[tuple[GapRange, int]] = []
        """Gaps in the window, each with its chunk."""
        self.end = 0
        """Number after the last one in the log so far."""
        self.mark: Mark | None = None
        """Newest mark in the log so far."""
        self.safe = RangeSet()
        """Numbers that the region has acknowledged, as records or as gaps that this link told it of."""
        self.told = RangeSet()
        """Those that the link told it of as gaps, since the lane has its number."""
        self.offered: OfferedLane | None = None
        """None while it is not open on the link."""
        self.idle_since = 0.0
        """Monotonic seconds at which it was last used."""
        self.refusals = 0
        """Number of the region's refusals since it had all of it."""
        self.is_refused = False
        """True while it waits by itself, and the window does not wait for it."""
        self._origins: dict[int, Origin] = {}
        self._clocks: dict[int, Clock] = {}

    @property
    def is_idle(self) -> bool:
        """Return whether the window has neither records nor gaps of it."""
        return not self.pieces and not self.gaps

    @property
    def is_settled(self) -> bool:
        """Return whether the region has acknowledged all that the window has of it. Chunks before may lack others."""
        return all(self.safe.covers(piece.first, piece.end) for piece in self.pieces) and all(
            self.safe.covers(gap.first, gap.end) for gap, _ in self.gaps
        )

    def add(self, first: int, end: int, n: int) -> bool:
        """Add records of chunk ``n``. Return whether the link named some of them as gaps before."""
        self.held.add(first, end)
        self.end = max(self.end, end)
        insort(self.pieces, Piece(first, end, n))
        return bool(self.told.within(first, end))

    def add_gap(self, gap: GapRange, n: int) -> None:
        """Add a gap notice of chunk ``n``."""
        self.gaps.append((gap, n))
        self.end = max(self.end, gap.end)

    def note_mark(self, mark: Mark) -> None:
        """Note a mark of the next chunk."""
        if self.mark is None or mark.time > self.mark.time:
            self.mark = mark

    def lacking(self, n: int) -> int | None:
        """Return how many records of chunk ``n`` the region lacks; None if it lacks no gap notice either."""
        missing = [part for piece in self.pieces if piece.n == n for part in self.safe.missing(piece.first, piece.end)]
        if not missing and all(self.safe.covers(gap.first, gap.end) for gap, at in self.gaps if at == n):
            return None
        return sum(end - first for first, end in missing)

    def empty(self) -> None:
        """Remove everything that is in the window."""
        self.held, self.pieces, self.gaps = RangeSet(), [], []

    def take_out(self, n: int) -> None:
        """Remove what is in chunk ``n``."""
        for piece in self.pieces:
            if piece.n == n:
                self.held.remove(piece.first, piece.end)
        self.pieces = [piece for piece in self.pieces if piece.n != n]
        self.gaps = [(gap, at) for gap, at in self.gaps if at != n]

    def missing(self) -> list[GapRange]:
        """Return the gaps of the window whose records are not in it either."""
        return [
            GapRange(first, end, gap.reason)
            for gap, _ in self.gaps
            for first, end in self.held.missing(gap.first, gap.end)
        ]

    def piece_at(self, seq: int) -> Piece | None:
        """Return the piece with ``seq``, or else the next one; None without one."""
        at = bisect_right(self.pieces, seq, key=lambda piece: piece.first) - 1
        if at >= 0 and self.pieces[at].end > seq:
            return self.pieces[at]
        return self.pieces[at + 1] if at + 1 < len(self.pieces) else None

    def renew(self, number: int) -> None:
        """Give the lane another number on the link, under which the region says what it holds."""
        self.number, self.safe, self.told = number, RangeSet(), RangeSet()

    def explain(self, origins: Mapping[int, Origin], clocks: Mapping[int, Clock]) -> None:
        """Note what the batches of a chunk refer to."""
        self._origins.update(origins)
        self._clocks.update(clocks)
        while len(self._origins) > ORIGINS_MAX:
            del self._origins[next(iter(self._origins))]
        while len(self._clocks) > BOOTS_MAX:
            del self._clocks[next(iter(self._clocks))]

    def origin(self, number: int) -> Origin | None:
        """Return the origin that batches name, as of the chunk that was read last."""
        return self._origins.get(number)

    def clock(self, boot: int) -> Clock | None:
        """Return what corrects the times of a boot, as of the chunk that was read last."""
        return self._clocks.get(boot)


class Entry(NamedTuple):
    """A batch as it is stored, with the numbers of its records that count."""

    first: int
    end: int
    batch: memoryview


class WindowChunk:
    """One chunk of the window."""

    def __init__(self, chunk: Chunk, sections: Mapping[StreamKey, StreamSection]) -> None:
        self.chunk = chunk
        self.sections = sections
        """Those of streams that are relayed."""
        self.awaited: deque[tuple[RelayedLane, int, int]] = deque()
        """Records and gaps that the region has to acknowledge."""
        self.entries: dict[StreamKey, dict[Lane, list[Entry]]] = {}
        """The sections that were read."""
        self.bytes = sum(section.length for section in sections.values())
        """Bytes of the sections that are relayed."""
        self.records = sum(section.count for section in sections.values())
        self.weight = len(chunk.footer.lanes) + sum(len(lane.ranges) for lane in chunk.footer.lanes)
        """Size of the index, in lanes and ranges."""

    @property
    def n(self) -> int:
        """Return the chunk's number."""
        return self.chunk.header.n

    def is_done(self) -> bool:
        """Return whether the region has acknowledged everything of lanes that do not wait by themselves."""
        while self.awaited:
            lane, first, end = self.awaited[0]
            if not lane.is_refused and not lane.safe.covers(first, end):
                return False
            self.awaited.popleft()
        return True

    def lanes(self) -> Iterator[Lane]:
        """Iterate over the lanes that the chunk adds to."""
        for update in self.chunk.footer.lanes:
            yield Lane(update.tenant, update.edge, update.log_id, update.stream)
