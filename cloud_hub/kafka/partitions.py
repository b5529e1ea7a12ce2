"""Records of partitions as Kafka's record batches, which all readers of a place share.

A partition is a shard of a stream, with the offsets of the log. Batches are encoded by aiokafka's compiled codec, in a
thread. A run of them is made once, and serves every reader that comes within its offsets.
"""

from __future__ import annotations

import asyncio
import struct
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from functools import lru_cache
from typing import NamedTuple
from weakref import WeakValueDictionary

from aiokafka.record._crecords.default_records import DefaultRecordBatchBuilder

from weft.bounds import Owner, Rates, Refusals
from weft.cloud_hub.auth.access import Charged
from weft.cloud_hub.reads.records import RecordReader
from weft.cloud_hub.reads.views import SEARCHED_MAX, Search
from weft.protocols import batch as batches
from weft.protocols.batch import Flag, HeaderPairs, header_text, read_u32s
from weft.protocols.checksum import crc32c
from weft.protocols.chunk import BatchTimes, SectionEntry, batch_times, known_clocks, section_entries
from weft.protocols.chunk_index import ChunkIndex, StreamKey, StreamSection
from weft.protocols.lane import by_number, format_log_id, origin_text
from weft.protocols.ranges import RangeSet
from weft.storage.chunk_log import CollectedPast, ShardLog

# Record batches (Kafka's format of version 2) from sections of chunks.

NONE, ZSTD = 0, 4
"""Compressions of a record batch, by Kafka's numbers."""
BATCH_BYTES = 256 << 10
"""Bytes, before compression, after which a record batch ends. One record may exceed them."""
BATCH_RECORDS = 16_384
RUN_BYTES = 4 << 20
"""Bytes of a run's record batches before compression: keys, payloads, headers, and some of each record."""
RUN_SECTIONS_BYTES = 32 << 20
"""Bytes of sections that one run reads. It reads one more at most."""
RUN_UNPACKED_BYTES = 128 << 20
"""Bytes of the unpacked batches of edges of one run, as of erased records. A batch has 128 MiB at most, and each run in
it unpacks it again."""
RUN_S = 0.5
"""Processor time after which a run ends. It has one more section at most."""
_BASE_OFFSET = struct.Struct(">q")
_CRC, _LAST_DELTA = struct.Struct(">I"), struct.Struct(">i")
_CRC_AT, _ATTRIBUTES_AT, _LAST_DELTA_AT = 17, 21, 23
"""Places in a record batch: the checksum covers all from the attributes on."""
DELTA_MAX = (1 << 31) - 1
"""Most offsets of a record batch."""
_UNBOUNDED = (1 << 31) - 1
EDGE, LOG, SEQ, ORIGIN, RESENT = "weft.edge", "weft.log", "weft.seq", "weft.origin", "weft.resent"
"""Headers of every record: its lane and number. ``weft.origin`` is there for records of functions and relays, and
``weft.resent`` for those that the device may have sent before."""
Headers = list[tuple[str, bytes | None]]


class RecordBatch(NamedTuple):
    """An encoded record batch."""

    first: int
    """Offset of its first record."""
    end: int
    """Offset after its last record."""
    data: bytes


