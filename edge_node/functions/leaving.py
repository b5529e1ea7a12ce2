"""Order of the rows that leave a chain by other ways than its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from weft.edge_node.functions.contract import Row


class Ways(Protocol):
    """Lists of what leaves; ``ROW_PLACES`` says where the row is in each item."""

    rejected: list[Any]
    unwritten: list[Any]


ROW_PLACES = (0, 1)
"""Place of the row in an item of ``rejected``, and of ``unwritten``."""
Lengths = tuple[int, int]


class Leaving:
    """Rows that leave while a chain works on a batch, to be put in the order in which they were read.

    A function works on a whole batch. So the rows that the decoder refused come first, then those of the first
    function, of the second, and so on; of a route, those of its first rule. What is in a stream must not depend on
    where a batch ends.
    """

    def __init__(self, given: Sequence[Row], out: Ways) -> None:
        """Start.

        Args:
            given: rows of the batch.
            out: ways out.
        """
        self._given = given
        self._ways = (out.rejected, out.unwritten)
        self._start = self._last = self._lengths()
        self._caused: list[tuple[Lengths, Lengths, Row]] = []

    def _lengths(self) -> Lengths:
        rejected, unwritten = self._ways
        return len(rejected), len(unwritten)

    def begin(self) -> None:
        """Go on with rows one by one: what left until now has its own places."""
        self._last = self._lengths()

    def note(self, row: Row) -> None:
        """Note that all that left since the last call left because of a row, which may have brought others out."""
        now = self._lengths()
        if now != self._last:
            self._caused.append((self._last, now, row))
            self._last = now

    def order_unwritten(self) -> None:
        """Put the rows for other streams in order, before they are written. Call once."""
        self._order(1)

    def order_rejected(self) -> None:
        """Put the rejected rows in order, when all are there. Call once."""
        self._order(0)

    def _order(self, which: int) -> None:
        way, start = self._ways[which], self._start[which]
        if len(way) - start > 1:
            way[start:] = self._in_order(which, way, start)

    def _in_order(self, which: int, way: list[Any], start: int) -> list[Any]:
        places = {(row.input, row.seq): place for place, row in enumerate(self._given)}
        causes = {at: row for last, now, row in self._caused for at in range(last[which], now[which])}
        place = -1
        found: list[tuple[int, int]] = []
        for at in range(start, len(way)):
            row: Row = causes.get(at) or getattr(way[at], "cause", None) or way[at][ROW_PLACES[which]]
            # A row that a function made stays behind the one before it.
            place = places.get((row.input, row.seq), place)
            found.append((place, at))
        return [way[at] for _, at in sorted(found)]
