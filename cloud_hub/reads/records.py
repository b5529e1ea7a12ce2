"""Records of a stream by offset or by time, for people: decoded one by one, in bounded pages.

What the log no longer has comes from the stream's table.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from weft.cloud_hub.reads.views import (
    SLICE_S,
    FoundRecord,
    Part,
    Search,
    Taken,
    gap_views,
    only_latest,
    record_view,
    removed_until,
    with_members,
)
from weft.cloud_hub.shard.sequencer import Sequencer, public_reason
from weft.cloud_hub.shard.shards import LOAD_S_MAX, READ_AGE_S_MAX, Shards
from weft.config.log_lines import Repeats, left_out
from weft.hub_api.answers import ApiError, GapView, MissingShard, moment_of
from weft.hub_api.records import ChunkOfRecord, RecordOfStream, RecordsAnswer, RowOfRecord, TraceAnswer
from weft.hub_api.streams import TableOfStream
from weft.protocols import batch as batches
from weft.protocols.chunk import batch_times, known_clocks, section_entries
from weft.protocols.chunk_index import ChunkIndex, StreamKey, StreamSection
from weft.protocols.errors import CodecError
from weft.protocols.lane import Lane, by_number, format_log_id, origin_text
from weft.protocols.payloads import PayloadKind
from weft.protocols.ranges import RangeSet
from weft.protocols.shard.lane_state import LaneState, lane_of
from weft.protocols.shard.shard_state import ShardState
from weft.storage import hub_keys
from weft.storage.chunk_log import CollectedPast, ShardLog, missing_shards
from weft.storage.object_store import NotFound, StoreError
from weft.storage.table.deletions import FollowedErasures

if TYPE_CHECKING:
    from weft.cloud_hub.reads.history import Histories, Past, PastPlace


CHUNKS_MAX = 64
"""Maximum number of chunks that one request reads after it has found a record in a shard."""
SOON = "try again in a moment"
LOCATE_LOOKS = 8
"""Number of snapshots read to find an offset: they are halved, and few are kept."""


NOT_ERASED = RangeSet()


class Helping(NamedTuple):
    """A run of records of one shard, and where to continue."""

    records: list[FoundRecord]
    next_offset: int
    next_chunk: int | None = None
    """Number of the chunk to continue from; None unless the bound on chunks ended the read."""


class Beginning(NamedTuple):
    """The place in a shard from which a request reads."""

    offset: int | None
    """None if the search for it has reached its bound."""
    chunk: int
    """Number of the chunk with the offset, or of an earlier one; without an offset, the chunk at which the search
    continues."""


class _RecordRequest(NamedTuple):
    offset: int
    limit: int
    bytes_max: int
    payload: PayloadKind
    erased: RangeSet = NOT_ERASED
    edge: str | None = None
    """The only edge; None for all."""


def _no_history() -> Histories | None:
    return None


class RecordReader:
    """A reader of one shard's part of a stream in the store, independent of this node's memory.

    Args:
        bytes_max: bytes of payload of an answer.
        histories: returns the reader of tables, which imports what a node without tables does not need; None for none.
        erasures: what was erased, and is not read though chunks have it; None reads all.
    """

    def __init__(
        self,
        log: ShardLog,
        bytes_max: int,
        histories: Callable[[], Histories | None] = _no_history,
        erasures: FollowedErasures | None = None,
    ) -> None:
        self.log = log
        self._erasures = erasures
        self._bytes_max = bytes_max
        self.histories = histories

    async def erased(self, stream: StreamKey) -> RangeSet:
        """Return the offsets of the shard whose records were erased.

        Raises:
            StoreError: the store did not answer.
            TableError: a declaration of an erasure is damaged.
        """
        found = {} if self._erasures is None else await self._erasures.of(*stream)
        return found.get(self.log.shard, NOT_ERASED)

    async def read(
        self,
        stream: StreamKey,
        offset: int,
        end: int,
        limit: int,
        *,
        payload: PayloadKind = PayloadKind.BYTES,
        chunk: int = 0,
        search: Search | None = None,
        edge: str | None = None,
    ) -> Helping:
        """Return records ``[offset, end)`` without erased ones, at most ``limit`` and about ``bytes_max`` bytes of
        payload, at least one.

        The result may be empty if ``search`` reaches its bound.

        Args:
            end: the stream's next offset in this shard: never read beyond what is committed.
            payload: the stream's payload kind.
            chunk: number of a chunk; the offset is not in an earlier one.
            search: budget of the request.
            edge: the only edge; None for all.

        Raises:
            StoreError, NotFound, Corrupt: the log cannot be read.
            CollectedPast: the log no longer has the records, and there is no table.
            TableError: the table with them, or a declared erasure, cannot be read.
        """
        if offset >= end:
            return Helping([], offset)
        erased = await self.erased(stream)
        search = search or Search(records_bytes=self._bytes_max)
        found: list[FoundRecord] = []
        for may_repeat in (True, False):
            search.looks_left -= LOCATE_LOOKS
            n = max(chunk, await self.log.locate(*stream, offset))
            wanted = _RecordRequest(offset, limit - len(found), self._bytes_max, payload, erased, edge)
            watermark = self.log.watermark  # as just read
            if n < watermark:
                past = await self._past(stream, wanted, end, watermark, search)
                if past is not None:
                    search.gave(past.records)
                    found += past.records
                    offset, n, chunk = past.next_offset, watermark, 0
                    if not past.is_end or offset >= end or len(found) >= limit or search.is_spent:
                        return Helping(found, offset)
                    wanted = wanted._replace(offset=offset, limit=limit - len(found))
            try:
                helping = await self._from_log(stream, wanted, end, n, search, is_given=bool(chunk))
            except CollectedPast:
                if not may_repeat:
                    raise
                continue  # the collector has continued: the table has them now
            return helping._replace(records=[*found, *helping.records])
        raise AssertionError("the second attempt returns or raises")

    async def _past(
        self, stream: StreamKey, wanted: _RecordRequest, end: int, watermark: int, search: Search
    ) -> Past | None:
        histories = self.histories()
        if histories is None:
            return None
        from weft.cloud_hub.reads.history import PastPlace

        place = PastPlace(stream, self.log.shard, watermark, search, wanted.edge)
        bytes_max = min(wanted.bytes_max, search.records_bytes)
        return await histories.records(place, (wanted.offset, end), wanted.limit, bytes_max)

    async def _from_log(
        self, stream: StreamKey, wanted: _RecordRequest, end: int, n: int, search: Search, *, is_given: bool
    ) -> Helping:
        """Return records from chunk ``n`` on.

        Args:
            is_given: whether the reader named the chunk, which may be too late.
        """
        found: list[FoundRecord] = []
        offset, limit, _, payload, _, edge = wanted
        looked_at, began = 0, offset
        async for each in self.log.indexes(n, only=frozenset([stream])):
            section = each.footer.section_of(stream)
            if section is not None and section.base_offset > offset == began and is_given:
                # The given chunk is too late: the offset is in an earlier one, so read without it.
                return await self.read(stream, offset, end, limit, payload=payload, search=search, edge=edge)
            if section is not None and not _has(each.footer, section, edge):
                offset = max(offset, section.base_offset + section.count)
            elif section is not None and section.base_offset + section.count > offset:
                if found and search.is_spent:
                    return Helping(found, offset, each.header.n)
                search.took(section.length)
                search.chunks_left -= 1
                data = await self.log.section(each.header.n, section)
                left = min(self._bytes_max, search.records_bytes)
                step = wanted._replace(offset=offset, limit=limit - len(found), bytes_max=left)
                helping = await asyncio.to_thread(
                    search.timed(_decode), self.log.shard, section, data, each.footer, step
                )
                found += helping.records
                offset = helping.next_offset
                search.gave(helping.records)
                self.log.offsets.ended(stream, offset, each.header.n)
            looked_at += bool(found)
            if offset >= end or len(found) >= limit or search.records_bytes <= 0:
                break
            if looked_at >= CHUNKS_MAX or not (found or search.continues()):
                return Helping(found, offset, each.header.n + 1)
        if not found and is_given and offset < end:
            return await self.read(stream, offset, end, limit, payload=payload, search=search, edge=edge)
        return Helping(found, offset)

    async def first(
        self, state: ShardState, stream: StreamKey, search: Search, *, since: int = 0, chunk: int | None = None
    ) -> Beginning:
        """Return the place of the first record that was committed at or after ``since`` (ns, the hub's clock).

        Chunks name only streams with records in them, so a search may pass many chunks of other streams. Snapshots have
        every stream: if two of them have the same offset of the stream, no chunk between them is read.

        Args:
            chunk: number of the first chunk, instead of ``since``.

        Raises:
            StoreError, Corrupt: the log cannot be read.
        """
        head, end = state.n + 1, state.next_offset.get(stream, 0)
        watermark = await self._watermark()
        search.looks_left -= 2
        if chunk is not None and chunk < watermark and self.histories() is not None:
            return Beginning((await self.log.around(*stream, chunk)).start, 0)  # collected since the answer before
        low = max(chunk or 0, watermark)
        if chunk is None:
            low = await self._first_chunk(stream, low, head, since, search)
            if low == watermark and watermark and end and (past := await self._past_since(stream, since, low, search)):
                return past
        if low >= head:
            return Beginning(end, low)
        known = await self.log.around(*stream, low)
        until, offset = (head, end) if known.n is None else (known.n, known.end)
        if known.start == offset:
            return Beginning(offset, low)
        if search.left <= 0:
            return Beginning(None, low)
        async for each in self.log.indexes(low, only=frozenset([stream])):
            section = each.footer.section_of(stream)
            if section is not None:
                return Beginning(section.base_offset, each.header.n)
            if each.header.n >= until:
                break
            if not search.continues():
                return Beginning(None, each.header.n + 1)
        return Beginning(offset, low)

    async def _past_since(self, stream: StreamKey, since: int, watermark: int, search: Search) -> Beginning | None:
        """Return the place of the first record that only the table has, and that the hub received at or after a time;
        None without one."""
        histories = self.histories()
        if histories is None:
            return None
        from weft.cloud_hub.reads.history import PastPlace

        offset = await histories.since(PastPlace(stream, self.log.shard, watermark, search), since)
        return None if offset is None else Beginning(offset, 0)

    async def _first_chunk(self, stream: StreamKey, low: int, head: int, since: int, search: Search) -> int:
        """Return the number of the first chunk from ``low`` on that was made at or after a time; ``head`` if there is
        none."""
        high = head
        while low < high:
            search.looks_left -= 1
            middle = (low + high) // 2
            chunk = await self.log.index(middle, frozenset([stream]))  # its header alone is looked at
            if chunk is None or chunk.header.created < since:
                low = middle + 1
            else:
                high = middle
        return low

    async def _watermark(self) -> int:
        return (await self.log.manifest())[0].watermark


def _has(footer: ChunkIndex, section: StreamSection, edge: str | None) -> bool:
    """Return whether a section may have records of an edge."""
    return edge is None or any(lane.edge == edge for lane in footer.lanes_of(section))


def _decode(shard: int, section: StreamSection, data: bytes, footer: ChunkIndex, wanted: _RecordRequest) -> Helping:
    offset, limit, bytes_max, payload, erased, edge = wanted
    lanes, clocks = footer.lanes_of(section), known_clocks(footer.clocks_of(section))
    found: list[FoundRecord] = []
    at = section.base_offset
    for entry in section_entries(section, data, lanes):
        if at + entry.take <= offset:
            at += entry.take
            continue
        first = max(offset - at, 0)
        header, lane = batches.decode_header(entry.batch), lanes[entry.lane]
        if edge not in {None, lane.edge}:
            at += entry.take
            continue
        taken = Taken(
            shard,
            section.stream,
            lane.edge,
            format_log_id(lane.log_id),
            entry.received,
            moment_of(entry.received),
            batch_times(header, lane, clocks),
            origin_text(header.origin, by_number(lane.origins)) if header.origin else None,
        )
        records = batches.records(entry.batch, first=entry.skip + first, end=entry.skip + entry.take)
        at += first
        for record in records:
            at += 1
            if erased and at - 1 in erased:
                continue
            made = record_view(record, at - 1, taken, payload)
            found.append(made)
            bytes_max -= made.size
            if len(found) >= limit or bytes_max <= 0:
                return Helping(found, at)
    return Helping(found, at)


AnswerT = TypeVar("AnswerT", bound=msgspec.Struct)


class ShardsView(NamedTuple):
    """The shards for one request. The states change with the next await."""

    readers: dict[int, RecordReader]
    states: list[ShardState]
    """States of the readable shards."""
    missing: dict[int, str]
    """Numbers of the unreadable shards, with the reasons."""

    def known(self, shard: int) -> int:
        """Return the number of a shard that a request names.

        Raises:
            ApiError: 503: this process knows no such shard, which a split may have made a moment ago.
        """
        if shard not in self.readers and shard not in self.missing:
            raise ApiError(503, f"shard {shard} is not known here", f"{SOON}; GET /v1/streams/NAME has the shards")
        return shard

    def readable(self, shard: int) -> int:
        """Return the number of a shard that a request names.

        Raises:
            ApiError: 503: it is not known, or cannot be read.
        """
        if (why := self.missing.get(self.known(shard))) is not None:
            raise unavailable(f"shard {shard} cannot be read: {why}")
        return shard

    @property
    def missing_shards(self) -> list[MissingShard] | UnsetType:
        """Return the missing shards as an answer names them."""
        return named_shards(self.missing)

    def unclaimed(self, answer: AnswerT) -> AnswerT:
        """Return an answer without a claim of completeness while a shard is missing: the shard may hold lanes of the
        stream."""
        # Also after the answer was made: a chunk may have moved lanes away from a shard before they were looked at.
        if self.missing or missing_shards(self.states):
            return msgspec.structs.replace(answer, complete_up_to=None)
        return answer


def unavailable(error: str) -> ApiError:
    """Return the error of a request for what another look may find."""
    return ApiError(503, error, "the hub's log and `weft hub status` have details; other shards are not affected")


def named_shards(missing: Mapping[int, str]) -> list[MissingShard] | UnsetType:
    """Return unreadable shards as an answer names them; unset if every shard could be read.

    Args:
        missing: shard -> reason.
    """
    return [MissingShard(shard, why) for shard, why in missing.items()] or UNSET


# The answer of ``GET /v1/streams/{stream}/records``: some records of each shard, and where to continue.


class RecordsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of the request."""

    shard: int | None
    """None for all shards, from ``from_shard`` on."""
    offset: int | None
    since: int | None
    """Nanoseconds since 1970."""
    chunk: int | None
    from_shard: int | None
    edge: str | None
    """The only edge; None for all."""
    limit: int
    """Most records of the answer."""

    def shards(self, view: ShardsView) -> list[int]:
        """Return the numbers of the shards to read, which must be readable.

        Raises:
            ApiError: 400, 503.
        """
        if self.shard is not None:
            return [view.readable(self.shard)]
        if self.offset is not None or self.chunk is not None:
            raise ApiError(400, "offsets and chunks count per shard", "give shard= too, or since= for all shards")
        first = view.known(self.from_shard or 0)
        return [state.shard for state in view.states if state.shard >= first]


class RecordsReading:
    """The records of one answer, which are read shard by shard within one budget.

    Args:
        bytes_max: bytes of their payloads; one more record may go beyond.
    """

    def __init__(self, wanted: RecordsQuery, stream: StreamKey, payload: PayloadKind, bytes_max: int) -> None:
        self._wanted, self._stream, self._payload = wanted, stream, payload
        self._search = Search(records_bytes=bytes_max)
        self._records: list[FoundRecord] = []
        self._next_offset: dict[str, int] = {}
        self._next_chunk: dict[str, int] = {}
        self._next_shard: int | None = None

    def continues(self, shard: int) -> bool:
        """Return whether the request may read another shard. If not, the answer names it."""
        if self._search.looks_left > 0:
            return True
        self._next_shard = shard
        return False

    async def read(self, state: ShardState, reader: RecordReader) -> None:
        """Read a shard's part. Raises as ``RecordReader.read``."""
        shard, end = str(state.shard), state.next_offset.get(self._stream, 0)
        offset, chunk = await self._beginning(state, reader)
        if offset is None:
            self._next_chunk[shard] = chunk
            return
        if len(self._records) < self._wanted.limit and not self._search.is_spent:
            helping = await reader.read(
                self._stream,
                offset,
                end,
                self._wanted.limit - len(self._records),
                payload=self._payload,
                chunk=chunk,
                search=self._search,
                edge=self._wanted.edge,
            )
            self._records += helping.records
            offset = helping.next_offset
            if helping.next_chunk is not None:
                self._next_chunk[shard] = helping.next_chunk
        self._next_offset[shard] = offset

    async def _beginning(self, state: ShardState, reader: RecordReader) -> Beginning:
        wanted = self._wanted
        if wanted.since is not None:
            return await reader.first(state, self._stream, self._search, since=wanted.since)
        if wanted.chunk is not None and wanted.offset is None:
            return await reader.first(state, self._stream, self._search, chunk=wanted.chunk)
        return Beginning(wanted.offset or 0, wanted.chunk or 0)

    async def encode(
        self,
        missing_shards: list[MissingShard] | UnsetType,
        table: TableOfStream | None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> list[Part]:
        """Return the answer as JSON.

        Args:
            table: of the stream; None if it is not known.
        """
        members: list[Part] = []
        began = clock()
        for each in self._records:
            if members:
                members.append(b",")
            members += each.parts()
            if clock() - began >= SLICE_S:
                await asyncio.sleep(0)
                began = clock()
        answer = RecordsAnswer(
            tenant=self._stream[0],
            stream=self._stream[1],
            records=[],
            next_offset=self._next_offset,
            next_chunk=self._next_chunk,
            missing_shards=missing_shards,
            removed_until=removed_until(table),
            only_latest=only_latest(table),
            next_shard=UNSET if self._next_shard is None else self._next_shard,
        )
        return with_members(answer, "records", members)


# Shards of other processes as readers of single streams need them: of each, the parts of the streams that were asked
# for, and nothing else.
#
# A shard that this process owns, or has loaded for a link, is not followed here.

logger = logging.getLogger(__name__)

IDLE_S = 300.0
"""Time after which a stream is no longer followed that no reader asked for."""
FOLLOWED_MAX = 16_384
"""Maximum number of followed streams, counted once for each shard: 1,000 streams in 16 shards. The one that was asked
for the longest ago goes."""
UNKNOWN_MAX = 64
"""Maximum number of names that no shard knows and that are followed. Any name can be asked for: it must not push out
streams."""
LOOKS_AT_ONCE = 64
"""Number of looks that read from the store at a time; as many as the requests of one owner begin. Others wait."""


class FollowedShard(NamedTuple):
    """A shard for a reader of one stream."""

    log: ShardLog
    state: ShardState | None
    """Its part of the stream; None while nothing could be read."""
    trouble: str
    """Reason why it could not be read, or not further, for readers."""


class _Followed:
    def __init__(self, log: ShardLog) -> None:
        self.log = log
        self.state: ShardState | None = None
        self.trouble = ""
        self.looked_at = float("-inf")
        """Start of the last look that reached the log's head."""
        self.look: asyncio.Task[None] | None = None


class StreamFollowers:
    """The followed streams of one process. Event loop's thread only.

    Args:
        log: returns the log of a shard.
        monotonic: seconds.
    """

    def __init__(self, log: Callable[[int], ShardLog], monotonic: Callable[[], float]) -> None:
        self._log, self._monotonic = log, monotonic
        self._followed: dict[tuple[int, StreamKey], _Followed] = {}
        """In the order in which they were asked for last."""
        self._used_at: dict[tuple[int, StreamKey], float] = {}
        self._unknown: dict[StreamKey, None] = {}
        """Names that no shard knew when they were asked for last, in the order in which this was found."""
        self._repeats = Repeats()
        self._looks = asyncio.Semaphore(LOOKS_AT_ONCE)

    def __len__(self) -> int:
        """Return the number of followed streams, counted once for each shard."""
        return len(self._followed)

    async def read(self, shard: int, key: StreamKey) -> FollowedShard:
        """Return a stream's part of a shard as of at most ``READ_AGE_S_MAX`` ago, unless the store fails or is slow."""
        asked_at = self._monotonic()
        followed = self._of(shard, key, asked_at)
        # A look that began before may end below the head of that moment.
        for _ in range(2):
            if followed.looked_at >= asked_at - READ_AGE_S_MAX:
                break
            if followed.look is None or followed.look.done():
                followed.look = asyncio.create_task(self._look(followed, key), name=f"follow-shard-{shard}")
            await asyncio.wait([followed.look], timeout=LOAD_S_MAX)
            if not followed.look.done() or followed.look.cancelled():
                break
            followed.look.result()
            if followed.trouble:
                break
        return FollowedShard(followed.log, followed.state, followed.trouble or "it is being loaded")

    def _of(self, shard: int, key: StreamKey, now: float) -> _Followed:
        place = shard, key
        found = self._followed.pop(place, None) or _Followed(self._log(shard))
        self._followed[place], self._used_at[place] = found, now
        while len(self._followed) > 1:
            oldest = next(iter(self._followed))
            if len(self._followed) <= FOLLOWED_MAX and now - self._used_at[oldest] < IDLE_S:
                break
            self._forget(oldest)
        return found

    def note(self, key: StreamKey, *, is_known: bool) -> None:
        """Note whether any shard has a stream that was read, and forget the oldest of too many without."""
        self._unknown.pop(key, None)
        if is_known:
            return
        self._unknown[key] = None
        if len(self._unknown) > UNKNOWN_MAX:
            oldest = next(iter(self._unknown))
            del self._unknown[oldest]
            for place in [each for each in self._followed if each[1] == oldest]:
                self._forget(place)

    def _forget(self, place: tuple[int, StreamKey]) -> None:
        del self._used_at[place]
        if (look := self._followed.pop(place).look) is not None:
            look.cancel()

    async def _look(self, followed: _Followed, key: StreamKey) -> None:
        """Read up to the head of the log."""
        async with self._looks:
            await self._read_on(followed, key)

    async def _read_on(self, followed: _Followed, key: StreamKey) -> None:
        began, only = self._monotonic(), frozenset([key])
        try:
            if followed.state is None:
                followed.state = await followed.log.load(only)
            else:
                try:
                    await followed.log.extend(followed.state)
                except CollectedPast:
                    followed.state = await followed.log.load(only)
        except CodecError as error:
            self._note(followed, error)
            followed.state = None  # what was read before may be a part of a chunk
            return
        except (StoreError, NotFound) as error:
            self._note(followed, error)
            return
        followed.trouble, followed.looked_at = "", began

    def _note(self, followed: _Followed, error: Exception) -> None:
        followed.trouble = public_reason(error)
        count = self._repeats.due(str(error), self._monotonic())
        if count is not None:
            logger.warning("shard %d cannot be read for a reader: %s%s", followed.log.shard, error, left_out(count))


# The shards of a store as one request sees them.

LOADING = "it is being loaded"


class ShardViews:
    """Makes the views of one process. A failing shard is left out and named; the response reports that its part is
    missing.

    Args:
        log: returns the log of a shard, for readers.
        response_bytes_max: longest answer, in payload bytes.
    """

    def __init__(
        self, shards: Shards, log: Callable[[int], ShardLog], response_bytes_max: int, monotonic: Callable[[], float]
    ) -> None:
        self._shards, self._response_bytes_max, self._monotonic = shards, response_bytes_max, monotonic
        self._followers = StreamFollowers(log, monotonic)
        self._histories: Histories | None = None
        self._erasures: FollowedErasures | None = None

    async def of_stream(self, tenant: str, stream: str) -> ShardsView:
        """Return what all shards have of one stream. Shards of other processes are read for this stream alone."""
        held = await self._shards.held()
        others = [shard for shard in range(self._shards.count) if shard not in held]
        read = await asyncio.gather(*(self._followers.read(shard, (tenant, stream)) for shard in others))
        view = self._view([*map(_seen, held.values()), *read])
        self._followers.note((tenant, stream), is_known=any(each.has_stream(tenant, stream) for each in view.states))
        return view

    def _view(self, shards: Iterable[FollowedShard]) -> ShardsView:
        found = sorted(shards, key=lambda each: each.log.shard)
        states = [each.state for each in found if each.state is not None]
        missing = {each.log.shard: each.trouble for each in found if each.state is None}
        missing = dict.fromkeys(missing_shards(states), LOADING) | missing
        return ShardsView({each.log.shard: self._reader(each.log) for each in found}, states, missing)

    def _reader(self, log: ShardLog) -> RecordReader:
        def histories() -> Histories:
            if self._histories is None:
                from weft.cloud_hub.reads.history import (
                    Histories,  # imports pyarrow, which few nodes without tables need
                )

                self._histories = Histories(log.store, log.cluster, self._monotonic)
            return self._histories

        if self._erasures is None:
            self._erasures = FollowedErasures(log.store, self._monotonic)
        return RecordReader(log, self._response_bytes_max, histories, self._erasures)


def _seen(sequencer: Sequencer) -> FollowedShard:
    state = sequencer.state if sequencer.loaded else None
    return FollowedShard(sequencer.log, state, sequencer.public_trouble or LOADING)


# The way of one record: from its lane and number to its offset, its chunk, and its row in a file of the table; and
# from an offset back to the device's message.

ADVICE = "name a record by edge, log and seq, or by shard and offset"


class RecordPlace(NamedTuple):
    """The place of a record, or where the search for it continues."""

    offset: int | None
    """None if it was not found."""
    chunk: int = 0
    """Number of a chunk: the offset is not in an earlier one."""
    next_chunk: int | None = None
    """Number of the chunk to search from in another request; None at the end."""


class TracedRecord(NamedTuple):
    """Facts of a shard about one record, or where the search for it continues."""

    record: RecordOfStream | None = None
    chunk: ChunkOfRecord | None = None
    row: RowOfRecord | None = None
    next_chunk: int | None = None
    next_shard: int | None = None


Standing = Literal["here", "gone", "to_come", "never_comes", "unknown"]


def _standing(held: LaneState | None, seq: int) -> tuple[Standing, GapView | UnsetType]:
    """Return what the hub knows of a number of a lane, which is the lane's word and no look at the records."""
    if held is None:
        return "unknown", UNSET
    if gap := next((each for each in held.gaps if each.first <= seq < each.end), None):
        return "never_comes", gap_views([gap])[0]
    return "here" if seq in held.ranges else "to_come", UNSET


class TraceQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of the request: a record by edge, log and number, or by shard and offset; and where the search
    continues."""

    edge: str | None
    log: str | None
    seq: int | None
    shard: int | None
    offset: int | None
    chunk: int | None
    from_shard: int | None

    def lane(self, stream: StreamKey) -> tuple[Lane, int]:
        """Return the lane and the number of the record.

        Raises:
            ApiError: 400.
        """
        for name in ("edge", "log", "seq"):
            if getattr(self, name) is None:
                raise ApiError(400, f"{name}= is missing", ADVICE)
        assert self.edge is not None, "as was looked at"
        return Lane(stream[0], self.edge, int(self.log or "", 16), stream[1]), self.seq or 0


async def trace_answer(wanted: TraceQuery, shards: ShardsView, stream: StreamKey, payload: PayloadKind) -> TraceAnswer:
    """Return the answer of ``GET /v1/streams/{stream}/trace``.

    Raises:
        ApiError: 400.
        StoreError, NotFound, Corrupt, CollectedPast, TableError: what was asked for cannot be read.
    """
    search = Search()
    states = {state.shard: state for state in shards.states}
    chunk = wanted.chunk
    standing: Standing = "unknown"
    gap: GapView | UnsetType = UNSET
    traced = TracedRecord()
    if wanted.offset is not None:
        if wanted.shard is None:
            raise ApiError(400, "shard= is missing beside offset=", ADVICE)
        shard = shards.known(wanted.shard)
        if shard in states:
            place = RecordPlace(wanted.offset, chunk or 0)
            tracing = ShardTrace(shards.readers[shard], stream, states[shard].next_offset.get(stream, 0), search)
            traced = await tracing.follow(shard, place, payload)
            if traced.next_shard is None and traced.record is None and wanted.offset < tracing.end:
                standing = "gone"
    else:
        lane, seq = wanted.lane(stream)
        having = _shards_of(shards, lane)
        held = next((states[each].lanes[lane] for each in having if lane in states[each].lanes), None)
        standing, gap = _standing(held, seq)
        if wanted.from_shard is not None:
            begin = shards.known(wanted.from_shard)
            having = having[having.index(begin) :] if begin in having else []
        for shard in having:
            if search.is_spent or search.left <= 0:
                traced = TracedRecord(next_shard=shard)
                break
            tracing = ShardTrace(shards.readers[shard], stream, states[shard].next_offset.get(stream, 0), search)
            place, chunk = await tracing.find(lane, seq, chunk), None
            if place.next_chunk is not None:
                traced = TracedRecord(next_chunk=place.next_chunk, next_shard=shard)
                break
            if place.offset is not None:
                traced = await tracing.follow(shard, place, payload)
                break
        else:
            if standing == "here" and not shards.missing:
                standing = "gone"
    return TraceAnswer(
        tenant=stream[0],
        stream=stream[1],
        standing=standing if traced.record is None else "here",
        record=traced.record,
        chunk=traced.chunk,
        row=traced.row,
        next_chunk=traced.next_chunk,
        next_shard=traced.next_shard,
        gap=gap,
        missing_shards=shards.missing_shards,
    )


def _shards_of(shards: ShardsView, lane: Lane) -> list[int]:
    """Return the shards that may have a lane's records: that which holds it, and those before it that were split. All
    with the stream if none holds it."""
    states = {state.shard: state for state in shards.states}
    holder = max((shard for shard, state in states.items() if lane in state.lanes), default=None)
    may_have = states if holder is None else [each for each in shards.readers[holder].log.lineage if each in states]
    stream = lane.tenant, lane.stream
    return [shard for shard in may_have if shard == holder or states[shard].next_offset.get(stream)]


class ShardTrace:
    """A search for one record in one shard, within the budget of a request.

    Args:
        end: the stream's next offset in the shard.
    """

    def __init__(self, reader: RecordReader, stream: StreamKey, end: int, search: Search) -> None:
        self._reader, self._log, self._stream, self._search = reader, reader.log, stream, search
        self.end = end

    async def find(self, lane: Lane, seq: int, chunk: int | None) -> RecordPlace:
        """Return the place of a number of a lane: first as the table has it, then in the log behind the table.

        Args:
            chunk: number of the chunk to search from, which an answer named.

        Raises:
            StoreError, NotFound, Corrupt, CollectedPast: the log cannot be read.
            TableError: the table cannot be read, or too many of its files may have the number.
        """
        tabled = 0
        histories = self._reader.histories()
        watermark = (await self._log.manifest())[0].watermark
        if histories is not None and chunk is None:
            found = await histories.find(self._past(watermark), lane, seq)
            if found.offset is not None:
                return RecordPlace(found.offset)
            tabled = found.end
        if tabled >= self.end:
            return RecordPlace(None)
        n = max(chunk or 0, watermark, await self._log.locate(*self._stream, tabled))
        async for each in self._log.indexes(n, only=frozenset([self._stream])):
            updates = [update.ranges for update in each.footer.lanes if lane_of(update) == lane]
            if any(first <= seq < end for ranges in updates for first, end in ranges):
                for section in _sections(each.footer, self._stream):
                    data = await self._log.section(each.header.n, section)
                    self._search.took(section.length)
                    offset = await asyncio.to_thread(_offset_in, section, data, each.footer, (lane, seq))
                    if offset is not None:
                        return RecordPlace(offset, each.header.n)
            if not self._search.continues() or self._search.is_spent:
                return RecordPlace(None, 0, each.header.n + 1)
        return RecordPlace(None)

    async def follow(self, shard: int, place: RecordPlace, payload: PayloadKind) -> TracedRecord:
        """Return the record at an offset, the chunk that has it, and its row."""
        offset = place.offset
        assert offset is not None
        found = await self._reader.read(
            self._stream, offset, min(offset + 1, self.end), 1, payload=payload, chunk=place.chunk, search=self._search
        )
        # A read continues after what retention removed, and answers the records there.
        if not found.records or found.records[0].record.offset != offset:
            if found.next_chunk is None or found.records:
                return TracedRecord()
            return TracedRecord(next_chunk=found.next_chunk, next_shard=shard)
        chunk = await self._chunk(offset, place.chunk)
        histories = self._reader.histories()
        row = None if histories is None else await histories.row(self._past(self._log.watermark), offset)
        return TracedRecord(
            found.records[0].whole(),
            None if chunk is None else ChunkOfRecord(shard, chunk, hub_keys.chunk_key(shard, chunk)),
            None if row is None else RowOfRecord(row.file, row.number),
        )

    async def _chunk(self, offset: int, chunk: int) -> int | None:
        """Return the number of the chunk with an offset; None if the log no longer has it."""
        n = max(chunk, await self._log.locate(*self._stream, offset))
        n = max(n, self._log.watermark)
        async for each in self._log.indexes(n, only=frozenset([self._stream])):
            for section in _sections(each.footer, self._stream):
                if section.base_offset > offset:
                    return None
                if offset < section.base_offset + section.count:
                    return each.header.n
            if not self._search.continues():
                break
        return None

    def _past(self, watermark: int) -> PastPlace:
        from weft.cloud_hub.reads.history import PastPlace

        return PastPlace(self._stream, self._log.shard, watermark, self._search)


def _sections(footer: ChunkIndex, stream: StreamKey) -> list[StreamSection]:
    return [each for each in footer.streams if (each.tenant, each.stream) == stream]


def _offset_in(section: StreamSection, data: bytes, footer: ChunkIndex, wanted: tuple[Lane, int]) -> int | None:
    """Return the offset of a number of a lane in a section; None if it is not there."""
    (lane, seq), lanes, at = wanted, footer.lanes_of(section), section.base_offset
    for entry in section_entries(section, data, lanes):
        first = batches.decode_header(entry.batch).base_seq + entry.skip
        if lane_of(lanes[entry.lane]) == lane and first <= seq < first + entry.take:
            return at + seq - first
        at += entry.take
    return None
