"""Shared subscriptions: each message to one member of the group (MQTT 5.0 section 4.8.2).

A message goes to the next member in turn that can take it. When none can, it waits with the group, not with a member,
so that it goes to whoever is free first. A group with a member whose session survives its connection loses nothing: it
has a position in the log, as a session has. What is older than that and still nobody's, because a member has gone
without acknowledging it, the group owes: of what it has passed it reads that alone again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from weft.edge_node.sessions.window_ports import MESSAGE_OVERHEAD_BYTES, QueueBudget
from weft.edge_node.subscriptions.log_records import LogRecord
from weft.edge_node.subscriptions.message import NOWHERE, Message
from weft.edge_node.subscriptions.subscriptions import Entry, Grant
from weft.protocols.topics import SHARE_PREFIX, matches

if TYPE_CHECKING:
    from weft.edge_node.counters import Counters
    from weft.edge_node.sessions.client_window import Outbound
    from weft.edge_node.subscriptions.catch_up import CatchUp

RECORD_PREFIX = "\0" + SHARE_PREFIX
"""What the identifier of a group's session record begins with: no client's can."""


class GroupKeeper(Protocol):
    """What all groups share (``Sessions`` is it)."""

    counters: Counters
    budget: QueueBudget

    def group_behind(self, group: Group, first: Message | None) -> None:
        """Have the group's messages from ``first`` on (None: from those still to come) read from the log."""

    def message_of(self, stream: int, record: LogRecord) -> Message | None:
        """A record as a message; None when it is not to be delivered (any more)."""
        ...

    def flush(self) -> None:
        """Write what was gathered for each client."""


