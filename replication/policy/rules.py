"""The rules of a link's policy, as an operator sets them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

from weft.replication.policy.budget import BudgetRule
from weft.replication.policy.schedule import StreamWindows

PRIORITY = 10
"""Priority of a stream that no pattern matches."""
HOLES_MAX = 8
"""Most holes that ``fresh_first`` leaves in a lane: each one is a range in the sets of edge and hub."""


class Order(StrEnum):
    """Order in which a lane's records are sent."""

    STRICT = "strict"
    """Oldest first."""
    FRESH_FIRST = "fresh_first"
    """New records at once, and those that waited before them beside them."""


@dataclass(frozen=True)
class PolicyRules:
    """Rules of one link. The default ones send everything at once, the oldest record of each lane first."""

    order: Order = Order.STRICT
    history_share: float = 0.2
    """Share of the bytes that records from before the connection get, with ``fresh_first``, while new ones wait too."""
    priorities: tuple[tuple[str, int], ...] = ()
    """(pattern of stream names, priority): lanes that wait share the link in proportion. The first match counts."""
    rate: int = 0
    """Maximum number of bytes handed to the socket in a second; 0: no limit."""
    every: int = 0
    """Least time from the beginning of one transfer of data to the next, ns."""
    schedule: tuple[StreamWindows, ...] = ()
    """Times at which streams may be sent. The first entry with the stream counts; others are always sent."""
    budget: BudgetRule | None = None
    """Bytes of a month; None: no limit."""

    def priority(self, stream: str) -> int:
        """Return the priority of a stream."""
        return next((number for pattern, number in self.priorities if fnmatchcase(stream, pattern)), PRIORITY)

    def windows(self, stream: str) -> StreamWindows | None:
        """Return the windows of a stream; None if it may always be sent."""
        return next((entry for entry in self.schedule if entry.has(stream)), None)

    @property
    def chooses(self) -> bool:
        """Return whether lanes and records are sent in another order than by plain turns, the oldest record first."""
        return self.order is not Order.STRICT or bool(self.priorities or self.schedule)
