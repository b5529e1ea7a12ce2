"""Settings of the two ends of a link. Durations in nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass

from weft.replication.liveness import SECOND


@dataclass(frozen=True)
class SenderSettings:
    """Settings of a sender."""

    window_bytes: int = 8 << 20
    """Maximum number of DATA bytes on the way without an ACK; the receiver may allow less."""
    read_bytes: int = 1 << 20
    """Bytes of one read of the log; at most this much waits in memory, besides one batch."""
    merge_bytes_max: int = 256 << 10
    """Uncompressed size up to which waiting neighbours are sent as one batch. 0: never."""
    mark_interval: int = 60 * SECOND
    """Time between two marks of an idle lane. The marks of lanes with data go with the data."""
    ping_interval: int = 45 * SECOND
    """Time between two PINGs. A load balancer that closes connections after 60 s without data is none the wiser."""
    silence: int = 120 * SECOND
    """Silence after which a peer counts as lost. With data on the way ``ack_timeout`` notices earlier."""
    ack_timeout: int = 30 * SECOND
    """Time without any acknowledgement, while data is on the way, after which the hub node is left."""
    welcome_timeout: int = 20 * SECOND
    lane_retry: int = 10 * SECOND
    """Time after which a lane that was closed is offered again on the same connection."""
    compression_level: int = 3
    """Compression level of the connection's zstd stream."""


@dataclass(frozen=True)
class ReceiverSettings:
    """Settings of a receiver."""

    window_bytes: int = 8 << 20
    """Maximum number of DATA bytes that a sender may have on the way without an ACK (one batch may always go)."""
    batch_bytes_max: int = 16 << 20
    ping_interval: int = 75 * SECOND
    """Silence after which the receiver asks; a sender that pings is not asked."""
    silence: int = 150 * SECOND
    """Silence after which a peer counts as lost."""
    hello_timeout: int = 20 * SECOND
    """Longest time until HELLO."""
