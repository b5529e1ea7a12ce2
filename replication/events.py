"""Events that the link machines pass to their owners."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from weft.protocols.batch import BatchHeader
from weft.protocols.chunk import GapRange
from weft.protocols.link import Clock, Frame, Hello, LaneOpen, LaneOrigins
from weft.protocols.link.canary import Canary
from weft.protocols.link.configuration import ConfigState
from weft.protocols.link.down import DownOpen, Outcomes
from weft.protocols.link.pull import PullState
from weft.protocols.link.report import NodeReport
from weft.protocols.ranges import RangeSet


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


SenderEvent = Welcomed | Refusal | LaneTaken | LaneEnded | ReadRequest | Acked | Unreadable | ConnectionLost | Frame
"""A frame is one of a feature that the owner takes."""
ReceiverEvent = (
    HelloReceived | LaneOpenReceived | LaneClosedReceived | BatchesReceived | GapReceived | MarksReceived
    | OriginsReceived | ClockReceived | ConnectionLost | ConfigState | DownOpen | Outcomes | PullState | Canary
    | NodeReport
)  # fmt: skip


def with_newest_marks(events: list[ReceiverEvent]) -> list[ReceiverEvent]:
    """Leave out marks that a later one of their lane follows. What came between them is below the later one, too."""
    kept: list[ReceiverEvent] = []
    marked: set[int] = set()
    for event in reversed(events):
        if not isinstance(event, MarksReceived):
            kept.append(event)
        elif lanes := [pair for pair in event.lanes if pair[0] not in marked] if marked else event.lanes:
            marked.update(number for number, _ in lanes)
            kept.append(event._replace(lanes=lanes))
    kept.reverse()
    return kept
