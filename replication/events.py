"""Outputs of the link machines to their owners: events, refusals, and the status of a link."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import NamedTuple

from weft.protocols.batch import BatchHeader
from weft.protocols.chunk_index import GapRange
from weft.protocols.link import (
    ENCRYPTED,
    PAIR,
    Canary,
    Clock,
    ConfigState,
    DownOpen,
    Frame,
    Hello,
    LaneOpen,
    LaneOrigins,
    NodeReport,
    Outcomes,
    PairReport,
    PullState,
    RefuseCode,
)
from weft.protocols.ranges import RangeSet

# Events that the link machines pass to their owners.


class Fault(Enum):
    """The side that has to change before a lost connection can work again."""

    NETWORK = "network"
    PEER = "peer"
    LOCAL = "local"


class ConnectionLost(NamedTuple):
    """The connection is over and the machine accepts no more input. The owner closes the socket."""

    fault: Fault
    reason: str


class Welcomed(NamedTuple):
    """The receiver accepted the link; its answers about lanes follow."""

    cluster_id: str
    window_bytes: int


class Refusal(NamedTuple):
    """The receiver (or this end, code IDENTITY_CONFLICT) refused the link. The machine is closed."""

    code: int
    message: str
    advice: str
    by_peer: bool = True
    url: str = ""
    """Node to connect to instead (code REDIRECT)."""


class LaneTaken(NamedTuple):
    """The receiver accepted a lane; the ranges that it holds follow as ``Acked``."""

    lane: int


class LaneEnded(NamedTuple):
    """One lane is closed, by the receiver or because the log's data cannot be sent; it is offered again after a
    while."""

    lane: int
    code: int
    message: str
    advice: str


class ReadRequest(NamedTuple):
    """The machine needs batches from ``seq`` on; the owner answers with ``feed``. One request at a time."""

    lane: int
    seq: int
    bytes_max: int


class Acked(NamedTuple):
    """The receiver made ``ranges`` durable: only now may the log forget them."""

    lane: int
    ranges: RangeSet
    by_opening: bool = False
    """True when LANE_OPENED named the ranges: they were durable before this connection."""
    newly: int = 0
    """Number of records and gaps in ``ranges`` that were not known to be durable before; an ACK may name the whole
    lane."""
    time: int | None = None
    """Wall clock time of a record among them, ns, for some of the ACKs."""


class Unreadable(NamedTuple):
    """The log reported ``[first, end)`` as held but did not return it; it is not read again on this connection."""

    lane: int
    first: int
    end: int


class HelloReceived(NamedTuple):
    """A valid HELLO: answer with ``welcome`` or ``refuse``."""

    hello: Hello


class LaneOpenReceived(NamedTuple):
    """A valid LANE_OPEN: answer with ``lane_opened`` or ``close_lane``."""

    opening: LaneOpen


class LaneClosedReceived(NamedTuple):
    """The sender closed a lane that was not closed before."""

    lane: int
    reason: str


class RecordRefused(NamedTuple):
    """A record of a lane is longer than the receiver takes, which has closed the lane."""

    lane: int
    reason: str


class OriginsReceived(NamedTuple):
    """Further origins of a lane."""

    frame: LaneOrigins


class ClockReceived(NamedTuple):
    """A measurement of the sender's clock."""

    clock: Clock


class BatchesReceived(NamedTuple):
    """Verified batches of one lane in order of arrival. The views live as long as there are references to them."""

    lane: int
    batches: list[tuple[BatchHeader, memoryview]]


class GapReceived(NamedTuple):
    """Records that can never come."""

    lane: int
    gap: GapRange


class MarksReceived(NamedTuple):
    """All records that each of the lanes received up to ``time`` are below its number."""

    time: int
    lanes: list[tuple[int, int]]
    """(lane, seq)"""
    last: bool = False
    """True when they are the lanes' last words."""
    renamed_to: str = ""
    """With ``last``: the name under which the log continues; empty while it keeps its name."""


SenderEvent = Welcomed | Refusal | LaneTaken | LaneEnded | ReadRequest | Acked | Unreadable | ConnectionLost | Frame
"""A frame is one of a feature that the owner takes."""
ReceiverEvent = (
    HelloReceived
    | LaneOpenReceived
    | LaneClosedReceived
    | BatchesReceived
    | GapReceived
    | MarksReceived
    | OriginsReceived
    | ClockReceived
    | ConnectionLost
    | ConfigState
    | DownOpen
    | Outcomes
    | PullState
    | Canary
    | NodeReport
    | PairReport
    | RecordRefused
)


