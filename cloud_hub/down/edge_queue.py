"""The messages of one edge without an outcome, as recorded by its lane in the log."""

from __future__ import annotations

import asyncio
import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from weft.bounds import Shares
from weft.protocols import batch as batches
from weft.protocols.batch import ClockReading, ClockState, HeaderPairs, columns_from_lists
from weft.protocols.chunk import SectionEntry
from weft.protocols.chunk_index import Mark
from weft.protocols.lane import DOWN_STREAM, Lane
from weft.protocols.link import MessageOutcome, OutcomeKind

# Values that a process remembers of messages that are over, within a bound that tenants share.

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")


class TenantMemory(Generic[KeyT, ValueT]):
    """Bounded cache of values by tenant and key. The oldest values of a tenant are dropped first.

    A single tenant may use all of it. A tenant below an equal share loses no values to others.

    Args:
        total: maximum number of values.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._count = 0
        self._of: dict[str, OrderedDict[KeyT, ValueT]] = {}
        self._largest = ""
        """A tenant with at least an equal share when a value was last dropped. It is cached since a search looks at
        every tenant."""

    def __len__(self) -> int:
        """Return the number of values."""
        return self._count

    def get(self, tenant: str, key: KeyT) -> ValueT | None:
        """Return a value; None if it is unknown."""
        own = self._of.get(tenant)
        return None if own is None else own.get(key)

    def put(self, tenant: str, key: KeyT, value: ValueT) -> None:
        """Store a value. A value that is known keeps its age."""
        own = self._of.setdefault(tenant, OrderedDict())
        before = len(own)
        own[key] = value
        self._count += len(own) - before
        if self._count > self._total:
            if len(self._of.get(self._largest, ())) * len(self._of) < self._total:
                self._largest = max(self._of, key=lambda each: len(self._of[each]))
            self.forget(self._largest, next(iter(self._of[self._largest])))

    def forget(self, tenant: str, key: KeyT) -> None:
        """Forget a value."""
        own = self._of.get(tenant)
        if own is not None and own.pop(key, None) is not None:
            self._count -= 1
            if not own:
                del self._of[tenant]

    def newest(self, tenant: str) -> Iterator[tuple[KeyT, ValueT]]:
        """Yield a tenant's keys and values, the newest first."""
        own = self._of.get(tenant)
        return iter(()) if own is None else iter(list(reversed(own.items())))


# Records of an edge's lane of messages: messages, and what became of them (docs/reference/formats/messages.md).
#
# The lane is written by hub processes, one at a time. It is PARTIAL: it takes no part in completeness. Its mark names
# the first message without an outcome, and the moment before the hub accepted that, so that a process finds the
# messages that wait without reading the log from its start.

HUB_LOG = 0
"""Log id of the lanes: hub processes have no log of their own."""
STREAM_NUMBER = 1
NUMBER, ACCEPTED, EXPIRES, QOS = "weft.message", "weft.accepted", "weft.expires", "weft.qos"
KEY, BY, OUTCOME, REASON = "weft.idempotency-key", "weft.by", "weft.outcome", "weft.reason"


class Waiting(NamedTuple):
    """A message without an outcome."""

    number: int
    accepted: int
    """Nanoseconds since 1970 by the hub's clock."""
    expires: int
    """Likewise."""
    topic: str
    payload: bytes
    qos: int = 1
    key: str = ""
    """Idempotency key of the request; empty without one."""
    by: str = ""
    """Name of the token that published it; empty without one."""


class Settled(NamedTuple):
    """The outcome of a message."""

    number: int
    accepted: int
    time: int
    """Moment at which the hub received the outcome, nanoseconds since 1970."""
    topic: str
    outcome: str
    """Name of an ``OutcomeKind`` in lower case, or the number of a later release's."""
    reason: str = ""


DownRecord = Waiting | Settled


def lane_of(tenant: str, edge: str) -> Lane:
    """Return the lane of the messages to an edge."""
    return Lane(tenant, edge, HUB_LOG, DOWN_STREAM)


def outcome_name(outcome: int) -> str:
    """Return the name of an outcome, or the number of one of a later release."""
    try:
        return OutcomeKind(outcome).name.lower()
    except ValueError:
        return str(outcome)


def encode(base_seq: int, records: Sequence[DownRecord]) -> bytes:
    """Return a batch of records, in the order of their times.

    Raises:
        ValueError: as ``protocols.batch.encode``.
    """
    times = array("q", [each.accepted if isinstance(each, Waiting) else each.time for each in records])
    columns = columns_from_lists(
        times.tobytes(),
        [each.topic.encode() for each in records],
        [each.payload if isinstance(each, Waiting) else b"" for each in records],
        {index: _headers(each) for index, each in enumerate(records)},
    )
    return batches.encode(STREAM_NUMBER, base_seq, columns, ClockReading(0, 0, ClockState.SYNCED))


