"""The clock notices of one log: what became known of the clocks of its boots."""

from __future__ import annotations

from collections.abc import Iterable

from weft.protocols.segment import BOOTS_MAX, ClockNotice


class Clocks:
    """The last notice of each of the last ``BOOTS_MAX`` boots that have one. Guarded by the log's lock.

    Every segment begins with them: the records of a boot may outlive the segment in which its notice stood.
    """

    def __init__(self) -> None:
        self.known: dict[int, ClockNotice] = {}
        """Boot -> notice, the last heard of at the end."""

    def learn(self, clocks: Iterable[ClockNotice]) -> None:
        """Take over notices, in the order of the log."""
        for clock in clocks:
            self.known.pop(clock.boot_id, None)
            self.known[clock.boot_id] = clock
            if len(self.known) > BOOTS_MAX:
                del self.known[next(iter(self.known))]
