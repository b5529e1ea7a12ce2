"""Times that a well-behaved client waited for acknowledgements, and what a test allows of them."""

from __future__ import annotations

from typing import NamedTuple

import pytest

MEASURED_AGAIN = pytest.mark.flaky(reruns=2, only_rerun=["WaitedTooLong", "LongSteps"])
"""Of all attacks, since they measure waits and steps on a machine that others use as well, and whose host takes time
that the process is charged for: what an attack causes is there every time. Whatever else is wrong fails at once."""


class WaitedTooLong(AssertionError):
    """A wait that was longer than a test allows."""


def at_most(most_s: float, waited_s: float, *seen: object) -> None:
    """Fail a test whose client waited longer.

    Raises:
        WaitedTooLong: with everything that was seen.
    """
    if not waited_s <= most_s:
        raise WaitedTooLong(f"{waited_s:.3f} s, and at most {most_s:.3f} s are allowed", *seen)


class Waits(NamedTuple):
    """Times to acknowledgements in seconds, as a `Stopwatch` measures them."""

    acknowledged: int
    p99: float
    longest: float


def summary(waits: list[float]) -> Waits:
    """Return what is said of some waits, of which there is at least one."""
    assert waits, "the well-behaved client got no acknowledgement at all"
    ordered = sorted(waits)
    return Waits(len(ordered), ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], ordered[-1])
