"""Positions: the identity of a query's row in a record of a producer lane.

A position is the offset of the source record that caused the row, and the row's place among the rows of that record.
Each record carries its own in the header ``weft.position``, so the lane itself stores a query's progress. The last
record of a batch, and so of a lane, also identifies the source's log in ``weft.position-chunk``. Of a query that was
spread, it says in ``weft.position-behind`` up to where it has seen the shard's other lanes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from spark_sinks.source.history import Witness
from weft.protocols.lane import format_log_id

_WITNESS = re.compile(r"(\d{1,19}):([0-9a-f]{8})")
_END = r"[0-9a-f]{16}:\d{1,19}"
_ENDS = re.compile(rf"{_END}(?:,{_END}){{0,15}}")
_TEXT = re.compile(r"(\d{1,10}):(\d{1,19}):(\d{1,10})")


class Position(NamedTuple):
    """The place of a row in the output of one source shard. Positions of a lane ascend."""

    offset: int
    """``_offset`` of the source record that caused the row."""
    ordinal: int
    """Number of the row among the rows of this source record."""

    def text(self, shard: int) -> str:
        """Return the value of the header."""
        return f"{shard}:{self.offset}:{self.ordinal}"


def parse_position(text: object) -> tuple[int, Position] | None:
    """Return source shard and position of a header's value; None when it has another form."""
    found = _TEXT.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    shard, offset, ordinal = map(int, found.groups())
    return shard, Position(offset, ordinal)


def witness_text(witness: Witness) -> str:
    """Return the value of the header that names a chunk."""
    return f"{witness.n}:{witness.footer_crc:08x}"


def parse_witness(text: object) -> Witness | None:
    """Return the chunk of a header's value; None without one, as in records of earlier releases."""
    found = _WITNESS.fullmatch(text) if isinstance(text, str) else None
    return None if found is None else Witness(int(found[1]), int(found[2], 16))


def ends_text(ends: Mapping[int, int]) -> str:
    """Return the value of the header with the ends of other lanes, by log id."""
    return ",".join(f"{format_log_id(log_id)}:{end}" for log_id, end in ends.items())


def parse_ends(text: object) -> dict[int, int]:
    """Return log id -> end of a header's value; nothing without one, or of another form."""
    if not isinstance(text, str) or _ENDS.fullmatch(text) is None:
        return {}
    return {int(log, 16): int(end) for log, _, end in (each.partition(":") for each in text.split(","))}
