"""The queue of bytes in front of a link's line, which a policy with ``fresh_first`` keeps short."""

from __future__ import annotations

import fcntl
import socket as sockets
import struct
from collections import deque

from weft.replication.liveness import SECOND
from weft.replication.policy.send_policy import SendPolicy
from weft.replication.runner.sockets import NOTSENT_BYTES

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
