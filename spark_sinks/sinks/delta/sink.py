"""``DeltaSink``: the sink itself."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame

from spark_sinks.blocking import run
from spark_sinks.errors import ReadError, SinkError
from spark_sinks.replaced import Replaced
from spark_sinks.runtime.waiting import interrupted_shortly
from spark_sinks.sinks.delta.merge import (
    RESULT_SCHEMA,
    UPSERT_BYTES_MAX,
    Merged,
    Rewriter,
    TaskResult,
    WriteTask,
    check_size,
    from_ipc,
    merge,
)
from spark_sinks.sinks.delta.table import (
    OFFSET,
    SHARD,
    STREAM,
    DurableTable,
    FileWriter,
    Followed,
    HeldFile,
    Layout,
    NewFile,
    PositionFilter,
    Positions,
    StreamShard,
    TableLocation,
    TableReading,
    arrow_columns,
    check_partitioning,
    last_of_each,
    merged_ends,
    missing_columns,
    new_layout,
    partition_text,
    place_of,
    type_name,
)
from spark_sinks.source.options import STORE_PREFIX, ReadOptions, parse_options
from spark_sinks.source.stream_log import History, PersistedPosition, WentBack, Witness, open_hub
from weft.config.pipelines import LOG_END, WINDOW_START
from weft.protocols.lane import NAME_RULE, valid_name
from weft.storage.cluster import Cluster
from weft.storage.object_store import ObjectStore
from weft.storage.table.actions import TableConflict, source_ids

# Arguments of ``DeltaSink``, checked.

STREAMS_MAX = 64
TABLES = "tables"
"""Folder of a hub's store for the tables of streams."""
_NUMBERS = ("tinyint", "smallint", "int", "bigint")


def names_of(option: str, given: str | Collection[str] | None) -> tuple[str, ...]:
    """Return names of columns, from a list or a text.

    Raises:
        SinkError: one is empty, or given twice.
    """
    if given is None:
        return ()
    names = tuple(part.strip() for part in given.split(",")) if isinstance(given, str) else tuple(given)
    if len(set(names)) < len(names) or not all(names):
        raise SinkError(f"{option}: expected names of columns, each once; got {given!r}")
    return names


def source_of(
    store: str | os.PathLike[str] | None,
    stream: str | Sequence[str] | None,
    tenant: str,
    store_options: Mapping[str, str] | None,
) -> tuple[ReadOptions, tuple[str, ...]] | None:
    """Return the source of the rows: the options of the hub's store, and the streams; None when neither is given.

    Raises:
        SinkError: one is missing or not valid.
    """
    if store is None and stream is None:
        return None
    streams = (stream,) if isinstance(stream, str) else tuple(stream or ())
    if store is None or not streams:
        raise SinkError("store and stream go together: give both, or none of them")
    if len(streams) > STREAMS_MAX or len(set(streams)) < len(streams):
        raise SinkError(f"stream: expected at most {STREAMS_MAX} streams, each once; got {', '.join(streams)}")
    named = {f"{STORE_PREFIX}{option}": value for option, value in (store_options or {}).items()}
    try:
        found = [
            parse_options({"store": os.fspath(store), "stream": each, "tenant": tenant, **named}) for each in streams
        ]
    except ReadError as error:
        raise SinkError(str(error)) from None
    return found[0], streams


def check_same_partitions(table: str, held: Sequence[str], given: Sequence[str]) -> None:
    """Check that a table is partitioned by the sink's columns.

    Raises:
        SinkError: it is not.
    """
    if tuple(held) != tuple(given):
        raise SinkError(
            f"table {table} is partitioned by {', '.join(held) or 'nothing'}, not by {', '.join(given) or 'nothing'}; "
            "give partition_by as the table has it"
        )


def check_outside(place: TableLocation, store: str) -> None:
    """Check that a table is not one of the hub's own, which only the hub writes.

    Args:
        store: root of the hub's store.

    Raises:
        SinkError: it is.
    """
    root = store.rstrip("/")
    root = root if "://" in root else os.path.abspath(root)
    if f"{place.uri}/".startswith(f"{root.removeprefix('file://')}/{TABLES}/"):
        raise SinkError(
            f"table {place.uri} is in the store of the hub, which alone writes its tables; name another place"
        )


