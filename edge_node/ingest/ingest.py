"""The one way into the log, for every protocol: records go to their streams, and to subscribers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from weft.edge_node.access.identity import Identity
from weft.edge_node.counters import Counters
from weft.edge_node.ingest.back_pressure import BackPressure
from weft.edge_node.ingest.before_log import BeforeLog, Run
from weft.edge_node.ingest.queue_targets import QueueTargets
from weft.edge_node.ingest.queueing import QueuedRun, Queueing, queued_run
from weft.edge_node.ingest.record import Gathering, Origin, Record, Records, Source
from weft.edge_node.ingest.router import Router
from weft.edge_node.ingest.routes import Destination, Remembering, Route, RouteCache
from weft.edge_node.ingest.runs import ascending, flags_in, headers_of, streams_of
from weft.edge_node.ingest.turn import Turn
from weft.edge_node.ingest.unrouted import Unrouted
from weft.edge_node.subscriptions.fan_out import FanOut
from weft.edge_node.subscriptions.message import NOWHERE
from weft.edge_node.subscriptions.subscriptions import Subscriptions
from weft.protocols.batch import HeaderPairs
from weft.storage.segment_log import LogError, SegmentLog

TOPIC_LEVELS_MAX = 128
"""Deeper topics are refused. EMQX has the same default."""


class Ingest:
    """Appends what clients publish, and fans it out to local subscribers.

    Records get the time at which they were stored, in nanoseconds since 1970 by ``wall_clock``: the end of the turn of
    the loop that read them. Belongs to the event loop's thread.
    """

    def __init__(  # noqa: PLR0917
        self,
        log: SegmentLog,
        router: Router,
        subscriptions: Subscriptions,
        fan_out: FanOut,
        wall_clock: Callable[[], int],
        counters: Counters,
        unrouted: Unrouted,
        turn: Turn,
        *,
        session_topics: int,
        pending_bytes_max: int,
        topic_levels_max: int = TOPIC_LEVELS_MAX,
    ) -> None:
        """Join log, routes and subscriptions.

        Args:
            wall_clock: nanoseconds since 1970.
            session_topics: the stream of messages that no other stream takes and persistent sessions want.
            pending_bytes_max: bytes that may wait for the disk before publishers are held.
        """
        self.log = log
        self._router = router
        self._subscriptions = subscriptions
        self._fan_out = fan_out
        self._wall_clock = wall_clock
        self._counters = counters
        self.unrouted = unrouted
        self.turn = turn
        """Publishes that are not stored yet."""
        self._session_topics = session_topics
        self.topic_levels_max = topic_levels_max
        self.streams = (*router.numbers, session_topics)
        """Every stream that a session may have to read. The stream `unrouted` is none of them: it drops its oldest
        records, so persistent sessions have copies of their own. Others read it when messages there were for them."""
        self.back_pressure = BackPressure(log, pending_bytes_max)
        self.everybody = RouteCache(self, None)
        self.remembering: set[Remembering] = set()
        """Those that know topics: the others, of thousands of clients that are silent, have nothing to forget."""
        self.as_of = 0
        """Times that routes were forgotten."""
        self._queueing: Queueing | None = None
        self._before_log: Mapping[int, BeforeLog] = {}
        self._destinations: dict[tuple[tuple[int, ...], bool, tuple[BeforeLog, ...]], Destination] = {}
        self._routes: dict[tuple[Destination, int, bool], Route] = {}
        self._undelivered: dict[int, int] = {}
        """Stream -> seq of the first record appended and not yet delivered live; empty outside ``store``."""
        self._ends: Mapping[int, int] | None = None
        """Answer of ``ends`` while a message is delivered, at which thousands of clients may fall behind."""
        subscriptions.watch(self.forget)
        turn.stores_in(self)
        log.listen(turn.committed)

    # --- routes

    def routes_of(self, identity: Identity | None) -> RouteCache:
        """Return the routes of a client; to be given back to ``leave``."""
        if identity is None or identity.unrestricted:
            return self.everybody
        return RouteCache(self, identity)

    def leave(self, routes: RouteCache) -> None:
        """Forget the routes of a client that has gone."""
        if routes is not self.everybody:
            self.remembering.discard(routes)

    def forget(self) -> None:
        """Forget all routes: who gets what, or who may what, has changed."""
        self.as_of += 1
        remembering, self.remembering = self.remembering, set()
        for routes in remembering:
            routes.clear()

    def reroute(self, router: Router) -> dict[int, int]:
        """Take other patterns from now on. What was gathered before goes where it was to go.

        Returns:
            Streams to which nothing went before, with their ends: those who read the log have to read them as well.
        """
        added = {stream: self.log.next_seq(stream) for stream in router.numbers if stream not in self.streams}
        self._router = router
        # A stream without topics stays: sessions may have to read what went there before.
        self.streams = (*self.streams, *added)
        self._destinations.clear()
        self._routes.clear()
        self.forget()
        return added

    def work_before_log(self, before_log: Mapping[int, BeforeLog]) -> None:
        """Have something work on messages in the place of some streams, which then get none themselves."""
        self._before_log = before_log
        self._destinations.clear()
        self._routes.clear()
        self.forget()

    def matches(self, topic: bytes, stream: int) -> bool:
        """Return whether a stream takes a topic's messages without being named."""
        return stream in self._router.streams(topic.decode())

    def queue_in(self, queueing: Queueing) -> None:
        """Have queues take the messages that are for them."""
        self._queueing = queueing
        self.forget()

    @property
    def router_streams(self) -> Collection[int]:
        """Return the streams that take messages of clients."""
        return self._router.numbers

    def route(self, topic: bytes, into: int | None = None) -> Route:
        """Return where a topic's records go. The answer is the same for every publisher.

        Args:
            into: the stream that the sender names, in place of those that match the topic.
        """
        return self.route_to(topic, None if self._queueing is None else self._queueing.of_topic(topic), into)

    def route_to(self, topic: bytes, queues: QueueTargets | None, into: int | None = None) -> Route:
        """Return where records go that have a topic and are for some queues; ``into`` as for ``route``."""
        recipients = self._subscriptions.recipients(topic)
        matching = self._router.streams(topic.decode()) if into is None else (into,)
        before_log = tuple(self._before_log[stream] for stream in matching if stream in self._before_log)
        streams = tuple(stream for stream in matching if stream not in self._before_log) if before_log else matching
        # What is worked on before the log is nothing that sessions could read later.
        kept_for_sessions = not streams and recipients.wanted
        unrouted = not matching and queues is None
        if unrouted:
            streams = self.unrouted.streams
        if kept_for_sessions:
            streams = (self._session_topics, *streams)
        place = (streams, unrouted, before_log)
        destination = self._destinations.get(place)
        if destination is None:
            destination = self._destinations[place] = Destination(streams, kept_for_sessions, unrouted, before_log)
        if queues is not None:  # not remembered here: queues come and go
            return Route(destination, live=recipients.live, marked=recipients.marked, queues=queues)
        key = (destination, recipients.live, recipients.marked)
        found = self._routes.get(key)
        if found is None:
            found = self._routes[key] = Route(destination, live=recipients.live, marked=recipients.marked)
        return found

    def refuses(self, topic: bytes) -> bool:
        """Return whether no stream matches a topic, and such messages are refused."""
        return self.unrouted.refuses and self.route(topic).unrouted

    def ends(self, *, unrouted: bool = False) -> Mapping[int, int]:
        """Return stream -> seq of the first record that has not been delivered live, with ``unrouted`` if asked for."""
        if self._ends is not None and not unrouted:
            return self._ends
        streams = (*self.streams, *self.unrouted.streams) if unrouted else self.streams
        found = {stream: self._undelivered.get(stream, self.log.next_seq(stream)) for stream in streams}
        self._ends = found if self._undelivered and not unrouted else None
        return found

    # --- records

    def store(self, gathered: Gathering, *, by_node: bool = False) -> list[tuple[int, int, int]]:
        """Append records, all or none of which count, and deliver them. They are not durable yet: see ``on_durable``.
        What was gathered before in this turn must be stored already.

        Args:
            by_node: within ``together``, a stream that is full takes it all the same: no client would send a will
                again.

        Returns:
            (stream, first seq, count) of what was appended, one for each destination.

        Raises:
            LogFull, LogFailed: not everything was appended, within ``together`` nothing was; none of the records may be
                acknowledged. Nothing was delivered.
        """
        now = self._wall_clock()
        made = [
            (each, records, each.runs(records.keys, records.payloads, records.headers, now))
            for destination, records in gathered.groups.items()
            for each in destination.before_log
        ]
        queued = queued_run(gathered, {}) if gathered.queued else None
        if not by_node and self.log.appended_together() is not None:
            self.log.ask_room(
                [
                    *(
                        (stream, records.keys, records.payloads, headers_of(records))
                        for destination, records in gathered.groups.items()
                        for stream in streams_of(destination, records)
                    ),
                    *((run.stream, run.keys, run.payloads, run.headers) for _, _, runs in made for run in runs),
                    *self._asked(queued),
                ],
                now,
            )
        stored: list[tuple[int, int, int]] = []
        for before_log, records, runs in made:
            for run in runs:
                self._append_made(run, now)
            before_log.stored(records.payloads, runs)
        for destination, records in gathered.groups.items():
            for stream in streams_of(destination, records):
                seq, count = self._append(stream, records, now), len(records.keys)
                records.seqs = records.by_stream[stream] = range(seq, seq + count)
            if records.seqs:
                stored.append((stream, seq, count))
        if queued is not None:
            self._append_queued(queued, now, None)
        self._stored(gathered)
        self._enqueue(queued, now)
        return stored

    def store_each(self, gathered: Gathering) -> dict[Source, Exception]:
        """Append and deliver what there is room for. A run that is refused is tried again for each source alone, so
        that nothing but what a full stream cannot take is refused, and no client for what another sent.

        Returns:
            Source -> why some of its records were not stored: it must not be acknowledged.
        """
        now, refused = self._wall_clock(), dict[Source, Exception]()
        for destination, records in gathered.groups.items():
            if destination.before_log and not self._work(destination, records, now, refused):
                for stream in streams_of(destination, records):
                    self._append_by_source(stream, records, now, refused)
                if not records.seqs:
                    records.seqs = [None if source in refused else 0 for source in records.sources]
                continue
            for stream in streams_of(destination, records):
                try:
                    seq = self._append(stream, records, now)
                except LogError:
                    self._append_by_source(stream, records, now, refused)
                else:
                    records.seqs = records.by_stream[stream] = range(seq, seq + len(records.keys))
        queued = queued_run(gathered, refused) if gathered.queued else None
        if queued is not None:
            self._append_queued(queued, now, refused)
        self._stored(gathered)
        self._enqueue(queued, now)
        return refused

    def on_durable(self, callback: Callable[[BaseException | None], None]) -> None:
        """Call back, in order of registration, once everything stored so far is durable, or with the error."""
        self.log.on_durable(callback)

    def publish(self, record: Record) -> None:
        """Store one record of the node's own accord, such as a will, and deliver it.

        Raises:
            LogFull, LogFailed: not stored, and not delivered.
        """
        gathered = Gathering()
        gathered.add(
            self.route(record.key), record.key, record.payload, Origin(record.publisher), record.flags, record.headers
        )
        self.store(gathered, by_node=True)

    def _append(self, stream: int, records: Records, now: int) -> int:
        """Append a run to one stream; returns the first record's seq."""
        flags = flags_in(stream, records)
        return self.log.append(stream, now, records.keys, records.payloads, headers_of(records), flags)

    def _work(self, destination: Destination, records: Records, now: int, refused: dict[Source, Exception]) -> bool:
        """Append what is made of records before the log. Return False where sources were refused for it."""
        whole = True
        for before_log in destination.before_log:
            for part in (records, *map(records.where, records.by_source(range(len(records.keys))))):
                if part is not records and part.sources[0] in refused:
                    continue
                runs = before_log.runs(part.keys, part.payloads, part.headers, now)
                try:
                    self.log.ask_room([(run.stream, run.keys, run.payloads, run.headers) for run in runs], now)
                    for run in runs:
                        self._append_made(run, now)
                except LogError as error:
                    if part is not records:
                        refused[part.sources[0]] = error
                        whole = False
                else:
                    before_log.stored(part.payloads, runs)
                    if part is records:
                        break
        return whole

    def _append_made(self, run: Run, now: int) -> None:
        self.log.append(run.stream, now, run.keys, run.payloads, run.headers or None, origin=run.origin)

    def _append_by_source(self, stream: int, records: Records, now: int, refused: dict[Source, Exception]) -> None:
        """Append what a stream takes of a run that it does not take as a whole. The sources of the rest are refused."""
        count = len(records.keys)
        seqs: list[int | None] = [None] * count
        for stretch in records.by_source(range(count)):
            source = records.sources[stretch[0]]
            if source in refused:
                continue  # what follows what was refused would come before it when it is sent again
            try:
                seq = self._append(stream, records.where(stretch), now)
            except LogError as error:
                refused[source] = error
            else:
                seqs[stretch[0] : stretch[-1] + 1] = range(seq, seq + len(stretch))
        records.seqs = records.by_stream[stream] = seqs

    def _asked(self, queued: QueuedRun | None) -> list[tuple[int, list[bytes], list[bytes], dict[int, HeaderPairs]]]:
        if queued is None or self._queueing is None:
            return []
        return [(self._queueing.stream, queued.keys, queued.payloads, queued.headers)]

    def _append_queued(self, queued: QueuedRun, now: int, refused: dict[Source, Exception] | None) -> None:
        """Append what is for queues, which keep its order: one run, whatever streams take the records as well.
        ``refused`` is None where all of the records or none count."""
        assert self._queueing is not None, "only queues make such routes"
        stream = self._queueing.stream
        seq = self.log.next_seq(stream)
        self._queueing.before_store(seq, queued.admitted)
        try:
            queued.seqs = range(self._append(stream, queued, now), seq + len(queued.keys))
        except LogError:
            if refused is None:
                raise
            self._append_by_source(stream, queued, now, refused)

    def _enqueue(self, queued: QueuedRun | None, now: int) -> None:
        if queued is not None and self._queueing is not None:
            self._queueing.stored(queued, queued.admitted, now)

    def _stored(self, gathered: Gathering) -> None:
        """Count what is in the log now, and deliver it to subscribers."""
        counters = self._counters
        for destination, records in gathered.groups.items():
            counters.publishes_received += len(records.keys)
            counters.publish_bytes_received += sum(map(len, records.payloads))
            if destination.unrouted:
                self.unrouted.count(records.keys)
        self.back_pressure.appended()
        if gathered.live:
            self._deliver(gathered)

    def _deliver(self, gathered: Gathering) -> None:
        streams: dict[Records, int] = {}
        for destination, records in gathered.groups.items():
            found = streams_of(destination, records)
            streams[records] = found[-1] if found else NOWHERE  # nothing that a session could read again
        live = ascending(gathered.live, streams) if len(gathered.groups) > 1 else gathered.live
        for records, index in reversed(live):
            if records.seqs and (seq := records.seqs[index]) is not None:
                self._undelivered[streams[records]] = seq
        deliver = self._fan_out.deliver
        try:
            for records, index in live:
                stream, seq = streams[records], records.seqs[index] if records.seqs else 0
                if seq is None:
                    continue
                if stream == NOWHERE:
                    seq = 0
                deliver(
                    records.keys[index], records.payloads[index], records.flags.get(index, 0),
                    records.headers.get(index, ()), records.sources[index].publisher, stream, seq,
                )  # fmt: skip
                self._undelivered[stream] = seq + 1
                self._ends = None
            self._fan_out.flush()
        finally:
            self._undelivered.clear()
            self._ends = None
