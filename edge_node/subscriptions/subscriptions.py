"""Subscriptions in a tree, and the recipients of each topic, looked up once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from weft.bounds import Owner
from weft.edge_node.counters import Counters
from weft.edge_node.subscriptions.catch_up import CatchUp
from weft.edge_node.subscriptions.limits import MESSAGE_OVERHEAD_BYTES, QueueAccount, QueueBudget
from weft.edge_node.subscriptions.message import NOWHERE, LogRecord, Message, Outbox, Positions, from_headers, lowered
from weft.protocols.batch import Flag, HeaderPairs
from weft.protocols.mqtt.packets import Subscription
from weft.protocols.topics import SHARE_PREFIX, FilterTree, Share, matches

# Contract of a subscriber, its subscriptions, and their combined delivery options for a topic.


class Subscriber(Protocol):
    """A client of any protocol that messages are delivered to. Compared by identity."""

    client_id: str

    @property
    def persistent(self) -> bool:
        """Return whether the client gets messages later that it misses while it is away."""
        ...

    def may_read(self, topic: bytes) -> bool:
        """Return whether access rules let it read messages of a topic."""
        ...

    def offer(self, message: Message, options: DeliveryOptions, qos: int) -> None:
        """Deliver at QoS 1 or 2: now, later, or from the log. Messages that are not in the log may be dropped."""

    def send_at_most_once(self, message: Message, options: DeliveryOptions) -> None:
        """Deliver at QoS 0, or drop the message when the client is slow or away."""


class Member(Subscriber, Protocol):
    """A subscriber as a member of a shared subscription, which chooses the recipient of each message."""

    owner: Owner | None
    """Owner that its memory is charged to; None for the node."""

    @property
    def connected(self) -> bool:
        """Return whether the client is connected, slow or not."""
        ...

    def takes(self, qos: int) -> bool:
        """Return whether one more message at this QoS can be sent at once."""
        ...

    def send(self, message: Message, options: DeliveryOptions, qos: int, *, noted: bool = False) -> None:
        """Send at QoS 1 or 2, after ``takes`` has returned True.

        Args:
            noted: the journal must record, before the client receives the message, that it is this member's.
        """

    def unanswered(self, share: str) -> Sequence[tuple[int, Message]]:
        """Return the QoS 1 deliveries of a share that the client has not acknowledged, in the order of sending."""
        ...

    def unsettled(self, share: str) -> Iterable[tuple[int, int]]:
        """Return (stream, seq) of the deliveries of a share that this client would lose in a crash."""
        ...

    def give_back(self, packet_id: int) -> None:
        """Remove a delivery from flight: another member gets it."""

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call back each time that there may be room again."""

    def no_longer_when_room(self, callback: Callable[[], None]) -> None:
        """Stop calling back."""


class ClientSubscription:
    """One subscription of one client. Compared by identity."""

    __slots__ = ("filter", "identifier", "options", "subscriber")

    def __init__(
        self, subscriber: Subscriber, topic_filter: str, options: Subscription, identifier: int | None
    ) -> None:
        self.subscriber = subscriber
        self.filter = topic_filter
        """Filter that topics are matched against, without ``$share/{name}/``."""
        self.options = options
        self.identifier = identifier


class DeliveryOptions(msgspec.Struct, frozen=True, eq=False):
    """Options of one client for the messages of a topic. Its matching subscriptions make one delivery (section 3.3.4).

    Compared by identity.
    """

    subscriber: Subscriber
    qos: int
    """Highest QoS that was granted."""
    no_local: bool = False
    retain_as_published: bool = False
    identifiers: tuple[int, ...] = ()
    """Subscription identifiers; a client with any gets packets of its own."""
    share: str | None = None
    """Name of the shared subscription of the messages; None for the client's own subscriptions."""


def delivery_options(subscriptions: Collection[ClientSubscription], share: str | None = None) -> DeliveryOptions:
    """Return the combined options of one client's subscriptions."""
    return DeliveryOptions(
        next(iter(subscriptions)).subscriber,
        qos=max(each.options.qos for each in subscriptions),
        no_local=all(each.options.no_local for each in subscriptions),
        retain_as_published=any(each.options.retain_as_published for each in subscriptions),
        identifiers=tuple(each.identifier for each in subscriptions if each.identifier),
        share=share,
    )


