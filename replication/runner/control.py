"""An operator's orders to a running link, and its count of bytes, kept across its connections."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import socket as sockets
import struct
import termios
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp

from weft.replication.events import LinkStatus
from weft.replication.liveness import SECOND
from weft.replication.policy import BudgetCount, PolicyRules, SendPolicy

# Options and figures of a link's TCP socket, if the system has them.

NOTSENT_BYTES = 64 << 10
"""Bytes that the kernel buffers beyond those that it can send. A PING waits behind them, and a new connection must not
begin with minutes of old data in buffers."""
_BYTES_ACKED = struct.Struct("=120xQ")
"""The kernel's struct tcp_info up to tcpi_bytes_acked."""


def keep_queue_short(socket: aiohttp.ClientWebSocketResponse) -> None:
    """Limit the kernel's buffer of bytes that it cannot send yet (TCP_NOTSENT_LOWAT)."""
    tcp = socket.get_extra_info("socket")
    option = getattr(sockets, "TCP_NOTSENT_LOWAT", None)
    if tcp is not None and option is not None:
        with contextlib.suppress(OSError):
            tcp.setsockopt(sockets.IPPROTO_TCP, option, NOTSENT_BYTES)


class Drain:
    """The way of one connection's bytes out of this machine."""

    def __init__(self, tcp: sockets.socket | None) -> None:
        self._tcp = tcp
        self._taken = 0
        self._written = 0
        self._received = 0

    def continues(self, *, again: bool, is_writing: bool = False) -> bool:
        """Return whether bytes of the last check still wait here, and the peer's machine has acknowledged some since.

        The number of waiting bytes is no evidence: new bytes are added also when the peer has stopped, and on any line
        the last ones wait a moment for TCP's acknowledgement.

        Args:
            again: False for the first check, which returns True if bytes wait.
            is_writing: True while bytes wait in this process as well: the kernel's may all be new ones then.
        """
        waiting = self._unsent_bytes()
        if not waiting:
            return False
        taken = self._taken_bytes()
        before, written = self._taken, self._written
        self._taken, self._written = taken, taken + waiting
        return not again or (before < taken and (is_writing or taken < written))

    def receives(self, *, again: bool) -> bool:
        """Return whether bytes of the peer came since the last check: a long message on a slow line is no silence.

        Args:
            again: False for the first check, which returns False.
        """
        before, self._received = self._received, received_bytes(self._tcp)
        return again and self._received > before

    def _unsent_bytes(self) -> int:
        """Return the bytes that the kernel has not delivered to the peer (SIOCOUTQ); 0 if unknown."""
        if self._tcp is None:
            return 0
        try:
            answer = fcntl.ioctl(self._tcp.fileno(), termios.TIOCOUTQ, bytes(4))
        except OSError:
            return 0
        return int(struct.unpack("i", answer)[0])

    def _taken_bytes(self) -> int:
        """Return the bytes that the peer's machine has acknowledged (tcpi_bytes_acked of Linux 4.1); 0 if unknown."""
        if self._tcp is None or not hasattr(sockets, "TCP_INFO"):
            return 0
        try:
            info = self._tcp.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_INFO, _BYTES_ACKED.size)
        except OSError:
            return 0
        return int(_BYTES_ACKED.unpack(info)[0]) if len(info) == _BYTES_ACKED.size else 0


# Bytes of a link's connections on the wire, as its sockets count them.

_INFO = struct.Struct("=5xB114xQQII56xQ")
"""The kernel's struct tcp_info: tcpi_options, tcpi_bytes_acked, tcpi_bytes_received, tcpi_segs_out, tcpi_segs_in, and
tcpi_bytes_sent (Linux 4.19)."""
_TIMESTAMPS = 1
"""TCPI_OPT_TIMESTAMPS of tcpi_options."""
TCP_BYTES, TIMESTAMP_BYTES = 20, 12
IP_BYTES = {sockets.AF_INET: 20, sockets.AF_INET6: 40}


class WireMeter:
    """A count of IP packets of both directions, with their headers: what a network operator charges for.

    It sees a connection from its first packet on, also one whose TLS handshake fails, because it makes the sockets and
    keeps a second handle of each until ``close``. Resolving names is not counted, nor what the ends of a connection
    still say after ``close``.
    """

    def __init__(self, *, is_on: bool = True) -> None:
        self._is_on = is_on
        self._handles: list[tuple[sockets.socket, int]] = []
        """Handle of a socket, and its bytes that were counted."""

    def make_socket(self, address: tuple[Any, ...]) -> sockets.socket:
        """Make a socket for an address as ``getaddrinfo`` returns it."""
        made = sockets.socket(address[0], address[1], address[2])
        if self._is_on:
            with contextlib.suppress(OSError):
                self._handles.append((made.dup(), 0))
        return made

    def take(self) -> int:
        """Return the bytes since the last call."""
        found = 0
        for at, (handle, before) in enumerate(self._handles):
            total = wire_bytes(handle)
            found += max(0, total - before)
            self._handles[at] = handle, max(total, before)
        return found

    def close(self) -> int:
        """Drop the sockets; return their bytes since the last ``take``."""
        found = self.take()
        for handle, _ in self._handles:
            handle.close()
        self._handles.clear()
        return found


