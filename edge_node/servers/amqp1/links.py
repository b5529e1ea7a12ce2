"""Sessions and links of one connection: attaching, events and their end.

Loaded with the first client of AMQP 1.0, because it needs the engine.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from weft.bounds import Owner
from weft.config.units import parse_duration_ns
from weft.edge_node.access.identity import Identity
from weft.edge_node.queues.definitions import QueueError
from weft.edge_node.queues.queue import QueueClient
from weft.edge_node.servers.amqp1 import engine
from weft.edge_node.servers.amqp1.context import (
    LINKS_MAX,
    OWED_MAX,
    SESSION_LINKS,
    VERSION,
    Amqp1Context,
    LinkName,
    PersistedLink,
)
from weft.edge_node.servers.amqp1.engine import SESSION_BYTES, Engine, OutgoingLink
from weft.edge_node.servers.amqp1.incoming import IncomingLink, Sending
from weft.edge_node.servers.amqp1.mapping import Address, AddressKind, Amqp1ReadBuffer, Refused, parse
from weft.edge_node.servers.amqp1.supplies import (
    Beginning,
    OpenConnection,
    QueueSupply,
    StreamReading,
    StreamSupply,
    TopicSubscription,
    first_since,
    refused_by_queue,
)
from weft.edge_node.sessions.filters import cost
from weft.edge_node.subscriptions.limits import QueueAccount
from weft.protocols.topics import InvalidTopic, check_filter

# Links on which a client receives: their sources and their kept state.


class LinkToKeep(NamedTuple):
    """A link that outlives its connection."""

    name: LinkName
    known: PersistedLink | None
    """State from before; None for a new one."""
    keep_s: float


Update = Callable[[PersistedLink], None]
"""Function that updates the state of a link."""


class Receiving:
    """Common part of the links of one connection on which its client receives."""

    __slots__ = ("_client", "_identity", "_owner", "_parts", "container", "queue_client")

    def __init__(self, parts: Amqp1Context, client: OpenConnection, identity: Identity, owner: Owner) -> None:
        self._parts = parts
        self._client = client
        self._identity = identity
        self._owner = owner
        self.queue_client = QueueClient(owner, identity)
        self.container = ""

    def accept(self, link: Any) -> OutgoingLink:
        """Answer an ``attach``.

        Raises:
            Refused: the client cannot receive from there.
        """
        source = link.remote_source
        if source.dynamic:
            raise Refused("amqp:not-implemented", "this node makes no sources for clients to receive from")
        kept = self._kept(link, source)
        text = source.address or (kept.known.address if kept is not None and kept.known is not None else "")
        address = engine.address_of(source) if source.address else self._former(text)
        if kept is not None and kept.known is not None and kept.known.address != text:
            self._parts.kept.end(kept.name)  # the client uses the name for another source
            self._parts.kept.save()
            kept = kept._replace(known=None)
        context = self._parts.context
        delivery = context.delivery
        account = QueueAccount(delivery.budget, context.settings.limits.session_queue_bytes, self._owner)
        found = OutgoingLink(self._client, link, account, context.wall_clock, context.counters)
        filters: str | None = None
        if address.kind is AddressKind.STREAM:
            filters = self._from_stream(found, link, address, text, kept)
        elif address.kind is AddressKind.TOPIC:
            self._from_topic(found, link, address, text, kept, account)
        elif address.kind is AddressKind.QUEUE:
            self._from_queue(found, link, address)
        else:
            raise Refused("amqp:not-found", "a source needs an address: stream/NAME, queue/NAME or a topic filter")
        self._answer(link, source, text, filters)
        return found

    @staticmethod
    def _former(text: str) -> Address:
        if not text:
            raise Refused("amqp:not-found", "a source needs an address: stream/NAME, or a topic filter")
        return parse(text)

    def _kept(self, link: Any, source: Any) -> LinkToKeep | None:
        name = LinkName(self._owner, self.container, link.name)
        known = self._parts.kept.get(name)
        is_asked_for = engine.is_kept(source) or (known is not None and not source.address)
        if not is_asked_for:
            if known is not None and not self._parts.kept.is_attached(name):
                self._parts.kept.end(name)
            return None
        if self._parts.kept.is_attached(name):
            self._parts.holders[name].stolen()
        return LinkToKeep(name, self._parts.kept.get(name), engine.keep_s(source))

    @staticmethod
    def _answer(link: Any, source: Any, text: str, filters: str | None) -> None:
        """Answer with the actual source: unsupported filters are left out (part 3, section 3.5.3)."""
        link.source.copy(source)
        link.source.address = text
        engine.keep_filters(link.source, source, () if filters is None else (filters,))
        link.target.copy(link.remote_target)
        engine.accept_attach(link)

    # --- queues

    def _from_queue(self, found: OutgoingLink, link: Any, address: Address) -> None:
        queues, parts = self._parts.queues, self._parts
        if queues is None:
            raise Refused("amqp:not-found", f"there is no queue {address.name[:80]!r}")
        supply = QueueSupply(
            found,
            queues,
            self.queue_client,
            address.name,
            found.lost,
            parts.context.call_soon,
            settled=engine.wants_settled(link),
        )
        found.supply = supply
        try:
            supply.begin()
        except QueueError as error:
            raise refused_by_queue(error) from None

    # --- streams

    def _from_stream(
        self, found: OutgoingLink, link: Any, address: Address, text: str, kept: LinkToKeep | None
    ) -> str | None:
        parts, stream = self._parts, self._parts.stream_out(address.name)
        if stream is None:
            raise Refused("amqp:not-found", f"there is no stream {address.name[:80]!r}")
        try:
            start, used = start_of(engine.values(link.remote_source.filter), parts.context.wall_clock())
        except BadFilter as error:
            raise Refused("amqp:invalid-field", str(error)) from None
        readers = parts.context.delivery.readers
        who = f"AMQP 1.0 client {self.container[:80]!r}"
        reading = StreamReading(parts.log, readers, parts.pages, self._identity, self._owner, who)
        beginning = self._beginning(address.name, stream, start, kept)
        if kept is None:
            found.supply = StreamSupply(found, reading, address.name, stream, beginning)
        else:
            found.supply = supply = StreamSupply(
                found,
                reading,
                address.name,
                stream,
                beginning,
                partial(parts.kept.changed, kept.name),
                partial(self._stopped, kept),
            )

            def update(state: PersistedLink) -> None:
                state.positions = {address.name: supply.position}
                state.owed = {address.name: supply.not_settled()[:OWED_MAX]}

            self._keep(kept, text, update, found)
        return used

    def _beginning(self, name: str, stream: int, start: Start, kept: LinkToKeep | None) -> Beginning:
        """Return where a link continues, or begins."""
        log, links = self._parts.log, self._parts.kept
        if kept is not None and kept.known is not None and name in kept.known.positions:
            doubtful = links.ends.get(stream, 0) if kept.name in links.crashed else 0
            return Beginning(kept.known.positions[name], owed=kept.known.owed.get(name, ()), doubtful=doubtful)
        end = log.next_seq(stream)
        if start.place is From.FIRST:
            return Beginning(next((first for first, _ in log.ranges(stream)), end))
        if start.place is From.LAST:
            return Beginning(max(end - 1, 0))
        if start.place is From.OFFSET:
            return Beginning(min(start.value, end))
        if start.place is From.TIME:
            return Beginning(end, partial(first_since, log, stream, start.value))
        return Beginning(end)

    # --- topics

    def _from_topic(  # noqa: PLR0917
        self,
        found: OutgoingLink,
        link: Any,
        address: Address,
        text: str,
        kept: LinkToKeep | None,
        account: QueueAccount,
    ) -> None:
        self._check_filter(address.name)
        parts = self._parts
        subscription = parts.subscriptions.get(kept.name) if kept is not None else None
        is_new = subscription is None
        if subscription is None:
            subscription = self._subscription(link, address, account, persistent=kept is not None)
        subscription.attach(found, self._identity)
        if kept is not None:
            known = kept.known
            if known is not None and is_new:
                parts.restore(subscription, kept.name, known)

            def update(state: PersistedLink) -> None:
                names = {number: name for name, number in parts.log.streams().items()}
                state.filter = address.name
                state.positions = {names[stream]: seq for stream, seq in subscription.positions.items()}
                state.owed = {}
                for stream, seq in subscription.owed[:OWED_MAX]:
                    state.owed.setdefault(names[stream], []).append(seq)

            if is_new:
                self._subscribe(subscription)
            try:
                self._keep(kept, text, update, found)
            except Refused:
                self._unsubscribe(subscription)
                raise
            parts.subscriptions[kept.name] = subscription
            subscription.on_done = partial(parts.kept.changed, kept.name)
            subscription.on_stop = partial(self._stopped, kept)
        else:
            self._subscribe(subscription)
            subscription.on_stop = lambda _: self._unsubscribe(subscription)

    def _check_filter(self, topic_filter: str) -> None:
        """Check whether the client may subscribe.

        Raises:
            Refused: it may not.
        """
        try:
            check_filter(topic_filter)
        except InvalidTopic as error:
            raise Refused("amqp:invalid-field", str(error)) from None
        limits = self._parts.context.settings.limits
        if topic_filter.count("/") >= limits.topic_levels:
            raise Refused("amqp:invalid-field", f"a filter of more than {limits.topic_levels} levels")
        if not self._identity.unrestricted and not self._identity.may_subscribe(topic_filter):
            raise Refused("amqp:unauthorized-access", f"the client may not subscribe to {topic_filter[:200]!r}")

    def _subscription(self, link: Any, address: Address, account: QueueAccount, *, persistent: bool) -> Any:
        context = self._parts.context
        return TopicSubscription(
            f"{self.container[:80]}/{link.name[:80]}",
            address.name,
            self._identity,
            context.subscriptions,
            context.delivery.readers,
            context.outbox,
            context.counters,
            account,
            persistent=persistent,
        )

    def _subscribe(self, subscription: TopicSubscription) -> None:
        shares, text = self._parts.context.delivery.shares, subscription.filter
        if not shares.match_cost.fits(self._owner, text):
            raise Refused("amqp:resource-limit-exceeded", "no room for more filters as deep or with as many wildcards")
        if not shares.filter_bytes.take(self._owner, cost(text)):
            shares.filter_bytes.refuse(self._owner, cost(text))
            raise Refused("amqp:resource-limit-exceeded", "the filters of the user take too much memory")
        shares.match_cost.hold(self._owner, text)
        self._parts.context.counters.subscriptions += 1
        self._parts.context.ingest.batch.store()  # earlier messages are not for it
        subscription.begin()

    def _unsubscribe(self, subscription: TopicSubscription) -> None:
        self._parts.unsubscribe(self._owner, subscription)

    # --- kept links

    def _keep(self, kept: LinkToKeep, text: str, update: Update, found: OutgoingLink) -> None:
        name = kept.name
        state = kept.known or PersistedLink(
            VERSION, (str(name.owner.kind), name.owner.name), name.container, name.link, text
        )
        self._parts.holders[name] = found
        if not self._parts.kept.attach(name, state, update, kept.keep_s):
            of = "limits.user_share of limits.sessions"
            raise Refused("amqp:resource-limit-exceeded", f"the user keeps too many links ({of})")

    def _stopped(self, kept: LinkToKeep, for_good: bool) -> None:
        self._parts.holders.pop(kept.name, None)
        if for_good:
            self._parts.kept.end(kept.name)
        else:
            self._parts.kept.detach(kept.name, kept.keep_s)


OFFSET_SPECS = ("weft:offset-spec", "rabbitmq:stream-offset-spec")
"""Names of the filter for the start; libraries for RabbitMQ's streams send the second."""
_MS_NS = 1_000_000


