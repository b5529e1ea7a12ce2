"""Settings of the two ends of a link. Durations in nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass

from weft.replication.liveness import SECOND

CHECKED_AT_ONCE_BYTES = 1 << 20
"""Uncompressed bytes of a DATA frame that are checked at once, in 10 ms at most; the owner has more of them checked
elsewhere."""
TURN_COST = 128 << 10
"""Cost after which the owner lets others have their turn: some 5 ms of work. DATA costs what it takes of the
window."""
CONTROL_COST, CONTROL_BYTE_COST = 1 << 10, 8
"""Cost of a frame besides DATA, and of each of its bytes: they become objects."""
ORIGINS_COST = 16 << 10
"""Cost of a LANE_ORIGINS frame: a lane's other origins are looked through for each."""
DATA_FRAME_BYTES = 1 << 20
"""Longest DATA frame of small batches that a receiver takes at least, however short a batch has to be."""


@dataclass(frozen=True)
class SenderSettings:
    """Settings of a sender."""

    window_bytes: int = 8 << 20
    """Maximum number of uncompressed bytes of batches on the way without an ACK; the receiver may allow less."""
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
    cluster_id: str = ""
    """Cluster to which the sender gives its records; empty: any."""
    compression_level: int = 3
    """Compression level of the connection's zstd stream."""


@dataclass(frozen=True)
class ReceiverSettings:
    """Settings of a receiver."""

    window_bytes: int = 8 << 20
    """Maximum number of uncompressed bytes of batches that a sender may have on the way without an ACK (one batch may
    always go)."""
    batch_bytes_max: int = 20 << 20
    ping_interval: int = 75 * SECOND
    """Silence after which the receiver asks; a sender that pings is not asked."""
    silence: int = 150 * SECOND
    """Silence after which a peer counts as lost."""
    hello_timeout: int = 20 * SECOND
    """Longest time until HELLO."""