def _headers(record: DownRecord) -> HeaderPairs:
    if isinstance(record, Settled):
        reason = ((REASON, record.reason),) if record.reason else ()
        return ((NUMBER, record.number), (ACCEPTED, record.accepted), (OUTCOME, record.outcome), *reason)
    headers = [(name, value) for name, value in ((KEY, record.key), (BY, record.by)) if value]
    return ((NUMBER, record.number), (EXPIRES, record.expires), (QOS, record.qos), *headers)


def decode(entry: SectionEntry) -> Iterator[tuple[int, DownRecord | None]]:
    """Yield (seq, record) of a chunk's entry; None for a record that this release cannot read."""
    for record in batches.records(entry.batch, first=entry.skip, end=entry.skip + entry.take):
        yield record.seq, _decoded(record)


def _decoded(record: batches.Record) -> DownRecord | None:
    headers = dict(record.headers)
    number, topic = headers.get(NUMBER), record.key.decode(errors="replace")
    if not isinstance(number, int):
        return None
    outcome, accepted, expires, qos = (headers.get(name) for name in (OUTCOME, ACCEPTED, EXPIRES, QOS))
    if isinstance(outcome, str) and isinstance(accepted, int):
        return Settled(number, accepted, record.time, topic, outcome, str(headers.get(REASON, "")))
    if isinstance(expires, int):
        key, by = str(headers.get(KEY, "")), str(headers.get(BY, ""))
        return Waiting(number, record.time, expires, topic, record.payload, 0 if qos == 0 else 1, key, by)
    return None


WAITING_MAX = 1000
"""Maximum number of messages that wait for one edge."""
WAITING_BYTES_MAX = 4 << 20
"""Maximum bytes of their payloads."""
SHARD_BYTES_MAX, TENANT_BYTES_MAX = 256 << 20, 64 << 20
"""Maximum bytes of waiting payloads in one shard, and of those for one tenant's edges: a process that takes over the
shard has to hold them."""
SKIPPED_MAX = 1 << 32
"""Maximum number of message numbers that an edge's report makes a hub skip. No edge has had as many messages."""
RECENT_MAX = 20_000
"""Maximum number of cached outcomes of a shard, shared by tenants."""
KEYS_MAX = 100_000
"""Maximum number of cached idempotency keys of a shard, shared by tenants."""
SILENT_NS = 86_400 * 10**9
"""Nanoseconds after its expiry at which a message without an outcome gets the outcome unknown."""
EPOCHS_APART = 1024
"""Epochs after which the times that two writers give may be the same, and nanoseconds between two times of one."""


class QueueFull(Exception):
    """No more messages may wait for the edge."""


class KeyConflict(Exception):
    """An idempotency key was used before for another message."""


class Draft(NamedTuple):
    """A message that a request publishes."""

    topic: str
    payload: bytes
    left: int
    """Nanoseconds until it expires."""
    qos: int = 1
    key: str = ""
    by: str = ""


class Remembered(NamedTuple):
    """A message with an idempotency key."""

    number: int
    accepted: int
    expires: int
    digest: bytes


class DownContext:
    """The common part of the queues of one shard, with their bounds."""

    def __init__(self) -> None:
        self.bytes: Shares[str] = Shares(SHARD_BYTES_MAX, TENANT_BYTES_MAX)
        """Bytes of payloads in all queues, by tenant."""
        self.recent: TenantMemory[tuple[Lane, int, int], Settled] = TenantMemory(RECENT_MAX)
        """(lane, number, accepted) -> outcome."""
        self.keys: TenantMemory[tuple[Lane, str], Remembered] = TenantMemory(KEYS_MAX)
        self.writing: dict[Lane, dict[int, tuple[Waiting, asyncio.Future[None]]]] = {}
        """Messages that are not durable yet, by lane and number. They survive a reload of the log's copy."""
        self.settling: dict[Lane, set[int]] = {}
        """Numbers of messages whose outcomes are not durable yet, by lane. They outlive the copy, too: an edge that is
        asked again would have a second outcome written behind one that is under way."""
        self.next: dict[Lane, int] = {}
        """One past the highest number given out, by lane: a message that is under way keeps its number to itself."""


