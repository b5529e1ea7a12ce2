"""The function ``changes``: drops rows that repeat the last kept one."""

from __future__ import annotations

from typing import Any

from weft.config.functions.reduce import Changes
from weft.edge_node.functions.contract import Context, Function, Gap, Out, Path, Row
from weft.edge_node.functions.paths import MISSING, getter, names_in
from weft.edge_node.functions.series.identity import content, fields_of, identify, identity
from weft.edge_node.functions.series.missing import passes
from weft.edge_node.functions.series.state import SeriesState

_NS = 1_000_000_000
NEVER = (1 << 63) - 1

_UNTIL, _SEEN = 1, 2
"""An entry: number, time from which a row is kept in any case (ns), then the identity of the last payload, or of each
field's last value, None for a field that never occurred."""


class ChangesFunction(Function):
    """Keeps a row when a field (or the payload) differs from the last kept row of its series.

    Guarantee: each dropped row equals the last kept row of its series: in its values, where 1 and 1.0 are equal and
    true and 1 are not, or in its payload, byte by byte. Long values are compared by digests of 128 bits.

    State: up to 32 bytes for each field of each series, up to ``keys_max``; it changes only when a row is kept.
    """

    def __init__(self, settings: Changes, context: Context) -> None:
        """Prepare the fields."""
        self._names = settings.fields or ()
        self._fields = [getter(name) for name in self._names]
        self._series = SeriesState(settings.keys_max)
        self.state = self._series.state
        self._identify = identify(settings.by, context)
        silence = settings.max_silence_s
        self._max_silence = NEVER if silence is None else round(silence * _NS)
        self._missing = settings.missing
        self._reads = frozenset(names_in(name) for name in self._names) | fields_of(settings.by, context)
        self.reads_values = bool(self._reads)

    def reads(self) -> frozenset[Path]:
        """Return the compared fields, and those that identify series."""
        return self._reads

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        """Return the rows that are kept."""
        self._series.restore()
        return [row for row in rows if self._keeps(row, out)]

    def gap(self, gap: Gap, out: Out) -> None:  # noqa: ARG002
        """Start all series again: changes in the gap are unknown, so the next row of each is kept."""
        self._series.restore()
        self._series.clear()

    def _keeps(self, row: Row, out: Out) -> bool:
        try:
            series = self._identify(row)
            seen: list[Any] = self._seen(row)
        except ValueError as error:
            return passes(row, self._missing, f"changes: {error}", out)
        if self._fields and all(each is None for each in seen):
            return passes(row, self._missing, f"changes: the payload has no field {' or '.join(self._names)}", out)
        entry = self._series.get(series)
        if entry is not None:
            last = entry[_SEEN:]
            # A missing field counts as unchanged.
            seen = [old if new is None else new for new, old in zip(seen, last, strict=True)]
            if seen == last and row.time < entry[_UNTIL]:
                out.drop(row, "says what the last kept row said")
                return False
        until = NEVER if self._max_silence == NEVER else row.time + self._max_silence
        self._series.put(series, until, *seen)
        self._series.evict()
        return True

    def _seen(self, row: Row) -> list[bytes | None]:
        if not self._fields:
            return [identity([content(row)])]
        found = [get(row.values) for get in self._fields]
        return [None if value is MISSING else identity([value]) for value in found]