# Positions in the log at which subscriptions began. A session that is behind must not read records before them.


class FilterStarts:
    """Stream -> the first seq of a subscription, while its session has not read up to there.

    At most one entry for each filter of a session and each stream; mostly none.
    """

    def __init__(self) -> None:
        self._starts: dict[str, dict[str, tuple[ClientSubscription, Mapping[int, int]]]] = {}

    def set(self, client_id: str, subscription: ClientSubscription, ends: Mapping[int, int]) -> None:
        """Set the starts of a subscription: it gets records from these ends of the streams on."""
        if ends:
            self._starts.setdefault(client_id, {})[subscription.options.filter] = subscription, ends
        else:
            self.drop(client_id, subscription.options.filter)

    def of(self, client_id: str, text: str) -> Mapping[int, int]:
        """Return the starts of a filter; empty when they no longer matter."""
        found = self._starts.get(client_id, {}).get(text)
        return found[1] if found is not None else {}

    def knows(self, client_id: str) -> bool:
        """Return whether a subscription of a client has starts that matter."""
        return client_id in self._starts

    def all_of(self, client_id: str) -> Iterator[tuple[ClientSubscription, dict[int, int]]]:
        """Yield the subscriptions of one client with starts that matter, and the starts."""
        for subscription, ends in self._starts.get(client_id, {}).values():
            yield subscription, dict(ends)

    def drop(self, client_id: str, text: str) -> None:
        """Forget a removed subscription."""
        of_client = self._starts.get(client_id)
        if of_client is not None and of_client.pop(text, None) is not None and not of_client:
            del self._starts[client_id]

    def forget(self, client_id: str) -> None:
        """Forget the subscriptions of a session that has ended."""
        self._starts.pop(client_id, None)

    def passed(self, client_id: str, positions: Mapping[int, int]) -> None:
        """Forget starts that no longer matter: the client has read up to these positions."""
        of_client = self._starts.get(client_id)
        if of_client is None:
            return
        for text, (subscription, ends) in list(of_client.items()):
            left = {stream: seq for stream, seq in ends.items() if seq > positions.get(stream, 0)}
            if left:
                of_client[text] = subscription, left
            else:
                self.drop(client_id, text)


# Shared subscriptions: each message to one member (MQTT 5.0 section 4.8.2).
#
# A message goes to the next member in turn that can take it. When none can, it waits with the shared subscription,
# not with a member, so that it goes to the first one that is free. A shared subscription with a member whose session
# survives its connection loses nothing: it has a position in the log, as a session has. An older message is *owed*
# when no member keeps it, because a member has gone without acknowledging it: among the records before the position
# only owed ones are read again.