class EdgeQueue:
    """Messages and outcomes of one edge. A function of the lane's records, except for what is under way.

    Args:
        first: the lowest number that the next message may have: the end of the lane's records.
        time: moment of the lane's last mark, nanoseconds since 1970.
    """

    def __init__(self, lane: Lane, first: int, time: int, shared: DownContext) -> None:
        self.lane, self._time, self._shared = lane, time, shared
        self._next = max(first, shared.next.get(lane, 0))
        self.waiting: OrderedDict[int, tuple[int, Waiting]] = OrderedDict()
        """Number -> the record's seq, and the message; ascending."""
        self.writing = shared.writing.setdefault(lane, {})
        """Messages that are not durable yet, by number."""
        self.bytes = 0
        """Bytes of their payloads, with those that are being written."""
        self._is_closed = False
        self._grow(sum(len(message.payload) for message, _ in self.writing.values()))
        self.settling = shared.settling.setdefault(lane, set())
        """Numbers of messages whose outcomes are not durable yet."""
        self.trouble = ""
        """Reason why the edge accepts no messages; empty if it does."""

    def now(self, wall: int, epoch: int) -> int:
        """Return a time for a record: later than all before, and than any mark. Two processes that give one number to a
        message each, of which one becomes durable, tell them apart by it.

        Args:
            epoch: that of the writer's session.
        """
        time = max(wall, self._time + 2)
        self._time = time + (epoch - time) % EPOCHS_APART
        return self._time

    def skip_to(self, number: int) -> None:
        """Skip to a number: the edge knows messages up to it from before the store was restored."""
        if number - self._next <= SKIPPED_MAX:
            self._next = max(self._next, number)

    def known(self, draft: Draft) -> Remembered | None:
        """Return the message that a request with the same idempotency key published.

        Raises:
            KeyConflict: that message was another one.
        """
        found = self._shared.keys.get(self.lane.tenant, (self.lane, draft.key)) if draft.key else None
        if found is not None and found.digest != _digest(draft):
            raise KeyConflict(f"the idempotency key {draft.key!r} was used for another message before")
        return found

    def accept(self, draft: Draft, wall: int, epoch: int, done: asyncio.Future[None]) -> Waiting:
        """Give a message its number. It waits once its record is in the log.

        Args:
            epoch: as for ``now``.

        Raises:
            QueueFull: too many wait.
        """
        self._check_room(len(draft.payload))
        accepted, number = self.now(wall, epoch), self._next
        self._shared.next[self.lane] = self._next = number + 1
        expires = accepted + draft.left
        message = Waiting(number, accepted, expires, draft.topic, draft.payload, draft.qos, draft.key, draft.by)
        self.writing[number] = message, done
        self._grow(len(draft.payload))
        self._remember(message)
        return message

    def _check_room(self, size: int) -> None:
        count = len(self.waiting) + len(self.writing)
        if count >= WAITING_MAX or self.bytes + size > WAITING_BYTES_MAX:
            why = f": {self.trouble}" if self.trouble else ""
            limit = f"the limit is {WAITING_MAX} messages and {WAITING_BYTES_MAX} bytes"
            raise QueueFull(f"{count} messages of {self.bytes} bytes wait for the edge; {limit}{why}")
        held = self._shared.bytes
        if not held.fits(self.lane.tenant, size):
            if held.is_own_share_full(self.lane.tenant, size):
                raise QueueFull(f"messages for the tenant's edges would exceed their limit of {TENANT_BYTES_MAX} bytes")
            raise QueueFull(f"messages in the edge's shard would exceed their limit of {SHARD_BYTES_MAX} bytes")

    def failed(self, message: Waiting) -> None:
        """Forget a message that could not be written."""
        if self.writing.pop(message.number, None) is not None:
            self._grow(-len(message.payload))
        tenant, key = self.lane.tenant, (self.lane, message.key)
        held = self._shared.keys.get(tenant, key)
        if held is not None and (held.number, held.accepted) == (message.number, message.accepted):
            self._shared.keys.forget(tenant, key)

    def close(self) -> None:
        """Release the bytes of the queue. Messages that are being written continue in the lane's next queue."""
        self._grow(-self.bytes)
        self._is_closed = True

    def _grow(self, size: int) -> None:
        if not self._is_closed:
            self.bytes += size
            if size > 0:
                self._shared.bytes.hold(self.lane.tenant, size)
            elif size:
                self._shared.bytes.free(self.lane.tenant, -size)

    def _remember(self, message: Waiting) -> None:
        if message.key:
            named = Remembered(message.number, message.accepted, message.expires, _digest(message))
            self._shared.keys.put(self.lane.tenant, (self.lane, message.key), named)

    def apply(self, seq: int, record: DownRecord | None) -> None:
        """Apply a record of the lane. It may be applied again, before any that follows it."""
        self._next = max(self._next, seq + 1)
        if isinstance(record, Waiting):
            self._next = max(self._next, record.number + 1)
            self._time = max(self._time, record.accepted)
            if self._is_settled(record):
                return  # a chunk that is read late: the outcome is known
            under_way = self.writing.get(record.number)
            if under_way is not None and under_way[0].accepted == record.accepted:
                del self.writing[record.number]
            elif record.number not in self.waiting:
                self._grow(len(record.payload))
                self._remember(record)
            is_last = not self.waiting or record.number >= next(reversed(self.waiting))
            self.waiting[record.number] = seq, record
            if not is_last:  # of a chunk that is read late
                self.waiting = OrderedDict(sorted(self.waiting.items()))
        elif isinstance(record, Settled):
            self._time = max(self._time, record.time)
            held = self.waiting.get(record.number)
            if held is not None and held[1].accepted == record.accepted:
                del self.waiting[record.number]
                self._grow(-len(held[1].payload))
            self._shared.recent.put(self.lane.tenant, (self.lane, record.number, record.accepted), record)

    def has(self, message: Waiting) -> bool:
        """Return whether the lane has a message, as far as the process knows."""
        return self.waits(message.number, message.accepted) or self._is_settled(message)

    def waits(self, number: int, accepted: int) -> bool:
        """Return whether a message has no outcome yet."""
        held = self.waiting.get(number)
        return held is not None and held[1].accepted == accepted

    def _is_settled(self, message: Waiting) -> bool:
        key = self.lane, message.number, message.accepted
        return self._shared.recent.get(self.lane.tenant, key) is not None

    def outcomes(self) -> list[Settled]:
        """Return the remembered outcomes, the newest first."""
        newest = self._shared.recent.newest(self.lane.tenant)
        return [settled for (lane, *_), settled in newest if lane == self.lane]

    def after(self, number: int) -> Iterator[Waiting]:
        """Yield the waiting messages with higher numbers whose outcomes are not under way, ascending."""
        for each, (_, message) in self.waiting.items():
            if each > number and each not in self.settling:
                yield message

    def over(self, now: int) -> Iterator[MessageOutcome]:
        """Yield unknown outcomes of messages that expired ``SILENT_NS`` ago without an answer of an edge.

        Another process may have sent them, so only the edge can say that they were not published.
        """
        for number, (_, message) in self.waiting.items():
            if now > message.expires + SILENT_NS and number not in self.settling:
                why = "the edge was not linked since; whether it has stored the message is unknown"
                yield MessageOutcome(number, message.accepted, OutcomeKind.UNKNOWN, why)

    def position(self, end: int, now: int) -> Mark | None:
        """Return the mark for a batch that is appended now: everything before it has an outcome. None if that is not
        known.

        Every outcome under way has to be in that batch, or before it in the writer's session: then the mark is not
        durable without them.

        Args:
            end: number after the batch's last record.
            now: time of its last record.
        """
        if self.waiting.keys() - self.settling:
            # Those whose outcomes are under way still wait: the batch with them may not become durable.
            seq, oldest = next(iter(self.waiting.values()))
            return Mark(oldest.accepted - 1, seq)
        return Mark(now, end) if not self.writing else None


