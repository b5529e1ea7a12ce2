"""Admission of connections to the protocol: bounds on connections as a whole, per address, and on those half open."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from typing import Generic, Protocol, TypeVar

from weft.config.limits import EdgeLimits

# Counters of connections, which an edge node and a hub have among others of their own.


class ConnectionCounters(Protocol):
    """Totals since the start; ``connections`` has the present number."""

    connections: int
    connections_accepted: int
    connections_refused: int
    connect_timeouts: int


class HandshakeCounters(Protocol):
    """Totals since the start; ``connections_half_open`` has the present number."""

    connections_rate_limited: int
    connections_half_open: int
    half_open_evicted: int
    handshakes_failed: int
    proxy_headers_refused: int
    accept_pauses: int


class ReloadCounters(Protocol):
    """Totals since the start."""

    reloads: int
    reload_failures: int


# Bounds on connections of all listeners.

Network = IPv4Network | IPv6Network
_LIMITS = EdgeLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """Bounds on connections, over all listeners."""

    connections_max: int = _LIMITS.connections
    """Maximum number of admitted clients. Half-open connections are counted by ``half_open_max``."""
    connections_per_address_max: int | None = None
    connection_rate_per_address: int = _LIMITS.connection_rate
    """Maximum rate of new connections from one address, per second. This machine's own clients are exempt."""
    connection_burst_per_address: int = _LIMITS.connection_burst
    """Number of connections that an address may open at once before the rate applies."""
    half_open_max: int = _LIMITS.half_open
    """Maximum number of half-open connections; above it, the oldest is closed."""
    connect_timeout_s: float = _LIMITS.connect_timeout_s
    """Maximum time from accepting a connection to admitting its client."""
    section: str = "limits"
    """Section of these settings in the configuration, for log lines."""
    websocket_message_bytes_max: int = _LIMITS.message_bytes
    """Longest WebSocket message; one packet may be spread over many, and one may hold many [MQTT-6.0.0-2]."""


# Slots for admitted clients: at most ``limits.connections``, and a short wait when all are taken.

WAIT_S = 0.5
"""Longest wait of a client for the slot of one that leaves."""

Holder = TypeVar("Holder")


class ClientSlots(Generic[Holder]):
    """Holders of slots, and clients that wait for one. Belongs to the event loop's thread."""

    def __init__(self, slots_max: int) -> None:
        self._slots_max = slots_max
        self._holders: set[Holder] = set()
        self._waiting: dict[Holder, asyncio.Future[None]] = {}
        """Waiting clients, in order of arrival."""

    def __len__(self) -> int:
        return len(self._holders)

    def take(self, holder: Holder) -> None:
        """Take a slot, free or not: for a holder after ``get``, or one that has just displaced another."""
        self._holders.add(holder)

    def leave(self, holder: Holder) -> None:
        """Free a slot, or stop waiting for one; do nothing without either."""
        waits = self._waiting.pop(holder, None)
        if waits is not None and not waits.done():
            waits.set_result(None)
        if holder in self._holders:
            self._holders.discard(holder)
            if self._waiting:
                # Not at once: a client that displaces another takes that one's slot right after it was left. If another
                # client got it in between, the number of clients would grow with each displacement.
                asyncio.get_running_loop().call_soon(self._hand_out)

    async def get(self, holder: Holder) -> bool:
        """Take a slot; False when none became free within ``WAIT_S``, or the holder has left meanwhile."""
        if len(self._holders) < self._slots_max and not self._waiting:
            self._holders.add(holder)
            return True
        # Wait before a refusal: clients that lose their connection come back at once, often before the node sees the
        # end of their old connection. A pause in reading, a closing TLS or WebSocket connection or a proxy may delay
        # that end. The node has room for them.
        granted = self._waiting[holder] = asyncio.get_running_loop().create_future()
        with contextlib.suppress(TimeoutError):
            try:
                async with asyncio.timeout(WAIT_S):
                    await granted
            finally:
                self._waiting.pop(holder, None)
        return holder in self._holders

    def _hand_out(self) -> None:
        while self._waiting and len(self._holders) < self._slots_max:
            holder = next(iter(self._waiting))
            granted = self._waiting.pop(holder)
            if not granted.done():
                self._holders.add(holder)
                granted.set_result(None)


# Connections that are not admitted yet, by their addresses.


class HasOrigin(Protocol):
    """A connection with an address."""

    origin: str
    """Address for the bounds per address."""


ConnectionT = TypeVar("ConnectionT", bound=HasOrigin)


