"""Proton's engine of one connection: bytes in, events and bytes out.

This module, ``endpoints`` and ``deliveries`` know Proton. They are loaded with the first client of AMQP 1.0, so that
nodes without any do not pay for them. Calls for each message bypass Proton's Python objects and use the functions below
them: an object for each event, its delivery, link, session, connection and transport costs more than all the rest of a
message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from cproton import (
    PN_ACCEPTED,
    PN_CONNECTION_REMOTE_CLOSE,
    PN_CONNECTION_REMOTE_OPEN,
    PN_DELIVERY,
    PN_LINK_FLOW,
    PN_LINK_REMOTE_CLOSE,
    PN_LINK_REMOTE_DETACH,
    PN_LINK_REMOTE_OPEN,
    PN_MODIFIED,
    PN_REJECTED,
    PN_RELEASED,
    PN_SESSION_REMOTE_CLOSE,
    PN_SESSION_REMOTE_OPEN,
    PN_TRANSPORT_ERROR,
    addressof,
    ffi,
    lib,
    pn_collector_peek,
    pn_collector_pop,
    pn_condition_set_description,
    pn_condition_set_name,
    pn_delivery,
    pn_delivery_aborted,
    pn_delivery_link,
    pn_delivery_local,
    pn_delivery_local_state,
    pn_delivery_partial,
    pn_delivery_readable,
    pn_delivery_remote,
    pn_delivery_remote_state,
    pn_delivery_settle,
    pn_delivery_settled,
    pn_delivery_update,
    pn_disposition_condition,
    pn_disposition_is_failed,
    pn_disposition_is_undeliverable,
    pn_event_delivery,
    pn_event_link,
    pn_event_session,
    pn_event_type,
    pn_link_advance,
    pn_link_credit,
    pn_link_send,
    pn_transport_peek,
    pn_transport_pending,
    pn_transport_pop,
    pn_transport_push,
)
from proton import Collector, Condition, Connection, Link, ProtonException, Session, Terminus, Transport, symbol

from weft.edge_node.servers.amqp1.mapping import Address, BadAddress, Refused, parse, to_message
from weft.edge_node.servers.amqp1.supplies import Item, OpenConnection, Outcome, Outcomes, Supply
from weft.edge_node.subscriptions.limits import QueueAccount
from weft.protocols.amqp1 import message_parts
from weft.protocols.errors import Corrupt

# Deliveries of the engine: its own pointers, which must not be used once their link is forgotten.

# --- incoming

RECEIVED_BYTES = 64 << 10
"""Bytes of a message that are taken from the engine at a time."""
_RECEIVED = ffi.new("char[]", RECEIVED_BYTES)
cast = ffi.cast
_ADDRESS = ffi.typeof("uintptr_t")

is_readable: Callable[[Any], bool] = pn_delivery_readable
is_partial: Callable[[Any], bool] = pn_delivery_partial
is_aborted: Callable[[Any], bool] = pn_delivery_aborted
is_settled: Callable[[Any], bool] = pn_delivery_settled
settle: Callable[[Any], None] = pn_delivery_settle


def take(pointer: Any) -> bytes:
    """Return the bytes of a link's current delivery since the last call; none of one that was aborted."""
    size = lib.pn_link_recv(pointer, _RECEIVED, RECEIVED_BYTES)
    if size < RECEIVED_BYTES:
        return bytes(ffi.unpack(_RECEIVED, size)) if size > 0 else b""
    parts = []
    while size > 0:
        parts.append(ffi.unpack(_RECEIVED, size))
        size = lib.pn_link_recv(pointer, _RECEIVED, RECEIVED_BYTES)
    return b"".join(parts)


def is_answered(delivery: Any) -> bool:
    """Return whether the node has set the outcome of a delivery."""
    return bool(pn_delivery_local_state(delivery))


def pointer_of(link: Any) -> Any:
    """Return the engine's own pointer to a link, for ``take`` and ``advance``; valid until the link is forgotten."""
    return link._impl


advance: Callable[[Any], None] = pn_link_advance
"""Advances to the next delivery of a link, given by its pointer."""


def accept(deliveries: Iterable[Any], *, settles: bool) -> None:
    """Mark deliveries as accepted.

    Args:
        settles: settle them, too; otherwise call ``settle`` for those that the client has settled.
    """
    for delivery in deliveries:
        pn_delivery_update(delivery, PN_ACCEPTED)
        if settles:
            pn_delivery_settle(delivery)


