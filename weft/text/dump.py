"""Text of ``weft log dump``: a line for each entry of a log, and for each record."""

from __future__ import annotations

from typing import Any

import msgspec

from weft.protocols.batch import Record
from weft.text.record import record_line, shown, timestamp

_TIMES = frozenset({"created", "first_time", "last_time"})


def entry_line(facts: dict[str, Any]) -> str:
    """Return a line for an entry: place and kind, then names and values."""
    facts = dict(facts)
    place = f"{facts.pop('position'):>12} " if "position" in facts else ""
    kind = facts.pop("kind", "")
    return f"{place}{kind:<7} " + " ".join(f"{name}={_shown(name, value)}" for name, value in facts.items())


def record_line_below(record: Record) -> str:
    """Return a line for a record, under its batch."""
    return f"{'':>20} {record_line(record)}"


def _shown(name: str, value: Any) -> str:
    if name in _TIMES:
        return timestamp(value)
    return shown(value if isinstance(value, str) and " " not in value else msgspec.json.encode(value).decode())
