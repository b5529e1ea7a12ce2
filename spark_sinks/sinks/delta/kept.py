"""Positions stored in a table: Delta transactions, read before a batch and committed with its rows."""

from __future__ import annotations

from dataclasses import replace

from spark_sinks.blocking import run
from spark_sinks.errors import ReadError, SinkError
from spark_sinks.sinks.delta.positions import Followed, Positions, StreamShard
from spark_sinks.sinks.delta.table import TableReading
from spark_sinks.source.history import History, KeptPosition, WentBack, Witness
from spark_sinks.source.options import ReadOptions
from spark_sinks.source.stream_log import open_hub
from weft.storage.cluster import Cluster
from weft.storage.object_store import ObjectStore
from weft.storage.table.names import source_ids


class KeptPositions:
    """The positions of one writer in one table, compared with the hub's log whenever another writer has moved them.

    Args:
        uri: the table, for messages.
        options: name the hub's store.

    Raises:
        SinkError: the store does not answer, or holds no hub.
    """

    def __init__(self, uri: str, options: ReadOptions, streams: tuple[str, ...], name: str) -> None:
        store, cluster = _opened(options)
        self._uri, self._options = uri, options
        self._followed = Followed(cluster.cluster_id.hex(), cluster.tree.count, options.tenant, streams, name)
        self._history = History.of(store, cluster, options.tenant)
        self._known: tuple[str, int, Positions] | None = None

    @property
    def shards(self) -> int:
        """Return the number of the hub's shards, as last read."""
        return self._followed.shards

    def look(self) -> None:
        """Read the number of the hub's shards again: a split may have made more.

        Raises:
            SinkError: the store does not answer, or holds no hub.
        """
        self._followed = replace(self._followed, shards=_opened(self._options)[1].tree.count)

    def read(self, reading: TableReading) -> Positions:
        """Return the table's position in each shard.

        Raises:
            SinkError: the table follows another store, or this one before it was restored.
        """
        if self._known is not None and self._known[:2] == (reading.id, reading.version):
            return self._known[2]
        self._check_cluster(reading)
        found = {place: reading.transaction(app) for app, place in self._followed.apps().items()}
        positions = {place: end for place, end in found.items() if end is not None}
        self._check_history(
            {place: KeptPosition(end, self._witness(reading, place)) for place, end in positions.items()}
        )
        self.committed(reading.id, reading.version, positions)
        return positions

    def committed(self, table_id: str, version: int, positions: Positions) -> None:
        """Record the positions of a version that this writer has made or read."""
        self._known = (table_id, version, positions)

    def forget(self) -> None:
        """Read the positions from the table the next time."""
        self._known = None

    def transactions(self, ends: Positions) -> dict[str, int]:
        """Return the transactions of a commit: application -> version.

        Raises:
            SinkError: the hub's store does not answer.
        """
        made = {self._followed.app(place): end for place, end in ends.items()}
        made |= {self._followed.cluster_app(stream): self._followed.cluster_number for stream, _ in ends}
        try:
            witnesses = run(self._history.witnesses(ends))
        except ReadError as error:
            raise SinkError(str(error)) from None
        for place, witness in witnesses.items():
            made |= dict(zip(source_ids(self._followed.app(place)), witness[:2], strict=True))
        return made

    def _witness(self, reading: TableReading, place: StreamShard) -> Witness | None:
        n, crc = map(reading.transaction, source_ids(self._followed.app(place)))
        return None if n is None or crc is None else Witness(n, crc)

    def _check_cluster(self, reading: TableReading) -> None:
        for stream in self._followed.streams:
            number = reading.transaction(self._followed.cluster_app(stream))
            if number is not None and number != self._followed.cluster_number:
                raise SinkError(
                    f"table {self._uri} has rows of stream {stream} of another hub's store, under the name "
                    f"{self._followed.name}: the offsets of the two mean different records. Write another table, or "
                    "give the sink another name to have the rows of both"
                )

    def _check_history(self, positions: dict[StreamShard, KeptPosition]) -> None:
        try:
            run(self._history.check(positions))
        except WentBack as error:
            raise SinkError(
                f"table {self._uri} has rows up to {error}: the hub's store was restored to an earlier state, and "
                "gives these offsets to other records. Move the table and the query's checkpoint away; the query "
                "makes both again from the log. Rows of lost records remain in the moved table"
            ) from None
        except ReadError as error:
            raise SinkError(str(error)) from None


def _opened(options: ReadOptions) -> tuple[ObjectStore, Cluster]:
    try:
        return run(open_hub(options))
    except ReadError as error:
        raise SinkError(str(error)) from None
