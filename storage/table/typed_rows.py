"""Values of typed columns from payloads, by one version of a stream's schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from weft.config.payload_schema.model import PayloadSchema
from weft.storage.payloads.decoder import MISFIT_COLUMN, PayloadDecoder
from weft.storage.table.typed_columns import SCHEMA_COLUMN, typed_part

ROWS_MAX = 16 << 10
"""Rows of a record batch with typed columns: where no payload fits, a row takes 16 us, and the table step looks at the
clock between two batches."""


class TypedRows:
    """The typed columns of rows that one process makes: always those of the version that it knows.

    Args:
        version: version of the schema.
        columns: field -> column of the table.
    """

    def __init__(self, version: int, schema: PayloadSchema, columns: Mapping[str, str]) -> None:
        self.version, self.schema = version, schema
        self.columns = dict(columns)
        self._decoder: PayloadDecoder | None = None

    def __reduce__(self) -> tuple[type[TypedRows], tuple[int, PayloadSchema, dict[str, str]]]:
        """Return what makes it again elsewhere, such as in a task of Spark."""
        return TypedRows, (self.version, self.schema, self.columns)

    def is_of(self, version: int, columns: Mapping[str, str]) -> bool:
        """Return whether these are the columns of a version."""
        return (self.version, self.columns) == (version, columns)

    def arrays(self, payloads: pa.Array) -> dict[str, pa.Array]:
        """Return the columns of payloads, by the names of the table.

        Args:
            payloads: binary, without nulls.
        """
        if self._decoder is None:
            self._decoder = PayloadDecoder(self.schema, [*self.columns, MISFIT_COLUMN])
        made = self._decoder.columns(payloads)
        found = {column: made[field] for field, column in self.columns.items()}
        versions = pa.array(np.full(len(payloads), self.version, np.int64))
        return found | {MISFIT_COLUMN: made[MISFIT_COLUMN], SCHEMA_COLUMN: versions}


class TypedPart(NamedTuple):
    """The typed columns of a table's rows."""

    fields: Sequence[pa.Field]
    """All that the table has, those of ``OWN_COLUMNS`` included."""
    rows: TypedRows | None
    """Maker of those of one version; the others are null, and all of them without one."""

    @classmethod
    def of(cls, schema: pa.Schema, rows: TypedRows | None) -> TypedPart | None:
        """Return the typed columns of a schema of rows; None if it has none."""
        fields = typed_part(schema)
        return cls(fields, rows) if fields else None
