"""Dead letters: messages that leave a queue without being handled, and go on by an exchange that the queue names.

A message leaves its queue in the commit in which it stands where it goes: a crash keeps both or neither. It goes to
queues only. Streams and subscribers had it when it was published.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from weft.edge_node.ingest.queue_targets import Admitted
from weft.edge_node.ingest.record import Origin, Records
from weft.edge_node.ingest.routes import Destination, Route
from weft.edge_node.queues.contents.contents import Contents
from weft.edge_node.queues.contents.deaths import Death, goes_in_circles, with_death
from weft.edge_node.queues.contents.delivering import Deliveries, Messages
from weft.edge_node.queues.message import Delivery, QueueMessage
from weft.edge_node.queues.queue import Queue
from weft.edge_node.queues.routing.targets import Admission, BoundQueues, QueueSet, own_headers
from weft.edge_node.queues.routing.topology import Topology
from weft.edge_node.queues.state.writer import QueueStateWriter
from weft.edge_node.queues.topics import origin_of, topic_of
from weft.protocols.batch import HeaderPairs
from weft.storage.segment_log import LogError

STEP_RECORDS = 64
"""Messages that go on in one step."""
STEP_BYTES = 1 << 20
HELD_MAX = 1024
"""Messages on their way of which the payload is in memory; those of others are read again. Queues of which messages
expire wait when it is more."""
RETRY_S = 1.0
RECORD_BYTES = 2048
"""Room that a message takes in the log beside key, payload and headers."""

logger = logging.getLogger(__name__)


class Log(Protocol):
    """Part of the segment log that dead letters need."""

    def append(  # noqa: PLR0917
        self,
        stream: int,
        time: int,
        keys: list[bytes],
        payloads: list[bytes],
        headers: dict[int, HeaderPairs] | None = None,
        flags: dict[int, int] | None = None,
    ) -> int:
        """Take a run of records."""
        ...

    def together(self, reserve_bytes: int, *, uses_spare: bool = False) -> AbstractContextManager[object]:
        """Return a context in which all appends go into one commit."""
        ...

    def next_seq(self, stream: int) -> int:
        """Return the number that the next record will get."""
        ...

    def durable_end(self, stream: int) -> int:
        """Return the number after the last durable record."""
        ...


class _Dead(NamedTuple):
    queue: Queue
    delivery: Delivery
    message: QueueMessage | None
    death: Death


class Letter(NamedTuple):
    """A message on its way from a queue that has let it go, or did not take it."""

    topic: bytes
    headers: HeaderPairs
    queues: BoundQueues


class DeadLetters:
    """Sends dead letters on. Event loop's thread only.

    Args:
        targets: names of queues -> what takes messages for them.
        store_turn: stores what clients published before.
        stored: called with what was appended, as ``Queueing.stored``.
        clock: ns since 1970.
    """

    def __init__(  # noqa: PLR0917
        self,
        log: Log,
        stream: int,
        messages: Messages,
        topology: Topology,
        targets: Callable[[frozenset[str]], BoundQueues | None],
        admission: Admission,
        contents: Contents,
        deliveries: Deliveries,
        writer: QueueStateWriter,
        store_turn: Callable[[], None],
        stored: Callable[[Records, Sequence[Admitted], int], None],
        clock: Callable[[], int],
    ) -> None:
        self._log = log
        self._stream = stream
        self._messages = messages
        self._topology = topology
        self._targets = targets
        self._admission = admission
        self._contents = contents
        self._deliveries = deliveries
        self._writer = writer
        self._store_turn = store_turn
        self._stored = stored
        self._clock = clock
        self._waiting: deque[_Dead] = deque()
        self._wanting: dict[Queue, None] = {}
        """Queues that have more."""
        self._task: asyncio.Task[None] | None = None
        self.count = 0
        """Messages that went on."""

    def add(self, queue: Queue, delivery: Delivery, message: QueueMessage | None, death: Death) -> None:
        """Take over a message, which is settled when it stands where it goes."""
        held = message if len(self._waiting) < HELD_MAX else None
        self._waiting.append(_Dead(queue, delivery, held, death))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def has_room(self, queue: Queue) -> bool:
        """Return whether there is room for one more; if not, the queue is served when there is."""
        if len(self._waiting) < HELD_MAX:
            return True
        self._wanting[queue] = None
        return False

    def close(self) -> None:
        """Stop. What was not sent on is in its queue again after the next start."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            while self._waiting:
                step = [self._waiting.popleft() for _ in range(min(STEP_RECORDS, len(self._waiting)))]
                try:
                    await self._send(step)
                except (OSError, LogError) as error:
                    logger.warning("dead letters wait: %s", error)
                    self._waiting.extendleft(reversed(step))
                    await asyncio.sleep(RETRY_S)
                except Exception:  # a mistake of ours: it must not hold up the other dead letters
                    logger.exception("%d dead letters could not be sent on, and wait for the next start", len(step))
                if self._wanting and len(self._waiting) * 2 <= HELD_MAX:
                    wanting, self._wanting = self._wanting, {}
                    for queue in wanting:
                        self._deliveries.soon(queue)
                await asyncio.sleep(0)
        finally:
            self._task = None

    async def _send(self, step: list[_Dead]) -> None:
        unread = [each.delivery.seq for each in step if each.message is None]
        found = await self._messages.fetch(self._stream, unread) if unread else {}
        durable = self._log.durable_end(self._stream)
        whole: list[_Dead] = []
        for each in step:
            record = found.get(each.delivery.seq)
            if each.message is not None:
                whole.append(each)
            elif record is not None:
                whole.append(each._replace(message=QueueMessage(*record)))
            elif each.delivery.seq < durable:
                whole.append(each)  # the log has lost it
            else:
                self._waiting.append(each)  # it can be read when it is durable
        if not whole:
            await asyncio.sleep(RETRY_S / 100)
        part, size = list[_Dead](), 0
        for at, each in enumerate(whole):
            part.append(each)
            size += len(each.message.payload) if each.message is not None else 0
            if size >= STEP_BYTES or at == len(whole) - 1:
                self._store(part)
                part, size = [], 0

    def _store(self, part: list[_Dead]) -> None:
        """Append messages where they go, and take them out of where they were.

        Raises:
            LogFull, LogFailed: nothing was changed.
        """
        part = [each for each in part if self._is_there(each)]
        self._store_turn()
        now = self._clock()
        records, admitted = Records(), list[QueueSet]()
        for each in part:
            for_queues = self._letter(each, records, now)
            if for_queues is not None:
                admitted.append(for_queues)
        size = (
            sum(map(len, records.keys)) + sum(map(len, records.payloads)) + sum(map(_bytes, records.headers.values()))
        )
        with self._log.together(size + RECORD_BYTES * (2 + len(part)), uses_spare=True):
            first = self._log.next_seq(self._stream)
            self._deliveries.before_store(first, [each.queues for each in admitted])
            self._log.append(
                self._stream, now, records.keys, records.payloads, records.headers or None, records.flags or None
            )  # fmt: skip
            for queue, delivery, _, _ in part:
                self._contents.forget(delivery, queue)
                self._contents.leave(queue, delivery.seq, delivery.size)
            self._writer.flush()
        records.seqs = range(first, first + len(records.keys))
        self.count += len(records.keys)
        self._stored(records, admitted, now)

    def _is_there(self, each: _Dead) -> bool:
        """Return whether the message is still to be sent on: its queue may have been deleted."""
        return not each.queue.deleted and each.queue.unsettled.get(each.delivery.seq) is each.delivery

    def _letter(self, each: _Dead, records: Records, now: int) -> QueueSet | None:
        """Add what is appended for a message; return its queues, None where it goes nowhere."""
        queue, _, message, death = each
        if message is None:
            return None
        letter = self.letter(queue, death, message.topic, message.headers, now)
        if letter is None:
            return None
        admitted = self._admitted(letter.queues, queue, len(message.payload))
        if admitted is not None:
            records.add(letter.topic, message.payload, _NODE, message.flags, (*letter.headers, admitted.header))
        return admitted

    def _admitted(self, bound: BoundQueues, source: Queue, size: int) -> QueueSet | None:
        """Return the queues that take a dead letter. Lengths at which a queue rejects are a matter of publishers, who
        hear of it; an owner's share bounds all messages. The room that the message leaves is enough for one queue."""
        own, found = source.definition.owner, list[Queue]()
        freed = True
        for queue in bound.queues:
            if freed and queue.definition.owner == own:
                freed = False
            elif not self._admission.has_share(queue, size):
                continue
            found.append(queue)
        return QueueSet(found) if found else None

    def letters_of(
        self, queues: Sequence[Queue], topic: bytes, headers: HeaderPairs
    ) -> list[tuple[Route, bytes, HeaderPairs]]:
        """Return route, topic and headers of a publish as the dead letter of queues that were full."""
        now = self._clock()
        found = [self.letter(queue, Death.MAXLEN, topic, headers, now) for queue in queues]
        return [
            (Route(_QUEUES_ONLY, live=False, marked=False, queues=each.queues), each.topic, each.headers)
            for each in found
            if each is not None
        ]

    def letter(self, queue: Queue, death: Death, topic: bytes, headers: HeaderPairs, now: int) -> Letter | None:
        """Return how a message goes on that a queue has, or did not take; None where it goes nowhere.

        Args:
            headers: as they are stored.
        """
        arguments = queue.definition.arguments
        exchange = self._topology.exchanges.get(arguments.dead_letter_exchange or "")
        if exchange is None:
            return None
        came_by = origin_of(topic, headers)
        key = came_by[1] if arguments.dead_letter_routing_key is None else arguments.dead_letter_routing_key
        goes_by = topic_of(exchange.name, key) if key != came_by[1] else topic.decode(errors="replace")
        headers = with_death(headers, death, queue.name, came_by, (exchange.name, key), goes_by, now)
        names, _ = self._topology.walk(exchange, key, own_headers(headers))
        found = self._targets(frozenset(each for each in names if not goes_in_circles(headers, each)))
        return None if found is None else Letter(goes_by.encode(), headers, found)


def _bytes(headers: HeaderPairs) -> int:
    return sum(64 + len(name) + (len(value) if isinstance(value, str | bytes) else 8) for name, value in headers)


_NODE = Origin(None)
_QUEUES_ONLY = Destination((), kept_for_sessions=False, unrouted=False)
