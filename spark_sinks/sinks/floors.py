"""Floors of one run of a query: the ends of earlier micro-batches, by shard."""

from __future__ import annotations

from collections.abc import Mapping

from spark_sinks.errors import SinkError


class RunFloors:
    """Ends of the micro-batches of this run. A row below them would be skipped as one that the target has.

    Pickled, it is empty: another process is another run.
    """

    def __init__(self) -> None:
        self._ends: dict[int, int] = {}
        self._batch_id = -1

    def __reduce__(self) -> tuple[type[RunFloors], tuple[()]]:
        """Return the arguments for an empty one."""
        return RunFloors, ()

    def check(self, batch_id: int, starts: Mapping[int, int]) -> None:
        """Check that no row of a micro-batch is below the ends of earlier ones.

        Args:
            batch_id: a number that is not higher than the last means a repetition, or another run.
            starts: lowest offset of the rows, by shard.

        Raises:
            SinkError: a row does.
        """
        if batch_id <= self._batch_id:
            self._ends.clear()
        for shard, start in starts.items():
            if start < self._ends.get(shard, 0):
                raise SinkError(
                    f"a row of offset {start} of shard {shard} comes behind rows of an earlier micro-batch, which "
                    f"ended at {self._ends[shard]}. Give each row the _shard and _offset of the record that made it; "
                    "write results of windows with keys"
                )

    def take(self, batch_id: int, ends: Mapping[int, int]) -> None:
        """Record the ends of a written micro-batch."""
        self._batch_id = batch_id
        for shard, end in ends.items():
            self._ends[shard] = max(end, self._ends.get(shard, 0))