class Group:
    """One shared subscription: a share name and a filter. Compared by identity."""

    __slots__ = (
        "_bytes", "_bytes_max", "_keeper", "_pumping", "catch_up", "filter", "members", "owed", "passed", "queue",
        "share",
    )  # fmt: skip

    def __init__(self, share: str, topic_filter: str, keeper: GroupKeeper, bytes_max: int) -> None:
        self.share = share
        self.filter = topic_filter
        """Without ``$share/{name}/``."""
        self._keeper = keeper
        self._bytes_max = bytes_max
        self._bytes = 0
        self._pumping = False
        self.members: dict[Outbound, Grant] = {}
        """In turn: the next one first."""
        self.queue: deque[Message] = deque()
        self.catch_up: CatchUp | None = None
        self.passed: dict[int, int] = {}
        """Stream -> one past the last message that was given to a member: of those before it none is given again,
        except what waits in ``queue`` and what is owed."""
        self.owed: set[tuple[int, int]] = set()
        """(stream, seq) before ``passed`` of what is to be read from the log and given to somebody."""

    @property
    def name(self) -> str:
        """The filter as clients write it."""
        return f"{SHARE_PREFIX}{self.share}/{self.filter}"

    @property
    def record_id(self) -> str:
        """Under which its position is kept."""
        return f"\0{self.name}"

    @property
    def persistent(self) -> bool:
        """Whether its messages must not be lost when nobody is there."""
        return any(grant.qos and outbound.persistent for outbound, grant in self.members.items())

    @property
    def has_room(self) -> bool:
        """Whether a member can take a message now, if it may read it."""
        return any(_has_room(outbound, grant) for outbound, grant in self.members.items())

    # --- members

    def join(self, outbound: Outbound, entry: Entry) -> None:
        """A client subscribes, or changes its options."""
        if outbound not in self.members:
            outbound.groups.append(self)
        self.members[outbound] = Grant([entry], self)

    def leave(self, outbound: Outbound) -> bool:
        """A client is no member any more. Whether anybody is left; if not, what waited is gone."""
        if self.members.pop(outbound, None) is not None:
            outbound.groups.remove(self)
        if not self.members:
            while self.queue:
                self._free(self.queue.popleft())
        return bool(self.members)

    def renew(self, outbound: Outbound, entry: Entry) -> None:
        """A member has come back, perhaps with another version."""
        self.members[outbound] = Grant([entry], self)

    # --- messages

    def offer(self, message: Message) -> None:
        """Deliver to one member, or keep."""
        if not message.qos:
            self._at_most_once(message)
        elif not self.queue and self.catch_up is None and self._give(message):
            return
        elif not self._is_readable(message):
            self._keeper.counters.deliveries_dropped += 1
        elif self.catch_up is None or self.catch_up.joining or message.stream == NOWHERE:
            self._wait(message)

    def take_back(self, message: Message, outbound: Outbound) -> bool:
        """A member has gone without acknowledging: somebody else gets the message, if there is room."""
        return self._give(message, but=outbound)

    def put_first(self, message: Message) -> None:
        """A member has gone for good without acknowledging: the message waits before all others."""
        if message.qos:
            self.queue.appendleft(message)
            self._take(message)

    def pump(self) -> None:
        """A member may have room."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while self.queue and self.catch_up is None:
                if not self._give(self.queue[0]):
                    if self._is_readable(self.queue[0]):
                        break
                    self._keeper.counters.deliveries_dropped += 1
                self._free(self.queue.popleft())
        finally:
            self._pumping = False
        if self.catch_up is not None and self.has_room:
            self.catch_up.start()
            self.catch_up.room()

    def detached(self) -> None:
        """A member has gone. With nobody there, a persistent group's messages are read from the log later."""
        if self.catch_up is not None:
            if not any(outbound.live for outbound in self.members):
                self.catch_up.stop()
        elif self.persistent and not any(outbound.link for outbound in self.members):
            self._keeper.group_behind(self, None)

    def drop_queue(self, positions: Mapping[int, int]) -> None:
        """Forget what waits and will be read from the log, which is read from these positions on."""
        kept: deque[Message] = deque()
        for message in self.queue:
            if message.stream == NOWHERE or message.seq < positions.get(message.stream, 0):
                kept.append(message)
            else:
                self._free(message)
        self.queue = kept

    def unsettled(self) -> set[tuple[int, int]]:
        """(stream, seq) of what only memory knows to be the group's: what waits, what it owes, and what members have in
        flight that a crash would take from them."""
        found = self.owed | {(message.stream, message.seq) for message in self.queue}
        for outbound in self.members:
            lasting = outbound.persistent  # its deliveries are in the journal, but for those about to be written
            for packet_id in outbound.unjournaled if lasting else outbound.inflight:
                delivery = outbound.inflight.get(packet_id)
                if delivery is not None and delivery[1].group is self and (lasting or delivery[2] == 1):
                    found.add((delivery[0].stream, delivery[0].seq))
        return found

    # --- what catching up asks

    def wants(self, topic: bytes) -> bool:
        """Whether messages of a topic are for the group."""
        return matches(self.filter, topic.decode())

    def read(self, stream: int, record: LogRecord) -> None:
        """Deliver a message that was read, unless a member has been given it; there is room."""
        if record.seq < self.passed.get(stream, 0):
            if (stream, record.seq) not in self.owed:
                return
            self.owed.discard((stream, record.seq))
        message = self._keeper.message_of(stream, record)
        if message is None or not message.qos:
            return
        if not self._give(message):  # the members with room may not read it
            if self._is_readable(message) and self._fits(message):
                self.queue.append(message)
                self._take(message)
            else:
                self._keeper.counters.deliveries_dropped += 1
        self._keeper.flush()

    def lost(self, count: int) -> None:
        """The log no longer had some records."""
        self._keeper.counters.deliveries_lost += count

    def live(self) -> None:
        """The group is level."""
        self.catch_up = None
        self.owed.clear()  # what is left of it the log no longer has
        self.pump()
        self._keeper.flush()

    # --- inside

    def _at_most_once(self, message: Message) -> None:
        for outbound, grant in self.members.items():
            if outbound.live and outbound.may_read(message.topic):
                self._to_the_end(outbound)
                outbound.send_at_most_once(message, grant)
                return
        self._keeper.counters.deliveries_dropped += 1

    def _give(self, message: Message, but: Outbound | None = None) -> bool:
        for outbound, grant in self.members.items():
            if outbound is not but and _has_room(outbound, grant) and outbound.may_read(message.topic):
                self._to_the_end(outbound)
                qos = min(message.qos, grant.qos)
                if message.stream != NOWHERE and message.seq >= self.passed.get(message.stream, 0):
                    self.passed[message.stream] = message.seq + 1
                if qos:
                    outbound.send(message, grant, qos)
                    # The journal must know that a QoS 2 message is given before the client has it: after a crash it
                    # is nobody else's [MQTT-4.8.2-5].
                    outbound.waits |= qos == 2 and self.persistent
                else:
                    outbound.send_at_most_once(message, grant)
                return True
        return False

    def _to_the_end(self, outbound: Outbound) -> None:
        self.members[outbound] = self.members.pop(outbound)

    def _wait(self, message: Message) -> None:
        keeper = self._keeper
        if self._fits(message) and any(outbound.link for outbound in self.members):
            self.queue.append(message)
            self._take(message)
        elif message.stream == NOWHERE:
            keeper.counters.deliveries_dropped += 1
        elif self.catch_up is None:
            keeper.group_behind(self, message)
        else:
            self.drop_queue(self.catch_up.positions)
            self.catch_up.fall_back()

    def _is_readable(self, message: Message) -> bool:
        """Whether access rules let any member have it; of one that is away they are asked when it comes."""
        return any(outbound.may_read(message.topic) for outbound in self.members)

    def _fits(self, message: Message) -> bool:
        budget, cost = self._keeper.budget, len(message.payload) + MESSAGE_OVERHEAD_BYTES
        return self._bytes + cost <= self._bytes_max and budget.used + cost <= budget.bytes_max

    def _take(self, message: Message) -> None:
        self._bytes += len(message.payload) + MESSAGE_OVERHEAD_BYTES
        self._keeper.budget.used += len(message.payload) + MESSAGE_OVERHEAD_BYTES

    def _free(self, message: Message) -> None:
        self._bytes -= len(message.payload) + MESSAGE_OVERHEAD_BYTES
        self._keeper.budget.used -= len(message.payload) + MESSAGE_OVERHEAD_BYTES


def _has_room(outbound: Outbound, grant: Grant) -> bool:
    return outbound.window_open if grant.qos else outbound.live
