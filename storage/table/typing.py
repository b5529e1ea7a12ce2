"""The typed columns of one table: those that its stream's schema asks for, in the version that this process knows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from weft.storage.table.schemas import StreamSchema
from weft.storage.table.typed_columns import COLUMNS_MAX, DeltaField, arrow_fields, assign
from weft.storage.table.typed_rows import TypedRows

_logger = logging.getLogger(__name__)


class Typing:
    """The typed columns of a table.

    Processes learn of a version within seconds of each other. Each makes its rows by the version that it knows and
    writes that version beside them, so rows are right in any order; columns are only ever added.

    Args:
        key: name of the table, for the log.
        schema: returns the declared schema of the stream, as this process knows it.
    """

    def __init__(self, key: str, schema: Callable[[], StreamSchema | None]) -> None:
        self._key, self._schema = key, schema
        self._warned = 0
        """Version about which there was a warning."""
        self.rows: TypedRows | None = None
        """Maker of the typed columns, after ``grown``; None without a schema."""

    def grown(self, fields: Sequence[DeltaField]) -> list[dict[str, Any]] | None:
        """Take up the schema as it is known now. Return the columns that a table with ``fields`` has to have for it;
        None if these do."""
        declared = self._schema()
        if declared is None:
            self.rows = None
            return None
        assigned = assign(fields, declared)
        if assigned.left_out and self._warned != declared.version:
            self._warned = declared.version
            _logger.warning(
                "%s has %d typed columns, its limit; fields without a column: %s. For other columns, move the table "
                "away: the hub makes it again from the log", self._key, COLUMNS_MAX, ", ".join(assigned.left_out[:20]),
            )  # fmt: skip
        if self.rows is None or not self.rows.is_of(declared.version, assigned.columns):
            self.rows = TypedRows(declared.version, declared.schema, assigned.columns)
        return assigned.fields

    def created(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of a new table: those of ``schema``, and the typed ones."""
        declared = self._schema()
        if declared is None:
            return schema
        names = [{"name": name, "type": "other", "metadata": {}} for name in schema.names]
        wanted: Sequence[Mapping[str, Any]] = assign(names, declared).fields or []
        for field in arrow_fields(wanted):
            schema = schema.append(field)
        return schema
