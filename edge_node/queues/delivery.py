"""Messages on their way into queues, and from there to their readers: in order and by turns, from memory or from the
log.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import cycle, groupby, repeat

from weft.bounds import Owner
from weft.edge_node.ingest.record import Admitted, QueueTargets, Records
from weft.edge_node.queues import contents as memory
from weft.edge_node.queues.contents import Contents, DueQueues
from weft.edge_node.queues.declarations import ExchangePublishing
from weft.edge_node.queues.definitions import TOPIC_EXCHANGE, DeathReason, routing_key_of
from weft.edge_node.queues.exchange import QueuesByHeaders, QueueSet, Topology
from weft.edge_node.queues.limits import QueueContext
from weft.edge_node.queues.queue import Consumption, Queue, QueueClient
from weft.edge_node.queues.ready import AHEAD_MAX, LOADED_ENTRY_BYTES, Delivery
from weft.edge_node.queues.state import MESSAGE_BYTES, QueueStateWriter, priority_of
from weft.edge_node.subscriptions.message import LogRecord, record_of
from weft.protocols.batch import HeaderPairs
from weft.protocols.message_headers import EXPIRES
from weft.protocols.ranges import SEQ_END
from weft.storage.segment_log import LogError, LogFailed

DUE_S = 0.002
"""Time for which queues are served at the end of a turn; the others wait for their owner's round."""
SLICE = 256
"""Messages of one queue's backlog that are delivered before other owners have a turn, if ``DUE_S`` is enough."""
RUN_MAX = 128
"""Maximum number of messages that consumers get by turns before the next look at the time."""
PAGE_BYTES = 256 << 10
"""Payload bytes that a queue reads from the log at a time, about."""
PAGE_RECORDS = 256
PAGE_SHARE = 8
"""Divisor of the remaining memory: the share that one page may take."""
RETRY_S = 1.0
"""Time after which delivery from a full log is tried again."""
_MS_NS = 1_000_000

logger = logging.getLogger(__name__)


