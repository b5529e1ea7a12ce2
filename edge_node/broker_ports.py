"""What the broker needs of its neighbours: who may come in, what is retained, and the log read again.

What survives a restart of sessions is in ``session_ports``.

The broker (connections, sessions, deliveries) is written against these; ``node.py`` puts the real ones in. Every call
belongs to the event loop's thread and returns at once, except the ``async`` ones, which may wait for a disk or a hash.
Streams are named by their number in the log, topics are UTF-8 bytes, times are nanoseconds since 1970.

``node.py`` makes one ``mqtt.broker.Broker`` (its settings are ``BrokerSettings`` and ``SessionLimits``), calls
``broker.start()`` before listeners and ``broker.close()`` after they have stopped accepting; a listener hands each
transport that is ready to ``broker.connection(door, arrival)``, and ``door.watch(broker.permissions_changed)`` is
called once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from weft.protocols.batch import HeaderPairs
from weft.protocols.mqtt.packets import Connect
from weft.protocols.mqtt.properties import Properties

NEVER_EXPIRES = 0xFFFFFFFF
"""The session expiry interval, in seconds, of a session that is kept for ever (MQTT 5.0 section 3.1.2.11.2)."""

Durable = Callable[[BaseException | None], None]
"""Called back once something is durable (None), or can never be (the error)."""


# --- who may come in


class Identity(Protocol):
    """Who a client is, once let in."""

    username: str | None
    """As authenticated: by a certificate, or by a password; None for nobody."""
    client_id: str | None
    """The client identifier to use in place of the CONNECT's own (a certificate may fix it); None to keep that."""
    unrestricted: bool
    """Whether it may publish to and read every topic; then the two questions below are never asked."""

    @property
    def admitted(self) -> bool:
        """Return whether it would be let in again by what the users file says now."""
        ...

    def may_publish(self, topic: bytes) -> bool:
        """Return whether it may publish to a topic. Answers may be remembered until ``Door.watch`` says otherwise."""
        ...

    def may_subscribe(self, topic_filter: str) -> bool:
        """Return whether it may subscribe to a filter; for a shared subscription the filter comes without its
        prefix."""
        ...

    def may_read(self, topic: bytes) -> bool:
        """Return whether a message of this topic may be delivered to it; asked once per topic and change."""
        ...


class Door(Protocol):
    """What one listener knows of its clients."""

    async def authenticate(self, connect: Connect, transport: Any) -> Identity:
        """Let a client in. Not read meanwhile.

        Args:
            transport: asks for ``peername``, ``ssl_object``, ... with ``get_extra_info``.

        Raises:
            ConnectRefused: with the reason code that CONNACK gets.
        """
        ...

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back after users or access rules were read anew: remembered permissions are forgotten then."""


class Arrival(Protocol):
    """One connection as its listener counts it. ``MqttConnection(broker, door, arrival)`` is an ``asyncio.Protocol``
    for it, or is called as one: ``connection_made(transport)``, ``data_received``, ``pause_writing``, ...

    Until ``opened`` the listener minds the time that the client takes.
    """

    name: str
    """The client's address, for log lines."""

    async def room(self) -> bool:
        """Return whether there is room for one more client. Waits a moment for one that leaves; to be asked before
        ``opened``, except for a client whose other connection is about to be closed."""
        ...

    def opened(self) -> None:
        """The client was let in: CONNECT was accepted."""

    def closed(self) -> None:
        """The connection has ended, whoever ended it. Called once."""


# --- retained messages


class RetainedMessage(Protocol):
    """The last message of a topic that was published with retain."""

    @property
    def topic(self) -> bytes: ...

    @property
    def payload(self) -> bytes: ...

    @property
    def qos(self) -> int: ...

    @property
    def properties(self) -> Properties:
        """Return as published, the message expiry interval included; ``stored_ns`` says from when it counts."""
        ...

    @property
    def stored_ns(self) -> int: ...


class Retained(Protocol):
    """All retained messages. The index is in memory; what changes is written behind it."""

    def match(self, topic_filter: str) -> Sequence[RetainedMessage]:
        """Return those of a filter (without ``$share``) that have not expired, in no order that matters."""
        ...

    def get(self, topic: bytes) -> RetainedMessage | None:
        """Return a topic's last message; None when there is none, or it has expired."""
        ...

    def set(self, topic: bytes, payload: bytes, qos: int, properties: Properties, now: int) -> bool:
        """Keep a message in place of its topic's last; False when a limit forbids it (QUOTA_EXCEEDED)."""
        ...

    def clear(self, topic: bytes) -> None:
        """Forget a topic's message; nothing happens when there is none [MQTT-3.3.1-6]."""

    def on_durable(self, callback: Durable) -> None:
        """Call back when every change so far is durable; at once, within the call, when all of them are."""

    def __len__(self) -> int: ...


# --- the log, read again


class LogRecord(NamedTuple):
    """A message as the log has it."""

    seq: int
    topic: bytes
    payload: bytes
    flags: int
    headers: HeaderPairs


class Page(NamedTuple):
    """A piece of one stream."""

    records: list[LogRecord]
    next_seq: int
    """Where to read on. It passes records that are not wanted, and those that are gone."""
    lost: int
    """Records between the seq asked for and ``next_seq`` that the log no longer has."""


class Backlog(Protocol):
    """Reads durable records for sessions that are behind. Off the loop where it touches the disk; memory bounded."""

    async def read(self, stream: int, seq: int, wants: Callable[[bytes], bool]) -> Page:
        """Return the wanted records from ``seq`` on, a batch or so. ``next_seq == seq`` at the durable end.

        Args:
            wants: asked once per distinct topic of a batch, on the loop's thread.
        """
        ...

    async def fetch(self, stream: int, seqs: Sequence[int]) -> dict[int, LogRecord]:
        """Single records by seq; those that are gone are left out."""
        ...
