"""Order of the rows that leave a chain before its end: rejected and routed ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from weft.edge_node.functions.contract import Row


class Ways(Protocol):
    """Lists of the rows that leave; ``ROW_PLACES`` has the index of the row in each item."""

    rejected: list[Any]
    unwritten: list[Any]


ROW_PLACES = (0, 1)
"""Place of the row in an item of ``rejected``, and of ``unwritten``."""
Lengths = tuple[int, int]


class Leaving:
    """Rows that leave while a chain works on a batch, to be put in the order in which they were read.

    A function works on a whole batch. So the rows that the decoder refused come first, then those of the first
    function, of the second, and so on; within a route, those of its first rule. The order in a stream must not depend
    on the end of a batch.
    """

    def __init__(self, given: Sequence[Row], out: Ways) -> None:
        """Start.

        Args:
            given: rows of the batch.
            out: outputs.
        """
        self._given = given
        self._ways = (out.rejected, out.unwritten)
        self._start = self._last = self._lengths()
        self._caused: list[tuple[Lengths, Lengths, Row]] = []

    def _lengths(self) -> Lengths:
        rejected, unwritten = self._ways
        return len(rejected), len(unwritten)

    def begin(self) -> None:
        """Continue with rows one by one: rows that left until now have their places."""
        self._last = self._lengths()

    def note(self, row: Row) -> None:
        """Note that all rows that left since the last call left because of one row, which may have released others."""
        now = self._lengths()
        if now != self._last:
            self._caused.append((self._last, now, row))
            self._last = now

    def order_unwritten(self) -> None:
        """Put the rows for other streams in order, before they are written. Call once."""
        self._order(1)

    def order_rejected(self) -> None:
        """Put the rejected rows in order, when all have been added. Call once."""
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
            # A row that a function created stays behind the one before it.
            place = places.get((row.input, row.seq), place)
            found.append((place, at))
        return [way[at] for _, at in sorted(found)]
