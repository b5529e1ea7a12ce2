"""Catching up: messages that a session missed, read from the log until it is level with live messages.

Three phases. *Reading*: messages come from the log alone; live ones are not queued, because the log has them.
*Joining*: the reader is so close that only records not yet durable are missing; from here on live messages wait in the
queue, and the reader continues up to the first of them. *Live*: the queue is sent and this object is discarded. A queue
that overflows while joining is discarded, and reading resumes. So nothing is lost, doubled or out of order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from weft.bounds import Owner, RoundRobin
from weft.edge_node.subscriptions.message import NOWHERE, LogRecord, Message, Positions, ReadPage
from weft.storage.segment_log import LogFailed, SegmentLog

# Turns of readers of the log for subscribers that fell behind: one message may leave thousands of them behind, and
# one commit may have records for all of them.

# One sum for all readers, not a task for each turn: what the loop does between two looks at its sockets is the sum of
# all tasks that are ready.
READERS_MAX = 8
"""Number of readers that run before the event loop polls its sockets again: each assembles a page, or sends some of it,
which takes at most a millisecond or two."""


class ReadTurns:
    """A few readers at a time, fairly by owner. Belongs to the event loop's thread."""

    def __init__(self, log: SegmentLog) -> None:
        """Start without readers."""
        self._log = log
        self.round_robin = RoundRobin(lambda: None, pause_s=0, turns_max=READERS_MAX)
        self._waiting: list[tuple[Owner | None, asyncio.Future[None]]] = []
        """Turns that begin after the next commit."""

    async def after_commit(self, owner: Owner | None) -> None:
        """Return at the owner's turn after a commit, perhaps of records that were appended before.

        Raises:
            LogFailed: there will be no further commit.
        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((owner, turn))
        if len(self._waiting) == 1:
            self._log.on_durable(self._committed)
        await turn

    def _committed(self, error: BaseException | None) -> None:
        waiting, self._waiting = self._waiting, []
        for owner, turn in waiting:
            self.round_robin.wait(owner, partial(_begin, turn, error))


def _begin(turn: asyncio.Future[None], error: BaseException | None) -> None:
    if turn.done():
        return  # the waiting task was cancelled
    if error is None:
        turn.set_result(None)
    else:
        turn.set_exception(error)


log = logging.getLogger(__name__)

SENT_MAX = 32
"""Maximum number of messages sent to one reader in a turn, of 30 to 50 µs each."""
RETRY_S = 1.0
"""Wait after a failed read of the disk."""


class Reader(Protocol):
    """A session or a shared subscription that catches up."""

    @property
    def name(self) -> str:
        """Return the reader's name for log lines."""
        ...

    @property
    def owner(self) -> Owner | None:
        """Return the owner in whose turns the log is read; None for the node."""
        ...

    @property
    def has_room(self) -> bool:
        """Return whether one more message can be sent at once."""
        ...

    def wants(self, topic: bytes) -> bool:
        """Return whether the reader gets messages of a topic."""
        ...

    def read(self, stream: int, record: LogRecord) -> None:
        """Send a message that was read; there is room."""

    def lost(self, count: int) -> None:
        """Note that the log no longer had some records, perhaps wanted ones."""

    def joining(self) -> None:
        """Keep live messages in the queue from now on: the messages before them are about to be read."""

    def live(self) -> None:
        """Send the queue, and then live messages: the reader is level."""


Begin = Callable[[], tuple[Reader, Positions]]
"""Returns a reader, and stream -> the first seq that it lacks, for every stream whose messages it may get."""


