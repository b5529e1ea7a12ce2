"""Keys of latest tables: the columns, or fields of payloads, whose values a row is the newest of."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weft.cloud_hub.declared.table_keys import wrong_part
from weft.storage.table.errors import TableError

KEY_PROPERTY = "weft.latest.key"
"""Property of a latest table: the parts of its key, as a list in JSON."""
_PAYLOAD = "payload."
_DECODER = msgspec.json.Decoder()


class Key:
    """The key of a latest table.

    Args:
        parts: ``_key``, ``_edge``, ``_log``, names of topic levels, and ``payload.`` with a path, as ``wrong_part``
            allows.
    """

    def __init__(self, parts: Sequence[str]) -> None:
        if (wrong := wrong_part(parts)) is not None:
            raise ValueError(wrong)
        self.text = msgspec.json.encode(list(parts)).decode()
        """The parts as the table's property has them."""
        self._paths = {
            f"_by_{part.removeprefix(_PAYLOAD).replace('.', '_')}": part.split(".")[1:]
            for part in parts
            if part.startswith(_PAYLOAD)
        }
        made = iter(self._paths)
        self.columns = [next(made) if part.startswith(_PAYLOAD) else part for part in parts]
        """Columns of the table with the key's values."""

    @property
    def made(self) -> list[str]:
        """Return the columns that the table has for fields of payloads."""
        return list(self._paths)

    def check(self, columns: Collection[str], table: str) -> None:
        """Check that a table has the columns of the key.

        Raises:
            TableError: it lacks one, as before an edge has declared a topic level.
        """
        if lacking := [name for name in self.columns if name not in columns]:
            raise TableError(
                f"{table} is to have the newest rows by {', '.join(lacking)}, and no edge names such a topic level. "
                "Streams of edges declare topic levels, as in `plant/{machine}/telemetry`"
            )

    def filled(self, rows: pa.Table) -> pa.Table:
        """Return rows with the columns that are made of payloads."""
        if not self._paths:
            return rows
        payloads = rows.column("payload").to_pylist()
        values = [*zip(*(self._values(each) for each in payloads), strict=True)] or [()] * len(self._paths)
        for name, column in zip(self._paths, values, strict=True):
            rows = rows.set_column(rows.schema.get_field_index(name), name, pa.array(column, pa.string()))
        return rows

    def _values(self, payload: str | bytes | None) -> list[str | None]:
        value = json_value(payload)
        return [field_text(value, path) for path in self._paths.values()]

    def is_complete(self, rows: pa.Table) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return for each row whether it has all values of the key."""
        found = np.ones(rows.num_rows, np.bool_)
        for name in self.columns:
            found &= pc.is_valid(rows.column(name)).to_numpy()
        return found


def json_value(payload: str | bytes | None) -> Any:
    """Return the value of a payload in JSON; None if it is none."""
    try:
        return None if payload is None else _DECODER.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def field_text(value: Any, path: Sequence[str]) -> str | None:
    """Return a field of a payload as text: strings as they are, numbers and truth values as JSON has them."""
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return None
        value = value[name]
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode() if isinstance(value, bool | int | float) else None