@dataclass(frozen=True, slots=True)
class SharedSubscriptionContext:
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
        "_account",
        "_catch_up",
        "_context",
        "_joining",
        "_members",
        "_owed",
        "_passed",
        "_pumping",
        "_queue",
        "filter",
        "name",
    )

    def __init__(
        self, share: str, topic_filter: str, context: SharedSubscriptionContext, owner: Owner | None = None
    ) -> None:
        """Start without members.

        Args:
            owner: owner that created it, which its waiting messages are charged to; None for the node.
        """
        self.filter = topic_filter
        """Without ``$share/{name}/``."""
        self.name = f"{SHARE_PREFIX}{share}/{topic_filter}"
        """The filter as clients write it."""
        self._context = context
        self._account = QueueAccount(context.budget, context.bytes_max, owner)
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
            self._context.fall_behind(self, None)

    # --- messages

    def offer(self, message: Message) -> None:
        """Deliver to one member, or queue the message."""
        if not message.qos:
            self._at_most_once(message)
        elif not self._queue and self._catch_up is None and self._give(message):
            return
        elif not self._is_readable(message):
            self._context.counters.deliveries_dropped += 1
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
                    self._context.counters.deliveries_dropped += 1
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
        message = self._context.message_of(stream, record)
        if message is None or not message.qos:
            return
        if not self._give(message):  # the members with room may not read it
            if self._is_readable(message) and self._fits(message):
                self._keep(message)
            else:
                self._context.counters.deliveries_dropped += 1
        self._context.outbox.flush()

    def lost(self, count: int) -> None:
        """Count records that the log no longer had."""
        self._context.counters.deliveries_lost += count

    def joining(self) -> None:
        """Keep live messages in the queue from now on."""
        self._joining = True

    def live(self) -> None:
        """Deliver waiting messages: the log has no more."""
        self._catch_up, self._joining = None, False
        self._owed.clear()  # the log has deleted the remaining ones
        self.pump()
        self._context.outbox.flush()

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
        self._context.counters.deliveries_dropped += 1

    def _give(self, message: Message, but: Member | None = None) -> bool:
        for member, options in self._members.items():
            if member is not but and member.takes(options.qos) and member.may_read(message.topic):
                self._to_the_end(member)
                qos = min(message.qos, options.qos)
                if message.stream != NOWHERE and message.seq >= self._passed.get(message.stream, 0):
                    self._passed[message.stream] = message.seq + 1
                    self._context.moved.add(self)
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
            self._context.counters.deliveries_dropped += 1
        elif self._catch_up is None:
            self._context.fall_behind(self, message)
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


TOPICS_MAX = 10_000
"""Maximum number of topics whose recipients are remembered; beyond it, all are forgotten and looked up again."""
TOPIC_BYTES_MAX = 512
"""Recipients of longer topics are looked up every time, so that the remembered ones stay small for any input."""


class Recipients:
    """The recipients of one topic."""

    __slots__ = ("clients", "shared")

    def __init__(self, clients: tuple[DeliveryOptions, ...], shared: tuple[SharedSubscription, ...]) -> None:
        self.clients = clients
        self.shared = shared

    @property
    def live(self) -> int:
        """Return the number of clients that get each message, rounded up to a power of two, so that topics share
        routes; 0 for none."""
        count = len(self.clients) + len(self.shared)
        return count and 1 << (count - 1).bit_length()

    @property
    def wanted(self) -> bool:
        """Return whether a persistent session subscribes to the topic at QoS 1 or 2."""
        return any(options.qos and options.subscriber.persistent for options in self.clients) or any(
            shared.persistent for shared in self.shared
        )

    @property
    def marked(self) -> bool:
        """Return whether the log must name the publisher: a session that may read there has subscribed with No Local.

        A session that ends with its connection reads there, too, when it is slow.
        """
        return any(options.no_local and options.qos for options in self.clients)


class Subscriptions:
    """All subscriptions of the node. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._tree: FilterTree[ClientSubscription | SharedSubscription] = FilterTree()
        self.known: dict[bytes, Recipients] = {}
        """Topic -> recipients found already; for other topics call ``recipients``."""
        self._watchers: list[Callable[[], None]] = []
        self._asked = False
        """True when recipients were looked up since the last change."""
        self.version = 0
        """Number of changes."""

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back after changes of recipients, if recipients were looked up since the change before: a packet with a
        thousand filters calls back once."""
        self._watchers.append(callback)

    def add(self, subscription: ClientSubscription | SharedSubscription) -> None:
        """Add a subscription, or a shared one. Its filter must be valid."""
        self._tree.add(subscription.filter, subscription)
        self.changed()

    def remove(self, subscription: ClientSubscription | SharedSubscription) -> None:
        """Remove a subscription that was added."""
        self._tree.remove(subscription.filter, subscription)
        self.changed()

    def changed(self) -> None:
        """Forget all recipients: a subscription, or what clients may read, has changed."""
        self.version += 1
        if not self._asked:
            return
        self._asked = False
        self.known.clear()
        for callback in self._watchers:
            callback()

    def recipients(self, topic: bytes) -> Recipients:
        """Return the recipients of a valid topic."""
        found = self.known.get(topic)
        if found is None:
            found = self._find(topic)
            if len(self.known) >= TOPICS_MAX:
                self.known.clear()
            if len(topic) <= TOPIC_BYTES_MAX:
                self.known[topic] = found
        return found

    def _find(self, topic: bytes) -> Recipients:
        self._asked = True
        by_client: dict[Subscriber, list[ClientSubscription]] = {}
        shared: list[SharedSubscription] = []
        for each in self._tree.match(topic.decode()):
            if isinstance(each, ClientSubscription):
                by_client.setdefault(each.subscriber, []).append(each)
            else:
                shared.append(each)
        readable = [delivery_options(own) for client, own in by_client.items() if client.may_read(topic)]
        return Recipients(tuple(readable), tuple(shared))