def release(delivery: Any) -> None:
    """Mark a delivery as released: the client may send it again, here or elsewhere. Call ``settle`` afterwards."""
    pn_delivery_update(delivery, PN_RELEASED)


def reject(delivery: Any, condition: str, description: str) -> None:
    """Mark a delivery as rejected, with the reason. Call ``settle`` afterwards."""
    error = pn_disposition_condition(pn_delivery_local(delivery))
    pn_condition_set_name(error, condition)
    pn_condition_set_description(error, description)
    pn_delivery_update(delivery, PN_REJECTED)


# --- outgoing


def credit(link: Any) -> int:
    """Return the client's remaining credit in deliveries."""
    return int(pn_link_credit(link._impl))


def send(link: Any, tag: bytes, parts: Iterable[bytes], *, settled: bool) -> tuple[int, Any]:
    """Send a message. Return the delivery's number, valid until it is settled, and the delivery."""
    delivery = pn_delivery(link._impl, tag)
    for part in parts:
        pn_link_send(link._impl, part)
    pn_link_advance(link._impl)
    if settled:
        pn_delivery_settle(delivery)
    return addressof(delivery), delivery


def number_of(delivery: Any) -> int:
    """Return the number that ``send`` returned for a delivery."""
    return int(addressof(delivery))


def outcome_of(delivery: Any) -> Outcome | None:
    """Return the outcome of a delivery; None until the client has sent it."""
    state = pn_delivery_remote_state(delivery)
    if state == PN_ACCEPTED:
        return Outcomes.ACCEPTED
    if state == PN_REJECTED:
        return Outcomes.REJECTED
    if state == PN_RELEASED:
        return Outcomes.RELEASED
    if state == PN_MODIFIED:
        remote = pn_delivery_remote(delivery)
        return Outcome(
            "modified", failed=pn_disposition_is_failed(remote), undeliverable=pn_disposition_is_undeliverable(remote)
        )
    return Outcomes.ACCEPTED if pn_delivery_settled(delivery) else None


# Sessions, links and termini of the engine.


def key(endpoint: Any) -> int:
    """Return a number that identifies a link or session until it is freed."""
    return int(addressof(endpoint._impl))


def fail(endpoint: Any, condition: str, description: str) -> None:
    """Close a link or session with an error."""
    endpoint.condition = Condition(condition, description)
    endpoint.close()


def refuse(link: Any, condition: str, description: str) -> None:
    """Refuse an ``attach``: answered without source and target, then closed (part 2, section 2.6.3)."""
    link.open()
    fail(link, condition, description)


def values(data: Any) -> Any:
    """Return a value that the engine decoded, such as the filters of a source; None where it has no form in Python."""
    try:
        data.rewind()
        return data.get_object() if data.next() else None
    except (ProtonException, ValueError, TypeError, KeyError):
        return None


def is_kept(terminus: Any) -> bool:
    """Return whether the client requests a terminus that outlives its connection."""
    return bool(terminus.durability != Terminus.NONDURABLE or terminus.expiry_policy == Terminus.EXPIRE_NEVER)


def keep_s(terminus: Any) -> float:
    """Return the time for which a terminus is kept after its link was detached."""
    return float("inf") if terminus.expiry_policy == Terminus.EXPIRE_NEVER else float(terminus.timeout)


def is_coordinator(terminus: Any) -> bool:
    """Return whether the link is for transactions."""
    return bool(terminus.type == Terminus.COORDINATOR)


def wants_settled(link: Any) -> bool:
    """Return whether a client requests settled messages: at most once."""
    return bool(link.remote_snd_settle_mode == Link.SND_SETTLED)


def settles_second(link: Any) -> bool:
    """Return whether the receiver of a link settles a delivery after the sender (part 2, section 2.8.3)."""
    return bool(link.remote_rcv_settle_mode == Link.RCV_SECOND)


def keep_filters(terminus: Any, asked: Any, names: tuple[str, ...]) -> None:
    """Set the filters of a source to the ones in force, in the form that the client has sent."""
    terminus.filter.clear()
    found = values(asked.filter) if names else None
    if found:
        terminus.filter.put_dict({symbol(name): found[name] for name in names})


def accept_attach(link: Any) -> None:
    """Answer ``attach`` with the source and target that the client has requested; the caller may change them first."""
    link.snd_settle_mode = link.remote_snd_settle_mode
    link.rcv_settle_mode = link.remote_rcv_settle_mode
    link.open()


