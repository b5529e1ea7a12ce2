"""The sink: one transaction of PostgreSQL for each micro-batch."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, LiteralString, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import pyarrow as pa
from pyarrow import csv
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_sinks.errors import ReadError, SinkError
from spark_sinks.replaced import Replaced
from spark_sinks.sinks.positions import FollowedLog, RunFloors
from spark_sinks.source.options import STORE_PREFIX, parse_options
from spark_sinks.source.stream_log import PersistedPosition, WentBack, Witness

if TYPE_CHECKING:
    from psycopg import Connection, Error
    from psycopg.sql import Composed, Identifier


# Address of a PostgreSQL database: a JDBC URL without a password, and a connection made from it.

SCHEMES = ("postgresql", "postgres")
PORT = 5432
PASSWORD_BYTES_MAX = 4096
BOUNDS = {
    "connect_timeout": "10",
    # Milliseconds after which a connection without answers is closed; the kernel's own limit is hours.
    "tcp_user_timeout": "60000",
    "application_name": "weft",
    # A statement that waits longer for another transaction fails, and the batch with it.
    "options": "-c lock_timeout=60s",
}
"""Settings of libpq that a URL may override. Without them, a lost server would block a query for hours."""
_PASSWORDS = "the environment variable PGPASSWORD of the driver, in its ~/.pgpass, or in password_file"


def check_url(url: str) -> str:
    """Return libpq's form of a URL such as ``jdbc:postgresql://db.example.com:5432/plant?user=weft``.

    Raises:
        SinkError: the URL is of another database, or has a password in it. The message never shows the password.
    """
    address = url.removeprefix("jdbc:")
    try:
        parts = urlsplit(address)
        secret = parts.password is not None or any("password" in name.lower() for name, _ in parse_qsl(parts.query))
    except ValueError:
        raise SinkError("url: it cannot be read; expected jdbc:postgresql://HOST:PORT/DATABASE?user=NAME") from None
    if parts.scheme not in SCHEMES:
        # Only the scheme is shown: for any database, the rest may hold a password.
        raise SinkError(
            f"url: expected jdbc:postgresql://HOST:PORT/DATABASE; got one that begins with {parts.scheme or '?'!r}. "
            "For other databases use Spark's own JDBC writer (docs/how-to/from-spark-to-postgresql.md)"
        )
    if secret:
        raise SinkError(f"url: contains a password; remove it, and set the password in {_PASSWORDS}")
    return address


def shown(url: str) -> str:
    """Return host, port and database of a checked URL, for messages."""
    host, _, path = url.removeprefix("jdbc:").partition("://")[2].partition("?")[0].partition("/")
    return f"{host.rpartition('@')[2] or 'localhost'}/{path}"


def connect(url: str, password_file: str | None) -> Connection:
    """Return a connection; transactions begin with the first statement.

    Raises:
        SinkError: psycopg is not installed, the password file cannot be read, or the database refuses.
    """
    try:
        import psycopg
    except ImportError:
        raise SinkError("JdbcSink needs psycopg on the driver: pip install 'weft-fabric[postgresql]'") from None
    options = dict(BOUNDS)
    try:
        given = psycopg.conninfo.conninfo_to_dict(check_url(url))
        options |= {name: str(value) for name, value in given.items()}
        if password_file is not None:
            options["password"] = _password(password_file)
        return psycopg.connect(**options)  # type: ignore[arg-type]
    except psycopg.ProgrammingError as error:
        raise SinkError(f"url: {error}".strip() + "; parameters after the ? have libpq's names") from None
    except psycopg.OperationalError as error:
        raise SinkError(
            f"PostgreSQL at {shown(url)} refused or did not answer: {error}. Check the address, the user, and that the "
            f"password is in {_PASSWORDS}"
        ) from None


def _password(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(PASSWORD_BYTES_MAX)
    except (OSError, UnicodeDecodeError) as error:
        raise SinkError(f"password_file: {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return text.splitlines()[0] if text else ""


# Columns of a DataFrame on their way into PostgreSQL: their types in Spark, in the copied text and in the table.

NAME_BYTES_MAX = 63
"""Longest identifier of PostgreSQL, which truncates longer ones silently: two columns could become one."""
EPOCH = "(to_timestamp({0} / 1000000) + mod({0}, 1000000) * interval '1 microsecond')"
"""A time of microseconds since 1970, exact: a double alone loses microseconds after the year 2255."""
_JSON_NUL = r"(?<!\\)((?:\\\\)*)\\u0000"
"""An escaped NUL in JSON text, with an even number of backslashes before it: after an odd number it is plain text."""
REPLACEMENT = "\ufffd"


class ColumnTypes(NamedTuple):
    """Types in PostgreSQL for one type of Spark."""

    copied: str
    """Type of the column for COPY."""
    stored: str
    """Type of the column in a table that the sink makes."""
    value: str = "{0}"
    """SQL that converts the copied value to the stored one."""


class StagedColumn(NamedTuple):
    """A column of a batch."""

    name: str
    kind: ColumnTypes


_KINDS: dict[type[T.DataType], ColumnTypes] = {
    T.BooleanType: ColumnTypes("boolean", "boolean"),
    T.ByteType: ColumnTypes("smallint", "smallint"),
    T.ShortType: ColumnTypes("smallint", "smallint"),
    T.IntegerType: ColumnTypes("integer", "integer"),
    T.LongType: ColumnTypes("bigint", "bigint"),
    T.FloatType: ColumnTypes("real", "real"),
    T.DoubleType: ColumnTypes("double precision", "double precision"),
    T.StringType: ColumnTypes("text", "text"),
    T.VarcharType: ColumnTypes("text", "text"),
    T.CharType: ColumnTypes("text", "text"),
    T.BinaryType: ColumnTypes("bytea", "bytea"),
    T.DateType: ColumnTypes("integer", "date", "(date '1970-01-01' + {0})"),
    T.TimestampType: ColumnTypes("bigint", "timestamptz", EPOCH),
    T.TimestampNTZType: ColumnTypes("timestamp", "timestamp"),
    T.ArrayType: ColumnTypes("jsonb", "jsonb"),
    T.MapType: ColumnTypes("jsonb", "jsonb"),
    T.StructType: ColumnTypes("jsonb", "jsonb"),
}


def columns_of(schema: T.StructType) -> list[StagedColumn]:
    """Return the columns of a batch in their order.

    Raises:
        SinkError: a column has a type without a counterpart in PostgreSQL, or a name that is too long.
    """
    return [StagedColumn(_checked(field.name), _kind(field)) for field in schema.fields]


def _checked(name: str) -> str:
    if len(name.encode()) > NAME_BYTES_MAX or "\0" in name or not name:
        raise SinkError(f"column {name!r}: PostgreSQL names have 1 to {NAME_BYTES_MAX} bytes; rename it with alias")
    return name


def _kind(field: T.StructField) -> ColumnTypes:
    if isinstance(field.dataType, T.DecimalType):
        typed = f"numeric({field.dataType.precision}, {field.dataType.scale})"
        return ColumnTypes(typed, typed)
    kind = _KINDS.get(type(field.dataType))
    if kind is None:
        raise SinkError(
            f"column {field.name}: the type {field.dataType.simpleString()} cannot be written; cast it to another"
        )
    return kind


def as_copied(frame: DataFrame) -> DataFrame:
    """Return the frame's columns as strings, numbers and booleans, which CSV can hold without loss.

    PostgreSQL's text and jsonb cannot hold a NUL character, and a device may send one: U+FFFD replaces it, so that such
    a row does not stop the query.
    """
    return frame.select(*(_copied(field).alias(field.name) for field in frame.schema.fields))


def _copied(field: T.StructField) -> Column:
    column, kind = F.col(f"`{field.name.replace('`', '``')}`"), field.dataType
    if isinstance(kind, T.StringType | T.VarcharType | T.CharType):
        return F.translate(column, "\0", REPLACEMENT)
    if isinstance(kind, T.BinaryType):
        return F.concat(F.lit("\\x"), F.hex(column))
    if isinstance(kind, T.DateType):
        return F.unix_date(column)
    if isinstance(kind, T.TimestampType):
        return F.unix_micros(column)
    if isinstance(kind, T.DecimalType | T.TimestampNTZType):
        return column.cast("string")
    if isinstance(kind, T.ArrayType | T.MapType | T.StructType):
        return F.regexp_replace(F.to_json(column), _JSON_NUL, "$1" + REPLACEMENT)
    return column


# One batch in one transaction: copy it into a temporary table, move it into the target, and move the positions.

SHARD, OFFSET = "_shard", "_offset"
APPEND = """
INSERT INTO {table} ({columns}) SELECT {values} FROM weft_batch b WHERE NOT EXISTS (
  SELECT FROM {positions} p WHERE p.query = {query} AND p.target = {target}
  AND p.shard = b._shard AND p.next_offset > b._offset)"""
ADVANCE = """
INSERT INTO {positions} AS p (query, target, shard, next_offset)
SELECT {query}, {target}, _shard, max(_offset) + 1 FROM weft_batch GROUP BY _shard

