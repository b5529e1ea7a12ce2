"""Words for a machine's clock that differs from a hub's."""

from __future__ import annotations

from weft.config.units import approximate_duration

CLOCK_DIFFERS_S = 10.0
"""Smallest difference that is reported. Time services keep a clock within a second, and a slow link's
estimate is right within a few."""


def clock_difference(offset_s: float | None) -> str | None:
    """Return the difference of this machine's clock in words; None while it is small or unknown.

    Args:
        offset_s: seconds to add to this machine's clock to get the hub's.
    """
    if offset_s is None or abs(offset_s) < CLOCK_DIFFERS_S:
        return None
    return f"{approximate_duration(abs(offset_s))} {'behind' if offset_s > 0 else 'ahead of'} the hub's"