def check_positions(rows: pa.Schema, streams: Sequence[str]) -> None:
    """Check that rows have the positions of their records.

    Raises:
        SinkError: they do not.
    """
    wanted = {SHARD: _NUMBERS, OFFSET: _NUMBERS} | ({STREAM: ("string",)} if len(streams) > 1 else {})
    for name, kinds in wanted.items():
        if name not in rows.names:
            raise SinkError(
                f"the rows have no column {name}, by which the table knows what it has: keep {', '.join(wanted)} of "
                "the record that caused a row. Results of aggregates have none: give the sink keys and order_by "
                "instead of store and stream"
            )
        if (kind := type_name(rows.field(name).type)) not in kinds:
            raise SinkError(f"column {name} is a {kind}; leave it as the source has it")


def check_replaced(rows: pa.Schema, keys: Sequence[str], order_by: Sequence[str], replaced: Replaced) -> None:
    """Check that rows can replace ranges of times as a whole.

    Raises:
        SinkError: the sink has other keys or another order, or a column is missing or of another type.
    """
    if replaced.column not in keys:
        raise SinkError(
            f"keys: whole ranges of {replaced.column} are replaced, so it must be among the keys. Give the sink keys="
            f"[{replaced.column!r}, ...], without store, stream or partitions to replace"
        )
    if tuple(order_by) != (replaced.newest_by,):
        raise SinkError(f"order_by: expected {replaced.newest_by}, or nothing; got {', '.join(order_by)}")
    for name, kinds in ((replaced.column, ("timestamp",)), (replaced.newest_by, _NUMBERS)):
        if name not in rows.names:
            raise SinkError(f"the rows have no column {name}; they have {', '.join(rows.names)}")
        if (kind := type_name(rows.field(name).type)) not in kinds:
            raise SinkError(f"column {name} is a {kind}; expected {' or '.join(kinds)}")


# Positions stored in a table: Delta transactions, read before a batch and committed with its rows.


class PersistedPositions:
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
            {place: PersistedPosition(end, self._witness(reading, place)) for place, end in positions.items()}
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

    def _check_history(self, positions: dict[StreamShard, PersistedPosition]) -> None:
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


ATTEMPTS_MAX = 20
"""Maximum number of attempts to commit a batch, each on top of a newer version because another writer was first."""
FORGETTING_PROPERTY = "delta.setTransactionRetentionDuration"
"""Property by which engines drop old transactions, including the positions."""
_logger = logging.getLogger(__name__)


class _Written(NamedTuple):
    """A batch as returned by executors, for one state of the table."""

    positions: Positions
    layout: Layout
    files: list[NewFile]
    rows: pa.Table
    ends: Positions