ON CONFLICT (query, target, shard) DO UPDATE SET next_offset = greatest(p.next_offset, excluded.next_offset)"""
KEPT = """
SELECT shard, next_offset, chunk, footer_crc, source FROM {positions} WHERE query = {query} AND target = {target}"""
WITNESS = """
UPDATE {positions} SET source = {source}, chunk = {n}, footer_crc = {crc}

WHERE query = {query} AND target = {target} AND shard = {shard} AND next_offset = {end}"""
"""The chunk with the last record below the position, by which a log is recognised (``source.history``)."""
FORGET = "DELETE FROM {positions} WHERE target = {target}"
UPSERT = """
INSERT INTO {table} AS t ({columns}) SELECT DISTINCT ON ({keys}) {values} FROM weft_batch
ORDER BY {keys}{order} ON CONFLICT ({keys}) DO {replace}"""
"""In the order of the keys: two queries that lock the same rows in different orders would block each other."""
DELETE = """
DELETE FROM {table} t
USING (SELECT {first} AS first_at, {end} AS end_at FROM unnest({firsts}::bigint[], {ends}::bigint[]) AS u(a, b)) r

WHERE t.{column} >= r.first_at AND t.{column} < r.end_at AND (t.{newest_by} IS NULL OR t.{newest_by} <= {newest})

