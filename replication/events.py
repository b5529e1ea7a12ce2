"""What the link machines tell their owners."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from weft.protocols.batch import BatchHeader
from weft.protocols.chunk import GapRange, Mark
from weft.protocols.link import Hello
from weft.protocols.ranges import RangeSet


class Fault(Enum):
    """Who has to change for a lost connection to work."""

    NETWORK = "network"
    PEER = "peer"
    LOCAL = "local"


class ConnectionLost(NamedTuple):
    """The connection is over and the machine takes nothing more. The owner closes the socket."""

    fault: Fault
    reason: str


class Welcomed(NamedTuple):
    """The receiver took the link; what it holds already follows as ``Acked``."""

    cluster_id: str
    window_bytes: int


class Refusal(NamedTuple):
    """The receiver (or this end, code IDENTITY_CONFLICT) does not want the link. The machine is closed."""

    code: int
    message: str
    advice: str
    by_peer: bool = True


class ReadRequest(NamedTuple):
    """The machine wants batches from ``seq`` on; the owner answers with ``feed``. One request at a time."""

    lane: int
    seq: int
    bytes_max: int


class Acked(NamedTuple):
    """The receiver made ``ranges`` durable: the only moment at which the log may forget them."""

    lane: int
    ranges: RangeSet
    by_welcome: bool = False
    """The WELCOME said so: it was durable before this connection."""
    newly: int = 0
    """How many records and gaps of ``ranges`` were not known to be durable before; an ACK may name the whole lane."""


class Unreadable(NamedTuple):
    """The log said that it holds ``[first, end)`` and did not give it; not tried again on this connection."""

    lane: int
    first: int
    end: int


class HelloReceived(NamedTuple):
    """A valid HELLO: answer with ``welcome`` or ``refuse``."""

    hello: Hello


class BatchesReceived(NamedTuple):
    """Verified batches of one lane in the order they came. The views live as long as somebody holds them."""

    lane: int
    batches: list[tuple[BatchHeader, memoryview]]


class GapReceived(NamedTuple):
    """Records that can never come."""

    lane: int
    gap: GapRange


class MarkReceived(NamedTuple):
    """All records the lane took in up to the mark's time are below its seq."""

    lane: int
    mark: Mark


SenderEvent = Welcomed | Refusal | ReadRequest | Acked | Unreadable | ConnectionLost
ReceiverEvent = HelloReceived | BatchesReceived | GapReceived | MarkReceived | ConnectionLost
