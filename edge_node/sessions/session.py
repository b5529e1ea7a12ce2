"""A session: the server's state of one client (MQTT 5.0 section 4.1)."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from weft.bounds import LOCAL, Owner, OwnerKind, RoundRobin
from weft.edge_node.access.identity import Identity
from weft.edge_node.sessions.records import NEVER_EXPIRES, SessionRecord
from weft.edge_node.sessions.window import ClientWindow
from weft.edge_node.subscriptions.message import Message
from weft.edge_node.subscriptions.subscriptions import ClientSubscription, DeliveryOptions, Subscriber
from weft.protocols.mqtt.packets import PacketIds, Will


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms of a session that CONNECT settles, beside its will."""

    version: int
    """Protocol level."""
    expiry_s: int = 0
    """Seconds that the session outlives its connection, or ``NEVER_EXPIRES``."""
    username: str | None = None
    """User name, as authenticated."""
    identity: Identity | None = None
    """Identity of the client; None without access rules, and after a restart until the client is back."""


@dataclass(frozen=True, slots=True)
class Absence:
    """Time at which the client went, and how long the session waits for it."""

    disconnected_at: int | None = None
    """Wall clock time, nanoseconds; None when the node went first, and the connection with it."""
    stopped: bool = False
    """True when the node's stop ended the connection."""
    lost_at: int | None = None
    """Wall clock time, nanoseconds, at which the node started without the connection that it had before."""
    expires_at: float | None = None
    """Time at which the session ends, by the loop's clock; None for never."""