def wire_bytes(socket: sockets.socket) -> int:
    """Return the bytes of a TCP connection's packets in both directions; 0 where the system does not count them."""
    if (info := _tcp_info(socket)) is None:
        return 0
    options, _, received, segments_out, segments_in, sent = info
    header = IP_BYTES.get(socket.family, IP_BYTES[sockets.AF_INET6]) + TCP_BYTES
    header += TIMESTAMP_BYTES if options & _TIMESTAMPS else 0
    return int(sent + received + (segments_out + segments_in) * header)


def received_bytes(socket: sockets.socket | None) -> int:
    """Return the bytes that came from the peer, without packets' headers; 0 where the system does not count them."""
    info = None if socket is None else _tcp_info(socket)
    return 0 if info is None else info[2]


def _tcp_info(socket: sockets.socket) -> tuple[int, ...] | None:
    if not hasattr(sockets, "TCP_INFO"):
        return None
    try:
        info = socket.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_INFO, _INFO.size)
    except OSError:
        return None
    return None if len(info) < _INFO.size else _INFO.unpack(info)


# The queue of bytes in front of a link's line, which a policy with ``fresh_first`` keeps short.

SIOCOUTQNSD = 0x894B
"""Linux: bytes of a TCP socket that were never sent."""
_RATE = struct.Struct("=7xB152xQ")
"""The kernel's struct tcp_info: tcpi_delivery_rate_app_limited, tcpi_delivery_rate (Linux 4.9)."""
_APP_LIMITED = 1
SAMPLE_NS = SECOND // 4
SAMPLES = 16
"""Rates of the last seconds of which the best counts: while TCP mends a loss, it measures too little."""
QUEUE_NS = SECOND // 5
"""Time that the line needs for the queue: a record that comes now waits as long. TCP must find something to send when
an acknowledgement comes."""
LOOK_LEAST_NS, LOOK_MOST_NS = SECOND // 200, SECOND // 20


class LineQueue:
    """The queue of one connection's kernel socket.

    On a line that needs less than ``QUEUE_NS`` for the kernel's whole queue, and where the system does not tell its
    length, nothing is held back.
    """

    def __init__(self, tcp: sockets.socket | None) -> None:
        self._tcp = tcp
        self._rates: deque[int] = deque(maxlen=SAMPLES)
        self._sampled_at = 0

    def look(self, policy: SendPolicy, now: int) -> None:
        """Tell the policy the line's rate, and until when its queue is long enough."""
        if not policy.keeps_queue_short or self._tcp is None:
            return
        try:
            if now - self._sampled_at >= SAMPLE_NS:
                self._sampled_at = now
                self._sample(policy)
            most = policy.line_rate * QUEUE_NS // SECOND
            if most >= NOTSENT_BYTES:
                return
            over = self._unsent_bytes(self._tcp) - most
        except (OSError, AttributeError):  # another system
            return
        if over > 0:
            wait = over * SECOND // policy.line_rate
            policy.hold_until(now + min(max(wait, LOOK_LEAST_NS), LOOK_MOST_NS))

    def _sample(self, policy: SendPolicy) -> None:
        assert self._tcp is not None
        info = self._tcp.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_INFO, _RATE.size)
        if len(info) < _RATE.size:
            return
        flags, rate = _RATE.unpack(info)
        # A sender that had nothing to send measures less than the line carries.
        if rate and (not flags & _APP_LIMITED or rate > policy.line_rate):
            self._rates.append(rate)
            policy.line_rate = max(self._rates)

    @staticmethod
    def _unsent_bytes(tcp: sockets.socket) -> int:
        answer = fcntl.ioctl(tcp.fileno(), SIOCOUTQNSD, bytes(4))
        return int(struct.unpack("i", answer)[0])


log = logging.getLogger(__name__)

SAVES_A_MONTH = 5000
"""Parts of a budget after which its count is saved: a killed node has counted all but one part."""
ALIVE_BYTES = 400
"""Bytes of a PING, its PONG and the marks with it, with all headers: each ``ping_interval``, they keep a link alive."""


def nothing_saved(_is_paused: bool, _counts: Mapping[str, int]) -> None:
    """Save nothing: for links that end with their process."""