class CatchUp:
    """Progress of one reader through the log. Belongs to the event loop's thread.

    One message can leave thousands of readers behind in one step. So that step only registers them: the start of each
    is determined in its turn, or at the first access.
    """

    __slots__ = (
        "_begin",
        "_covered",
        "_goal",
        "_log",
        "_owner",
        "_positions",
        "_read_page",
        "_reader",
        "_room",
        "_runs",
        "_task",
        "_turns",
        "_waits",
    )

    def __init__(
        self, owner: Owner | None, begin: Begin, read_page: ReadPage, log: SegmentLog, turns: ReadTurns
    ) -> None:
        """Wait for ``start``.

        Args:
            owner: the reader's.
            begin: called once.
        """
        self._owner = owner
        self._begin: Begin | None = begin
        self._covered: Positions | None = None
        """Positions of further messages to read once it has begun."""
        self._goal: Positions | None = None
        """Positions at which the queued live messages begin; None while live messages are not queued."""
        self._read_page = read_page
        self._log = log
        self._turns = turns
        self._runs = False
        self._waits = False
        """True while its turn to begin is still to come."""
        self._task: asyncio.Task[None] | None = None

    @property
    def reader(self) -> Reader:
        """Return the reader."""
        self.begin()
        return self._reader

    @property
    def positions(self) -> Positions:
        """Return for each stream the first seq that the reader lacks."""
        self.begin()
        return self._positions

    def begin(self) -> None:
        """Determine the reader's start now, if it is unknown; the waiting messages then leave memory."""
        if self._begin is not None:
            (self._reader, self._positions), self._begin = self._begin(), None
            self._room = asyncio.Event()
            self.add(self._covered or {})

    @property
    def level(self) -> bool:
        """Return whether the reader has read every stream to its end."""
        return all(self._log.next_seq(stream) <= seq for stream, seq in self.positions.items())

    def begin_soon(self) -> None:
        """Begin at the reader's turn."""
        if not self._waits:
            self._waits = True
            self._turns.round_robin.wait(self._owner, self._resume)

    def start(self) -> None:
        """Begin or resume reading at the reader's turn."""
        self._runs = True
        if self._task is None:
            self.begin_soon()

    def _resume(self) -> None:
        self._waits = False
        self.begin()
        if self._runs and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """Stop reading for now."""
        self._runs = False
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        self.fall_back()

    def add(self, ends: Positions) -> None:
        """Read these streams as well, from their present ends on: devices publish to them from now on."""
        positions = self.positions
        for stream, end in ends.items():
            if stream not in positions:
                positions[stream] = end
                if self._goal is not None:
                    self._goal[stream] = end

    def cover(self, messages: Iterable[Message]) -> None:
        """Read these published messages, too, if the log has them: not every reader needs every stream. Before the
        reader has begun, the first message of each stream counts, as they come in order."""
        for message in messages:
            if message.stream == NOWHERE:
                continue
            if self._begin is not None:
                self._covered = self._covered or {}
                self._covered.setdefault(message.stream, message.seq)
            elif message.stream not in self._positions:
                self.add({message.stream: message.seq})

    def room(self) -> None:
        """Check again whether the reader has room."""
        if self._begin is None:
            self._room.set()

    def fall_back(self) -> None:
        """Return to reading: the queue had no room for live messages, which are read later."""
        self._goal = None

    async def _run(self) -> None:
        while True:
            try:
                if await self._pass():
                    self._runs, self._task = False, None
                    self._reader.live()
                    return
            except (OSError, LogFailed) as error:
                log.warning("could not read what %s missed: %s; trying again", self._reader.name, error)
                await asyncio.sleep(RETRY_S)

    async def _pass(self) -> bool:
        """Read a piece of every stream; return whether the goal is reached."""
        positions, moved = self._positions, False
        for stream in list(positions):
            moved |= await self._read(stream)
        if self._goal is not None:
            if all(positions[stream] >= seq for stream, seq in self._goal.items()):
                return True
        elif not moved:
            # Only records that are not durable yet can be missing. Within this call nothing is published, so the goal
            # is the position of the first message that the reader's queue gets.
            self._goal = {stream: self._log.next_seq(stream) for stream in positions}
            self._reader.joining()
            if self.level:
                return True
        if not moved:
            await self._turns.after_commit(self._owner)
        return False

    async def _read(self, stream: int) -> bool:
        positions, reader = self._positions, self._reader
        seq = positions[stream]
        if seq >= self._end(stream):
            return False
        turn = partial(self._turns.round_robin.turn, self._owner)
        await turn()
        page = await self._read_page(stream, seq, reader.wants, turn)
        if page.lost:
            reader.lost(page.lost)
        for number, record in enumerate(page.records, 1):
            if not number % SENT_MAX:
                await turn()
            while not reader.has_room:
                self._room.clear()
                await self._room.wait()
            if self._goal is not None and record.seq >= self._goal.get(stream, record.seq + 1):
                positions[stream] = record.seq  # the queue has it
                return True
            reader.read(stream, record)
            positions[stream] = record.seq + 1
        positions[stream] = max(positions[stream], page.next_seq)
        return page.next_seq > seq

    def _end(self, stream: int) -> int:
        end = self._log.durable_end(stream)
        return end if self._goal is None else self._goal.get(stream, end)
