"""Two runs on two machines that share their work: the second leaves out what the first has settled.

``.ci/run`` makes the quick tests on a bare machine, with ``--passed-to FILE``. The next run, on the whole machine and
with ``--not-again FILE``, makes the rest: the slow tests, what was skipped or failed, and what another Java could
change. Every test runs; what both machines can show alike runs once.

The bare machine has Java from a wheel, the whole one its own, of another version. What tests run in Java is nearly all
Spark itself, which plans alike on both. So of the quick tests only those with the mark ``java`` run on both: what Java
itself has a part in (the memory of Arrow, every type on its way to Python, the words of its errors) and the rooms of
Spark that no slow test enters. The slow tests of Spark all run on the machine's own Java.
"""

from __future__ import annotations

from pathlib import Path

import pytest

AGAIN = "java"
"""Tests with this mark run on both machines."""


def plain(name: str) -> str:
    """Return the test's name without the ``@group`` that pytest-xdist appends: of its file, or of a folder above it."""
    test, _, group = name.rpartition("@")
    return test if group and f"/{name.partition('::')[0]}/".find(f"/{group}/") >= 0 else name


class SecondRun:
    """A pytest plugin for each process of a run."""

    def __init__(self, config: pytest.Config) -> None:
        self._passed_to: str | None = config.getoption("--passed-to")
        not_again: str | None = config.getoption("--not-again")
        self._settled = set(Path(not_again).read_text().splitlines()) if not_again else set()
        self._passed: set[str] = set()
        self._not_passed: set[str] = set()

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out what the first run has settled."""
        settled = [
            item for item in items if plain(item.nodeid) in self._settled and item.get_closest_marker(AGAIN) is None
        ]
        if settled:
            config.hook.pytest_deselected(items=settled)
            left_out = {item.nodeid for item in settled}
            items[:] = [item for item in items if item.nodeid not in left_out]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what became of each test: its set-up and its end count as well."""
        if not report.passed:
            self._not_passed.add(plain(report.nodeid))
        elif report.when == "call":
            self._passed.add(plain(report.nodeid))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the names of the tests that passed; a worker leaves that to the process that started it."""
        if self._passed_to and not hasattr(session.config, "workerinput"):
            names = sorted(self._passed - self._not_passed)
            Path(self._passed_to).write_text("".join(f"{name}\n" for name in names))
