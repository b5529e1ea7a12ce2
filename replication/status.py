"""What a link says of itself, whatever state it is in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class LinkState(StrEnum):
    """What a link is doing."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    WAITING = "waiting"
    """The last attempt failed; the next one is at ``next_try``."""
    REFUSED = "refused"
    """The hub said no (token, version, HELLO): somebody has to change something. Tried again at ``next_try``."""
    CONFLICT = "conflict"
    """Another node or another copy of the log replicates under this identity. Tried again, but rarely."""
    STOPPED = "stopped"


@dataclass
class LinkStatus:
    """Kept up to date by ``run_link``, about once a second and at every change of state. Times in ns since 1970."""

    name: str
    state: LinkState = LinkState.STOPPED
    url: str = ""
    """The hub that is connected or was tried last."""
    cluster_id: str = ""
    connected_since: int | None = None
    connections: int = 0
    """How many times a hub took the link."""
    attempts_failed: int = 0
    """In a row."""
    next_try: int | None = None
    last_error: str = ""
    """A sentence and what to do; kept after the link is up again, until the next error."""
    last_error_time: int | None = None
    pending_records: int = 0
    """Held by the log and not known to be durable at the hub."""
    pending_seconds: float = 0.0
    """Age of the oldest of them."""
    unacked_bytes: int = 0
    """On the way."""
    bytes_sent: int = 0
    """Compressed, as handed to the socket, since the start."""
    messages_sent: int = 0
    records_acked: int = 0
    """Records and gaps that ACKs named since the start; what WELCOME names is not counted."""
    last_ack_time: int | None = None
    clock_offset_ns: int | None = None
    """Add to this node's wall clock to get the hub's."""
    clock_error_ns: int | None = None
