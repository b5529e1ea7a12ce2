"""Interface of an AMQP connection for its channels, and the parts that all connections share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from weft.bounds import Bound, Owner
from weft.edge_node.access.identity import Identity
from weft.edge_node.ingest.routing import RouteCache
from weft.edge_node.queues.queue.queue import QueueClient
from weft.edge_node.queues.queues import Queues
from weft.edge_node.servers.amqp.counters import AmqpCounters
from weft.edge_node.servers.amqp.settings import AmqpSettings
from weft.edge_node.servers.clients.context import ProtocolContext
from weft.edge_node.servers.listeners.door import Arrival
from weft.protocols.amqp.errors import AmqpError

if TYPE_CHECKING:
    # A node imports this module at its start; modules that only connections need are loaded with the first of them.
    from weft.edge_node.servers.amqp.inbox import AmqpInbox
    from weft.edge_node.servers.amqp.names import Names
    from weft.edge_node.servers.amqp.target import Targets
    from weft.edge_node.servers.clients.reading import Reading
    from weft.protocols.amqp.methods import Method


class AmqpClient(Protocol):
    """One client's connection (``AmqpConnection``). Only it has the transport, and it ends its channels with it.

    Every call belongs to the event loop's thread. Calls that close the connection may be repeated when it is closed.
    """

    arrival: Arrival
    inbox: AmqpInbox
    reading: Reading
    peer: Peer
    """Identity and names of the client; known once connection.open was answered."""
    queue_client: QueueClient
    """The connection's interface to queues; known from the same time on."""
    targets: Targets
    frame_bytes_max: int
    """Longest frame that both sides agreed on."""
    is_writable: bool
    """False while the client does not read."""
    has_sent_wrong_secret: bool
    """True once a log line has reported a secret of the client that is not its user's."""

    @property
    def is_open(self) -> bool:
        """Return whether data can still be sent to the client."""
        ...

    def send(self, data: bytes) -> None:
        """Write whole frames; do nothing once it is closed."""

    def send_all(self, parts: Sequence[bytes | memoryview]) -> None:
        """Write whole frames that came in parts."""

    def answer(self, method: Method, channel: int = 0) -> None:
        """Write one method."""

    def fail(self, error: AmqpError) -> None:
        """Close the connection with an exception."""

    def end_channel(self, number: int) -> None:
        """Forget a channel that is closed."""

    def shut_down(self) -> None:
        """Close because the node stops."""

    def expel(self) -> None:
        """Close the connection of a user that is no longer admitted."""


class Over(Protocol):
    """A connection whose end was agreed on; its client closes it."""

    def end(self) -> None:
        """Close it from this side."""


@dataclass(slots=True)
class Peer:
    """The client of an open connection."""

    identity: Identity
    owner: Owner
    routes: RouteCache
    name: str
    """Name that the client gave to the connection, for log lines; empty for none."""
    names: Names
    """Translation of names for its virtual host."""
    capabilities: frozenset[str]
    """Extensions that the client understands."""


@dataclass(slots=True)
class Shared:
    """Parts that all AMQP connections share."""

    context: ProtocolContext
    queues: Queues
    settings: AmqpSettings
    channels: Bound
    counters: AmqpCounters
    clients: set[AmqpClient] = field(default_factory=set)
    lingering: set[Over] = field(default_factory=set)
    """Ended connections that their clients still have to close."""


def described(client: AmqpClient) -> str:
    """Return the client for log lines."""
    peer, at = client.peer, client.arrival.name
    if peer is None:
        return f"at {at}"
    named = repr(peer.name[:80]) if peer.name else "without a name"
    user = peer.identity.username
    return f"{named} of user {user!r} at {at}" if user else f"{named} at {at}"
