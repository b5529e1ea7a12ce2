"""Rows chosen by values of their columns, or of fields of their payloads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weft.cloud_hub.declared.table_keys import wrong_part
from weft.cloud_hub.tables.keys import field_text, json_value
from weft.cloud_hub.tables.newest import Mask
from weft.storage.table.errors import TableError

_PAYLOAD = "payload."


class Choice:
    """Rows that have all of some values.

    Args:
        conditions: (name, value): a column, or ``payload.`` with a path, and the text of its value.

    Raises:
        ValueError: a name cannot be one.
    """

    def __init__(self, conditions: Sequence[tuple[str, str]]) -> None:
        if (wrong := wrong_part([name for name, _ in conditions], "choice")) is not None:
            raise ValueError(wrong)
        self._conditions = tuple(conditions)

    @property
    def text(self) -> str:
        """Return the names, without the values: a record of an erasure must not keep what it erased."""
        return ", ".join(f"by {name}" for name, _ in self._conditions)

    def check(self, columns: Sequence[tuple[str, Any]], table: str) -> None:
        """Check that rows of a table can be chosen.

        Args:
            columns: (name, Delta type) of the table's columns.
            table: name of the table.

        Raises:
            TableError: it lacks a column, or a column is not text.
        """
        types = dict(columns)
        for name, _ in self._conditions:
            if not name.startswith(_PAYLOAD) and types.get(name, "string") != "string":
                raise TableError(
                    f"column {name} of {table} is not text. Choose by the field of the payloads that it is made of, "
                    f"such as `payload.{name}`, or by another column"
                )
            if not name.startswith(_PAYLOAD) and name not in types:
                raise TableError(
                    f"{table}: the table has no column {name}; it has {', '.join(types)}. Typed columns are in the "
                    "table of all rows alone: choose by the field of the payloads, such as "
                    f"`payload.{name}`, or by another column"
                )

    def columns(self) -> list[str]:
        """Return the columns that are needed of a table."""
        fields = any(name.startswith(_PAYLOAD) for name, _ in self._conditions)
        wanted = [name for name, _ in self._conditions if not name.startswith(_PAYLOAD)]
        return [*wanted, *(["payload"] if fields else [])]

    def of(self, rows: pa.Table | pa.RecordBatch) -> Mask:
        """Return which rows are chosen. Blocks."""
        found: Mask = np.ones(rows.num_rows, np.bool_)
        for name, value in self._conditions:
            if not name.startswith(_PAYLOAD):
                equal = pc.fill_null(pc.equal(rows.column(name), value), fill_value=False)
                found &= equal.to_numpy(zero_copy_only=False)
        fields = [(name.split(".")[1:], value) for name, value in self._conditions if name.startswith(_PAYLOAD)]
        if fields and found.any():
            # Of the other rows no payload is decoded.
            numbers = np.flatnonzero(found)
            for number, payload in zip(numbers, rows.column("payload").take(numbers).to_pylist(), strict=True):
                told = json_value(payload)
                found[number] = all(field_text(told, path) == value for path, value in fields)
        return found
