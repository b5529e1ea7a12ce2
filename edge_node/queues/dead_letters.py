"""Dead letters: messages that leave a queue unhandled, and pass through an exchange that the queue names.

A message leaves its queue in the commit that stores it at its destination: a crash keeps both or neither. It goes to
queues only. Streams and subscribers had it when it was published.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from weft.bounds import Owner, TurnBudget
from weft.edge_node.ingest.record import Destination, NodeSource, Records, Route
from weft.edge_node.queues.contents import DeadMessage, DeadMessages
from weft.edge_node.queues.definitions import (
    EXCHANGE,
    QUEUES,
    ROUTING_KEY,
    DeathReason,
    headers_of_route,
    origin_of,
    topic_of,
)
from weft.edge_node.queues.delivery import Arrivals
from weft.edge_node.queues.exchange import BoundQueues, Exchange, QueueSet, own_headers
from weft.edge_node.queues.limits import QueueContext
from weft.edge_node.queues.queue import Queue
from weft.edge_node.queues.ready import Delivery
from weft.protocols.amqp.typed_values import TYPES, kinds_header, kinds_of
from weft.protocols.batch import HeaderPairs, HeaderValue
from weft.protocols.message_headers import EXPIRES
from weft.storage.segment_log import LogError

STEP_BYTES = 1 << 20
STEP_COST = 4096
"""Maximum cost of one step: look-ups (``Topology.steps``), and the queues that its messages go to."""
STEP_S = 0.002
"""Time after which a step ends with the current message."""
RETRY_S = 1.0

logger = logging.getLogger(__name__)


class Letter(NamedTuple):
    """A message on its way from a queue that released or rejected it."""

    topic: bytes
    headers: HeaderPairs
    queues: BoundQueues


class DeadLetters:
    """Sends dead messages on to other queues. Event loop's thread only.

    Args:
        dead: messages that queues have released.
        arrivals: takes them at their destinations.
    """

    def __init__(self, context: QueueContext, dead: DeadMessages, arrivals: Arrivals) -> None:
        self._context = context
        self._dead = dead
        self._arrivals = arrivals
        self._topology = arrivals.topology
        self._task: asyncio.Task[None] | None = None
        self.count = 0
        """Messages that were passed on."""
        dead.listen(self._start)

    def close(self) -> None:
        """Stop. Unsent messages are in their queues again after the next start."""
        if self._task is not None:
            self._task.cancel()

    def _start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        dead = self._dead
        try:
            while dead.next_owner is not None:
                owner, step = dead.take()
                try:
                    await self._send(owner, step)
                except (OSError, LogError) as error:
                    logger.warning("dead letters wait: %s", error)
                    dead.put([each for each in step if self._is_there(each)], first=True)
                    await asyncio.sleep(RETRY_S)
                except Exception:  # a mistake of ours: it must not hold up the other dead letters
                    logger.exception("%d dead letters could not be sent on, and wait for the next start", len(step))
                dead.taken(owner)
                if (following := dead.next_owner) is not None:
                    await self._context.round_robin.turn(following)
        finally:
            self._task = None

    async def _send(self, owner: Owner, step: list[DeadMessage]) -> None:
        unread = [each.delivery.seq for each in step if each.message is None]
        durable = self._context.log.durable_end(self._context.stream)  # a commit during the read adds what it misses
        found = await self._context.messages.fetch(self._context.stream, unread) if unread else {}
        whole: list[DeadMessage] = []
        for each in step:
            record = found.get(each.delivery.seq)
            if each.message is not None:
                whole.append(each)
            elif record is not None:
                whole.append(each._replace(message=record))
            elif each.delivery.seq < durable:
                whole.append(each)  # the log has deleted it
            else:
                self._dead.put([each])  # it can be read when it is durable
        if not whole:
            await asyncio.sleep(RETRY_S / 100)
        while whole := self._store(whole):
            await self._context.round_robin.turn(owner)

    def _store(self, step: list[DeadMessage]) -> list[DeadMessage]:
        """Append messages at their destinations and remove them from their queues: as many as a turn has time for.
        Return the others.

        Raises:
            LogFull, LogFailed: nothing was changed.
        """
        self._context.batch.store()
        now = self._context.clock()
        rest, left, size = iter(step), list[tuple[Queue, Delivery]](), 0
        records, admitted = Records(), list[QueueSet]()
        clock = asyncio.get_running_loop().time
        budget = TurnBudget(STEP_COST, STEP_S, clock)
        budget.begin(clock())
        for each in rest:
            if not self._is_there(each):
                continue
            left.append((each.queue, each.delivery))
            before = self._topology.steps
            for_queues = self._letter(each, records, now)
            if for_queues is not None:
                admitted.append(for_queues)
            size += len(each.message.payload) if each.message is not None else 0
            width = 0 if for_queues is None else len(for_queues.queues)
            if not budget.spend(1 + width + self._topology.steps - before) or size >= STEP_BYTES:
                break
        if left:
            self._arrivals.move(records, admitted, left, now)
            self.count += len(records.keys)
        return list(rest)

    def _is_there(self, each: DeadMessage) -> bool:
        """Return whether the message must still be sent: its queue may have been deleted."""
        return not each.queue.deleted and each.delivery in each.queue.unsettled

    def _letter(self, each: DeadMessage, records: Records, now: int) -> QueueSet | None:
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
            elif not self._topology.admission.has_share(queue, size):
                continue
            found.append(queue)
        return QueueSet(found) if found else None

    def letters_of(
        self, queues: Sequence[Queue], topic: bytes, headers: HeaderPairs
    ) -> list[tuple[Route, bytes, HeaderPairs]]:
        """Return route, topic and headers of a publish as the dead letter of queues that were full."""
        now = self._context.clock()
        found = [self.letter(queue, DeathReason.MAXLEN, topic, headers, now) for queue in queues]
        return [
            (Route(_QUEUES_ONLY, live=False, marked=False, queues=each.queues), each.topic, each.headers)
            for each in found
            if each is not None
        ]

    def letter(self, queue: Queue, death: DeathReason, topic: bytes, headers: HeaderPairs, now: int) -> Letter | None:
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
            others = frozenset(each.name for each in found.queues if each.name not in left)
            found = self._topology.targets(others, reserved=True)
        return None if found is None else Letter(goes_by.encode(), headers, found)

    def _bound(self, exchange: Exchange, key: str, headers: HeaderPairs) -> BoundQueues | None:
        """Return the queues of a dead letter; where headers do not matter, all messages of one key share a look-up."""
        known = self._topology.known(exchange, key)
        if not known.by_headers:
            return known.targets
        names, _ = self._topology.walk(exchange, key, own_headers(headers))
        return self._topology.targets(names, reserved=True)


_NODE = NodeSource(None)
_QUEUES_ONLY = Destination((), kept_for_sessions=False, unrouted=False)
# ``x-death``: the history of a dead-lettered message, a header that is an array of tables in AMQP.
#
# Stored as every array of AMQP is: JSON text, and its types in the header ``amqp.types``.

DEATHS: Final = "x-death"
FIRST: Final = "x-first-death-"
EXPIRATION: Final = "amqp.expiration"
X_DEATHS_MAX: Final = 32
"""Maximum number of queues named; a message that went through more loses the ones it left longest ago."""
_TEXTS: Final = ("reason", "queue", "exchange", "original-expiration")
_NUMBER_MAX: Final = (1 << 63) - 1
_KINDS: Final = {"count": "l"}
"""Types in an entry: clients in Java expect a `Long`, which RabbitMQ sends."""
_SECOND_NS = 1_000_000_000


def x_deaths_of(headers: HeaderPairs) -> list[dict[str, Any]]:
    """Return the entries of ``x-death``, the latest first; empty where a publisher wrote something else."""
    for name, value in headers:
        if name == DEATHS and isinstance(value, str):
            try:
                found = json.loads(value)
            except (ValueError, RecursionError):  # a publisher may write any text
                return []
            if isinstance(found, list) and all(_is_entry(each) for each in found):
                return [_known(each) for each in found[:X_DEATHS_MAX]]
    return []


def _is_entry(each: object) -> bool:
    return isinstance(each, dict) and all(isinstance(each.get(name), str) for name in ("queue", "reason"))


def _known(entry: dict[str, Any]) -> dict[str, Any]:
    """Return only the entries' keys that the node itself writes. Other values of a publisher, nested without end or
    with numbers that have no text form, would fail here and hold up all dead letters."""
    count, time, keys = entry.get("count"), entry.get("time"), entry.get("routing-keys")
    known = {name: entry[name] for name in _TEXTS if isinstance(entry.get(name), str)}
    known["count"] = count if _is_number(count) else 0
    if isinstance(time, dict) and _is_number(seconds := time.get("$timestamp")):
        known["time"] = {"$timestamp": seconds}
    if isinstance(keys, list) and all(isinstance(each, str) for each in keys):
        known["routing-keys"] = keys
    return known


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value < _NUMBER_MAX


def left_before(headers: HeaderPairs) -> frozenset[str]:
    """Return the queues to which a dead letter must not go, because it left them before and no client rejected it
    meanwhile: it would circulate without end."""
    entries = x_deaths_of(headers)
    if any(each["reason"] == DeathReason.REJECTED for each in entries):
        return frozenset()
    return frozenset(each["queue"] for each in entries)


def with_death(  # noqa: PLR0917
    headers: HeaderPairs,
    death: DeathReason,
    queue: str,
    came_by: tuple[str, str],
    goes_by: tuple[str, str],
    topic: str,
    now_ns: int,
) -> HeaderPairs:
    """Return the headers of a dead letter.

    Args:
        headers: of the message in the queue.
        came_by: exchange and routing key of its arrival there.
        goes_by: those of the dead letter.
        topic: of the dead letter.
    """
    own: dict[str, HeaderValue] = dict(headers)
    expiration = own.get(EXPIRATION)
    entries = _counted(x_deaths_of(headers), death, queue, came_by, expiration, now_ns)
    dropped = {DEATHS, TYPES, EXCHANGE, ROUTING_KEY, QUEUES}
    if death is DeathReason.EXPIRED:
        dropped |= {EXPIRES, EXPIRATION}  # or it would expire again at its destination
    kept = tuple((name, value) for name, value in headers if name not in dropped)
    if f"{FIRST}queue" not in own:
        kept += ((f"{FIRST}queue", queue), (f"{FIRST}reason", str(death)), (f"{FIRST}exchange", came_by[0]))
    kinds = {**kinds_of(headers), DEATHS: [_KINDS] * len(entries)}
    kept += ((DEATHS, json.dumps(entries)), *kinds_header(kinds))
    return kept + headers_of_route(*goes_by, topic)


def _counted(  # noqa: PLR0917
    entries: Sequence[dict[str, Any]],
    death: DeathReason,
    queue: str,
    came_by: tuple[str, str],
    expiration: object,
    now_ns: int,
) -> list[dict[str, Any]]:
    same = [each for each in entries if each["queue"] == queue and each["reason"] == death]
    entry: dict[str, Any] = (
        same[0]
        if same
        else {
            "count": 0,
            "reason": str(death),
            "queue": queue,
            "time": {"$timestamp": now_ns // _SECOND_NS},
            "exchange": came_by[0],
            "routing-keys": [came_by[1]],
        }
    )
    entry["count"] += 1
    if death is DeathReason.EXPIRED and isinstance(expiration, str):
        entry["original-expiration"] = expiration
    return [entry, *(each for each in entries if each not in same)][:X_DEATHS_MAX]
