"""Shared subscriptions: each message to one member (MQTT 5.0 section 4.8.2).

A message goes to the next member in turn that can take it. When none can, it waits with the shared subscription, not
with a member, so that it goes to the first one that is free. A shared subscription with a member whose session survives
its connection loses nothing: it has a position in the log, as a session has. An older message is *owed* when no member
keeps it, because a member has gone without acknowledging it: among the records before the position only owed ones are
read again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from weft.bounds import Owner
from weft.edge_node.counters import Counters
from weft.edge_node.subscriptions.catch_up import CatchUp
from weft.edge_node.subscriptions.log_records import LogRecord
from weft.edge_node.subscriptions.message import NOWHERE, Message
from weft.edge_node.subscriptions.outbox import Outbox
from weft.edge_node.subscriptions.positions import Positions, lowered
from weft.edge_node.subscriptions.queue_budget import MESSAGE_OVERHEAD_BYTES, QueueAccount, QueueBudget
from weft.edge_node.subscriptions.subscriber import ClientSubscription, DeliveryOptions, Member, delivery_options
from weft.protocols.topics import SHARE_PREFIX, matches


@dataclass(frozen=True, slots=True)
class SharedParts:
    """Objects that all shared subscriptions of a node use."""

    counters: Counters
    budget: QueueBudget
    outbox: Outbox
    message_of: Callable[[int, LogRecord], Message | None]
    """(stream, record) -> the message; None when it is not to be delivered (any more)."""
    fall_behind: Callable[[SharedSubscription, Message | None], None]
    """Calls ``read_from``, so that messages from one on (None: from those still to come) are read from the log."""
    bytes_max: int
    """Maximum bytes of messages that wait with one shared subscription."""
    moved: set[SharedSubscription]
    """Subscriptions that have delivered to members; the journal of positions removes them."""


class SharedSubscription:
    """A share name and a filter, with the members that share its messages. Compared by identity."""

    __slots__ = (
        "_account", "_catch_up", "_joining", "_members", "_owed", "_parts", "_passed", "_pumping", "_queue", "filter",
        "name",
    )  # fmt: skip

    def __init__(self, share: str, topic_filter: str, parts: SharedParts, owner: Owner | None = None) -> None:
        """Start without members.

        Args:
            owner: owner that created it, which its waiting messages are charged to; None for the node.
        """
        self.filter = topic_filter
        """Without ``$share/{name}/``."""
        self.name = f"{SHARE_PREFIX}{share}/{topic_filter}"
        """The filter as clients write it."""
        self._parts = parts
        self._account = QueueAccount(parts.budget, parts.bytes_max, owner)
        self._pumping = False
        self._members: dict[Member, DeliveryOptions] = {}
        """In the order of their turns, next one first."""
        self._queue: deque[Message] = deque()
        self._catch_up: CatchUp | None = None
        self._joining = False
        """True while live messages wait in the queue and messages are still read from the log."""
        self._passed: Positions = {}
        """Stream -> number after the last message delivered to a member: no earlier message is delivered again, except
        those that wait in the queue or are owed."""
        self._owed: set[tuple[int, int]] = set()
        """(stream, seq) before ``_passed`` of messages to read from the log and deliver to a member."""

    @property
    def persistent(self) -> bool:
        """Return whether the subscription's messages must be kept while no member is connected."""
        return any(options.qos and member.persistent for member, options in self._members.items())

    @property
    def has_room(self) -> bool:
        """Return whether a member can take a message now, provided that access rules allow it."""
        return any(member.takes(options.qos) for member, options in self._members.items())

    # --- members

    def join(self, member: Member, subscription: ClientSubscription) -> None:
        """Add a member, or change its options."""
        if member not in self._members:
            member.when_room(self.pump)
        self._members[member] = delivery_options([subscription], self.name)

    def leave(self, member: Member) -> bool:
        """Remove a member for good. Return whether any is left; if not, waiting messages are discarded, and reading
        stops."""
        if self._members.pop(member, None) is not None:
            member.no_longer_when_room(self.pump)
        if not self._members:
            self.stop_reading()
            while self._queue:
                self._free(self._queue.popleft())
        return bool(self._members)

    def return_unanswered(self, member: Member, *, for_good: bool) -> bool:
        """Give a member's unacknowledged QoS 1 messages to others; for QoS 2 that is forbidden [MQTT-4.8.2-5].

        Args:
            for_good: the member does not come back, so messages that no other member takes now wait before all others.

        Returns:
            Whether messages were taken from a member that does not come back.
        """
        if member.connected:
            return False  # it unsubscribes, and still acknowledges its deliveries
        unanswered = member.unanswered(self.name)
        for packet_id, message in reversed(unanswered):
            if for_good:
                member.give_back(packet_id)
                if not self._give(message, but=member):
                    self._queue.appendleft(message)
                    self._account.take(len(message.payload) + MESSAGE_OVERHEAD_BYTES)
            elif self._give(message, but=member):
                member.give_back(packet_id)
        return for_good and bool(unanswered)

    def member_left(self) -> None:
        """Check the remaining members. Without a connected one, messages that must not be lost are read from the log
        later."""
        if self._catch_up is not None:
            if not any(member.takes(0) for member in self._members):
                self.stop_reading()
        elif self.persistent and not any(member.connected for member in self._members):
            self._parts.fall_behind(self, None)

    # --- messages

    def offer(self, message: Message) -> None:
        """Deliver to one member, or queue the message."""
        if not message.qos:
            self._at_most_once(message)
        elif not self._queue and self._catch_up is None and self._give(message):
            return
        elif not self._is_readable(message):
            self._parts.counters.deliveries_dropped += 1
        elif self._catch_up is None or self._joining or message.stream == NOWHERE:
            self._wait(message)
        else:
            self._catch_up.cover((message,))

    def pump(self) -> None:
        """Deliver waiting messages to members that have room."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while self._queue and self._catch_up is None:
                if not self._give(self._queue[0]):
                    if self._is_readable(self._queue[0]):
                        break
                    self._parts.counters.deliveries_dropped += 1
                self._free(self._queue.popleft())
        finally:
            self._pumping = False
        if self._catch_up is not None and self.has_room:
            self._catch_up.start()
            self._catch_up.room()

    # --- the log instead of the queue

    @property
    def owner(self) -> Owner | None:
        """Return the owner that created it; None for the node."""
        return self._account.owner

    @property
    def queued(self) -> list[Message]:
        """Return the waiting messages."""
        return list(self._queue)

    def read_from(self, catch_up: CatchUp) -> None:
        """Read messages that ``leave_to_log`` removes from the queue, and those published from now on, from the log."""
        self._catch_up, self._joining = catch_up, False
        if self.has_room:
            catch_up.start()

    def leave_to_log(self, positions: Positions) -> None:
        """Remove waiting messages that are read from the log, from these positions on."""
        self._owed |= {
            (message.stream, message.seq)
            for message in self._queue
            if message.seq < self._passed.get(message.stream, 0)
        }
        self._drop_queue(positions)

    def restore(self, positions: Positions, owed: Collection[tuple[int, int]], catch_up: CatchUp) -> None:
        """Resume at the positions of the node's last run: before them only owed messages are delivered again."""
        self._passed, self._owed = dict(positions), set(owed)
        self._catch_up = catch_up

    def stop_reading(self) -> None:
        """Stop reading for now."""
        self._joining = False
        if self._catch_up is not None:
            self._catch_up.stop()

    def add_streams(self, ends: Positions) -> None:
        """Read these streams as well, from here on, while the log is read."""
        if self._catch_up is not None:
            self._catch_up.add(ends)

    def state(self, ends: Mapping[int, int]) -> tuple[Positions, list[tuple[int, int]]]:
        """Return the state for a restart: the positions, and (stream, seq) before them of messages still to be
        delivered.

        Args:
            ends: stream -> the first seq not yet published to it.
        """
        passed = self._passed
        reached = ends if self._catch_up is None else self._catch_up.positions
        waiting = [(message.stream, message.seq) for message in self._queue]
        ahead = (each for each in waiting if each[0] != NOWHERE and each[1] >= passed.get(each[0], 0))
        positions = lowered({stream: max(seq, passed.get(stream, 0)) for stream, seq in reached.items()}, ahead)
        return positions, sorted(each for each in self._unsettled() if each[1] < positions.get(each[0], 0))

    def wants(self, topic: bytes) -> bool:
        """Return whether messages of a topic are for the members."""
        return matches(self.filter, topic.decode())

    def read(self, stream: int, record: LogRecord) -> None:
        """Deliver a message that was read, unless a member already has it; there is room."""
        if record.seq < self._passed.get(stream, 0):
            if (stream, record.seq) not in self._owed:
                return
            self._owed.discard((stream, record.seq))
        message = self._parts.message_of(stream, record)
        if message is None or not message.qos:
            return
        if not self._give(message):  # the members with room may not read it
            if self._is_readable(message) and self._fits(message):
                self._keep(message)
            else:
                self._parts.counters.deliveries_dropped += 1
        self._parts.outbox.flush()

    def lost(self, count: int) -> None:
        """Count records that the log no longer had."""
        self._parts.counters.deliveries_lost += count

    def joining(self) -> None:
        """Keep live messages in the queue from now on."""
        self._joining = True

    def live(self) -> None:
        """Deliver waiting messages: the log has no more."""
        self._catch_up, self._joining = None, False
        self._owed.clear()  # the log has deleted the remaining ones
        self.pump()
        self._parts.outbox.flush()

    # --- inside

    def _unsettled(self) -> set[tuple[int, int]]:
        """Return (stream, seq) of the members' messages that only memory has assigned: waiting ones, owed ones, and
        those in flight that members would lose in a crash."""
        found = self._owed | {(message.stream, message.seq) for message in self._queue}
        for member in self._members:
            found.update(member.unsettled(self.name))
        return found

    def _at_most_once(self, message: Message) -> None:
        for member, options in self._members.items():
            if member.takes(0) and member.may_read(message.topic):
                self._to_the_end(member)
                member.send_at_most_once(message, options)
                return
        self._parts.counters.deliveries_dropped += 1

    def _give(self, message: Message, but: Member | None = None) -> bool:
        for member, options in self._members.items():
            if member is not but and member.takes(options.qos) and member.may_read(message.topic):
                self._to_the_end(member)
                qos = min(message.qos, options.qos)
                if message.stream != NOWHERE and message.seq >= self._passed.get(message.stream, 0):
                    self._passed[message.stream] = message.seq + 1
                    self._parts.moved.add(self)
                if qos:
                    # The journal must have the delivery of a QoS 2 message before the client receives it: after a crash
                    # no other member may get it [MQTT-4.8.2-5].
                    member.send(message, options, qos, noted=qos == 2 and self.persistent)
                else:
                    member.send_at_most_once(message, options)
                return True
        return False

    def _to_the_end(self, member: Member) -> None:
        self._members[member] = self._members.pop(member)

    def _wait(self, message: Message) -> None:
        if self._fits(message) and any(member.connected for member in self._members):
            self._keep(message)
        elif message.stream == NOWHERE:
            self._parts.counters.deliveries_dropped += 1
        elif self._catch_up is None:
            self._parts.fall_behind(self, message)
        else:
            self._joining = False
            ahead = (each for each in self._queue if each.seq >= self._passed.get(each.stream, 0))
            self._catch_up.cover((*ahead, message))
            self._drop_queue(self._catch_up.positions)
            self._catch_up.fall_back()

    def _drop_queue(self, positions: Positions) -> None:
        kept = deque[Message]()
        for message in self._queue:
            if message.stream == NOWHERE or message.seq < positions.get(message.stream, message.seq + 1):
                kept.append(message)
            else:
                self._free(message)
        self._queue = kept

    def _is_readable(self, message: Message) -> bool:
        """Return whether access rules let any member read it; an absent member is checked when it connects."""
        return any(member.may_read(message.topic) for member in self._members)

    def _fits(self, message: Message) -> bool:
        return self._account.fits(len(message.payload) + MESSAGE_OVERHEAD_BYTES)

    def _keep(self, message: Message) -> None:
        self._queue.append(message)
        self._account.take(len(message.payload) + MESSAGE_OVERHEAD_BYTES)

    def _free(self, message: Message) -> None:
        self._account.free(len(message.payload) + MESSAGE_OVERHEAD_BYTES)
