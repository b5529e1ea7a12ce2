"""A link on which a client sends: messages to records, and durable records to dispositions."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from weft.bounds import Owner
from weft.edge_node.access.identity import Identity
from weft.edge_node.ingest.record import Route
from weft.edge_node.ingest.routing import RouteCache, refusal
from weft.edge_node.queues.queue import QueueClient
from weft.edge_node.servers.amqp1 import engine
from weft.edge_node.servers.amqp1.context import Amqp1Context
from weft.edge_node.servers.amqp1.mapping import (
    Address,
    AddressKind,
    Amqp1ReadBuffer,
    BadAddress,
    Refused,
    TooMany,
    parse,
    to_headers,
)
from weft.edge_node.servers.amqp1.supplies import OpenConnection, check_queue, route_to_queue
from weft.protocols.amqp1 import Message, decode_message, split_message
from weft.protocols.batch import Flag, HeaderPairs
from weft.protocols.errors import Corrupt
from weft.protocols.ranges import packed_headers
from weft.protocols.topics import InvalidTopic, check_topic
from weft.storage.segment_log import LogFull
from weft.storage.segment_log.settings import RecordTooLarge

log = logging.getLogger(__name__)

CREDIT = 256
"""Messages that a client may send ahead of their settlement on one link."""
FORMS_MAX, HEAD_BYTES_MAX = 4, 256
"""Maximum number of forms of messages that a link remembers, and the longest sections of one."""
_PUBLISHED_QOS0 = int(Flag.PUBLISHED_QOS0)
STREAMS_MAX = 16
"""Streams whose routes one connection remembers; clients of the anonymous terminus may name any."""


class DeliveryRun:
    """Messages of a connection that are stored together: the ``Source`` of their records. One answer is for all of
    them. Messages of separate stores have separate runs, so that a refusal does not affect messages stored before, nor
    an answer later ones."""

    protocol = "amqp"
    """Name of the protocol in traces."""
    __slots__ = ("_sending", "publisher", "stores", "waiting")

    def __init__(self, sending: Sending, publisher: str | None, stores: int) -> None:
        self._sending = sending
        self.stores = stores
        """``TickBatch.stores`` while the run gathers."""
        self.publisher = publisher
        self.waiting: list[tuple[IncomingLink, Any]] = []
        """Deliveries that are settled once their records are durable, each with its link, in order of receipt."""

    @property
    def owner(self) -> Owner:
        """Return the owner that the client's costs are charged to."""
        return self._sending.owner

    def acknowledge(self, answers: bytes) -> None:  # noqa: ARG002 - other protocols have their packets there
        """Accept the deliveries."""
        waiting, self.waiting = self.waiting, []
        for link, pairs in groupby(waiting, _LINK):
            if link.is_open:
                link.accept([delivery for _, delivery in pairs])
        self._sending.client.flush()

    def refuse(self, error: BaseException) -> None:
        """Reject messages without room; release messages that a failed log cannot store: the client may send them
        again."""
        self._sending.parts.context.counters.log_refusals += 1
        is_full = isinstance(error, LogFull | RecordTooLarge)
        waiting, self.waiting = self.waiting, []
        for link, delivery in waiting:
            if not link.is_open:
                continue
            if is_full:
                link.answer(delivery, engine.reject, "amqp:resource-limit-exceeded", str(error))
            else:
                link.answer(delivery, engine.release)
        if not is_full:
            disconnect_log = self._sending.parts.context.disconnect_log
            disconnect_log.closed(log, "messages of an AMQP 1.0 client", f"released: {error}")
        self._sending.client.flush()


_LINK: Callable[[tuple[IncomingLink, Any]], IncomingLink] = itemgetter(0)


