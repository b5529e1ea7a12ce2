"""Builder of the next chunk from pending items and a shard's state: it trims and assigns offsets, without reading
records.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast

from weft.cloud_hub.shard.lane_ends import EndedLanes, adoption
from weft.cloud_hub.shard.lane_session import ClockNotices, LaneSession, PendingItem, ReceivedBatch, bounds
from weft.cloud_hub.shard.shard_sessions import ShardSessions
from weft.protocols import chunk as chunks
from weft.protocols.batch import BatchHeader, Buffer, ClockState
from weft.protocols.checksum import crc32c
from weft.protocols.chunk import BootKey, behind, shift
from weft.protocols.chunk_index import (
    FIRST_LEVEL,
    Chunk,
    ChunkHeader,
    ChunkIndex,
    ClockUpdate,
    Control,
    GapRange,
    LaneFlag,
    LaneUpdate,
    Mark,
    StreamBlock,
    StreamKey,
    StreamSection,
    index_of,
)
from weft.protocols.lane import ORIGINS_MAX, Lane, Origin, by_number, is_hubs_own
from weft.protocols.link import RefuseCode
from weft.protocols.ranges import Range, RangeSet
from weft.protocols.shard.fold import fold
from weft.protocols.shard.lane_state import NOTHING, LaneState, RetiredBy
from weft.protocols.shard.shard_state import Folded, ShardState

# Additions of the next chunk to one lane.

LANE_BYTES, RANGE_BYTES = 100, 24
"""Maximum bytes of a lane without its names, and of a range or gap, in the footer."""
_LAST_WORD, _SYNCED = int(LaneFlag.LAST_WORD), ClockState.SYNCED


class LaneDraft:
    """Additions of the chunk to one lane. Most have only a run of records and a mark, and need no other objects."""

    __slots__ = (
        "declared",
        "floor",
        "index",
        "mark",
        "named",
        "origins",
        "payload",
        "pieces",
        "run",
        "session",
        "topics",
    )

    def __init__(self, session: LaneSession, index: int) -> None:
        self.session = session
        self.index = index
        self.run: Range | None = None
        """The records, if they are one run that was added at once."""
        self.pieces: RangeSet | None = None
        """The records, if they are not one run."""
        self.declared: LaneState | None = None
        """Gaps that the chunk adds, in ascending order, independent of the sender's order."""
        self.mark: Mark | None = None
        self.topics: list[str] | None = None
        self.payload: int | None = None
        self.origins: list[Origin] = []
        self.named: set[int] | None = None
        """Numbers of origins that the records' batches name; None if all are of devices."""
        self.floor: Mark | None = None

    @property
    def ranges(self) -> list[Range]:
        if self.run is not None:
            return [self.run]
        return list(self.pieces) if self.pieces is not None else []

    @property
    def gaps(self) -> list[GapRange]:
        return list(self.declared.gaps) if self.declared is not None else []

    def name_origin(self, number: int) -> None:
        """Note that a batch of the lane names an origin."""
        self.named = self.named if self.named is not None else set()
        self.named.add(number)

    def take_origins(self, held: LaneState, declares: bool) -> None:
        """Choose the chunk's origins: all that its batches name, so that its rows do not depend on later declarations,
        and with ``declares`` those that are new to the lane."""
        origins = self.session.origins
        found = by_number(held.new_origins(origins.values())) if declares else {}
        if self.named:
            known = by_number(held.origins) if not origins.keys() >= self.named else {}
            named = {number: origins.get(number) or known.get(number) for number in sorted(self.named)}
            found = {number: origin for number, origin in named.items() if origin is not None} | found
        self.origins = [found[number] for number in sorted([*found][:ORIGINS_MAX])]

    def take_mark(self, mark: Mark, held: LaneState) -> None:
        """Add a mark, if it is later than those of the state."""
        newest, lane = held.newest_mark, self.session.lane
        if newest is not None and newest.time >= mark.time:
            return
        # A hub's own lane has many writers. If this one loses it, another one's records get the numbers that this chunk
        # has no room for, and would prove a mark that is not about them.
        if is_hubs_own(lane.tenant, lane.stream):
            end = max([held.ranges.end, *(each for _, each in self.ranges)])
            if mark.seq > end:
                return
        self.mark = mark

    @property
    def has_news(self) -> bool:
        """Return whether the chunk has more of the lane than a mark."""
        return self.run is not None or self.pieces is not None or self.declared is not None or bool(self.origins)

    def declare(self, held: LaneState) -> None:
        """Add the session's topics and kind of payloads where the state has others."""
        session = self.session
        # A relay may know neither any more, and must not take back what another one declared.
        if session.topics != held.topics and (session.topics or not session.is_relay):
            self.topics = session.topics
        if session.payload != held.payload and (session.payload or not session.is_relay):
            self.payload = session.payload

    def index_bytes(self) -> int:
        """Return an upper estimate of the lane's bytes in the footer."""
        tenant, edge, _, stream = self.session.lane
        size = LANE_BYTES + RANGE_BYTES + len(tenant) + len(edge) + len(stream)
        if self.topics is None and not self.origins and self.pieces is None and self.declared is None:
            return size
        topics = sum(len(topic.encode()) + 5 for topic in self.topics or ())
        origins = sum(4 * (len(origin.name) + len(origin.version)) + len(origin.hash) + 24 for origin in self.origins)
        return size + topics + origins + RANGE_BYTES * (len(self.ranges) + len(self.gaps))

    def update(self) -> LaneUpdate:
        """Return the footer's entry of the lane."""
        session, flags, renamed_to = self.session, self.session.flags, ""
        if self.mark is not None and session.sends_last_word:
            flags, renamed_to = flags | _LAST_WORD, session.renamed_to
        ranges = [self.run] if self.run is not None else self.ranges
        gaps = [] if self.declared is None else self.gaps
        return LaneUpdate(
            *session.lane,
            session.claim.epoch,
            ranges,
            gaps,
            self.mark,
            self.topics,
            self.payload,
            self.origins,
            self.floor,
            flags,
            renamed_to,
        )


