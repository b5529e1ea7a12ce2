"""The sink: one transaction of PostgreSQL for each micro-batch."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame

from spark_sinks.errors import ReadError, SinkError
from spark_sinks.replaced import Replaced
from spark_sinks.sinks.floors import RunFloors
from spark_sinks.sinks.followed_log import FollowedLog
from spark_sinks.sinks.jdbc.address import check_url, connect, shown
from spark_sinks.sinks.jdbc.batch import OFFSET, SHARD, Batch, TargetTable, shard_ends, shard_starts
from spark_sinks.sinks.jdbc.columns import NAME_BYTES_MAX, as_copied, columns_of
from spark_sinks.source.options import STORE_PREFIX, parse_options

if TYPE_CHECKING:
    from psycopg import Error

POSITIONS = "weft_positions"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class JdbcSink:
    """Writer of micro-batches into a table of PostgreSQL, for ``foreachBatch``.

    Guarantee: a micro-batch is one transaction. With ``keys`` a row replaces the row with the same keys, so a batch
    that is written again changes nothing. Without ``order_by``, a late batch replaces newer rows: one of a driver that
    was cut off and still runs, or of a query that lost its checkpoint, until it has caught up. ``complete_windows``
    replaces whole windows: the same transaction removes rows that a window no longer has.

    Without ``keys`` rows are appended exactly once, whatever happens to the checkpoint: the transaction also stores the
    log offset up to which the table has each shard, and rows below are skipped. With ``store`` and ``stream`` it also
    stores the identity of that log, and refuses rows of another one, or of one that was restored to an earlier state.

    Nulls in ``keys`` are equal to each other. It needs PostgreSQL 15, and in a table of your own an index that is
    ``NULLS NOT DISTINCT``.

    The rows come through the driver's memory, a micro-batch at a time: ``max_records_per_trigger`` bounds it. Only the
    driver connects to the database, and only it needs psycopg (the extra ``postgresql``).

    The first batch makes the table if it does not exist. An existing table keeps its own columns and types; it needs
    every column of the DataFrame, and with ``keys`` a unique index over them. Times are stored as ``timestamptz``,
    nested columns as ``jsonb``; a NUL character in a text becomes U+FFFD, because PostgreSQL's text cannot hold it.

    Args:
        url: ``jdbc:postgresql://HOST:PORT/DATABASE?user=NAME``; further parameters have libpq's names (``sslmode``).
            It must not hold a password: libpq takes that from the driver's ``PGPASSWORD`` or ``~/.pgpass``.
        table: name of the table, or ``SCHEMA.NAME``.
        keys: columns that identify a row. None: rows are appended, and need ``_shard`` and ``_offset``.
        order_by: with ``keys``: among rows with the same keys, the one with the highest value here remains, in a batch
            and in the table. Without it, a later batch replaces earlier rows; within a batch, rows of one shard are
            ordered by ``_offset``.
        name: without ``keys``: name under which the positions are stored. Two queries that write to one table need two
            names; the same name with another stream or another store skips rows.
        password_file: file on the driver whose first line is the password, read for each batch.
        positions_table: name of the table of positions, made in the schema of ``table``.
        store: without ``keys``: root of the hub's store with the source of the rows, as in ``format("weft")``.
        stream: the source stream of the rows; together with ``store``.
        tenant: tenant of the stream.
        store_options: for the hub's store: ``{"AWS_REGION": ...}``. What is missing comes from the environment.

    Raises:
        SinkError: an argument is wrong.
    """

    url: str
    table: str
    keys: Sequence[str] = ()
    order_by: str | None = None
    name: str | None = None
    password_file: str | None = None
    positions_table: str = POSITIONS
    store: str | os.PathLike[str] | None = None
    stream: str | None = None
    tenant: str = "default"
    store_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    _floors: RunFloors = field(default_factory=RunFloors, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the arguments, as far as possible without the database."""
        check_url(self.url)
        if isinstance(self.keys, str):
            raise SinkError(f"keys: expected a list of column names; write [{self.keys!r}]")
        if not all(self.table.split(".")) or self.table.count(".") > 1:
            raise SinkError(f"table: expected NAME or SCHEMA.NAME; got {self.table!r}")
        for name in (*self.table.split("."), self.positions_table):
            if len(name.encode()) > NAME_BYTES_MAX or "\0" in name or not name:
                raise SinkError(f"table: PostgreSQL takes names of 1 to {NAME_BYTES_MAX} bytes; got {name!r}")
        if not self.keys and not self.name:
            raise SinkError(
                "name: rows that are appended need a name under which their positions are kept; or give keys"
            )
        if self.order_by is not None and not self.keys:
            raise SinkError("order_by: it chooses among rows with the same keys; give keys too")
        if (self.store is None) != (self.stream is None):
            raise SinkError("store and stream go together: give both, or none of them")
        self._log()

    def _log(self) -> FollowedLog | None:
        """Return the log of the positions; None without ``store`` and ``stream``."""
        if self.store is None or self.stream is None or self.keys:
            return None
        named = {f"{STORE_PREFIX}{name}": value for name, value in self.store_options.items()}
        try:
            options = {"store": os.fspath(self.store), "stream": self.stream, "tenant": self.tenant, **named}
            return FollowedLog(parse_options(options))
        except ReadError as error:
            raise SinkError(str(error)) from None

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Write one micro-batch. When this returns, PostgreSQL has committed it.

        Raises:
            SinkError: the rows do not fit the table, the table of earlier batches is gone, or PostgreSQL rejected them;
                nothing of the batch is written.
        """
        self._write_batch(frame, batch_id, None)

    def replace(self, frame: DataFrame, batch_id: int, replaced: Replaced) -> None:
        """Write a batch that brings all rows of some ranges, and remove their other rows in the same transaction.

        Raises:
            SinkError: the sink has no fitting keys; otherwise as above.
        """
        if replaced.column not in self.keys:
            raise SinkError(
                f"keys: whole ranges of {replaced.column} are replaced, so it must be among the keys. Give the sink "
                f"keys=[{replaced.column!r}, ...] and order_by={replaced.newest_by!r}"
            )
        self._write_batch(frame, batch_id, replaced)

    def _write_batch(self, frame: DataFrame, batch_id: int, replaced: Replaced | None) -> None:
        self.check(frame)
        columns = columns_of(frame.schema)
        rows = as_copied(frame).toArrow()
        if not rows.num_rows and replaced is None:
            return
        ends: dict[int, int] = {}
        if not self.keys:
            self._check_nulls(rows, (SHARD, OFFSET))
            ends = shard_ends(rows)
            self._floors.check(batch_id, shard_starts(rows))
        table, keys = tuple(self.table.split(".")), tuple(self.keys)
        target = TargetTable(table, keys, self.order_by, self.name, self.positions_table, replaced)
        written = self._write(Batch(target, columns, rows, self._log(), is_first=batch_id == 0))
        self._floors.take(batch_id, ends)
        if written < rows.num_rows and not self.keys:
            _log.warning("batch %d: left out %d rows that %s has", batch_id, rows.num_rows - written, self.table)
        _log.info("batch %d: %d of %d rows written to %s", batch_id, written, rows.num_rows, self.table)

    def check(self, frame: DataFrame) -> None:
        """Check the columns of future rows. Nothing is opened.

        Raises:
            SinkError: PostgreSQL cannot have them, or one that the sink needs is missing.
        """
        names = [column.name for column in columns_of(frame.schema)]
        wanted = [*self.keys, *([self.order_by] if self.order_by else [])] if self.keys else [SHARD, OFFSET]
        if missing := [name for name in wanted if name not in names]:
            raise SinkError(f"the rows lack {', '.join(missing)}, which JdbcSink needs; they have {', '.join(names)}")

    def _check_nulls(self, rows: pa.Table, names: Sequence[str]) -> None:
        for name in names:
            if rows.column(name).null_count:
                # Without a position, the table does not show whether it has the row: every repetition would write it
                # again.
                raise SinkError(
                    f"column {name} is null in {rows.column(name).null_count} rows; filter them out, or fill it"
                )

    def _write(self, batch: Batch) -> int:
        connection = connect(self.url, self.password_file)
        import psycopg

        try:
            with connection:  # commits, or rolls back after an error
                return batch.write(connection)
        except psycopg.Error as error:
            raise SinkError(f"PostgreSQL at {shown(self.url)} refused the batch: {_sentence(error, self)}") from None


def _sentence(error: Error, sink: JdbcSink) -> str:
    """Return PostgreSQL's message with advice, but without the row, which must not get into a log."""
    primary = error.diag.message_primary or str(error)
    columns = ", ".join(sink.keys)
    advice = {
        "42P10": f"make the index that keys need: CREATE UNIQUE INDEX ON {sink.table} ({columns}) NULLS NOT DISTINCT",
        "42703": "add the column to the table, or drop it from the DataFrame",
        "42804": "cast the column to the table's type",
        "42501": "grant the user the right, or make the tables beforehand",
        "55P03": "another transaction holds the table; look into pg_stat_activity",
    }.get(error.sqlstate or "")
    return primary if advice is None else f"{primary}; {advice}"
