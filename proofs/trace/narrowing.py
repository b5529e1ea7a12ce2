"""Conditions by which a range of records is narrowed to a row's inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

WINDOW = "window"
_NEVER_LEVELS = ("payload",)


class Narrowing(NamedTuple):
    """The part of a row that its records agree with: topic levels and keys of the same name, and its window."""

    texts: Mapping[str, str]
    window: tuple[datetime, datetime] | None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Narrowing:
        """Return the narrowing by a row. Its window is a column ``window`` with start and end, as Spark makes it, or
        the columns ``window_start`` and ``window_end``."""
        texts = {
            name: value
            for name, value in row.items()
            if isinstance(value, str) and name not in _NEVER_LEVELS and (not name.startswith("_") or name == "_key")
        }
        return cls(texts, _window(row))

    def expression(self, columns: Iterable[str]) -> tuple[pc.Expression | None, list[str]]:
        """Return the condition on records with these columns, and the names that it uses; None if it uses none."""
        spelled = {name.casefold(): name for name in columns}
        conditions, names = [], []
        for name, value in self.texts.items():
            if (column := spelled.get(name.casefold())) is not None:
                conditions.append(pc.field(column) == value)
                names.append(name)
        if self.window is not None:
            start, end = (pa.scalar(moment, pa.timestamp("us", tz="UTC")) for moment in self.window)
            conditions.append((pc.field("_time") >= start) & (pc.field("_time") < end))
            names.append(WINDOW)
        whole = None
        for condition in conditions:
            whole = condition if whole is None else whole & condition
        return whole, names


NOTHING = Narrowing({}, None)


def _window(row: Mapping[str, Any]) -> tuple[datetime, datetime] | None:
    window = row.get(WINDOW)
    if isinstance(window, Mapping):
        start, end = _moment(window.get("start")), _moment(window.get("end"))
    else:
        start, end = _moment(row.get("window_start")), _moment(row.get("window_end"))
    return None if start is None or end is None else (start, end)


def _moment(value: object) -> datetime | None:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if not isinstance(value, datetime):
        return None
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)
