"""Tests that search: they are slow, the run says which slice of them it makes, and a failure says how to repeat it.

``search(turns=4)`` is for a search that cannot be made smaller, since starting its nodes or its Spark is most of it:
the run of one commit in four makes it, and every night. Tests of one file have their turns one after the other.
"""

from __future__ import annotations

import shlex
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.second_run import plain
from tests.support.slices import SLICE, VARIABLE, Slice

MARK = "search"
PROPERTY = ("search", True)
"""What reports of searches carry. Their keywords would also have a folder's name."""


def again(name: str) -> str:
    """Return the command that repeats a test with the seeds of this run."""
    return f"{VARIABLE}={SLICE} ./run test --all {shlex.quote(plain(name))}"


def has_turn(part: Slice, file: str, at: int, turns: int) -> bool:
    """Return whether a slice makes a test that takes turns.

    Args:
        at: its place among the tests of the file that take turns. Files begin at different places, so that no commit
            makes much more than others.
    """
    return part.is_night or (part.number + zlib.crc32(file.encode()) + at) % turns == 0


def waiting(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the tests whose turn comes with another slice."""
    found, places = [], dict[str, int]()
    for item in items:
        mark = item.get_closest_marker(MARK)
        if mark is not None and "turns" in mark.kwargs:
            file = item.nodeid.partition("::")[0]
            places[file] = at = places.get(file, -1) + 1
            if not has_turn(SLICE, file, at, mark.kwargs["turns"]):
                found.append(item)
    return found


def asks_for_folders(config: pytest.Config) -> bool:
    """Return whether a run is of whole folders. Tests and files that are named are made in every slice."""
    return any((config.invocation_params.dir / Path(each.partition("::")[0])).is_dir() for each in config.args)


class Searches:
    """A pytest plugin."""

    def pytest_report_header(self) -> str:
        """Say which slice it is."""
        return f"searches: slice {SLICE} ({VARIABLE}={SLICE} repeats it)"

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Have searches be slow tests, and leave out those whose turn it is not. Quick runs are the same for every
        commit."""
        for item in items:
            if item.get_closest_marker(MARK) is not None:
                item.add_marker(pytest.mark.slow)
                item.user_properties.append(PROPERTY)
        if asks_for_folders(config) and (others := waiting(items)):
            config.hook.pytest_deselected(items=others)
            left_out = {item.nodeid for item in others}
            items[:] = [item for item in items if item.nodeid not in left_out]

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
