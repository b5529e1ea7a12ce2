"""Times that a well-behaved client waited for acknowledgements."""

from __future__ import annotations

from typing import NamedTuple

import pytest

MEASURED_AGAIN = pytest.mark.flaky(reruns=2, only_rerun=["AssertionError"])
"""Of tests that measure waits, on a machine that others use as well: what an attack causes is there every time."""


class Waits(NamedTuple):
    """Times to acknowledgements, seconds."""

    acknowledged: int
    p99: float
    longest: float


def summary(waits: list[float]) -> Waits:
    """Return what is said of some waits, of which there is at least one."""
    assert waits, "the well-behaved client got no acknowledgement at all"
    ordered = sorted(waits)
    return Waits(len(ordered), ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], ordered[-1])
