"""Columns of rows and of their table: matching types, added columns, and statistics."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import StructType

from spark_sinks.errors import SinkError

STATISTICS_PROPERTY = "delta.dataSkippingStatsColumns"
COUNT_PROPERTY = "delta.dataSkippingNumIndexedCols"
STATISTICS_MAX = 32
"""Maximum number of columns with bounds; Delta's own default."""
_FORBIDDEN = re.compile(r"[ ,;{}()\n\t=]")
"""Characters that column names of a Delta table cannot have (PROTOCOL.md, "Column Mapping")."""
_SIMPLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WIDENING = ("tinyint", "smallint", "int", "bigint")
_PARTITIONING = ("string", "boolean", "date", *_WIDENING)
_BOUNDED = ("string", "date", "timestamp", *_WIDENING)
"""Types whose bounds are exact. A NaN is above every bound of a float, so floats have none."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Columns of a table and of its files."""

    schema: pa.Schema
    """All columns of the table, in its order."""
    partition_by: tuple[str, ...]
    statistics: tuple[str, ...]
    """Columns with bounds in every file. deltalake's dataset loses rows of a file that lacks bounds which other files
    have."""

    @property
    def in_files(self) -> pa.Schema:
        """Return the columns in the Parquet files."""
        return pa.schema([field for field in self.schema if field.name not in self.partition_by])

    def aligned(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with the table's columns; missing ones are null, as are empty texts of partitions."""
        index = {name: at for at, name in enumerate(batch.schema.names)}
        columns = []
        for field in self.schema:
            at = index.get(field.name)
            if at is None:
                columns.append(pa.nulls(batch.num_rows, field.type))
            else:
                column = batch.column(at).cast(field.type)
                if field.name in self.partition_by and pa.types.is_string(field.type):
                    # The table's log has no empty text: it reads as null. A key must be equal to the value that is read
                    # back.
                    column = pc.if_else(pc.equal(column, ""), None, column)
                columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def arrow_columns(schema: StructType) -> pa.Schema:
    """Return a frame's columns as columns of a table.

    Raises:
        SinkError: a name or type is not possible in a Delta table.
    """
    seen: dict[str, str] = {}
    for field in schema.fields:
        if _FORBIDDEN.search(field.name) or not field.name:
            raise SinkError(f"column {field.name!r}: Delta allows none of space , ; {{ }} ( ) = in names; rename it")
        if field.dataType.simpleString() == "void":
            raise SinkError(f"column {field.name}: it is null without a type; cast it, for example to string")
        other = seen.setdefault(field.name.casefold(), field.name)
        if other is not field.name:
            raise SinkError(f"columns {other} and {field.name}: Delta takes them for one name; rename one")
    try:
        return pa.schema([_nullable(field) for field in to_arrow_schema(schema, timezone="UTC")])
    except (PySparkException, pa.ArrowException) as error:
        raise SinkError(f"the rows have a type that no Delta table has: {error}") from error


def _nullable(field: pa.Field) -> pa.Field:
    return pa.field(field.name, field.type, nullable=True)


def type_name(kind: pa.DataType) -> str:
    """Return a type by Spark's name, which does not depend on Arrow's names for the parts of lists and maps."""
    return str(from_arrow_type(kind).simpleString())


def new_layout(rows: pa.Schema, partition_by: Sequence[str]) -> Layout:
    """Return the layout of a table made for these rows.

    Raises:
        SinkError: they cannot be partitioned like that.
    """
    check_partitioning(rows, partition_by)
    names = [
        field.name
        for field in rows
        if type_name(field.type) in _BOUNDED and _SIMPLE.fullmatch(field.name) and field.name not in partition_by
    ]
    return Layout(rows, tuple(partition_by), tuple(names[:STATISTICS_MAX]))


def check_partitioning(rows: pa.Schema, partition_by: Sequence[str]) -> None:
    """Check the columns by which a table is partitioned.

    Raises:
        SinkError: there is no such column, its type is not possible, or no column is left for the files.
    """
    for name in partition_by:
        if name not in rows.names:
            raise SinkError(f"partition_by: the rows have no column {name}; they have {', '.join(rows.names)}")
        if (kind := type_name(rows.field(name).type)) not in _PARTITIONING:
            raise SinkError(f"partition_by: {name} is a {kind}; partition by text, whole numbers, dates or booleans")
    if len(partition_by) >= len(rows):
        raise SinkError("partition_by: it names every column; leave at least one for the files")


def properties_of(layout: Layout) -> dict[str, str]:
    """Return the properties of a new table."""
    if layout.statistics:
        return {STATISTICS_PROPERTY: ",".join(layout.statistics)}
    return {COUNT_PROPERTY: "0"}


def table_layout(table: pa.Schema, partition_by: Iterable[str], properties: Mapping[str, str]) -> Layout:
    """Return the layout of an existing table."""
    names = [name.strip() for name in properties.get(STATISTICS_PROPERTY, "").split(",") if name.strip()]
    # Bounds in some files only are worse than none: see Layout.statistics. Without the property, another engine chose
    # the columns.
    known = all(name in table.names and type_name(table.field(name).type) in _BOUNDED for name in names)
    schema = pa.schema([_nullable(field) for field in table])
    return Layout(schema, tuple(partition_by), tuple(names) if known else ())


def missing_columns(table: pa.Schema, rows: pa.Schema) -> list[pa.Field]:
    """Return the columns of rows that a table lacks.

    Raises:
        SinkError: the table's column cannot hold the type of a column.
    """
    known = {field.name.casefold(): field for field in table}
    for field in rows:
        held = known.get(field.name.casefold(), field)
        if held.name != field.name:
            raise SinkError(f"column {field.name}: the table has it as {held.name}; rename the column of the rows")
        if not _fits(type_name(field.type), type_name(held.type)):
            raise SinkError(
                f"column {field.name} is {type_name(field.type)} in the rows and {type_name(held.type)} in the table: "
                "cast it, give it another name, or write another table"
            )
    return [field for field in rows if field.name.casefold() not in known]


def _fits(given: str, held: str) -> bool:
    """Return whether the held type has every value of the given one."""
    if given in _WIDENING and held in _WIDENING:
        return _WIDENING.index(given) <= _WIDENING.index(held)
    return given == held or (given, held) == ("float", "double")
