"""What each file of tests is known to cost: ``known.json`` beside this module, which ``./run costs`` writes.

The workers of a run begin with the files that take longest, so that both are done at the same time, and a run that
costs more than its budget says which files have grown.
"""

from __future__ import annotations

import functools
from pathlib import Path

import msgspec

from tests.costs.figures import Costs

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).with_name("known.json")
NEW_S = 2.0
"""Processor time that a file is thought to take before it was measured."""
GROWTH_S = 2.0
"""A file has grown when it takes so much more than was known."""
GREATEST = 15
"""Files that are named."""


class Known(msgspec.Struct, frozen=True):
    """Costs of one file, of its quick and its slow tests. Seconds of a machine at its measured speed."""

    quick_s: float = 0.0
    """Processor time in the quick run."""
    quick_waits_s: float = 0.0
    slow_s: float = 0.0
    """Processor time in the run that ``.ci/run`` makes after the quick one."""
    slow_waits_s: float = 0.0


@functools.cache
def known() -> dict[str, Known]:
    """Return the committed costs: name of a file -> its costs."""
    return msgspec.json.decode(FILE.read_bytes(), type=dict[str, Known]) if FILE.exists() else {}


def expected_s(file: str, slow: bool) -> float:
    """Return how long a worker is expected to be busy with a file.

    Args:
        slow: the run makes slow tests, not quick ones.
    """
    costs = known().get(file)
    if costs is None:
        return NEW_S
    return costs.slow_s + costs.slow_waits_s if slow else costs.quick_s + costs.quick_waits_s


def keep(quick: Costs, slow: Costs | None) -> None:
    """Write ``known.json``: what a quick run took, and the run of the rest, where that was measured too.

    Files whose turn it was not keep what was known of them (tests/searches.py).
    """
    before = known()
    names = quick.files.keys() | (slow.files.keys() if slow else set())
    names |= {name for name in before if (ROOT / name).exists()} if slow else before.keys()
    made = {}
    for name in sorted(names):
        old = before.get(name, Known())
        quick_s, quick_waits_s = quick.of(name)
        slow_s, slow_waits_s = slow.of(name) if slow and name in slow.files else (old.slow_s, old.slow_waits_s)
        made[name] = Known(quick_s, quick_waits_s, slow_s, slow_waits_s)
    FILE.write_bytes(msgspec.json.format(msgspec.json.encode(made), indent=1) + b"\n")


def grown(costs: Costs, slow: bool) -> list[str]:
    """Return a line for each file that took more than was known of it, the greatest growth first."""
    rows = []
    for name in costs.files:
        now, old = costs.of(name)[0], known().get(name, Known())
        before = old.slow_s if slow else old.quick_s
        if now > before + GROWTH_S:
            rows.append((now - before, f"{name}: {now:.1f} s of processor time, {before:.1f} s before"))
    return [line for _, line in sorted(rows, reverse=True)[:GREATEST]]
