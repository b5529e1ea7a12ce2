"""Reading of the log for sessions and shared subscriptions that fell behind."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial

import msgspec

from weft.bounds import Owner
from weft.edge_node.counters import Counters
from weft.edge_node.ingest.ingest import Ingest
from weft.edge_node.sessions.backlog import Backlog
from weft.edge_node.sessions.records import SessionRecord, SharedRecord
from weft.edge_node.sessions.window import ClientWindow
from weft.edge_node.streams import SESSION_TOPICS_STREAM
from weft.edge_node.subscriptions.catch_up import Begin, CatchUp, Reader, ReadTurns
from weft.edge_node.subscriptions.message import (
    NOWHERE,
    PUBLISHER,
    RECIPIENT,
    LogRecord,
    Message,
    Outbox,
    Positions,
    ReadPage,
    TooManyProperties,
    Turn,
    before,
    from_headers,
    lowered,
    to_headers,
)
from weft.edge_node.subscriptions.subscriptions import (
    ClientSubscription,
    DeliveryOptions,
    FilterStarts,
    OwnFilters,
    SharedSubscription,
    Subscriber,
    Subscriptions,
    delivery_options,
)
from weft.protocols.batch import Flag
from weft.protocols.message_headers import EXPIRES
from weft.protocols.mqtt.packets import ReasonCode
from weft.storage.segment_log import LogError, LogFailed, SegmentLog

# Records of the log as messages for sessions, and retained messages as records.


class StoredMessages:
    """Converter of records to messages, and of retained messages to records. Belongs to the event loop's thread."""

    def __init__(
        self, segment_log: SegmentLog, ingest: Ingest, wall_clock: Callable[[], int], counters: Counters
    ) -> None:
        self._log = segment_log
        self._ingest = ingest
        self._counters = counters
        self._topics = segment_log.stream(SESSION_TOPICS_STREAM)
        self._wall_clock = wall_clock

    def read(self, stream: int, record: LogRecord) -> Message | None:
        """Return a record as a message.

        None when it was published at QoS 0, has expired, or is read in another stream, or is a retained message that
        was sent to one session alone.
        """
        if record.flags & Flag.PUBLISHED_QOS0 or is_retained_copy(record):
            return None
        if (
            stream in self._ingest.routing.unrouted.streams
        ):  # other streams that match the topic now did not when it was stored
            return None if record.flags & Flag.COPIED_FOR_SESSIONS else self.read_again(stream, record)
        route = self._ingest.routing.route(record.topic)
        if route.streams and route.streams[0] != stream and stream in route.streams:
            return None
        return self.read_again(stream, record)

    def read_again(self, stream: int, record: LogRecord) -> Message | None:
        """Return a message that was already sent; None when it has expired."""
        properties, expires_ns = from_headers(record.headers)
        message = Message(
            record.topic,
            record.payload,
            2 if record.flags & Flag.PUBLISHED_QOS2 else 1,
            bool(record.flags & Flag.RETAINED),
            properties,
            expires_ns,
            stream,
            record.seq,
            record.headers,
        )
        if message.expired(self._wall_clock()):
            self._counters.messages_expired += 1
            return None
        return message

    def keep_retained(self, subscriber: Subscriber, message: Message) -> Message:
        """Store a retained message in the log while it is in flight to a client: its topic may have another one soon.

        Returns:
            The message with its place in the log; unchanged when the session ends with its connection, or when the log
                has no room: then a restart loses the delivery.
        """
        if not subscriber.persistent:
            return message
        now, expires = self._wall_clock(), ((EXPIRES, message.expires_ns),) if message.expires_ns else ()
        flags = Flag.RETAINED | (Flag.PUBLISHED_QOS2 if message.qos == 2 else Flag(0))
        try:
            headers = (*to_headers(message.properties, now), *expires, (RECIPIENT, subscriber.client_id))
            seq = self._log.append(self._topics, now, [message.topic], [message.payload], {0: headers}, {0: int(flags)})
        except (LogError, TooManyProperties):
            return message
        self._ingest.back_pressure.appended()
        return msgspec.structs.replace(message, stream=self._topics, seq=seq)


def is_retained_copy(record: LogRecord) -> bool:
    """Return whether this is a copy of a retained message on its way to one session, not a publish."""
    return any(name == RECIPIENT for name, _ in record.headers)


# Reader of the log for one session; it selects the messages that the client gets.

log = logging.getLogger(__name__)


