"""Figures of what tests take."""

from __future__ import annotations

import msgspec

from tests.costs.speed import REFERENCE_S


class Cost(msgspec.Struct):
    """What a file, or a part of it, took. Seconds."""

    tests: int = 0
    wall_s: float = 0.0
    own_s: float = 0.0
    """Processor time of the process that runs the tests, less that of properties."""
    properties_s: float = 0.0
    """The same, in tests by Hypothesis."""
    sleeps_s: float = 0.0
    """Time in ``time.sleep``, which is a part of the waits."""
    started: dict[str, int] = {}
    """Processes started, by cause."""
    others_s: dict[str, float] = {}
    """Processor time of other processes, by cause."""

    @property
    def processor_s(self) -> float:
        """Processor time of all processes."""
        return self.own_s + self.properties_s + sum(self.others_s.values())

    @property
    def waits_s(self) -> float:
        """What no process of this test used: time asleep, at a disk, or without a free core."""
        return max(0.0, self.wall_s - self.processor_s)

    def add(self, other: Cost) -> None:
        """Add another's figures."""
        self.tests += other.tests
        self.wall_s += other.wall_s
        self.own_s += other.own_s
        self.properties_s += other.properties_s
        self.sleeps_s += other.sleeps_s
        for cause, count in other.started.items():
            self.started[cause] = self.started.get(cause, 0) + count
        for cause, seconds in other.others_s.items():
            self.others_s[cause] = self.others_s.get(cause, 0.0) + seconds


class Costs(msgspec.Struct):
    """What a run took."""

    wall_s: float = 0.0
    files: dict[str, Cost] = {}
    tests: dict[str, tuple[float, float]] = {}
    """Name -> processor time and waits, of tests that took a second or more of either."""
    between_s: float = 0.0
    """Processor time outside of tests, of all workers: imports, collection, and the end of what they share."""
    orphans_s: float = 0.0
    """Processor time of processes whose parents had ended, and which no test was charged with."""
    samples: int = 0
    samples_s: float = 0.0
    """Processor time of the samples of this machine's speed."""

    @property
    def slowness(self) -> float:
        """Processor time of the same work here, beside that on the machine of the budgets."""
        return self.samples_s / self.samples / REFERENCE_S if self.samples else 1.0

    @property
    def processor_s(self) -> float:
        """Processor time of all workers, at the speed of the machine of the budgets."""
        return (sum(cost.processor_s for cost in self.files.values()) + self.between_s + self.orphans_s) / self.slowness

    def of(self, name: str) -> tuple[float, float]:
        """Return processor time and waits of a file, the former at the speed of the machine of the budgets."""
        cost = self.files.get(name, Cost())
        return round(cost.processor_s / self.slowness, 2), round(cost.waits_s, 2)

    def add(self, other: Costs) -> None:
        """Add another run's, or another worker's, figures; the time on the clock stays."""
        for name, cost in other.files.items():
            self.files.setdefault(name, Cost()).add(cost)
        self.tests |= other.tests
        self.between_s += other.between_s
        self.orphans_s += other.orphans_s
        self.samples += other.samples
        self.samples_s += other.samples_s