INDEX_BYTES_MAX = 8 << 20
"""Maximum bytes of topics, origins, ranges and the like in one chunk: its footer must remain readable
(``chunk_index.FOOTER_BYTES_MAX``), even if all edges declare theirs at once."""


LOOKS_PER_EDGE = 1024
"""Maximum number of items of one edge, and their pieces, in one chunk: building it is one step of the hub's event loop,
and an item may have only a few bytes. The rest goes into the next chunk."""
TEXTS_PER_EDGE = 256 << 10
"""Maximum bytes of the index for lanes of one edge that open or declare origins: the rest waits for the next chunk, as
above."""
OPENING_BYTES = 512
"""Bytes of those that a lane takes at least: opening one takes time, however short its texts are."""
CLOCK_BYTES = 512
"""Maximum bytes of a clock in the footer, with its names."""


class Draft(NamedTuple):
    """A chunk ready for creation."""

    data: bytes
    chunk: Chunk
    openings: list[LaneSession]
    """Sessions whose epoch becomes their lane's with the chunk."""


_LATEST = 1 << 63


@dataclass(slots=True)
class _Section:
    parts: list[Buffer] = field(default_factory=list)
    count: int = 0
    first_time: int = _LATEST
    last_time: int = -_LATEST

    def add(self, lane: int, skip: int, take: int, batch: ReceivedBatch, correction: int) -> None:
        """Add an entry; its rows get the batch's times plus ``correction``."""
        self.parts += (chunks.encode_entry_header(lane, skip, take, len(batch.data), batch.received), batch.data)
        low, high = batch.header.first_time + correction, batch.header.last_time + correction
        if low > high:
            low, high = high, low
        self.first_time, self.last_time = min(low, self.first_time), max(high, self.last_time)
        self.count += take

    def add_whole(self, lane: int, batches: Iterable[PendingItem]) -> None:
        """Add batches whole, as ``add`` does without corrections."""
        pack, parts, taken = chunks.encode_entry_header, self.parts, 0
        low, high = self.first_time, self.last_time
        for header, data, received in cast("Iterable[ReceivedBatch]", batches):
            count, first, last = header.count, header.first_time, header.last_time
            parts += (pack(lane, 0, count, len(data), received), data)
            taken += count
            if first > last:
                first, last = last, first
            if first < low or last > high:
                low, high = min(low, first), max(high, last)
        self.count, self.first_time, self.last_time = self.count + taken, low, high


