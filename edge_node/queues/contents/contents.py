"""The way of messages through queues: they come, wait, are settled, and leave for good, and log and bounds know it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from weft.bounds import Bound
from weft.edge_node.queues.contents.deaths import Death
from weft.edge_node.queues.contents.holders import Holders
from weft.edge_node.queues.message import ENTRY_BYTES, Delivery, Holder, Outcome, QueueMessage
from weft.edge_node.queues.queue import Consumption, Queue
from weft.edge_node.queues.state.reader import Remembered
from weft.edge_node.queues.state.writer import QueueStateWriter
from weft.protocols.message_headers import EXPIRES

LOADED_BYTES_MAX = 16 << 20
"""Payload bytes of ready messages in memory."""


class DeadLetterer(Protocol):
    """Takes messages that leave a queue without being handled."""

    def add(self, queue: Queue, delivery: Delivery, message: QueueMessage | None, death: Death) -> None:
        """Take over a message, which is settled when it stands where it goes."""


class Contents:
    """Moves messages in and out of queues. Event loop's thread only.

    Args:
        unacknowledged: bounds deliveries that are not settled.
        waiting: bytes of messages in queues.
        deliver_soon: called with queues that may have something to deliver.
    """

    def __init__(
        self,
        writer: QueueStateWriter,
        holders: Holders,
        unacknowledged: Bound,
        waiting: Bound,
        deliver_soon: Callable[[Queue], None],
    ) -> None:
        self._writer = writer
        self._holders = holders
        self.unacknowledged = unacknowledged
        self._waiting = waiting
        self._deliver_soon = deliver_soon
        self.starved: dict[Queue, None] = {}
        """Queues whose consumers have too much unsettled."""
        self.loaded_bytes = 0
        self.expired = self.lost = 0
        self.dead_letters: DeadLetterer | None = None

    # --- in

    def add(self, queue: Queue, message: QueueMessage, priority: int) -> None:
        """Take a new message into a queue. ``deliver`` follows."""
        size = len(message.payload)
        in_memory = len(queue.loaded) == queue.ready.count
        queue.ready.add(message.seq, min(priority, queue.definition.arguments.priority_max))
        queue.bytes += size
        self._waiting.hold(queue.definition.owner, size + ENTRY_BYTES)
        if in_memory and (queue.consumptions or self.loaded_bytes + size <= LOADED_BYTES_MAX):
            self.load(queue, message)
        if not queue.expires and message.headers and any(name == EXPIRES for name, _ in message.headers):
            queue.expires = True

    def limit(self, queue: Queue) -> None:
        """Drop the oldest messages of a queue that is longer than it may be."""
        while queue.ready.count and queue.is_full():
            self.remove_next(queue, Death.MAXLEN)

    # --- what leaves

    def leave(self, queue: Queue, seq: int, size: int) -> None:
        """Have a message that was taken leave its queue for good."""
        self._waiting.free(queue.definition.owner, size + ENTRY_BYTES)
        self._holders.drop(seq)
        queue.attempts.pop(seq, None)
        self._writer.settled(queue, seq, seq + 1, size)

    def forget(self, delivery: Delivery, queue: Queue) -> None:
        """Forget a delivery that is settled."""
        del queue.unsettled[delivery.seq]
        queue.unsettled_bytes -= delivery.size
        holder = delivery.holder
        if isinstance(holder, Consumption):
            self.unacknowledged.free(holder.client.owner)
            if self.starved:
                starved, self.starved = self.starved, {}
                for each in starved:
                    self._deliver_soon(each)
        holder.settled(delivery)

    def remove_next(self, queue: Queue, death: Death) -> None:
        """Take the next message out of a queue, which no consumer has handled."""
        seq, priority = queue.ready.peek()
        size = queue.take(seq)
        message = self.unload(queue, seq)
        self.expired += death is Death.EXPIRED
        if seq in queue.gone:
            del queue.gone[seq]
            self.leave(queue, seq, size)
        else:
            self.bury(queue, Delivery(seq, size, 0, priority, redelivered=False, holder=NOBODY), message, death)

    def bury(self, queue: Queue, delivery: Delivery, message: QueueMessage | None, death: Death) -> None:
        """Dead-letter a message that was taken, or have it leave for good where its queue says nothing of that."""
        if queue.definition.arguments.dead_letter_exchange is None or self.dead_letters is None:
            self.leave(queue, delivery.seq, delivery.size)
            return
        delivery.holder = NOBODY
        queue.unsettled[delivery.seq] = delivery
        queue.unsettled_bytes += delivery.size
        self.dead_letters.add(queue, delivery, message, death)

    def lose(self, queue: Queue, seq: int) -> None:
        """Pass over a message that the log does not have any more."""
        del queue.gone[seq]
        queue.lost += 1
        self.lost += 1
        self.leave(queue, seq, queue.take(seq))

    def settle(self, deliveries: Iterable[Delivery], outcome: Outcome) -> None:
        """Settle deliveries; those that are not known any more are passed over."""
        for delivery in deliveries:
            holder = delivery.holder
            if not isinstance(holder, Consumption):
                continue  # it is being dead-lettered
            queue = holder.queue
            if queue.unsettled.get(delivery.seq) is not delivery:
                continue
            self.forget(delivery, queue)
            if outcome is Outcome.ACCEPT:
                self.leave(queue, delivery.seq, delivery.size)
            elif outcome is Outcome.REJECT:
                self.bury(queue, delivery, None, Death.REJECTED)
            else:
                self._give_back(queue, delivery, failed=outcome is Outcome.REQUEUE)

    def _give_back(self, queue: Queue, delivery: Delivery, *, failed: bool) -> None:
        attempts = queue.attempts[delivery.seq] = delivery.attempts + failed
        limit = queue.definition.arguments.attempts_max
        if limit is not None and attempts > limit:
            self.bury(queue, delivery, None, Death.DELIVERY_LIMIT)
            return
        self._writer.attempted(queue, delivery.seq)
        queue.put_back(delivery)
        self._deliver_soon(queue)

    def purge(self, queue: Queue) -> int:
        """Remove all ready messages. Return their number."""
        count, size = queue.count, queue.bytes
        self._unload_all(queue)
        for first, end in queue.ready_runs():
            self._holders.drop_run(first, end)
            self._writer.settled(queue, first, end, 0)
        if count:
            last = next(iter(queue.ready_runs()))
            self._writer.settled(queue, last[0], last[0], size)
            self._waiting.free(queue.definition.owner, size + ENTRY_BYTES * count)
        queue.forget_ready()
        return count

    def drop_all(self, queue: Queue) -> None:
        """Let all messages of a queue go that is deleted, delivered ones included."""
        count, size = queue.count + len(queue.unsettled), queue.bytes + queue.unsettled_bytes
        self._unload_all(queue)
        for first, end in queue.ready_runs():
            self._holders.drop_run(first, end)
        for delivery in list(queue.unsettled.values()):
            self._holders.drop(delivery.seq)
            self.forget(delivery, queue)
        if count:
            self._waiting.free(queue.definition.owner, size + ENTRY_BYTES * count)
        queue.forget_ready()

    def restore(self, queue: Queue, remembered: Remembered) -> None:
        """Take in what a start found."""
        for priority, runs in remembered.levels.items():
            if runs:
                queue.ready.put_runs(runs, priority)
                for first, end in runs.runs():
                    self._holders.hold_run(first, end)
        for seq, priority in remembered.others.items():
            queue.ready.put_back(seq, priority)
            self._holders.hold(seq)
        queue.bytes = max(remembered.bytes, 0)
        queue.attempts, queue.suspect = remembered.attempts, remembered.suspect
        queue.expires = queue.expires or bool(queue.count)  # it is not known of messages that were not read
        if queue.count:
            self._waiting.hold(queue.definition.owner, queue.bytes + ENTRY_BYTES * queue.count)

    # --- memory

    def load(self, queue: Queue, message: QueueMessage) -> None:
        """Keep a ready message in memory."""
        before = queue.loaded_bytes
        queue.load(message)
        self.loaded_bytes += queue.loaded_bytes - before

    def unload(self, queue: Queue, seq: int) -> QueueMessage | None:
        """Return a message in memory, which is not kept any more."""
        message = queue.unload(seq)
        if message is not None:
            self.loaded_bytes -= len(message.payload)
        return message

    def _unload_all(self, queue: Queue) -> None:
        self.loaded_bytes -= queue.loaded_bytes
        queue.loaded.clear()
        queue.loaded_bytes = 0
        if queue.timer is not None:
            queue.timer.cancel()
            queue.timer = None


class _Nobody:
    """Holder of messages on their way to where dead letters go."""

    def settled(self, delivery: Delivery) -> None:
        """Do nothing."""


NOBODY: Holder = _Nobody()
