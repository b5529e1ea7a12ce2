"""The way back into the log for sessions and shared subscriptions that fell behind."""

from __future__ import annotations

import asyncio

from weft.edge_node.counters import Counters
from weft.edge_node.ingest.ingest import Ingest
from weft.edge_node.sessions.records import SessionRecord, SharedRecord
from weft.edge_node.sessions.redelivery import Redelivery
from weft.edge_node.sessions.session_reader import SessionReader
from weft.edge_node.sessions.store.backlog import Backlog
from weft.edge_node.sessions.stored_messages import StoredMessages
from weft.edge_node.sessions.window.client_window import ClientWindow
from weft.edge_node.subscriptions.catch_up import CatchUp, Reader
from weft.edge_node.subscriptions.filter_starts import FilterStarts
from weft.edge_node.subscriptions.log_records import LogRecord, ReadPage
from weft.edge_node.subscriptions.message import Message
from weft.edge_node.subscriptions.outbox import Outbox
from weft.edge_node.subscriptions.positions import Positions, before, lowered
from weft.edge_node.subscriptions.shared_subscription import SharedSubscription
from weft.edge_node.subscriptions.subscriber import ClientSubscription
from weft.edge_node.subscriptions.subscriptions import Subscriptions
from weft.storage.segment_log import SegmentLog


class LogReaders:
    """Makes the readers, and says how far they are. Belongs to the event loop's thread."""

    def __init__(  # noqa: PLR0917
        self,
        segment_log: SegmentLog,
        ingest: Ingest,
        subscriptions: Subscriptions,
        messages: StoredMessages,
        backlog: Backlog,
        starts: FilterStarts,
        outbox: Outbox,
        counters: Counters,
    ) -> None:
        """Join the log and what is read from it."""
        self._log = segment_log
        self._ingest = ingest
        self._subscriptions = subscriptions
        self.messages = messages
        """Makes messages of records."""
        self._backlog = backlog
        self._starts = starts
        self._outbox = outbox
        self._counters = counters
        self._redelivery = Redelivery(subscriptions, messages, backlog, outbox)
        self._fetching: set[asyncio.Task[None]] = set()
        """Keeps tasks alive until they are done; each belongs to one connection."""

    # --- falling behind

    def fall_behind(self, window: ClientWindow, first: Message | None) -> None:
        """Have a client's messages read from the log: what waits, and what is published from ``first`` on (None: from
        what is still to come)."""
        positions = before([*window.queued, *([first] if first is not None else [])], self._ingest.ends())
        self._counters.sessions_behind += window.connected
        window.read_from(self._catch_up(self._reader(window), positions))

    def shared_behind(self, shared: SharedSubscription, first: Message | None) -> None:
        """Have the messages of a shared subscription read from the log, as ``fall_behind`` does."""
        positions = before([*shared.queued, *([first] if first is not None else [])], self._ingest.ends())
        shared.read_from(self._catch_up(shared, positions))

    def began(self, window: ClientWindow, subscription: ClientSubscription, ends: Positions) -> None:
        """Note that a new subscription gets nothing older than these ends of the streams."""
        reader = _session_reader(window)
        if reader is not None and ends:
            reader.began(subscription, ends)

    # --- how far they are

    def positions(self, window: ClientWindow) -> Positions:
        """Return for each stream the first seq that a client has not been sent."""
        if window.catch_up is not None:
            return dict(window.catch_up.positions)
        return before(window.queued, self._ingest.ends(unrouted=not window.persistent))

    def done(self, window: ClientWindow) -> set[tuple[int, int]]:
        """Return (stream, seq) of what a client has been sent although it is not before its stream's position."""
        reader = _session_reader(window)
        return reader.done if reader is not None else set()

    # --- connections, and restarts

    def resume(self, window: ClientWindow) -> None:
        """Send what a client is owed: first what it has not answered, then what it missed."""
        if window.in_flight.unread():
            task = asyncio.get_running_loop().create_task(self._redelivery.run(window))
            self._fetching.add(task)
            task.add_done_callback(self._fetching.discard)
        window.pump()
        self._outbox.flush()

    def restore(self, window: ClientWindow, record: SessionRecord) -> None:
        """Have a client read what it missed, once it is back."""
        # The journal may lag behind what a connected client was sent before a crash.
        doubtful = self._ingest.ends() if record.disconnected_at is None else None
        window.read_from(self._catch_up(self._reader(window, record.done, doubtful), record.positions))

    def restore_shared(self, shared: SharedSubscription, record: SharedRecord) -> None:
        """Have a shared subscription go on where the last run of the node was."""
        catch_up = self._catch_up(shared, lowered(record.positions, record.owed))
        shared.restore(record.positions, record.owed, catch_up)

    # --- readers of other protocols

    def catch_up(self, reader: Reader, positions: Positions) -> CatchUp:
        """Return the way of a reader through the log; to be started."""
        return self._catch_up(reader, positions)

    def ends(self) -> Positions:
        """Return stream -> seq of the first record that has not been delivered live."""
        return self._ingest.ends()

    async def fetch(self, stream: int, seqs: list[int]) -> dict[int, LogRecord]:
        """Return single records by their numbers, those that the log still has.

        Raises:
            OSError, LogFailed: it cannot be read.
        """
        return await self._backlog.fetch(stream, seqs)

    @property
    def read_page(self) -> ReadPage:
        """Return what reads a stream page by page."""
        return self._backlog.read

    # --- inside

    def _reader(
        self, window: ClientWindow, done: set[tuple[int, int]] | None = None, doubtful: Positions | None = None
    ) -> SessionReader:
        reader = SessionReader(
            window, self._subscriptions, self.messages, self._outbox, self._counters, done, doubtful
        )  # fmt: skip
        for subscription, ends in self._starts.all_of(window.client_id):
            reader.began(subscription, ends)
        return reader

    def _catch_up(self, reader: Reader, positions: Positions) -> CatchUp:
        everywhere = {stream: positions.get(stream, 0) for stream in self._ingest.streams}
        # Only readers that missed a message there read `unrouted`: see ``CatchUp.cover``.
        everywhere |= {stream: positions[stream] for stream in self._ingest.unrouted.streams if stream in positions}
        return CatchUp(reader, everywhere, self._backlog.read, self._log)


def _session_reader(window: ClientWindow) -> SessionReader | None:
    reader = window.catch_up.reader if window.catch_up is not None else None
    return reader if isinstance(reader, SessionReader) else None
