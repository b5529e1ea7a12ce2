"""Settings of the two ends of a link. Durations in nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass

from weft.protocols.link import Data, Frame, LaneOrigins
from weft.replication.liveness import SECOND
from weft.replication.report_ride import LatestReport
from weft.replication.send_window import START_BYTES

LINK_PATH = "/v1/link"
"""Path of a hub's WebSocket for links."""
CHECKED_AT_ONCE_BYTES = 1 << 20
"""Uncompressed bytes of a DATA frame that are checked at once, in 10 ms at most; the owner has more of them checked
elsewhere."""
TURN_COST = 128 << 10
"""Cost after which the owner gives others their turn: some 5 ms of work. The cost of DATA is its size in the window."""
CONTROL_COST, CONTROL_BYTE_COST = 1 << 10, 8
"""Cost of a frame other than DATA, and of each of its bytes, which become objects."""
BYTES_DROPPED = 16
"""Bytes of DATA of a closed lane, dropped unread, that cost 1."""
ORIGINS_COST = 16 << 10
"""Cost of a LANE_ORIGINS frame: each one is compared with all other origins of its lane."""
DATA_FRAME_BYTES = 1 << 20
"""Length of a DATA frame of small batches that a receiver always accepts, even with a lower limit for a single
batch."""


def control_cost(frame: Frame, frame_bytes: int) -> int:
    """Return the cost of a frame that the window does not count: one other than DATA, or DATA of a closed lane.

    Args:
        frame_bytes: its length, if it is not DATA.
    """
    if isinstance(frame, Data):
        return CONTROL_COST + len(frame.batches) // BYTES_DROPPED
    return (ORIGINS_COST if isinstance(frame, LaneOrigins) else CONTROL_COST) + CONTROL_BYTE_COST * frame_bytes


@dataclass(frozen=True)
class SenderSettings:
    """Settings of a sender."""

    window_bytes: int = 8 << 20
    """Maximum number of uncompressed bytes of batches in flight without an ACK; the receiver may allow less."""
    window_start_bytes: int = START_BYTES
    """The same before the first ACK. A sender beside its hub, which lives for seconds, begins with all of it."""
    read_bytes: int = 1 << 20
    """Bytes of one read of the log; at most this much waits in memory, besides one batch."""
    merge_bytes_max: int = 256 << 10
    """Uncompressed size up to which waiting neighbours are sent as one batch. 0: never."""
    mark_interval: int = 60 * SECOND
    """Time between two marks of an idle lane. The marks of lanes with data are sent with the data."""
    ping_interval: int = 45 * SECOND
    """Time between two PINGs. A load balancer that closes connections after 60 s without data keeps the link open."""
    silence: int = 120 * SECOND
    """Silence after which a peer counts as lost. With data in flight, ``ack_timeout`` detects it earlier."""
    ack_timeout: int = 30 * SECOND
    """Time without any acknowledgement, while data is in flight, after which the link leaves the hub node."""
    welcome_timeout: int = 20 * SECOND
    lane_retry: int = 10 * SECOND
    """Time after which a lane that was closed is offered again on the same connection."""
    canary_interval: int = 300 * SECOND
    """Time after the last proof that something became durable, after which the next PING takes a question along."""
    canary_patience: int = 30 * SECOND
    """Time that the hub has for a chunk, beyond the one for which it lets marks wait."""
    cluster_id: str = ""
    """Cluster to which the sender gives its records; empty: any."""
    compression_level: int = 3
    """Compression level of the connection's zstd stream."""
    report: LatestReport | None = None
    """Report of the sender about itself, for the receiver; None for nothing."""


@dataclass(frozen=True)
class ReceiverSettings:
    """Settings of a receiver."""

    window_bytes: int = 8 << 20
    """Maximum number of uncompressed bytes of batches that a sender may have in flight without an ACK (one batch is
    always allowed)."""
    batch_bytes_max: int = 20 << 20
    ping_interval: int = 75 * SECOND
    """Silence after which the receiver sends a PING; a sender that pings gets none."""
    silence: int = 150 * SECOND
    """Silence after which a peer counts as lost."""
    hello_timeout: int = 20 * SECOND
    """Longest time until HELLO."""
    peers: bool = False
    """True if other clusters may relay the sender's records to this one; told to the sender."""
    mark_interval: int = 60 * SECOND
    """Longest time for which the owner lets marks and canaries wait for a chunk; told to the sender."""
