"""Queries in SQL over tables of streams (docs/how-to/ask-in-sql.md), by DuckDB.

A hub runs each query in a process of its own, ``python -m weft.cloud_hub.reads.sql``: it can be killed, its memory is
the system's to bound, and its work takes nothing from the event loop on which edges are acknowledged. The text of a
query reaches the tables that it is given, and neither files nor the network.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import sys
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from weft.hub_api.answers import ApiError
from weft.hub_api.records import SqlAnswer, SqlColumn, SqlTable
from weft.storage.table.actions import READABLE_FEATURES, TableError

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

STREAMS, LATEST, OWN = "streams", "latest", "weft"
"""Schemas: the tables of streams, their latest tables, and what the hub knows of them."""
COMPLETENESS = "completeness"
TABLES_MAX = 16
"""Maximum number of tables of a query: each is opened with its list of files."""
BATCH_ROWS = 256
"""Number of rows that are encoded at a time."""
ERROR_CHARACTERS = 1_000
"""Longest text of an error: a query may make one of any length."""
OUTSIDE_BYTES = 512 << 20
"""Memory of the process beside what a query may take: that of its libraries, and of lists of files."""
END_S = 5.0
"""Processor time beside the longest time of a query, after which the system ends the process."""
NICENESS = 10
"""Niceness beside the hub's: where both want a core, the hub has nine tenths of it."""
FIRST_TO_END = b"1000"
"""Score by which Linux ends the process before all others when memory is short."""
WORKER = "weft.cloud_hub.reads.sql"


class TablePlace(msgspec.Struct, frozen=True):
    """A table that a query may name."""

    uri: str
    options: dict[str, str]


class StreamMoment(msgspec.Struct, frozen=True):
    """A row of ``weft.completeness``."""

    stream: str
    complete_up_to: datetime | None
    lag_records: int | None


class SqlTask(msgspec.Struct, frozen=True, kw_only=True):
    """A query and all that it may reach."""

    query: str
    tables: Mapping[str, TablePlace]
    """``SCHEMA.STREAM`` -> table."""
    streams: Sequence[StreamMoment] = ()
    rows_max: int
    bytes_max: int
    """Longest answer."""
    memory_bytes: int
    """Memory of DuckDB."""
    seconds: float = 0.0
    """Longest time of a process."""


class Outcome(msgspec.Struct, frozen=True):
    """First line of what the process writes: the size of the answer behind it, or a refusal (``status``)."""

    size: int = 0
    status: int = 0
    error: str = ""
    advice: str = ""
    why: str = ""
    """Cause that is the operator's business."""


_NAMES = re.compile(r'"([^"]+)"|([a-z0-9_]+)')


def possible_names(query: str) -> set[str]:
    """Return the words of a query that may name tables."""
    return {quoted or plain for quoted, plain in _NAMES.findall(query.lower())}


# The process of one query.


def answer(task: SqlTask) -> SqlAnswer:
    """Return the answer of a query. Blocks.

    Raises:
        ApiError: 400: the query cannot be answered; 413: it needs too much memory; 503: a table cannot be read.
        ImportError: DuckDB is not installed.
    """
    import duckdb

    connection = duckdb.connect(
        ":memory:",
        config={
            "enable_external_access": "false",
            "python_enable_replacements": "false",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "memory_limit": f"{task.memory_bytes}B",
            "temp_directory": "",
            "threads": "1",
        },
    )
    try:
        with contextlib.closing(connection):
            _check(connection, task.query)
            named = [each for each in _named(connection, task.query) if each in task.tables]
            if len(named) > TABLES_MAX:
                raise ApiError(400, f"the query names {len(named)} tables", f"name at most {TABLES_MAX}")
            read = _registered(connection, task, named)
            connection.execute("SET TimeZone = 'UTC'; SET schema = 'streams'; SET lock_configuration = true")
            return _answered(connection.sql(task.query), read, task)
    except (duckdb.OutOfMemoryException, MemoryError):
        raise _too_much(task) from None
    except duckdb.CatalogException as error:
        advice = "`weft streams` lists streams; the table of a new one takes a table step"
        raise ApiError(400, str(error).partition("\n")[0][:ERROR_CHARACTERS], advice) from None
    except (duckdb.Error, msgspec.DecodeError, RecursionError, OSError) as error:  # the last: from within Arrow
        text = str(error).strip()
        if _OF_MEMORY.search(text):
            raise _too_much(task) from None
        if _OF_FILES.search(text):
            raise TableError(text) from None
        raise ApiError(400, text[:ERROR_CHARACTERS], "see docs/how-to/ask-in-sql.md") from None


_OF_MEMORY = re.compile(r"Out of Memory Error|bad_alloc|malloc of size|realloc of size")
_OF_FILES = re.compile(r"registered as '_\d|get_next failed|get_schema failed|Parquet")
"""Errors of reading the files of a table, which say where these are."""


def _too_much(task: SqlTask) -> ApiError:
    error = f"the query needs more memory than {task.memory_bytes >> 20} MiB"
    return ApiError(413, error, "ask for fewer columns or groups, or read the table with an engine")


def _check(connection: duckdb.DuckDBPyConnection, query: str) -> None:
    import duckdb

    statements = connection.extract_statements(query)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise ApiError(400, "this is not one SELECT", "ask with one statement: SELECT, WITH ... SELECT or DESCRIBE")


