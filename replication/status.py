"""The status of a link, in all its states."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class LinkState(StrEnum):
    """States of a link."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    WAITING = "waiting"
    """The last attempt failed; the next one is at ``next_try``."""
    REFUSED = "refused"
    """The hub refused the link (token, version, HELLO): an operator has to change something. Tried again at
    ``next_try``."""
    CONFLICT = "conflict"
    """Another node or another copy of the log replicates under this identity. Tried again, but rarely."""
    STOPPED = "stopped"


@dataclass
class LinkStatus:
    """The status of a link, updated by ``run_link`` about once a second and at every change of state. Times in ns since
    1970."""

    name: str
    state: LinkState = LinkState.STOPPED
    url: str = ""
    """URL of the hub node that is connected or was tried last."""
    cluster_id: str = ""
    connected_since: int | None = None
    connections: int = 0
    """Number of times that a hub accepted the link."""
    attempts_failed: int = 0
    """Number of failed attempts in a row."""
    next_try: int | None = None
    is_taken: bool = False
    """True while the hub has accepted the link under its identity."""
    is_compared: bool = False
    """True after a hub has answered for every lane, with its ranges or a refusal, since the link was started."""
    conflict: str = ""
    """Reason why the hub refuses the identity, with advice; empty after a hub has accepted the link."""
    last_error: str = ""
    """Last error, with advice; kept after the link is up again, until the next error."""
    last_error_time: int | None = None
    alarm: str = ""
    """Records that the hub has lost after it acknowledged them, with advice; empty without any, or after an operator
    has acknowledged the alarm."""
    certificate_expires: int | None = None
    """End of the certificate that the link shows to the hub; None without one, or before the first connection."""
    pending_records: int = 0
    """Records in the log that are not known to be durable at the hub."""
    pending_seconds: float = 0.0
    """Age of the oldest pending record."""
    unacked_bytes: int = 0
    """Bytes in flight."""
    bytes_sent: int = 0
    """Compressed bytes handed to the socket since the start."""
    messages_sent: int = 0
    records_acked: int = 0
    """Records and gaps named in ACKs since the start; those named in WELCOME are not counted."""
    last_ack_time: int | None = None
    clock_offset_ns: int | None = None
    """Nanoseconds to add to this node's wall clock to get the hub's."""
    clock_error_ns: int | None = None