class DeltaSink:
    """Rows into a Delta table, for ``foreachBatch``.

    **Append** (no ``keys``): every row is in the table exactly once, whatever was killed or repeated, and also if the
    checkpoint was deleted. One version of the table commits the rows together with the log offsets of their records;
    rows below these offsets are skipped. This holds if a row depends only on its record (filters, columns,
    ``explode``). Rows carry the ``_shard`` and ``_offset`` of the record that caused them.

    **Upsert** (``keys``): a row replaces the one with the same keys; the last by ``order_by`` wins, without it the one
    with the highest offset. With ``store`` and ``stream``, rows below the table's offsets are skipped, as above: a
    repeated batch changes nothing. Without them, for results of aggregates, ``order_by`` is needed: a repeated or older
    row never replaces a newer one, and equal ones replace each other. ``complete_windows`` replaces whole windows: the
    same version removes rows that a window no longer has.

    **Replace** (``replace_partitions``): the rows of a batch become the whole content of the partitions that they
    name. Repeating a batch changes nothing.

    When a call returns, its rows are durable. A sink that is killed before the commit leaves files that no version
    names: VACUUM removes them.

    Args:
        uri: the table's folder: a path, ``file:///path``, or a bucket's URI. The table is made if there is none;
            missing columns are added.
        store: root of the hub's store, for its identity, as in ``format("weft")``.
        stream: the source stream of the rows, or several, with a column ``_stream`` that names the one of each row.
        tenant: tenant of the stream.
        keys: columns that make a row unique.
        order_by: columns that order rows with the same keys, the later last; nulls are lowest. With ``window_start``
            among the keys, ``_log_end`` is taken where none is named.
        replace_partitions: see above; needs ``partition_by``.
        partition_by: columns by which the table is partitioned; an existing table must have the same.
        name: name of the writer. Two queries that write one stream into one table need two names.
        storage_options: for the table's object store: ``{"AWS_REGION": ...}``. What is missing comes from the
            environment.
        store_options: for the hub's store; the same rule applies.

    Raises:
        SinkError: the arguments do not fit together.
    """

    def __init__(
        self,
        uri: str | os.PathLike[str],
        *,
        store: str | os.PathLike[str] | None = None,
        stream: str | Sequence[str] | None = None,
        tenant: str = "default",
        keys: str | Sequence[str] | None = None,
        order_by: str | Sequence[str] | None = None,
        replace_partitions: bool = False,
        partition_by: str | Sequence[str] = (),
        name: str = "default",
        storage_options: Mapping[str, str] | None = None,
        store_options: Mapping[str, str] | None = None,
    ) -> None:
        self.place = place_of(uri, dict(storage_options or {}))
        self.keys, self.order_by = names_of("keys", keys), names_of("order_by", order_by)
        self.partition_by = names_of("partition_by", partition_by)
        self.replace_partitions = replace_partitions
        self.name = name
        self._source = source_of(store, stream, tenant, store_options if store_options is not None else storage_options)
        if WINDOW_START in self.keys and not self._source and not self.order_by:
            self.order_by = (LOG_END,)
        self._check(keys)
        if store is not None:
            check_outside(self.place, os.fspath(store))
        self._forget()

    def _check(self, keys: object) -> None:
        if not valid_name(self.name):
            raise SinkError(f"name: expected {NAME_RULE}; got {self.name!r}")
        if keys is not None and not self.keys:
            raise SinkError("keys: expected one column or more; leave it out to append")
        if self.keys and self.replace_partitions:
            raise SinkError("keys and replace_partitions exclude each other; leave one out")
        if self.order_by and not self.keys:
            raise SinkError("order_by: only rows with keys have an order; add keys, or leave it out")
        if self.replace_partitions and not self.partition_by:
            raise SinkError("replace_partitions: name the columns of the partitions with partition_by")
        if self.replace_partitions and self._source:
            raise SinkError("replace_partitions keeps no offsets; leave store and stream out")
        if not self._source and not self.replace_partitions and not self.order_by:
            raise SinkError(
                "store and stream: missing; name the hub's store and the stream that the rows come from. For results "
                "of aggregates, which have no offset, give keys and order_by instead"
            )

    def _forget(self) -> None:
        self._table: DurableTable | None = None
        self._kept: PersistedPositions | None = None
        self._seen: Positions = {}
        """Ends of the rows that this run of the query has written."""
        self._batch_id = -1

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings. Opened tables and logs stay in this process."""
        return {**self.__dict__, "_table": None, "_kept": None, "_seen": {}, "_batch_id": -1}

    def __repr__(self) -> str:
        """Return the table's place and the mode, without credentials."""
        mode = f"keys={self.keys}" if self.keys else f"replace_partitions={self.replace_partitions}"
        return f"DeltaSink({self.place.uri!r}, name={self.name!r}, {mode})"

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Write a batch.

        ``batch_id`` is independent of the table's contents: a new checkpoint counts from 0 again. A higher one than in
        the previous call means that the query continues, so that no row may have an earlier offset. Only batch 0 makes
        a missing table: without the earlier batches, it would have a hole.

        Raises:
            SinkError: the rows do not fit the table, the table does not fit the log, or it is gone; nothing was
                written.
            StoreError: the table's store did not answer.
        """
        with interrupted_shortly():
            self._upsert_or_append(frame, batch_id, None)

    def replace(self, frame: DataFrame, batch_id: int, replaced: Replaced) -> None:
        """Write a batch that brings all rows of some ranges, and remove their other rows in the same commit.

        Raises:
            SinkError: the sink has no fitting keys; otherwise as above.
            StoreError: the table's store did not answer.
        """
        check_replaced(arrow_columns(frame.schema), () if self._source else self.keys, self.order_by, replaced)
        self._upsert_or_append(frame, batch_id, replaced)

    def _upsert_or_append(self, frame: DataFrame, batch_id: int, replaced: Replaced | None) -> None:
        rows = arrow_columns(frame.schema)
        self._check_columns(rows)
        if batch_id <= self._batch_id:
            self._seen = {}  # a repetition, or another run
        written: _Written | None = None
        latest: TableConflict | None = None
        for _ in range(ATTEMPTS_MAX):
            try:
                continues = batch_id > 0 if replaced is None else replaced.continues
                reading = self._reading(rows, may_create=not continues)
                positions = self._positions(reading)
                if written is None or (written.positions, written.layout) != (positions, reading.layout):
                    written = self._write(frame, reading.layout, positions)
                self._commit(frame, reading, written, replaced)
            except TableConflict as conflict:
                # Also after a commit whose answer was lost: then the positions have moved, and nothing is left to
                # write.
                latest = conflict
                if self._kept is not None:
                    self._kept.forget()
            else:
                self._seen, self._batch_id = merged_ends([self._seen, written.ends]), batch_id
                return
        raise SinkError(
            f"table {self.place.uri}: other writers were first {ATTEMPTS_MAX} times ({latest}). Start the query again; "
            "let fewer jobs write to the table at the same time"
        )

    def check(self, frame: DataFrame) -> None:
        """Check the columns of future rows. Nothing is opened.

        Raises:
            SinkError: a table cannot have them, or one that the sink needs is missing.
        """
        self._check_columns(arrow_columns(frame.schema))

    def _check_columns(self, rows: pa.Schema) -> None:
        check_partitioning(rows, self.partition_by)
        for option, names in (("keys", self.keys), ("order_by", self.order_by)):
            for name in names:
                if name not in rows.names:
                    raise SinkError(f"{option}: the rows have no column {name}; they have {', '.join(rows.names)}")
        for name in self.keys:
            if pa.types.is_nested(rows.field(name).type):
                raise SinkError(f"keys: {name} is a {type_name(rows.field(name).type)}; keys are single values")
        for name in self.order_by:
            if pa.types.is_nested(rows.field(name).type):
                raise SinkError(f"order_by: {name} is a {type_name(rows.field(name).type)}; order by single values")
        if self._source:
            check_positions(rows, self._source[1])

    def _reading(self, rows: pa.Schema, *, may_create: bool) -> TableReading:
        """Return the table; make it if it is missing, and add missing columns."""
        if self._table is None:
            self._table = DurableTable(self.place)
        reading = self._table.open()
        if reading is None:
            if not may_create:
                # A new table would lack the rows of earlier batches: the query's checkpoint never brings them again.
                raise SinkError(
                    f"table {self.place.uri} is gone, or was never there, and this query has written earlier batches. "
                    "Put the table back; or move the query's checkpoint away, too, and the query makes the table again"
                )
            TableReading.create(self.place, new_layout(rows, self.partition_by))
            reading = self._table.open()
            if reading is None:
                raise SinkError(
                    f"table {self.place.uri}: it is not there right after it was made; is it being removed?"
                )
        reading.check_writable()
        check_same_partitions(self.place.uri, reading.layout.partition_by, self.partition_by)
        if self._source and FORGETTING_PROPERTY in reading.properties:
            raise SinkError(
                f"table {self.place.uri} forgets transactions after a while ({FORGETTING_PROPERTY}), and with "
                "them which rows it has; remove that property"
            )
        if (self.keys or self.replace_partitions) and reading.properties.get("delta.appendOnly", "") == "true":
            raise SinkError(f"table {self.place.uri} is append-only (delta.appendOnly); leave keys out, or change that")
        if missing := missing_columns(reading.layout.schema, rows):
            reading.add_columns(missing)
            raise TableConflict("columns were added")
        return reading

    def _positions(self, reading: TableReading) -> Positions:
        """Return the table's position in each shard.

        Raises:
            SinkError: the table follows another store, or an earlier state of this one.
        """
        if self._source is None:
            return {}
        if self._kept is None:
            self._kept = PersistedPositions(self.place.uri, *self._source, self.name)
        return self._kept.read(reading)

    def _write(self, frame: DataFrame, layout: Layout, positions: Positions) -> _Written:
        """Write the new rows on executors."""
        known = PositionFilter(self._source[1], positions, dict(self._seen)) if self._source else None
        task = WriteTask(self.place, layout, known)
        if self.keys:
            task = WriteTask(self.place, layout, known, None, UPSERT_BYTES_MAX)
        found = [_decoded(row[0]) for row in frame.mapInArrow(task, RESULT_SCHEMA).collect()]
        if skipped := sum(result.skipped for result in found):
            _logger.info("%s: left out %d rows that the table has", self.place.uri, skipped)
        rows = from_ipc([result.rows for result in found], layout.schema)
        ends = merged_ends([{(stream, shard): end for stream, shard, end in result.ends} for result in found])
        self._check_shards(ends)
        files = [file for result in found for file in result.files]
        if self.keys:
            check_size(rows.nbytes, UPSERT_BYTES_MAX)
            positional = [name for name in (OFFSET, SHARD) if self._source]
            rows = last_of_each(rows, self.keys, [*self.order_by, *positional])
        elif rows.num_rows:
            writer = FileWriter(self.place, layout)
            for batch in rows.to_batches():
                writer.add(batch)
            files, rows = [*files, *writer.finish()], rows.slice(0, 0)
        return _Written(positions, layout, files, rows, ends)

    def _check_shards(self, ends: Positions) -> None:
        """Refuse shards that the hub's store does not have: their positions would never be read again."""
        for stream, shard in ends if self._kept is not None else ():
            assert self._kept is not None
            if shard >= self._kept.shards:
                self._kept.look()
            if shard >= self._kept.shards:
                raise SinkError(
                    f"a row of {stream} is of shard {shard}, and the hub's store has {self._kept.shards} shards; "
                    f"leave {SHARD} as the source has it"
                )

    def _commit(self, frame: DataFrame, reading: TableReading, written: _Written, replaced: Replaced | None) -> None:
        merged = self._merged(frame, reading, written, replaced)
        if not merged.adds and not merged.removes and not written.ends:
            return
        assert self._table is not None
        transactions = self._kept.transactions(written.ends) if self._kept is not None else {}
        version = self._table.commit(reading, merged.adds, merged.removes, transactions)
        if self._kept is not None:
            self._kept.committed(reading.id, version, {**written.positions, **written.ends})

    def _merged(self, frame: DataFrame, reading: TableReading, written: _Written, replaced: Replaced | None) -> Merged:
        if self.replace_partitions:
            return _replaced(written.files, reading.files(), self.partition_by)
        if not self.keys or (not written.rows.num_rows and replaced is None):
            return Merged(written.files, [])
        wanted = written.rows.select([*dict.fromkeys((*self.keys, *self.order_by))])
        rewriter = Rewriter(self.place, reading.layout, wanted, self.keys, self.order_by, replaced)
        return merge(frame.sparkSession, rewriter, written.rows, reading.files())


def _replaced(new: list[NewFile], held: Sequence[HeldFile], partition_by: Sequence[str]) -> Merged:
    """Return the changes by which new files become the whole content of their partitions."""
    paths = {file.path for file in new}
    if paths & {file.path for file in held}:
        # These files are committed already, and the answer was lost. A version that adds and removes the same file has
        # no defined meaning.
        return Merged([], [])
    named = {tuple(file.partition.values()) for file in new}
    return Merged(
        new, [file for file in held if tuple(partition_text(file.partition[name]) for name in partition_by) in named]
    )


def _decoded(data: bytes) -> TaskResult:
    return msgspec.msgpack.decode(bytes(data), type=TaskResult)
