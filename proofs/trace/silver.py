"""Rows of a Delta table to trace, chosen by a condition in SQL."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError, TableNotFoundError

from weft.proofs.trace.errors import TraceError
from weft.storage.table.delta.calls import guarded
from weft.storage.table.errors import TableError

_INNER = "weft_rows"
"""Name of the table in the query; users neither write nor see it."""


def rows_where(uri: str, where: str, rows_max: int) -> list[dict[str, Any]]:
    """Return rows of a table, at most ``rows_max`` + 1 of them. Blocks.

    Args:
        uri: the table's folder, or its URI; keys for an object store come from the environment.
        where: a condition, such as ``machine = 'm1'``, in the SQL of DataFusion.

    Raises:
        TraceError: there is no such table, or the condition is not valid.
        TableError: the table cannot be read.
    """
    try:
        table = guarded(lambda: DeltaTable(uri))
    except TableError as error:
        if isinstance(error.__cause__, TableNotFoundError):
            raise TraceError(f"{uri} is no Delta table") from None
        raise
    try:
        query = QueryBuilder().register(_INNER, table)
        # The condition is on lines of its own: a comment at its end would otherwise hide the limit.
        found = query.execute(f"SELECT * FROM {_INNER} WHERE (\n{where}\n) LIMIT {rows_max + 1}")  # noqa: S608
        rows: list[dict[str, Any]] = pa.table(found.read_all()).to_pylist()
    except DeltaError as error:
        told = " ".join(str(error).split()).replace(f"{_INNER}.", "")[:400]
        raise TraceError(f"the condition {where!r} cannot be used: {told}") from None
    return rows
