"""Reading a log page by page on an event loop: for sessions that are behind, links, functions and queues."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple

from weft.protocols.batch import decode_header
from weft.protocols.ranges import RangeSet
from weft.storage.segment_log.errors import LogFailed
from weft.storage.segment_log.read.answers import Gone, LogAnswers

READS_MAX = 4
"""Default number of reads from the disk at one time, each in a thread of its own."""

Listen = Callable[[Callable[[], None]], Callable[[], None]]
"""``SegmentLog.listen``."""


class LogPage(NamedTuple):
    """A piece of a stream."""

    batches: list[bytes]
    """Encoded batches, ascending; the first may begin before the requested number."""
    next_seq: int
    """Number at which the next page begins. It equals the requested number only at the durable end."""
    gone: list[Gone]
    """Numbers between the requested one and ``next_seq`` that no batch holds."""
    from_disk: bool = False
    """True if memory did not reach back so far."""


class PageReader:
    """Reader of a log's durable records. For one event loop, that of the log's owner.

    Batches in memory are returned at once; others are read in threads. A caller may be cancelled at any time: a started
    read ends by itself, and counts against the bound until then.
    """

    def __init__(self, log: LogAnswers, listen: Listen, reads_max: int) -> None:
        """Read the pages of ``log``; callers use ``SegmentLog.page_reader``."""
        self._log = log
        self._listen = listen
        self._reads = asyncio.Semaphore(reads_max)
        self._waiting: dict[int, dict[asyncio.Future[None], int]] = {}
        """Stream -> future of a waiting reader -> the awaited seq."""
        self._unlisten: Callable[[], None] | None = None

    async def read(self, stream: int, seq: int, bytes_max: int, records_max: int | None = None) -> LogPage:
        """Read a page: whole batches from ``seq`` on, at least one if any is held, else the missing numbers.

        Args:
            bytes_max: maximum bytes of the encoded batches; a single one may be longer.
            records_max: likewise.

        Raises:
            OSError: a file cannot be opened.
            LogFailed: the disk gives different bytes at each look.
        """
        # Taken before the read: records that become durable meanwhile belong to the next page, and must not count as
        # gone.
        end = self._log.durable_end(stream)
        if seq >= end:
            return LogPage([], seq, [])
        batches = self._log.read_tail(stream, seq, bytes_max)
        from_disk = batches is None
        if batches is None:
            batches = await self._in_thread(stream, seq, bytes_max)
        return self._page(stream, seq, end, batches, records_max, from_disk=from_disk)

    async def more(self, stream: int, seq: int) -> None:
        """Return when the record ``seq`` and everything before it is durable.

        Raises:
            LogFailed: the log accepts no more records, so ``seq`` will never be durable.
        """
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(stream, {})
        waiting[waiter] = seq
        if self._unlisten is None:
            self._unlisten = self._listen(self._look)
        try:
            # After the listener is registered: a commit just before did not call it.
            self._wake({waiter: seq}, self._log.durable_end(stream))
            await waiter
        finally:
            del waiting[waiter]
            if not waiting:
                del self._waiting[stream]
            if not self._waiting:
                self._unlisten()
                self._unlisten = None

    async def _in_thread(self, stream: int, seq: int, bytes_max: int) -> list[bytes]:
        await self._reads.acquire()
        try:
            reading = asyncio.get_running_loop().run_in_executor(None, self._log.read, stream, seq, bytes_max)
        except BaseException:
            self._reads.release()
            raise
        reading.add_done_callback(self._has_read)
        # A thread cannot be cancelled: if a cancelled caller released the bound, threads would pile up.
        return await asyncio.shield(reading)

    def _has_read(self, reading: asyncio.Future[list[bytes]]) -> None:
        self._reads.release()
        if not reading.cancelled():
            reading.exception()  # no error to report: the caller may be cancelled

    def _page(
        self, stream: int, seq: int, end: int, batches: list[bytes], records_max: int | None, *, from_disk: bool
    ) -> LogPage:
        holes = RangeSet()
        kept: list[bytes] = []
        at, count = seq, 0
        for data in batches:
            header = decode_header(data)
            count += header.count
            if kept and records_max is not None and count > records_max:
                break
            if header.base_seq > at:
                holes.add(at, header.base_seq)
            kept.append(data)
            at = header.end_seq
        if not kept:
            # Nothing is held up to the durable end from before the read.
            holes.add(seq, end)
            at = end
        return LogPage(kept, at, self._log.why_gone(stream, holes) if holes else [], from_disk)

    def _look(self) -> None:
        for stream, waiting in self._waiting.items():
            self._wake(waiting, self._log.durable_end(stream))

    def _wake(self, waiting: Mapping[asyncio.Future[None], int], end: int) -> None:
        for waiter, seq in waiting.items():
            if waiter.done():
                continue
            if end > seq:
                waiter.set_result(None)
            elif self._log.failed is not None:
                waiter.set_exception(LogFailed(str(self._log.failed)))
