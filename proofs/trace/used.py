"""Ranges of records that went into a row: the lineage column ``_from``, in tables and headers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from weft.proofs.trace.errors import TraceError
from weft.protocols.lane import NAME_RULE, format_log_id, valid_name
from weft.protocols.ranges import SEQ_END

FROM_COLUMN = "_from"
RANGES_MAX = 10_000
"""Maximum number of ranges of one row."""
_LOG_DIGITS = 16
_SOURCE = re.compile(r"([^ ,]+) ([0-9]{1,20})(?:-([0-9]{1,20}))?(?:/([0-9]{1,20}))?")


class Used(msgspec.Struct, frozen=True):
    """Records of one lane that went into a row."""

    edge: str
    log: str
    """Log id in hexadecimal."""
    first: int
    """Lowest used sequence number."""
    last: int
    """Highest used sequence number."""
    count: int
    """Number of used records; if it equals the range's length, all of ``first`` to ``last``."""
    stream: str = ""
    """Stream of the lane, if known."""

    @property
    def numbers(self) -> int:
        """Return the number of sequence numbers in the range."""
        return self.last - self.first + 1


def parse_used(value: str | bytes | object) -> list[Used]:
    """Return the ranges of a lineage column's value: a list of objects, or its JSON; a single object is a list of one.

    Raises:
        TraceError: it is not in this form.
    """
    try:
        found = msgspec.json.decode(value) if isinstance(value, str | bytes) else value
        ranges = msgspec.convert([found] if isinstance(found, dict) else found, list[Used])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(
            f'expected the value of a column _from such as [{{"edge": "press-1", "log": "1", "first": 0, "last": 9, '
            f'"count": 10}}]; {error}'
        ) from None
    if len(ranges) > RANGES_MAX:
        raise TraceError(f"a row with {len(ranges)} ranges; the most that are traced is {RANGES_MAX}")
    return [_checked(each) for each in ranges]


def parse_source(text: str, edge: str, log: str) -> list[Used]:
    """Return the ranges that an edge function stored in the header of a record.

    Args:
        edge: edge node of the record; ``log`` is its log. Its inputs are of the same log.

    Raises:
        TraceError: it is not in this form.
    """
    found = []
    for part in text.split(", ", RANGES_MAX):
        match = _SOURCE.fullmatch(part)
        if match is None:
            raise TraceError(f"expected the source of a record such as telemetry 120-150/17, got {part[:80]!r}")
        first, last = int(match[2]), int(match[3] or match[2])
        count = int(match[4]) if match[4] else last - first + 1
        found.append(_checked(Used(edge, log, first, last, count, match[1])))
    return found


def parse_record(text: str) -> Used:
    """Return the range of ``EDGE/LOG/SEQ`` or ``EDGE/LOG/FIRST-LAST``.

    Raises:
        TraceError: it is not in this form.
    """
    edge, _, rest = text.partition("/")
    log, _, numbers = rest.partition("/")
    first, dash, last = numbers.partition("-")
    try:
        low = int(first)
        high = int(last) if dash else low
    except ValueError:
        raise TraceError(f"expected EDGE/LOG/SEQ such as press-1/000000000000002a/17, got {text!r}") from None
    return _checked(Used(edge, log, low, high, high - low + 1))


def used_by(row: Mapping[str, Any]) -> list[Used]:
    """Return the ranges of a row: its lineage, or its own record if it has the source's columns.

    Raises:
        TraceError: it has neither.
    """
    if row.get(FROM_COLUMN) is not None:
        return parse_used(row[FROM_COLUMN])
    if all(row.get(name) is not None for name in ("_edge", "_log", "_seq")):
        return [_checked(Used(row["_edge"], row["_log"], row["_seq"], row["_seq"], 1))]
    raise TraceError(
        "the row has no lineage: neither a column _from nor _edge, _log and _seq. Its columns are "
        + ", ".join(sorted(row))
    )


def _checked(used: Used) -> Used:
    if not valid_name(used.edge):
        raise TraceError(f"edge: expected {NAME_RULE}; got {used.edge!r}")
    try:
        log_id = int(used.log, 16)
    except ValueError:
        log_id = -1
    if not 0 <= log_id < 1 << 4 * _LOG_DIGITS:
        raise TraceError(f"log: expected up to {_LOG_DIGITS} hexadecimal digits; got {used.log!r}")
    if not (0 <= used.first <= used.last < SEQ_END and used.count > 0):
        raise TraceError(
            f"expected 0 <= first <= last and a count from 1; got first {used.first}, last {used.last}, count "
            f"{used.count}"
        )
    return msgspec.structs.replace(used, log=format_log_id(log_id))
