"""The hub's log of the positions that a sink's target stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from spark_sinks.blocking import run
from spark_sinks.errors import ReadError, SinkError
from spark_sinks.source.options import ReadOptions
from spark_sinks.source.stream_log import History, PersistedPosition, WentBack, Witness, open_hub
from weft.storage.cluster import Cluster
from weft.storage.object_store import ObjectStore

LOGS_OPEN_MAX = 8
"""Maximum number of logs that a process remembers between batches."""


@dataclass(frozen=True)
class FollowedLog:
    """One stream of one hub's store."""

    options: ReadOptions

    @property
    def shards(self) -> int:
        """Return the number of the hub's shards by now. Raises as ``check``."""
        return _read(self.options)[1].tree.count

    @property
    def source(self) -> str:
        """Return cluster, tenant and stream as one text. Raises as ``check``."""
        return _opened(self.options).source

    def check(self, positions: Mapping[int, PersistedPosition]) -> None:
        """Compare positions, by shard, with the log.

        Raises:
            WentBack: the positions were not taken from this log.
            SinkError: the store does not answer, or holds no hub.
        """
        history = _opened(self.options).history
        try:
            run(history.check({(self.options.stream, shard): kept for shard, kept in positions.items()}))
        except WentBack:
            raise
        except ReadError as error:
            raise SinkError(str(error)) from None

    def witnesses(self, ends: Mapping[int, int]) -> dict[int, Witness]:
        """Return the witnesses to store beside positions, by shard; none for chunks that the hub has deleted. Raises as
        ``check``."""
        history = _opened(self.options).history
        try:
            found = run(history.witnesses({(self.options.stream, shard): end for shard, end in ends.items()}))
        except ReadError as error:
            raise SinkError(str(error)) from None
        return {shard: witness for (_, shard), witness in found.items()}


class _Opened(NamedTuple):
    source: str
    history: History


@lru_cache(LOGS_OPEN_MAX)
def _opened(options: ReadOptions) -> _Opened:
    store, cluster = _read(options)
    source = f"{cluster.cluster_id.hex()}/{options.tenant}/{options.stream}"
    return _Opened(source, History.of(store, cluster, options.tenant))


def _read(options: ReadOptions) -> tuple[ObjectStore, Cluster]:
    try:
        return run(open_hub(options))
    except ReadError as error:
        raise SinkError(str(error)) from None


# Floors of one run of a query: the ends of earlier micro-batches, by shard.


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
                    f"a row of offset {start} of shard {shard} comes after rows of an earlier micro-batch, which "
                    f"ended at {self._ends[shard]}. Give each row the _shard and _offset of the record that made it; "
                    "write results of windows with keys"
                )

    def take(self, batch_id: int, ends: Mapping[int, int]) -> None:
        """Record the ends of a written micro-batch."""
        self._batch_id = batch_id
        for shard, end in ends.items():
            self._ends[shard] = max(end, self._ends.get(shard, 0))
