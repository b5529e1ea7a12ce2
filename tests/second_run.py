"""Two runs on two machines that share their work: the second leaves out what the first has settled.

``.ci/run`` makes the quick tests on a bare machine, with ``--passed-to FILE``. The next run, on the whole machine and
with ``--not-again FILE``, makes the rest: the slow tests, what was skipped or failed, and what another Java could
change. Every test runs; what both machines can show alike runs once.

The bare machine has Java from a wheel, the whole one its own, of another version. What tests run in Java is nearly all
Spark itself, which plans alike on both. So of the quick tests only those with the mark ``java`` run on both: what Java
itself has a part in (the memory of Arrow, every type on its way to Python, the words of its errors) and the rooms of
Spark that no slow test enters. The slow tests of Spark all run on the machine's own Java.

A file all of whose tests are settled is named by itself. The second run does not even import it: to find out that there
is nothing to do in most files took each worker longer than many slow tests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

AGAIN = "java"
"""Tests with this mark run on both machines."""
SHARED = "tests to settle"
"""Key of what a worker tells the process that started it."""


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
        self._settled_files = {config.rootpath / each for each in self._settled if "::" not in each}
        self._passed: set[str] = set()
        self._not_passed: set[str] = set()
        self._in_file: dict[str, int] = {}
        """File without a test that runs on both machines -> its tests, slow ones as well."""

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Leave out a file all of whose tests are settled."""
        return collection_path in self._settled_files or None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
        """Leave out what the first run has settled."""
        again = {item.nodeid.partition("::")[0] for item in items if item.get_closest_marker(AGAIN)}
        in_file = Counter(item.nodeid.partition("::")[0] for item in items)
        self._in_file = {file: count for file, count in in_file.items() if file not in again}
        settled = [
            item for item in items if plain(item.nodeid) in self._settled and item.get_closest_marker(AGAIN) is None
        ]
        if settled:
            config.hook.pytest_deselected(items=settled)
            left_out = {item.nodeid for item in settled}
            items[:] = [item for item in items if item.nodeid not in left_out]
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what became of each test: its set-up and its end count as well."""
        if not report.passed:
            self._not_passed.add(plain(report.nodeid))
        elif report.when == "call":
            self._passed.add(plain(report.nodeid))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the names of the tests that passed; a worker leaves that to the process that started it."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[SHARED] = self._in_file
        elif self._passed_to:
            names = self._passed - self._not_passed
            passed = Counter(name.partition("::")[0] for name in names)
            whole = {file for file, count in passed.items() if count == self._in_file.get(file)}
            Path(self._passed_to).write_text("".join(f"{name}\n" for name in sorted(names | whole)))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Take what one worker tells: all have collected the same."""
        self._in_file = getattr(node, "workeroutput", {}).get(SHARED, self._in_file)
