"""Movement of messages through queues: they arrive, wait, are settled and leave. Each step updates the log and
bounds.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, groupby, islice
from operator import attrgetter
from typing import NamedTuple

from weft.bounds import Owner
from weft.edge_node.ingest.ingest import TickBatch
from weft.edge_node.queues.definitions import DeathReason, QueueError, Reason
from weft.edge_node.queues.limits import QueueContext
from weft.edge_node.queues.queue import Consumption, Queue
from weft.edge_node.queues.ready import ENTRY_BYTES, LOADED_ENTRY_BYTES, Delivery, Holder, Outcome
from weft.edge_node.queues.state import QueueStateWriter, RefCounts, RememberedQueue, runs_of
from weft.edge_node.subscriptions.message import LogRecord

_HOLDER: Callable[[Delivery], Holder] = attrgetter("holder")

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
STEP_RECORDS = 64
"""Maximum number of dead messages of one owner that are sent on in one step."""
HELD_MAX = 1024
"""Maximum number of dead messages that wait with their payload in memory; other payloads are read again."""
WAITING_MAX = 256
"""Maximum number of dead messages of one owner that wait. Beyond it, queues whose messages expire wait."""


# Queues with something to do: between what moves messages, and what delivers them or sends them on. Both only note it
# here, so that neither has to know the other.


class DueQueues:
    """Queues that may have something to deliver at the end of this turn of the loop. Event loop's thread only."""

    def __init__(self, batch: TickBatch) -> None:
        self._batch = batch
        self._queues: dict[Queue, None] = {}
        self._is_called = False
        self._deliver: Callable[[Iterable[Queue]], None] | None = None

    def listen(self, deliver: Callable[[Iterable[Queue]], None]) -> None:
        """Call back at the end of each turn that has due queues, with all of them."""
        assert self._deliver is None, "one part delivers them"
        self._deliver = deliver

    def soon(self, queue: Queue) -> None:
        """Have a queue's messages delivered, as far as they can be, at the end of this turn of the loop."""
        self._queues[queue] = None
        if not self._is_called:
            self._is_called = True
            self._batch.at_end(self._call)

    def reconsider(self, queue: Queue) -> None:
        """Offer messages that no reader was allowed to have, after a new reader or new access rules."""
        queue.ready.offer()
        self.soon(queue)

    def _call(self) -> None:
        self._is_called = False
        due, self._queues = self._queues, {}
        if self._deliver is not None:
            self._deliver(due)


class DeadMessage(NamedTuple):
    """A message that has left its queue unhandled, and is not sent on yet."""

    queue: Queue
    delivery: Delivery
    message: LogRecord | None
    """None if it must be read from the log."""
    death: DeathReason


class DeadMessages:
    """Messages that wait to be sent on, by owner; owners take turns. Event loop's thread only."""

    def __init__(self, due: DueQueues) -> None:
        self._due = due
        self._waiting: OrderedDict[Owner, deque[DeadMessage]] = OrderedDict()
        """Owner -> messages that its queues have released; the owner whose turn it is comes first."""
        self._held = 0
        """Number of these messages that are in memory."""
        self._wanting: dict[Owner, dict[Queue, None]] = {}
        """Owner -> queues that have more."""
        self._send: Callable[[], None] | None = None

    def listen(self, send: Callable[[], None]) -> None:
        """Call back whenever a queue has released a message."""
        assert self._send is None, "one part sends them on"
        self._send = send

    def add(self, queue: Queue, delivery: Delivery, message: LogRecord | None, death: DeathReason) -> None:
        """Take over a message; it is settled once it is stored at its destination."""
        kept = message if self._held < HELD_MAX else None
        self.put([DeadMessage(queue, delivery, kept, death)])
        if self._send is not None:
            self._send()

    def has_room(self, queue: Queue) -> bool:
        """Return whether there is room for one more; if not, the queue is served when there is."""
        owner = queue.owner
        if len(self._waiting.get(owner, ())) < WAITING_MAX:
            return True
        self._wanting.setdefault(owner, {})[queue] = None
        return False

    def put(self, dead: list[DeadMessage], *, first: bool = False) -> None:
        """Have messages of one owner wait, before or behind its others."""
        for each in reversed(dead) if first else dead:
            waiting = self._waiting.setdefault(each.queue.owner, deque())
            if first:
                waiting.appendleft(each)
            else:
                waiting.append(each)
            self._held += each.message is not None

    @property
    def next_owner(self) -> Owner | None:
        """Return the owner whose turn it is; None while no message waits."""
        return next(iter(self._waiting), None)

    def take(self) -> tuple[Owner, list[DeadMessage]]:
        """Return the owner whose turn it is and its next messages, and move it behind the other owners. There are
        some."""
        owner, waiting = self._waiting.popitem(last=False)
        step = [waiting.popleft() for _ in range(min(STEP_RECORDS, len(waiting)))]
        self._held -= sum(each.message is not None for each in step)
        if waiting:
            self._waiting[owner] = waiting
        return owner, step

    def taken(self, owner: Owner) -> None:
        """Serve the owner's queues that waited for room, if there is enough."""
        if owner in self._wanting and len(self._waiting.get(owner, ())) * 2 <= WAITING_MAX:
            for queue in self._wanting.pop(owner):
                self._due.soon(queue)