class Session:
    """One client's session, connected or not. ``Sessions`` changes it, ``SessionFilters`` its subscriptions."""

    __slots__ = (
        "_absence",
        "_due",
        "_terms",
        "_will",
        "_will_at",
        "awaits_journal",
        "client_id",
        "ended",
        "owner",
        "received",
        "subscriptions",
        "wheel_slot",
        "window",
    )

    def __init__(
        self, window: ClientWindow, version: int, due: Callable[[Session], float | None], owner: Owner
    ) -> None:
        """Begin without subscriptions.

        Args:
            due: publishes the will, or ends the session, at its time; returns the next time to call.
        """
        self.client_id = window.client_id
        self.window = window
        self.subscriptions = window.subscribed
        """Subscriptions of the window: filter as the client wrote it -> its subscription, and the shared one of it."""
        self.received = PacketIds()
        """QoS 2 publishes stored and not yet released by PUBREL (section 4.3.3)."""
        self.owner = owner
        """Owner that its costs are charged to: its user, else the address from which it began."""
        self.ended = False
        """True once the session has ended."""
        self.awaits_journal = False
        """True while CONNACK waits for the journal to note the session, or the end of the session before it."""
        self.wheel_slot = -1
        self._terms = Terms(version)
        self._absence: Absence | None = None
        self._will: Will | None = None
        self._will_at: float | None = None
        self._due = due

    # --- state for other objects

    @property
    def terms(self) -> Terms:
        """Return the terms that CONNECT settled."""
        return self._terms

    @property
    def version(self) -> int:
        """Protocol level of the client's last CONNECT."""
        return self._terms.version

    @property
    def expiry_s(self) -> int:
        """Return the seconds that the session outlives its connection, or ``NEVER_EXPIRES``."""
        return self._terms.expiry_s

    @property
    def username(self) -> str | None:
        """Return the user name, as authenticated."""
        return self._terms.username

    @property
    def identity(self) -> Identity | None:
        """Return the client's identity; None without access rules, and after a restart until the client is back."""
        return self._terms.identity

    @property
    def rules(self) -> Identity | None:
        """Return the identity whose rules limit the client; None for a client with all rights."""
        identity = self._terms.identity
        return None if identity is None or identity.unrestricted else identity

    @property
    def persistent(self) -> bool:
        """Return whether the session outlives its connection."""
        return bool(self._terms.expiry_s)

    @property
    def connected(self) -> bool:
        """Return whether the client is connected."""
        return self.window.connected

    @property
    def will(self) -> Will | None:
        """Return the will, until it is published, which may be after the session has ended."""
        return self._will

    @property
    def will_at(self) -> float | None:
        """Return the time at which the will is due, by the loop's clock; None while connected."""
        return self._will_at

    @property
    def absence(self) -> Absence | None:
        """Return the client's absence; None while it is connected."""
        return self._absence

    def due(self, _now: float) -> float | None:
        """Do the work that is due; return the next time to call."""
        return self._due(self)

    def has_expired(self, now: float) -> bool:
        """Tell whether the client has been away for longer than the session waits."""
        expires_at = self._absence.expires_at if self._absence is not None else None
        return expires_at is not None and expires_at <= now

    def next_due(self) -> float | None:
        """Return the next time at which work is due, by the loop's clock."""
        expires_at = self._absence.expires_at if self._absence is not None else None
        return min((at for at in (self._will_at, expires_at) if at is not None), default=None)

    # --- the life of a session

    def agree(self, terms: Terms) -> None:
        """Set the terms from CONNECT, DISCONNECT or a restart."""
        self._terms = terms
        self.window.introduce(self.rules, persistent=self.persistent)

    def be_absent(self, absence: Absence | None) -> None:
        """Set the absence of the client; None when it is connected."""
        self._absence = absence

    def keep_will(self, will: Will | None, will_at: float | None = None) -> None:
        """Replace the will. ``Wills`` counts its memory.

        Args:
            will_at: time at which it is due, by the loop's clock; None for not yet.
        """
        self._will, self._will_at = will, will_at

    def end(self) -> None:
        """Mark the session as ended; its will may still have to be published."""
        self.ended = True
        self._absence = None

    def forget(self, packet_ids: Iterable[int]) -> None:
        """Forget QoS 2 publishes that were released, or could not be stored: sent again, these identifiers are new."""
        for packet_id in packet_ids:
            self.received.discard(packet_id)

    # --- across a restart

    def record(
        self, positions: dict[int, int], done: set[tuple[int, int]], began: dict[str, dict[int, int]]
    ) -> SessionRecord:
        """Return the record that survives a restart: for a session that ends with its connection, only its will.

        Args:
            positions: stream -> the first seq that was not sent.
            done: (stream, seq) of completed deliveries that are not before their stream's position.
            began: filter -> stream -> the first seq that is the filter's.
        """
        if not self.persistent:
            return SessionRecord(
                self.client_id, self.version, 0, self.username, will=self._will, address=self._address()
            )
        own, absence = {text: each for text, (each, _) in self.subscriptions.items()}, self._absence or Absence()
        return SessionRecord(
            client_id=self.client_id,
            version=self.version,
            expiry_interval=self.expiry_s,
            username=self.username,
            disconnected_at=absence.disconnected_at,
            stopped=absence.stopped,
            lost_at=absence.lost_at,
            subscriptions={text: each.options for text, each in own.items()},
            identifiers={text: each.identifier for text, each in own.items() if each.identifier},
            began=began,
            positions=positions,
            inflight=self.window.in_flight.sent(),
            done=done,
            received=set(self.received),
            will=self._will,
            address=self._address(),
        )

    def _address(self) -> str | None:
        owner = self.owner
        return owner.name if owner.kind is OwnerKind.ADDRESS and owner.name != LOCAL else None

    def restore(self, record: SessionRecord) -> None:
        """Restore a record, except for its subscriptions and its will."""
        self.agree(Terms(record.version, record.expiry_interval, record.username))
        self._absence = Absence(record.disconnected_at, record.stopped, record.lost_at)
        for packet_id in record.received:
            self.received.add(packet_id)
        self.window.in_flight.restore(record.inflight, self.window)


def seconds_left(expiry_s: int, gone_s: float) -> float | None:
    """Return the seconds that a session has left; None when it never expires."""
    return None if expiry_s == NEVER_EXPIRES else max(0.0, expiry_s - gone_s)


# Sessions whose clients are away, in the order of their disconnection.


