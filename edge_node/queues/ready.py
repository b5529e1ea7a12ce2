"""The messages of one queue that are ready to be delivered, in their order."""

from __future__ import annotations

import asyncio
import enum
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import chain, islice, starmap
from typing import NamedTuple, Protocol

import msgspec

from weft.edge_node.subscriptions.message import LogRecord

# Deliveries of the messages in a queue, which are records of the node's stream of queued messages (``LogRecord``).

ENTRY_BYTES = 128
"""Bytes that a message in a queue is charged with beside its payload: its topic, its place in the log and in the
queue's index."""


class Holder(Protocol):
    """Holder of unsettled messages: a consumption, or a client that gets them one by one."""

    def settled(self, deliveries: Sequence[Delivery]) -> None:
        """Forget deliveries."""


class Delivery(msgspec.Struct, eq=False):
    """A message sent to a reader. It is settled once, by ``Queues.settle``, unless no acknowledgement is wanted.
    Compared by identity; the message itself is not kept in memory, so that many may be unsettled."""

    seq: int
    size: int
    """Bytes of the payload."""
    attempts: int
    """Failed deliveries before this one: the client disconnected, or reported the failure. ``x-delivery-count`` of
    AMQP."""
    priority: int
    redelivered: bool
    """True if it was, or may have been, delivered before."""
    holder: Holder


class Outcome(enum.Enum):
    """Outcome of a delivery, for the message."""

    ACCEPT = "accept"
    """It was handled: it leaves the queue. AMQP 0-9-1's ack, AMQP 1.0's accepted."""
    REJECT = "reject"
    """It leaves the queue and is dead-lettered, if the queue names a dead-letter exchange. Reject and nack without
    requeue, rejected, and modified with undeliverable-here."""
    REQUEUE = "requeue"
    """It goes back to its place in the queue, and counts as a failed delivery. Reject and nack with requeue, recover,
    modified with delivery-failed."""
    RELEASE = "release"
    """It goes back to its place, and the delivery does not count as failed; the next one is flagged as redelivered.
    AMQP 1.0's released."""


class Declared(NamedTuple):
    """Answer to the declaration of a queue."""

    name: str
    messages: int
    """Messages that are ready to be delivered."""
    consumers: int


# Ascending numbers of records in little memory: the order of a queue, whose messages stay in the log.

_DEAD_MAX = 1024
"""Number of runs taken from the front after which their memory is freed."""
_CHUNK = 32_768
"""Runs that are written at a time: half a megabyte."""


