"""Records that a query read in the store of another region, before it was moved here (``moving``).

A query that moves begins where this store has the first record that it lacks. Behind that place are also records that
it has: the two logs have them in different orders, and this one may get some later. The position names them by lane and
sequence number, which are the same in all regions: ``{"read": {"press-1": {"0000000000000007": [[120, 180]]}}}`` beside
the offsets. Reads leave them out, and the position forgets them once the query has passed them here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from spark_sinks.errors import ReadError
from spark_sinks.source.positions import READ
from weft.protocols.errors import Corrupt
from weft.protocols.lane import Lane, format_log_id
from weft.protocols.ranges import RangeSet

LaneName = tuple[str, str]
"""Edge and log id of a lane of one stream, as the columns ``_edge`` and ``_log`` have them."""
LANE_COLUMNS = ("_edge", "_log", "_seq")


def lane_name(lane: Lane) -> LaneName:
    """Return a lane's name within its stream."""
    return lane.edge, format_log_id(lane.log_id)


class ReadElsewhere:
    """Ranges of sequence numbers by lane. Never changed."""

    __slots__ = ("_lanes",)

    def __init__(self, lanes: Mapping[LaneName, RangeSet] | None = None) -> None:
        self._lanes = {name: ranges for name, ranges in sorted((lanes or {}).items()) if ranges}

    @classmethod
    def of(cls, position: Any) -> ReadElsewhere:
        """Return those that a position in a checkpoint names; mostly none.

        Raises:
            ReadError: they have another form.
        """
        found: dict[LaneName, RangeSet] = {}
        try:
            for edge, logs in position.get(READ, {}).items():
                for log, ranges in logs.items():
                    found[edge, format_log_id(int(log, 16))] = RangeSet.from_wire(ranges)
        except (AttributeError, TypeError, ValueError, Corrupt) as error:
            raise ReadError(
                f"checkpoint: what was read in another region has another form ({error}). It is of another query, or "
                "of a later release"
            ) from None
        return cls(found)

    def to_json(self) -> dict[str, Any]:
        """Return the part of a position that names them; nothing if there are none. Equal ones have equal texts."""
        found: dict[str, dict[str, list[list[int]]]] = {}
        for (edge, log), ranges in self._lanes.items():
            found.setdefault(edge, {})[log] = ranges.to_wire()
        return {READ: found} if found else {}

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def items(self) -> Iterable[tuple[LaneName, RangeSet]]:
        """Return the lanes with their ranges, ascending."""
        return self._lanes.items()

    def without(self, records: Mapping[LaneName, RangeSet]) -> ReadElsewhere:
        """Return these without the given records."""
        return ReadElsewhere({name: had.minus(records.get(name, ())) for name, had in self._lanes.items()})

    def of_lanes(self, names: Iterable[LaneName]) -> ReadElsewhere:
        """Return those of some lanes: a task ships only these."""
        return ReadElsewhere({name: self._lanes[name] for name in set(names) & self._lanes.keys()})

    def mask(self, rows: pa.RecordBatch) -> pa.Array:
        """Return for each row, which has ``LANE_COLUMNS``, whether it was not read elsewhere."""
        kept = np.ones(rows.num_rows, bool)
        edges, logs = (rows.column(name).dictionary_encode() for name in LANE_COLUMNS[:2])
        numbers = rows.column("_seq").to_numpy()
        edge_at, log_at = edges.indices.to_numpy(), logs.indices.to_numpy()
        known_edges, known_logs = edges.dictionary.to_pylist(), logs.dictionary.to_pylist()
        width = len(known_logs)
        lane_at = edge_at.astype(np.int64) * width + log_at
        for lane in np.unique(lane_at).tolist():
            ranges = self._lanes.get((known_edges[lane // width], known_logs[lane % width]))
            if ranges is not None:
                rows_of_lane = lane_at == lane
                kept[rows_of_lane] = ~_within(ranges, numbers[rows_of_lane])
        return pa.array(kept)


def _within(ranges: RangeSet, numbers: np.ndarray) -> np.ndarray:
    starts, ends = np.array(list(ranges), np.int64).T
    at = np.searchsorted(starts, numbers, "right") - 1
    found: np.ndarray = (at >= 0) & (numbers < ends[np.maximum(at, 0)])
    return found
