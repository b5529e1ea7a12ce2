"""The log read again for sessions that are behind: by page, off the loop, in bounded memory."""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Sequence
from struct import Struct, unpack_from

from weft.config.streams import State
from weft.edge_node.sessions.records import StateCounters
from weft.edge_node.subscriptions.message import LogRecord, Page, Turn, record_of
from weft.protocols import batch
from weft.protocols.batch import HeaderPairs, read_u32s
from weft.storage.segment_log import SegmentLog

# Batches of the log, decoded for picking records out of them.

_RECORD_BYTES = 16
"""Key index, payload offset and time of a record."""
_BATCH_BYTES = 1000
_SPARSE = 4
"""Records of a batch for each wanted one from which on these are cut out one by one."""
LONG_BYTES = 32 << 10
"""Mean length from which on records are cut out once for all readers."""
TOPICS_MAX = 128
"""Maximum number of distinct topics of a page: a check of one takes 3 to 10 µs (``SessionReader.wants``)."""
_TIME = Struct("<q")


class DecodedBatch:
    """One batch; payloads are cut out only for requested records."""

    __slots__ = (
        "_flags",
        "_headers",
        "_key_index",
        "_keys",
        "_long",
        "_offsets",
        "_payload",
        "_times",
        "base_seq",
        "bytes",
        "end_seq",
    )

    def __init__(self, data: bytes) -> None:
        """Decode a batch of the log.

        Raises:
            CodecError: it is damaged.
        """
        header = batch.decode_header(data)
        columns = batch.decode_columns(data, header)
        self.base_seq = header.base_seq
        self.end_seq = header.end_seq
        self._keys: Sequence[bytes] = columns.keys
        self._key_index: array[int] = read_u32s(columns.key_index)
        self._offsets: array[int] = read_u32s(columns.payload_offsets)
        self._payload = memoryview(columns.payload)
        self._headers = columns.headers
        self._flags = bytes(columns.flags)
        self._times = columns.times
        is_long = header.raw_length > LONG_BYTES * header.count
        self._long: dict[int, LogRecord] | None = {} if is_long else None
        """Offset -> the record that was cut out, if they are long: a thousand sessions may read the same."""
        self.bytes = header.raw_length * (1 + is_long) + _RECORD_BYTES * header.count + _BATCH_BYTES
        """Approximate memory of the batch."""

    def pick(
        self, seq: int, wants: Callable[[bytes], bool], records_max: int, bytes_max: int
    ) -> tuple[list[LogRecord], int]:
        """Return the wanted records from ``seq`` on, a number of the batch.

        Args:
            wants: called once for each distinct topic, for at most ``TOPICS_MAX``.

        Returns:
            The records, and the seq at which to continue.
        """
        found: list[LogRecord] = []
        base, last, index, keys = self.base_seq, self.end_seq, self._key_index, self._keys
        asked: dict[int, bool] = {}
        for at in range(seq - base, last - base):
            wanted = asked.get(key := index[at])
            if wanted is None:
                if len(asked) == TOPICS_MAX:
                    return found, base + at
                wanted = asked[key] = wants(keys[key])
            if not wanted:
                continue
            record = self.record(base + at)
            bytes_max -= len(record.payload)
            if found and (bytes_max < 0 or len(found) >= records_max):
                return found, record.seq
            found.append(record)
        return found, last

    def record(self, seq: int) -> LogRecord:
        """Return one record of the batch."""
        at = seq - self.base_seq
        found = None if self._long is None else self._long.get(at)
        if found is None:
            payload = bytes(self._payload[self._offsets[at] : self._offsets[at + 1]])
            headers: HeaderPairs = self._headers.get(at, ())
            flags = self._flags[at] if self._flags else 0
            found = LogRecord(seq, self._keys[self._key_index[at]], payload, flags, headers, self.time(seq))
            if self._long is not None:
                self._long[at] = found
        return found

    def records(self, seqs: Sequence[int]) -> list[LogRecord]:
        """Return some records of the batch."""
        if self._long is not None or seqs[-1] - seqs[0] >= _SPARSE * len(seqs):
            return list(map(self.record, seqs))
        base, offsets, keys, index, flags = self.base_seq, self._offsets, self._keys, self._key_index, self._flags
        # One copy for all of them: a slice of bytes costs half of one of a view.
        first, last = seqs[0] - base, seqs[-1] - base
        begin = offsets[first]
        payload, headers = bytes(self._payload[begin : offsets[last + 1]]), self._headers
        times = unpack_from(f"<{last + 1 - first}q", self._times, 8 * first)
        return [
            record_of(
                (
                    seq,
                    keys[index[at]],
                    payload[offsets[at] - begin : offsets[at + 1] - begin],
                    flags[at] if flags else 0,
                    headers.get(at, ()),
                    times[at - first],
                )
            )
            for seq in seqs
            for at in (seq - base,)
        ]

    def headers(self, seq: int) -> HeaderPairs:
        """Return the headers of a record."""
        return self._headers.get(seq - self.base_seq, ())

    def payload_bytes(self, seq: int) -> int:
        """Return the length of a record's payload."""
        at = seq - self.base_seq
        return self._offsets[at + 1] - self._offsets[at]

    def time(self, seq: int) -> int:
        """Return the time of a record, ns since 1970."""
        found: int = _TIME.unpack_from(self._times, 8 * (seq - self.base_seq))[0]
        return found


