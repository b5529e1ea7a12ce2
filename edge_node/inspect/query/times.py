"""Times in queries: text in UTC such as ``2026-11-20 07:51:26.123456789``.

It is SQLite's own form of a time, so that its functions accept it, with nanoseconds and a fixed length, so that the
text sorts like the time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from weft.config.units import parse_duration_ns

_SECOND_NS = 10**9
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIEST = "0000-01-01 00:00:00.000000000"
_TEXT = re.compile(r"\d{4}-\d\d-\d\d(?: \d\d(?::\d\d(?::\d\d(?:\.\d{1,9})?)?)?)?")


def time_text(ns: int) -> str:
    """Return a time, ns since 1970. Times outside of the years 1 to 9999 are written as the nearest valid time."""
    return f"{_second_text(ns // _SECOND_NS)}.{ns % _SECOND_NS:09d}"


def time_texts(times: Iterable[int]) -> list[str]:
    """Return the texts of many times: neighbours share their second, and often all of it."""
    texts: list[str] = []
    known, text, second, prefix = None, "", None, ""
    for ns in times:
        if ns != known:
            known = ns
            if ns // _SECOND_NS != second:
                second = ns // _SECOND_NS
                prefix = _second_text(second)
            text = f"{prefix}.{ns % _SECOND_NS:09d}"
        texts.append(text)
    return texts


def _second_text(second: int) -> str:
    try:
        return (_EPOCH + timedelta(seconds=second)).strftime("%4Y-%m-%d %H:%M:%S")
    except OverflowError:
        return "0001-01-01 00:00:00" if second < 0 else "9999-12-31 23:59:59"


def earliest_ns(text: str) -> int | None:
    """Return the earliest time whose text does not sort before ``text``; None when the form of ``text`` does not allow
    that."""
    if not _TEXT.fullmatch(text):
        return None
    full = text + _EARLIEST[len(text) :]
    try:
        second = datetime.fromisoformat(full[:19]).replace(tzinfo=UTC) - _EPOCH
    except ValueError:
        return None
    return (second.days * 86_400 + second.seconds) * _SECOND_NS + int(full[20:])


def shifted(now_ns: int, offset: str = "") -> int:
    """Return the time of ``now('-10m')``.

    Raises:
        ValueError: the offset is not a sign and a duration.
    """
    offset = offset.strip()
    if not offset:
        return now_ns
    if offset[0] not in "+-":
        raise ValueError(f"now() takes an offset with its sign, such as now('-{offset.split()[0]}'); got {offset!r}")
    nanoseconds = parse_duration_ns(offset[1:])
    return now_ns + nanoseconds if offset[0] == "+" else now_ns - nanoseconds
