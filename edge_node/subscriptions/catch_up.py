"""Catching up: messages that a session missed, read from the log until it is level with what is published now.

Three phases. *Reading*: messages come from the log alone; live ones are not kept, they will be read. *Joining*: the
reader is so close that only records not yet durable are missing; from here on live messages wait in the queue, and the
reader goes on to where the first of them is. *Live*: the queue is sent and this object is no more. A queue that
overflows while joining is thrown away, and reading goes on. So nothing is lost, doubled or out of order.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from weft.edge_node.subscriptions.log_records import LogRecord, ReadPage
from weft.storage.segment_log import LogFailed, SegmentLog

log = logging.getLogger(__name__)

RETRY_S = 1.0
"""After a read that the disk refused."""


class Reader(Protocol):
    """Who catches up: a session, or the group of a shared subscription."""

    @property
    def name(self) -> str:
        """For log lines."""
        ...

    @property
    def has_room(self) -> bool:
        """Whether one more message can be sent at once."""
        ...

    def wants(self, topic: bytes) -> bool:
        """Whether messages of a topic are to be read."""
        ...

    def read(self, stream: int, record: LogRecord) -> None:
        """Send a message that was read; there is room."""

    def lost(self, count: int) -> None:
        """The log no longer had some records, perhaps wanted ones."""

    def live(self) -> None:
        """The reader is level: live messages are sent from now on."""


class CatchUp:
    """Reads for one session. Belongs to the event loop's thread."""

    __slots__ = ("_goal", "_log", "_read_page", "_room", "_task", "joining", "positions", "reader")

    def __init__(self, reader: Reader, positions: dict[int, int], read_page: ReadPage, log: SegmentLog) -> None:
        """Nothing is read before ``start``.

        Args:
            positions: stream -> the first seq that the session lacks, for every stream whose messages it may want.
        """
        self.positions = positions
        self.joining = False
        """Whether live messages are to be queued."""
        self._goal: dict[int, int] = {}
        self.reader = reader
        self._read_page = read_page
        self._log = log
        self._task: asyncio.Task[None] | None = None
        self._room: asyncio.Event = asyncio.Event()

    @property
    def level(self) -> bool:
        """Whether nothing is missing."""
        return all(self._log.next_seq(stream) <= seq for stream, seq in self.positions.items())

    def start(self) -> None:
        """Begin, or go on, to read."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """Read no more for now."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        self.fall_back()

    def room(self) -> None:
        """There may be room again."""
        self._room.set()

    def fall_back(self) -> None:
        """Live messages do not fit: they are read later."""
        self.joining, self._goal = False, {}

    async def _run(self) -> None:
        while True:
            try:
                if await self._pass():
                    self._task = None
                    self.reader.live()
                    return
            except (OSError, LogFailed) as error:
                log.warning("could not read what %s missed: %s; trying again", self.reader.name, error)
                await asyncio.sleep(RETRY_S)

    async def _pass(self) -> bool:
        """Read a piece of every stream; whether the goal is reached."""
        moved = False
        for stream in list(self.positions):
            moved |= await self._read(stream)
        if self.joining:
            if all(self.positions[stream] >= seq for stream, seq in self._goal.items()):
                return True
        elif not moved:
            # Only what is not durable yet can be missing.
            self._goal = {stream: self._log.next_seq(stream) for stream in self.positions}
            self.joining = True
            if self.level:
                return True
        if not moved:
            await self._log.durable()
        return False

    async def _read(self, stream: int) -> bool:
        seq = self.positions[stream]
        end = self._goal.get(stream, self._log.durable_end(stream)) if self.joining else self._log.durable_end(stream)
        if seq >= end:
            return False
        page = await self._read_page(stream, seq, self.reader.wants)
        if page.lost:
            self.reader.lost(page.lost)
        for record in page.records:
            while not self.reader.has_room:
                self._room.clear()
                await self._room.wait()
            if self.joining and record.seq >= self._goal.get(stream, record.seq + 1):
                self.positions[stream] = record.seq  # queued live
                return True
            self.reader.read(stream, record)
            self.positions[stream] = record.seq + 1
        self.positions[stream] = max(self.positions[stream], page.next_seq)
        return page.next_seq > seq