class From(enum.Enum):
    """Place at which a receiver begins."""

    NEXT = enum.auto()
    FIRST = enum.auto()
    LAST = enum.auto()
    OFFSET = enum.auto()
    TIME = enum.auto()


class Start(NamedTuple):
    """A place in a stream."""

    place: From = From.NEXT
    value: int = 0
    """Offset, or nanoseconds since 1970."""


class BadFilter(ValueError):
    """An invalid filter; the text has the reason."""


def start_of(filters: Any, now_ns: int) -> tuple[Start, str | None]:
    """Return the start, and the name of its filter.

    Args:
        filters: the filter set as the engine decoded it: a map of symbols to described values.

    Raises:
        BadFilter: its value is invalid.
    """
    if not isinstance(filters, dict):
        return Start(), None
    for name in OFFSET_SPECS:
        if name in filters:
            value = filters[name]
            return _start(getattr(value, "value", value), now_ns), name
    return Start(), None


def _start(value: Any, now_ns: int) -> Start:
    if isinstance(value, str):
        words = {"next": From.NEXT, "first": From.FIRST, "last": From.LAST}
        if value in words:
            return Start(words[value])
        try:
            return Start(From.TIME, now_ns - parse_duration_ns(value))
        except ValueError:
            pass
    elif type(value).__name__ == "timestamp":
        return Start(From.TIME, int(value) * _MS_NS)
    elif isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return Start(From.OFFSET, int(value))
    raise BadFilter(
        f"a stream begins at first, last or next, an offset, a timestamp, or a duration ago such as 5m; got {value!r}"
    )