def _digest(message: Draft | Waiting) -> bytes:
    head = f"{message.topic}\0{message.qos}\0".encode()
    return hashlib.blake2b(head + message.payload, digest_size=16).digest()


# Links of the edges of one shard that take messages. An edge may have several; one of them gets its messages.


class Attached(Protocol):
    """The link of an edge that takes messages (``hub_down.LinkDown``)."""

    def pump(self, queue: EdgeQueue) -> None:
        """Send the messages for which there is room."""
        ...

    def restart(self) -> None:
        """Send everything again that waits: the copy of the log is another one, or another link had it."""
        ...


class AttachedLinks:
    """The links by their edges' lanes of messages. The last one of each gets the messages."""

    def __init__(self) -> None:
        self._of: dict[Lane, dict[Attached, None]] = {}

    def __contains__(self, lane: Lane) -> bool:
        """Return whether an edge has a link."""
        return lane in self._of

    def get(self, lane: Lane) -> Attached | None:
        """Return the link that gets an edge's messages; None without one."""
        links = self._of.get(lane)
        return None if links is None else next(reversed(links))

    def items(self) -> Iterator[tuple[Lane, Attached]]:
        """Yield the lanes, each with the link that gets the edge's messages."""
        return ((lane, next(reversed(links))) for lane, links in list(self._of.items()))

    def add(self, lane: Lane, link: Attached) -> None:
        """Add a link, the last one from now on."""
        self._of.setdefault(lane, {})[link] = None

    def remove(self, lane: Lane, link: Attached) -> Attached | None:
        """Remove a link. Return the one that gets its messages now; None if that is the same as before, or none."""
        links = self._of.get(lane, {})
        if link not in links:
            return None
        had_them = link is next(reversed(links))
        del links[link]
        if not links:
            del self._of[lane]
        return next(reversed(links)) if links and had_them else None
