"""Catching up: messages that a session missed, read from the log until it is level with what is published now.

Three phases. *Reading*: messages come from the log alone; live ones are not kept, they will be read. *Joining*: the
reader is so close that only records not yet durable are missing; from here on live messages wait in the queue, and the
reader goes on to where the first of them is. *Live*: the queue is sent and this object is no more. A queue that
overflows while joining is thrown away, and reading goes on. So nothing is lost, doubled or out of order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Protocol

from weft.edge_node.subscriptions.log_records import LogRecord, ReadPage
from weft.edge_node.subscriptions.message import NOWHERE, Message
from weft.edge_node.subscriptions.positions import Positions
from weft.storage.segment_log import LogFailed, SegmentLog

log = logging.getLogger(__name__)

RETRY_S = 1.0
"""After a read that the disk refused."""


class Reader(Protocol):
    """A session or a shared subscription that catches up."""

    @property
    def name(self) -> str:
        """Return the reader's name for log lines."""
        ...

    @property
    def has_room(self) -> bool:
        """Return whether one more message can be sent at once."""
        ...

    def wants(self, topic: bytes) -> bool:
        """Return whether messages of a topic are to be read."""
        ...

    def read(self, stream: int, record: LogRecord) -> None:
        """Send a message that was read; there is room."""

    def lost(self, count: int) -> None:
        """Note that the log no longer had some records, perhaps wanted ones."""

    def joining(self) -> None:
        """Keep live messages in the queue from now on: what is before them is about to be read."""

    def live(self) -> None:
        """Send the queue, and then live messages: the reader is level."""


class CatchUp:
    """The way of one reader through the log. Belongs to the event loop's thread."""

    __slots__ = ("_goal", "_log", "_read_page", "_room", "_task", "positions", "reader")

    def __init__(self, reader: Reader, positions: Positions, read_page: ReadPage, log: SegmentLog) -> None:
        """Wait for ``start``.

        Args:
            positions: stream -> the first seq that the reader lacks, for every stream whose messages it may want.
        """
        self.positions = positions
        self.reader = reader
        self._goal: Positions | None = None
        """Positions at which the queued live messages begin; None while live messages are not kept."""
        self._read_page = read_page
        self._log = log
        self._task: asyncio.Task[None] | None = None
        self._room: asyncio.Event = asyncio.Event()

    @property
    def level(self) -> bool:
        """Return whether the reader has read every stream to its end."""
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

    def add(self, ends: Positions) -> None:
        """Read these streams as well, from their present ends on: devices publish to them from now on."""
        for stream, end in ends.items():
            if stream not in self.positions:
                self.positions[stream] = end
                if self._goal is not None:
                    self._goal[stream] = end

    def cover(self, messages: Iterable[Message]) -> None:
        """Read these published messages, too, if the log has them: not every reader needs every stream."""
        for message in messages:
            if message.stream not in self.positions and message.stream != NOWHERE:
                self.add({message.stream: message.seq})

    def room(self) -> None:
        """Look again whether the reader has room."""
        self._room.set()

    def fall_back(self) -> None:
        """Go back to reading: the queue did not hold the live messages, which are read later."""
        self._goal = None

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
        """Read a piece of every stream; return whether the goal is reached."""
        moved = False
        for stream in list(self.positions):
            moved |= await self._read(stream)
        if self._goal is not None:
            if all(self.positions[stream] >= seq for stream, seq in self._goal.items()):
                return True
        elif not moved:
            # Only what is not durable yet can be missing. Within this call nothing is published, so the goal is where
            # the first message is that the reader's queue gets.
            self._goal = {stream: self._log.next_seq(stream) for stream in self.positions}
            self.reader.joining()
            if self.level:
                return True
        if not moved:
            await self._log.durable()
        return False

    async def _read(self, stream: int) -> bool:
        seq = self.positions[stream]
        end = self._log.durable_end(stream)
        if self._goal is not None:
            end = self._goal.get(stream, end)
        if seq >= end:
            return False
        page = await self._read_page(stream, seq, self.reader.wants)
        if page.lost:
            self.reader.lost(page.lost)
        for record in page.records:
            while not self.reader.has_room:
                self._room.clear()
                await self._room.wait()
            if self._goal is not None and record.seq >= self._goal.get(stream, record.seq + 1):
                self.positions[stream] = record.seq  # the queue has it
                return True
            self.reader.read(stream, record)
            self.positions[stream] = record.seq + 1
        self.positions[stream] = max(self.positions[stream], page.next_seq)
        return page.next_seq > seq