class HalfOpen(Generic[ConnectionT]):
    """Half-open connections, each address's in order of arrival."""

    def __init__(self) -> None:
        """Start without any."""
        self._origins: dict[ConnectionT, str] = {}
        """Connection -> the origin for which it counts."""
        self._of: dict[str, dict[ConnectionT, None]] = {}

    def __len__(self) -> int:
        return len(self._origins)

    def __iter__(self) -> Iterator[ConnectionT]:
        return iter(self._origins)

    def add(self, connection: ConnectionT) -> None:
        """Count a connection."""
        self._origins[connection] = connection.origin
        self._of.setdefault(connection.origin, {})[connection] = None

    def discard(self, connection: ConnectionT) -> bool:
        """Forget a connection that was admitted or has ended. Return whether it was there."""
        origin = self._origins.pop(connection, None)
        if origin is None:
            return False
        own = self._of[origin]
        del own[connection]
        if not own:
            del self._of[origin]
        return True

    def victim(self) -> ConnectionT:
        """Return the oldest connection of the address that has most: it makes room for another."""
        most: dict[ConnectionT, None] = max(self._of.values(), key=len)
        return next(iter(most))


log = logging.getLogger(__name__)

ADDRESSES_MAX = 65_536
"""Maximum number of addresses whose rate is remembered; the one whose last connection is oldest is forgotten first."""
SWEEP_INTERVAL_S = 1.0
COMPLAINT_INTERVAL_S = 10.0
"""Interval between two log lines about the same bound."""
IPV6_PREFIX = 64
"""Prefix of IPv6 that counts as one address, because a customer has a whole /64."""


class Abortable(Protocol):
    """A transport, or its stand-in during a handshake."""

    def abort(self) -> None:
        """Close at once."""

    def is_closing(self) -> bool:
        """Return whether it is closed, or being closed."""
        ...


class NetworkConnection:
    """One network connection (MQTT 5.0 section 1.2), from accepting to its end; the ``AcceptedConnection`` of its MQTT
    side.

    It always counts: as half open until its client is admitted, and as a client from then on.
    """

    __slots__ = (
        "_admission",
        "counted_as",
        "deadline",
        "host",
        "is_half_open",
        "is_over",
        "name",
        "origin",
        "transport",
    )

    def __init__(self, admission: Admission, host: str, name: str, deadline: float) -> None:
        self._admission = admission
        self.host = host
        """Address without its port; ``""`` for a unix socket."""
        self.name = name
        """Name for log lines."""
        self.origin = _origin(host)
        """Address for the bounds per address."""
        self.counted_as = ""
        """Address for which the connection counts, if it does."""
        self.deadline = deadline
        self.transport: Abortable | None = None
        """Transport that ``abort`` closes; None for a moment after accepting."""
        self.is_half_open = True
        self.is_over = False

    def opened(self) -> None:
        """Note that the client was admitted: the deadline no longer holds."""
        self._admission.opened(self)

    async def room(self) -> bool:
        """Return whether there is room for one more client; wait a moment for one that leaves."""
        return await self._admission.room(self)

    def closed(self) -> None:
        """Note that the connection has ended; the second call does nothing."""
        self._admission.leave(self)

    @property
    def is_local(self) -> bool:
        """Return whether the connection comes from this machine."""
        return self.origin == ""


