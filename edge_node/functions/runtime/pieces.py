"""Pieces of the inputs that functions handle at once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, takewhile
from operator import attrgetter
from typing import cast

from weft.edge_node.functions.chain import SECOND
from weft.edge_node.functions.contract import Gap, Row
from weft.edge_node.functions.runtime.inputs import Event

_TIME = attrgetter("time")
PIECE_BYTES = 64 << 10
"""Payload bytes of a piece of more than one row. A page is 256 KiB encoded, and a hundred times that when similar texts
are decompressed; the node's loop waits for a piece."""


def pieces(events: list[Event], rows_max: int, *, by_second: bool) -> Iterator[Gap | list[Row]]:
    """Yield rows that may be handled at once: those of one second where time matters, else some; and each gap alone.

    A row that is older than one before it belongs to the second of that one. A page has thousands of rows, so checks of
    each row run in C.
    """
    second = 0
    for run in _runs(events):
        if isinstance(run, Gap):
            yield run
            continue
        at = 0
        while at < len(run):
            piece = run[at : at + rows_max]
            if len(piece) > 1 and sum(map(_size, piece)) > PIECE_BYTES:
                sizes = accumulate(map(_size, piece))
                piece = piece[: max(1, sum(size <= PIECE_BYTES for size in sizes))]
            if by_second:
                second = max(second, _second(piece[0].time))
                if _second(max(map(_TIME, piece))) > second:
                    piece = list(_until(second, piece))
            yield piece
            at += len(piece)


def _runs(events: list[Event]) -> Iterator[Gap | list[Row]]:
    """Yield gaps, and the rows between them."""
    start = 0
    if Gap in set(map(type, events)):
        for at, event in enumerate(events):
            if isinstance(event, Gap):
                yield cast("list[Row]", events[start:at])
                yield event
                start = at + 1
    yield cast("list[Row]", events[start:] if start else events)


def _until(second: int, rows: list[Row]) -> Iterator[Row]:
    return takewhile(lambda row: _second(row.time) <= second, rows)


def _size(row: Row) -> int:
    return len(row.payload or b"")


def _second(time: int) -> int:
    """Return the second that a row belongs to. The tick at a whole second comes after the row of that very time."""
    return (time - 1) // SECOND