def _named(connection: duckdb.DuckDBPyConnection, query: str) -> list[str]:
    """Return the tables that a query names, as ``SCHEMA.STREAM``; names of its own, after WITH, are among them."""
    # Not get_table_names, which binds columns, too, and so needs the tables.
    ((text,),) = connection.execute("SELECT json_serialize_sql($1)", [query]).fetchall()
    found, waiting = dict[str, None](), [msgspec.json.decode(text)]
    while waiting:
        match waiting.pop():
            case dict(node):
                if node.get("type") == "BASE_TABLE":
                    found[f"{node['schema_name'] or STREAMS}.{node['table_name']}".lower()] = None
                waiting += node.values()
            case list(nodes):
                waiting += nodes
    return [*found]


def _registered(connection: duckdb.DuckDBPyConnection, task: SqlTask, named: Sequence[str]) -> list[SqlTable]:
    """Let a connection have tables by their names. Return them."""
    for schema in (STREAMS, LATEST, OWN):
        connection.execute(f"CREATE SCHEMA {schema}")
    read = list[SqlTable]()
    for number, name in enumerate(named):
        schema, _, table = name.partition(".")
        if (opened := _opened(name, task.tables[name])) is None:
            continue
        dataset, version = opened
        connection.register(f"_{number}", dataset)
        connection.execute(f'CREATE VIEW {schema}."{table}" AS FROM temp._{number}')
        read.append(SqlTable(name=name, version=version))
    connection.register("_streams", _moments(task.streams))
    connection.execute(f"CREATE VIEW {OWN}.{COMPLETENESS} AS FROM temp._streams")
    return read


def _opened(name: str, place: TablePlace) -> tuple[Any, int] | None:
    """Return a table for DuckDB, and its version; None if there is none."""
    from weft.storage.table.delta import guarded, open_table

    table = guarded(partial(open_table, place.uri, place.options))
    if table is None:
        return None
    if features := set(table.protocol().reader_features or ()) - READABLE_FEATURES:
        raise ApiError(400, f"the table {name} uses {', '.join(sorted(features))}", "read it with an engine")
    return guarded(table.to_pyarrow_dataset), table.version()


def _moments(streams: Sequence[StreamMoment]) -> pa.Table:
    import pyarrow as pa

    schema = pa.schema(
        [("stream", pa.string()), ("complete_up_to", pa.timestamp("us", "UTC")), ("lag_records", pa.int64())]
    )
    return pa.Table.from_pylist([msgspec.structs.asdict(each) for each in streams], schema=schema)


def _answered(result: duckdb.DuckDBPyRelation, read: list[SqlTable], task: SqlTask) -> SqlAnswer:
    columns = [SqlColumn(name=name, type=str(type_)) for name, type_ in zip(result.columns, result.types, strict=True)]
    rows, size, is_whole = list[list[Any]](), len(msgspec.json.encode(columns)), True
    if size > task.bytes_max:
        raise ApiError(400, f"the columns of the answer have {size} bytes of names and types", "ask for fewer columns")
    for batch in result.to_arrow_reader(BATCH_ROWS):
        values = (_values(name, column) for name, column in zip(result.columns, batch.columns, strict=True))
        for row in zip(*values, strict=True):
            size += len(encoded(row)) + 1
            if len(rows) == task.rows_max or size > task.bytes_max:
                is_whole = False
                break
            rows.append([*row])
        if not is_whole:
            break
    return SqlAnswer(columns=columns, rows=rows, is_whole=is_whole, tables=read)


def encoded(value: Any) -> bytes:
    """Return a value of an answer as JSON."""
    return msgspec.json.encode(value, enc_hook=_text)


def _text(value: Any) -> str:
    """Return a value that JSON lacks, such as a time in nanoseconds, which pandas has a type for."""
    return str(value.isoformat() if hasattr(value, "isoformat") else value)


def _values(name: str, column: pa.Array) -> list[Any]:
    """Return values that JSON has. Sums of whole numbers are decimals in Arrow."""
    import pyarrow as pa

    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError):  # Arrow and SQL have more times than Python: infinity, and years beyond 9999
        error = f"the column {name[:80]!r} has a time that is not in the years 1 to 9999"
        raise ApiError(400, error, "leave such rows out, or ask for its text: CAST(... AS VARCHAR)") from None
    if pa.types.is_decimal(column.type) and column.type.scale == 0:
        return [None if each is None else int(each) for each in values]
    return values


def main() -> None:
    """Answer the query on standard input, and end when the hub does."""
    task = msgspec.json.decode(sys.stdin.buffer.readline(), type=SqlTask)
    _be_least(task)
    threading.Thread(target=_end_with_hub, daemon=True).start()
    data = b""
    try:
        data = encoded(answer(task))
        outcome = Outcome(len(data))
    except ApiError as error:
        outcome = Outcome(0, error.status, error.error, error.advice)
    except TableError as error:
        outcome = Outcome(0, 503, "a table cannot be read at present", "try again later", str(error)[:ERROR_CHARACTERS])
    except ImportError:
        outcome = Outcome(0, 503, "DuckDB is not installed at the hub", "install its extra `sql` there")
    except MemoryError:
        raise  # what is left is too little to say so
    except Exception as error:
        why = f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS]
        outcome = Outcome(0, 500, "the query failed by a fault of the hub", "report it, with the query", why)
    sys.stdout.buffer.write(msgspec.json.encode(outcome) + b"\n" + data)
    sys.stdout.buffer.flush()
    os._exit(0)  # not by the libraries' threads


def _be_least(task: SqlTask) -> None:
    """Take processor time and memory after all others, and no more than a query may have."""
    os.nice(NICENESS)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "wb") as score:
        score.write(FIRST_TO_END)
    seconds, size = int(task.seconds + END_S), task.memory_bytes + OUTSIDE_BYTES
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_DATA, (size, size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _end_with_hub() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    main()