AND NOT EXISTS (SELECT FROM (SELECT {key_values} FROM weft_batch) b WHERE {same_keys})"""
"""Removal of rows in the ranges that the batch replaces, except those in the batch."""
_SAME, _SAME_OR_NULL = "b.{0} = t.{0}", "b.{0} IS NOT DISTINCT FROM t.{0}"
"""Equality of a key. Nulls are equal among keys; the time is never null, and PostgreSQL hashes only plain equality."""
SHARED = "SELECT {keys} FROM weft_batch GROUP BY {keys} HAVING count(*) > 1 LIMIT 1"
SHARED_BY_SHARDS = "SELECT {keys} FROM weft_batch GROUP BY {keys} HAVING count(DISTINCT _shard) > 1 LIMIT 1"
NULLS_NOT_DISTINCT = 150_000
"""First release of PostgreSQL whose unique indexes can treat nulls as equal."""
TAKES_NULLS = """
SELECT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = %s::regclass AND i.indisunique AND i.indnullsnotdistinct

AND i.indpred IS NULL AND i.indexprs IS NULL AND i.indnkeyatts = i.indnatts AND %s::text[] = (
  SELECT array_agg(a.attname::text COLLATE "C" ORDER BY a.attname::text COLLATE "C") FROM pg_attribute a
  WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)))"""
SLICE_ROWS = 16_384
"""Number of rows that are converted to text at once."""


class TargetTable(NamedTuple):
    """Target table of the rows, with its keys or the name of the positions."""

    table: tuple[str, ...]
    keys: tuple[str, ...]
    order_by: str | None
    name: str | None
    positions_table: str
    replaced: Replaced | None = None

    @property
    def positions(self) -> tuple[str, ...]:
        """Return the name of the table of positions, in the schema of the table."""
        return (*self.table[:-1], self.positions_table)


@dataclass(frozen=True)
class Batch:
    """The rows of a micro-batch, as ``as_copied`` made them."""

    target: TargetTable
    columns: Sequence[StagedColumn]
    rows: pa.Table
    log: FollowedLog | None = None
    """Log to compare the positions with."""
    is_first: bool = True
    """True for the first batch of a checkpoint."""

    def write(self, connection: Connection) -> int:
        """Write the rows within the connection's transaction, which the caller commits.

        Returns:
            The number of rows written to the table.

        Raises:
            SinkError: rows share their keys without an order; or the table of earlier batches is gone.
            psycopg.Error: PostgreSQL rejects a statement.
        """
        self._lock(connection, f"weft {'.'.join(self.target.table)} {self.target.name or ''}")
        self._make_tables(connection)
        self._copy(connection)
        if self.target.keys:
            self._check_null_keys(connection)
            return self._upsert(connection)
        return self._append(connection)

    def _lock(self, connection: Connection, name: str) -> None:
        """Wait until no other driver writes under this name: a driver that lost its cluster may still be running."""
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (name,))

    def _make_tables(self, connection: Connection) -> None:
        own = [f"{{}} {column.kind.stored}" for column in self.columns]
        names = [column.name for column in self.columns]
        key = f", {_unique(connection)} ({', '.join('{}' for _ in self.target.keys)})" if self.target.keys else ""
        is_new = self._make(connection, self.target.table, ", ".join(own) + key, [*names, *self.target.keys])
        if not self.target.keys:
            columns = "query text, target text, shard integer, next_offset bigint NOT NULL, source text, "
            columns += "chunk bigint, footer_crc bigint, "
            self._make(connection, self.target.positions, columns + "PRIMARY KEY (query, target, shard)", [])
            if is_new:
                # Positions of a table that was dropped: the new one has none of its rows.
                if not self.is_first and connection.execute(self._statement(KEPT)).fetchone() is not None:
                    raise self._gone(f"query {self.target.name}")
                connection.execute(self._statement(FORGET))
        elif is_new and self.target.replaced is not None and self.target.replaced.continues:
            raise self._gone("this query")

    def _gone(self, query: str) -> SinkError:
        """Return the error instead of a new table: an older one had rows, which the checkpoint never brings again."""
        return SinkError(
            f"table {'.'.join(self.target.table)} is gone, and {query} has written earlier batches into it. Put the "
            "table back; or move the query's checkpoint away, too, and the query makes the table again"
        )

    def _make(self, connection: Connection, table: tuple[str, ...], columns: str, names: Sequence[str]) -> bool:
        """Make a table unless it exists. Return whether it was made."""
        from psycopg import sql

        name = sql.Identifier(*table)
        if _is_there(connection, name):
            return False
        # Two transactions that make one table at once: the second would fail, IF NOT EXISTS or not.
        self._lock(connection, f"weft makes {'.'.join(table)}")
        if _is_there(connection, name):
            return False
        connection.execute(sql.SQL("CREATE TABLE {} (" + columns + ")").format(name, *map(sql.Identifier, names)))
        return True

    def _copy(self, connection: Connection) -> None:
        types = ", ".join(f"{{}} {column.kind.copied}" for column in self.columns)
        connection.execute(_sql(f"CREATE TEMPORARY TABLE weft_batch ({types}) ON COMMIT DROP", *self._names()))
        options = csv.WriteOptions(include_header=False)
        with connection.cursor().copy("COPY weft_batch FROM STDIN (FORMAT csv)") as copy:
            for part in self.rows.to_batches(SLICE_ROWS):
                text = io.BytesIO()
                # Arrow quotes every text and leaves nulls empty and unquoted, which is how COPY distinguishes "" and
                # NULL.
                csv.write_csv(part, text, options)
                copy.write(text.getbuffer())

    def _names(self) -> list[Any]:
        from psycopg.sql import Identifier

        return [Identifier(column.name) for column in self.columns]

    def _statement(self, text: LiteralString, **given: Any) -> Composed:
        """Return a statement with the names of this batch and the given values."""
        from psycopg import sql

        values = sql.SQL(", ").join(
            sql.SQL(column.kind.value).format(name) for column, name in zip(self.columns, self._names(), strict=True)
        )
        return sql.SQL(text).format(
            table=sql.Identifier(*self.target.table),
            positions=sql.Identifier(*self.target.positions),
            columns=sql.SQL(", ").join(self._names()),
            values=values,
            # Literals instead of parameters: a % in a column's name would be treated as a parameter.
            query=sql.Literal(self.target.name),
            target=sql.Literal(self.target.table[-1]),
            keys=sql.SQL(", ").join(map(sql.Identifier, self.target.keys)),
            order=self._order(),
            replace=self._replacement(),
            **{name: sql.Literal(value) for name, value in given.items()},
        )

    def _append(self, connection: Connection) -> int:
        if self.log is not None:
            self._compare(connection, self.log)
        inserted = connection.execute(self._statement(APPEND))
        connection.execute(self._statement(ADVANCE))
        if self.log is not None:
            self._keep_witnesses(connection, self.log)
        return inserted.rowcount

    def _compare(self, connection: Connection, log: FollowedLog) -> None:
        """Check that the positions are of the rows' own log."""
        found = connection.execute(self._statement(KEPT)).fetchall()
        others = {source for *_, source in found if source is not None} - {log.source}
        if others:
            raise SinkError(
                f"query {self.target.name}: the table has rows of {others.pop()} under this name, and the batch is of "
                f"{log.source} (hub/tenant/stream): their offsets mean different records. Give the sink another "
                "name, or another table"
            )
        try:
            log.check(
                {
                    shard: PersistedPosition(end, None if n is None or crc is None else Witness(n, crc))
                    for shard, end, n, crc, _ in found
                }
            )
        except WentBack as error:
            raise SinkError(
                f"the table has rows up to {error}: the hub's store was restored to an earlier state, and gives these "
                "offsets to other records. Rename the table and move the query's checkpoint away; the query makes both "
                "again from the log. Rows of lost records stay in the renamed table"
            ) from None

    def _keep_witnesses(self, connection: Connection, log: FollowedLog) -> None:
        ends = shard_ends(self.rows)
        witnesses = log.witnesses(ends)
        for shard, end in ends.items():
            n, crc, _ = witnesses.get(shard, (None, None, None))
            values = {"source": log.source, "n": n, "crc": crc, "shard": shard, "end": end}
            connection.execute(self._statement(WITNESS, **values))

    def _check_null_keys(self, connection: Connection) -> None:
        """Refuse a null in a key if the table treats nulls as different values: every repetition would add a row."""
        nulls = {name: count for name in self.target.keys if (count := self.rows.column(name).null_count)}
        if not nulls:
            return
        from psycopg import sql

        table = sql.Identifier(*self.target.table).as_string(connection)
        name, count = next(iter(nulls.items()))
        advice = (
            "PostgreSQL 15 and later can treat nulls as equal; with this one filter the rows out, or fill the column"
        )
        if connection.info.server_version >= NULLS_NOT_DISTINCT:
            found = connection.execute(TAKES_NULLS, (table, sorted(self.target.keys))).fetchone()
            if found == (True,):
                return
            columns = sql.SQL(", ").join(map(sql.Identifier, self.target.keys)).as_string(connection)
            index = f"CREATE UNIQUE INDEX ON {table} ({columns}) NULLS NOT DISTINCT"
            advice = f"make an index that treats them as equal: {index}"
        raise SinkError(
            f"column {name}, one of the keys, is null in {count} rows, and table {table} treats nulls as different "
            f"values; {advice}"
        )

    def _upsert(self, connection: Connection) -> int:
        self._check_newest(connection)
        written = connection.execute(self._statement(UPSERT)).rowcount
        if self.target.replaced is not None:
            self._remove(connection, self.target.replaced)
        return written

    def _remove(self, connection: Connection, replaced: Replaced) -> None:
        from psycopg import sql

        keys = [column for column in self.columns if column.name in self.target.keys]
        names = [sql.Identifier(column.name) for column in keys]
        values = [sql.SQL(column.kind.value).format(name) for column, name in zip(keys, names, strict=True)]
        statement = sql.SQL(DELETE).format(
            table=sql.Identifier(*self.target.table),
            first=sql.SQL(EPOCH).format(sql.SQL("u.a")),
            end=sql.SQL(EPOCH).format(sql.SQL("u.b")),
            firsts=sql.Literal([first for first, _ in replaced.ranges_us]),
            ends=sql.Literal([end for _, end in replaced.ranges_us]),
            column=sql.Identifier(replaced.column),
            newest_by=sql.Identifier(replaced.newest_by),
            newest=sql.Literal(replaced.newest),
            key_values=sql.SQL(", ").join(
                sql.SQL("{} AS {}").format(value, name) for value, name in zip(values, names, strict=True)
            ),
            same_keys=sql.SQL(" AND ").join(
                sql.SQL(_SAME if column.name == replaced.column else _SAME_OR_NULL).format(name)
                for column, name in zip(keys, names, strict=True)
            ),
        )
        connection.execute(statement)

    def _order(self) -> Composed:
        from psycopg import sql

        names = [self.target.order_by] if self.target.order_by else []
        names += [name for name in (OFFSET,) if name in {column.name for column in self.columns}]
        return sql.Composed([sql.SQL(", {} DESC NULLS LAST").format(sql.Identifier(name)) for name in names])

    def _replacement(self) -> Composed:
        from psycopg import sql

        others = [sql.Identifier(column.name) for column in self.columns if column.name not in self.target.keys]
        if not others:
            return sql.Composed([sql.SQL("NOTHING")])
        pairs = sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(name) for name in others)
        newer: Composed | sql.SQL = sql.SQL("")
        if self.target.order_by:
            name = sql.Identifier(self.target.order_by)
            newer = sql.SQL(" WHERE t.{0} IS NULL OR excluded.{0} >= t.{0}").format(name)
        return sql.SQL("UPDATE SET {}{}").format(pairs, newer)

    def _check_newest(self, connection: Connection) -> None:
        """Refuse rows with shared keys and no order: the choice among them would be random."""
        if self.target.order_by:
            return
        is_ordered = {SHARD, OFFSET} <= {column.name for column in self.columns}
        found = connection.execute(self._statement(SHARED_BY_SHARDS if is_ordered else SHARED)).fetchone()
        if found is not None:
            named = ", ".join(f"{key}={value!r}" for key, value in zip(self.target.keys, found, strict=True))
            raise SinkError(f"rows of one batch share the keys {named}, and nothing orders them: set order_by")