class LinkControl:
    """The orders to one link. Event loop's thread only.

    Args:
        is_paused: as the last process left it.
        counts: bytes by month, likewise; or a count of a budget that other links use, too, which its owner stores.
        save: stores both durably. Blocks; raises ``OSError``.
        wall_clock: ns since 1970, as right as the node knows: schedules and months are by it.
        counts_bytes: False for a link that never gets a budget, which saves a handle of each socket.
    """

    def __init__(
        self,
        rules: PolicyRules,
        *,
        wall_clock: Callable[[], int],
        is_paused: bool = False,
        counts: Mapping[str, int] | BudgetCount | None = None,
        save: Callable[[bool, Mapping[str, int]], None] = nothing_saved,
        counts_bytes: bool = True,
    ) -> None:
        self._is_shared = isinstance(counts, BudgetCount)
        count = counts if isinstance(counts, BudgetCount) else BudgetCount(counts)
        self.policy = SendPolicy(rules, is_paused=is_paused, count=count)
        self.meter = WireMeter(is_on=counts_bytes)
        self._wall_clock = wall_clock
        self._save = save
        self._saved = dict(self.policy.count.counts)
        self._saving = asyncio.Lock()
        self._queue = LineQueue(None)
        self._wake: Callable[[], None] = lambda: None

    def listen(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` after each order, in place of the former one."""
        self._wake = wake

    def hurry(self) -> None:
        """Let an open connection look at once for what there is to send."""
        self._wake()

    def opened(self, tcp: sockets.socket | None) -> None:
        """Watch the queue before the line of a new connection."""
        self._queue = LineQueue(tcp)

    def adopt(self, rules: PolicyRules) -> None:
        """Continue by other rules, on an open connection too."""
        if self.policy.rules.budget is None:
            self.meter.take()  # bytes from before there was a budget
        self.policy.adopt(rules)
        self._wake()

    async def pause(self, is_paused: bool) -> None:
        """Let data wait, or continue, also after a restart.

        Raises:
            OSError: the order cannot be stored. It counts until the process ends.
        """
        self.policy.is_paused = is_paused
        self.policy.version += 1
        self._wake()
        await self.save()

    def set_ping_interval(self, interval: int) -> None:
        """Set the time between two PINGs, ns: the budget keeps bytes for them."""
        self.policy.alive_rate = ALIVE_BYTES * SECOND / interval

    async def look(self, now: int) -> None:
        """Let the policy know the time (monotonic ns) and the bytes since the last call."""
        self.policy.look(now, self._wall_clock())
        if self.policy.rules.budget is not None:
            await self._count(self.policy.rules.budget.size // SAVES_A_MONTH)
            self.policy.look(now, self._wall_clock())
        self._queue.look(self.policy, now)

    async def _count(self, step: int) -> None:
        self.policy.count.add(self.meter.take())
        await self._keep(step)

    async def _keep(self, step: int) -> None:
        """Save the count if ``step`` bytes were used since the last time."""
        count = self.policy.count
        if not self._is_shared and count.used - self._saved.get(count.period.name, 0) >= max(1, step):
            try:
                await self.save()
            except OSError as error:
                log.warning("the count of a link's bytes cannot be saved, and a restart will count less: %s", error)
                self._saved = dict(count.counts)

    def sent(self, size: int) -> None:
        """Note that a message of ``size`` bytes was handed to the socket."""
        self.policy.sent(size)

    def attempt_ended(self) -> None:
        """Count the rest of an attempt's bytes, and let its sockets go."""
        rest, self._queue = self.meter.close(), LineQueue(None)
        if self.policy.rules.budget is not None:
            self.policy.look(self.policy.now, self._wall_clock())
            self.policy.count.add(rest)

    async def keep_count(self) -> None:
        """Save the count after attempts, if they took enough: attempts that all fail use bytes, too."""
        if self.policy.rules.budget is not None:
            await self._keep(self.policy.rules.budget.size // SAVES_A_MONTH)

    async def save(self) -> None:
        """Store the orders and the count.

        Raises:
            OSError: they are not stored.
        """
        async with self._saving:
            counts = dict(self.policy.count.counts)
            await asyncio.to_thread(self._save, self.policy.is_paused, counts)
            self._saved = counts

    def describe(self, status: LinkStatus) -> None:
        """Bring what an operator sees up to date."""
        policy, budget = self.policy, self.policy.rules.budget
        status.is_paused, status.hold = policy.is_paused, policy.why_held()
        if budget is None:
            status.budget_bytes = status.budget_used = status.budget_ends = None
        else:
            status.budget_bytes, status.budget_used = budget.size, policy.count.used
            status.budget_ends = policy.count.period.end or None
