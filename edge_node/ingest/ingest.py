"""The only path into the log, for every protocol: records go to their streams, and to subscribers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from weft.edge_node.counters import Counters
from weft.edge_node.ingest.back_pressure import BackPressure
from weft.edge_node.ingest.before_log import StreamRecords
from weft.edge_node.ingest.queueing import QueuedRun, queued_run
from weft.edge_node.ingest.record import Gathering, NodeRecord, NodeSource, Records, Source
from weft.edge_node.ingest.routes import Destination
from weft.edge_node.ingest.routing import Routing
from weft.edge_node.ingest.traces import Traces
from weft.edge_node.ingest.turn import Turn
from weft.edge_node.subscriptions.fan_out import FanOut
from weft.edge_node.subscriptions.message import NOWHERE, PUBLISHER
from weft.protocols.batch import Flag, HeaderPairs
from weft.storage.segment_log import LogError, SegmentLog

_COPIED = int(Flag.COPIED_FOR_SESSIONS)


class Ingest:
    """Writer of clients' publishes to the log, and their fan-out to local subscribers.

    Records get the time at which they were stored, in nanoseconds since 1970 by ``wall_clock``: the end of the turn of
    the loop that read them. Belongs to the event loop's thread.
    """

    def __init__(  # noqa: PLR0917
        self,
        log: SegmentLog,
        routing: Routing,
        fan_out: FanOut,
        wall_clock: Callable[[], int],
        counters: Counters,
        turn: Turn,
        *,
        pending_bytes_max: int,
    ) -> None:
        """Join log, routes and subscribers.

        Args:
            wall_clock: nanoseconds since 1970.
            pending_bytes_max: bytes that may wait for the disk before publishers are held.
        """
        self.log = log
        self.routing = routing
        self._fan_out = fan_out
        self._wall_clock = wall_clock
        self._counters = counters
        self.turn = turn
        """Publishes that are gathered and not stored yet."""
        self.back_pressure = BackPressure(log, pending_bytes_max)
        self._undelivered: dict[int, int] = {}
        """Stream -> seq of the first record appended and not yet delivered live; empty outside ``store``."""
        self.traces: Traces | None = None
        """Spans of messages; None for a node that traces none."""
        self._ends: Mapping[int, int] | None = None
        """Answer of ``ends`` while a message is delivered, at which thousands of clients may fall behind."""
        turn.stores_in(self)
        log.listen(turn.committed)

    def ends(self, *, unrouted: bool = False) -> Mapping[int, int]:
        """Return stream -> seq of the first record that has not been delivered live, with ``unrouted`` if asked for."""
        if self._ends is not None and not unrouted:
            return self._ends
        routing = self.routing
        streams = (*routing.streams, *routing.unrouted.streams) if unrouted else routing.streams
        found = {stream: self._undelivered.get(stream, self.log.next_seq(stream)) for stream in streams}
        self._ends = found if self._undelivered and not unrouted else None
        return found

    def store(self, gathered: Gathering, *, by_node: bool = False) -> list[tuple[int, int, int]]:
        """Append records, all or none of which count, and deliver them. They are not durable yet: see ``on_durable``.
        Records gathered earlier in this turn must be stored already.

        Args:
            by_node: within ``together``, append even to a full stream: no client would send a will again.

        Returns:
            (stream, first seq, count) of the appended records, one for each destination.

        Raises:
            LogFull, LogFailed: not everything was appended, within ``together`` nothing was; none of the records may be
                acknowledged. Nothing was delivered.
        """
        now = self._wall_clock()
        if self.traces is not None:
            self.traces.begin(gathered)
        made = [
            (each, records, each.runs(records.keys, records.payloads, records.headers, now))
            for destination, records in gathered.groups.items()
            for each in destination.before_log
        ]
        queued = queued_run(gathered, {}) if gathered.queued else None
        # All records or none count within ``together``: the room for all of them is checked before the first append.
        if not by_node and self.log.appended_together() is not None:
            self.log.ask_room(
                [
                    *(
                        (stream, records.keys, records.payloads, _headers_of(records))
                        for destination, records in gathered.groups.items()
                        for stream in _streams_of(destination, records)
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
            for stream in _streams_of(destination, records):
                records.seqs = records.by_stream[stream] = self._append_kept(stream, records, now)
            if records.left:
                numbers = [seq for seq in records.seqs if seq is not None]
                stored += [(stream, numbers[0], len(numbers))] if numbers else []
            elif (first := next(iter(records.seqs), None)) is not None:
                stored.append((stream, first, len(records.keys)))
        if queued is not None:
            self._append_queued(queued, now, None)
        self._stored(gathered)
        self._enqueue(queued, now)
        return stored

    def store_each(self, gathered: Gathering) -> dict[Source, Exception]:
        """Append and deliver the records for which there is room. A refused run is tried again source by source, so
        that only records without room are refused, and no client for another's records.

        Returns:
            Source -> reason why some of its records were not stored: it must not be acknowledged.
        """
        now, refused = self._wall_clock(), dict[Source, Exception]()
        if self.traces is not None:
            self.traces.begin(gathered)
        for destination, records in gathered.groups.items():
            if destination.before_log and not self._work(destination, records, now, refused):
                for stream in _streams_of(destination, records):
                    self._append_by_source(stream, records, now, refused)
                if not records.seqs:
                    records.seqs = [None if source in refused else 0 for source in records.sources]
                continue
            for stream in _streams_of(destination, records):
                try:
                    records.seqs = records.by_stream[stream] = self._append_kept(stream, records, now)
                except LogError:
                    self._append_by_source(stream, records, now, refused)
        queued = queued_run(gathered, refused) if gathered.queued else None
        if queued is not None:
            self._append_queued(queued, now, refused)
        self._stored(gathered)
        self._enqueue(queued, now)
        return refused

    def on_durable(self, callback: Callable[[BaseException | None], None]) -> None:
        """Call back, in order of registration, once everything stored so far is durable, or with the error."""
        self.log.on_durable(callback)

    def publish(self, record: NodeRecord) -> None:
        """Store one record of the node's own accord, such as a will, and deliver it.

        Raises:
            LogFull, LogFailed: not stored, and not delivered.
        """
        gathered = Gathering()
        gathered.add(
            self.routing.route(record.key),
            record.key,
            record.payload,
            NodeSource(record.publisher),
            record.flags,
            record.headers,
        )
        self.store(gathered, by_node=True)

    def _append(self, stream: int, records: Records, now: int) -> int:
        """Append a run to one stream; returns the first record's seq."""
        flags = _flags_in(stream, records)
        return self.log.append(
            stream, now, records.keys, records.payloads, _headers_of(records), flags, records.payload_bytes
        )

    def _append_kept(self, stream: int, records: Records, now: int) -> Sequence[int | None]:
        """Append the records of a run that a stream gets; return the seq of each record, None for the others."""
        kept = records.kept_in(stream)
        if kept is None:
            seq = self._append(stream, records, now)
            return range(seq, seq + len(records.keys))
        seqs: list[int | None] = [None] * len(records.keys)
        if kept:
            first = self._append(stream, records.where(kept), now)
            for seq, index in enumerate(kept, first):
                seqs[index] = seq
        return seqs

    def _work(self, destination: Destination, records: Records, now: int, refused: dict[Source, Exception]) -> bool:
        """Append the results of functions before the log. Return False where sources were refused because of them."""
        whole = True
        for before_log in destination.before_log:
            # The whole run first; if the log refuses it, source by source, so that only sources without room are
            # refused.
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

    def _append_made(self, run: StreamRecords, now: int) -> None:
        self.log.append(run.stream, now, run.keys, run.payloads, run.headers or None, origin=run.origin)

    def _append_by_source(self, stream: int, records: Records, now: int, refused: dict[Source, Exception]) -> None:
        """Append the part of a run for which a stream has room. The sources of the rest are refused."""
        count = len(records.keys)
        seqs: list[int | None] = [None] * count
        kept = records.kept_in(stream)
        for stretch in records.by_source(range(count) if kept is None else kept):
            source = records.sources[stretch[0]]
            if source in refused:
                continue  # records behind a refused one would overtake it when it is sent again
            try:
                seq = self._append(stream, records.where(stretch), now)
            except LogError as error:
                refused[source] = error
            else:
                for at, index in enumerate(stretch):
                    seqs[index] = seq + at
        records.seqs = records.by_stream[stream] = seqs

    def _asked(self, queued: QueuedRun | None) -> list[tuple[int, list[bytes], list[bytes], dict[int, HeaderPairs]]]:
        queueing = self.routing.queueing
        if queued is None or queueing is None:
            return []
        return [(queueing.stream, queued.keys, queued.payloads, queued.headers)]

    def _append_queued(self, queued: QueuedRun, now: int, refused: dict[Source, Exception] | None) -> None:
        """Append the records for queues as one run, which keeps their order across all streams. ``refused`` is None
        where all of the records or none count."""
        queueing = self.routing.queueing
        assert queueing is not None, "only queues make such routes"
        stream = queueing.stream
        seq = self.log.next_seq(stream)
        queueing.before_store(seq, queued.admitted)
        try:
            queued.seqs = range(self._append(stream, queued, now), seq + len(queued.keys))
        except LogError:
            if refused is None:
                raise
            self._append_by_source(stream, queued, now, refused)

    def _enqueue(self, queued: QueuedRun | None, now: int) -> None:
        queueing = self.routing.queueing
        if queued is not None and queueing is not None:
            queueing.stored(queued, queued.admitted, now)

    def _stored(self, gathered: Gathering) -> None:
        """Count the records that are in the log now, and deliver them to subscribers."""
        counters = self._counters
        for destination, records in gathered.groups.items():
            if destination.is_beside:
                continue
            counters.publishes_received += len(records.keys)
            counters.publish_bytes_received += records.payload_bytes
            if destination.unrouted:
                self.routing.unrouted.count(records.keys)
        self.back_pressure.appended()
        if self.traces is not None:
            self.traces.stored()
        if gathered.live:
            self._deliver(gathered)

    def _deliver(self, gathered: Gathering) -> None:
        streams: dict[Records, int] = {}
        for destination, records in gathered.groups.items():
            found = _streams_of(destination, records)
            streams[records] = found[-1] if found else NOWHERE  # a session cannot read it again
        live = _ascending(gathered.live, streams) if len(gathered.groups) > 1 else gathered.live
        # Backwards, so that the first record of each stream remains: a session that falls behind in this loop begins
        # there.
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