def with_newest_marks(events: list[ReceiverEvent]) -> list[ReceiverEvent]:
    """Leave out marks that a later one of their lane follows. What came between them is below the later one, too."""
    if sum([isinstance(event, MarksReceived) for event in events]) < 2:
        return events
    kept: list[ReceiverEvent] = []
    marked: set[int] = set()
    for event in reversed(events):
        if not isinstance(event, MarksReceived):
            kept.append(event)
        elif lanes := [pair for pair in event.lanes if pair[0] not in marked] if marked else event.lanes:
            marked.update([number for number, _ in lanes])
            kept.append(event._replace(lanes=lanes))
    kept.reverse()
    return kept


# Refusals by a sender, of hubs that must not get its records; and by a hub's handler, of a link.

START_EMPTY = (
    "stop the node, move its data directory away and start with an empty one, which gets a new log id. `weft edge "
    "import --as-new` then brings the hub the records that only the old one has"
)
"""Advice for a node whose log is an old copy."""


def of_another_cluster(found: str, wanted: str) -> Refusal:
    """Return the refusal for a hub of another cluster than the link's. It gets no records."""
    return Refusal(
        RefuseCode.UNAUTHORISED,
        f"the hub is of cluster {found}, and this link is for {wanted}",
        "see who answers at the link's URL; if the hub was replaced on purpose, set the link's `cluster` to the new id",
        by_peer=False,
    )


def unfit_receiver(features: Collection[str], demands: Collection[str]) -> Refusal | None:
    """Return the refusal for a receiver that is no hub, or not the peer that the sender wants; None if it fits."""
    if PAIR in features and PAIR not in demands:
        what = "the URL leads to `pair.listen` of an edge node, which keeps a copy and cannot be used as a hub"
        advice = "set the link's `to` to a hub"
    elif PAIR in demands and PAIR not in features:
        what, advice = "the URL leads to a hub, and not to an edge node's `pair.listen`", "set `pair.peer` to the peer"
    elif ENCRYPTED in demands and ENCRYPTED not in features:
        what = "this node's disk is encrypted, and the peer's is not: its copy would be readable"
        advice = "set `encryption` at the peer too, or remove it here"
    else:
        return None
    return Refusal(RefuseCode.UNAUTHORISED, what, advice, by_peer=False)


def taken_before(of: str, stream: str, *, held: tuple[int, int], claimed: tuple[int, int | None]) -> tuple[str, str]:
    """Return message and advice of a hub's refusal: it has accepted this log with an epoch at least as high before.

    A log that was restored from an old copy claims an earlier epoch again, as does a second node with a copy. Only a
    log with all records of the hub must be the copy of a node that still runs.

    Args:
        of: the edge and its log.
        held: the hub's epoch of the lane, and the end of the records that it holds.
        claimed: the refused epoch, and the end of the records that the refused log has; None when that is unknown.
    """
    (epoch, held_end), (refused, end) = held, claimed
    lacks = end is not None and end < held_end
    if epoch > refused and not lacks:
        return (
            f"{of}: a connection with epoch {epoch} has taken over; this one has {refused}",
            "if the log was copied to a second node, give that node an empty data_dir; otherwise connect again",
        )
    what = (
        f"the hub holds records of stream {stream} up to seq {held_end}, and this log has them up to {end} only"
        if lacks
        else f"the hub accepted this log before with epoch {epoch}, and it now connects with {refused}"
    )
    return (
        f"{of}: {what}. The log was restored from an old copy, or a second node runs with a copy of it",
        f"if a second node runs with a copy of this log, give that one an empty data_dir. Otherwise {START_EMPTY}",
    )


def rolled_back(stream: str, end: int, high_watermark: int) -> Refusal:
    """Return the refusal for a hub that holds more of a stream than this log can have sent."""
    return Refusal(
        RefuseCode.IDENTITY_CONFLICT,
        f"the hub holds records of stream {stream} up to seq {end}, but this log gave it none beyond "
        f"{high_watermark}. The log was restored from an old copy, or its disk lost acknowledged records",
        START_EMPTY,
        by_peer=False,
    )


class LinkRefused(Exception):
    """An error of a handler that refuses the link; the edge gets the code, the reason and advice.

    Args:
        url: the node to connect to instead (code REDIRECT).
    """

    def __init__(self, code: RefuseCode, message: str, advice: str, url: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.advice = advice
        self.url = url


# The status of a link, in all its states.


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
