"""The function ``dedupe``: drops repeats of a message."""

from __future__ import annotations

from collections import deque

from weft.config.functions.reduce import Dedupe
from weft.edge_node.functions.contract import Context, Function, Out, Path, Row, State
from weft.edge_node.functions.paths import MISSING
from weft.edge_node.functions.series.identity import content, fields_of, identity, readers
from weft.edge_node.functions.series.missing import passes
from weft.edge_node.functions.series.state import SeriesState

_NS = 1_000_000_000
_FORGOTTEN_AT_ONCE = 8
"""Maximum number of identities forgotten for each new one: enough to catch up without a long pause."""

_TIME = 1
"""An entry after its number: time of the kept row, ns."""


class DedupeFunction(Function):
    """Keeps the first row with an identity and drops others with it for ``within`` after that.

    Guarantee: each dropped row has the identity of a kept row that came before it, received less than ``within`` ago.
    Repeats may get through: after ``within``, and when there were more than ``ids_max`` identities in that time, as the
    oldest are then forgotten. Identities longer than 32 bytes are compared by digests of 128 bits.

    State: up to ``ids_max`` identities of at most 32 bytes, with a time each; it changes only when a row is kept.
    """

    def __init__(self, settings: Dedupe, context: Context) -> None:
        """Start without identities."""
        self._within = round(settings.within_s * _NS)
        self._has_key = not settings.across_keys
        self._names = settings.by or ()
        self._readers = readers(self._names, context)
        self._missing = settings.missing
        self._ids_max = settings.ids_max
        self._ids = SeriesState(settings.ids_max)
        self.state: State = self._ids.state
        self._order: deque[tuple[int, bytes]] = deque()
        """Numbers of entries and their identities, the oldest first. A renewed identity has a new number; its old one
        is skipped."""
        self._reads = fields_of(settings.by, context)
        self.reads_values = bool(self._reads)

    def reads(self) -> frozenset[Path]:
        """Return the fields that identify a message."""
        return self._reads

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        """Return the rows that are not repeats."""
        if self._ids.restore():
            self._list()
        return [row for row in rows if self._keeps(row, out)]

    def _keeps(self, row: Row, out: Out) -> bool:
        try:
            found = self._identity(row)
        except ValueError as error:
            return passes(row, self._missing, f"dedupe: {error}", out)
        entry = self._ids.get(found)
        # Also where time stepped back: two rows a year apart, in either direction, are not repeats.
        if entry is not None and abs(row.time - entry[_TIME]) < self._within:
            out.drop(row, "repeats a message")
            return False
        self._order.append((self._ids.put(found, row.time)[0], found))
        self._forget(row.time)
        return True

    def _forget(self, now: int) -> None:
        """Forget expired identities, a few at a time, and the oldest beyond the bound."""
        if len(self._order) > 2 * self._ids_max + 64:
            self._list()
        count = 0
        while self._order:
            number, found = self._order[0]
            entry = self._ids.get(found)
            if entry is not None and entry[0] == number:
                is_over = count < _FORGOTTEN_AT_ONCE and now - entry[_TIME] >= self._within
                if not is_over and len(self.state.values) <= self._ids_max:
                    return
                self.state.delete(found)
                count += 1
            self._order.popleft()

    def _list(self) -> None:
        self._order = deque((entry[0], found) for found, entry in self.state.values.items())

    def _identity(self, row: Row) -> bytes:
        key = [row.key] if self._has_key else []
        if not self._names:
            return identity([*key, content(row)])
        values = [read(row) for read in self._readers]
        for name, value in zip(self._names, values, strict=True):
            if value is MISSING:
                raise ValueError(f"the payload has no field {name}")
        return identity([*key, *values])