def address_of(terminus: Any) -> Address:
    """Return the address of a source or target.

    Raises:
        Refused: it names nothing.
    """
    capabilities = values(terminus.capabilities)
    if isinstance(capabilities, str):
        capabilities = [capabilities]
    elements = getattr(capabilities, "elements", capabilities)
    names = [str(each) for each in elements] if isinstance(elements, list | tuple) else []
    try:
        return parse(terminus.address, names)
    except BadAddress as error:
        raise Refused("amqp:not-found", str(error)) from None


SESSION_BYTES = 64 << 20
"""Window of a session: a thousand frames, short ones mostly. The engine keeps none of them: received parts of a message
are taken from it at once, and charged to the user."""


class Events(Protocol):
    """Handlers of the engine's events; ``Links`` implements them."""

    def opened(self) -> None:
        """Handle an ``open`` of the client."""

    def closed(self) -> None:
        """Handle a ``close`` of the client."""

    def session_opened(self, session: Any) -> None:
        """Handle a ``begin`` of the client."""

    def session_closed(self, session: Any) -> None:
        """Handle an ``end`` of the client."""

    def attached(self, link: Any) -> None:
        """Handle an ``attach`` of the client."""

    def detached(self, link: Any, *, closed: bool) -> None:
        """Handle a ``detach`` of the client."""


class LinkEvents(Protocol):
    """Handlers of the events of one link."""

    def delivery(self, delivery: Any) -> None:
        """Handle a part of a message, or the outcome of one."""

    def flow(self) -> None:
        """Handle a change of credit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Bounds that ``open`` announces."""

    container: str
    frame_bytes_max: int
    idle_s: float
    """Seconds of silence after which the client is treated as dead; half of them are announced to it."""
    sessions_max: int


class Engine:
    """One connection's engine. Belongs to the event loop's thread."""

    __slots__ = ("_collector", "_connection", "_events", "_is_handling", "_links", "_transport", "ended", "error")

    def __init__(self, settings: EngineSettings, events: Events) -> None:
        self._events = events
        self._links: dict[int, LinkEvents] = {}
        """Address of a link in the engine -> handlers of its events."""
        self._is_handling = False
        self.ended = False
        """True once there is nothing more to send."""
        self.error: str | None = None
        """Reason why the engine closed the connection."""
        self._transport = transport = Transport(Transport.SERVER)
        transport.max_frame_size = settings.frame_bytes_max
        transport.idle_timeout = settings.idle_s
        transport.channel_max = settings.sessions_max - 1
        self._collector = Collector()
        self._connection = Connection()
        self._connection.container = settings.container
        self._connection.collect(self._collector)
        transport.bind(self._connection)

    # --- bytes

    def receive(self, data: bytes) -> None:
        """Pass whole frames to the engine. Call ``handle`` afterwards."""
        transport, at = self._transport._impl, 0
        while at < len(data):
            taken = pn_transport_push(transport, data[at:] if at else data)
            if taken <= 0:
                break  # an error, which an event reports
            at += taken

    def handle(self) -> None:
        """Handle all events. Within one of them, do nothing.

        Raises:
            Corrupt: a name or an address is not in UTF-8.
        """
        if self._is_handling:
            return
        self._is_handling = True
        try:
            self._handle_all()
        finally:
            self._is_handling = False

    def _handle_all(self) -> None:
        collector = self._collector._impl
        while event := pn_collector_peek(collector):
            try:
                if pn_event_type(event) == PN_DELIVERY:
                    delivery = pn_event_delivery(event)
                    link = self._links.get(int(cast(_ADDRESS, pn_delivery_link(delivery))))
                    if link is not None:
                        link.delivery(delivery)
                else:
                    self._handle(event)
            except (UnicodeDecodeError, ProtonException) as error:
                # Names and addresses are text, and the engine does not check it.
                raise Corrupt(f"the received bytes cannot be decoded: {error}") from None
            finally:
                pn_collector_pop(collector)

    def output(self, bytes_max: int | None = None) -> bytes:
        """Return the bytes to send; ``ended`` is set afterwards if they were the last.

        Args:
            bytes_max: approximate number of bytes after which the rest is left for the next call; None for all.
        """
        transport, parts, size = self._transport._impl, [], 0
        while (pending := pn_transport_pending(transport)) > 0 and (bytes_max is None or size < bytes_max):
            code, data = pn_transport_peek(transport, pending)
            if code <= 0:
                break
            parts.append(bytes(data))
            size += code
            pn_transport_pop(transport, code)
        if pending < 0:
            self.ended = True
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def tick(self, now: float) -> float | None:
        """Check whether the client has been silent for too long, or needs a heartbeat. Return the next time to call."""
        return self._transport.tick(now) or None

    def free(self) -> None:
        """Free the engine's memory. Do not use the object afterwards."""
        self._links.clear()
        self._transport.unbind()
        self._connection.free()
        self._collector.release()

    # --- the connection

    @property
    def remote_container(self) -> str:
        """Return the client's container identifier."""
        return self._connection.remote_container or ""

    def open(self, software: str) -> None:
        """Answer ``open``."""
        self._connection.offered_capabilities = ["ANONYMOUS-RELAY"]
        self._connection.properties = {"product": "weft", "version": software}
        self._connection.open()

    def close(self, condition: str | None = None, description: str = "") -> None:
        """Send ``close``."""
        if condition is not None:
            self._connection.condition = Condition(condition, description)
        self._connection.close()

    # --- links

    def join(self, link: Any, events: LinkEvents) -> None:
        """Register the handlers of a link's events."""
        self._links[key(link)] = events

    def leave(self, number: int) -> None:
        """Stop handling a link's events."""
        self._links.pop(number, None)

    def forget(self, link: Any) -> None:
        """Stop handling a link's events, and free it with its deliveries."""
        self.leave(key(link))
        link.free()

    # --- inside

    def _handle(self, event: Any) -> None:
        kind = pn_event_type(event)
        if kind == PN_LINK_FLOW:
            link = self._links.get(addressof(pn_event_link(event)))
            if link is not None:
                link.flow()
        elif kind in _LINKS:
            _LINKS[kind](self._events, Link.wrap(pn_event_link(event)))
        elif kind in _SESSIONS:
            _SESSIONS[kind](self._events, Session.wrap(pn_event_session(event)))
        elif kind == PN_CONNECTION_REMOTE_OPEN:
            self._events.opened()
        elif kind == PN_CONNECTION_REMOTE_CLOSE:
            self._events.closed()
        elif kind == PN_TRANSPORT_ERROR:
            condition = self._transport.condition
            self.error = f"{condition.name}: {condition.description}" if condition is not None else "an error"