# All shared subscriptions, and their members' joining and leaving (MQTT 5.0 section 4.8.2).


class SharedSubscriptions:
    """Shared subscriptions by name. Belongs to the event loop's thread."""

    def __init__(self, subscriptions: Subscriptions, context: SharedSubscriptionContext) -> None:
        """Start without any."""
        self._subscriptions = subscriptions
        self._context = context
        self._by_name: dict[str, SharedSubscription] = {}

    def all(self) -> list[SharedSubscription]:
        """Return all shared subscriptions."""
        return list(self._by_name.values())

    def take_moved(self) -> list[SharedSubscription]:
        """Return the subscriptions that have delivered to members since the last call."""
        moved = list(self._context.moved)
        self._context.moved.clear()
        return moved

    def has_moved(self, shared: SharedSubscription) -> bool:
        """Return whether a subscription has delivered to members since ``take_moved``."""
        return shared in self._context.moved

    def get(self, name: str) -> SharedSubscription | None:
        """Return a shared subscription by its filter as clients write it."""
        return self._by_name.get(name)

    def join(self, member: Member, subscription: ClientSubscription, share: Share) -> SharedSubscription:
        """Make a client a member, or change its options."""
        name = subscription.options.filter
        shared = self._by_name.get(name)
        if shared is None:
            shared = self._by_name[name] = SharedSubscription(share.name, share.filter, self._context, member.owner)
            shared.join(member, subscription)
            self._subscriptions.add(shared)
        else:
            shared.join(member, subscription)
            self._subscriptions.changed()
        return shared

    def leave(self, member: Member, shared: SharedSubscription) -> bool:
        """Remove a client that unsubscribes, or whose session ends. Return whether any member is left."""
        if shared.leave(member):
            return True
        self._by_name.pop(shared.name, None)
        self._context.moved.discard(shared)
        self._subscriptions.remove(shared)
        return False


# Deliver published messages to connected subscribers that keep up.

# As plain integers: an IntFlag's arithmetic costs more than the rest of a message's turn.
_QOS0, _QOS2, _RETAINED = int(Flag.PUBLISHED_QOS0), int(Flag.PUBLISHED_QOS2), int(Flag.RETAINED)
_REPEATED = int(Flag.DUPLICATE_SUSPECTED)


class FanOut:
    """Delivers runs of messages. Nothing here waits: messages without room at a client are dropped, or read from the
    log later."""

    def __init__(self, subscriptions: Subscriptions, outbox: Outbox) -> None:
        """Connect subscriptions and the clients with pending writes."""
        self._subscriptions = subscriptions
        self._outbox = outbox

    def deliver(  # noqa: PLR0917
        self,
        topic: bytes,
        payload: bytes,
        flags: int,
        headers: HeaderPairs,
        publisher: str | None,
        stream: int,
        seq: int,
    ) -> None:
        """Deliver one record. Call ``flush`` after a run of records.

        Args:
            flags: ``Flag`` bits, the QoS among them.
            headers: empty for a message without properties.
            publisher: client identifier, for subscriptions that do not want their own messages.
            stream: stream that has the record at ``seq``; ``message.NOWHERE`` if the log does not have it.
        """
        subscriptions = self._subscriptions
        recipients = subscriptions.known.get(topic) or subscriptions.recipients(topic)
        qos = 1 if not flags else 0 if flags & _QOS0 else 2 if flags & _QOS2 else 1
        message = Message(topic, payload, qos, stream=stream, seq=seq, publisher=publisher)
        if flags & (_RETAINED | _REPEATED):
            message.retain, message.is_repeat = bool(flags & _RETAINED), bool(flags & _REPEATED)
        if headers:
            message.headers = headers
            message.properties, message.expires_ns = from_headers(headers)
        if recipients.clients:
            _deliver(message, recipients.clients, publisher)
        for shared in recipients.shared:
            shared.offer(message)

    def message(self, message: Message, publisher: str | None = None) -> None:
        """Deliver one message."""
        recipients = self._subscriptions.recipients(message.topic)
        _deliver(message, recipients.clients, publisher)
        for shared in recipients.shared:
            shared.offer(message)
        self._outbox.flush()

    def flush(self) -> None:
        """Write the gathered packets of each client at once."""
        self._outbox.flush()


