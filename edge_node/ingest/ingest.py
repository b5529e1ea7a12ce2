"""The only path into the log, for every protocol: records go to their streams, and to subscribers."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from itertools import islice
from typing import Protocol

from weft.bounds import Owner
from weft.edge_node.counters import Counters
from weft.edge_node.ingest.record import (
    Destination,
    Gathering,
    NodeRecord,
    NodeSource,
    QueuedRun,
    Records,
    Source,
    StreamRecords,
    queued_run,
)
from weft.edge_node.ingest.routing import Routing
from weft.edge_node.ingest.traces import Traces
from weft.edge_node.subscriptions.message import NOWHERE, PUBLISHER
from weft.edge_node.subscriptions.subscriptions import FanOut
from weft.protocols.batch import Flag, HeaderPairs
from weft.storage.segment_log import LogError, SegmentLog

# Back-pressure: while too many bytes wait for the disk, no publisher is read.


class Pause(IntEnum):
    """Reasons why a client is not read, combined as bits. Reading resumes when none is left."""

    DISK = 1
    """Too many bytes of all clients wait for the disk."""
    WRITE = 2
    """The client does not read the data sent to it."""
    ACKS = 4
    """More of its own acknowledgements wait for the disk than its receive maximum."""
    RESULT = 8
    """A packet of the client waits for a result from elsewhere: its password check, or whether a publish is a
    repeat."""
    FAIRNESS = 16
    """The client has had its turn: the rest of what it sent waits until others have had theirs."""


class Publisher(Protocol):
    """A source of records that can be paused."""

    def hold(self, reason: Pause) -> None:
        """Stop reading."""

    def release(self, reason: Pause) -> None:
        """Resume reading, if no other reason remains. Do nothing if the reason did not hold."""


class BackPressure:
    """Holds all publishers from the moment the bound is passed until half of it is free.

    Data already read from a publisher is still appended, so the log's pending bytes exceed the bound by at most one
    read.
    """

    def __init__(self, log: SegmentLog, pending_bytes_max: int) -> None:
        self._log = log
        self._pending_bytes_max = pending_bytes_max
        self._publishers: set[Publisher] = set()
        self.holding = False
        self.pauses = 0
        """Number of times that the bound was passed."""

    def join(self, publisher: Publisher) -> None:
        """Add a publisher; it is held at once if the others are."""
        if publisher not in self._publishers:
            self._publishers.add(publisher)
            if self.holding:
                publisher.hold(Pause.DISK)

    def leave(self, publisher: Publisher) -> None:
        """Forget a publisher; do nothing if it never joined."""
        self._publishers.discard(publisher)

    def appended(self) -> None:
        """Hold all publishers once the bound is passed. Must be called after every append."""
        # All publishers are held at once and not the one that sent most: what waits belongs to the disk, which is slow
        # for all of them.
        if self._log.pending_bytes > self._pending_bytes_max and not self.holding:
            self.holding = True
            self.pauses += 1
            for publisher in self._publishers:
                publisher.hold(Pause.DISK)
            self._log.on_durable(self._durable)

    def _durable(self, error: BaseException | None) -> None:
        # After an error nothing becomes durable any more: publishers resume, and each append reports the error to its
        # client.
        # Released at half, so that publishers are not held and released with every commit.
        if error is None and self._log.pending_bytes > self._pending_bytes_max // 2:
            self._log.on_durable(self._durable)
            return
        self.holding = False
        for publisher in list(self._publishers):
            publisher.release(Pause.DISK)


# One turn of the event loop, one append: the publishes of all connections in a turn are stored at its end.
#
# A fleet is thousands of devices with a message in flight each. Storing every read by itself would cost an append
# under the log's lock, a callback and an object or two that wait for the commit. So reads only gather records by
# route and answers by client; the end of the turn makes one append for each stream, and each commit is answered by
# one walk over its clients.

TICK_BYTES_MAX = 1 << 20
"""Bytes read after which a tick's batch is stored before its end. It bounds the memory that is not yet counted against
``limits.pending``."""
# The bound is on what a turn gathers. Deliveries in later steps lost messages at QoS 1 in a crash between two steps,
# and doubled some at QoS 2.
COST_MAX = 16_384
"""The same bound in deliveries to clients, or in entries in queues of that cost: they take five to ten milliseconds,
regardless of their bytes."""
CHECKS_S_MAX = 0.01
"""Seconds of a tick after which reads with checks of payloads are no longer handled without a look at the clock."""
ANSWERS_MAX = 1024
"""Clients that are answered in one step. More steps make the next commits smaller: a fleet of 1,000 with a message in
flight each costs a fifth more in steps of 256."""
ANSWERS_S_MAX = 0.01
"""Seconds of such a step: some protocols' answers cost more than PUBACK's four bytes."""
ANSWERS_IN_TURN = 64
"""Clients of one owner that are answered before those of others."""

logger = logging.getLogger(__name__)

Durable = Callable[[BaseException | None], None]


class Store(Protocol):
    """Store for the records of a turn; ``Ingest`` implements it."""

    def store_each(self, gathered: Gathering) -> dict[Source, Exception]:
        """Append and deliver the records for which there is room. Returns the sources of the others."""
        ...

    def on_durable(self, callback: Durable) -> None:
        """Call back, in order of registration, once everything stored so far is durable, or with the error."""


class TickBatch(Gathering):
    """Publishes of all connections in one iteration of the event loop (a tick). Belongs to the loop's thread.

    A step that needs earlier records in the log (a subscription, a will, a session's journal) calls ``store`` first, so
    the order of records is the order of receipt.
    """

    __slots__ = (
        "_acks",
        "_answers",
        "_at_end",
        "_call_soon",
        "_clients",
        "_clock",
        "_counters",
        "_delivers",
        "_is_answering",
        "_rests",
        "_store",
        "_stored",
        "_waiting",
        "begun",
        "bytes",
        "is_heavy",
        "joined_bytes",
        "now",
        "stores",
    )

    def __init__(
        self, call_soon: Callable[[Callable[[], None]], object], clock: Callable[[], float], counters: Counters
    ) -> None:
        """Wait for the first read.

        Args:
            call_soon: calls back at the end of the loop's iteration.
            clock: the loop's, in seconds.
        """
        super().__init__()
        self._call_soon = call_soon
        self._clock = clock
        self._counters = counters
        self._store: Store | None = None
        self._at_end: list[Callable[[], None]] = []
        self._clients: list[Source] = []
        self._answers: list[bytes] = []
        self._acks = 0
        self._waiting: OrderedDict[Owner | None, OrderedDict[Source, bytes]] = OrderedDict()
        """Answers that wait for a later step, by owner and client. A client keeps its place in line, and is answered
        once for all commits until its turn: so those that never wait for an answer cannot make the line grow."""
        self._is_answering = False
        """True while that step is scheduled."""
        self.begun = False
        """True while the end of the tick is scheduled."""
        self.now = 0.0
        """Time at which the tick began, by the loop's clock."""
        self.joined_bytes = 0
        """Bytes of packets that arrived in several reads; ``bytes`` counts only the last read."""
        self.bytes = 0
        """Bytes read in this tick by connections that count them here."""
        self.is_heavy = False
        """True if this batch had to be stored before the tick's end because of its cost for subscribers and queues, or
        if its checks of payloads have taken long: reads that come now are handled as long as ``ReadPacing`` admits
        them."""
        self._rests: Rests | None = None
        self._stored = 0
        """Number of messages that wait for an answer, stored in this tick."""
        self._delivers = False
        """True if clients or queues get messages of this tick."""
        self.stores = 0
        """Number of stores: it separates what a source gathered before from its present records."""

    def stores_in(self, store: Store) -> None:
        """Set the store for the records."""
        self._store = store

    def rest_with(self, rests: Rests) -> None:
        """Have the loop rest at the end of ticks."""
        self._rests = rests

    def begin(self) -> None:
        """Note the time, and schedule the end of the tick. For a tick that has not begun."""
        self.begun = True
        self.now = self._clock()
        self._call_soon(self._end)

    def gathered(self) -> None:
        """Note that a read is over. Schedule the end of the tick if the read brought records; otherwise only its bytes
        count."""
        if not self.begun and self:
            self.begin()
        # What a tick has read counts for back-pressure only once it is in the log, so a tick that reads much is stored
        # before its end.
        if not self.begun or self.bytes + self.joined_bytes > TICK_BYTES_MAX:
            self.store()
        else:
            self.relieve()

    def relieve(self) -> None:
        """Store the gathered records if their delivery is expensive, so that the cost is charged to the sender's
        turn."""
        # Bytes do not bound what delivery costs: a burst of small messages to 400 subscribers held the loop for 280 to
        # 940 ms.
        if self.cost > COST_MAX:
            self.is_heavy = True
            self.store()

    def checked(self) -> None:
        """Note that payloads were checked: a fleet may have sent one each, of up to 10 ms."""
        if self.begun and self._clock() - self.now > CHECKS_S_MAX:
            self.is_heavy = True

    def at_end(self, callback: Callable[[], None]) -> None:
        """Call back at the end of the tick, after all of its records were appended."""
        if not self.begun:
            self.begin()
        self._at_end.append(callback)

    def store(self) -> None:
        """Store the gathered records. Sources whose publishes cannot be stored are refused before this returns."""
        self._counters.bytes_received += self.bytes
        self.bytes = self.joined_bytes = 0
        if not self:
            return
        assert self._store is not None
        self._delivers |= self.cost > 0
        self._stored += len(self.clients) + self.more_acks
        gathered = self.hand_over()
        self.stores += 1
        try:
            refused = self._store.store_each(gathered)
        except Exception as error:
            # A fault in the node's code, perhaps after some records were appended. Without a refusal the clients would
            # wait for an answer without end; refused, they send again.
            sources = [source for records in gathered.groups.values() for source in records.sources]
            _refuse([*sources, *gathered.clients], error)
            raise
        if refused:
            # An acknowledgement for a refused message would be a promise that nothing keeps.
            kept = [pair for pair in zip(gathered.clients, gathered.answers, strict=True) if pair[0] not in refused]
            gathered.clients, gathered.answers = [client for client, _ in kept], [data for _, data in kept]
        if gathered.clients:
            self._store.on_durable(partial(self.durable, gathered))
        for source, refusal in refused.items():
            _refuse([source], refusal)

    def durable(self, gathered: Gathering, error: BaseException | None) -> None:
        """Queue the answers for ``committed``, or refuse the clients."""
        if error is not None:
            _refuse(gathered.clients, error)
            return
        # Clients and answers are two lists and not pairs: a waiting message is then no object that the garbage
        # collector has to look at.
        self._clients += gathered.clients
        self._answers += gathered.answers
        self._acks += len(gathered.clients) + gathered.more_acks

    def committed(self) -> None:
        """Send the answers of a commit, in one write for each client: at most ``ANSWERS_MAX`` now, and the others in
        later steps, in which owners take turns. Call it after the callbacks of a commit."""
        clients, answers = self._clients, self._answers
        if not clients:
            return
        self._clients, self._answers = [], []
        self._counters.acks_sent += self._acks
        self._acks = 0
        # One write for each client and commit, however many of its messages the commit had.
        by_client = dict(zip(clients, answers, strict=True))
        if len(by_client) != len(clients):
            by_client = _joined(zip(clients, answers, strict=True))
        left = iter(by_client.items())
        if not self._waiting:  # or earlier commits have the first turns
            until = self._clock() + ANSWERS_S_MAX
            for _ in range(ANSWERS_MAX // ANSWERS_IN_TURN):
                part = list(islice(left, ANSWERS_IN_TURN))
                _acknowledge(part)
                if len(part) < ANSWERS_IN_TURN:
                    return
                if self._clock() >= until:
                    break
        # Of a fleet of thousands most answers pass here.
        waiting = self._waiting
        for client, data in left:
            owner = client.owner
            queue = waiting[owner] if owner in waiting else waiting.setdefault(owner, OrderedDict())
            queue[client] = queue[client] + data if client in queue else data
        self._answer_later()

    def answer_all(self) -> None:
        """Send all answers of past commits now, for a connection that ends behind its own."""
        waiting, self._waiting = self._waiting, OrderedDict()
        for queue in waiting.values():
            _acknowledge(queue.items())

    def _answer_later(self) -> None:
        if self._waiting and not self._is_answering:
            self._is_answering = True
            self._call_soon(self._answer_some)

    def _answer_some(self) -> None:
        self._is_answering = False
        until, left = self._clock() + ANSWERS_S_MAX, ANSWERS_MAX
        while self._waiting and left > 0:
            owner, queue = self._waiting.popitem(last=False)
            part = [queue.popitem(last=False) for _ in range(min(ANSWERS_IN_TURN, len(queue)))]
            if queue:
                self._waiting[owner] = queue
            _acknowledge(part)
            left -= len(part)
            if self._clock() >= until:
                break
        self._answer_later()

    def _end(self) -> None:
        try:
            self.store()
        finally:
            # Called also if storing failed: who waits for the end of the tick must not wait for good.
            callbacks, self._at_end = self._at_end, []
            self.begun = self.is_heavy = False
            for callback in callbacks:
                callback()
        if self._rests is not None and not self._delivers:
            self._rests.after(self._stored)
        self._stored, self._delivers = 0, False


# Between two commits the loop rests, as network cards moderate interrupts: at 1,000 messages a second it would wake for
# each, although no answer can leave before the next commit. After a rest one turn takes all that came.

REST_S_MAX = 0.004
"""Longest rest: half of the shortest time between two commits of a busy node."""
REST_S_MIN = 0.0005
"""Left before a commit, so that what came during the rest is in it; a shorter rest is not worth its system call."""
REST_MESSAGES_MAX = 16
"""A turn with more messages has gathered enough without a rest."""
REST_BYTES_MAX = 32 << 10
"""Pending bytes from which on there is no rest: a commit begins early once it is worthwhile by its size."""
REST_BUSY_SHARE = 0.5
"""Share of a core that the loop uses between two rests, from which on it has other work than messages."""


class Rests:
    """Rests of the event loop while the log holds its next commit back. They delay no acknowledgement, and other work
    of the loop by at most ``REST_S_MAX``.

    Args:
        call_soon: calls back in the loop's next iteration.
        monotonic: clock of the log, in seconds.
        used: processor time of the loop's thread, in seconds.
        sleep: blocks the loop's thread.
    """

    def __init__(
        self,
        log: SegmentLog,
        call_soon: Callable[[Callable[[], None]], object],
        monotonic: Callable[[], float] = time.monotonic,
        used: Callable[[], float] = time.thread_time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._log = log
        self._call_soon = call_soon
        self._monotonic = monotonic
        self._used = used
        self._sleep = sleep
        self._ended_at = self._used_at = 0.0
        self._is_planned = False
        self._has_written = False
        """True if answers were written since the rest was planned."""
        log.listen(self._answered)

    def after(self, messages: int) -> None:
        """Plan a rest after a tick that stored ``messages`` which wait for an answer."""
        log = self._log
        if (
            messages <= REST_MESSAGES_MAX
            and not self._is_planned
            and log.held_until
            and log.pending_bytes < REST_BYTES_MAX
        ):
            self._is_planned, self._has_written = True, False
            self._call_soon(self._rest)

    def _answered(self) -> None:
        if self._is_planned:
            self._has_written = True
        else:
            self.after(0)

    def _rest(self) -> None:
        if self._has_written:
            # The loop sends what was written in an iteration at its end, so the rest has to wait for the next one.
            self._has_written = False
            self._call_soon(self._rest)
            return
        self._is_planned = False
        now = self._monotonic()
        left = min(self._log.held_until - now - REST_S_MIN, REST_S_MAX)
        if left < REST_S_MIN:
            return
        used = self._used()
        if used - self._used_at <= (now - self._ended_at) * REST_BUSY_SHARE:
            self._sleep(left)
        self._ended_at, self._used_at = self._monotonic(), used


def _acknowledge(answers: Iterable[tuple[Source, bytes]]) -> None:
    for client, data in answers:
        try:
            client.acknowledge(data)
        except Exception as error:
            # A failure with one client must not cost the others their answers.
            logger.exception("a client could not be answered")
            _refuse([client], error)


def _refuse(clients: Iterable[Source], error: BaseException) -> None:
    """Refuse each of the clients once, even if another one fails."""
    for client in dict.fromkeys(clients):
        try:
            client.refuse(error)
        except Exception:
            logger.exception("a client could not be refused")


def _joined(answers: Iterable[tuple[Source, bytes]]) -> dict[Source, bytes]:
    """Return all answers of each client."""
    parts: dict[Source, list[bytes]] = {}
    for client, data in answers:
        parts.setdefault(client, []).append(data)
    return {client: b"".join(found) for client, found in parts.items()}


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
        batch: TickBatch,
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
        self.batch = batch
        """Publishes that are gathered and not stored yet."""
        self.back_pressure = BackPressure(log, pending_bytes_max)
        self._undelivered: dict[int, int] = {}
        """Stream -> seq of the first record appended and not yet delivered live; empty outside ``store``."""
        self.traces: Traces | None = None
        """Spans of messages; None for a node that traces none."""
        self.gate: Callable[[Durable], Durable] | None = None
        """Takes the callbacks of acknowledgements that also wait for a second disk; None where none waits. When it has
        called some later than the log, it calls ``batch.committed``."""
        self._ends: Mapping[int, int] | None = None
        """Answer of ``ends`` while a message is delivered, at which thousands of clients may fall behind."""
        batch.stores_in(self)
        log.listen(batch.committed)

    def ends(self, *, unrouted: bool = False) -> Mapping[int, int]:
        """Return stream -> seq of the first record that has not been delivered live, with ``unrouted`` if asked for."""
        if self._ends is not None and not unrouted:
            return self._ends
        routing = self.routing
        streams = (*routing.streams, *routing.unrouted.streams) if unrouted else routing.streams
        # A session that falls behind during a delivery begins at the first message that has not been delivered,
        # although later ones have numbers already.
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
        # Within a step a refusal halfway could not be taken back, since the records before it have their numbers.
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
                    # The run did not fit as a whole. Client by client, so that none is refused for what another has
                    # sent.
                    self._append_by_source(stream, records, now, refused)
        queued = queued_run(gathered, refused) if gathered.queued else None
        if queued is not None:
            self._append_queued(queued, now, refused)
        self._stored(gathered)
        self._enqueue(queued, now)
        return refused

    def on_durable(self, callback: Callable[[BaseException | None], None]) -> None:
        """Call back, in order of registration, once everything stored so far is durable, or with the error."""
        self.log.on_durable(callback if self.gate is None else self.gate(callback))

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
        # Nearly always: no schema has sent any record elsewhere, and the run goes in with one call.
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
        # The note how far messages may have been delivered has to be in the same commit, before the messages.
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
                    records.keys[index],
                    records.payloads[index],
                    records.flags.get(index, 0),
                    records.headers.get(index, ()),
                    records.sources[index].publisher,
                    stream,
                    seq,
                )
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
            # Within a stream in order of numbers, since a session that falls behind reads on from one number.
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
        # The first stream is appended last, because its numbers are the ones that deliveries and readers go by.
        streams = (*streams[1:], streams[0])
    # At QoS 0 no session is owed a message, so the copy for sessions would only cost disk space.
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
    # Readers of `unrouted` leave out what persistent sessions have as a copy. The flag is in the log because
    # subscriptions may have changed by the time it is read.
    return {index: bits if bits & Flag.PUBLISHED_QOS0 else bits | _COPIED for index, bits in every}


def _all_qos0(records: Records) -> bool:
    flags = records.flags
    return len(flags) >= len(records.keys) and all(bits & Flag.PUBLISHED_QOS0 for bits in flags.values())
