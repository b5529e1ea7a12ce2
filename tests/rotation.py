"""Slow tests in turn: continuous integration makes those near the change, and a quarter of the others.

Which quarter it is moves with the number of commits, as the seeds of searches do, so that four commits in a row make
all. ``--rotate FILE`` turns it on; ``python -m tests.changed --near REVISION`` writes the file. Without it a run of
slow tests makes all of them, as ``./run test --all`` does.

A search that takes turns of its own (``search(turns=4)``) keeps them: of two kinds of turns some would never meet.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.durations import SLOW_S
from tests.searches import MARK, asks_for_folders
from tests.support.slices import SLICE

PARTS = 4
SHARED = "rotation"
"""Key of what a worker tells the process that started it."""


def part_of(file: str, slow_s: Mapping[str, float] = SLOW_S) -> int:
    """Return which part a file of tests is in. The longest files are dealt out so that no part is much longer."""
    if file not in slow_s:
        return zlib.crc32(file.encode()) % PARTS
    totals = [0.0] * PARTS
    for name in sorted(slow_s, key=lambda name: (-slow_s[name], name)):
        part = totals.index(min(totals))
        if name == file:
            return part
        totals[part] += slow_s[name]
    raise AssertionError("unreachable")


def is_near(test: str, near: frozenset[str]) -> bool:
    """Return whether a test is of a near file, or is about a near file that its parameter names, such as a page."""
    file, _, rest = test.partition("::")
    return file in near or rest.partition("[")[2].rpartition("]")[0] in near


class Rotation:
    """A pytest plugin for each process of a run."""

    def __init__(self, config: pytest.Config) -> None:
        file: str | None = config.getoption("--rotate")
        self._near = None if file is None else frozenset(Path(file).read_text().splitlines())
        self._config = config
        self._tests: Counter[tuple[str, str]] = Counter()
        """Folder and why its tests are made, or that they wait -> tests."""

    @pytest.hookimpl(trylast=True)  # searches are marked as slow before
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out the slow tests whose turn it is not."""
        if self._near is None or not asks_for_folders(config):
            return
        made: list[pytest.Item] = []
        others: list[pytest.Item] = []
        for item in items:
            reason = self._reason(item)
            folder = "/".join(item.nodeid.partition("::")[0].split("/")[:2])
            self._tests[folder, reason] += 1
            (others if reason == "waits" else made).append(item)
        if others:
            config.hook.pytest_deselected(items=others)
            items[:] = made

    def _reason(self, item: pytest.Item) -> str:
        assert self._near is not None
        mark = item.get_closest_marker(MARK)
        if item.get_closest_marker("slow") is None or (mark is not None and "turns" in mark.kwargs):
            return "always"
        if is_near(item.nodeid, self._near):
            return "near"
        return "turn" if SLICE.number % PARTS == part_of(item.nodeid.partition("::")[0]) else "waits"

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Tell the process that started the workers: it collects nothing itself."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[SHARED] = [[*key, count] for key, count in self._tests.items()]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Take what one worker tells: all have collected the same."""
        for folder, reason, count in getattr(node, "workeroutput", {}).get(SHARED, ()):
            self._tests[folder, reason] = count

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print what this part has."""
        if not self._tests or hasattr(self._config, "workerinput"):
            return
        terminalreporter.section(f"slow tests in turn: part {SLICE.number % PARTS + 1} of {PARTS}")
        terminalreporter.line(f"{'near':>7} {'turn':>7} {'always':>7} {'waits':>7}")
        for folder in [*sorted({folder for folder, _ in self._tests}), None]:
            counts = [
                sum(count for (of, why), count in self._tests.items() if why == reason and folder in (of, None))
                for reason in ("near", "turn", "always", "waits")
            ]
            terminalreporter.line(" ".join(f"{count:7d}" for count in counts) + f"  {folder or 'all'}")
        terminalreporter.line(
            "near: the change can touch them; turn: it is their turn; always: searches with turns of"
            " their own, and what the quick stage left; waits: made three commits later at most, and by --all"
        )