class ChunkBuilder:
    """A builder of chunk ``state.n + 1``. One use: ``add`` each lane, then ``finish``.

    Args:
        bytes_max: maximum pending bytes in the chunk.
        level: the cluster's level, which limits the features that may be written.
        ended: known lanes that left the state.
    """

    def __init__(
        self, state: ShardState, bytes_max: int, level: int = FIRST_LEVEL, ended: EndedLanes | None = None
    ) -> None:
        self._state = state
        self._ended = ended
        self._controls: dict[Lane, Control] = {}
        self._bytes_max = bytes_max
        self._level = level
        self._bytes = 0
        self._index_bytes = 0
        self._sections: dict[StreamKey, _Section] = {}
        self._lanes: list[LaneDraft] = []
        self._numbers: dict[StreamKey, int] = {}
        """Number of each stream's lanes, of which entries name one by its number."""
        self._after: dict[Lane, LaneState] = {}
        """States after the chunk of lanes with records or gaps in it."""
        self._runs: dict[Lane, Range] = {}
        """Lanes with one run of new records in the chunk, which ``_after`` does not have yet."""
        self._clocks: dict[BootKey, ClockUpdate] = {}
        self._stream_clocks: dict[StreamKey, dict[BootKey, ClockUpdate]] = {}
        """Those that each stream's block has: its records need them, or its lanes brought them."""
        self._notices: set[ClockNotices] = set()
        """Notices whose clocks are in the chunk."""
        self._epochs: dict[Lane, int] = {}
        self._looks: dict[tuple[str, str], int] = {}
        """(tenant, edge) -> number of its items and pieces for which the chunk still has room."""
        self._texts: dict[tuple[str, str], int] = {}
        """(tenant, edge) -> bytes that its lanes have declared."""
        self._left_out: set[Lane] = set()
        """Lanes that have to wait for the next chunk: a later session of theirs must not precede an earlier one."""
        self._substantial = False

    def add(self, session: LaneSession, *, declares_origins: bool = True) -> None:
        """Add the items that the state lacks, as far as the chunk has room.

        Several sessions may add to one lane: the items of an older one, then a newer one's epoch. The reverse is not
        possible, nor are two sessions with the same epoch: the second is left out and then fenced by the first.

        Args:
            declares_origins: the state may lack some of the session's origins. Those that batches name are added in any
                case.
        """
        if self._index_bytes >= INDEX_BYTES_MAX:
            return  # it is added to a later chunk
        lane, claim = session.lane, session.claim
        tenant, name, _, stream = lane
        key, edge = (tenant, stream), (tenant, name)
        known = self._state.lanes.get(lane)
        control, declares, is_long, returns = None, False, False, False
        # Nearly every lane is open, with nothing to declare and no other session in the chunk. The short way may only
        # say yes.
        if (
            known is not None
            and known.retired is None
            and claim.granted
            and not session.is_relay
            and not declares_origins
            and not session.clocks.by_boot
            and not self._left_out
            and lane not in self._epochs
        ):
            held = known
        else:
            taken, ungranted = self._epochs.get(lane, -1), session.ungranted
            # Two sessions of one lane in one chunk: the higher epoch has it. Records of the lower one may be of a
            # copied disk.
            if not session.is_relay and (claim.epoch < taken or (claim.epoch == taken and ungranted)):
                return
            if self._ended is not None and self._ended.is_open(self._state, lane):
                return  # opened after the look-up of ended lanes, so it may be one of them
            is_long = ungranted or declares_origins or bool(session.clocks)
            # One edge with many new lanes or long names must not take a chunk's index for itself. The rest comes with
            # the next chunks.
            is_full = self._texts.get(edge, 0) >= TEXTS_PER_EDGE
            # Left out as a whole for this chunk: its records without its opening would have no owner.
            if lane in self._left_out or (is_full and is_long):
                self._left_out.add(lane)
                return
            held, control = self._held(lane)
            declares = session.must_declare(held)
            is_long |= bool(control and control.body) or (declares and session.topics != held.topics)
            if is_full and is_long:
                self._left_out.add(lane)
                return
            # Items of a lane that left are acknowledged from the state, even if the hub had all of them: so the lane
            # must return.
            returns = ungranted or (bool(session.items) and known is None)
        number = self._numbers.get(key, 0)
        draft = LaneDraft(session, number)
        # Most lanes bring one run that continues what is held: one question to the state instead of one for each batch.
        if session.items and not self._take_run(draft, held, key, edge):
            self._take_items(draft, held)
        if session.mark is not None:
            draft.take_mark(session.mark, held)
        if declares:
            draft.declare(held)
        if declares_origins or draft.named:
            draft.take_origins(held, declares_origins)
        size = draft.index_bytes()
        if session.clocks.by_boot:
            size += CLOCK_BYTES * self._take_clocks(session)
        if control is not None:
            size += len(control.body)
        self._index_bytes += size
        if is_long:
            self._texts[edge] = self._texts.get(edge, 0) + max(size, OPENING_BYTES)
        substantial = draft.has_news or returns or (draft.mark is not None and session.sends_last_word)
        if substantial or draft.mark is not None:
            if not session.is_relay:
                self._epochs[lane] = claim.epoch
            self._lanes.append(draft)
            self._numbers[key] = number + 1
            if control is not None:
                self._controls[lane] = control
            self._substantial |= substantial

    def _take_clocks(self, session: LaneSession) -> int:
        """Add the clock notices that the state lacks, once for all sessions that have them. Return their number."""
        clocks = session.clocks
        if not clocks or clocks in self._notices:
            return 0
        self._notices.add(clocks)
        news = clocks.news(self._state)
        for clock in news:
            self._note_clock(session.lane, (clock.tenant, clock.edge, clock.log_id, clock.boot_id), clock)
        return len(news)

    def _note_clock(self, lane: Lane, key: BootKey, clock: ClockUpdate) -> None:
        known = self._clocks.setdefault(key, clock)
        self._stream_clocks.setdefault((lane.tenant, lane.stream), {})[key] = known

    def _take_items(self, draft: LaneDraft, held: LaneState) -> None:
        """Add the new parts of a session's items, one after the other."""
        lane = draft.session.lane
        edge = lane.tenant, lane.edge
        left = self._looks.get(edge, LOOKS_PER_EDGE) - self._block_looks(lane)
        for item in draft.session.items:
            if left <= 0 or self._bytes >= self._bytes_max:
                break
            after = self._state_after(lane, held)
            # Records that the hub holds are cut off by two numbers beside the batch, which itself stays as the edge
            # encoded it: its checksum holds from the edge's disk to the table.
            new = after.missing_gap(item) if isinstance(item, GapRange) else after.missing_records(*bounds(item))
            for piece in new[:left]:
                if self._bytes >= self._bytes_max:
                    break
                self._take(draft, item, piece, held)
            left -= 1 + len(new)
        self._looks[edge] = left

    def _take_run(self, draft: LaneDraft, held: LaneState, stream: StreamKey, edge: tuple[str, str]) -> bool:
        """Add all items of a session at once if they are one run of new records, as they nearly always are.

        Return False if they are not, or the chunk may have no room for all.

        Args:
            stream: that of the lane.
            edge: tenant and name of the lane's edge.
        """
        session = draft.session
        lane, items, section = session.lane, session.items, self._sections.get(stream)
        first, end, size = session.run_first, session.run_end, self._bytes + session.bytes
        left = self._looks.get(edge, LOOKS_PER_EDGE) - (section is None) - len(items)
        # Whatever is not one plain run goes the long way, piece by piece. The short way may only say yes.
        if end < 0 or size > self._bytes_max or left < 0 or lane in self._runs or lane in self._after:
            return False
        if not held.lacks_records(first, end):
            return False
        self._runs[lane] = draft.run = first, end
        self._bytes, self._looks[edge] = size, left
        if section is None:
            section = self._sections[stream] = _Section()
        newest = held.latest_claim
        for header, _, _ in cast("Iterable[ReceivedBatch]", items):
            # Nothing else needs a correction, so nearly every batch passes by one comparison.
            if header.clock is not _SYNCED or header.first_time <= newest or header.origin:
                break
        else:
            section.add_whole(draft.index, items)
            return True
        for batch in items:
            assert isinstance(batch, ReceivedBatch), "a run has only records"
            header, correction = batch.header, 0
            if header.clock is not _SYNCED or header.first_time <= newest:
                correction = self._settle_times(draft, batch, held, header.end_seq)
            if header.origin:
                draft.name_origin(header.origin)
            section.add(draft.index, 0, header.count, batch, correction)
        return True

    def _block_looks(self, lane: Lane) -> int:
        """Return what records of a lane cost besides its items: a block of its own takes as long as an item."""
        return int((lane.tenant, lane.stream) not in self._sections)

    def _section(self, lane: Lane) -> _Section:
        key = lane.tenant, lane.stream
        section = self._sections.get(key)
        if section is None:
            section = self._sections[key] = _Section()
        return section

    def _settle_times(self, draft: LaneDraft, batch: ReceivedBatch, held: LaneState, end: int) -> int:
        """Note the mark that a batch may contradict. Return the chunk's correction of its times."""
        header = batch.header
        correction = 0 if header.clock is ClockState.SYNCED else self._correction(draft.session, header)
        # A proven mark has claimed that nothing earlier follows. The record keeps its stamp beside it and gets the
        # first moment after the mark, because the claim cannot be taken back.
        contradicted = held.contradicted(header.first_time + correction, end)
        if contradicted is not None and (draft.floor is None or draft.floor.time < contradicted.time):
            draft.floor = contradicted
        return correction

    def _state_after(self, lane: Lane, held: LaneState) -> LaneState:
        """Return the state of a lane after the present contents of the chunk."""
        if lane in self._runs:
            self._after[lane] = held.copy()
            self._after[lane].add_records([self._runs.pop(lane)])
        return self._after.get(lane, held)

    def _held(self, lane: Lane) -> tuple[LaneState, Control | None]:
        """Return a lane's state, and the control record by which an ended lane returns."""
        body = self._ended.get(self._state, lane) if self._ended is not None else None
        kept = self._ended.state(self._state, lane) if self._ended is not None else None
        if body is not None and kept is not None:
            return kept, adoption(lane, body)
        held = self._state.lanes.get(lane, NOTHING)
        if held.retired is not None and held.retired.by == RetiredBy.AGE and held.conflict is None:
            return held, adoption(lane)
        return held, None

    def _take(self, draft: LaneDraft, item: ReceivedBatch | GapRange, piece: Range, held: LaneState) -> None:
        first, end = piece
        lane = draft.session.lane
        if lane not in self._after:
            self._after[lane] = held.copy()
        if isinstance(item, GapRange):
            gap = GapRange(first, end, item.reason)
            self._after[lane].add_gaps([gap])
            draft.declared = draft.declared or LaneState()
            draft.declared.add_gaps([gap])
            return
        self._after[lane].add_records([piece])
        # A gap that the same link sent before its records: the chunk gets only the records, which a footer counts
        # first.
        if draft.declared is not None:
            draft.declared.gaps.remove(first, end)
        draft.pieces = draft.pieces if draft.pieces is not None else RangeSet()
        draft.pieces.add(first, end)
        correction = self._settle_times(draft, item, held, end)
        if item.header.origin:
            draft.name_origin(item.header.origin)
        section = self._section(lane)
        section.add(draft.index, first - item.header.base_seq, end - first, item, correction)
        self._bytes += len(item.data)

    def _correction(self, session: LaneSession, header: BatchHeader) -> int:
        """Return the chunk's correction for a batch's times, from a boot with an unset clock. The clock notice goes
        into the same chunk, so that every reader corrects them alike, whenever it reads."""
        lane = session.lane
        key = (lane.tenant, lane.edge, lane.log_id, header.boot_id)
        clock = self._clocks.get(key)
        if clock is None:
            # Settled here for good: tables, API and Spark read the chunk at different times, and must see one time for
            # one record.
            clock = session.clocks.of(header.boot_id) or self._state.boot_clock(*key)
        correction = None if clock is None else shift(header, clock.offset)
        if clock is None or correction is None:
            return 0
        self._note_clock(lane, key, clock)
        return correction

    def finish(self, created: int, nonce: int, marks_due: bool, is_asked: bool = False) -> Draft | None:
        """Return the chunk, or None if there is nothing to write.

        Args:
            created: nanoseconds since 1970.
            nonce: 64 random bits, new ones for each attempt.
            marks_due: whether marks alone are sufficient for a chunk.
            is_asked: whether a link asks for a chunk, which has nothing in it if there is nothing.
        """
        # A chunk of marks alone is an object as any other, so it waits for its interval.
        if not (self._substantial or ((self._lanes or self._clocks or is_asked) and marks_due)):
            return None
        state = self._state
        created = max(created, state.created)  # a clock that steps back must not make a lane look seen earlier
        header = ChunkHeader(state.cluster_id, state.n + 1, created, state.shard, state.footer_crc, nonce)
        parts: list[Buffer] = [chunks.encode_header(header)]
        for draft in self._lanes:
            section = self._sections.get((draft.session.lane.tenant, draft.session.lane.stream))
            if draft.floor is not None and section is not None:
                section.last_time = max(section.last_time, behind(draft.floor))
        footer = self._footer(header, self._place_sections(parts))
        tail, footer_crc = chunks.encode_footer(footer)
        parts.append(tail)
        openings = [draft.session for draft in self._lanes if draft.session.ungranted]
        return Draft(b"".join(parts), Chunk(header, footer, footer_crc), openings)

    def _footer(self, header: ChunkHeader, sections: list[StreamSection]) -> ChunkIndex:
        lanes = [draft.update() for draft in self._lanes]
        extensions, level = self._extensions(lanes)
        # The level of the log is carried over, even if this release does not know it.
        level, controls = max(level, self._state.fold_level), [*self._controls.values()]
        clocks = {stream: list(known.values()) for stream, known in self._stream_clocks.items()}
        return index_of(header, level, sections, StreamBlock(lanes, controls, []), clocks, extensions)

    def _extensions(self, lanes: list[LaneUpdate]) -> tuple[dict[int, bytes], int]:
        """Return the release's extensions at the cluster's level, and their highest level."""
        written, highest = dict[int, bytes](), FIRST_LEVEL
        for number, extension in self._state.rules.extensions.items():
            # Written only once every node of the cluster reads it; until then the release can be taken back.
            data = extension.write(self._state.extension(number), lanes) if extension.level <= self._level else None
            if data is not None:
                written[number], highest = data, max(highest, extension.level)
        return written, highest

    def _place_sections(self, parts: list[Buffer]) -> list[StreamSection]:
        placed = []
        position = chunks.HEADER_BYTES
        for (tenant, stream), section in self._sections.items():
            # Offsets are given out by the chunk's place in the log. If another node wins the number, the chunk is
            # drafted again with other offsets.
            base = self._state.next_offset.get((tenant, stream), 0)
            data = b"".join(section.parts)
            placed.append(
                StreamSection(
                    tenant,
                    stream,
                    base,
                    section.count,
                    section.first_time,
                    section.last_time,
                    position,
                    len(data),
                    int(crc32c(data)),
                )
            )
            parts.append(data)
            position += len(data)
        return placed


