"""One batch in one transaction: copy it into a temporary table, move it into the target, and move the positions."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, LiteralString, NamedTuple

import pyarrow as pa
from pyarrow import csv

from spark_sinks.errors import SinkError
from spark_sinks.replaced import Replaced
from spark_sinks.sinks.followed_log import FollowedLog
from spark_sinks.sinks.jdbc.columns import EPOCH, StagedColumn
from spark_sinks.source.history import KeptPosition, WentBack, Witness

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.sql import Composed, Identifier

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
    """The rows of a micro-batch, as ``columns.as_copied`` made them."""

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
            log.check({
                shard: KeptPosition(end, None if n is None or crc is None else Witness(n, crc))
                for shard, end, n, crc, _ in found
            })  # fmt: skip
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
            "PostgreSQL 15 and later can take nulls for equal; with this one filter the rows out, or fill the column"
        )
        if connection.info.server_version >= NULLS_NOT_DISTINCT:
            found = connection.execute(TAKES_NULLS, (table, sorted(self.target.keys))).fetchone()
            if found == (True,):
                return
            columns = sql.SQL(", ").join(map(sql.Identifier, self.target.keys)).as_string(connection)
            index = f"CREATE UNIQUE INDEX ON {table} ({columns}) NULLS NOT DISTINCT"
            advice = f"make an index that takes them for equal: {index}"
        raise SinkError(
            f"column {name}, one of the keys, is null in {count} rows, and table {table} takes nulls for different "
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
            raise SinkError(
                f"rows of one batch share the keys {named}, and nothing says which is the newest: give order_by"
            )


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