class Sending:
    """Common part of the links of one connection on which its client sends."""

    __slots__ = (
        "_joined",
        "_routes",
        "_run",
        "_streams",
        "batch",
        "client",
        "container",
        "held",
        "identity",
        "parts",
        "queue_client",
    )

    def __init__(
        self,
        parts: Amqp1Context,
        client: OpenConnection,
        identity: Identity,
        held: Amqp1ReadBuffer,
        queue_client: QueueClient,
    ) -> None:
        self.parts = parts
        self.batch = parts.context.ingest.batch
        self.client = client
        self.identity = identity
        self.held = held
        self.queue_client = queue_client
        self.container = ""
        self._routes = parts.context.routing.routes_of(identity)
        self._streams: dict[str, RouteCache] = {}
        self._run: DeliveryRun | None = None
        self._joined = False

    @property
    def owner(self) -> Owner:
        """Return the owner that the client's costs are charged to."""
        return self.held.owner

    def run(self) -> DeliveryRun:
        """Return the run of the present read since the last store."""
        stores = self.batch.stores
        if self._run is None or self._run.stores != stores:
            self._run = DeliveryRun(self, self.container or None, stores)
            if not self._joined:
                self._joined = True
                self.client.reading.join()
        return self._run

    def end_read(self) -> None:
        """Begin another run with the next read."""
        self._run = None

    def end(self) -> None:
        """Forget the routes: the connection has ended."""
        routing = self.parts.context.routing
        routing.leave(self._routes)
        for routes in self._streams.values():
            routing.leave(routes)

    def routes(self, address: Address) -> RouteCache:
        """Return the routes of messages to an address.

        Raises:
            Refused: the address takes no messages.
        """
        if address.kind is AddressKind.TOPIC:
            return self._routes
        known = self._streams.get(address.name)
        if known is not None:
            return known
        stream = self.parts.stream_in(address.name)
        if stream is None:
            raise Refused("amqp:not-found", f"no stream {address.name[:80]!r} accepts messages of clients")
        if len(self._streams) >= STREAMS_MAX:
            raise Refused("amqp:resource-limit-exceeded", f"a connection may send to {STREAMS_MAX} streams")
        identity = None if self.identity.unrestricted else self.identity
        routes = self._streams[address.name] = RouteCache(self.parts.context.routing, identity, stream)
        return routes

    def route(self, address: Address, topic: str, key: bytes) -> Route:
        """Return the route of a message.

        Args:
            key: the topic in bytes.

        Raises:
            Refused: the message is not accepted.
        """
        routes = self._routes if address.kind is AddressKind.TOPIC else self.routes(address)
        route = routes.plain.get(key) or routes.route(key)
        if route is not None:
            return route
        counters = self.parts.context.counters
        counters.publishes_denied += 1
        if not routes.permits(key):
            raise Refused("amqp:unauthorized-access", f"the client may not publish to {topic[:200]!r}")
        raise Refused("amqp:not-found", f"no stream matches {topic[:200]!r} (`unrouted: refuse`)")


class MessageForm(NamedTuple):
    """Route and headers of messages with the same sections before their bodies."""

    address: Address
    topic: str
    """Topic of its record; the name of the queue for a queue."""
    key: bytes
    """The topic in bytes."""
    headers: HeaderPairs


