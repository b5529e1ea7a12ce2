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


class CanaryState(StrEnum):
    """States of the whole way to the hub's store and back."""

    PROVEN = "proven"
    """The hub's store took what was sent lately."""
    OVERDUE = "overdue"
    """The hub answers PINGs, and its store takes nothing."""
    UNKNOWN = "unknown"
    """There is no connection, or the hub's release proves nothing while no data flows."""


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
    pending_bytes: int | None = None
    """Approximate bytes of the pending records on the wire; None before enough were sent to know."""
    drain_seconds: float | None = None
    """Seconds until nothing is pending, at the rate of the last minute; None where it stands or grows."""
    delivery_seconds: float | None = None
    """Time from a record's arrival in the log to its acknowledgement, of a record acknowledged lately."""
    ping_seconds: float | None = None
    """Round trip of the last PING; None before the first."""
    canary: CanaryState = CanaryState.UNKNOWN
    canary_seconds: float | None = None
    """Time from sending to the hub's store and back, of the newest frame that is known to be durable there. Of a
    canary, without the time for which the hub lets it wait for others; None before the first proof."""
    canary_time: int | None = None
    """Time at which that frame was sent."""
    canary_alarm: str = ""
    """Sentence about the store that takes nothing, with advice; empty while the canary is not overdue."""
    is_paused: bool = False
    """True while an operator lets the link's data wait."""
    hold: str = ""
    """Reason why data waits on an open link, and until when, with advice; empty while it is sent."""
    budget_bytes: int | None = None
    """Monthly budget; None without one."""
    budget_used: int | None = None
    """Bytes of this month on the wire."""
    budget_ends: int | None = None
    """End of the budget's month."""
    pull: str = ""
    """Records that the hub has asked for and that are on their way, for people; empty without any."""
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