class Deliveries:
    """Delivery for all queues. Event loop's thread only.

    Args:
        due: queues that it delivers from at the end of each turn of the loop.
    """

    def __init__(self, context: QueueContext, writer: QueueStateWriter, contents: Contents, due: DueQueues) -> None:
        self._log = context.log
        self._stream = context.stream
        self._messages = context.messages
        self._round_robin = context.round_robin
        self._clock = context.clock
        self._unacknowledged = context.bounds.unacknowledged
        self._writer = writer
        self._contents = contents
        self._due = due
        self._loop = asyncio.get_running_loop()
        self._is_closed = False
        self._loading: set[asyncio.Task[None]] = set()
        self.delivered = self.redelivered = 0
        due.listen(self._deliver_due)

    def close(self) -> None:
        """Stop reading and timing."""
        self._is_closed = True
        for task in self._loading:
            task.cancel()

    # --- out

    def _deliver_due(self, due: Iterable[Queue]) -> None:
        until = self._loop.time() + DUE_S
        for queue in due:
            if self._loop.time() < until:
                self.deliver(queue)
            else:
                self._round_robin.wait(queue.owner, partial(self.deliver, queue))

    def deliver_stored(self, queues: Iterable[Queue], first: int) -> None:
        """Deliver the messages that were just stored, from ``first`` on."""
        until = self._loop.time() + DUE_S
        for queue in queues:
            if queue.expires or self._loop.time() < until:
                self.deliver(queue, first)
            else:
                self._due.soon(queue)

    def deliver(self, queue: Queue, fresh: int = 1 << 63) -> None:
        """Deliver the messages that can be delivered now.

        Args:
            fresh: first message that has just arrived: from it on, messages may be delivered before they expire,
                however short their time to live.
        """
        # While messages are going back to the queue, a delivery could overtake older ones among them.
        if queue.deleted or queue.returning or self._is_closed:
            return
        batches = _Batches()
        has_share = partial(self._contents.has_share, queue)
        left, until = SLICE, self._loop.time() + DUE_S
        while left and queue.ready.count and (queue.consumptions or queue.getters):
            left = left if self._loop.time() < until else 1
            seq, priority = queue.ready.peek()
            message = queue.loaded.messages.get(seq)
            if message is None:
                if queue.loaded.is_gone(seq):
                    self._contents.lose(queue, seq)
                    left -= 1
                    continue
                # Read only when a reader can take a message: pages of idle queues would use the memory that all queues
                # share.
                if _chosen(queue, None, has_share) is not None:
                    self._read(queue)
                break
            if queue.expires and seq < fresh and self._deadline(queue, message) <= self._clock():
                if self._contents.may_bury(queue):
                    self._contents.remove_next(queue, DeathReason.EXPIRED)
                    left -= 1
                    continue
                break
            consumption = _chosen(queue, message.topic, has_share)
            if consumption is None:
                # A consumer with the right to the message only lacks credit: wait for it, which keeps the order.
                # Otherwise set the message aside, so that it does not block the messages behind it.
                if queue.consumptions.may_anybody_read(message.topic):
                    break
                self._withhold(queue)
                left -= 1
                continue
            # The mark must be durable before the first delivery: after a crash it flags the message as redelivered.
            if queue.kept and seq >= queue.marks.durable:
                if queue.marks.is_writing:
                    queue.marks.late()
                    break
                count = 1 if consumption in queue.getters else min(consumption.room, SLICE)
                self._mark(queue, queue.marks.ahead(count))
                break
            if consumption in queue.getters:
                batches.add((consumption,), self._give_one(queue, consumption, message, priority), (message,))
                left -= 1
                continue
            takers, count = queue.consumptions.by_turns(
                consumption, message.topic, self._unacknowledged, min(left, RUN_MAX)
            )
            run = self._run(queue, takers, message, count, fresh) if count > 1 else [message]
            batches.add(takers, self._give(queue, takers, run, priority), run)
            left -= len(run)
        self._send(batches.all)
        if batches.all and queue.consumptions and queue.ready.count:
            self._prepare(queue)
        self._after(queue, more=not left)

    def _prepare(self, queue: Queue) -> None:
        """Read and mark what consumers that keep up will get next, so that they need not wait for the disk."""
        loaded, marks = len(queue.loaded.messages), queue.marks
        if loaded < PAGE_RECORDS // 2 and loaded < queue.ready.count:
            self._read(queue)
        if queue.kept and marks.is_due(queue.ready.peek()[0]) and queue.ready.has_new(marks.durable):
            with contextlib.suppress(LogError):  # the readers will wait for it, then
                self._write_mark(queue, marks.reach, is_early=True)

    def _run(
        self, queue: Queue, takers: Sequence[Consumption], message: LogRecord, count: int, fresh: int
    ) -> list[LogRecord]:
        """Return the next message and those that consumers may get with it: they are in memory, have its topic where
        access rules may tell topics apart, are marked where they have to be, and have not expired.

        Args:
            fresh: as for ``deliver``.
        """
        loaded, run = queue.loaded.messages, list[LogRecord]()
        topic = None if all(each.client.identity is None for each in takers) else message.topic
        end = queue.marks.durable if queue.kept else SEQ_END
        now = self._clock() if queue.expires else 0
        ttl_ms, headers, expiry = queue.definition.arguments.message_ttl_ms, message.headers, _expiry(message.headers)
        for seq in queue.ready.peek_run(count):
            found = loaded.get(seq)
            if found is None or seq >= end or (topic is not None and found.topic != topic):
                break
            if now and seq < fresh:
                if found.headers is not headers:  # mostly all of them have the same
                    headers, expiry = found.headers, _expiry(found.headers)
                if expiry <= now or (ttl_ms is not None and found.time + ttl_ms * _MS_NS <= now):
                    break
            run.append(found)
        return run or [message]

    def _after(self, queue: Queue, *, more: bool) -> None:
        if more:
            self._round_robin.wait(queue.owner, partial(self.deliver, queue))
        # The queue is empty, and no page is on its way: answer the waiting gets.
        if queue.getters and not queue.ready.count and not queue.loaded.is_reading:
            for getter in queue.take_getters():
                self._contents.free_share(getter.client.owner)
                getter.end()
                getter.consumer.deliver([])
        if queue.expires and not more:
            self._time(queue)

    def _send(self, batches: list[tuple[Consumption, list[tuple[Delivery, LogRecord]]]]) -> None:
        for consumption, batch in batches:
            self.delivered += len(batch)
            try:
                consumption.consumer.deliver(batch)
            except Exception:  # one client's failure must not keep messages from the others
                logger.exception("messages of queue %r could not be sent to a consumer", consumption.queue.name)

    def _taken(
        self, queue: Queue, takers: Sequence[Consumption], run: Sequence[LogRecord], priority: int
    ) -> list[Delivery]:
        """Take the next messages of a queue, for readers by turns."""
        marks = queue.marks
        sizes = queue.take_run(run)
        self._contents.unload_run(queue, run)
        if marks.attempts or run[0].seq < marks.suspect:
            found = [
                Delivery(
                    each.seq, size, marks.attempts.get(each.seq, 0), priority, marks.was_delivered(each.seq), taker
                )
                for each, size, taker in zip(run, sizes, cycle(takers), strict=False)
            ]
            self.redelivered += sum(each.redelivered for each in found)
            return found
        return [
            Delivery(each.seq, size, 0, priority, False, taker)
            for each, size, taker in zip(run, sizes, cycle(takers), strict=False)
        ]

    def _give_one(self, queue: Queue, getter: Consumption, message: LogRecord, priority: int) -> list[Delivery]:
        """Give a message to a client that asked for one. Its share was taken when it asked."""
        taken = self._taken(queue, (getter,), (message,), priority)
        if getter.needs_acks:
            queue.unsettled.hold_run(taken)
            getter.unsettled.update(taken)
        else:
            self._contents.free_share(getter.client.owner)
            self._contents.leave_all(queue, taken)
        queue.answered(getter)
        getter.end()
        return taken

    def _give(
        self, queue: Queue, takers: Sequence[Consumption], run: Sequence[LogRecord], priority: int
    ) -> list[Delivery]:
        """Give messages to consumers, one to each by turns."""
        taken = self._taken(queue, takers, run, priority)
        for at, consumption in enumerate(takers[: len(taken)]):
            own = taken[at :: len(takers)]
            consumption.take(len(own))
            if consumption.needs_acks:
                self._unacknowledged.hold(consumption.client.owner, len(own))
                queue.unsettled.hold_run(own)
                consumption.unsettled.update(own)
            else:
                self._contents.leave_all(queue, own)
        queue.consumptions.took(takers, len(taken))
        return taken

    # --- readers

    def _withhold(self, queue: Queue) -> None:
        """Set the next message aside until another reader comes."""
        self._contents.unload(queue, queue.ready.withhold())

    # --- time to live

    def _deadline(self, queue: Queue, message: LogRecord) -> int:
        """Return the time at which a message expires, ns since 1970; a far one where it does not."""
        deadline, ttl_ms = _expiry(message.headers), queue.definition.arguments.message_ttl_ms
        return deadline if ttl_ms is None else min(deadline, message.time + ttl_ms * _MS_NS)

    def _time(self, queue: Queue) -> None:
        """Remove expired messages, and start a timer for the next one."""
        queue.set_timer()
        left, until = SLICE, self._loop.time() + DUE_S
        while queue.ready.count:
            seq, _ = queue.ready.peek()
            message = queue.loaded.messages.get(seq)
            if queue.loaded.is_gone(seq):
                self._contents.lose(queue, seq)
                continue
            if message is None:
                self._read(queue)
                return
            left_ns = self._deadline(queue, message) - self._clock()
            if left_ns > 0:
                if left_ns < _FAR_NS:
                    queue.set_timer(self._loop.call_later(left_ns / 1e9 + _LATE_S, self._timed, queue))
                return
            if not self._contents.may_bury(queue):
                return
            left -= 1
            if not left or self._loop.time() >= until:
                self._round_robin.wait(queue.owner, partial(self.deliver, queue))
                return
            self._contents.remove_next(queue, DeathReason.EXPIRED)

    def _timed(self, queue: Queue) -> None:
        queue.set_timer()
        if not queue.deleted:
            self._due.soon(queue)

    # --- before a delivery

    def before_store(self, first: int, queues: Iterable[tuple[Queue, ...]]) -> None:
        """Mark messages that are about to be stored and can be delivered at once."""
        rooms: dict[Queue, int] = {}
        ends: dict[Queue, int] = {}
        seq = first
        for for_queues, stretch in groupby(queues):
            count = len(list(stretch))
            for queue in for_queues:
                # Behind ready messages a new one is not delivered at once, so its mark can wait for ``_mark``.
                if not queue.kept or not queue.consumptions or queue.ready.count:
                    continue
                room = rooms.get(queue)
                if room is None:
                    room = queue.consumptions.room(AHEAD_MAX)
                if room > 0:
                    ends[queue] = seq + min(room, count)
                rooms[queue] = room - count
            seq += count
        for queue, end in ends.items():
            if end > queue.marks.durable:
                self._writer.marked(queue, end)
                queue.marks.write_with_messages(end)
        if ends:
            with contextlib.suppress(LogError):  # the append of the messages reports the same error
                self._writer.flush()

    def _mark(self, queue: Queue, count: int) -> None:
        """Record in the log that the next messages may have been delivered, and deliver them once it is durable."""
        try:
            self._write_mark(queue, count, is_early=False)
        except LogError as error:
            logger.warning("messages of queue %r wait: %s", queue.name, error)
            self._loop.call_later(RETRY_S, self._due.soon, queue)

    def _write_mark(self, queue: Queue, count: int, *, is_early: bool) -> None:
        seqs = queue.ready.next(count)
        end = max(seqs) + 1
        self._writer.marked(queue, end)
        self._writer.flush()
        queue.marks.write(end, seqs[len(seqs) // 2], is_early=is_early)
        self._log.on_durable(partial(self._marked, queue, end))

    def _marked(self, queue: Queue, end: int, error: BaseException | None) -> None:
        if error is None:
            queue.marks.written(end)
            self._due.soon(queue)

    def _read(self, queue: Queue) -> None:
        """Read the next messages from the log."""
        if queue.loaded.may_read and not self._is_closed:
            page = self._loop.create_task(self._read_page(queue))
            queue.loaded.read(page)
            self._loading.add(page)
            page.add_done_callback(self._loading.discard)

    async def _read_page(self, queue: Queue) -> None:
        try:
            self._contents.make_room()
            room = max(memory.LOADED_BYTES_MAX - self._contents.loaded_bytes, 0) // PAGE_SHARE
            mean = queue.ready.bytes // max(queue.count, 1) + LOADED_ENTRY_BYTES
            page = max(1, min(PAGE_RECORDS, min(PAGE_BYTES, room) // mean))
            wanted = queue.ready.next(page + min(len(queue.loaded.messages), PAGE_RECORDS // 2))
            end = self._log.durable_end(self._stream)
            missing = [seq for seq in wanted if seq not in queue.loaded.messages]
            found = await self._messages.fetch(self._stream, missing)
        except Exception as error:  # on any error: consumers must not wait until something else happens to the queue
            expected = isinstance(error, (OSError, LogFailed))
            logger.error("messages of queue %r cannot be read: %s", queue.name, error, exc_info=not expected)
            queue.loaded.wait()
            self._loop.call_later(RETRY_S, self._retry, queue)
            return
        finally:
            queue.loaded.was_read()
        if queue.deleted:
            return
        # Meanwhile messages may have been purged, or dropped.
        still = queue.ready.next(len(wanted))
        self._contents.load(queue, [found[seq] for seq in still if seq in found])
        if len(found) < len(missing):
            asked = set(missing)
            for seq in still:
                if seq in asked and seq not in found and seq < end and seq not in queue.loaded.messages:
                    queue.loaded.gone(seq)
        seq = queue.ready.peek()[0] if queue.ready.count else -1
        if seq >= end and seq not in queue.loaded.messages:
            queue.loaded.wait()
            self._log.on_durable(partial(self._is_durable, queue))
            return
        self.deliver(queue)

    def _retry(self, queue: Queue) -> None:
        queue.loaded.resume()
        self._due.soon(queue)

    def _is_durable(self, queue: Queue, error: BaseException | None) -> None:
        queue.loaded.resume()
        if error is None:
            self._due.soon(queue)


def _expiry(headers: HeaderPairs) -> int:
    """Return the time at which a message with these headers expires in any queue, a far one for never."""
    expiry = 1 << 63
    for name, value in headers:
        if name == EXPIRES and type(value) is int:
            expiry = value
    return expiry


class _Batches:
    """Messages on their way to readers. A batch ends where another consumer of its client has its turn: so a client
    with several consumers gets messages in order."""

    def __init__(self) -> None:
        self.all: list[tuple[Consumption, list[tuple[Delivery, LogRecord]]]] = []
        self._latest: dict[QueueClient, tuple[Consumption, list[tuple[Delivery, LogRecord]]]] = {}

    def add(self, takers: Sequence[Consumption], deliveries: Sequence[Delivery], messages: Sequence[LogRecord]) -> None:
        """Add messages for readers that get them by turns."""
        pairs, width = list(zip(deliveries, messages, strict=True)), len(takers)
        if len({consumption.client for consumption in takers}) == width:
            for at, consumption in enumerate(takers[: len(pairs)]):
                self._of(consumption).extend(pairs[at::width])
        else:
            for at, pair in enumerate(pairs):
                self._of(takers[at % width]).append(pair)

    def _of(self, consumption: Consumption) -> list[tuple[Delivery, LogRecord]]:
        batch = self._latest.get(consumption.client)
        if batch is None or batch[0] is not consumption:
            batch = self._latest[consumption.client] = consumption, []
            self.all.append(batch)
        return batch[1]


def _chosen(queue: Queue, topic: bytes | None, has_share: Callable[[Owner], bool]) -> Consumption | None:
    """Return the reader that gets the next message; None when no reader can take it now.

    Args:
        topic: of the message; None when it is not known yet.
        has_share: as for ``Consumers.choose``.
    """
    for getter in queue.getters:
        if topic is None or getter.client.may_read(topic):
            return getter
    return queue.consumptions.choose(topic, has_share)


_FAR_NS = 1 << 60
_LATE_S = 0.001
"""Delay added to a timer, because the two clocks differ."""


# Arrival of messages: of publishes that a turn has stored, and of dead letters, which leave one queue for others.

RECORD_BYTES = 2048
"""Room that a dead letter takes in the log beside key, payload and headers."""


class Arrivals:
    """Messages on their way into queues. Event loop's thread only."""

    def __init__(  # noqa: PLR0917
        self,
        context: QueueContext,
        topology: Topology,
        writer: QueueStateWriter,
        contents: Contents,
        deliveries: Deliveries,
        publishing: ExchangePublishing,
    ) -> None:
        self.topology = topology
        self.stream = context.stream
        self._log = context.log
        self._writer = writer
        self._contents = contents
        self._deliveries = deliveries
        self._publishing = publishing

    def of_topic(self, topic: bytes) -> QueueTargets | None:
        """Return the queues of a topic that clients of other protocols publish to: the ones bound to ``amq.topic``."""
        topology = self.topology
        exchange = topology.exchanges[TOPIC_EXCHANGE]
        if not exchange.bindings and exchange.definition.alternate is None:
            return None
        key = routing_key_of(topic.decode())
        names, by_headers = topology.walk(exchange, key, {})
        if by_headers:
            return QueuesByHeaders(
                lambda headers: topology.targets(topology.walk(exchange, key, headers)[0], reserved=False)
            )
        return topology.targets(names, reserved=False) if names else None

    def before_store(self, first_seq: int, admitted: Sequence[Admitted]) -> None:
        """Note that messages are about to be stored: some are delivered at once."""
        self._deliveries.before_store(first_seq, [each.queues for each in admitted if isinstance(each, QueueSet)])

    def stored(self, records: Records, admitted: Sequence[Admitted], now: int) -> None:
        """Add messages to their queues, and deliver them."""
        self.topology.admission.stored()
        due: dict[Queue, None] = {}
        first = -1
        keys, payloads, headers, flags = records.keys, records.payloads, records.headers, records.flags
        messages = [
            record_of((seq, key, payload, flags.get(index, 0), headers.get(index, ()), now))
            for index, (seq, key, payload) in enumerate(zip(records.seqs, keys, payloads, strict=True))
            if seq is not None
        ]
        if messages:
            first = messages[0].seq
        if len(messages) < len(admitted):
            admitted = [each for seq, each in zip(records.seqs, admitted, strict=True) if seq is not None]
        at = 0
        # The same for numbers without gaps, which all have where none was refused.
        is_whole = isinstance(records.seqs, range)
        steps = repeat(0) if is_whole else (message.seq - index for index, message in enumerate(messages))
        for (for_queues, priority, _), stretch in groupby(zip(admitted, _priorities(messages), steps, strict=False)):
            assert isinstance(for_queues, QueueSet), "no one else admits messages"
            # A queue may have been deleted between the publish and its commit.
            queues = [queue for queue in for_queues.queues if not queue.deleted]
            run = messages[at : at + len(list(stretch))]
            at += len(run)
            self._hold(run, len(queues))
            for queue in queues:
                self._contents.add(queue, run, priority)
                due[queue] = None
        self._writer.message_bytes += sum([len(each.payload) for each in messages]) + MESSAGE_BYTES * len(messages)
        self._deliveries.deliver_stored(due, first)
        for queue in due:
            self._contents.limit(queue)
            self._contents.trim(queue)
        self._publishing.stored(due)

    def _hold(self, run: Sequence[LogRecord], queues: int) -> None:
        """Note how many queues need messages whose numbers follow each other."""
        ref_counts = self._contents.ref_counts
        if queues == 1:
            ref_counts.hold_run(run[0].seq, run[-1].seq + 1)
            return
        for message in run:
            ref_counts.hold(message.seq, queues)

    def move(
        self, records: Records, admitted: Sequence[QueueSet], leaving: Sequence[tuple[Queue, Delivery]], now: int
    ) -> None:
        """Append messages for their queues and remove others, which they come from, in one commit: a crash keeps both
        or neither.

        Args:
            records: those to append; gets their numbers.
            admitted: the queues of each of them.
            leaving: deliveries that leave their queues for good.
            now: time of the messages, ns since 1970.

        Raises:
            LogFull, LogFailed: nothing was changed.
        """
        size = (
            sum(map(len, records.keys)) + sum(map(len, records.payloads)) + sum(map(_bytes, records.headers.values()))
        )
        with self._log.together(size + RECORD_BYTES * (2 + len(leaving)), uses_spare=True):
            first = self._log.next_seq(self.stream)
            self.before_store(first, admitted)
            self._log.append(
                self.stream, now, records.keys, records.payloads, records.headers or None, records.flags or None
            )
            for queue, delivery in leaving:
                self._contents.forget(delivery, queue)
                self._contents.leave(queue, delivery.seq, delivery.size)
            self._writer.flush()
        records.seqs = range(first, first + len(records.keys))
        self.stored(records, admitted, now)


def _priorities(messages: Iterable[LogRecord]) -> list[int]:
    """Return the priority of each message."""
    found: list[int] = []
    headers: HeaderPairs | None = None
    priority = 0
    for message in messages:
        if message.headers is not headers:  # mostly all of them have the same
            headers = message.headers
            priority = priority_of(headers)
        found.append(priority)
    return found


def _bytes(headers: HeaderPairs) -> int:
    return sum(64 + len(name) + (len(value) if isinstance(value, str | bytes) else 8) for name, value in headers)