class Contents:
    """Moves messages in and out of queues. Event loop's thread only.

    Args:
        due: gets the queues that may have something to deliver.
        dead: gets the messages that leave a queue unhandled, and are passed on.
    """

    def __init__(self, context: QueueContext, writer: QueueStateWriter, due: DueQueues, dead: DeadMessages) -> None:
        self.ref_counts = RefCounts()
        self._writer = writer
        self._unacknowledged = context.bounds.unacknowledged
        self._waiting = context.bounds.waiting
        self._round_robin = context.round_robin
        self._due = due
        self._dead = dead
        self._starved: dict[Owner, dict[Queue, None]] = {}
        """Owners that have too much unsettled -> queues with consumers of theirs."""
        self._idle: dict[Queue, None] = {}
        """Queues that had no consumer when their messages were loaded into memory."""
        self.loaded_bytes = 0
        self.added = self.accepted = self.expired = self.dropped = self.lost = 0
        """Messages since the start, by their outcome; ``dropped`` counts those of queues that were too long."""

    # --- in

    def add(self, queue: Queue, messages: Sequence[LogRecord], priority: int) -> None:
        """Add new messages to a queue, whose numbers follow each other. Call ``deliver`` afterwards."""
        size = sum([len(message.payload) for message in messages])
        self.added += len(messages)
        are_next = len(queue.loaded.messages) == queue.ready.count
        queue.add(messages, priority, size)
        self._waiting.hold(queue.owner, size + ENTRY_BYTES * len(messages))
        if not are_next:
            return
        if self.loaded_bytes + size + LOADED_ENTRY_BYTES * len(messages) <= LOADED_BYTES_MAX:
            self.load(queue, messages)
            return
        # Only as long as none is left out: what is in memory are the next messages.
        for message in messages:
            if self.loaded_bytes + len(message.payload) > LOADED_BYTES_MAX and (
                not queue.consumptions or len(queue.loaded.messages) >= NEXT_MAX
            ):
                break
            self.load(queue, (message,))

    def limit(self, queue: Queue) -> None:
        """Drop the oldest messages of a queue that exceeds its maximum length."""
        while queue.ready.count and queue.is_full():
            self.dropped += 1
            self.remove_next(queue, DeathReason.MAXLEN)

    # --- out

    def leave(self, queue: Queue, seq: int, size: int) -> None:
        """Remove a message that was taken from its queue for good."""
        self._waiting.free(queue.owner, size + ENTRY_BYTES)
        self.ref_counts.drop(seq)
        queue.marks.left((seq,))
        self._writer.settled(queue, ((seq, seq + 1),), size)

    def leave_all(self, queue: Queue, deliveries: Sequence[Delivery]) -> None:
        """Remove messages that were taken from their queue for good."""
        seqs = [delivery.seq for delivery in deliveries]
        seqs.sort()
        size = sum([delivery.size for delivery in deliveries])
        self._waiting.free(queue.owner, size + ENTRY_BYTES * len(seqs))
        self.ref_counts.drop_each(seqs)
        queue.marks.left(seqs)
        self._writer.settled(queue, runs_of(seqs), size)

    def forget(self, delivery: Delivery, queue: Queue) -> None:
        """Forget a delivery that is settled."""
        queue.unsettled.free(delivery)
        holder = delivery.holder
        if isinstance(holder, Consumption):
            self.free_share(holder.client.owner)
        holder.settled((delivery,))

    def has_share(self, queue: Queue, owner: Owner) -> bool:
        """Return whether an owner may have one more unsettled delivery; if not, its queue is served when it may."""
        if self._unacknowledged.fits(owner):
            return True
        self._unacknowledged.refuse(owner)
        self._starved.setdefault(owner, {})[queue] = None
        return False

    def take_share(self, owner: Owner) -> None:
        """Charge one delivery to an owner, before it is known whether there is a message.

        Raises:
            QueueError: the owner has too much unsettled.
        """
        if not self._unacknowledged.take(owner):
            self._unacknowledged.refuse(owner)
            raise QueueError(
                Reason.TOO_MANY,
                f"{owner} has used up its share of deliveries that are not acknowledged: acknowledge some, or raise "
                f"{self._unacknowledged.quota.raised(is_share=True)}",
            )

    def free_share(self, owner: Owner, deliveries: int = 1) -> None:
        """Release unsettled deliveries of an owner, or one of its clients that waited for a message."""
        total_was_used = self._unacknowledged.used >= self._unacknowledged.total
        self._unacknowledged.free(owner, deliveries)
        if self._starved:
            for each in list(self._starved) if total_was_used else [owner]:
                for queue in self._starved.pop(each, ()):
                    self._due.soon(queue)

    def remove_next(self, queue: Queue, death: DeathReason) -> None:
        """Remove the next message of a queue, which no consumer has handled."""
        seq, priority = queue.ready.peek()
        size = queue.take(seq)
        message = self.unload(queue, seq)
        self.expired += death is DeathReason.EXPIRED
        if queue.loaded.is_gone(seq):
            queue.loaded.passed(seq)
            self.leave(queue, seq, size)
        else:
            self.bury(queue, Delivery(seq, size, 0, priority, redelivered=False, holder=NOBODY), message, death)

    def may_bury(self, queue: Queue) -> bool:
        """Return whether an expired message may leave its queue now; if not, the queue is served when it may."""
        return queue.definition.arguments.dead_letter_exchange is None or self._dead.has_room(queue)

    def bury(self, queue: Queue, delivery: Delivery, message: LogRecord | None, death: DeathReason) -> None:
        """Dead-letter a message that was taken, or remove it for good where its queue has no dead-letter exchange."""
        if queue.definition.arguments.dead_letter_exchange is None:
            self.leave(queue, delivery.seq, delivery.size)
            return
        delivery.holder = NOBODY
        queue.unsettled.hold(delivery)
        self._dead.add(queue, delivery, message, death)

    def lose(self, queue: Queue, seq: int) -> None:
        """Skip a message that the log has deleted."""
        self.lost += 1
        self.leave(queue, seq, queue.lose(seq))

    def settle(self, deliveries: Iterable[Delivery], outcome: Outcome) -> None:
        """Settle deliveries; unknown ones are skipped."""
        for holder, group in groupby(deliveries, _HOLDER):
            if not isinstance(holder, Consumption):
                continue  # they are being dead-lettered
            if outcome is Outcome.ACCEPT and not holder.queue.deleted:
                self._accept(holder, group)
                continue
            for delivery in group:
                self._settle(holder.queue, delivery, outcome)

    def _accept(self, holder: Consumption, deliveries: Iterator[Delivery]) -> None:
        """Remove acknowledged messages from their queue, all at once: nothing of this calls anyone back."""
        queue = holder.queue
        known = queue.unsettled.free_known(deliveries)
        if known:
            self.free_share(holder.client.owner, len(known))
            holder.settled(known)
            self.accepted += len(known)
            self.leave_all(queue, known)

    def _settle(self, queue: Queue, delivery: Delivery, outcome: Outcome) -> None:
        """Settle one delivery. Sending a dead letter may write a copy of the state, so the others are in their queues
        until it is their turn."""
        if delivery not in queue.unsettled:
            return
        self.forget(delivery, queue)
        if queue.deleted:
            self._waiting.free(queue.owner, delivery.size + ENTRY_BYTES)
            self.ref_counts.drop(delivery.seq)
        elif outcome is Outcome.ACCEPT:
            self.accepted += 1
            self.leave(queue, delivery.seq, delivery.size)
        elif outcome is Outcome.REJECT:
            self.bury(queue, delivery, None, DeathReason.REJECTED)
        else:
            self._give_back(queue, delivery, failed=outcome is Outcome.REQUEUE)

    def _give_back(self, queue: Queue, delivery: Delivery, *, failed: bool) -> None:
        attempts = queue.marks.came_back(delivery, failed=failed)
        limit = queue.definition.arguments.attempts_max
        # Without a limit, a message that makes its consumers fail would be redelivered without end.
        if limit is not None and attempts > limit:
            self.bury(queue, delivery, None, DeathReason.DELIVERY_LIMIT)
            return
        self._writer.attempted(queue, delivery.seq)
        queue.put_back(delivery)
        self._due.soon(queue)

    def purge(self, queue: Queue) -> int:
        """Remove all ready messages. Return their number. The log records it at once; its room is released in turns."""
        count, size = queue.count, queue.ready.bytes
        self.unload_all(queue)
        if count:
            first, end = queue.ready.span()
            # Messages of this queue between the two are the delivered ones.
            for seq in queue.unsettled.between(first, end):
                self._writer.settled(queue, ((first, seq),), 0)
                first = seq + 1
            self._writer.settled(queue, ((first, end),), size)
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
            self.ref_counts.drop_run(first, end)
        rest = next(runs, None)
        if rest is not None:
            self._round_robin.wait(queue.owner, partial(self._let_go, queue, chain([rest], runs)))

    def _forget_unsettled(self, queue: Queue) -> None:
        """Forget the deliveries of a deleted queue, some now, and the rest in later turns."""
        for delivery in queue.unsettled.first(FORGOTTEN_SLICE):
            self._waiting.free(queue.owner, delivery.size + ENTRY_BYTES)
            self.ref_counts.drop(delivery.seq)
            self.forget(delivery, queue)
        if queue.unsettled:
            self._round_robin.wait(queue.owner, partial(self._forget_unsettled, queue))

    def restore(self, queue: Queue, remembered: RememberedQueue) -> None:
        """Restore a queue from the state that a start read."""
        queue.restore(remembered.levels, remembered.others, max(remembered.bytes, 0))
        queue.marks.restore(remembered.suspect, remembered.attempts)
        for runs in remembered.levels.values():
            for first, end in runs.runs():
                self.ref_counts.hold_run(first, end)
        for seq in remembered.others:
            self.ref_counts.hold(seq)
        if queue.count:
            self._waiting.hold(queue.owner, queue.ready.bytes + ENTRY_BYTES * queue.count)

    # --- memory

    def load(self, queue: Queue, messages: Iterable[LogRecord]) -> None:
        """Keep ready messages in memory."""
        before = queue.loaded.bytes
        queue.loaded.keep(messages)
        self.loaded_bytes += queue.loaded.bytes - before
        if not queue.consumptions:
            self._idle[queue] = None

    def unload(self, queue: Queue, seq: int) -> LogRecord | None:
        """Remove a message from memory and return it."""
        before = queue.loaded.bytes
        message = queue.loaded.drop(seq)
        self.loaded_bytes += queue.loaded.bytes - before
        return message

    def unload_run(self, queue: Queue, messages: Sequence[LogRecord]) -> None:
        """Remove messages from memory that are all there."""
        before = queue.loaded.bytes
        queue.loaded.drop_run(messages)
        self.loaded_bytes += queue.loaded.bytes - before

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

    def settled(self, deliveries: Sequence[Delivery]) -> None:
        """Do nothing."""


NOBODY: Holder = _Nobody()
