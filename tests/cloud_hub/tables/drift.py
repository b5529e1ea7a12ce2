"""Twelve kinds of drift in payloads, as devices send them, and what their typed columns have to show."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, date, datetime
from typing import Any, NamedTuple

from weft.config.load import parse_schema
from weft.storage.table.schemas import StreamSchema

SCHEMA = StreamSchema(
    7,
    parse_schema(
        """\
fields:
  t: {type: float, unit: °C}
  n: int
  state: string
  at: timestamp
  at_ms: timestamp(ms)
  levels: array<float>
  rpm: {type: int, from: motor.rpm}
  id: {type: string, required: true}
  day: date
  local: local_timestamp
"""
    ),
)
COLUMNS = tuple(SCHEMA.schema.fields)
NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)


class Drift(NamedTuple):
    """A payload, and what it becomes."""

    kind: str
    payload: str
    shows: Any
    """Values of the typed columns that are not null. None where the payload is not JSON."""
    misfits: tuple[str, ...] = ()
    """Fields that `_misfit` names."""


def _with(kind: str, member: str, shows: dict[str, Any], *misfits: str) -> Drift:
    return Drift(kind, f'{{"id": "p1", {member}}}', {"id": "p1"} | shows, misfits)


DRIFTS = (
    _with("int, float, text", '"t": 21', {"t": 21.0}),
    _with("int, float, text", '"n": 21.0', {"n": 21}),
    _with("int, float, text", '"n": 21.5', {}, "n"),
    _with("int, float, text", '"t": "21.5"', {}, "t"),
    _with("int, float, text", '"n": 1e-400', {}, "n"),
    _with("int, float, text", '"n": 20.99999999999999999999', {}, "n"),
    _with("int, float, text", '"n": 2.1e1', {"n": 21}),
    _with("null", '"t": null', {}),
    Drift("null", '{"id": null, "t": 1.5}', {"t": 1.5}, ("id",)),
    _with("missing", '"n": 1', {"n": 1}),
    Drift("missing", '{"t": 1.5}', {"t": 1.5}, ("id",)),
    _with("nested", '"t": {"value": 21.5}', {}, "t"),
    _with("nested", '"motor": {"rpm": 900}', {"rpm": 900}),
    _with("nested", '"motor": 900', {}, "rpm"),
    _with("array", '"t": [21.5]', {}, "t"),
    _with("array", '"levels": [1, 2.5]', {"levels": [1.0, 2.5]}),
    _with("array", '"levels": [1, "x"]', {}, "levels"),
    _with("array", '"levels": 2.5', {}, "levels"),
    _with("unicode", '"state": "größer 🚀 \\u0000"', {"state": "größer 🚀 \0"}),
    Drift("unicode", '{"id": "p1", "state": "\\ud800"}', None, ("payload",)),
    Drift("NaN", '{"id": "p1", "t": NaN}', None, ("payload",)),
    _with("NaN", '"t": "NaN"', {}, "t"),
    _with("huge numbers", '"n": 9223372036854775807', {"n": (1 << 63) - 1}),
    _with("huge numbers", '"n": 9223372036854775808', {}, "n"),
    _with("huge numbers", '"t": 1e300', {"t": 1e300}),
    _with("huge numbers", '"t": 1e400', {}, "t"),
    _with("times", '"at": "2026-11-01T12:00:00Z"', {"at": NOON}),
    _with("times", '"at": "2026-11-01T13:00:00+01:00"', {"at": NOON}),
    _with("times", '"at": "2026-11-01 12:00:00"', {"at": NOON}),
    _with("times", '"at": "01.11.2026 12:00"', {}, "at"),
    _with("times", '"at": 1793534400000', {}, "at"),
    _with("times", '"at_ms": 1793534400000', {"at_ms": NOON}),
    _with("times", '"local": "2026-11-01T12:00:00"', {"local": NOON.replace(tzinfo=None)}),
    _with("times", '"local": "2026-11-01T12:00:00Z"', {}, "local"),
    _with("times", '"day": "2026-11-01"', {"day": NOON.date()}),
    _with("times", '"day": "2026-11-01T12:00:00Z"', {}, "day"),
    _with("times", '"day": "2026-02-30"', {}, "day"),
    _with("enum grows", '"state": "maintenance"', {"state": "maintenance"}),
    _with("unit changes", '"t": 294.65', {"t": 294.65}),
    Drift("key order", '{"n": 1, "t": 1.5, "id": "p1"}', {"id": "p1", "n": 1, "t": 1.5}),
)


def shown(row: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return what a row of any engine shows: its values that are not null, and the fields of ``_misfit``."""
    reported = row["_misfit"] or ()
    if not isinstance(reported, dict):
        reported = (
            {each["key"]: each["value"] for each in reported}
            if reported and isinstance(reported[0], dict)
            else dict(reported)
        )
    return {name: _plain(row[name]) for name in COLUMNS if row[name] is not None}, tuple(sorted(reported))


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    return list(value) if isinstance(value, list) else value


def expected() -> list[tuple[dict[str, Any], tuple[str, ...]]]:
    """Return what every engine shows, in the order of ``DRIFTS``."""
    return [({name: _plain(value) for name, value in (each.shows or {}).items()}, each.misfits) for each in DRIFTS]


def silent_nulls() -> list[str]:
    """Return the payloads with a value that stands in no column, and that no reason names. Null and missing fields that
    are not required have no value."""
    return [
        each.payload
        for each in DRIFTS
        if each.shows is not None
        and any(
            value is not None and name in COLUMNS and name not in each.shows and name not in each.misfits
            for name, value in json.loads(each.payload).items()
        )
    ]


def page() -> Iterable[str]:
    """Yield the rows of the table in the documentation."""
    for each in DRIFTS:
        found = ", ".join(f"`{name}` {_words(value)}" for name, value in (each.shows or {}).items() if name != "id")
        if each.shows is not None and "id" in each.misfits:
            found = ", ".join(filter(None, (found, "`id` null")))
        reasons = ", ".join(f"`{name}`" for name in each.misfits)
        yield f"| {each.kind} | `{each.payload}` | {found or 'null'} | {reasons or 'none'} |"


def _words(value: Any) -> str:
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M}{' UTC' if value.tzinfo else ''}"
    if isinstance(value, date):
        return f"{value}"
    return json.dumps(value, ensure_ascii=False)
