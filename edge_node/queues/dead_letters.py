"""Dead letters: messages that leave a queue unhandled, and go on through an exchange that the queue names.

A message leaves its queue in the commit that stores it at its destination: a crash keeps both or neither. It goes to
queues only. Streams and subscribers had it when it was published.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from weft.bounds import Owner, TurnBudget
from weft.edge_node.ingest.record import Admitted, Destination, NodeSource, Records, Route
from weft.edge_node.queues.contents import Contents, Death, left_before, with_death
from weft.edge_node.queues.definitions import origin_of, topic_of
from weft.edge_node.queues.delivery import Deliveries
from weft.edge_node.queues.exchange import Admission, BoundQueues, Exchange, QueueSet, Topology, own_headers
from weft.edge_node.queues.queue import Queue
from weft.edge_node.queues.ready import Delivery
from weft.edge_node.queues.state import QueueStateWriter
from weft.edge_node.sessions.backlog import Backlog
from weft.edge_node.subscriptions.message import LogRecord
from weft.protocols.batch import HeaderPairs
from weft.storage.segment_log import LogError, SegmentLog

STEP_RECORDS = 64
"""Maximum number of messages of one owner in one step."""
STEP_BYTES = 1 << 20
STEP_COST = 4096
"""Maximum cost of one step: look-ups (``Topology.steps``), and the queues that its messages go to."""
STEP_S = 0.002
"""Time after which a step ends with the current message."""
HELD_MAX = 1024
"""Maximum number of waiting messages whose payload is in memory; other payloads are read again."""
WAITING_MAX = 256
"""Maximum number of waiting messages of one owner. Beyond it, queues whose messages expire wait."""
RETRY_S = 1.0
RECORD_BYTES = 2048
"""Room that a message takes in the log beside key, payload and headers."""

logger = logging.getLogger(__name__)


class _Dead(NamedTuple):
    queue: Queue
    delivery: Delivery
    message: LogRecord | None
    death: Death


class Letter(NamedTuple):
    """A message on its way from a queue that released or rejected it."""

    topic: bytes
    headers: HeaderPairs
    queues: BoundQueues


class DeadLetters:
    """Sends dead letters on. Event loop's thread only.

    Args:
        targets: names of queues -> the receiver of their messages.
        store_turn: stores the messages that clients published before.
        stored: called with the appended records, as ``Queueing.stored``.
        next_round: calls back at an owner's turn.
        clock: ns since 1970.
    """

    def __init__(  # noqa: PLR0917
        self,
        log: SegmentLog,
        stream: int,
        messages: Backlog,
        topology: Topology,
        targets: Callable[[frozenset[str]], BoundQueues | None],
        admission: Admission,
        contents: Contents,
        deliveries: Deliveries,
        writer: QueueStateWriter,
        store_turn: Callable[[], None],
        stored: Callable[[Records, Sequence[Admitted], int], None],
        next_round: Callable[[Owner | None, Callable[[], None]], None],
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
        self._next_round = next_round
        self._clock = clock
        self._waiting: OrderedDict[Owner, deque[_Dead]] = OrderedDict()
        """Owner -> messages that its queues have released; the owner whose turn it is comes first."""
        self._held = 0
        """Number of these messages that are in memory."""
        self._wanting: dict[Owner, dict[Queue, None]] = {}
        """Owner -> queues that have more."""
        self._task: asyncio.Task[None] | None = None
        self.count = 0
        """Messages that went on."""

    def add(self, queue: Queue, delivery: Delivery, message: LogRecord | None, death: Death) -> None:
        """Take over a message; it is settled once it is stored at its destination."""
        kept = message if self._held < HELD_MAX else None
        self._put([_Dead(queue, delivery, kept, death)])
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def has_room(self, queue: Queue) -> bool:
        """Return whether there is room for one more; if not, the queue is served when there is."""
        owner = queue.owner
        if len(self._waiting.get(owner, ())) < WAITING_MAX:
            return True
        self._wanting.setdefault(owner, {})[queue] = None
        return False

    def _put(self, dead: list[_Dead], *, first: bool = False) -> None:
        """Queue messages of one owner, before or behind its others."""
        for each in reversed(dead) if first else dead:
            waiting = self._waiting.setdefault(each.queue.owner, deque())
            if first:
                waiting.appendleft(each)
            else:
                waiting.append(each)
            self._held += each.message is not None

    def _take(self) -> tuple[Owner, list[_Dead]]:
        """Return an owner and its next messages, and move it behind the other owners."""
        owner, waiting = self._waiting.popitem(last=False)
        step = [waiting.popleft() for _ in range(min(STEP_RECORDS, len(waiting)))]
        self._held -= sum(each.message is not None for each in step)
        if waiting:
            self._waiting[owner] = waiting
        return owner, step

    def close(self) -> None:
        """Stop. Unsent messages are in their queues again after the next start."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            while self._waiting:
                owner, step = self._take()
                try:
                    await self._send(owner, step)
                except (OSError, LogError) as error:
                    logger.warning("dead letters wait: %s", error)
                    self._put([each for each in step if self._is_there(each)], first=True)
                    await asyncio.sleep(RETRY_S)
                except Exception:  # a mistake of ours: it must not hold up the other dead letters
                    logger.exception("%d dead letters could not be sent on, and wait for the next start", len(step))
                if owner in self._wanting and len(self._waiting.get(owner, ())) * 2 <= WAITING_MAX:
                    for queue in self._wanting.pop(owner):
                        self._deliveries.soon(queue)
                if self._waiting:
                    await self._turn(next(iter(self._waiting)))
        finally:
            self._task = None

    async def _turn(self, owner: Owner) -> None:
        """Wait until it is an owner's turn."""
        turn = asyncio.get_running_loop().create_future()
        self._next_round(owner, lambda: None if turn.done() else turn.set_result(None))
        await turn

    async def _send(self, owner: Owner, step: list[_Dead]) -> None:
        unread = [each.delivery.seq for each in step if each.message is None]
        found = await self._messages.fetch(self._stream, unread) if unread else {}
        durable = self._log.durable_end(self._stream)
        whole: list[_Dead] = []
        for each in step:
            record = found.get(each.delivery.seq)
            if each.message is not None:
                whole.append(each)
            elif record is not None:
                whole.append(each._replace(message=record))
            elif each.delivery.seq < durable:
                whole.append(each)  # the log has deleted it
            else:
                self._put([each])  # it can be read when it is durable
        if not whole:
            await asyncio.sleep(RETRY_S / 100)
        while whole := self._store(whole):
            await self._turn(owner)

    def _store(self, step: list[_Dead]) -> list[_Dead]:
        """Append messages at their destinations and remove them from their queues: as many as a turn has time for.
        Return the others.

        Raises:
            LogFull, LogFailed: nothing was changed.
        """
        self._store_turn()
        now = self._clock()
        part, rest, size = list[_Dead](), iter(step), 0
        records, admitted = Records(), list[QueueSet]()
        clock = asyncio.get_running_loop().time
        budget = TurnBudget(STEP_COST, STEP_S, clock)
        budget.begin(clock())
        for each in rest:
            if not self._is_there(each):
                continue
            part.append(each)
            before = self._topology.steps
            for_queues = self._letter(each, records, now)
            if for_queues is not None:
                admitted.append(for_queues)
            size += len(each.message.payload) if each.message is not None else 0
            width = 0 if for_queues is None else len(for_queues.queues)
            if not budget.spend(1 + width + self._topology.steps - before) or size >= STEP_BYTES:
                break
        if part:
            self._append(part, records, admitted, now)
        return list(rest)

    def _append(self, part: list[_Dead], records: Records, admitted: list[QueueSet], now: int) -> None:
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
        """Return whether the message must still be sent: its queue may have been deleted."""
        return not each.queue.deleted and each.delivery in each.queue.unsettled

    def _letter(self, each: _Dead, records: Records, now: int) -> QueueSet | None:
        """Add the records to append for a message; return its queues, None where it has no destination."""
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
        """Return the queues that take a dead letter. Maximum lengths apply to publishers only, which get an answer; an
        owner's share bounds all messages. The room that the message leaves is enough for one queue."""
        own, found = source.definition.owner, list[Queue]()
        freed = True
        for queue in bound.queues:
            if freed and queue.owner == own:
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
        """Return the dead letter of a message that a queue has, or rejected; None where it has no destination.

        Args:
            headers: in their stored form.
        """
        arguments = queue.definition.arguments
        exchange = self._topology.exchanges.get(arguments.dead_letter_exchange or "")
        if exchange is None:
            return None
        came_by = origin_of(topic, headers)
        key = came_by[1] if arguments.dead_letter_routing_key is None else arguments.dead_letter_routing_key
        goes_by = topic_of(exchange.name, key) if key != came_by[1] else topic.decode(errors="replace")
        headers = with_death(headers, death, queue.name, came_by, (exchange.name, key), goes_by, now)
        found = self._bound(exchange, key, headers)
        left = left_before(headers)
        if found is not None and any(each.name in left for each in found.queues):
            found = self._targets(frozenset(each.name for each in found.queues if each.name not in left))
        return None if found is None else Letter(goes_by.encode(), headers, found)

    def _bound(self, exchange: Exchange, key: str, headers: HeaderPairs) -> BoundQueues | None:
        """Return the queues of a dead letter; where headers do not matter, all messages of one key share a look-up."""
        known = self._topology.known(exchange, key)
        if not known.by_headers:
            return known.targets
        names, _ = self._topology.walk(exchange, key, own_headers(headers))
        return self._targets(names)


def _bytes(headers: HeaderPairs) -> int:
    return sum(64 + len(name) + (len(value) if isinstance(value, str | bytes) else 8) for name, value in headers)


_NODE = NodeSource(None)
_QUEUES_ONLY = Destination((), kept_for_sessions=False, unrouted=False)
