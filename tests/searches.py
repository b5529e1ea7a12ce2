"""Tests that search: they are slow, the run says which slice of them it makes, and a failure says how to repeat it."""

from __future__ import annotations

import shlex

import pytest

from tests.second_run import plain
from tests.support.slices import SLICE, VARIABLE

MARK = "search"
PROPERTY = ("search", True)
"""What reports of searches carry. Their keywords would also have a folder's name."""


def again(name: str) -> str:
    """Return the command that repeats a test with the seeds of this run."""
    return f"{VARIABLE}={SLICE} ./run test --all {shlex.quote(plain(name))}"


class Searches:
    """A pytest plugin."""

    def pytest_report_header(self) -> str:
        """Say which slice it is."""
        return f"searches: slice {SLICE} ({VARIABLE}={SLICE} repeats it)"

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Have searches be slow tests. Those of quick runs are the same for every commit."""
        for item in items:
            if item.get_closest_marker(MARK) is not None:
                item.add_marker(pytest.mark.slow)
                item.user_properties.append(PROPERTY)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the command that repeats each search that failed."""
        stats = terminalreporter.stats
        failed = {
            report.nodeid: None
            for report in (*stats.get("failed", ()), *stats.get("error", ()))
            if PROPERTY in map(tuple, getattr(report, "user_properties", ()))
        }
        if failed:
            terminalreporter.section("searches that failed; to repeat one")
            for name in failed:
                terminalreporter.write_line(again(name))
