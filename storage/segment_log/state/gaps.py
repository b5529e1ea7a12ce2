"""Helpers for gap notices: adjacent ones are merged."""

from __future__ import annotations

from collections.abc import Iterable

from weft.protocols.ranges import Range, RangeSet
from weft.protocols.segment import GapNotice, GapReason


def add_merged(notices: list[GapNotice], gap: GapNotice) -> None:
    """Append a notice; merge it with the last one if it continues that for the same reason."""
    last = notices[-1] if notices else None
    if (
        last is None
        or (last.stream, last.reason) != (gap.stream, gap.reason)
        or not last.first <= gap.first <= last.end
    ):
        notices.append(gap)
        return
    notices[-1] = GapNotice(gap.stream, last.first, max(last.end, gap.end), gap.reason, max(last.time, gap.time))


def merged(notices: Iterable[GapNotice]) -> list[GapNotice]:
    """Return notices in the order of their streams and numbers; if two cover a number, the earlier one counts."""
    result: list[GapNotice] = []
    told: dict[int, RangeSet] = {}
    for gap in sorted(notices, key=lambda gap: (gap.stream, gap.first, gap.time)):
        known = told.setdefault(gap.stream, RangeSet())
        for first, end in known.missing(gap.first, gap.end):
            add_merged(result, GapNotice(gap.stream, first, end, gap.reason, gap.time))
        known.add(gap.first, gap.end)
    return result


def notices(stream: int, ranges: Iterable[Range], reason: GapReason, now: int) -> list[GapNotice]:
    """Return a notice for each of the ranges."""
    return [GapNotice(stream, first, end, reason, now) for first, end in ranges]


def reason_name(reason: int) -> str:
    """Return the name of a notice's reason; its number when a later release introduced it."""
    try:
        return GapReason(reason).name.lower()
    except ValueError:
        return f"reason {reason}"


def lost_by_reason(gaps: Iterable[GapNotice]) -> dict[str, int]:
    """Return the number of records under gap notices, by reason."""
    lost: dict[str, int] = {}
    for gap in gaps:
        reason = reason_name(gap.reason)
        lost[reason] = lost.get(reason, 0) + gap.end - gap.first
    return lost