class AwaySessions:
    """Sessions without a client: all of them, and by owner, longest away first."""

    def __init__(self) -> None:
        """Start without any."""
        self._all: dict[Session, None] = {}
        self._of: dict[Owner, dict[Session, None]] = {}

    def add(self, session: Session) -> None:
        """Note that a client has gone."""
        self._all[session] = None
        self._of.setdefault(session.owner, {})[session] = None

    def discard(self, session: Session) -> None:
        """Forget a session whose client is back, or that has ended; do nothing if it was not away."""
        if session in self._all:
            del self._all[session]
            own = self._of[session.owner]
            del own[session]
            if not own:
                del self._of[session.owner]

    def longest(self) -> Session | None:
        """Return the session that has been away longest."""
        return next(iter(self._all), None)

    def longest_of(self, owner: Owner) -> Session | None:
        """Return the session of an owner that has been away longest."""
        return next(iter(self._of.get(owner, ())), None)

    def some_of(self, owner: Owner, count: int) -> Iterable[Session]:
        """Return the sessions of an owner that have been away longest."""
        return list(islice(self._of.get(owner, ()), count))


# Retained messages for new subscriptions, as fast as the client takes them (MQTT 5.0 section 3.3.1.3).

Match = Callable[[str, int], Iterable[Message | None]]
"""(filter, number of the last change to consider) -> the retained messages to deliver, each with ``retain`` set, in
their present state; None for a step of the search without a match."""
Keep = Callable[[Subscriber, Message], Message]
"""Function that makes a message, about to be sent to a client at QoS 1 or 2, survive a restart."""

TURN_MESSAGES_MAX = 200
"""Messages sent to one client before others have their turn, about a millisecond."""
TURN_BYTES_MAX = 256 << 10
"""Payload bytes after which they have it, too."""
TURN_STEPS_MAX = 2_000
"""Steps of a search after which they have it: a search without matches may take as long as one that matches
everything."""
HELD_WAIT_S = 0.01
"""Interval between checks whether the journal, for which a client's writes wait, is durable."""
_END = Message(b"", b"", 0)


class RetainedDelivery:
    """The feeds of all clients that are receiving retained messages. Belongs to the event loop's thread.

    Feeds with more work wait for their turn: a thousand clients that look up ``#`` wait for each other, and others are
    not delayed.
    """

    def __init__(self, match: Match, keep: Keep, round_robin: RoundRobin) -> None:
        """Start without any."""
        self._match = match
        self._keep = keep
        self._round_robin = round_robin
        self._feeds: dict[ClientWindow, RetainedFeed] = {}

    def is_sending(self, window: ClientWindow) -> bool:
        """Return whether a client still has retained messages to receive."""
        return window in self._feeds

    def send(self, window: ClientWindow, subscription: ClientSubscription, change: int) -> None:
        """Send the retained messages of a new subscription, from the client's next ``pump`` on.

        Args:
            change: number of the last change before it subscribed. Messages retained later reach the client as normal
                publishes, and must not come twice.
        """
        feed = self._feeds.get(window)
        if feed is None:
            feed = self._feeds[window] = RetainedFeed(
                window, self._match, self._keep, self._round_robin, lambda: self._feeds.pop(window, None)
            )
        feed.add(subscription, change)

    def drop(self, window: ClientWindow, text: str) -> None:
        """Stop sending a filter's messages: the client has unsubscribed [MQTT-3.10.4-2]."""
        feed = self._feeds.get(window)
        if feed is not None:
            feed.drop(text)

    def forget(self, window: ClientWindow) -> None:
        """Stop sending to a client: it has gone, and subscribes again if it wants them."""
        feed = self._feeds.get(window)
        if feed is not None:
            feed.stop()


