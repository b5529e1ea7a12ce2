"""What a worker imports before it collects: its own part of the tests.

In a fresh checkout nothing is compiled. Workers that all begin with the first test compile the same modules at the
same moments; of parts of their own, each finds most of the others' compiled when it comes to them.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = Path(__file__).parent


class Worker(NamedTuple):
    """A process that runs tests: one of so many."""

    number: int
    workers: int


def worker() -> Worker | None:
    """Return which worker this process is; None in a run that has none, and in the process that starts them."""
    number = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    return Worker(int(number), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])) if number else None


def are_of_all(arguments: list[str]) -> bool:
    """Whether a run's arguments stand for every test, of which each worker has to import all."""
    return [Path(each).resolve() for each in arguments] == [TESTS]


def part(files: list[Path], number: int, count: int) -> list[Path]:
    """Return the files of a part: each is in one of them."""
    return files[len(files) * number // count : len(files) * (number + 1) // count]


def import_part(number: int, count: int) -> None:
    """Import a part of the modules of tests. What fails is left to pytest, which tells why."""
    for path in part(sorted(TESTS.rglob("test_*.py")), number, count):
        name = ".".join(path.relative_to(TESTS.parent).with_suffix("").parts)
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(name)