def _ascending(live: list[tuple[Records, int]], streams: dict[Records, int]) -> list[tuple[Records, int]]:
    """Return the records in order of receipt, except that those of each stream come in order of seq.

    Runs of two destinations may be in one stream, one behind the other although their records came by turns. A session
    that stops taking live messages resumes reading at a seq: records with lower ones must have been delivered before.
    Records of one topic are in one run, so they keep their order [MQTT-4.6.0-6].
    """
    of_stream: dict[int, list[tuple[Records, int]]] = {}
    for each in live:
        of_stream.setdefault(streams[each[0]], []).append(each)
    for stream, found in of_stream.items():
        if stream != NOWHERE:
            found.sort(key=_seq)
    following = {stream: iter(found) for stream, found in of_stream.items()}
    return [next(following[streams[records]]) for records, _ in live]


def _seq(of: tuple[Records, int]) -> int:
    seq = of[0].seqs[of[1]] if of[0].seqs else None
    return -1 if seq is None else seq  # refused: it is not delivered


def _headers_of(records: Records) -> dict[int, HeaderPairs] | None:
    """Return index in the records -> headers, for records with headers."""
    if not records.marked:
        return records.headers or None
    headers = records.headers.copy()
    for index in records.marked:
        publisher = records.sources[index].publisher
        if publisher is not None:
            headers[index] = (*headers.get(index, ()), (PUBLISHER, publisher))
    return headers


def _streams_of(destination: Destination, records: Records) -> tuple[int, ...]:
    """Return the streams that take the records; the last is the one that sessions read. Messages at QoS 0 need no copy
    for sessions: none gets them later."""
    streams = destination.streams
    if len(streams) > 1:
        streams = (*streams[1:], streams[0])
    return streams[:-1] if destination.kept_for_sessions and _all_qos0(records) else streams


def _flags_in(stream: int, records: Records) -> dict[int, int] | None:
    """Return index in the records -> flags for one of their streams, for records with flags.

    A reader that falls behind reads `unrouted` and the copies for sessions. The log must record which records have a
    copy: subscriptions may have changed by the time of reading. No session reads messages at QoS 0.
    """
    flags = records.flags
    if stream != records.copied_in:
        return flags or None
    every = ((index, flags.get(index, 0)) for index in range(len(records.keys)))
    return {index: bits if bits & Flag.PUBLISHED_QOS0 else bits | _COPIED for index, bits in every}


def _all_qos0(records: Records) -> bool:
    flags = records.flags
    return len(flags) >= len(records.keys) and all(bits & Flag.PUBLISHED_QOS0 for bits in flags.values())