class RetainedFeed:
    """The subscriptions of one client that still have retained messages to send.

    One filter is looked up at a time, when the one before is done, so that a client with a thousand filters of ``#``
    costs the memory of one. A filter that waits already is not sent twice. Turns bound the time: one ends after so many
    messages or steps of the search, or with one filter begun.
    """

    __slots__ = (
        "_done",
        "_filter",
        "_is_over",
        "_keep",
        "_match",
        "_messages",
        "_options",
        "_pumping",
        "_round_robin",
        "_scheduled",
        "_waiting",
        "_window",
    )

    def __init__(
        self, window: ClientWindow, match: Match, keep: Keep, round_robin: RoundRobin, done: Callable[[], object]
    ) -> None:
        """Start without any.

        Args:
            round_robin: calls ``resume`` at the feed's turn.
            done: called once, when all is sent or ``stop`` was called.
        """
        self._window = window
        self._match = match
        self._keep = keep
        self._round_robin = round_robin
        self._done = done
        self._waiting: OrderedDict[str, tuple[ClientSubscription, int]] = OrderedDict()
        """Waiting subscriptions, with the last change before each, by filter as the client wrote it."""
        self._filter: str | None = None
        self._options: DeliveryOptions | None = None
        self._messages: Iterator[Message | None] = iter(())
        self._pumping = False
        self._scheduled = False
        self._is_over = False
        window.when_room(self.pump)

    def add(self, subscription: ClientSubscription, change: int) -> None:
        """Send the retained messages of a new subscription."""
        self._waiting[subscription.options.filter] = subscription, change

    def drop(self, text: str) -> None:
        """Stop sending a filter's messages."""
        self._waiting.pop(text, None)
        if self._filter == text:
            self._messages = iter(())

    def stop(self) -> None:
        """Stop sending."""
        if not self._is_over:
            self._is_over = True
            self._window.no_longer_when_room(self.pump)
            self._done()

    def pump(self) -> None:
        """Send as far as the client keeps up, and continue in later turns by itself."""
        if self._pumping or self._scheduled or self._is_over:
            return
        self._pumping = True
        try:
            self._take_turn()
        finally:
            self._pumping = False

    def resume(self) -> None:
        """Continue in the feed's turn."""
        self._scheduled = False
        if self._is_over:
            return
        if self._window.held:  # packets sent now would wait in memory
            self._schedule()
            return
        self.pump()

    # --- inside

    def _take_turn(self) -> None:
        window, left, left_bytes, looked_up = self._window, TURN_MESSAGES_MAX, TURN_BYTES_MAX, False
        left_steps = TURN_STEPS_MAX
        while window.is_idle:
            message: Message | None = None
            if left > 0 and left_bytes > 0:
                while message is None and left_steps > 0:
                    left_steps -= 1
                    message = next(self._messages, _END)
            if message is None:
                self._schedule()
                return
            if message is not _END and self._options is not None:
                left -= 1
                left_bytes -= len(message.payload)
                self._send(message, self._options)
            elif not self._waiting:
                self.stop()
                return
            elif looked_up:
                self._schedule()
                return
            else:
                self._filter, (subscription, change) = self._waiting.popitem(last=False)
                self._options = options_of(subscription)
                self._messages = iter(self._match(subscription.filter, change))
                looked_up = True

    def _schedule(self) -> None:
        self._scheduled = True
        if self._window.held:
            asyncio.get_running_loop().call_later(HELD_WAIT_S, self._round_robin.wait, self._window.owner, self.resume)
        else:
            self._round_robin.wait(self._window.owner, self.resume)

    def _send(self, message: Message, options: DeliveryOptions) -> None:
        window = self._window
        if not window.may_read(message.topic):
            return
        qos = min(message.qos, options.qos)
        if qos:
            window.send(self._keep(window, message), options, qos)
        else:
            window.send_at_most_once(message, options)


def options_of(subscription: ClientSubscription) -> DeliveryOptions:
    """Return the options for retained messages: for this subscription alone, and with the retain flag
    [MQTT-3.3.1-8]."""
    identifiers = (subscription.identifier,) if subscription.identifier else ()
    options = subscription.options
    return DeliveryOptions(subscription.subscriber, options.qos, options.no_local, True, identifiers)
