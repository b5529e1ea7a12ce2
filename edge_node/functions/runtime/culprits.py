"""Rows that functions fail on, which must not stop all others."""

from __future__ import annotations

from collections.abc import Mapping

from weft.edge_node.functions.contract import Out, Row


class Culprits:
    """Finder of the rows that functions fail on.

    After a failure the rows are given one by one. The row that they fail on then is rejected at the next try.
    """

    def __init__(self) -> None:
        """Suspect nothing."""
        self.is_searching = False
        """True while rows have to be given one by one."""
        self._alone: Row | None = None
        self._found: dict[tuple[str, int], str] = {}
        """(input, number) -> how the functions failed."""

    def failed(self, error: Exception) -> None:
        """Note that the functions failed."""
        if self._alone is not None and self._alone.seq >= 0:
            self._found[self._alone.input, self._alone.seq] = f"the functions failed: {type(error).__name__}: {error}"
        self._alone, self.is_searching = None, True

    def bearable(self, rows: list[Row], out: Out) -> list[Row]:
        """Return the rows that may be given to the functions, and reject the one of them that may not."""
        for row in rows:
            reason = self._found.get((row.input, row.seq))
            if reason is not None:
                out.reject(row, reason)
                return []
            self._alone = row
        return rows

    def handled(self) -> None:
        """Note that the functions did not fail."""
        self._alone = None

    def written(self, positions: Mapping[str, int]) -> None:
        """Forget what a step has left behind; ``positions`` are those of the inputs."""
        self._found = {(name, seq): how for (name, seq), how in self._found.items() if seq >= positions.get(name, 0)}
        self.is_searching = bool(self._found)
