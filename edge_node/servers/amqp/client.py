"""Interface of an AMQP connection for its channels, and the parts that all connections share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from weft.bounds import Bound, Owner
from weft.config.limits import EdgeLimits
from weft.config.listeners import QueueBounds, protocol_of
from weft.config.models import EdgeConfig
from weft.edge_node.access.identity import Identity
from weft.edge_node.ingest.record import Route
from weft.edge_node.ingest.routing import RouteCache
from weft.edge_node.queues.definitions import QueueError, Reason
from weft.edge_node.queues.queue import QueueClient
from weft.edge_node.queues.queues import Queues
from weft.edge_node.servers.clients.context import ProtocolContext
from weft.edge_node.servers.clients.reading import ReadBuffer
from weft.edge_node.servers.listeners.settings import AcceptedConnection
from weft.protocols.amqp.content import SEEN, UNSEEN, read_properties
from weft.protocols.amqp.frames import FRAME_BYTES_MIN, HEAD_BYTES, AmqpError, Form, ReplyCode, frame_end
from weft.protocols.batch import HeaderPairs
from weft.protocols.message_headers import REPLY_TO
from weft.protocols.ranges import packed_headers

if TYPE_CHECKING:
    from weft.edge_node.servers.clients.reading import ConnectionSlot, Reading
    from weft.protocols.amqp.methods import Method


# Settings of AMQP clients.

HANDSHAKE_FRAME_BYTES_MAX = 2 * FRAME_BYTES_MIN
"""Longest frame before connection.tune-ok: its sender is not known yet. RabbitMQ has the same limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AmqpSettings:
    """Bounds on AMQP clients. connection.tune announces the first three."""

    frame_bytes_max: int = 128 << 10
    """Longest frame."""
    channels_max: int = 2047
    """Channels of one connection."""
    heartbeat_s: int = 60
    limits: EdgeLimits = field(default_factory=EdgeLimits)
    """``message_bytes`` is the longest body; a longer one ends the channel with reply code 311."""
    channels_total_max: int = QueueBounds().channels
    """Channels of all connections."""
    software: str = "weft"
    """Name and version, for server properties."""
    vhosts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Listener -> virtual host -> prefix of its topics, empty for none."""

    @classmethod
    def of(cls, config: EdgeConfig, software: str) -> AmqpSettings:
        """Return the bounds that a configuration sets."""
        vhosts: dict[str, Mapping[str, str]] = {
            name: {vhost: prefix or "" for vhost, prefix in listener.vhosts.items()}
            for name, listener in config.listeners.items()
            if listener is not None and listener.vhosts is not None and protocol_of(name, listener) == "amqp"
        }
        return cls(limits=config.limits, channels_total_max=config.queues.channels, software=software, vhosts=vhosts)

    def prefix_of(self, listener: str, vhost: str) -> str | None:
        """Return the topic prefix of a virtual host; None for an unknown one."""
        vhosts = self.vhosts.get(listener)
        return (vhosts or {"/": ""}).get(vhost or "/")


# Counters of AMQP 0-9-1: plain integers that only the event loop's thread changes. The help of their metrics defines
# each (``config/metrics/edge``).


@dataclass(slots=True)
class AmqpCounters:
    """Totals since the start, specific to AMQP 0-9-1; counters whose metric is a gauge have the present value."""

    amqp_channels: int = 0
    amqp_channel_errors: int = 0
    amqp_connection_errors: int = 0
    amqp_returned: int = 0
    amqp_nacked: int = 0
    amqp_transactions: int = 0
    amqp_blocked: int = 0


# Bytes of a client that cannot be handled yet: the beginning of a frame, bytes sent ahead of its turn, and incomplete
# bodies.


class AmqpReadBuffer(ReadBuffer):
    """Store of such bytes of one client, charged to its owner.

    Args:
        bound: bytes of all clients.
        owner: the address, until there is a user.
    """

    __slots__ = ("_needed", "content_bytes", "partial")

    def __init__(self, bound: Bound, owner: Owner) -> None:
        super().__init__(bound, owner)
        self._needed = HEAD_BYTES
        """Length of ``partial`` from which on it is examined again."""
        self.partial = bytearray()
        """The beginning of an incomplete frame."""
        self.content_bytes = 0
        """Bytes of incomplete bodies on all channels."""

    def keep(self, tail: bytes, frame_bytes_max: int) -> None:
        """Keep the beginning of a frame.

        Raises:
            AmqpError: the frame is too long.
        """
        self.partial += tail
        end = frame_end(self.partial, 0, frame_bytes_max)
        self._needed = HEAD_BYTES if end is None else end

    def complete(self, data: bytes, frame_bytes_max: int) -> tuple[bytes, int]:
        """Complete the frame from the start of the next read.

        Returns:
            (the whole frame, or ``b""`` when it still lacks bytes; bytes of ``data`` taken).

        Raises:
            AmqpError: as ``keep``.
        """
        at = 0
        while True:
            lacking = self._needed - len(self.partial)
            piece = data[at : at + lacking]
            at += len(piece)
            if len(piece) < lacking:
                self.partial += piece
                return b"", at
            if self._needed > HEAD_BYTES:
                whole = bytes(self.partial) + piece
                self.partial = bytearray()
                self._needed = HEAD_BYTES
                return whole, at
            self.keep(piece, frame_bytes_max)

    def settle(self) -> bool:
        """Charge the bytes held now. Return whether the owner may have so many; if not, nothing is charged."""
        return self.charge(len(self.partial) + len(self.ahead) + self.content_bytes)

    def clear(self) -> None:
        """Drop all bytes: the connection has ended."""
        self.partial, self.content_bytes = bytearray(), 0
        super().clear()


# Translation of names of exchanges and queues, and of routing keys, between a virtual host and the node.
#
# A virtual host with a topic prefix has its own exchanges and queues: on the node their names and keys begin with it.
# The node's own exchanges (``amq.``) are the same for all, and ``amq.topic`` has topics of all protocols.

OWN: Final = "amq."
"""Prefix of the names of exchanges and queues that the node gave."""
DIRECT_REPLY_TO: Final = "amq.rabbitmq.reply-to"
"""Name of a pseudo-queue for answers to one channel (an extension of RabbitMQ)."""
_EXCHANGES: Final = ("x-dead-letter-exchange", "alternate-exchange")
_KEYS: Final = ("x-dead-letter-routing-key",)


class Names:
    """Translation for one virtual host.

    Args:
        prefix: prefix of the topics, without a slash at its end; empty for none.
    """

    __slots__ = ("before",)

    def __init__(self, prefix: str) -> None:
        self.before = prefix.replace("/", ".") + "." if prefix else ""
        """Prefix of names and keys on the node."""

    def name(self, name: str) -> str:
        """Return the node's name of an exchange or a queue."""
        return name if not name or not self.before or name.startswith(OWN) else self.before + name

    def key(self, exchange: str, key: str) -> str:
        """Return the node's form of a routing key or binding key."""
        return key if not key or not self.before or (not exchange and key.startswith(OWN)) else self.before + key

    def own(self, name: str) -> str:
        """Return the client's name of an exchange, a queue or a routing key."""
        return name.removeprefix(self.before) if self.before else name

    def arguments(self, arguments: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Return arguments with the node's names of exchanges and keys."""
        if not arguments or not self.before:
            return arguments or {}
        found = dict(arguments)
        for name in (*_EXCHANGES, *_KEYS):
            value = found.get(name)
            if isinstance(value, str):
                found[name] = self.name(value) if name in _EXCHANGES else self.key("x", value)
        return found


# Reply codes for refusals of queues.

_CODES = {
    Reason.NOT_FOUND: ReplyCode.NOT_FOUND,
    Reason.PRECONDITION_FAILED: ReplyCode.PRECONDITION_FAILED,
    Reason.IN_USE: ReplyCode.PRECONDITION_FAILED,
    Reason.ACCESS_REFUSED: ReplyCode.ACCESS_REFUSED,
    Reason.RESOURCE_LOCKED: ReplyCode.RESOURCE_LOCKED,
    Reason.NOT_ALLOWED: ReplyCode.ACCESS_REFUSED,
    Reason.UNKNOWN_KIND: ReplyCode.COMMAND_INVALID,
    Reason.TOO_MANY: ReplyCode.PRECONDITION_FAILED,
    Reason.NO_ROOM: ReplyCode.RESOURCE_ERROR,
}
"""Reason -> reply code. A used up share ends only the channel: the connection has done nothing wrong."""


def amqp_error(error: QueueError, method: int) -> AmqpError:
    """Return the exception that answers a method."""
    return AmqpError(_CODES[error.reason], str(error), method)


# Remembered destinations of a connection's publishes, by which the hot path recognises messages.

KNOWN_BYTES_MAX = 256 << 10
"""Approximate memory of one connection's remembered targets and forms: some 100 topics with usual properties. Beyond
it, all are forgotten and looked up again."""
FORM_BYTES_MAX = 16 << 10
"""Longest form that is remembered."""
TARGET_BYTES, FORM_BYTES, PAIR_BYTES, COPIES = 512, 512, 120, 3
"""Memory of a target, a form and a header, and number of copies of a frame's bytes in them."""
SEEN_MAX = 256
"""Maximum number of properties remembered as seen before; beyond it, all are forgotten."""


class Target(NamedTuple):
    """Exchange and routing key on one channel, and the route of its messages."""

    publisher: Any
    """The channel."""
    channel: bytes
    """Its number, encoded as in frames."""
    topic: bytes
    headers: HeaderPairs
    """Headers with exchange and routing key."""
    route: Route


class Targets:
    """Method frame -> target, and forms of its messages, of one connection. Cleared when routes or permissions may have
    changed. Compared by identity.

    Args:
        wall_clock: nanoseconds since 1970.
        spend: returns False once the client's turn is over.
    """

    __slots__ = ("_bytes", "_forms", "_seen", "_spend", "_targets", "_wall_clock", "form")

    def __init__(self, wall_clock: Callable[[], int], spend: Callable[[int], bool]) -> None:
        self._wall_clock = wall_clock
        self._spend = spend
        self._targets: dict[bytes, Target] = {}
        self._forms: dict[tuple[bytes, bytes], Form] = {}
        self._seen: set[int] = set()
        self._bytes = 0
        self.form: Form | None = None
        """Form of the last message; None once it must not be used any more."""

    def __bool__(self) -> bool:
        return bool(self._targets)

    def find(self, method: bytes, properties: bytes) -> Form | None:
        """Return the form of messages with a method frame and properties."""
        key = method, properties
        form = self._forms.get(key)
        if form is None and (target := self._targets.get(method)) is not None:
            form = self._make(target, key)
        return form

    def remember(self, method: bytes, target: Target) -> None:
        """Let the hot path handle further messages with this method frame."""
        self._charge(TARGET_BYTES + COPIES * len(method))
        self._targets[method] = target

    def forget(self, publisher: object) -> None:
        """Forget the targets of one channel."""
        kept = {method: target for method, target in self._targets.items() if target.publisher is not publisher}
        if len(kept) < len(self._targets):
            self.clear()
            for method, target in kept.items():
                self.remember(method, target)

    def clear(self) -> None:
        """Forget all."""
        self._targets.clear()
        self._forms.clear()
        self._seen.clear()
        self._bytes = 0
        self.form = None

    def _make(self, target: Target, key: tuple[bytes, bytes]) -> Form | None:
        """Return a new form, None for properties that the hot path does not handle: a user must be that of the
        connection, and further keys have other routes. It is remembered when its properties come for the second time:
        properties with an identifier of their own never do."""
        if not self._spend(0):
            return None  # decoding a read full of properties would take several turns
        method, properties = key
        try:
            content = read_properties(properties)
        except AmqpError:
            return None  # the path that decodes fields reports it
        if content.user_id is not None or _has_a_way_of_its_own(content.headers):
            return None
        headers = (*content.at(self._wall_clock()), *target.headers)
        size = FORM_BYTES + PAIR_BYTES * len(headers) + COPIES * (len(method) + len(properties))
        lasts = content.expires_ms is None
        is_small = lasts and size <= FORM_BYTES_MAX
        is_known = is_small and self._came_before(hash(key))
        if is_known:
            headers = packed_headers(headers)
        form = Form(
            method,
            target.channel,
            properties,
            target.topic,
            headers,
            target.publisher,
            target.route,
            # The next read makes the form that is kept: a publisher of equal messages would never look for it.
            lasts=is_known if is_small else lasts,
        )
        if is_known and self._charge(size):
            self._forms[key] = form
        return form

    def _came_before(self, key: int) -> bool:
        if key in self._seen:
            return True
        if len(self._seen) >= SEEN_MAX:
            self._seen.clear()
        self._seen.add(key)
        return False

    def _charge(self, size: int) -> bool:
        """Return whether there is room; without room, forget all entries, which the next messages look up again."""
        self._bytes += size
        if self._bytes <= KNOWN_BYTES_MAX:
            return True
        self.clear()
        return False


def _has_a_way_of_its_own(headers: HeaderPairs) -> bool:
    """Return whether a message has further routing keys, or direct reply-to for its answers."""
    return any(name in (SEEN, UNSEEN) or (name == REPLY_TO and value == DIRECT_REPLY_TO) for name, value in headers)


class AmqpClient(Protocol):
    """One client's connection (``AmqpConnection``). Only it has the transport, and it ends its channels with it.

    Every call belongs to the event loop's thread. Calls that close the connection may be repeated when it is closed.
    """

    accepted: AcceptedConnection
    read_buffer: AmqpReadBuffer
    reading: Reading
    slot: ConnectionSlot
    """Its place among the connections of the node."""
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

    def welcome(self, peer: Peer, frame_bytes_max: int, channels_max: int, heartbeat_s: int) -> None:
        """Accept methods for channels from now on."""

    def refuse_silently(self, reason: str) -> None:
        """Close a connection without an answer."""

    def fail(self, error: AmqpError) -> None:
        """Close the connection with an exception."""

    def end(self, reason: str) -> None:
        """Close the transport."""

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
class AmqpContext:
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
    peer, at = client.peer, client.accepted.name
    if peer is None:
        return f"at {at}"
    named = repr(peer.name[:80]) if peer.name else "without a name"
    user = peer.identity.username
    return f"{named} of user {user!r} at {at}" if user else f"{named} at {at}"