class BatchWriter:
    """Encoder of the record batches of one run, in one thread at a time.

    Args:
        first: offset of the run's first record.
        erased: offsets whose records were erased, and are left out.
        codec: ``NONE`` or ``ZSTD``.
    """

    def __init__(self, first: int, erased: RangeSet, codec: int) -> None:
        self.first = self.next_offset = first
        self.batches: list[RecordBatch] = []
        self._erased, self._codec = erased, codec
        self._builder: DefaultRecordBatchBuilder | None = None
        self._base = self._size = self._count = self._written = self._unpacked = 0
        self._end = first
        """Offset up to which the batches are."""

    @property
    def is_full(self) -> bool:
        """Return whether the run has ``RUN_BYTES``, or was made of ``RUN_UNPACKED_BYTES``."""
        return self._written + self._size >= RUN_BYTES or self._unpacked >= RUN_UNPACKED_BYTES

    def add(self, section: StreamSection, data: bytes, footer: ChunkIndex) -> None:
        """Add the records of a section from ``next_offset`` on, until the run is full.

        Raises:
            CodecError: the section is damaged.
        """
        lanes, clocks = footer.lanes_of(section), known_clocks(footer.clocks_of(section))
        at = section.base_offset
        for entry in section_entries(section, data, lanes):
            if at + entry.take > self.next_offset:
                header = batches.verify(entry.batch)
                lane = lanes[entry.lane]
                origin = origin_text(header.origin, by_number(lane.origins)) if header.origin else None
                common: Headers = [(EDGE, lane.edge.encode()), (LOG, format_log_id(lane.log_id).encode())]
                if origin is not None:
                    common.append((ORIGIN, origin.encode()))
                times = batch_times(header, lane, clocks)
                self._add(entry, at, header, common, times)
                if self.is_full:
                    return
            at += entry.take

    def _add(
        self, entry: SectionEntry, at: int, header: batches.BatchHeader, common: Headers, rule: BatchTimes
    ) -> None:
        """Add the records of an entry, whose first one has the offset ``at``."""
        columns, base_seq = batches.decode_columns(entry.batch, header), header.base_seq
        times = array("q")
        times.frombytes(columns.times)
        key_index, ends, payload = read_u32s(columns.key_index), read_u32s(columns.payload_offsets), columns.payload
        self._unpacked += header.raw_length
        keys, flags, erased = columns.keys, columns.flags, self._erased
        for offset in range(max(at, self.next_offset), at + entry.take):
            index = entry.skip + offset - at
            self.next_offset = offset + 1
            if erased and offset in erased:
                continue
            seq, time = base_seq + index, times[index]
            time = rule.of(time, seq, entry.received).time if rule.changes else time + rule.shift
            headers = [*common, (SEQ, b"%d" % seq)]
            if flags and flags[index] & Flag.DUPLICATE_SUSPECTED:
                headers.append((RESENT, b"true"))
            if pairs := columns.headers.get(index):
                headers += _header_pairs(pairs)
            key, value = keys[key_index[index]], payload[ends[index] : ends[index + 1]]
            self._append(offset, max(0, time // 1_000_000), key, bytes(value), headers)
            if self._written + self._size >= RUN_BYTES:
                return

    def _append(self, offset: int, time_ms: int, key: bytes, value: bytes, headers: Headers) -> None:
        if self._builder is None:
            self._builder = DefaultRecordBatchBuilder(2, self._codec, 0, -1, -1, -1, _UNBOUNDED)
            self._base = offset
        self._builder.append(offset - self._base, time_ms, key, value, headers)
        self._end = offset + 1
        self._size = self._builder.size()
        self._count += 1
        if self._size >= BATCH_BYTES or self._count >= BATCH_RECORDS:
            self.finish()

    def end(self) -> None:
        """End the run. Erased offsets at its end become batches without records, by which clients pass them, as after a
        compaction of Kafka's."""
        self.finish()
        while self._end < self.next_offset:
            base, self._end = self._end, min(self.next_offset, self._end + DELTA_MAX)
            self.batches.append(RecordBatch(base, self._end, _empty_batch(base, self._end)))

    def finish(self) -> None:
        """End the last batch."""
        if self._builder is not None:
            data = bytearray(self._builder.build())
            # The checksum covers what follows: a broker of Kafka sets the offset in place, too.
            _BASE_OFFSET.pack_into(data, 0, self._base)
            self.batches.append(RecordBatch(self._base, self._end, bytes(data)))
            self._written += self._size
            self._builder, self._size, self._count = None, 0, 0


def _empty_batch(base: int, end: int) -> bytes:
    data = DefaultRecordBatchBuilder(2, NONE, 0, -1, -1, -1, _UNBOUNDED).build()
    _BASE_OFFSET.pack_into(data, 0, base)
    _LAST_DELTA.pack_into(data, _LAST_DELTA_AT, end - base - 1)
    _CRC.pack_into(data, _CRC_AT, crc32c(bytes(data[_ATTRIBUTES_AT:])))
    return bytes(data)


@lru_cache(maxsize=1024)
def _header_pairs(pairs: HeaderPairs) -> tuple[tuple[str, bytes | None], ...]:
    """Return a record's own headers: text and bytes as they are, other values as text."""
    return tuple((name, _header_value(value)) for name, value in pairs)


def _header_value(value: batches.HeaderValue) -> bytes | None:
    if isinstance(value, bytes):
        return value
    text = header_text(value)
    return None if text is None else text.encode()


# Runs, shared by the readers of a partition.

RUNS_BYTES_MAX = 32 << 20
"""Maximum bytes of the cached runs in addition to the newest."""
RUNS_OF_PARTITION = 16
RUN_AGE_S = 10.0
"""Time for which a run is shared: an erasure may be declared meanwhile."""
PLACES_MAX = 16_384
"""Maximum number of places whose chunk is known."""
READS_AT_ONCE = 4
READS_AT_ONCE_OF_TENANT = 3
READS_AT_ONCE_OF_OWNER = 2
"""Maximum numbers of runs that are made, or wait for it, at one time: by all readers, those of a tenant, and one."""
READ_S = 0.5
"""Processor time a second for what one token, or one tenant, alone reads, such as old records."""
READ_AT_ONCE_S = 2.0
"""Burst of the same, after a pause."""
CHUNK_S = 0.0005
"""Processor time of the loop for each chunk of a run, and for the run itself."""
PARTITION_S = 0.000_005
"""Processor time of the loop for each partition of a request, each time that it is looked at."""
TOPIC_S = 0.0001
"""The same for each look at a topic."""
PAY_S = 0.5
"""Longest time between two looks of a reader that waits for processor time: another one may have made the run."""
BOUND = "reads of Kafka's protocol"


class ProcessorTime:
    """Processor time for the requests of readers: shares of a token and of a tenant. Event loop's thread only.

    Args:
        refusals: counter of requests that had to wait.
        monotonic: seconds.
    """

    def __init__(self, refusals: Refusals, monotonic: Callable[[], float]) -> None:
        self._refusals = refusals
        self._rates: Rates[Owner] = Rates(READ_S, READ_AT_ONCE_S, monotonic)

    async def pay(self, charged: Charged, is_free: Callable[[], bool] = lambda: False) -> None:
        """Wait until a reader has time, or its request has become free: another reader has made what it needs."""
        is_noted = False
        while not is_free():
            wait_s = max(self._rates.debt_s(charged.owner), self._rates.debt_s(charged.tenant))
            if not wait_s:
                return
            if not is_noted:
                self._refusals.note(BOUND, charged.owner, "its consumers receive records later. Start fewer of them")
                is_noted = True
            await asyncio.sleep(min(wait_s, PAY_S))

    def charge(self, charged: Charged, seconds: float) -> None:
        """Charge time to a reader's token and tenant."""
        for owner in {charged.owner, charged.tenant}:
            self._rates.charge(owner, seconds)


class Place(NamedTuple):
    """Offset of a partition from which a run is read."""

    stream: StreamKey
    shard: int
    codec: int
    offset: int


class Run(NamedTuple):
    """Record batches of a partition, from an offset on."""

    first: int
    next_offset: int
    """Offset after the run, up to which its batches are. Offsets in between without a record were erased."""
    batches: list[RecordBatch]

    def since(self, offset: int, bytes_max: int) -> Iterator[bytes]:
        """Yield the batches from an offset on: at least one, and no more than some bytes otherwise."""
        for each in self.batches:
            if each.end > offset:
                yield each.data
                bytes_max -= len(each.data)
                if bytes_max <= 0:
                    return


class End(NamedTuple):
    """The end of a partition, as a reader knows it."""

    offset: int
    """The stream's next offset."""
    chunk: int
    """Number of the shard's last chunk."""


class OffsetGone(Exception):
    """The log no longer has the offset."""


class _Shared:
    def __init__(self, task: asyncio.Task[Run], at: float) -> None:
        self.task, self.at = task, at

    @property
    def run(self) -> Run | None:
        is_made = self.task.done() and not self.task.cancelled() and self.task.exception() is None
        return self.task.result() if is_made else None


class PartitionReads:
    """The runs of a process. Event loop's thread only.

    Args:
        time: processor time of the readers.
        monotonic: seconds.
    """

    def __init__(self, time: ProcessorTime, monotonic: Callable[[], float]) -> None:
        self.time, self._monotonic = time, monotonic
        self._runs: OrderedDict[Place, _Shared] = OrderedDict()
        self._of_partition: dict[Place, dict[int, Place]] = {}
        """Partition, as the place of its offset 0 -> first offset -> place of a run."""
        self._chunks: OrderedDict[Place, int] = OrderedDict()
        """Place -> number of the chunk that has it, or of an earlier one."""
        self._turns = asyncio.Semaphore(READS_AT_ONCE)
        self._turns_of: WeakValueDictionary[Owner, asyncio.Semaphore] = WeakValueDictionary()

    async def read(self, reader: RecordReader, place: Place, end: End, charged: Charged) -> Run:
        """Return a run that has an offset below the end; an empty one if the search for it met its bound.

        Args:
            charged: owners of the run's cost, if no other reader has made it.

        Raises:
            OffsetGone: the log no longer has the offset.
            StoreError, NotFound, CodecError, TableError, CollectedPast: as ``RecordReader.read``.
        """
        shared = self._found(place) or await self._begun(reader, place, end, charged)
        try:
            run = await asyncio.shield(shared.task)  # a reader that leaves takes nothing from the others
        except Exception:
            self._drop(place, shared)
            raise
        if run.next_offset == place.offset:
            self._drop(place, shared)  # the search met its bound, and the next one continues where it ended
        return run

    async def _begun(self, reader: RecordReader, place: Place, end: End, charged: Charged) -> _Shared:
        """Return a run that is being made, once the reader has its turn and time, or once another has begun it."""
        async with AsyncExitStack() as turns:
            await turns.enter_async_context(self._turn_of(charged.owner, READS_AT_ONCE_OF_OWNER))
            await self.time.pay(charged, lambda: self._found(place) is not None)
            if charged.tenant != charged.owner:
                await turns.enter_async_context(self._turn_of(charged.tenant, READS_AT_ONCE_OF_TENANT))
            if (shared := self._found(place)) is not None:
                return shared
            # The run holds the turns: its reader may leave before it is made, and come again.
            task = asyncio.create_task(self._made(reader, place, end, charged, turns.pop_all()), name="kafka-run")
            return self._hold(place, task)

    def _turn_of(self, owner: Owner, most: int) -> asyncio.Semaphore:
        return self._turns_of.setdefault(owner, asyncio.Semaphore(most))

    def _found(self, place: Place) -> _Shared | None:
        """Return the run that has a place, or is being made for it."""
        now = self._monotonic()
        for held in list(self._of_partition.get(place._replace(offset=0), {}).values()):
            shared = self._runs[held]
            if shared.task.done() and now - shared.at >= RUN_AGE_S:
                self._drop(held, shared)
            elif held == place or ((run := shared.run) is not None and run.first <= place.offset < run.next_offset):
                self._runs.move_to_end(held)
                return shared
        return None

    def _hold(self, place: Place, task: asyncio.Task[Run]) -> _Shared:
        shared = self._runs[place] = _Shared(task, self._monotonic())
        of_partition = self._of_partition.setdefault(place._replace(offset=0), {})
        of_partition[place.offset] = place
        if len(of_partition) > RUNS_OF_PARTITION:
            oldest = next(iter(of_partition.values()))
            self._drop(oldest, self._runs[oldest])
        return shared

    def _drop(self, place: Place, shared: _Shared) -> None:
        """Forget a run. Its readers still get it."""
        if self._runs.get(place) is not shared:
            return
        del self._runs[place]
        partition = place._replace(offset=0)
        of_partition = self._of_partition[partition]
        del of_partition[place.offset]
        if not of_partition:
            del self._of_partition[partition]

    def _let_go(self) -> None:
        """Keep no more bytes of runs, and no older ones, than readers may soon come to."""
        kept, now = 0, self._monotonic()
        for place, shared in reversed(list(self._runs.items())):
            if (run := shared.run) is not None:
                if kept > RUNS_BYTES_MAX or now - shared.at >= RUN_AGE_S:
                    self._drop(place, shared)
                kept += sum(len(each.data) for each in run.batches)

    async def _made(self, reader: RecordReader, place: Place, end: End, charged: Charged, turns: AsyncExitStack) -> Run:
        async with turns, self._turns:
            search = Search(bytes_max=RUN_SECTIONS_BYTES)
            try:
                writer = BatchWriter(place.offset, await reader.erased(place.stream), place.codec)
                try:
                    await self._write(reader.log, place, end, writer, search)
                except CollectedPast:
                    # The collector has passed the chunk where the search began. That says nothing about the offset.
                    place = place._replace(offset=writer.next_offset)
                    self._chunks.pop(place, None)
                    await self._write(reader.log, place, end, writer, search)
                await asyncio.to_thread(search.timed(writer.end))
                return Run(writer.first, writer.next_offset, writer.batches)
            finally:
                cost_s = search.worked_s + CHUNK_S * (1 + search.passed)
                self.time.charge(charged, cost_s)
                asyncio.get_running_loop().call_soon(self._let_go)

    async def _chunk(self, log: ShardLog, place: Place, end: End) -> int:
        """Return the number of the chunk with a place, or of an earlier one that the log has."""
        noted = self._chunks.get(place, 0)
        if noted and noted >= log.watermark and end.chunk - noted <= SEARCHED_MAX:
            return noted
        # A note of a stream that was quiet for long is too far back to search from.
        located = await log.locate(*place.stream, place.offset)
        return max(noted, located, log.watermark)  # as just read

    async def _write(self, log: ShardLog, place: Place, end: End, writer: BatchWriter, search: Search) -> None:
        stream = place.stream
        async for each in log.indexes(await self._chunk(log, place, end), only=frozenset([stream])):
            n = each.header.n
            section = next((found for found in each.footer.streams if (found.tenant, found.stream) == stream), None)
            if section is not None and section.base_offset > writer.next_offset:
                raise OffsetGone(f"the log has offset {section.base_offset} and later ones, not {writer.next_offset}")
            if section is not None and section.base_offset + section.count > writer.next_offset:
                search.took(section.length)
                search.chunks_left -= 1
                data = await log.section(n, section)
                await asyncio.to_thread(search.timed(writer.add), section, data, each.footer)
                self._note(place._replace(offset=writer.next_offset), n)
                is_over = writer.next_offset >= end.offset or search.is_spent or search.worked_s >= RUN_S
                if writer.is_full or is_over:
                    return
            elif not search.continues():
                self._note(place._replace(offset=writer.next_offset), n)
                return
        if log.watermark and writer.next_offset < end.offset:
            raise OffsetGone(f"the log has no record from offset {writer.next_offset} on")

    def _note(self, place: Place, n: int) -> None:
        self._chunks[place] = n
        self._chunks.move_to_end(place)
        if len(self._chunks) > PLACES_MAX:
            self._chunks.popitem(last=False)
