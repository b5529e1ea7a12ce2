"""Reading of the log for sessions and shared subscriptions that fell behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from functools import partial

from weft.bounds import Owner
from weft.edge_node.counters import Counters
from weft.edge_node.ingest.ingest import Ingest
from weft.edge_node.sessions.records import SessionRecord, SharedRecord
from weft.edge_node.sessions.redelivery import Redelivery
from weft.edge_node.sessions.session_reader import SessionReader
from weft.edge_node.sessions.store.backlog import Backlog
from weft.edge_node.sessions.stored_messages import StoredMessages
from weft.edge_node.sessions.window.client_window import ClientWindow
from weft.edge_node.subscriptions.catch_up import Begin, CatchUp, Reader
from weft.edge_node.subscriptions.filter_starts import FilterStarts
from weft.edge_node.subscriptions.log_records import LogRecord, ReadPage, Turn
from weft.edge_node.subscriptions.message import Message
from weft.edge_node.subscriptions.outbox import Outbox
from weft.edge_node.subscriptions.positions import Positions, before, lowered
from weft.edge_node.subscriptions.read_turns import ReadTurns
from weft.edge_node.subscriptions.shared_subscription import SharedSubscription
from weft.edge_node.subscriptions.subscriber import ClientSubscription
from weft.edge_node.subscriptions.subscriptions import Subscriptions
from weft.storage.segment_log import SegmentLog

_NOTHING: Mapping[int, int] = {}


class LogReaders:
    """Factory of the readers, and their positions. Belongs to the event loop's thread."""

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
        """Connect the log and its readers."""
        self._log = segment_log
        self._ingest = ingest
        self._subscriptions = subscriptions
        self.messages = messages
        """Converter of records to messages."""
        self._backlog = backlog
        self._starts = starts
        self._outbox = outbox
        self._counters = counters
        self._turns = ReadTurns(segment_log)
        self._redelivery = Redelivery(subscriptions, messages, backlog, outbox)
        self._fetching: set[asyncio.Task[None]] = set()
        """Keeps tasks alive until they are done; each belongs to one connection."""

    # --- falling behind

    def fall_behind(self, window: ClientWindow, first: Message | None) -> None:
        """Switch a client to the log: for its waiting messages, and messages published from ``first`` on (None: from
        the next one)."""
        self._counters.sessions_behind += window.connected
        missing = window.set_aside()
        ends, everywhere = self._ingest.ends(), self._everywhere()

        def begin() -> tuple[Reader, Positions]:
            messages = _with(first, [message for message, _, _ in missing])
            return self._reader(window), everywhere(before(messages, ends))

        catch_up = self._catch_up(window.owner, begin)
        window.read_from(catch_up)
        _begin(catch_up, at_once=not window.connected)

    def shared_behind(self, shared: SharedSubscription, first: Message | None) -> None:
        """Switch a shared subscription to the log, as ``fall_behind`` does."""
        ends, everywhere = self._ingest.ends(), self._everywhere()

        def begin() -> tuple[Reader, Positions]:
            positions = everywhere(before(_with(first, shared.queued), ends))
            shared.leave_to_log(positions)
            return shared, positions

        catch_up = self._catch_up(shared.owner, begin)
        shared.read_from(catch_up)
        _begin(catch_up, at_once=first is None)

    def began(self, window: ClientWindow, subscription: ClientSubscription, ends: Positions) -> None:
        """Note that a new subscription gets nothing older than these ends of the streams."""
        reader = _session_reader(window)
        if reader is not None and ends:
            reader.began(subscription, ends)

    # --- positions

    def positions(self, window: ClientWindow) -> Positions:
        """Return for each stream the first seq not sent to a client."""
        if window.catch_up is not None:
            return dict(window.catch_up.positions)
        return before(window.queued, self._ingest.ends(unrouted=not window.persistent))

    def done(self, window: ClientWindow) -> set[tuple[int, int]]:
        """Return (stream, seq) of messages sent to a client although they are not before their stream's position."""
        reader = _session_reader(window)
        return reader.done if reader is not None else set()

    # --- connections, and restarts

    def resume(self, window: ClientWindow) -> None:
        """Send a client's pending messages: first unanswered ones, then missed ones."""
        if window.in_flight.unread():
            task = asyncio.get_running_loop().create_task(self._redelivery.run(window))
            self._fetching.add(task)
            task.add_done_callback(self._fetching.discard)
        window.pump()
        self._outbox.flush()

    def restore(self, window: ClientWindow, record: SessionRecord) -> None:
        """Prepare a client's reader for its missed messages, for its return."""
        # The journal may lag behind the messages sent to a connected client before a crash.
        doubtful = self._ingest.ends() if record.disconnected_at is None else {}
        reader = self._reader(window, record.done, doubtful)
        window.read_from(self.catch_up(reader, partial(dict, record.positions)))

    def restore_shared(self, shared: SharedSubscription, record: SharedRecord) -> None:
        """Resume a shared subscription at the position of the node's last run."""
        catch_up = self.catch_up(shared, partial(lowered, record.positions, record.owed))
        shared.restore(record.positions, record.owed, catch_up)

    # --- readers of other protocols

    def catch_up(self, reader: Reader, find: Callable[[], Positions]) -> CatchUp:
        """Return the catch-up of a reader through the log. The caller starts it.

        Args:
            find: returns the positions, called at the reader's turn.
        """
        everywhere = self._everywhere()
        return self._catch_up(reader.owner, lambda: (reader, everywhere(find())))

    def ends(self) -> Mapping[int, int]:
        """Return stream -> seq of the first record that has not been delivered live."""
        return self._ingest.ends()

    async def fetch(self, stream: int, seqs: list[int]) -> dict[int, LogRecord]:
        """Return single records by their numbers, without those that the log has deleted.

        Raises:
            OSError, LogFailed: the log cannot be read.
        """
        return await self._backlog.fetch(stream, seqs)

    def turn_of(self, owner: Owner | None) -> Turn:
        """Return the awaitable turns of an owner for reads."""
        return partial(self._turns.next, owner)

    @property
    def read_page(self) -> ReadPage:
        """Return the function that reads a stream page by page."""
        return self._backlog.read

    # --- inside

    def _reader(
        self, window: ClientWindow, done: Collection[tuple[int, int]] = (), doubtful: Mapping[int, int] = _NOTHING
    ) -> SessionReader:
        reader = SessionReader(
            window, self._subscriptions, self.messages, self._outbox, self._counters, set(done), doubtful
        )  # fmt: skip
        for subscription, ends in self._starts.all_of(window.client_id):
            reader.began(subscription, ends)
        return reader

    def _everywhere(self) -> Callable[[Positions], Positions]:
        """Return a function that extends positions to every present stream; later streams are added from their ends
        on."""
        streams, unrouted = self._ingest.routing.streams, self._ingest.routing.unrouted.streams

        def everywhere(positions: Positions) -> Positions:
            # Only readers that missed a message in `unrouted` read it: see ``CatchUp.cover``.
            kept = {stream: positions[stream] for stream in unrouted if stream in positions}
            return {stream: positions.get(stream, 0) for stream in streams} | kept

        return everywhere

    def _catch_up(self, owner: Owner | None, begin: Begin) -> CatchUp:
        return CatchUp(owner, begin, self._backlog.read, self._log, self._turns)


def _begin(catch_up: CatchUp, *, at_once: bool) -> None:
    """Begin a reader: at once where its client has gone, as that is a step of its own."""
    if at_once:
        catch_up.begin()
    else:
        catch_up.begin_soon()


def _with(first: Message | None, messages: list[Message]) -> list[Message]:
    return messages if first is None else [*messages, first]


def _session_reader(window: ClientWindow) -> SessionReader | None:
    reader = window.catch_up.reader if window.catch_up is not None else None
    return reader if isinstance(reader, SessionReader) else None
