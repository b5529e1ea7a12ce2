"""Movement of messages through queues: they arrive, wait, are settled and leave. Each step updates the log and
bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from typing import Protocol

from weft.bounds import Bound, Owner
from weft.edge_node.queues.contents.deaths import Death
from weft.edge_node.queues.contents.holders import Holders
from weft.edge_node.queues.errors import QueueError, Reason
from weft.edge_node.queues.message import ENTRY_BYTES, Delivery, Holder, Outcome
from weft.edge_node.queues.queue.queue import Consumption, Queue
from weft.edge_node.queues.state.reader import RememberedQueue
from weft.edge_node.queues.state.writer import QueueStateWriter
from weft.edge_node.subscriptions.log_records import LogRecord

LOADED_BYTES_MAX = 16 << 20
"""Memory of ready messages, about."""
NEXT_MAX = 128
"""Messages that a queue with consumers keeps beyond that limit until the consumers had a chance to take them."""
EVICTED_MAX = 8
"""Queues that release their memory at a time."""
FREED_SLICE = 1024
"""Runs of messages of a purged or deleted queue that are released before other owners have a turn."""
FORGOTTEN_SLICE = 128
"""Deliveries of a deleted queue that are forgotten before other owners have a turn."""


class DeadLetterer(Protocol):
    """Receiver of messages that leave a queue unhandled."""

    def has_room(self, queue: Queue) -> bool:
        """Return whether there is room for one more; if not, the queue is served when there is."""
        ...

    def add(self, queue: Queue, delivery: Delivery, message: LogRecord | None, death: Death) -> None:
        """Take over a message; it is settled once it is stored at its destination."""


class Contents:
    """Moves messages in and out of queues. Event loop's thread only.

    Args:
        unacknowledged: bounds deliveries that are not settled.
        waiting: bytes of messages in queues.
        deliver_soon: called with queues that may have something to deliver.
        next_round: calls back at an owner's turn.
    """

    def __init__(  # noqa: PLR0917
        self,
        writer: QueueStateWriter,
        holders: Holders,
        unacknowledged: Bound,
        waiting: Bound,
        deliver_soon: Callable[[Queue], None],
        next_round: Callable[[Owner | None, Callable[[], None]], None],
    ) -> None:
        self._writer = writer
        self._holders = holders
        self.unacknowledged = unacknowledged
        self._waiting = waiting
        self._deliver_soon = deliver_soon
        self._next_round = next_round
        self._starved: dict[Owner, dict[Queue, None]] = {}
        """Owners that have too much unsettled -> queues with consumers of theirs."""
        self._idle: dict[Queue, None] = {}
        """Queues that had no consumer when their messages were loaded into memory."""
        self.loaded_bytes = 0
        self.added = self.accepted = self.expired = self.dropped = self.lost = 0
        """Messages since the start, by their outcome; ``dropped`` counts those of queues that were too long."""
        self.dead_letters: DeadLetterer | None = None

    # --- in

    def add(self, queue: Queue, message: LogRecord, priority: int) -> None:
        """Add a new message to a queue. Call ``deliver`` afterwards."""
        size = len(message.payload)
        self.added += 1
        is_next = len(queue.loaded.messages) == queue.ready.count
        queue.add(message, priority)
        self._waiting.hold(queue.owner, size + ENTRY_BYTES)
        if is_next and (
            self.loaded_bytes + size <= LOADED_BYTES_MAX
            or (queue.consumptions and len(queue.loaded.messages) < NEXT_MAX)
        ):
            self.load(queue, message)

    def limit(self, queue: Queue) -> None:
        """Drop the oldest messages of a queue that exceeds its maximum length."""
        while queue.ready.count and queue.is_full():
            self.dropped += 1
            self.remove_next(queue, Death.MAXLEN)

    # --- out

    def leave(self, queue: Queue, seq: int, size: int) -> None:
        """Remove a message that was taken from its queue for good."""
        self._waiting.free(queue.owner, size + ENTRY_BYTES)
        self._holders.drop(seq)
        queue.marks.left(seq)
        self._writer.settled(queue, seq, seq + 1, size)

    def forget(self, delivery: Delivery, queue: Queue) -> None:
        """Forget a delivery that is settled."""
        queue.unsettled.free(delivery)
        holder = delivery.holder
        if isinstance(holder, Consumption):
            self.free_share(holder.client.owner)
        holder.settled(delivery)

    def has_share(self, queue: Queue, owner: Owner) -> bool:
        """Return whether an owner may have one more unsettled delivery; if not, its queue is served when it may."""
        if self.unacknowledged.fits(owner):
            return True
        self.unacknowledged.refuse(owner)
        self._starved.setdefault(owner, {})[queue] = None
        return False

    def take_share(self, owner: Owner) -> None:
        """Charge one delivery to an owner, before it is known whether there is a message.

        Raises:
            QueueError: the owner has too much unsettled.
        """
        if not self.unacknowledged.take(owner):
            self.unacknowledged.refuse(owner)
            raise QueueError(
                Reason.TOO_MANY,
                f"{owner} has used up its share of deliveries that are not acknowledged: acknowledge some, or raise "
                "queues.unacknowledged_per_user",
            )

    def free_share(self, owner: Owner) -> None:
        """Release one unsettled delivery of an owner, or one of its clients that waited for a message."""
        total_was_used = self.unacknowledged.used >= self.unacknowledged.total
        self.unacknowledged.free(owner)
        if self._starved:
            for each in list(self._starved) if total_was_used else [owner]:
                for queue in self._starved.pop(each, ()):
                    self._deliver_soon(queue)

    def remove_next(self, queue: Queue, death: Death) -> None:
        """Remove the next message of a queue, which no consumer has handled."""
        seq, priority = queue.ready.peek()
        size = queue.take(seq)
        message = self.unload(queue, seq)
        self.expired += death is Death.EXPIRED
        if queue.loaded.is_gone(seq):
            queue.loaded.passed(seq)
            self.leave(queue, seq, size)
        else:
            self.bury(queue, Delivery(seq, size, 0, priority, redelivered=False, holder=NOBODY), message, death)

    def may_bury(self, queue: Queue) -> bool:
        """Return whether an expired message may leave its queue now; if not, the queue is served when it may."""
        if queue.definition.arguments.dead_letter_exchange is None or self.dead_letters is None:
            return True
        return self.dead_letters.has_room(queue)

    def bury(self, queue: Queue, delivery: Delivery, message: LogRecord | None, death: Death) -> None:
        """Dead-letter a message that was taken, or remove it for good where its queue has no dead-letter exchange."""
        if queue.definition.arguments.dead_letter_exchange is None or self.dead_letters is None:
            self.leave(queue, delivery.seq, delivery.size)
            return
        delivery.holder = NOBODY
        queue.unsettled.hold(delivery)
        self.dead_letters.add(queue, delivery, message, death)

    def lose(self, queue: Queue, seq: int) -> None:
        """Skip a message that the log has deleted."""
        self.lost += 1
        self.leave(queue, seq, queue.lose(seq))

    def settle(self, deliveries: Iterable[Delivery], outcome: Outcome) -> None:
        """Settle deliveries; unknown ones are skipped."""
        for delivery in deliveries:
            holder = delivery.holder
            if not isinstance(holder, Consumption):
                continue  # it is being dead-lettered
            queue = holder.queue
            if delivery not in queue.unsettled:
                continue
            self.forget(delivery, queue)
            if queue.deleted:
                self._waiting.free(queue.owner, delivery.size + ENTRY_BYTES)
                self._holders.drop(delivery.seq)
            elif outcome is Outcome.ACCEPT:
                self.accepted += 1
                self.leave(queue, delivery.seq, delivery.size)
            elif outcome is Outcome.REJECT:
                self.bury(queue, delivery, None, Death.REJECTED)
            else:
                self._give_back(queue, delivery, failed=outcome is Outcome.REQUEUE)

    def _give_back(self, queue: Queue, delivery: Delivery, *, failed: bool) -> None:
        attempts = queue.marks.came_back(delivery, failed=failed)
        limit = queue.definition.arguments.attempts_max
        # Without a limit, a message that makes its consumers fail would be redelivered without end.
        if limit is not None and attempts > limit:
            self.bury(queue, delivery, None, Death.DELIVERY_LIMIT)
            return
        self._writer.attempted(queue, delivery.seq)
        queue.put_back(delivery)
        self._deliver_soon(queue)

    def purge(self, queue: Queue) -> int:
        """Remove all ready messages. Return their number. The log records it at once; its room is released in turns."""
        count, size = queue.count, queue.ready.bytes
        self.unload_all(queue)
        if count:
            first, end = queue.ready.span()
            # Messages of this queue between the two are the delivered ones.
            for seq in queue.unsettled.between(first, end):
                self._writer.settled(queue, first, seq, 0)
                first = seq + 1
            self._writer.settled(queue, first, end, size)
            self._waiting.free(queue.owner, size + ENTRY_BYTES * count)
        self._let_go(queue, queue.forget_ready())
        return count

    def drop_all(self, queue: Queue) -> None:
        """Release all messages of a deleted queue, delivered ones included."""
        count, size = queue.count, queue.ready.bytes
        self.unload_all(queue)
        if count:
            self._waiting.free(queue.owner, size + ENTRY_BYTES * count)
        self._let_go(queue, queue.forget_ready())
        self._forget_unsettled(queue)

    def _let_go(self, queue: Queue, runs: Iterator[tuple[int, int]]) -> None:
        """Release the room of messages in the log: of some now, and of the rest in later turns."""
        for first, end in islice(runs, FREED_SLICE):
            self._holders.drop_run(first, end)
        rest = next(runs, None)
        if rest is not None:
            self._next_round(queue.owner, partial(self._let_go, queue, chain([rest], runs)))

    def _forget_unsettled(self, queue: Queue) -> None:
        """Forget the deliveries of a deleted queue, some now, and the rest in later turns."""
        for delivery in queue.unsettled.first(FORGOTTEN_SLICE):
            self._waiting.free(queue.owner, delivery.size + ENTRY_BYTES)
            self._holders.drop(delivery.seq)
            self.forget(delivery, queue)
        if queue.unsettled:
            self._next_round(queue.owner, partial(self._forget_unsettled, queue))

    def restore(self, queue: Queue, remembered: RememberedQueue) -> None:
        """Restore a queue from the state that a start read."""
        queue.restore(remembered.levels, remembered.others, max(remembered.bytes, 0))
        queue.marks.restore(remembered.suspect, remembered.attempts)
        for runs in remembered.levels.values():
            for first, end in runs.runs():
                self._holders.hold_run(first, end)
        for seq in remembered.others:
            self._holders.hold(seq)
        if queue.count:
            self._waiting.hold(queue.owner, queue.ready.bytes + ENTRY_BYTES * queue.count)

    # --- memory

    def load(self, queue: Queue, message: LogRecord) -> None:
        """Keep a ready message in memory."""
        before = queue.loaded.bytes
        queue.loaded.keep(message)
        self.loaded_bytes += queue.loaded.bytes - before
        if not queue.consumptions:
            self._idle[queue] = None

    def unload(self, queue: Queue, seq: int) -> LogRecord | None:
        """Remove a message from memory and return it."""
        before = queue.loaded.bytes
        message = queue.loaded.drop(seq)
        self.loaded_bytes += queue.loaded.bytes - before
        return message

    def make_room(self) -> None:
        """Unload messages of queues without readers, where other queues need the memory."""
        for _ in range(EVICTED_MAX):
            if self.loaded_bytes * 2 <= LOADED_BYTES_MAX or not self._idle:
                break
            queue = next(iter(self._idle))
            del self._idle[queue]
            if not queue.consumptions:
                self.unload_all(queue)

    def trim(self, queue: Queue) -> None:
        """Unload the messages that consumers did not take, where the queue has no memory for more; the log has them."""
        if self.loaded_bytes > LOADED_BYTES_MAX and queue.loaded.messages:
            self.unload_all(queue)

    def unload_all(self, queue: Queue) -> None:
        """Unload all of a queue's messages."""
        self._idle.pop(queue, None)
        self.loaded_bytes -= queue.loaded.bytes
        queue.loaded.clear()
        queue.set_timer()


class _Nobody:
    """Holder of messages that are being dead-lettered."""

    def settled(self, delivery: Delivery) -> None:
        """Do nothing."""


NOBODY: Holder = _Nobody()