# The next chunk of a shard from the items of its sessions: a session with items that no chunk can hold is refused.

logger = logging.getLogger(__name__)

Finish = Callable[[ChunkBuilder], Draft | None]


class Drafted(NamedTuple):
    """A chunk ready for creation, and its effect on the state.

    It is folded before it is written: a chunk is permanent, and an invalid one would end the shard's log.
    """

    draft: Draft
    folded: Folded


class Attempt(NamedTuple):
    """A chunk creation of this node with an unknown outcome."""

    openings: list[LaneSession]
    bytes: int
    canary: int = 0
    """Number of the last canary that came before it."""


class Drafting:
    """Drafts of one state.

    Args:
        builder: makes a builder of the next chunk.
        finish: finishes a builder's chunk.
        declares_origins: whether the state may lack some of a session's origins.
    """

    def __init__(
        self,
        state: ShardState,
        builder: Callable[[], ChunkBuilder],
        finish: Finish,
        declares_origins: Callable[[LaneSession], bool],
    ) -> None:
        self._state = state
        self._declares_origins = declares_origins
        self._builder = builder
        self._finish = finish

    def draft(self, sessions: ShardSessions) -> Drafted | None:
        """Return the next chunk, or None if there is nothing to write.

        Sessions that cannot make a chunk even alone are refused. If only all together cannot, the longest waiting one
        gets a chunk for itself.

        Raises:
            Exception: no session is the cause.
        """
        waiting = list(sessions)
        try:
            return self._of(waiting)
        except Exception as error:
            causes = [session for session in waiting if self._fails(session)]
            if not causes and len(waiting) < 2:
                raise
            logger.exception("shard %d: no chunk of %d sessions can be made", self._state.shard, len(waiting))
            for session in causes:
                message = f"lane {session.lane} has what the hub cannot write: {type(error).__name__}"
                sessions.refuse(session, RefuseCode.OVERLOADED, message, "report this, with the hub's log")
            # If each session alone is fine, only their sum failed. One of them is written, so that the shard makes
            # progress.
            return self._of(list(sessions)) if causes else self._of(waiting[:1])

    def _of(self, sessions: Sequence[LaneSession]) -> Drafted | None:
        builder = self._builder()
        for session in sessions:
            builder.add(session, declares_origins=self._declares_origins(session))
        draft = self._finish(builder)
        return None if draft is None else Drafted(draft, fold(self._state, draft.chunk))

    def _fails(self, session: LaneSession) -> bool:
        try:
            self._of([session])
        except Exception:
            return True
        return False