class SessionReader:
    """The ``Reader`` of one session's ``CatchUp``."""

    def __init__(  # noqa: PLR0917
        self,
        window: ClientWindow,
        subscriptions: Subscriptions,
        messages: StoredMessages,
        outbox: Outbox,
        counters: Counters,
        done: set[tuple[int, int]],
        doubtful: Mapping[int, int],
    ) -> None:
        """Read for a client.

        Args:
            done: (stream, seq) of messages that the client has, although a restart left them to be read.
            doubtful: stream -> the first seq after a crash. The client was connected in the crash and may have received
                earlier messages without a journal entry: these are sent with DUP.
        """
        self._window = window
        self._messages = messages
        self._outbox = outbox
        self._counters = counters
        self._doubtful = doubtful
        # The client gets messages by its own subscriptions even if it got them as a member of a shared one.
        self._done = done | {
            (message.stream, message.seq)
            for message, options, _ in window.in_flight.deliveries.values()
            if options.share is None
        }
        self._own = OwnFilters(window, window.subscribed, subscriptions)
        self._has_reported_loss = False
        self._newer: dict[ClientSubscription, dict[int, int]] = {}
        """Subscriptions made while the session was behind -> stream -> their first seq."""

    @property
    def done(self) -> set[tuple[int, int]]:
        """Return (stream, seq) of messages that are not sent again when they are read.

        The client has them, or they were in flight when the session fell behind.
        """
        return set(self._done)

    @property
    def name(self) -> str:
        """Return the client's name for log lines."""
        return f"MQTT client {self._window.client_id!r}"

    @property
    def owner(self) -> Owner | None:
        """Return the client's owner."""
        return self._window.owner

    @property
    def has_room(self) -> bool:
        """Return whether one more message can be sent at once."""
        return self._window.window_open

    def began(self, subscription: ClientSubscription, ends: dict[int, int]) -> None:
        """Add a subscription that gets nothing published before these ends of the streams."""
        self._newer[subscription] = ends

    def wants(self, topic: bytes) -> bool:
        """Return whether the client is subscribed at QoS 1 or 2."""
        options = self._own.options(topic)
        return options is not None and options.qos > 0

    def read(self, stream: int, record: LogRecord) -> None:
        """Send a message that was read; there is room."""
        if (stream, record.seq) in self._done:
            self._done.discard((stream, record.seq))
            return
        options = self._options(stream, record)
        message = self._messages.read(stream, record) if options is not None else None
        if options is None or message is None:
            return
        qos = min(message.qos, options.qos)
        if qos:
            dup = qos == 1 and record.seq < self._doubtful.get(stream, 0)  # [MQTT-3.3.1-1]
            self._window.send(message, options, qos, dup=dup)
            self._outbox.flush()

    def lost(self, count: int) -> None:
        """Count records that the log no longer had; a log line reports the first."""
        self._counters.deliveries_lost += count
        if not self._has_reported_loss:
            self._has_reported_loss = True
            log.warning("%s is too slow: the log has deleted %d records before it read them", self.name, count)

    def joining(self) -> None:
        """Keep live messages in the queue from now on."""
        self._window.joining()

    def live(self) -> None:
        """Send the messages queued meanwhile, and then live ones."""
        self._window.level()
        self._outbox.flush()

    def _options(self, stream: int, record: LogRecord) -> DeliveryOptions | None:
        options = self._own.options(record.topic)
        if options is None or (options.no_local and (PUBLISHER, self._window.client_id) in record.headers):
            return None
        late = [each for each, ends in self._newer.items() if record.seq < ends.get(stream, 0)]
        if not late:
            return options
        matching = [each for each in self._own.matching(record.topic) if each not in late]
        return delivery_options(matching) if matching else None


# Redelivery of messages in flight at a restart: read from the log, and sent again unchanged (MQTT 5.0 section 4.4).


class Redelivery:
    """Reader of the messages that restored windows have in flight."""

    def __init__(
        self, subscriptions: Subscriptions, messages: StoredMessages, backlog: Backlog, outbox: Outbox
    ) -> None:
        self._subscriptions = subscriptions
        self._messages = messages
        self._backlog = backlog
        self._outbox = outbox

    async def run(self, window: ClientWindow) -> None:
        """Read the messages that one client has in flight, and send them again. At most the in-flight window is in
        memory."""
        unread, own = window.in_flight.unread(), OwnFilters(window, window.subscribed, self._subscriptions)
        for stream in {stream for stream, _ in unread.values()} - {NOWHERE}:
            wanted = {packet_id: seq for packet_id, (of, seq) in unread.items() if of == stream}
            try:
                found = await self._backlog.fetch(stream, list(wanted.values()))
            except (OSError, LogFailed) as error:
                log.warning("could not read what MQTT client %r has in flight: %s", window.client_id, error)
                window.displace(ReasonCode.UNSPECIFIED_ERROR)
                return
            for packet_id, seq in wanted.items():
                if packet_id in window.in_flight.deliveries:
                    self._set_read(window, own, packet_id, stream, found.get(seq))
        window.pump()
        self._outbox.flush()

    def _set_read(
        self, window: ClientWindow, own: OwnFilters, packet_id: int, stream: int, record: LogRecord | None
    ) -> None:
        """Set the message of a delivery. Its flags and identifiers are those of the present subscriptions, which may
        have changed since it was sent."""
        message = self._messages.read_again(stream, record) if record is not None else None
        if record is None or message is None:
            window.in_flight.set_read(packet_id, None, ())
            return
        options = own.options(record.topic)
        message.retain &= is_retained_copy(record) or (options is not None and options.retain_as_published)
        window.in_flight.set_read(packet_id, message, options.identifiers if options is not None else ())


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
        self.backlog = backlog
        """Reader of single records by their numbers."""
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

    def turn_of(self, owner: Owner | None) -> Turn:
        """Return the awaitable turns of an owner for reads."""
        return partial(self._turns.round_robin.turn, owner)

    @property
    def read_page(self) -> ReadPage:
        """Return the function that reads a stream page by page."""
        return self.backlog.read

    # --- inside

    def _reader(
        self, window: ClientWindow, done: Collection[tuple[int, int]] = (), doubtful: Mapping[int, int] = _NOTHING
    ) -> SessionReader:
        reader = SessionReader(
            window, self._subscriptions, self.messages, self._outbox, self._counters, set(done), doubtful
        )
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
        return CatchUp(owner, begin, self.backlog.read, self._log, self._turns)


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