class SeqRuns:
    """Ascending numbers, taken from the front and added at the end.

    Neighbours are one run of 16 bytes: a queue that gets every message takes next to nothing at any length; one of many
    that get messages by turns takes 16 bytes a message.
    """

    __slots__ = ("_counts", "_firsts", "_head", "count")

    def __init__(self) -> None:
        self._firsts = array("Q")
        self._counts = array("Q")
        self._head = 0
        """Runs before this one are taken."""
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(starmap(range, self.runs()))

    def runs(self) -> Iterator[tuple[int, int]]:
        """Yield [first, end) of each run."""
        for at in range(self._head, len(self._firsts)):
            first = self._firsts[at]
            yield first, first + self._counts[at]

    def append(self, seq: int) -> None:
        """Add a number after all others."""
        counts = self._counts
        if counts and self._head < len(counts) and self._firsts[-1] + counts[-1] == seq:
            counts[-1] += 1
        else:
            self._firsts.append(seq)
            counts.append(1)
        self.count += 1

    def extend(self, first: int, end: int) -> None:
        """Add a run after all others."""
        if first >= end:
            return
        self.append(first)
        self._counts[-1] += end - first - 1
        self.count += end - first - 1

    @property
    def first(self) -> int:
        """Return the lowest number. There must be one."""
        return self._firsts[self._head]

    @property
    def last(self) -> int:
        """Return the highest number. There must be one."""
        return self._firsts[-1] + self._counts[-1] - 1

    def next(self, count: int) -> Sequence[int]:
        """Return the lowest numbers, at most so many."""
        if self._head < len(self._firsts) and self._counts[self._head] >= count:
            first = self._firsts[self._head]
            return range(first, first + count)
        return list(islice(self, count))

    def pop_many(self, count: int) -> None:
        """Take the lowest numbers."""
        while count and self._counts[self._head] <= count:
            count -= self._counts[self._head]
            self.count -= self._counts[self._head] - 1
            self._counts[self._head] = 1
            self.pop()
        if count:
            self._firsts[self._head] += count
            self._counts[self._head] -= count
            self.count -= count

    def pop(self) -> int:
        """Take the lowest number."""
        at = self._head
        seq = self._firsts[at]
        self.count -= 1
        if self._counts[at] > 1:
            self._firsts[at] = seq + 1
            self._counts[at] -= 1
            return seq
        self._head = at + 1
        if self._head >= _DEAD_MAX and self._head * 2 >= len(self._firsts):
            del self._firsts[: self._head], self._counts[: self._head]
            self._head = 0
        elif not self.count:
            self.clear()
        return seq

    def clear(self) -> None:
        """Remove all numbers."""
        del self._firsts[:], self._counts[:]
        self._head = self.count = 0

    def without(self, taken: SeqRuns) -> SeqRuns:
        """Return the numbers that are not in ``taken``."""
        left = SeqRuns()
        others = taken.runs()
        other = next(others, None)
        for begin, end in self.runs():
            at = begin
            while other is not None and other[0] < end:
                if other[1] > at:
                    left.extend(at, max(at, other[0]))
                    at = max(at, other[1])
                if other[1] > end:
                    break
                other = next(others, None)
            left.extend(at, end)
        return left

    def below(self, end: int) -> SeqRuns:
        """Return the numbers below ``end``."""
        left = SeqRuns()
        for first, last in self.runs():
            left.extend(first, min(last, end))
        return left

    def to_bytes(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the runs as two columns of numbers of 64 bits, firsts and counts: 32,768 runs at a time."""
        for at in range(self._head, len(self._firsts), _CHUNK):
            yield self._firsts[at : at + _CHUNK].tobytes(), self._counts[at : at + _CHUNK].tobytes()

    def add_bytes(self, firsts: bytes, counts: bytes) -> None:
        """Add runs that ``to_bytes`` yielded, after all others."""
        added = array("Q")
        added.frombytes(counts)
        self._firsts.frombytes(firsts)
        self._counts += added
        self.count += sum(added)


class _Level:
    """Ready messages of one priority."""

    __slots__ = ("fresh", "returned")

    def __init__(self) -> None:
        self.fresh = SeqRuns()
        self.returned: list[int] = []
        """Heap of messages that were taken and came back. Each is older than all fresh ones: it was taken before
        them."""


class Ready:
    """Numbers of messages by priority, and within one by age. A message that comes back regains its place."""

    __slots__ = ("_levels", "bytes", "count", "withheld")

    def __init__(self) -> None:
        self._levels: dict[int, _Level] = {}
        """Highest first."""
        self.count = 0
        """Number of messages ready for any reader."""
        self.bytes = 0
        """Payload bytes of all messages. The size of a message that is not in memory is an estimate; the sum is
        exact."""
        self.withheld: list[tuple[int, int]] = []
        """Number and priority of messages that no present reader may have. Changed by the methods alone."""

    @property
    def total(self) -> int:
        """Return the number of messages, withheld ones included."""
        return self.count + len(self.withheld)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(chain(sorted(each.returned), each.fresh) for each in self._levels.values())

    def add(self, first: int, end: int, priority: int, size: int) -> None:
        """Add messages [first, end), which are newer than all others.

        Args:
            size: payload bytes of all.
        """
        level = self._levels.get(priority)
        if level is None:
            level = self._begin(priority)
        level.fresh.extend(first, end)
        self.count += end - first
        self.bytes += size

    def put_back(self, seq: int, priority: int, size: int) -> None:
        """Add a message that was taken."""
        self.bytes += size
        self._return(seq, priority)

    def _return(self, seq: int, priority: int) -> None:
        level = self._levels.get(priority)
        if level is None:
            level = self._begin(priority)
        heappush(level.returned, seq)
        self.count += 1

    def restore(self, levels: Mapping[int, SeqRuns], others: Mapping[int, int], size: int) -> None:
        """Restore the messages that a start read.

        Args:
            levels: priority -> messages in their order.
            others: message outside of that order -> priority.
            size: payload bytes of all.
        """
        for priority, runs in levels.items():
            if runs:
                self._begin(priority).fresh = runs
                self.count += len(runs)
        for seq, priority in others.items():
            self._return(seq, priority)
        self.bytes = size

    def peek(self) -> tuple[int, int]:
        """Return number and priority of the next message. There must be one."""
        for priority, level in self._levels.items():
            if level.returned:
                return level.returned[0], priority
            if level.fresh.count:
                return level.fresh.first, priority
        raise IndexError("the queue is empty")

    def pop(self, size: int) -> None:
        """Take the message that ``peek`` returned, with its part of the bytes."""
        self.bytes -= size
        self._pop()

    def peek_run(self, count: int) -> Sequence[int]:
        """Return the numbers of the next message and of those that follow it with the same priority, at most so many;
        of the next one alone if it came back."""
        for level in self._levels.values():
            if level.returned:
                return level.returned[:1]
            if level.fresh.count:
                return level.fresh.next(count)
        return ()

    def pop_run(self, count: int, size: int) -> None:
        """Take the first of the messages that ``peek_run`` returned, with their part of the bytes."""
        if count == 1:
            self.pop(size)
            return
        self.bytes -= size
        self.count -= count
        for level in self._levels.values():
            if level.fresh.count:
                level.fresh.pop_many(count)
                break

    def withhold(self) -> int:
        """Set the next message aside until ``offer``. Return its number."""
        seq, priority = self.peek()
        self._pop()
        self.withheld.append((seq, priority))
        return seq

    def offer(self) -> None:
        """Put withheld messages back to their places."""
        withheld, self.withheld = self.withheld, []
        for seq, priority in withheld:
            self._return(seq, priority)

    def _pop(self) -> None:
        for level in self._levels.values():
            if level.returned:
                heappop(level.returned)
                break
            if level.fresh.count:
                level.fresh.pop()
                break
        self.count -= 1

    def next(self, count: int) -> list[int]:
        """Return the numbers of the next messages."""
        return list(islice(self, count))

    def levels(self) -> Iterator[tuple[int, SeqRuns, list[int]]]:
        """Yield for each priority its number, its fresh messages and those that came back."""
        for priority, level in self._levels.items():
            yield priority, level.fresh, level.returned

    def runs(self) -> Iterator[tuple[int, int]]:
        """Yield [first, end) of all messages, withheld ones included."""
        for level in self._levels.values():
            yield from level.fresh.runs()
            for seq in level.returned:
                yield seq, seq + 1
        for seq, _ in self.withheld:
            yield seq, seq + 1

    def has_new(self, seq: int) -> bool:
        """Return whether messages of the next one's priority, from ``seq`` on, were never taken."""
        for level in self._levels.values():
            if level.returned or level.fresh.count:
                return bool(level.fresh.count) and level.fresh.last >= seq
        return False

    def span(self) -> tuple[int, int]:
        """Return first and end of the numbers of all messages. There must be one."""
        ends = [seq for seq, _ in self.withheld]
        for level in self._levels.values():
            if level.fresh.count:
                ends += level.fresh.first, level.fresh.last
            if level.returned:
                ends += level.returned[0], max(level.returned)
        return min(ends), max(ends) + 1

    def _begin(self, priority: int) -> _Level:
        level = self._levels[priority] = _Level()
        if len(self._levels) > 1:
            self._levels = {each: self._levels[each] for each in sorted(self._levels, reverse=True)}
        return level


# Ready messages of one queue that are in memory, and the reading of more from the log.

LOADED_ENTRY_BYTES = 512
"""Memory that a message takes beside its payload, about."""


class LoadedMessages:
    """The next messages of a queue, as far as memory allows."""

    __slots__ = ("_gone", "_page", "_waits", "bytes", "messages")

    def __init__(self) -> None:
        self.messages: dict[int, LogRecord] = {}
        """Number -> message. Changed by the methods alone."""
        self.bytes = 0
        self._gone: dict[int, None] = {}
        self._page: asyncio.Task[None] | None = None
        self._waits = False

    def keep(self, messages: Iterable[LogRecord]) -> None:
        """Keep messages in memory."""
        own = self.messages
        for message in messages:
            if message.seq not in own:
                own[message.seq] = message
                self.bytes += len(message.payload) + LOADED_ENTRY_BYTES

    def drop(self, seq: int) -> LogRecord | None:
        """Remove a message and return it."""
        message = self.messages.pop(seq, None)
        if message is not None:
            self.bytes -= len(message.payload) + LOADED_ENTRY_BYTES
        return message

    def drop_run(self, messages: Sequence[LogRecord]) -> None:
        """Remove messages that are all in memory."""
        for message in messages:
            del self.messages[message.seq]
            self.bytes -= len(message.payload) + LOADED_ENTRY_BYTES

    def clear(self) -> None:
        """Remove all."""
        self.messages.clear()
        self.bytes = 0

    # --- messages that the log has deleted

    def is_gone(self, seq: int) -> bool:
        """Return whether the log has deleted a ready message."""
        return seq in self._gone

    def gone(self, seq: int) -> None:
        """Note that the log has deleted a ready message."""
        self._gone[seq] = None

    def passed(self, seq: int) -> None:
        """Forget that a message is gone: it has left the queue."""
        del self._gone[seq]

    def forget_gone(self) -> None:
        """Forget all messages that are gone."""
        self._gone.clear()

    # --- reading

    @property
    def is_reading(self) -> bool:
        """Return whether a page is being read from the log."""
        return self._page is not None

    @property
    def may_read(self) -> bool:
        """Return whether the next page may be read: no read is under way, and none has to wait."""
        return self._page is None and not self._waits

    def read(self, page: asyncio.Task[None]) -> None:
        """Note that the read of a page began."""
        self._page = page

    def was_read(self) -> None:
        """Note that the read ended, with a page or an error."""
        self._page = None

    def wait(self) -> None:
        """Read nothing until ``resume``: the next message is not durable, or the log cannot be read."""
        self._waits = True

    def resume(self) -> None:
        """Allow reads again."""
        self._waits = False


# Messages of one queue that are delivered and not settled.


class Unsettled:
    """Deliveries by the numbers of their messages."""

    __slots__ = ("_deliveries", "bytes")

    def __init__(self) -> None:
        self._deliveries: dict[int, Delivery] = {}
        self.bytes = 0
        """Payload bytes."""

    def __len__(self) -> int:
        return len(self._deliveries)

    def __iter__(self) -> Iterator[Delivery]:
        return iter(self._deliveries.values())

    def __contains__(self, delivery: Delivery) -> bool:
        return self._deliveries.get(delivery.seq) is delivery

    def hold(self, delivery: Delivery) -> None:
        """Add a delivery."""
        self._deliveries[delivery.seq] = delivery
        self.bytes += delivery.size

    def hold_run(self, deliveries: Sequence[Delivery]) -> None:
        """Add deliveries."""
        for delivery in deliveries:
            self._deliveries[delivery.seq] = delivery
            self.bytes += delivery.size

    def free(self, delivery: Delivery) -> None:
        """Remove a delivery."""
        del self._deliveries[delivery.seq]
        self.bytes -= delivery.size

    def free_known(self, deliveries: Iterator[Delivery]) -> list[Delivery]:
        """Remove those of some deliveries that are among them. Return these."""
        own, found = self._deliveries, list[Delivery]()
        for delivery in deliveries:
            if own.get(delivery.seq) is delivery:
                del own[delivery.seq]
                self.bytes -= delivery.size
                found.append(delivery)
        return found

    def first(self, count: int) -> list[Delivery]:
        """Return the oldest deliveries."""
        return list(islice(self._deliveries.values(), count))

    def has(self, seq: int) -> bool:
        """Return whether a message is among them."""
        return seq in self._deliveries

    def between(self, first: int, end: int) -> list[int]:
        """Return the messages from ``first`` to before ``end``, in order."""
        return sorted(seq for seq in self._deliveries if first <= seq < end)


# Marks in the log about the deliveries of one queue, so that a message redelivered after a crash is flagged.

EXACT = 16
"""Number of marks, counted from the first, that cover only the messages delivered at once."""
_STEPS = 10
"""Number of marks after them that each cover twice as many messages as the last."""
_STEPS_MAX = 12
"""The same, where readers have waited for marks that were written early."""
AHEAD_MAX = 1 << _STEPS_MAX
"""Maximum number of messages marked before they are delivered: a quarter of it, unless readers wait for marks. After a
crash they are flagged as redelivered, even those that were not delivered."""


class DeliveryMarks:
    """Messages below a mark may have been delivered. A mark is durable before the first of them goes out.

    | mark | is |
    | --- | --- |
    | ``durable`` | in the log: messages below it may go out |
    | ``writing`` | on its way to the log; equal to ``durable`` or lower while none is |
    | ``suspect`` | position of ``durable`` at the last crash: messages below it may have been delivered |
    """

    __slots__ = ("_due", "_is_early", "_steps", "attempts", "durable", "suspect", "writing")

    def __init__(self) -> None:
        self.durable = self.writing = self.suspect = 0
        self._steps = -EXACT
        """Times that the reach of marks has doubled; negative before."""
        self._due = 0
        """Message from which on the next mark should be written; in the middle of those of the last mark."""
        self._is_early = False
        """True if the last mark was written before a reader needed it, and none has waited for it."""
        self.attempts: dict[int, int] = {}
        """Message that came back -> its failed deliveries. Changed by the methods alone."""

    def restore(self, suspect: int, attempts: dict[int, int]) -> None:
        """Restore the marks that a start read."""
        self.suspect, self.attempts = suspect, attempts

    @property
    def is_writing(self) -> bool:
        """Return whether a mark is on its way to the log."""
        return self.writing > self.durable

    @property
    def highest(self) -> int:
        """Return the highest mark that the log has or is about to have."""
        return max(self.durable, self.writing)

    def ahead(self, count: int) -> int:
        """Return the number of messages to mark where ``count`` can be delivered. Marking ahead saves readers that take
        a message or two at a time from waiting for the disk each time."""
        self._steps = max(self._steps, min(self._steps + 1, _STEPS))
        return max(count, self.reach)

    @property
    def reach(self) -> int:
        """Return the number of messages that a mark covers at least."""
        return 1 << max(self._steps, 0)

    def is_due(self, seq: int) -> bool:
        """Return whether the next mark should be written before a reader waits for it: readers have gone on for long,
        and half of the last mark's messages are left at most.

        Args:
            seq: the next message.
        """
        return self._steps >= _STEPS and seq >= self._due and not self.is_writing

    def write(self, end: int, due: int, *, is_early: bool) -> None:
        """Note that a mark is on its way to the log.

        Args:
            due: message from which on the next mark should be written.
            is_early: no reader needs it yet.
        """
        self.writing, self._due, self._is_early = end, due, is_early

    def late(self) -> None:
        """Note that a reader waits for the mark on its way. If that was written early, readers take more during a
        commit than half of a mark's messages, so the next ones cover twice as many."""
        if self._is_early:
            self._is_early = False
            self._steps = min(self._steps + 1, _STEPS_MAX)

    def written(self, end: int) -> None:
        """Note that it is durable."""
        self.durable = max(self.durable, end)

    def write_with_messages(self, end: int) -> None:
        """Note a mark that is durable when the messages below it are, which are stored after it."""
        self.durable = self.writing = end

    def was_delivered(self, seq: int) -> bool:
        """Return whether a message may have been delivered before."""
        return seq < self.suspect or seq in self.attempts

    def came_back(self, delivery: Delivery, *, failed: bool) -> int:
        """Note that a message came back. Return the number of its failed deliveries."""
        attempts = self.attempts[delivery.seq] = delivery.attempts + failed
        return attempts

    def left(self, seqs: Sequence[int]) -> None:
        """Forget messages that have left the queue."""
        if self.attempts:
            for seq in seqs:
                self.attempts.pop(seq, None)

    def only(self, unsettled: Unsettled) -> None:
        """Forget all messages except the delivered ones."""
        self.attempts = {seq: count for seq, count in self.attempts.items() if unsettled.has(seq)}
