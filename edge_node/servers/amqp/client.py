"""Interface of an AMQP connection for its channels, and what all connections share."""

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
    # A node knows all of this module from its start on; what only connections need is loaded for the first of them.
    from weft.edge_node.servers.amqp.inbox import AmqpInbox
    from weft.edge_node.servers.amqp.names import Names
    from weft.edge_node.servers.amqp.target import Targets
    from weft.edge_node.servers.clients.reading import Reading
    from weft.protocols.amqp.methods import Method


class AmqpClient(Protocol):
    """One client's connection (``AmqpConnection``). It alone knows the transport, and ends its channels with it.

    Every call belongs to the event loop's thread. Whatever closes the connection may be called again when it is closed.
    """

    arrival: Arrival
    inbox: AmqpInbox
    reading: Reading
    peer: Peer
    """Identity and names of the client; known once connection.open was answered."""
    queue_client: QueueClient
    """The connection as queues know it; known likewise."""
    targets: Targets
    frame_bytes_max: int
    """Longest frame that both sides agreed on."""
    is_writable: bool
    """False while the client does not read what it is sent."""
    has_sent_wrong_secret: bool
    """True once the log has said that the client sent a secret that is not its user's."""

    @property
    def is_open(self) -> bool:
        """Return whether the client can still be sent something."""
        ...

    def send(self, data: bytes) -> None:
        """Write whole frames; nothing happens once it is closed."""

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
        """Close the connection of a user that is not let in any more."""


class Over(Protocol):
    """A connection whose end was agreed on, and that its client is to close."""

    def end(self) -> None:
        """Close it all the same."""


@dataclass(slots=True)
class Peer:
    """One whose connection is open."""

    identity: Identity
    owner: Owner
    routes: RouteCache
    name: str
    """Name that the client gave to the connection, for log lines; empty for none."""
    names: Names
    """Names as its virtual host has them."""
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
    """Connections that are over, and that their clients are to close."""


def described(client: AmqpClient) -> str:
    """Return the client for log lines."""
    peer, at = client.peer, client.arrival.name
    if peer is None:
        return f"at {at}"
    named = repr(peer.name[:80]) if peer.name else "without a name"
    user = peer.identity.username
    return f"{named} of user {user!r} at {at}" if user else f"{named} at {at}"