class Admission:
    """Bounds on the number of connections, for all listeners. Belongs to the event loop's thread.

    Half-open connections and admitted clients have a bound each, ``half_open_max`` and ``connections_max``: a flood of
    the first takes no slot of the second, and a client that comes back to a full node can authenticate.
    """

    def __init__(
        self, limits: AdmissionLimits, counters: ConnectionCounters, listener_counters: HandshakeCounters
    ) -> None:
        self.limits = limits
        self.counters = counters
        self.listener_counters = listener_counters
        self._loop = asyncio.get_running_loop()
        self._connections: set[NetworkConnection] = set()
        self._slots: ClientSlots[NetworkConnection] = ClientSlots(limits.connections_max)
        """Places of admitted clients."""
        self._half_open: HalfOpen[NetworkConnection] = HalfOpen()
        self._by_origin: dict[str, int] = {}
        self._due: dict[str, float] = {}
        """Time by address at which its burst is whole again (the generic cell rate algorithm, ITU-T I.371)."""
        self._timer: asyncio.TimerHandle | None = None
        self._said: dict[str, float] = {}

    def arrive(self, host: str, name: str, *, via_proxy: bool = False) -> NetworkConnection | None:
        """Count a new connection; None when a bound forbids it.

        Behind a proxy the host is not known yet: ``set_address`` checks it once it is.
        """
        if len(self._half_open) >= self.limits.half_open_max:
            self._evict()
        connection = NetworkConnection(self, host, name, self._loop.time() + self.limits.connect_timeout_s)
        if not via_proxy and not self._may_come(connection):
            return None
        self._connections.add(connection)
        self._half_open.add(connection)
        if not via_proxy:
            self._count(connection)
        self.counters.connections_accepted += 1
        self._show()
        if self._timer is None:
            self._timer = self._loop.call_later(SWEEP_INTERVAL_S, self._sweep)
        return connection

    def set_address(self, connection: NetworkConnection, host: str, name: str) -> bool:
        """Set the address from a proxy. Return whether the connection is allowed."""
        connection.host, connection.name, connection.origin = host, name, _origin(host)
        if self._half_open.discard(connection):
            self._half_open.add(connection)
        may_come = self._may_come(connection)
        self._count(connection)
        return may_come

    async def room(self, connection: NetworkConnection) -> bool:
        """Return whether there is room for one more client; wait a moment for one that leaves.

        Do not call it for a client that takes over the connection of another.
        """
        if await self._slots.get(connection):
            return True
        self.counters.connections_refused += 1
        self.complain(
            "full",
            "refused %s: %d connections are open, the limit; raise %s.connections for more",
            connection.name,
            len(self._slots),
            self.limits.section,
        )
        return False

    def opened(self, connection: NetworkConnection) -> None:
        """Note that the client was admitted."""
        if connection.is_over:  # closed in the same turn; its transport is being closed
            return
        self._slots.take(connection)
        if self._half_open.discard(connection):
            connection.is_half_open = False
            self._show()

    def leave(self, connection: NetworkConnection) -> None:
        """Note that the connection has ended; the second call does nothing."""
        if connection.is_over:
            return
        connection.is_over = True
        self._connections.discard(connection)
        self._slots.leave(connection)
        self._half_open.discard(connection)
        if connection.counted_as:
            self._discount(connection.counted_as)
        self._show()

    def complain(self, what: str, message: str, *arguments: object) -> None:
        """Log a warning, unless there was a recent one about ``what``: a flood must not flood the log as well."""
        now = self._loop.time()
        if now - self._said.get(what, -COMPLAINT_INTERVAL_S) >= COMPLAINT_INTERVAL_S:
            self._said[what] = now
            log.warning(message, *arguments)

    def close(self) -> None:
        """Stop watching half-open connections."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _may_come(self, connection: NetworkConnection) -> bool:
        """Return whether its address is within its bounds on number and rate. This machine's own connections always
        are."""
        if connection.is_local:
            return True
        most = self.limits.connections_per_address_max
        if (most is not None and self._by_origin.get(connection.origin, 0) >= most) or not self._in_time(
            connection.origin
        ):
            self.listener_counters.connections_rate_limited += 1
            self.complain(
                "rate",
                "refused %s: more connections from this address than %s.connection_rate or a bound per address allow",
                connection.name,
                self.limits.section,
            )
            return False
        return True

    def _in_time(self, origin: str) -> bool:
        now, interval = self._loop.time(), 1 / self.limits.connection_rate_per_address
        due = max(self._due.pop(origin, 0.0), now) + interval
        is_in_time = due - now <= self.limits.connection_burst_per_address * interval
        while len(self._due) >= ADDRESSES_MAX:
            del self._due[next(iter(self._due))]
        self._due[origin] = due if is_in_time else due - interval
        return is_in_time

    def _count(self, connection: NetworkConnection) -> None:
        if self.limits.connections_per_address_max is not None and not connection.is_local:
            connection.counted_as = connection.origin
            self._by_origin[connection.origin] = self._by_origin.get(connection.origin, 0) + 1

    def _discount(self, origin: str) -> None:
        left = self._by_origin.pop(origin, 0) - 1
        if left > 0:
            self._by_origin[origin] = left

    def _evict(self) -> None:
        """Close the oldest half-open connection of the address that has most of them.

        A good client is admitted within milliseconds, so the oldest connection is the least likely to be one. Where
        addresses have one each, the address that came first makes room.
        """
        connection = self._half_open.victim()
        self.listener_counters.half_open_evicted += 1
        self.complain(
            "half open",
            "closed %s: more than %d connections are half open (%s.half_open)",
            connection.name,
            self.limits.half_open_max,
            self.limits.section,
        )
        self._abort(connection)

    def _abort(self, connection: NetworkConnection) -> None:
        self.leave(connection)
        if connection.transport is not None:
            connection.transport.abort()

    def _sweep(self) -> None:
        now = self._loop.time()
        for connection in list(self._half_open):
            if connection.deadline <= now:
                self.counters.connect_timeouts += 1
                self.complain(
                    "late", "closed %s: not admitted within %g s", connection.name, self.limits.connect_timeout_s
                )
                self._abort(connection)
            elif connection.transport is not None and connection.transport.is_closing():
                self.leave(connection)
        self._timer = self._loop.call_later(SWEEP_INTERVAL_S, self._sweep) if self._half_open else None

    def _show(self) -> None:
        self.counters.connections = len(self._connections)
        self.listener_counters.connections_half_open = len(self._half_open)


def is_loopback(host: str) -> bool:
    """Return whether an address, or the lack of one (a unix socket), is this machine's own."""
    return _origin(host) == ""


def _origin(host: str) -> str:
    """Return the address of a host for the bounds: none for this machine, a /64 of IPv6."""
    if not host:
        return ""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return "" if address.is_loopback else str(ipaddress.ip_network((address, IPV6_PREFIX), strict=False))
        address = address.ipv4_mapped
    return "" if address.is_loopback else str(address)