def _deliver(message: Message, clients: Sequence[DeliveryOptions], publisher: str | None) -> None:
    # The inner loop of fan-out: a hundred subscribers mean a hundred iterations for every message. Each is one call,
    # which finds the encoded packet in the message (``packets_out.shared_parts``).
    qos = message.qos
    for options in clients:
        subscriber = options.subscriber
        if options.no_local and subscriber.client_id == publisher:
            continue  # [MQTT-3.8.3-3]
        granted = qos if qos < options.qos else options.qos
        if granted:
            subscriber.offer(message, options, granted)
        else:
            subscriber.send_at_most_once(message, options)


# One client's own subscriptions, for its reader of the log: what others subscribe to costs it nothing.

SUBSCRIBED = Mapping[str, tuple[ClientSubscription, SharedSubscription | None]]
"""Filter -> a client's subscription, and the shared one that it is part of."""
FILTERS_MAX = 16
"""Filters that are compared one by one, a microsecond or two each; more are put into a tree."""
OWN_TOPICS_MAX = 64
"""Topics that are remembered, 0.3 KB each for each of thousands of readers; beyond it all are forgotten."""


class OwnFilters:
    """Belongs to the event loop's thread."""

    __slots__ = ("_known", "_own", "_subscribed", "_subscriber", "_subscriptions", "_tree", "_version")

    def __init__(self, subscriber: Subscriber, subscribed: SUBSCRIBED, subscriptions: Subscriptions) -> None:
        """Look at ``subscribed`` again each time that ``subscriptions`` have changed."""
        self._subscriber = subscriber
        self._subscribed = subscribed
        self._subscriptions = subscriptions
        self._version = -1
        self._own: list[ClientSubscription] = []
        self._tree: FilterTree[ClientSubscription] | None = None
        self._known: dict[bytes, tuple[Collection[ClientSubscription], DeliveryOptions | None]] = {}

    def matching(self, topic: bytes) -> Collection[ClientSubscription]:
        """Return the subscriptions that match a valid topic; none where the client may not read it."""
        return self._of(topic)[0]

    def options(self, topic: bytes) -> DeliveryOptions | None:
        """Return what they add up to; None where none matches."""
        return self._of(topic)[1]

    def _of(self, topic: bytes) -> tuple[Collection[ClientSubscription], DeliveryOptions | None]:
        if self._version != self._subscriptions.version:
            self._look()
        found = self._known.get(topic)
        if found is None:
            matching = self._find(topic)
            found = matching, delivery_options(matching) if matching else None
            if len(self._known) >= OWN_TOPICS_MAX:
                self._known.clear()
            if len(topic) <= TOPIC_BYTES_MAX:
                self._known[topic] = found
        return found

    def _look(self) -> None:
        self._version = self._subscriptions.version
        self._own = [subscription for subscription, shared in self._subscribed.values() if shared is None]
        self._known.clear()
        self._tree = None
        if len(self._own) > FILTERS_MAX:
            self._tree = FilterTree()
            for each in self._own:
                self._tree.add(each.filter, each)

    def _find(self, topic: bytes) -> Collection[ClientSubscription]:
        if not self._subscriber.may_read(topic):
            return ()
        text = topic.decode()
        return (
            [each for each in self._own if matches(each.filter, text)] if self._tree is None else self._tree.match(text)
        )