READ_BYTES = 256 << 10
"""Bytes read from the log at a time: many small batches, or one."""
DECODE_BYTES_MAX = 32 << 10
"""Length above which a batch is decoded in a thread."""


class Backlog:
    """Reader of durable records for sessions that are behind. Event loop's thread only.

    Decoded batches stay for a while, so that many sessions at the same place, or one that takes its pages slowly, cost
    one read. Two sessions that need the same batch at the same time share the read.
    """

    def __init__(self, log: SegmentLog, settings: State, counters: StateCounters) -> None:
        self._log = log
        self._pages = log.page_reader(settings.backlog_reads)
        self._settings = settings
        self._counters = counters
        self._reads = asyncio.Semaphore(settings.backlog_reads)
        self._loading: dict[tuple[int, int], asyncio.Task[list[DecodedBatch]]] = {}
        self._batches: OrderedDict[tuple[int, int], DecodedBatch] = OrderedDict()
        """Decoded batches by (stream, base seq), the one used longest ago first."""
        self._bases: dict[int, list[int]] = {}
        """Stream -> the base seqs of its batches in memory, ascending."""

    async def read(self, stream: int, seq: int, wants: Callable[[bytes], bool], turn: Turn) -> Page:
        """Return a page of the wanted records from ``seq`` on. ``next_seq == seq`` only at the durable end.

        A page may be empty although more follows: no record of a whole batch was wanted.

        Args:
            wants: called once for each distinct topic of the page, on the loop's thread.
            turn: awaited after a page was loaded, as many sessions may have waited for it.

        Raises:
            OSError, LogFailed: the log cannot be read.
        """
        self._counters.backlog_pages += 1
        end = self._log.durable_end(stream)
        if seq >= end:
            return Page([], seq, 0)
        found = self._cached(stream, seq)
        if found is None:
            found = await self._load(stream, seq)
            await turn()
        if found is None:  # there are no records from here to the end
            self._counters.backlog_lost += end - seq
            return Page([], end, end - seq)
        lost = max(0, found.base_seq - seq)
        self._counters.backlog_lost += lost
        settings = self._settings
        records, next_seq = found.pick(
            max(seq, found.base_seq), wants, settings.backlog_page_records, settings.backlog_page_bytes
        )
        return Page(records, next_seq, lost)

    async def fetch(self, stream: int, seqs: Sequence[int]) -> dict[int, LogRecord]:
        """Return single records by seq, without deleted ones and those that are not durable.

        Raises:
            OSError, LogFailed: the log cannot be read.
        """
        found: dict[int, LogRecord] = {}
        end = self._log.durable_end(stream)
        wanted, at = sorted(seqs), 0
        last = bisect_left(wanted, end)
        while at < last:
            seq = wanted[at]
            batch = self._cached(stream, seq) or await self._load(stream, seq)
            if batch is None or not batch.base_seq <= seq < batch.end_seq:
                at += 1
                continue
            until = bisect_left(wanted, batch.end_seq, at, last)
            for record in batch.records(wanted[at:until]):
                found[record.seq] = record
            at = until
        return found

    # --- batches

    def _cached(self, stream: int, seq: int) -> DecodedBatch | None:
        bases = self._bases.get(stream)
        if not bases:
            return None
        place = bisect_right(bases, seq) - 1
        if place < 0:
            return None
        key = (stream, bases[place])
        found = self._batches[key]
        if seq >= found.end_seq:
            return None
        self._batches.move_to_end(key)
        return found

    async def _load(self, stream: int, seq: int) -> DecodedBatch | None:
        """Return the batch that holds ``seq`` or, if it is gone, the next one; None when nothing follows."""
        key = (stream, seq)
        task = self._loading.get(key)
        if task is None:
            task = self._loading[key] = asyncio.get_running_loop().create_task(self._fill(stream, seq))
            task.add_done_callback(lambda _: self._loading.pop(key, None))
        loaded = await asyncio.shield(task)  # a cancelled reader must not cancel the others' read
        return next((each for each in loaded if each.end_seq > seq), None)

    async def _fill(self, stream: int, seq: int) -> list[DecodedBatch]:
        self._counters.backlog_waits += self._reads.locked()
        async with self._reads:
            page = await self._pages.read(stream, seq, READ_BYTES)
            self._counters.backlog_disk_reads += page.from_disk
            if sum(map(len, page.batches)) > DECODE_BYTES_MAX:
                loaded = await asyncio.to_thread(_decode, page.batches)
            else:
                loaded = _decode(page.batches)
        for each in loaded:
            self._remember(stream, each)
        return loaded

    def _remember(self, stream: int, found: DecodedBatch) -> None:
        key = (stream, found.base_seq)
        if key in self._batches:
            return
        self._batches[key] = found
        insort(self._bases.setdefault(stream, []), found.base_seq)
        self._counters.backlog_buffer_bytes += found.bytes
        while self._counters.backlog_buffer_bytes > self._settings.backlog_buffer_bytes:
            (other, base), dropped = self._batches.popitem(last=False)
            self._bases[other].remove(base)
            self._counters.backlog_buffer_bytes -= dropped.bytes
            self._counters.backlog_evicted += 1


def _decode(data: list[bytes]) -> list[DecodedBatch]:
    return [DecodedBatch(each) for each in data]