class IncomingLink:
    """A link on which a client sends."""

    __slots__ = (
        "_address",
        "_forms",
        "_given_back",
        "_head",
        "_link",
        "_partial",
        "_pointer",
        "_sending",
        "_settles_second",
        "_text",
        "is_open",
    )

    def __init__(self, sending: Sending, link: Any, text: str, address: Address) -> None:
        """Handle a link's messages. Call ``begin`` afterwards.

        Args:
            text: address as the client sent it.
        """
        self._sending = sending
        self._link = link
        self._pointer = engine.pointer_of(link)
        self._text = text
        self._address = address
        self._forms: dict[bytes, MessageForm] = {}
        """Sections before a body -> what follows from them, for a few that were repeated: most messages of a link
        differ in their payloads alone."""
        self._head = b""
        """Sections before the body of the latest message whose form was not known."""
        self._partial = bytearray()
        self._given_back = 0
        self._settles_second = engine.settles_second(link)
        self.is_open = True
        """False once the link is gone, and its deliveries with it."""

    def check(self) -> None:
        """Check whether the client may send to the address.

        Raises:
            Refused: it may not.
        """
        if self._address.kind is AddressKind.ANY:
            return
        if self._address.kind is AddressKind.TOPIC:
            _check_topic(self._address.name)
            self._sending.route(self._address, self._address.name, self._address.name.encode())
        elif self._address.kind is AddressKind.QUEUE:
            check_queue(self._sending.parts.queues, self._sending.queue_client, self._address.name)
        else:
            self._sending.routes(self._address)

    def begin(self) -> None:
        """Let the client send."""
        self._link.flow(CREDIT)

    def end(self, *, closed: bool) -> None:  # noqa: ARG002 - as other links have it
        """Stop accepting messages: the link is gone."""
        self.is_open = False
        self._drop_partial()

    def permissions_changed(self) -> None:
        """Do nothing: each message is checked."""

    def room(self) -> None:
        """Do nothing: it sends nothing."""

    def flow(self) -> None:
        """Do nothing: the node grants the credit."""

    def answer(self, delivery: Any, say: Callable[..., None], *what: str) -> None:
        """Set the outcome of a delivery, and settle it: at once, or after the client where its link settles second."""
        say(delivery, *what)
        if not self._settles_second or engine.is_settled(delivery):
            engine.settle(delivery)
            self.settled()

    def accept(self, deliveries: list[Any]) -> None:
        """Accept deliveries whose records are durable."""
        engine.accept(deliveries, settles=not self._settles_second)
        count = len(deliveries)
        if self._settles_second:
            settled = list(filter(engine.is_settled, deliveries))
            for delivery in settled:
                engine.settle(delivery)
            count = len(settled)
        self.settled(count)

    def settled(self, count: int = 1) -> None:
        """Renew the credit of settled deliveries."""
        self._given_back += count
        if self._given_back >= CREDIT // 4:
            self._link.flow(self._given_back)
            self._given_back = 0

    def delivery(self, delivery: Any) -> None:
        """Handle a part of a message, or the whole."""
        if not self.is_open:
            return
        if not engine.is_readable(delivery):
            if self._settles_second and engine.is_answered(delivery) and engine.is_settled(delivery):
                engine.settle(delivery)
                self.settled()
            return
        data = engine.take(self._pointer)
        if not data and engine.is_aborted(delivery):
            self._drop_partial()
            engine.advance(self._pointer)
            engine.settle(delivery)
            self.settled()
            return
        is_partial = engine.is_partial(delivery)
        if self._partial or is_partial:
            self._partial += data
            self._sending.held.parts_bytes += len(data)
            if len(self._partial) > self._sending.parts.message_bytes_max:
                self._too_long()
                return
            if is_partial:
                return
            data = bytes(self._partial)
            self._sending.batch.joined_bytes += len(data)
            self._drop_partial()
        engine.advance(self._pointer)
        self._take(delivery, data)

    def _too_long(self) -> None:
        limit = self._sending.parts.message_bytes_max
        self._drop_partial()
        self.is_open = False
        engine.fail(self._link, "amqp:link:message-size-exceeded", f"a message of more than {limit} bytes")

    def _drop_partial(self) -> None:
        self._sending.held.parts_bytes -= len(self._partial)
        self._partial = bytearray()

    def _take(self, delivery: Any, data: bytes) -> None:
        is_settled, sending = engine.is_settled(delivery), self._sending
        try:
            if len(data) > sending.parts.message_bytes_max:
                raise Refused("amqp:link:message-size-exceeded", f"a message of {len(data)} bytes")
            form, payload = self._form(data)
            topic, route, headers = self._place(form, len(payload))
            misfits = None if route.checks is None else route.checks.look(payload)
            if misfits and not is_settled and (why := refusal(route, misfits)):
                raise Refused("amqp:precondition-failed", why)
        except (Corrupt, TooMany, Refused) as error:
            condition = error.condition if isinstance(error, Refused) else "amqp:decode-error"
            if is_settled:
                engine.settle(delivery)
                self.settled()
            else:
                self.answer(delivery, engine.reject, condition, str(error))
            return
        run, batch = sending.run(), sending.batch
        batch.add(route, topic, payload, run, _PUBLISHED_QOS0 if is_settled else 0, headers, misfits)
        if is_settled:
            engine.settle(delivery)
            self.settled()
            return
        if run.waiting:
            batch.more_acks += 1
        else:
            batch.answer(run, b"\0")
        run.waiting.append((self, delivery))

    def _form(self, data: bytes) -> tuple[MessageForm, bytes]:
        """Return the form of a message, and its payload.

        Raises:
            Corrupt: it is not a message.
            Refused: it has no valid address.
            TooMany: it has too many properties.
        """
        parts = split_message(data)
        if parts is not None and (known := self._forms.get(parts[0])) is not None:
            return known, parts[1]
        message = decode_message(data)
        form = self._form_of(message)
        if parts is not None:
            self._remember(parts[0], message, form)
        return form, message.body.payload

    def _remember(self, head: bytes, message: Message, form: MessageForm) -> None:
        """Remember a form if it came twice in a row: with an identifier in each message none does."""
        # A time to live becomes a time, which differs for each message.
        if head != self._head or message.ttl_ms is not None or message.properties.absolute_expiry_time is not None:
            self._head = head if len(head) <= HEAD_BYTES_MAX else b""
            return
        if len(self._forms) >= FORMS_MAX:
            self._forms.clear()
        try:
            self._forms[head] = form._replace(headers=packed_headers(form.headers))
        except ValueError:
            self._forms[head] = form  # the log says what is wrong with them

    def _destination(self, message: Message) -> Address:
        """Return the address of a message; on links without an address each message has its own.

        Raises:
            Refused: it has no valid address.
        """
        found, address = message.properties, self._address
        if found.user_id is not None and found.user_id != (self._sending.identity.username or "").encode():
            raise Refused("amqp:unauthorized-access", "user-id is not the user that has logged in")
        if address.kind is not AddressKind.ANY:
            return address
        try:
            address = parse(found.to)
        except BadAddress as error:
            raise Refused("amqp:not-found", str(error)) from None
        if address.kind is AddressKind.ANY:
            raise Refused("amqp:not-found", "a message without `to` on a link without an address")
        return address

    def _form_of(self, message: Message) -> MessageForm:
        """Return where a message goes, with its headers.

        Raises:
            Refused: it has no valid address.
            TooMany: it has too many properties.
        """
        address, sending = self._destination(message), self._sending
        found, topic = message.properties, address.name
        if address.kind is AddressKind.STREAM:
            to = found.to if found.to and found.to != self._text and not found.to.startswith("stream/") else None
            topic = to or found.subject or address.name
        known = {self._text, address.name, f"queue/{address.name}", topic, f"topic/{topic}"}
        if self._address.kind is AddressKind.ANY and found.to is not None:
            known.add(found.to)  # there ``to`` is the address, in any notation
        headers = to_headers(message, sending.parts.context.wall_clock(), known)
        if address.kind is not AddressKind.QUEUE:
            _check_topic(topic)
        return MessageForm(address, topic, topic.encode(), headers)

    def _place(self, form: MessageForm, size: int) -> tuple[bytes, Route, HeaderPairs]:
        """Return a message's topic, its destination and its headers.

        Raises:
            Refused: it cannot go there.
        """
        address, topic, key, headers = form
        sending = self._sending
        if address.kind is AddressKind.QUEUE:
            route, key, headers = route_to_queue(
                sending.parts.queues, sending.queue_client, address.name, headers, size
            )
            return key, route, headers
        return key, sending.route(address, topic, key), headers


def _check_topic(topic: str) -> None:
    try:
        check_topic(topic)
    except InvalidTopic as error:
        raise Refused("amqp:invalid-field", str(error)) from None
