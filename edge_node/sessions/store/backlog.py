"""The log read again for sessions that are behind: by page, off the loop, in bounded memory."""

from __future__ import annotations

import asyncio
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Sequence

from weft.edge_node.sessions.store.batches import DecodedBatch
from weft.edge_node.sessions.store.settings import StateCounters, StateSettings
from weft.edge_node.subscriptions.log_records import LogRecord, Page, Turn
from weft.storage.segment_log import SegmentLog

READ_BYTES = 256 << 10
"""Bytes read from the log at a time: many small batches, or one."""
DECODE_BYTES_MAX = 32 << 10
"""Length above which a batch is decoded in a thread."""


class Backlog:
    """Reader of durable records for sessions that are behind. Event loop's thread only.

    Decoded batches stay for a while, so that many sessions at the same place, or one that takes its pages slowly, cost
    one read. Two sessions that need the same batch at the same time share the read.
    """

    def __init__(self, log: SegmentLog, settings: StateSettings, counters: StateCounters) -> None:
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
        )  # fmt: skip
        return Page(records, next_seq, lost)

    async def fetch(self, stream: int, seqs: Sequence[int]) -> dict[int, LogRecord]:
        """Return single records by seq, without deleted ones and those that are not durable.

        Raises:
            OSError, LogFailed: the log cannot be read.
        """
        found: dict[int, LogRecord] = {}
        end, batch = self._log.durable_end(stream), None
        for seq in sorted(seqs):
            if seq >= end:
                break
            if batch is None or not batch.base_seq <= seq < batch.end_seq:
                batch = self._cached(stream, seq) or await self._load(stream, seq)
                if batch is None or not batch.base_seq <= seq < batch.end_seq:
                    continue
            found[seq] = batch.record(seq)
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
