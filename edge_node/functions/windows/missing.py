"""Gaps in the input, and the windows that they make incomplete."""

from __future__ import annotations

from typing import Any

from weft.edge_node.functions.contract import Gap, Row, State
from weft.edge_node.functions.windows.groups import ALWAYS, GAPS

GAPS_MAX = 16
"""Maximum number of separate gaps of an input at a time. Further ones are merged."""
NAMED_MAX = 8
"""Maximum number of gaps that one row names."""
_AFTER, _UNTIL, _INPUT, _TEXT = 0, 1, 2, 3
_UNKNOWN = -1
_MORE = " and later ones"


class WindowGaps:
    """Gaps that windows may still overlap, each from the last row before it to the first row after it."""

    def __init__(self, state: State, lateness: int | None) -> None:
        """Start without gaps.

        Args:
            lateness: longest delay of a row after its event, in ns; None for windows of ingest time.
        """
        self._state = state
        self._lateness = lateness
        self._gaps: list[list[Any]] = []
        self.is_open = False
        """True while a gap has no row after it."""

    def restore(self) -> None:
        """Restore the gaps from ``State`` after a start."""
        self._gaps = self._state.values.get(GAPS, [])
        self._note()

    def _note(self) -> None:
        self.is_open = any(gap[_UNTIL] == _UNKNOWN for gap in self._gaps)

    def add(self, gap: Gap) -> None:
        """Note a gap. ``Gap.end`` is the first number after it."""
        numbers = f"{gap.first}" if gap.end == gap.first + 1 else f"{gap.first}-{gap.end - 1}"
        self._gaps.append([gap.after, _UNKNOWN, gap.input, f"{gap.input} {numbers}: {gap.reason}"])
        same = [gap for gap in self._gaps if gap[_INPUT] == self._gaps[-1][_INPUT]]
        if len(same) > GAPS_MAX:
            first, second = same[:2]
            text = first[_TEXT] if first[_TEXT].endswith(_MORE) else first[_TEXT] + _MORE
            second[:] = [first[_AFTER], second[_UNTIL], second[_INPUT], text]
            self._gaps.remove(first)
        self._state.set(GAPS, self._gaps)
        self._note()

    def see(self, rows: list[Row]) -> None:
        """Find the first rows after gaps. Rows that a function created have no input, and end every gap."""
        for gap in self._gaps:
            if gap[_UNTIL] == _UNKNOWN:
                time = next((row.time for row in rows if row.input in (gap[_INPUT], "")), None)
                if time is not None:
                    gap[_UNTIL] = time
                    self._state.touch(GAPS)
        self._note()

    def text(self, first: int, start: int, end: int) -> str:
        """Return the gaps that may hold rows of a window, as text; empty where there are none.

        Args:
            first: ingest time of the window's oldest row.
            start: first time of the window.
            end: end of the window.
        """
        if not self._gaps:
            return ""
        found = [gap[_TEXT] for gap in self._gaps if self._overlaps(gap, first, start, end)]
        more = f"; and {len(found) - NAMED_MAX} more" if len(found) > NAMED_MAX else ""
        return "; ".join(found[:NAMED_MAX]) + more

    def _overlaps(self, gap: list[Any], first: int, start: int, end: int) -> bool:
        until = ALWAYS if gap[_UNTIL] == _UNKNOWN else gap[_UNTIL]
        if self._lateness is None:
            return gap[_AFTER] < end and start <= until
        # The times of missing events are unknown. They belong to windows that were open at the gap, or to windows of
        # that time.
        return first <= until or (gap[_AFTER] - self._lateness < end and start <= until)

    def forget(self, before: int) -> None:
        """Forget gaps that were over before a time."""
        if self._gaps:
            kept = [gap for gap in self._gaps if gap[_UNTIL] == _UNKNOWN or gap[_UNTIL] >= before]
            if len(kept) < len(self._gaps):
                self._gaps = kept
                if kept:
                    self._state.set(GAPS, kept)
                else:
                    self._state.delete(GAPS)