def shard_ends(rows: pa.Table) -> dict[int, int]:
    """Return the offset after the last row, by shard."""
    found = rows.group_by(SHARD).aggregate([(OFFSET, "max")])
    return {row[SHARD]: row[f"{OFFSET}_max"] + 1 for row in found.to_pylist()}


def shard_starts(rows: pa.Table) -> dict[int, int]:
    """Return the offset of the first row, by shard."""
    found = rows.group_by(SHARD).aggregate([(OFFSET, "min")])
    return {row[SHARD]: row[f"{OFFSET}_min"] for row in found.to_pylist()}


def _unique(connection: Connection) -> LiteralString:
    """Return the constraint of keys: a primary key would reject nulls, which keys of a window may be."""
    is_new = connection.info.server_version >= NULLS_NOT_DISTINCT
    return "UNIQUE NULLS NOT DISTINCT" if is_new else "PRIMARY KEY"


def _is_there(connection: Connection, name: Identifier) -> bool:
    return connection.execute("SELECT to_regclass(%s)", (name.as_string(connection),)).fetchone() != (None,)


def _sql(text: str, *names: Any) -> Composed:
    from psycopg import sql

    return sql.SQL(text).format(*names)


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
                raise SinkError(f"table: PostgreSQL names have 1 to {NAME_BYTES_MAX} bytes; got {name!r}")
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
                f"keys=[{replaced.column!r}, ...]"
            )
        if self.order_by not in (None, replaced.newest_by):
            raise SinkError(f"order_by: expected {replaced.newest_by}, or nothing; got {self.order_by}")
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
        order_by = self.order_by if replaced is None else replaced.newest_by
        target = TargetTable(table, keys, order_by, self.name, self.positions_table, replaced)
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