_LINKS: dict[int, Callable[[Events, Any], None]] = {
    PN_LINK_REMOTE_OPEN: lambda events, link: events.attached(link),
    PN_LINK_REMOTE_DETACH: lambda events, link: events.detached(link, closed=False),
    PN_LINK_REMOTE_CLOSE: lambda events, link: events.detached(link, closed=True),
}
_SESSIONS: dict[int, Callable[[Events, Any], None]] = {
    PN_SESSION_REMOTE_OPEN: lambda events, session: events.session_opened(session),
    PN_SESSION_REMOTE_CLOSE: lambda events, session: events.session_closed(session),
}


# A link on which a client receives: credit, deliveries, and their outcomes.

UNSETTLED_MAX = 2048
"""Maximum number of unsettled deliveries of one link, for any credit."""
LONG_BYTES = 64 << 10
"""Length above which the frames of a message are made in turns: 4 MB take the engine 8 ms."""
WINDOW_BYTES = 256 << 10
"""Bytes that the engine holds for one session because the client's window is closed."""


class OutgoingLink:
    """A link on which a client receives."""

    __slots__ = (
        "_account",
        "_client",
        "_counters",
        "_has_long",
        "_is_settled",
        "_link",
        "_session",
        "_tag",
        "_unsettled",
        "_wall_clock",
        "is_open",
        "supply",
        "unsent",
    )

    def __init__(
        self, client: OpenConnection, link: Any, account: QueueAccount, wall_clock: Callable[[], int], counters: Any
    ) -> None:
        """Wait for ``begin``.

        Args:
            account: account for unsettled messages.
            wall_clock: nanoseconds since 1970.
            counters: the node's.
        """
        self._client = client
        self._link = link
        self._session = link.session
        self._account = account
        self._wall_clock = wall_clock
        self._counters = counters
        self._is_settled = wants_settled(link)
        self._tag = 0
        self._has_long = False
        """True while a long message was sent and not flushed."""
        self.unsent = 0
        """Bytes of settled messages that the engine may still have."""
        self._unsettled: dict[int, Item] = {}
        """Number of a delivery -> its message, in the order of sending."""
        self.is_open = True
        self.supply: Supply

    @property
    def has_room(self) -> bool:
        """Return whether one more message can be sent at once."""
        return (
            self.is_open
            and credit(self._link) > 0
            and self._client.takes_more
            and len(self._unsettled) < UNSETTLED_MAX
            and self._has_memory()
            and self._session.outgoing_bytes < WINDOW_BYTES
        )

    def _has_memory(self) -> bool:
        if not self._account.is_full():
            return True
        self._account.when_free(self._client.room_in_turn)
        return False

    @property
    def free(self) -> int:
        """Return the number of messages that can be sent at once."""
        if not self.has_room:
            return 0
        return min(credit(self._link), UNSETTLED_MAX - len(self._unsettled))

    @property
    def unsettled(self) -> list[Item]:
        """Return the unsettled messages, in the order of sending."""
        return list(self._unsettled.values())

    def begin(self) -> None:
        """Start the supply."""
        self.supply.start()

    def send(self, item: Item) -> bool:
        """Send a message; there is room. Return False where it has expired or is too long for the client."""
        now = self._wall_clock()
        if item.message.expired(now):
            self._counters.messages_expired += 1
            return False
        parts = message_parts(
            to_message(item.message, now, item.place, item.attempts, is_redelivered=item.is_redelivered)
        )
        size, limit = sum(map(len, parts)), self._link.remote_max_message_size
        if limit and size > limit:
            self._counters.deliveries_too_large += 1
            return False
        if size > LONG_BYTES:
            self._has_long = True  # and not copied once more
        else:
            parts = [b"".join(parts)]
        self._tag += 1
        number, _ = send(self._link, self._tag.to_bytes(8, "big"), parts, settled=self._is_settled)
        self._counters.deliveries_sent += 1
        self._account.take(item.size)
        if self._is_settled:
            self.unsent += item.size
            self._client.owes(self)
        else:
            self._unsettled[number] = item
        return True

    def flush(self) -> None:
        """Write the sent messages."""
        if self._has_long:
            self._has_long = False
            self._client.flush_in_turn()
        else:
            self._client.flush()

    def room_in_turn(self) -> None:
        """Resume sending at the client's turn."""
        self._client.room_in_turn()

    def left(self) -> bool:
        """Free messages whose frames the engine has made, and resume sending. Return whether there were any."""
        kept = min(self.unsent, self._session.outgoing_bytes)
        if kept == self.unsent:
            return False
        freed, self.unsent = self.unsent - kept, kept
        self._account.free(freed)
        self.room()
        return True

    def idle(self) -> None:
        """Return the credit of a client in drain mode, as there is nothing to send."""
        if self.is_open and self._link.drain_mode:
            self._link.drained()

    def end(self, *, closed: bool) -> None:
        """Stop sending: the link is gone."""
        if not self.is_open:
            return
        self.is_open = False
        unsettled, self._unsettled = self.unsettled, {}
        self._account.free(sum(item.size for item in unsettled) + self.unsent)
        self.unsent = 0
        self.supply.stop(unsettled, for_good=closed)

    def stolen(self) -> None:
        """Close the link: another connection of its container has attached it (part 2, section 2.6.1)."""
        self.end(closed=False)
        fail(self._link, "amqp:link:stolen", "another connection of its container has attached it")
        self._client.flush()

    def lost(self, reason: str, condition: str) -> None:
        """Close the link: its source was deleted, or the client may no longer read it."""
        if self.is_open:
            self.end(closed=False)
            fail(self._link, condition, reason)
            self._client.flush()

    def permissions_changed(self) -> None:
        """Close the link if the client may no longer read there."""
        if self.is_open and not self.supply.may_continue():
            self.end(closed=False)
            fail(self._link, "amqp:unauthorized-access", "the client may not read there any more")

    def room(self) -> None:
        """Resume sending: the socket has room."""
        if self.is_open:
            self.supply.room()

    def flow(self) -> None:
        """Resume sending: credit has changed."""
        if self.is_open:
            self.supply.room()
            if self.supply.is_idle:
                self.idle()

    def delivery(self, delivery: Any) -> None:
        """Handle the outcome of a delivery."""
        number = number_of(delivery)
        if number not in self._unsettled:
            return
        outcome = outcome_of(delivery)
        if outcome is None:
            return
        item = self._unsettled.pop(number)
        self._account.free(item.size)
        settle(delivery)
        if outcome.is_final or outcome.undeliverable or not item.is_kept:
            self.supply.done(item, outcome)
        else:
            self.supply.again(item._replace(attempts=item.attempts + outcome.failed))
        self.supply.room()
