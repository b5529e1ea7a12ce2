"""Choice of the files of a table that may have a number of a lane, by the statistics in its log."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

Numbers = np.ndarray[Any, np.dtype[np.int64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]


class LaneFiles(NamedTuple):
    """Bounds of edges and numbers of each file. Edges are numbers of ``names``, since many files have the same ones."""

    names: list[str]
    """Sorted."""
    low_edge: Numbers
    high_edge: Numbers
    low_seq: Numbers
    high_seq: Numbers

    @classmethod
    def of(cls, actions: pa.Table) -> LaneFiles:
        """Return the bounds of files as Delta's log has them; the widest ones where it says none."""
        low, high = (_edges(actions, name) for name in ("min._edge", "max._edge"))
        names = sorted({each for each in (*low.dictionary.to_pylist(), *high.dictionary.to_pylist()) if each})
        return cls(
            names, _numbered(low, names, -1), _numbered(high, names, len(names)),
            file_numbers(actions, "min._seq", 0), file_numbers(actions, "max._seq", 1 << 62),
        )  # fmt: skip

    def may_have(self, edge: str, seq: int) -> Flags:
        """Return for each file whether it may have a number of an edge."""
        at = np.searchsorted(np.array(self.names, dtype=object), edge) if self.names else 0
        # An edge between two names is between their numbers, too: twice the numbers leave room for it.
        place = 2 * int(at) - (0 if int(at) < len(self.names) and self.names[int(at)] == edge else 1)
        return np.asarray(
            (2 * self.low_edge <= place)
            & (2 * self.high_edge >= place)
            & (self.low_seq <= seq)
            & (self.high_seq >= seq)
        )


def file_numbers(actions: pa.Table, name: str, default: int) -> Numbers:
    """Return a number of each file's statistics; ``default`` where there is none."""
    if name not in actions.column_names:
        return np.full(actions.num_rows, default, np.int64)
    found: Numbers = actions.column(name).cast(pa.int64()).fill_null(default).to_numpy().astype(np.int64)
    return found


def _edges(actions: pa.Table, name: str) -> pa.DictionaryArray:
    if name not in actions.column_names:
        return pa.nulls(actions.num_rows, pa.string()).dictionary_encode()
    return actions.column(name).cast(pa.string()).combine_chunks().dictionary_encode()


def _numbered(edges: pa.DictionaryArray, names: list[str], default: int) -> Numbers:
    place = {name: number for number, name in enumerate(names)}
    of = np.array([place.get(each, default) for each in edges.dictionary.to_pylist()] or [default], np.int64)
    index = edges.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    found: Numbers = np.where(index < 0, default, of[index])
    return found
