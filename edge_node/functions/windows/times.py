"""Times of events from devices, and window bounds for tables."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from weft.edge_node.functions.windows.refusal import Refusal

SECOND = 1_000_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EVENT_TIME_END = int(datetime(2250, 1, 1, tzinfo=UTC).timestamp()) * SECOND
"""End of the times of events. 64 bits of nanoseconds reach to 2262, and windows end later than they begin."""
CLOCK_SET = int(datetime(2020, 1, 1, tzinfo=UTC).timestamp()) * SECOND
"""Time before which a node's clock is not set: boards without a battery begin in 1970 or 2000."""
_UNITS = {"s": SECOND, "ms": 1_000_000, "us": 1_000, "ns": 1}


def nanoseconds(seconds: float) -> int:
    """Return a duration of the settings in ns."""
    return round(seconds * SECOND)


def whole_second(time: int) -> int:
    """Return the first whole second that is not before a time: the first tick that can see it."""
    return -(-time // SECOND) * SECOND


def event_time_reader(field: str, unit: str, zone: str = "UTC") -> Callable[[Any], int]:
    """Return a function from a field's value to ns since 1970.

    Numbers are of the given unit since 1970. Text is ISO 8601, and of a zone where it names no offset. By default this
    is UTC: with a local summer time, two hours of each year have the same times, and both are taken for the first.
    """
    factor = _UNITS[unit]
    assumed = UTC if zone == "UTC" else ZoneInfo(zone)

    def read(value: Any) -> int:
        if type(value) is int:
            time = value * factor
        elif type(value) is float:
            if not math.isfinite(value):
                raise Refusal(f"{field} is {value}, which is no time")
            # Split, as a float of seconds times 10**9 would lose the last digits of its fraction.
            whole = math.floor(value)
            time = whole * factor + round((value - whole) * factor)
        elif type(value) is str:
            time = _from_text(field, value, assumed)
        else:
            raise Refusal(f"{field} is of type {type(value).__name__}; expected a time, as number or ISO 8601 text")
        if not 0 <= time < EVENT_TIME_END:
            raise Refusal(f"{field} is {value!r}, which is outside 1970 to 2250; check the time's unit ({unit})")
        return time

    return read


def _from_text(field: str, text: str, assumed: tzinfo) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Refusal(f"{field} is {text[:40]!r}; expected a time such as 2026-01-31T12:00:00Z") from None
    # PEP 495: fold 0 is the first of two, and the offset before the change where clocks were set forward.
    since = (moment if moment.tzinfo else moment.replace(tzinfo=assumed)) - _EPOCH
    return (since.days * 86_400 + since.seconds) * SECOND + since.microseconds * 1_000


@functools.lru_cache(maxsize=1024)
def iso_text(time: int, digits: int) -> str:
    """Return a time as ISO 8601 in UTC with so many digits of a second: a form that SQL engines cast to a timestamp.

    All texts of one stream have the same digits, so that they sort like the times.
    """
    whole, fraction = divmod(time, SECOND)
    text = (_EPOCH + timedelta(seconds=whole)).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{fraction:09}"[: len(text) + 1 + digits] + "Z" if digits else f"{text}Z"


def digits_of(*durations: int) -> int:
    """Return the number of digits of a second that multiples of some durations in ns need: 0, 3, 6 or 9."""
    step = math.gcd(*durations, SECOND)
    return next(digits for digits in (0, 3, 6, 9) if step % 10 ** (9 - digits) == 0)
