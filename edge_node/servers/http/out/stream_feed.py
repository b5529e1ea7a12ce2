"""Durable records of one stream, in the order of the log, each with its number.

A slow client costs no memory: its position in the log waits, not messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import msgspec

from weft.bounds import Rounds
from weft.edge_node.servers.http.counters import HttpCounters
from weft.edge_node.servers.http.exchange import Way
from weft.edge_node.servers.http.out.events import EventObjects
from weft.edge_node.servers.http.out.feed import Feed
from weft.protocols.batch import Record, records
from weft.protocols.message_headers import EXPIRES
from weft.protocols.topics import matches
from weft.storage.segment_log import LogError
from weft.storage.segment_log.read.pages import LogPage, PageReader
from weft.storage.segment_log.state.gaps import reason_name

PAGE_BYTES = 64 << 10
SLICE = 64
"""Number of records handled before others have their turn."""
IDLE_S = 15.0
"""Silence after which the client gets a heartbeat."""

log = logging.getLogger(__name__)


class StreamFeed(Feed):
    """A feed of one stream.

    Args:
        start: number of the first record.
        topic_filter: filter of keys; None for all.
    """

    def __init__(  # noqa: PLR0917
        self,
        base: tuple[Any, ...],
        pages: PageReader,
        rounds: Rounds,
        stream: int,
        lane: str,
        start: int,
        topic_filter: str | None,
        objects: EventObjects,
        counters: HttpCounters,
        wall_clock: Callable[[], int],
    ) -> None:
        super().__init__(*base)
        self._pages = pages
        self._rounds = rounds
        self._stream = stream
        self._lane = lane
        self._seq = start
        self._filter = topic_filter
        self._objects = objects
        self._counters = counters
        self._wall_clock = wall_clock
        self._room = asyncio.Event()
        self._room.set()
        self._task: asyncio.Task[None] | None = None
        self._wanted: dict[bytes, bool] = {}

    def begin(self, way: Way) -> None:
        """Send the head and the client's position, then records."""
        super().begin(way)
        where = msgspec.json.encode({"lane": self._lane, "next_seq": self._seq})
        way.send_all(self._wrapping.event("lane", where))
        self._task = asyncio.get_running_loop().create_task(self._run())

    def pause(self) -> None:
        """Stop reading."""
        super().pause()
        self._room.clear()

    def resume(self) -> None:
        """Resume reading."""
        super().resume()
        self._room.set()

    def recheck(self) -> None:
        """Check again what the client may read."""
        self._wanted.clear()
        super().recheck()

    def stop(self) -> None:
        """End."""
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        super().stop()

    # --- inside

    async def _run(self) -> None:
        try:
            while not self.is_over:
                await self._room.wait()  # before a page is held in memory
                page = await self._pages.read(self._stream, self._seq, PAGE_BYTES)
                if page.next_seq == self._seq:
                    await self._wait_for_more()
                    continue
                await self._send(page)
                self._seq = page.next_seq
        except (OSError, LogError) as error:
            log.warning("a reader of %s cannot go on: %s", self._lane, error)
            self.stop()

    async def _wait_for_more(self) -> None:
        try:
            async with asyncio.timeout(IDLE_S):
                await self._pages.more(self._stream, self._seq)
        except TimeoutError:
            if not self.is_paused:
                self._write([self._wrapping.idle()])

    async def _send(self, page: LogPage) -> None:
        for gone in page.gone:
            reason = "released" if gone.reason is None else reason_name(gone.reason)
            gap = msgspec.json.encode({"first_seq": gone.first, "count": gone.end - gone.first, "reason": reason})
            self._write(self._wrapping.event("gap", gap, gone.end - 1))
        for data in page.batches:
            left = iter(records(data))
            while await self._slice(left):
                await self._turn()

    async def _slice(self, left: Iterable[Record]) -> bool:
        """Send some records; return whether there may be more."""
        await self._room.wait()
        now, found, count, sent = self._wall_clock(), list[bytes](), 0, 0
        for record in left:
            count += 1
            if record.seq >= self._seq and self._wants(record, now):
                found += self._wrapping.event("record", self._objects.of_record(self._stream, record), record.seq)
                sent += 1
            if count == SLICE:
                break
        if found:
            self._counters.http_events += sent
            self._write(found)
        return count == SLICE

    async def _turn(self) -> None:
        """Wait until others have had their turn."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._rounds.wait(self.owner, partial(_settle, done))
        await done

    def _wants(self, record: Record, now: int) -> bool:
        key = record.key
        wanted = self._wanted.get(key)
        if wanted is None:
            if len(self._wanted) >= 10_000:
                self._wanted.clear()
            wanted = (self._filter is None or matches(self._filter, key.decode())) and self.may_read(key)
            self._wanted[key] = wanted
        if not wanted or not record.headers:
            return wanted
        return not any(name == EXPIRES and type(value) is int and value <= now for name, value in record.headers)


def _settle(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