NAME_BYTES_MAX = 1024
"""Longest name of a link, and container identifier."""
REFUSED_MAX = 1000
"""Attaches of one connection that may be refused before it is closed: each stays in the engine until the client
detaches it."""

logger = logging.getLogger(__name__)


class Links:
    """The ``Events`` of one connection's engine. Belongs to the event loop's thread."""

    def __init__(
        self, parts: Amqp1Context, connection: OpenConnection, identity: Identity, held: Amqp1ReadBuffer
    ) -> None:
        """Begin for an admitted client. Call ``begin`` afterwards."""
        self._parts = parts
        self._connection = connection
        self._receiving = Receiving(parts, connection, identity, held.owner)
        self.sending = Sending(parts, connection, identity, held, self._receiving.queue_client)
        self._links: dict[int, IncomingLink | OutgoingLink] = {}
        self._sessions: dict[int, int] = {}
        """Number of a link -> number of its session."""
        self._open: set[int] = set()
        """Numbers of the sessions charged to the owner."""
        self._refused = 0
        self._is_over = False
        self._owner = held.owner
        self.container = ""
        """The client's container identifier."""
        self._engine: Engine

    def begin(self, engine: Engine) -> None:
        """Handle the engine's events."""
        self._engine = engine

    def room(self) -> None:
        """Resume sending: the client's socket has room."""
        for link in list(self._links.values()):
            link.room()

    def permissions_changed(self) -> None:
        """Close the links on which the client may no longer receive."""
        for link in list(self._links.values()):
            link.permissions_changed()

    def end(self) -> None:
        """Detach all links: the connection is gone. Later events are ignored."""
        self._is_over = True
        for number in list(self._links):
            self._drop(number, closed=False)
        if self._open:
            self._parts.links.free(self._owner, SESSION_LINKS * len(self._open))
            self._open.clear()
        self.sending.end()
        if self._parts.queues is not None:
            self._parts.queues.disconnects.begin(self._receiving.queue_client)

    # --- events

    def opened(self) -> None:
        """Answer ``open``."""
        if self._is_over:
            return
        container = self._engine.remote_container
        if len(container.encode()) > NAME_BYTES_MAX:
            self._engine.open(self._parts.software)
            self._connection.end("amqp:invalid-field", f"a container-id is at most {NAME_BYTES_MAX} bytes")
            return
        self.container = self.sending.container = self._receiving.container = container
        self._engine.open(self._parts.software)
        self._connection.look_at_times()

    def closed(self) -> None:
        """Answer ``close``."""
        for number in list(self._links):
            self._drop(number, closed=False)
        self._engine.close()

    def session_opened(self, session: Any) -> None:
        """Answer ``begin``."""
        if self._is_over:
            return
        if not self._parts.links.take(self._owner, SESSION_LINKS):
            self._parts.links.refuse(self._owner, SESSION_LINKS)
            # Close the connection, not only the session: the engine would keep a refused one until the client ends it.
            self._connection.end("amqp:resource-limit-exceeded", "the user has too many sessions and links; close some")
            return
        self._open.add(engine.key(session))
        session.incoming_capacity = SESSION_BYTES
        session.open()

    def session_closed(self, session: Any) -> None:
        """Answer ``end``."""
        number = engine.key(session)
        for link, of in list(self._sessions.items()):
            if of == number:
                self._drop(link, closed=False)
        if number in self._open:
            self._open.remove(number)
            self._parts.links.free(self._owner, SESSION_LINKS)
        session.close()
        session.free()

    def attached(self, link: Any) -> None:
        """Answer ``attach``, or refuse it."""
        if self._is_over:
            return
        try:
            if link.name is None or len(link.name.encode()) > NAME_BYTES_MAX:
                raise Refused("amqp:invalid-field", f"the name of a link is at most {NAME_BYTES_MAX} bytes")
            if len(self._links) >= LINKS_MAX:
                raise Refused("amqp:resource-limit-exceeded", f"a connection may have {LINKS_MAX} links")
            if not self._parts.links.take(self._owner):
                self._parts.links.refuse(self._owner)
                raise Refused("amqp:resource-limit-exceeded", "the user has too many links; close some")
            try:
                found = self._accept(link)
            except Refused:
                self._parts.links.free(self._owner)
                raise
        except Refused as refusal:
            self._refuse(link, refusal)
            return
        number = engine.key(link)
        self._links[number] = found
        self._sessions[number] = engine.key(link.session)
        self._engine.join(link, found)
        found.begin()

    def detached(self, link: Any, *, closed: bool) -> None:
        """Answer ``detach``."""
        self._drop(engine.key(link), closed=closed)
        if closed:
            link.close()
        else:
            link.detach()
        self._engine.forget(link)

    # --- inside

    def _accept(self, link: Any) -> IncomingLink | OutgoingLink:
        if link.is_sender:
            return self._receiving.accept(link)
        target = link.remote_target
        if engine.is_coordinator(target):
            raise Refused("amqp:not-implemented", "this node has no transactions for clients of AMQP 1.0")
        if target.dynamic:
            raise Refused("amqp:not-implemented", "this node makes no targets for clients to send to")
        found = IncomingLink(self.sending, link, target.address or "", engine.address_of(target))
        found.check()
        link.source.copy(link.remote_source)
        link.target.copy(target)
        link.max_message_size = self._parts.message_bytes_max
        engine.accept_attach(link)
        return found

    def _refuse(self, link: Any, refusal: Refused) -> None:
        self._refused += 1
        if self._refused > REFUSED_MAX:
            self._connection.end("amqp:resource-limit-exceeded", f"{self._refused} links were refused")
            return
        logger.info("refused a link of AMQP 1.0 client %r: %s", self.container[:80], refusal)
        engine.refuse(link, refusal.condition, str(refusal))

    def _drop(self, number: int, *, closed: bool) -> None:
        found = self._links.pop(number, None)
        if found is not None:
            del self._sessions[number]
            self._engine.leave(number)
            found.end(closed=closed)
            self._parts.links.free(self._owner)
